"""Signing in with a browser: a token is shown once, and a cookie that only the browser can read stands for it.

The cookie is random and known to the store by its hash, beside the hash of the token it was begun with. So it works in
every process and after a restart, a copy of the database signs nobody in, and a token that is revoked takes its
sessions along. It is not the token: whoever steals it from a browser has it until then, and cannot use it elsewhere.

A browser adds cookies of its own accord, also to what pages of others have it ask. Therefore the cookie counts only for
asking (`SameSite=Strict` keeps even that from other sites); whoever changes something with it must come from a page
of this very server, as `Sec-Fetch-Site` or `Origin` tell, which pages cannot forge.
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
    """What somebody signs in with."""

    token: Annotated[
        str, msgspec.Meta(min_length=1, max_length=512, description="a token as `headway tokens create` makes it")
    ]


def comes_from_here(request: HTTPConnection) -> bool | None:
    """Say whether a page of this server asks; None where nothing tells, as with programs that are no browsers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site == "same-origin":  # Counts also behind a proxy that has the server called by another name.
        return True
    if site not in (None, "none"):
        return False
    return None if origin is None else origin.partition("://")[2] == request.headers.get("host", "")


def sends_token(request: HTTPConnection) -> bool:
    """Say whether a token came along, which no browser sends of its own accord."""
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def require_own_page(request: HTTPConnection) -> None:
    """Refuse what a browser that is signed in was made to ask by somebody else's page."""
    if comes_from_here(request) is not True and not sends_token(request):
        raise Refused(403, "forbidden", "with a session only pages of this server may do this; programs send a token")


def session_of(request: HTTPConnection) -> str | None:
    """Return what the browser keeps of its session."""
    cookies = request.cookies
    for name in _names(request):
        value = cookies.get(name)
        if value is not None and value.isascii() and 0 < len(value) <= VALUE_LENGTH_MAX:
            return value
    return None


def _names(request: HTTPConnection) -> Iterator[str]:
    """Yield what the cookie may be called here: browsers do not tell two ports of a machine apart, names do."""
    port = _PORT.search(request.headers.get("host", ""))
    name = f"{COOKIE}_{port[1]}" if port else COOKIE
    for prefix in _SECURE_PREFIXES:
        yield prefix + name
    yield name


def _cookie(request: HTTPConnection, value: str, seconds: int) -> str:
    """Write the cookie, as closed as the connection allows."""
    path = quote(request.scope.get("root_path", "")) or "/"
    # A proxy that ends TLS in front of us does not tell in a way that could be trusted; the browser does.
    is_secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    host, secure, plain = _names(request)
    name = plain if not is_secure else host if path == "/" else secure
    tail = "; Secure" if is_secure else ""
    return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{tail}"


async def sign_in(call: Call) -> Answer:
    """Begin a session with a token."""
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
    if await call.services.auth.knows_session(hash_secret(value)):  # Anybody can send a cookie; few are worth a write.
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
        what="For browsers: the answer sets a cookie that stands for the token, for seven days at most. Programs send"
        " the token with each request instead.",
        tag="access",
        body=Credentials,
        body_bytes_max=CREDENTIALS_BYTES_MAX,  # Anybody may send one.
        body_example={"token": "hw_…"},
        answers={201: example_of(BrowserSession), 401: None, 403: None, 429: None},
    ),
    Route(
        method="DELETE",
        path="/api/session",
        handler=sign_out,
        role=None,
        summary="Sign out",
        what="The session counts no more; the token still does. Without a session nothing happens.",
        tag="access",
        answers={204: None, 403: None},
    ),
)
