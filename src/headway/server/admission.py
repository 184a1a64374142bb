"""Admit a request: who asks, and whether a browser may send it from where it does (CSRF, DNS rebinding)."""

import ipaddress
import re
from functools import lru_cache
from typing import Final

from starlette.requests import HTTPConnection

from headway.operations.caller import Principal
from headway.server.auth import ANONYMOUS, Authenticator
from headway.server.proxies import is_forwarded
from headway.server.refusals import Refused
from headway.server.routes import (
    openapi,
    session,
)
from headway.server.web import headers_of

SAFE_METHODS: Final = ("GET", "HEAD")


async def admit(request: HTTPConnection, auth: Authenticator, *, is_page: bool = False) -> Principal:
    """Let somebody in. A name that leads here from elsewhere must not open the door that is open for localhost."""
    headers, client = headers_of(request.scope), (request.scope.get("client") or ("",))[0]
    authorization = headers[b"authorization"].decode("latin-1") if b"authorization" in headers else None
    value = session.session_of(request) if b"cookie" in headers else None
    if value is not None and not is_page and not session.sends_token(request):
        authorization = None  # A browser goes on sending the password that a page has asked for.
    try:
        principal = await auth.admit(
            openapi.browser_credential(authorization) if is_page else authorization, client, value
        )
    except Refused as refused:
        if is_page and refused.status == 401:
            refused.headers["WWW-Authenticate"] = 'Basic realm="headway", charset="UTF-8"'  # So that a browser asks.
        raise
    if principal.session is not None and not _only_reads(request):
        session.require_own_page(request)
    if principal is ANONYMOUS and not _is_local_name(headers.get(b"host", b"").decode("latin-1")):
        raise Refused(403, "forbidden", "without tokens only requests to localhost are answered; make a token")
    if principal is ANONYMOUS and is_forwarded(headers):
        raise Refused(
            403,
            "forbidden",
            "without tokens only requests of this machine are answered, and a proxy passed this one on",
            hint="`headway tokens create` makes a token; from then on the API can be reached through the proxy",
        )
    return principal


def check_origin(request: HTTPConnection) -> None:
    """Keep web pages of others out: they can make a browser ask, also on behalf of somebody without a token."""
    if not _only_reads(request) and session.comes_from_here(request) is False:
        raise Refused(403, "forbidden", "pages of other sites may not do this")


def _only_reads(request: HTTPConnection) -> bool:
    """Say whether nothing is changed; then pages of others gain nothing, since they cannot read the answer."""
    return request.scope["type"] == "http" and request.scope["method"] in SAFE_METHODS


@lru_cache(256)
def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    name = name.strip("[]").lower()
    if name in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
