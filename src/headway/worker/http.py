"""HTTP tasks: one request as the function of a task, with the standard library only.

    http("https://example.org/hook", method="POST", headers={"Authorization": "Bearer …"})

The author sets the address. The arguments of the job become the JSON body, or the query of a method that has none.
Every attempt carries the job's id as `Idempotency-Key`, so that the server can recognise a retry.

A response below 400 is the result. 408, 425, 429 and 5xx are retried, after the server's Retry-After if it sends one;
other errors are not. The exchange runs in a thread of its own, so that a cancelled job stops at once, whatever the
network does.

SSRF protection: the author names the first host, which may be in a private network. A redirect is named by a server, so
every hop is resolved once, its addresses are vetted like those of webhooks (`urls.py`), and the connection goes to
exactly those addresses.
"""

import contextlib
import functools
import http.client
import inspect
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from headway.core.backoff import retry_after
from headway.core.clock import monotonic_now, wall_now
from headway.core.errors import DefinitionError, InvalidTask
from headway.core.instants import SECOND, quote
from headway.core.urls import Allowed, IPAddress, NotAllowed, check_url, vetted
from headway.tasks.context import Context
from headway.tasks.retry import Retry

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
FOLLOWING: Final = ("GET", "HEAD")
WITH_BODY: Final = ("POST", "PUT", "PATCH")
WORTH_ANOTHER_TRY: Final = frozenset({408, 425, 429})
RESERVED: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "x-headway-attempt"}
)
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX: Final = 5
BODY_BYTES_MAX: Final = 64 * 1024
ERROR_TEXT_MAX: Final = 300
CONNECT_S_MAX: Final = 10.0
SILENCE_S_MAX: Final = 3_600.0  # The task's timeout is what counts; this ends threads that are left behind.
LOOK_S: Final = 0.1

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

# Networks besides the public one in which the author's host may be. Networks that no name should lead to, such as the
# metadata service of a cloud, are not among them.
OWN_NETWORKS: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
)


class HttpFailed(Exception):
    """A request got no response, or an error response."""


class HttpRefused(HttpFailed):
    """A request got a response that a retry would not change."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    reason: str
    headers: http.client.HTTPMessage
    body: bytes
    is_cut: bool


def http_request(
    url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, allow: Iterable[str] = ()
) -> Callable[..., dict[str, Any]]:
    """Make the function of a task that sends a request; it takes any arguments.

    `allow` lists networks and hosts to which redirects may lead although they are not public.
    """
    address, verb, own = _checked_url(url), _checked_method(method), _checked_headers(headers)
    exceptions = tuple(allow)

    def run(headway_context: Context, /, **arguments: Any) -> dict[str, Any]:
        ours = {
            "Idempotency-Key": headway_context.job_id,
            "X-Headway-Attempt": str(headway_context.attempt),
            "User-Agent": "headway",
            "Accept": "*/*",
        }
        said = {name.lower() for name in own}
        headers = {**{name: value for name, value in ours.items() if name.lower() not in said}, **own}
        request = _with_arguments(_Request(verb, address, headers), arguments)
        return _result(_follow(headway_context, request, ours, _Hosts(address, exceptions)))

    parameters = [
        inspect.Parameter("headway_context", inspect.Parameter.POSITIONAL_ONLY, annotation=Context),
        inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD),
    ]
    run.__doc__ = f"{verb} {_place(address)}"
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


# --- checks of the definition


def _checked_url(url: object) -> str:
    try:
        return check_url(url, "the URL of a request")
    except DefinitionError as error:
        hint = "; say it in headers={'Authorization': …}" if "has a password" in str(error) else ""
        raise InvalidTask(f"{error}{hint}") from None


def _checked_method(method: object) -> str:
    verb = str(method).upper()
    if verb not in METHODS:
        raise InvalidTask(f"method must be one of {', '.join(METHODS)}, not {quote(method)}")
    return verb


def _checked_headers(headers: Mapping[Any, Any] | None) -> dict[str, str]:
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidTask(f'headers must be a dict such as {{"X-Shop": "north"}}, not {type(headers).__name__}')
    for name, value in (headers or {}).items():
        is_name = isinstance(name, str) and _HEADER.fullmatch(name)
        if not is_name or not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise InvalidTask(f"the header {quote(name)} must have a name and a text of plain characters")
        if name.lower() in RESERVED:
            raise InvalidTask(f"the header {name} is set by Headway itself")
    return dict(headers or {})


def _with_arguments(request: _Request, arguments: Mapping[str, Any]) -> _Request:
    if request.method in WITH_BODY:
        named = {name.lower() for name in request.headers}
        kind = {} if "content-type" in named else {"Content-Type": "application/json"}
        return replace(request, headers={**request.headers, **kind}, body=msgspec.json.encode(arguments))
    if not arguments:
        return request
    parts = urlsplit(request.url)
    pairs = urlencode({name: _query_text(value) for name, value in arguments.items()})
    return replace(request, url=urlunsplit(parts._replace(query=f"{parts.query}&{pairs}".lstrip("&"))))


def _query_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- the exchange


class _Hosts:
    """Resolve the addresses to which a request may go: of the author's host, and of redirect targets."""

    def __init__(self, url: str, allow: Iterable[str]) -> None:
        self._own = urlsplit(url).netloc
        self._allowed = Allowed.read(allow)
        self._trusted = Allowed.read((*OWN_NETWORKS, *allow))
        self._found: dict[str, tuple[IPAddress, ...]] = {}  # Later changes of the name's addresses do not matter.

    def addresses(self, url: str) -> tuple[IPAddress, ...]:
        """Return the addresses of the host of a URL; raise `NotAllowed` when one of them is forbidden."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        if parts.netloc not in self._found:
            self._found[parts.netloc] = self._find(parts.netloc, parts.hostname)
        return self._found[parts.netloc]

    def _find(self, place: str, host: str) -> tuple[IPAddress, ...]:
        is_own = place == self._own
        try:
            literal = ipaddress.ip_address(host)
        except ValueError:
            found = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
            return vetted(host, found, self._trusted if is_own else self._allowed)
        return (literal,) if is_own else vetted(host, [host], self._allowed)


def _follow(context: Context, request: _Request, ours: Mapping[str, str], hosts: _Hosts) -> _Response:
    for _ in range(REDIRECTS_MAX + 1):
        answer = _exchange(context, request, hosts)
        target = answer.headers.get("Location")
        if answer.status not in REDIRECTS or target is None:
            return answer
        request = _redirected(request, answer.status, target, ours)
    raise HttpRefused(f"{_place(request.url)} was redirected more than {REDIRECTS_MAX} times")


def _redirected(request: _Request, status: int, target: str, ours: Mapping[str, str]) -> _Request:
    shown = f"{request.method} {_place(request.url)} was redirected ({status})"
    if request.method not in FOLLOWING:
        raise HttpRefused(f"{shown}; redirects are followed for {' and '.join(FOLLOWING)} only")
    try:
        url = _checked_url(urljoin(request.url, target))
    except (InvalidTask, ValueError):
        raise HttpRefused(f"{shown} to an address that cannot be used") from None
    before, after = urlsplit(request.url), urlsplit(url)
    if before.scheme != after.scheme:
        raise HttpRefused(f"{shown} from {before.scheme} to {after.scheme}")
    # Headers for one host, such as a password, must not go to another.
    return replace(request, url=url, headers=request.headers if before.netloc == after.netloc else dict(ours))


class _Exchange(threading.Thread):
    """Send a request and read the response, in the background."""

    def __init__(self, request: _Request, hosts: _Hosts) -> None:
        super().__init__(name="headway-http", daemon=True)
        self.ended = threading.Event()
        self.outcome: _Response | Exception | None = None
        self._request = request
        self._connection = _connection(request.url, hosts)

    def run(self) -> None:
        try:
            self.outcome = self._speak()
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for it
            self.outcome = error
        finally:
            self._connection.close()
            self.ended.set()

    def abort(self) -> None:
        """Close the connection, to wake the thread that waits for it."""
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _speak(self) -> _Response:
        request, connection = self._request, self._connection
        parts = urlsplit(request.url)
        connection.connect()
        connection.sock.settimeout(SILENCE_S_MAX)
        target = urlunsplit(("", "", parts.path, parts.query, ""))
        connection.request(request.method, target, request.body, {**request.headers, "Connection": "close"})
        response = connection.getresponse()
        body = response.read(BODY_BYTES_MAX + 1)
        return _Response(
            response.status, response.reason, response.headers, body[:BODY_BYTES_MAX], len(body) > BODY_BYTES_MAX
        )


def _connection(url: str, hosts: _Hosts) -> http.client.HTTPConnection:
    """Make a connection to a vetted address; its certificate must match the host name."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    # With a port: else the last group of an IPv6 address would be taken for one.
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port or 443, timeout=CONNECT_S_MAX, context=_trust()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=CONNECT_S_MAX)

    def connect(place: tuple[str, int], timeout: float, source: None) -> socket.socket:
        *others, last = hosts.addresses(url)
        for address in others:
            with contextlib.suppress(OSError):
                return socket.create_connection((str(address), place[1]), timeout)
        return socket.create_connection((str(last), place[1]), timeout)

    connection._create_connection = connect  # type: ignore[attr-defined]
    return connection


@functools.cache  # Reading all certificates takes longer than a request.
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _exchange(context: Context, request: _Request, hosts: _Hosts) -> _Response:
    began, exchange = monotonic_now(), _Exchange(request, hosts)
    exchange.start()
    while not exchange.ended.wait(LOOK_S):
        if context.cancelled:
            exchange.abort()
            context.check()
    where = f"{request.method} {_place(request.url)}"
    match exchange.outcome:
        case _Response() as answer:
            context.log(f"{where}  {answer.status} {answer.reason}  {round((monotonic_now() - began) * 1_000)} ms")
            return answer
        case NotAllowed() as refused:
            raise HttpRefused(f"{where} was not sent: {refused}; HEADWAY_WEBHOOK_ALLOW names exceptions") from None
        case error:
            raise HttpFailed(f"{where} was not answered: {str(error) or type(error).__name__}") from None


def _place(url: str) -> str:
    """Return a URL without its query, which may contain secrets."""
    return url.partition("?")[0]


# --- the response


def _result(answer: _Response) -> dict[str, Any]:
    if answer.status >= 400:
        raise _failure(answer)
    result: dict[str, Any] = {"status": answer.status, "body": _body_of(answer)}
    return {**result, "truncated": True} if answer.is_cut else result


def _failure(answer: _Response) -> Exception:
    text = " ".join(_text(answer)[:ERROR_TEXT_MAX].split())
    words = f"the answer was {answer.status} {answer.reason}".rstrip() + (f": {text}" if text else "")
    if answer.status < 500 and answer.status not in WORTH_ANOTHER_TRY:
        return HttpRefused(words)
    wait = retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"), now=wall_now())
    return HttpFailed(words) if wait is None else Retry(after=wait / SECOND, reason=words)


def _body_of(answer: _Response) -> Any:
    kind = answer.headers.get_content_type()
    if not answer.is_cut and (kind == "application/json" or kind.endswith("+json")):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(answer.body)
    return _text(answer)


def _text(answer: _Response) -> str:
    charset = answer.headers.get_content_charset("utf-8")
    try:
        text = answer.body.decode(charset, "replace")
    except (LookupError, UnicodeError):
        text = answer.body.decode("utf-8", "replace")
    return _CONTROL.sub("\ufffd", text)  # As JSON each would take six bytes.
