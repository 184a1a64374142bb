"""Calls of the client, independent of I/O (sans-I/O).

A call is a generator of *steps*: it yields what it needs (send a request, read more, rest, give an item to the caller)
and is sent the outcome. The blocking and the asynchronous client differ only in how they execute the steps, so every
rule (what is retried, after how long, which error a response means) is written once, here and in `calls` and `follow`.

A request is retried if the server has certainly not processed it (not reached, busy, full), or if it is idempotent
(GET, PUT, DELETE, a job with an idempotency key). Nothing else is ever sent twice.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headway.core.backoff import retry_after
from headway.core.clock import Clock
from headway.core.errors import (
    BatchClosed,
    BatchNotFound,
    Conflict,
    DefinitionError,
    Denied,
    DuplicateKey,
    HeadwayError,
    InvalidLimit,
    LeaseLost,
    NotFound,
    ScheduleChanged,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TaskNotFound,
)
from headway.core.instants import (
    SECOND,
    DurationLike,
    InstantLike,
    format_duration,
    isoformat,
    parse_duration,
    parse_instant,
)
from headway.core.json_values import check_finite

Shape: TypeAlias = dict[str, Any]
T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 64 << 20
MESSAGE_LENGTH_MAX: Final = 2_000
BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
BUSY: Final = frozenset({429, 507})  # Refused before any effect.
AWAY: Final = frozenset({502, 503, 504})  # The outcome is unknown.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, and the errors that its refusals mean."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_keyed: bool = False
    missing: type[NotFound] = NotFound
    conflict: type[Conflict] = Conflict
    invalid: type[DefinitionError] = DefinitionError
    timeout_s: float | None = None  # None: the default of the client.

    @property
    def target(self) -> str:
        """The encoded path with its query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def may_be_repeated(self) -> bool:
        """Whether it is idempotent."""
        return self.method in ("GET", "PUT", "DELETE") or self.is_keyed


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; its header names are lowercase. A streaming response has no body yet."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Unreached:
    """There was no complete response. `was_sent`: the server may have processed the request."""

    reason: str
    was_sent: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of the caller, and the clock."""

    clock: Clock
    retry_for_s: float


# --- the steps


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; the outcome is a `Reply` or `Unreached`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request with a streaming response, replacing the open stream; the outcome is as for `Send`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read from the open stream, with a time limit; the outcome is bytes (empty at its end) or `Unreached`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """Hand something to the caller."""

    item: T


class AskTerms:
    """Learn the `Terms`."""


Effect: TypeAlias = Send | Open | Read | Rest | AskTerms
Steps: TypeAlias = Generator[Effect, Any, T]
Flow: TypeAlias = Generator[Effect | Give[T], Any, None]


def for_each(flow: Flow[T], act: Callable[[T], object]) -> Steps[None]:
    """Collect the items of a flow instead of giving them to the caller."""
    outcome: Any = None
    while True:
        try:
            effect = flow.send(outcome)
        except StopIteration:
            return
        if isinstance(effect, Give):
            act(effect.item)
            outcome = None
        else:
            outcome = yield effect


# --- requests and retries


def ask(request: Request) -> Steps[Reply]:
    """Send a request, with retries, and return the response; raise the error that a refusal means."""
    terms: Terms = yield AskTerms()
    patience = Patience(terms)
    may_be_done = False  # Whether the server may have processed an earlier try.
    while True:
        outcome: Reply | Unreached = yield Send(request)
        if isinstance(outcome, Reply) and outcome.status < 300:
            return outcome
        if isinstance(outcome, Reply) and outcome.status == 404 and request.method == "DELETE" and may_be_done:
            return Reply(200, {}, b"{}")  # An earlier try was processed, and its response was lost.
        rest_s = patience.rest_s(request, outcome)
        if rest_s is None:
            raise error_of(request, outcome)
        may_be_done = may_be_done or (outcome.was_sent if isinstance(outcome, Unreached) else outcome.status in AWAY)
        yield Rest(rest_s)


class Patience:
    """The back-off between retries, and when to give up."""

    def __init__(self, terms: Terms) -> None:
        self._clock = terms.clock
        self._retry_for_s = terms.retry_for_s
        self.renew()

    def renew(self) -> None:
        """Reset after a success."""
        self._tries = 0
        self._until = self._clock.monotonic() + self._retry_for_s

    def rest_s(self, request: Request, outcome: Reply | Unreached) -> float | None:
        """Return the seconds to rest before the next try; None to give up."""
        if not _may_try_again(request, outcome):
            return None
        self._tries += 1
        rest_s = self._clock.backoff_s(self._tries, first_s=BACKOFF_S_MIN, most_s=BACKOFF_S_MAX)
        if isinstance(outcome, Reply):
            rest_s += (retry_after(outcome.headers.get("retry-after"), outcome.headers.get("date")) or 0) / SECOND
        return rest_s if self._clock.monotonic() + rest_s < self._until else None


def _may_try_again(request: Request, outcome: Reply | Unreached) -> bool:
    if isinstance(outcome, Unreached):
        return request.may_be_repeated or not outcome.was_sent
    return outcome.status in BUSY or (outcome.status in AWAY and request.may_be_repeated)


# --- errors


# Only codes listed here change the error that the status means; a server cannot name arbitrary classes.
_BY_CODE: Final[Mapping[str, type[HeadwayError]]] = {
    "unknown_task": TaskNotFound,
    "duplicate_key": DuplicateKey,
    "unknown_batch": BatchNotFound,
    "batch_closed": BatchClosed,
    "invalid_limit": InvalidLimit,
    "lease_lost": LeaseLost,
    "schema_mismatch": SchemaMismatch,
    "store_read_only": StoreReadOnly,
}
_BY_STATUS: Final[Mapping[int, type[HeadwayError]]] = {
    401: Denied,
    403: Denied,
    412: ScheduleChanged,
    429: StoreUnavailable,
    502: StoreUnavailable,
    503: StoreUnavailable,
    504: StoreUnavailable,
    507: StoreFull,
}
_INVALID: Final = frozenset({400, 411, 413, 414, 415, 422, 428, 431})


class _Said(msgspec.Struct):
    code: str = ""
    message: str = ""
    hint: str | None = None


class _Refusal(msgspec.Struct):
    error: _Said
    request_id: str = ""


def error_of(request: Request, outcome: Reply | Unreached) -> HeadwayError:
    """Return the error for a failed request."""
    if isinstance(outcome, Unreached):
        return StoreUnavailable(outcome.reason)
    refusal = _read_refusal(outcome.body)
    if refusal is None:
        kind = _kind(request, outcome.status, "")
        kind = StoreError if issubclass(kind, NotFound | Conflict | DefinitionError) else kind
        return kind(f"{request.method} {request.path} was answered with {outcome.status}, but not by Headway's API")
    said = refusal.error
    message = said.message[:MESSAGE_LENGTH_MAX] or f"the server answered with {outcome.status}"
    if said.hint:
        message += f"; {said.hint[:MESSAGE_LENGTH_MAX]}"
    kind = _kind(request, outcome.status, said.code)
    if kind is StoreError and refusal.request_id:
        message += f" (request {refusal.request_id[:64]})"
    return kind(message)


def _kind(request: Request, status: int, code: str) -> type[HeadwayError]:
    if code in _BY_CODE and 400 <= status <= 503:
        return _BY_CODE[code]
    if status in _INVALID:
        return request.invalid
    by_request: dict[int, type[HeadwayError]] = {404: request.missing, 409: request.conflict}
    return by_request.get(status) or _BY_STATUS.get(status, StoreError)


def _read_refusal(body: bytes) -> _Refusal | None:
    try:
        return msgspec.json.decode(body, type=_Refusal)
    except (msgspec.DecodeError, RecursionError):
        return None


def read(reply: Reply) -> Any:
    """Decode the JSON of a response."""
    try:
        return msgspec.json.decode(reply.body) if reply.body else None
    except (msgspec.DecodeError, RecursionError):
        raise StoreError("the response is not JSON; is this the address of Headway's API?") from None


# --- making requests


def part(text: str) -> str:
    """Encode a name as one path segment."""
    if not text:
        raise DefinitionError("a name or an id must be non-empty text")
    return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")


def query_of(given: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Encode query parameters; None is left out."""
    return tuple((name, _query_text(value)) for name, value in given.items() if value is not None)


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def body_of(given: Mapping[str, Any]) -> bytes:
    """Encode a body; None is left out."""
    said = {name: value for name, value in given.items() if value is not None}
    try:
        data = msgspec.json.encode(said)
        check_finite(said, data.decode(), "the body")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DefinitionError(f"this cannot be written as JSON: {error}") from None
    return data


def duration_text(value: DurationLike | None, what: str = "duration") -> str | None:
    """Encode a duration for the API."""
    return None if value is None else format_duration(parse_duration(value, what=what))


def time_text(value: InstantLike | None) -> str | None:
    """Encode a time that the server parses: without an offset it is local to the schedule; `2h` is relative."""
    return value.isoformat() if isinstance(value, datetime) else value


def instant_text(value: InstantLike | None, what: str = "time") -> str | None:
    """Encode a time for the API; without an offset it is UTC."""
    return None if value is None else isoformat(parse_instant(value, what=what))
