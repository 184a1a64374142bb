"""Limits by name: how many jobs may run at a time, and how many may start in a period.

A name is `queue:media`, `task:report`, `tenant:acme`, or a key of the user's own, such as `account-42`. A limit with a
`*` at its end holds for each name that begins like that, separately. Of several limits the exact one counts, then the
longest. A *gate* is a limit for one name.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from headway.core.errors import DefinitionError, InvalidLimit
from headway.core.instants import DAY, SECOND, Duration, Instant, parse_duration, quote
from headway.core.validation import check_int, check_name

CONCURRENCY_MAX: Final = 10_000
RATE_MAX: Final = 1_000_000
BURST_MAX: Final = 1_000_000
PER_MAX: Final = 31 * DAY
PIECES_MAX: Final = 64
SINCE_SCHEMA: Final = 6  # Nodes of releases for older schemas know neither limits nor tenants.
KINDS: Final = ("queue", "task", "tenant")  # Every other name is a key of the user's own.
BITS: Final = {"queue": 1, "task": 2, "tenant": 4, "key": 8}  # In the column `held`.
_RATE: Final = re.compile(r"([0-9]{1,9})\s*/\s*(\S.*)")
_UNITS: Final = ("s", "m", "h", "d")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a limit; `rate` starts in `per` microseconds, with `burst` as a token bucket."""

    name: str
    concurrency: int | None = None
    rate: int | None = None
    per: Duration | None = None
    burst: int | None = None
    owner: str = ""
    in_force: bool = True

    @property
    def kind(self) -> str:
        """`queue`, `task`, `tenant` or `key`."""
        return kind_of(self.name)

    @property
    def is_pattern(self) -> bool:
        """Whether it holds for every name that begins like it."""
        return self.name.endswith("*")

    @property
    def stem(self) -> str:
        """The name without its kind and without the `*`."""
        return value_of(self.name).removesuffix("*")

    @property
    def rate_text(self) -> str | None:
        """The rate as it is written: `10/s`, `100/1m30s`."""
        if self.rate is None or self.per is None:
            return None
        return f"{self.rate}/{_per_text(self.per)}"

    @classmethod
    def build(
        cls, name: object, *, concurrency: object = None, rate: object = None, burst: object = None, owner: str = ""
    ) -> "Limit":
        """Check a definition; raise `InvalidLimit` with the reason and the cure."""
        checked = check_limit_name(name)
        if concurrency is None and rate is None:
            raise InvalidLimit(f'limit {checked!r} limits nothing: give it concurrency=5, rate="10/s", or both')
        if concurrency is not None:
            concurrency = _check_number(concurrency, f"concurrency of {checked!r}", CONCURRENCY_MAX)
        starts, per = (None, None) if rate is None else parse_rate(rate)
        if burst is not None:
            if starts is None:
                raise InvalidLimit(f'burst of {checked!r} needs a rate: write rate="10/s", burst=20')
            burst = _check_number(burst, f"burst of {checked!r}", BURST_MAX)
        return cls(name=checked, concurrency=concurrency, rate=starts, per=per, burst=burst, owner=owner)


def _check_number(value: object, what: str, most: int) -> int:
    try:
        return check_int(value, what, 1, most)
    except DefinitionError as error:
        cure = "; to stop a queue, pause it" if value == 0 else ""
        raise InvalidLimit(f"{error}{cure}") from None


def _per_text(per: Duration) -> str:
    for unit, size in (("d", DAY), ("h", 3600 * SECOND), ("m", 60 * SECOND), ("s", SECOND)):
        if per % size == 0:
            return unit if per == size else f"{per // size}{unit}"
    return f"{per // 1000}ms" if per % 1000 == 0 else f"{per}us"


def check_limit_name(name: object) -> str:
    """Return the checked name of a limit."""
    try:
        text = check_name(name, "the name of a limit")
    except DefinitionError as error:
        raise InvalidLimit(str(error)) from None
    if "*" in text[:-1]:
        raise InvalidLimit(f"a * may only be at the end of the name of a limit, not as in {quote(text)}")
    kind, separator, value = text.partition(":")
    if separator and kind in KINDS and not value:
        raise InvalidLimit(f"{quote(text)} names no {kind}: write {kind}:NAME, or {kind}:* for each")
    return text


def check_limit_key(value: object) -> str:
    """Return the checked limit that a job names."""
    text = check_name(value, "limit")
    if text.partition(":")[0] in KINDS and ":" in text:
        raise InvalidLimit(
            f"limit {quote(text)} of a job must not begin with {text.partition(':')[0]}:, which counts by itself;"
            " name a limit of your own, such as account-{account_id}"
        )
    if text.endswith("*"):
        raise InvalidLimit(f"limit {quote(text)} of a job must name one limit, without a * at its end")
    return text


def parse_rate(text: object) -> tuple[int, Duration]:
    """Read a rate such as `10/s`, `100/m` or `5/30s`: the starts, and the period in microseconds."""
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidLimit(f"rate must say how many starts in which time, such as 10/s or 100/5m, not {quote(text)}")
    unit = match[2].strip()
    try:
        per = parse_duration(f"1{unit}" if unit in _UNITS else unit, what="the time of a rate")
    except DefinitionError as error:
        raise InvalidLimit(f"rate {quote(text)}: {error}") from None
    if not 1_000 <= per <= PER_MAX:
        raise InvalidLimit(f"the time of rate {quote(text)} must be from 1ms to 31d")
    return _check_number(int(match[1]), f"the starts of rate {quote(text)}", RATE_MAX), per


def kind_of(name: str) -> str:
    """Return the kind of a name of a limit or gate."""
    kind, separator, _ = name.partition(":")
    return kind if separator and kind in KINDS else "key"


def value_of(name: str) -> str:
    """Return the name without its kind."""
    return name if kind_of(name) == "key" else name.partition(":")[2]


class Lane(msgspec.Struct, frozen=True):
    """Jobs of a queue under the same limits: if the first one may not start, none may."""

    tenant: str
    limit_key: str = ""
    limited_task: str = ""


class Rules:
    """All limits, to find those of a name."""

    def __init__(self, limits: Iterable[Limit] = (), revision: int = 0) -> None:
        self.revision = revision
        self.limits = {limit.name: limit for limit in limits}
        patterns = [limit for limit in self.limits.values() if limit.is_pattern]
        patterns.sort(key=lambda limit: -len(limit.stem))
        self._patterns: dict[str, list[Limit]] = {}
        for limit in patterns:
            self._patterns.setdefault(limit.kind, []).append(limit)
        self.bits = sum({BITS[limit.kind] for limit in self.limits.values()})

    def find(self, name: str) -> Limit | None:
        """Return the limit of a name: the exact one, or the longest pattern."""
        exact = self.limits.get(name)
        if exact is not None and not exact.is_pattern:
            return exact
        value = value_of(name)
        return next((limit for limit in self._patterns.get(kind_of(name), ()) if value.startswith(limit.stem)), None)

    def gates(self, queue: str, lane: Lane) -> tuple[str, ...]:
        """Return the names of the gates that the jobs of a lane must pass."""
        names = [f"queue:{queue}", f"tenant:{lane.tenant}"]
        if lane.limited_task:
            names.append(f"task:{lane.limited_task}")
        if lane.limit_key:
            names.append(lane.limit_key)
        return tuple(name for name in names if self.find(name) is not None)

    def limited_queues(self) -> frozenset[str]:
        """Return the queues whose every claim must look at limits; `*` means all of them."""
        found = set()
        for limit in self.limits.values():
            if limit.kind == "queue":
                found.add("*" if limit.is_pattern else limit.stem)
            elif limit.kind == "task" or (limit.kind == "tenant" and _holds_for(limit, "default")):
                found.add("*")
        return frozenset(found)


def _holds_for(limit: Limit, value: str) -> bool:
    return value.startswith(limit.stem) if limit.is_pattern else value == limit.stem


# --- rates


class Admission(msgspec.Struct, frozen=True):
    """How many may start now, and when the next one may if not all."""

    granted: int
    next_at: Instant | None


def rate_allows(limit: Limit, state: str, now: Instant, wanted: int) -> Admission:
    """Return how many of the wanted starts a rate allows now, and when it allows the next one if not all."""
    assert limit.rate is not None
    assert limit.per is not None
    if limit.burst is not None:
        return _bucket_allows(limit.rate, limit.per, limit.burst, _read_bucket(state, now, limit), now, wanted)
    pieces = _recent(_read_pieces(state), now, limit.per)
    granted = max(0, min(wanted, limit.rate - sum(count for _, count in pieces)))
    if granted == wanted:
        return Admission(granted, None)
    return Admission(granted, _log_next_at(pieces, limit.rate - granted, limit.per, now))


def _log_next_at(pieces: Sequence[tuple[Instant, int]], most: int, per: Duration, now: Instant) -> Instant:
    """Return when so many pieces have left the window that one more may start."""
    total = sum(count for _, count in pieces)
    for at, count in pieces:
        total -= count
        if total < most:
            return at + per
    return now + per


def rate_after(limit: Limit, state: str, now: Instant, started: int) -> str:
    """Return the state of a rate after some starts."""
    assert limit.rate is not None
    assert limit.per is not None
    if limit.burst is not None:
        arrival = _read_bucket(state, now, limit)
        return str(-(-(max(arrival, now) * limit.rate + started * limit.per) // limit.rate))
    pieces = _recent(_read_pieces(state), now, limit.per)
    if started:
        pieces.append((now, started))
    while len(pieces) > PIECES_MAX:
        pieces = _merged(pieces)
    return " ".join(f"{at}:{count}" for at, count in pieces)


def rate_counts_until(limit: Limit, state: str, now: Instant) -> Instant:
    """Return until when the recent starts of a rate count; after that its state can be forgotten."""
    assert limit.per is not None
    return now + limit.per if limit.burst is None else max(now, _read_bucket(state, now, limit))


def longest_wait(limit: Limit) -> Duration:
    """Return the longest time for which a rate lets a start wait, however much was started before."""
    if limit.rate is None or limit.per is None:
        return 0
    return limit.per if limit.burst is None else -(-limit.burst * limit.per // limit.rate)


def is_ahead_of_clock(limit: Limit, state: str, now: Instant) -> bool:
    """Return whether the clock was set back since the last start, or the bucket got smaller.

    The state counts as if the last start were now. It has to be written again: otherwise nothing would start until the
    clock is where it was.
    """
    if limit.burst is not None:
        return _read_number(state, now) > _latest_arrival(limit, now)
    return any(at > now for at, _ in _read_pieces(state))


def _merged(pieces: list[tuple[Instant, int]]) -> list[tuple[Instant, int]]:
    """Merge the two pieces that are closest to each other, at the later time: the rate errs on the safe side."""
    gaps = [(later[0] - earlier[0], number) for number, (earlier, later) in enumerate(pairwise(pieces))]
    _, number = min(gaps)
    (_, count), (at, more) = pieces[number], pieces[number + 1]
    return [*pieces[:number], (at, count + more), *pieces[number + 2 :]]


def _recent(pieces: list[tuple[Instant, int]], now: Instant, per: Duration) -> list[tuple[Instant, int]]:
    return [(min(at, now), count) for at, count in pieces if at > now - per]  # All of them have started by now.


def _read_pieces(state: str) -> list[tuple[Instant, int]]:
    """Read recent starts; a state that makes no sense counts as none."""
    try:
        return sorted((int(at), int(count)) for at, _, count in (piece.partition(":") for piece in state.split()))
    except ValueError:
        return []


def _read_bucket(state: str, now: Instant, limit: Limit) -> Instant:
    """Read when the bucket will be full again; one that is further away than any bucket allows is set right."""
    return min(_read_number(state, now), _latest_arrival(limit, now))


def _latest_arrival(limit: Limit, now: Instant) -> Instant:
    """Return when a bucket that is empty now will be full again."""
    return now + longest_wait(limit)


def _read_number(state: str, default: int) -> int:
    try:
        return int(state or 0)
    except ValueError:
        return default


def _bucket_allows(rate: int, per: Duration, burst: int, arrival: Instant, now: Instant, wanted: int) -> Admission:
    behind = max(arrival, now) - now
    free = (burst * per - behind * rate) // per
    granted = max(0, min(wanted, free))
    if granted == wanted:
        return Admission(granted, None)
    after = -(-(max(arrival, now) * rate + granted * per) // rate)  # As `rate_after` will write it.
    return Admission(granted, -(-(after * rate - (burst - 1) * per) // rate))
