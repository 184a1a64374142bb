"""Authenticate a request and check its origin: protection against CSRF and DNS rebinding."""

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
    """Authenticate a request. Anonymous access is for localhost names only, as a protection against DNS rebinding."""
    headers, client = headers_of(request.scope), (request.scope.get("client") or ("",))[0]
    authorization = headers[b"authorization"].decode("latin-1") if b"authorization" in headers else None
    value = session.session_of(request) if b"cookie" in headers else None
    if value is not None and not is_page and not session.sends_token(request):
        authorization = None  # A browser keeps sending the password that it once used for a page.
    try:
        principal = await auth.admit(
            openapi.browser_credential(authorization) if is_page else authorization, client, value
        )
    except Refused as refused:
        if is_page and refused.status == 401:
            refused.headers["WWW-Authenticate"] = 'Basic realm="headway", charset="UTF-8"'  # Makes browsers ask.
        raise
    if principal.session is not None and not _only_reads(request):
        session.require_own_page(request)
    if principal is ANONYMOUS and not _is_local_name(headers.get(b"host", b"").decode("latin-1")):
        raise Refused(403, "forbidden", "without tokens only requests to localhost are allowed; create a token")
    if principal is ANONYMOUS and is_forwarded(headers):
        raise Refused(
            403,
            "forbidden",
            "without tokens only requests from this machine are allowed, and this one came through a proxy",
            hint="create a token with `headway tokens create`; the API can then be reached through the proxy",
        )
    return principal


def check_origin(request: HTTPConnection) -> None:
    """Refuse cross-site requests (CSRF): a foreign page can make a browser send them, even without a token."""
    if not _only_reads(request) and session.comes_from_here(request) is False:
        raise Refused(403, "forbidden", "cross-site requests must not change anything")


def _only_reads(request: HTTPConnection) -> bool:
    """Return whether the request only reads: a foreign page gains nothing then, as it cannot read the response."""
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
