"""The address of a server beside the store: several endpoints, credentials, a key prefix and files for TLS.

    scheme://[user[:password]@]host[:port][,host[:port]…][/path][?prefix=…&ca=FILE&cert=FILE&key=FILE]

User and password are percent-encoded if they contain reserved characters. Error messages never contain them.
"""

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from headway.core.errors import InvalidConfig
from headway.core.settings import mask_url

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_TLS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterUrl:
    """The endpoints, credentials and options of a URL."""

    scheme: str
    endpoints: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, *, port: int, options: Iterable[str] = ("prefix", *_TLS)) -> "AdapterUrl":
        """Parse a URL; `port` is the default port, and unknown options are refused."""
        try:
            parts = urlsplit(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise _wrong(url, "it is not a valid URL") from error
        if unknown := given.keys() - set(options):
            raise _wrong(url, f"it has an unknown option {min(unknown)[:40]!r}; known are {', '.join(options)}")
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, colon, password = credentials.partition(":")
        return cls(
            scheme=parts.scheme,
            endpoints=tuple(_endpoint(url, text, port) for text in hosts.split(",")),
            user=unquote(user) or None,
            password=unquote(password) if colon else None,
            path=unquote(parts.path.strip("/")),
            options=given,
        )

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context: it verifies the server against the system's authorities, or against `ca` alone."""
        ca, cert, key = (self.options.get(name) for name in _TLS)
        try:
            context = ssl.create_default_context(cafile=ca)
            if cert is not None:
                context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(f"{self.scheme}:// cannot use its files for TLS: {error}") from error
        return context


def _endpoint(url: str, text: str, port: int) -> tuple[str, int]:
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match[2] or port) < 65_536:
        raise _wrong(url, f"{text[:60]!r} is not a host with a port")
    return match[1].strip("[]"), int(match[2] or port)


def _wrong(url: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"the address {mask_url(url)[:120]!r} cannot be used: {why}")
