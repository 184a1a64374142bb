"""Sessions: a browser sends a token once, and gets an HttpOnly cookie that stands for it.

The cookie is random. The store has its hash, beside the hash of the token it was created with. So it works in every
process and after a restart, a copy of the database lets no one sign in, and revoking the token ends its sessions. The
cookie is not the token: a stolen cookie is useless after that, and is not valid as a token.

Browsers add cookies by themselves, also to cross-site requests (CSRF). Therefore the cookie alone authorizes only reads
(and `SameSite=Strict` keeps it out of cross-site requests); a change must come from a page of this server, according to
`Sec-Fetch-Site` or `Origin`, which pages cannot forge.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import HTTPConnection

from headway.core.access import hash_secret
from headway.core.instants import DAY, SECOND, isoformat
from headway.operations.caller import Principal
from headway.server.refusals import Refused
from headway.server.web import Answer, Call, Route
from headway.wire.access import BrowserSession
from headway.wire.base import example_of

LIFETIME: Final = 7 * DAY
COOKIE: Final = "headway_session"
VALUE_LENGTH_MAX: Final = 64
CREDENTIALS_BYTES_MAX: Final = 4_096
_PORT: Final = re.compile(r":(\d{1,5})$")
_SECURE_PREFIXES: Final = ("__Host-", "__Secure-")


class Credentials(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a sign-in."""

    token: Annotated[
        str, msgspec.Meta(min_length=1, max_length=512, description="a token, as created by `headway tokens create`")
    ]


def comes_from_here(request: HTTPConnection) -> bool | None:
    """Return whether a page of this server sent the request; None if unknown, as with clients other than browsers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site == "same-origin":  # Also correct behind a proxy that uses another host name.
        return True
    if site not in (None, "none"):
        return False
    return None if origin is None else origin.partition("://")[2] == request.headers.get("host", "")


def sends_token(request: HTTPConnection) -> bool:
    """Return whether the request has a token, which browsers never add by themselves."""
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def require_own_page(request: HTTPConnection) -> None:
    """Refuse a request with a session that a foreign page caused (CSRF)."""
    if comes_from_here(request) is not True and not sends_token(request):
        raise Refused(403, "forbidden", "with a session, only pages of this server may do this; programs send a token")


def session_of(request: HTTPConnection) -> str | None:
    """Return the session cookie of a request."""
    cookies = request.cookies
    for name in _names(request):
        value = cookies.get(name)
        if value is not None and value.isascii() and 0 < len(value) <= VALUE_LENGTH_MAX:
            return value
    return None


def _names(request: HTTPConnection) -> Iterator[str]:
    """Yield the possible cookie names: browsers share cookies between ports of a host, so the name has the port."""
    port = _PORT.search(request.headers.get("host", ""))
    name = f"{COOKIE}_{port[1]}" if port else COOKIE
    for prefix in _SECURE_PREFIXES:
        yield prefix + name
    yield name


def _cookie(request: HTTPConnection, value: str, seconds: int) -> str:
    """Return the Set-Cookie header, as restrictive as the connection allows."""
    path = quote(request.scope.get("root_path", "")) or "/"
    # A proxy that ends TLS reports that in no trustworthy way; the browser's Origin does.
    is_secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    host, secure, plain = _names(request)
    name = plain if not is_secure else host if path == "/" else secure
    tail = "; Secure" if is_secure else ""
    return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{tail}"


async def sign_in(call: Call) -> Answer:
    """Create a session with a token."""
    given = await call.body(Credentials)
    token = given.token.strip()
    gate, sessions = call.services.auth, call.services.sessions
    who: Principal = await gate.admit(f"Bearer {token}", call.origin)
    call.services.quotas.request(who)
    if (former := session_of(call.request)) is not None:
        await _end(call, former)
    login, value = await sessions.sign_in(
        hash_secret(token),
        lifetime=LIFETIME,
        actor=who.name,
        tenant=who.tenant,
        target=who.token_id or "",
        origin=call.origin,
    )
    return Answer(
        msgspec.convert({**_who(who), "expires_at": isoformat(login.expires_at)}, BrowserSession),
        status=201,
        headers={"Set-Cookie": _cookie(call.request, value, LIFETIME // SECOND)},
    )


async def sign_out(call: Call) -> Answer:
    """End the session of this browser, if it has one."""
    if (value := session_of(call.request)) is not None:
        require_own_page(call.request)
        await _end(call, value)
    return Answer(status=204, headers={"Set-Cookie": _cookie(call.request, "", 0)})


async def _end(call: Call, value: str) -> None:
    if await call.services.auth.knows_session(hash_secret(value)):  # Write only if it exists.
        await call.services.sessions.sign_out(hash_secret(value))
    call.services.auth.forget_session(hash_secret(value))


def _who(who: Principal) -> dict[str, Any]:
    return {"name": who.name, "tenant": who.tenant, "role": who.role, "token_id": who.token_id}


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path="/api/session",
        handler=sign_in,
        role=None,
        summary="Sign in",
        what="For browsers: the response sets a cookie that stands for the token, for up to seven days. Programs send"
        " the token with each request instead.",
        tag="access",
        body=Credentials,
        body_bytes_max=CREDENTIALS_BYTES_MAX,  # Small, since it needs no credential.
        body_example={"token": "hw_…"},
        answers={201: example_of(BrowserSession), 401: None, 403: None, 429: None},
    ),
    Route(
        method="DELETE",
        path="/api/session",
        handler=sign_out,
        role=None,
        summary="Sign out",
        what="The session is no longer valid; the token still is. Without a session nothing happens.",
        tag="access",
        answers={204: None, 403: None},
    ),
)
