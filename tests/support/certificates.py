"""A certificate for a private server on the loopback interface, which is its own authority."""

from pathlib import Path

from tests.support.server import Server


def make_certificate(server: Server) -> tuple[Path, Path]:
    """Make a certificate and its key in the server's folder. Clients may show it too, to those who ask for one."""
    certificate, key = server.folder / "cert.pem", server.folder / "key.pem"
    server.run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", "/CN=Headway tests", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", key, "-out", certificate),
    )
    return certificate, key
