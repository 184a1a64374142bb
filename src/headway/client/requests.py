"""What a call of the client is, apart from how bytes travel.

A call is a generator of *steps*: it yields what it needs (send this, read more, rest so long, give this to the caller)
and is sent the outcome. The blocking client and the asynchronous one differ only in who carries the steps out, so every
rule (what is repeated, after how long, which error an answer means) is written once, here and in `calls` and `follow`.

What may be repeated: whatever the server has certainly not done (it was never reached, was busy, had no room), and what
has the same effect twice (GET, PUT, DELETE, a job with an idempotency key). Nothing else is ever sent twice.
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
    Conflict,
    DefinitionError,
    Denied,
    DuplicateKey,
    HeadwayError,
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
BUSY: Final = frozenset({429, 507})  # Refused before anything was done.
AWAY: Final = frozenset({502, 503, 504})  # Nothing is known about the outcome.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, and what its refusals mean."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_keyed: bool = False
    missing: type[NotFound] = NotFound
    conflict: type[Conflict] = Conflict
    invalid: type[DefinitionError] = DefinitionError
    timeout_s: float | None = None  # None: what the client says.

    @property
    def target(self) -> str:
        """The path with its query, ready for the wire."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def may_be_repeated(self) -> bool:
        """Whether sending it twice does what sending it once does."""
        return self.method in ("GET", "PUT", "DELETE") or self.is_keyed


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; the names of its headers are in small letters. That of a stream has no body yet."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Unreached:
    """There was no answer, or not all of it. `was_sent`: the server may have done what it was asked to."""

    reason: str
    was_sent: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """What the caller has set, and the clock to go by."""

    clock: Clock
    retry_for_s: float


# --- the steps


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; the outcome is a `Reply` or `Unreached`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer is a stream, in place of the one that is open; the outcome as for `Send`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read from the open stream what is there, for so long; the outcome is bytes (none: it is over) or `Unreached`."""

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
    """Take what a flow gives instead of the caller."""
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


# --- asking, and asking again


def ask(request: Request) -> Steps[Reply]:
    """Send a request until there is an answer that counts; raise what a refusal means."""
    terms: Terms = yield AskTerms()
    patience = Patience(terms)
    may_be_done = False  # Whether a try before has perhaps been carried out.
    while True:
        outcome: Reply | Unreached = yield Send(request)
        if isinstance(outcome, Reply) and outcome.status < 300:
            return outcome
        if isinstance(outcome, Reply) and outcome.status == 404 and request.method == "DELETE" and may_be_done:
            return Reply(200, {}, b"{}")  # The try before it was carried out, and its answer got lost.
        rest_s = patience.rest_s(request, outcome)
        if rest_s is None:
            raise error_of(request, outcome)
        may_be_done = may_be_done or (outcome.was_sent if isinstance(outcome, Unreached) else outcome.status in AWAY)
        yield Rest(rest_s)


class Patience:
    """How long to rest before something is tried again, and when to give up."""

    def __init__(self, terms: Terms) -> None:
        self._clock = terms.clock
        self._retry_for_s = terms.retry_for_s
        self.renew()

    def renew(self) -> None:
        """Begin anew, since something went well."""
        self._tries = 0
        self._until = self._clock.monotonic() + self._retry_for_s

    def rest_s(self, request: Request, outcome: Reply | Unreached) -> float | None:
        """Return the seconds to rest before the next try; None when there must be none."""
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


# --- what an answer means


# Only names that are listed here make another error than the status does; nothing is looked up by what a server says.
_BY_CODE: Final[Mapping[str, type[HeadwayError]]] = {
    "unknown_task": TaskNotFound,
    "duplicate_key": DuplicateKey,
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
    """Make an error of what went wrong."""
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
    """Read the JSON of an answer."""
    try:
        return msgspec.json.decode(reply.body) if reply.body else None
    except (msgspec.DecodeError, RecursionError):
        raise StoreError("the answer is no JSON; is this the address of Headway's API?") from None


# --- making requests


def part(text: str) -> str:
    """Write a name as one part of a path."""
    if not text:
        raise DefinitionError("a name or an id must be non-empty text")
    return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")


def query_of(given: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Write parameters of a query; what is None is not sent."""
    return tuple((name, _query_text(value)) for name, value in given.items() if value is not None)


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def body_of(given: Mapping[str, Any]) -> bytes:
    """Write a body; what is None is not sent."""
    said = {name: value for name, value in given.items() if value is not None}
    try:
        data = msgspec.json.encode(said)
        check_finite(said, data.decode(), "what is sent")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DefinitionError(f"this cannot be written as JSON: {error}") from None
    return data


def duration_text(value: DurationLike | None, what: str = "duration") -> str | None:
    """Write a duration as the API reads it."""
    return None if value is None else format_duration(parse_duration(value, what=what))


def time_text(value: InstantLike | None) -> str | None:
    """Write a time for the server to read: by the clock of the schedule where it has no offset; `2h` is relative."""
    return value.isoformat() if isinstance(value, datetime) else value


def instant_text(value: InstantLike | None, what: str = "time") -> str | None:
    """Write a time as the API reads it; one without an offset is UTC."""
    return None if value is None else isoformat(parse_instant(value, what=what))
