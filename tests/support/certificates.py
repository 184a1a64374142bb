"""A self-signed certificate for a private server on the loopback interface."""

from pathlib import Path

from tests.support.server import Server


def make_certificate(server: Server) -> tuple[Path, Path]:
    """Create a certificate and its key in the server's folder. Clients may present it as well."""
    certificate, key = server.folder / "cert.pem", server.folder / "key.pem"
    server.run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", "/CN=Headway tests", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", key, "-out", certificate),
    )
    return certificate, key
