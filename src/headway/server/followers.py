"""The followers of jobs: what each has been sent, what is queued for it, and the events themselves."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from headway.core.feed import Line
from headway.core.instants import Instant
from headway.core.jobs import Job
from headway.core.ports import Latest
from headway.operations.job_source import overlaid, serial_of
from headway.wire.jobs import job_of, line_of

EVENTS_MAX: Final = 1_000
BYTES_MAX: Final = 1 << 20
LIVE_LINES_MAX: Final = 200


class StreamPosition(NamedTuple):
    """The position of a follower: a version of the job, and a log line if that was sent live."""

    version: int
    attempt: int = 0
    at: Instant = 0

    def __str__(self) -> str:
        return f"{self.version}.{self.attempt}.{self.at}" if self.at else str(self.version)


class StreamEvent:
    """An event for followers: its kind, its position, and its JSON, encoded once for all of them."""

    __slots__ = ("data", "id", "kind", "live", "sse", "version")

    def __init__(self, kind: str, data: Any, *, id: str | None = None, version: int = 0, live: int = 0) -> None:
        self.kind = kind
        self.id = id
        self.version = version
        self.live = live
        self.data = data if isinstance(data, bytes) else msgspec.json.encode(data)
        place = b"" if id is None else b"id: " + id.encode() + b"\n"
        self.sse = b"event: " + kind.encode() + b"\n" + place + b"data: " + self.data + b"\n\n"

    def at(self, place: str) -> "StreamEvent":
        """Return the same event with another position; its JSON is not encoded again."""
        return (
            self
            if place == self.id
            else StreamEvent(self.kind, self.data, id=place, version=self.version, live=self.live)
        )

    def message(self) -> bytes:
        """Encode the event for a WebSocket."""
        return msgspec.json.encode({"event": self.kind, "id": self.id, "data": msgspec.Raw(self.data)})


class Follower:
    """One open connection and its bounded queue of unsent events."""

    __slots__ = ("_bytes", "_events", "floor", "is_dropped", "is_live", "is_ready", "job_id", "line", "wake", "wants")

    def __init__(self, job_id: str | None = None, wants: Callable[[Job], bool] | None = None) -> None:
        self.job_id = job_id
        self.wants = wants
        self.floor = (0, 0)  # What it already has: up to this version, and this report of a running job.
        self.line: tuple[int, Instant] = (0, 0)  # The attempt and time of the last line that it was sent,
        self.is_live = False  # and whether that was sent live.
        self.is_ready = False  # Whether it has got the earlier lines, so that lines can be sent live.
        self.is_dropped = False
        self.wake = asyncio.Event()
        self._events: deque[StreamEvent] = deque()
        self._bytes = 0

    def push(self, event: StreamEvent) -> None:
        """Queue an event; drop the follower if its queue is full (backpressure)."""
        if len(self._events) >= EVENTS_MAX or self._bytes > BYTES_MAX:
            self.is_dropped = True
        if not self.is_dropped:
            self._events.append(event)
            self._bytes += len(event.sse)
        self.wake.set()

    def take(self) -> list[StreamEvent]:
        """Return and remove the unsent events."""
        self.wake.clear()
        events = [event for event in self._events if not event.version or (event.version, event.live) > self.floor]
        self._events.clear()
        self._bytes = 0
        return events


@dataclass(slots=True)
class LogTail:
    """The last log lines of an attempt that arrived live, without gaps between them."""

    attempt: int = 0
    after: Instant = 0
    lines: deque[tuple[Instant, str, str]] = field(default_factory=deque)

    def add(self, latest: Latest) -> None:
        """Append lines; after a gap keep only the lines after it."""
        end = self.lines[-1][0] if self.lines else self.after
        if latest.attempt != self.attempt or latest.after > end:
            self.attempt, self.after, end = latest.attempt, latest.after, latest.after
            self.lines.clear()
        self.lines.extend(line for line in latest.lines if line[0] > end)
        while len(self.lines) > LIVE_LINES_MAX:
            self.after = self.lines.popleft()[0]

    def since(self, line: tuple[int, Instant]) -> list[Line]:
        """Return the lines after one that was sent; none if some may be missing in between."""
        at = line[1] if line[0] == self.attempt else 0
        if line[0] > self.attempt or self.after > at:
            return []
        return [
            Line(seq=0, attempt=self.attempt, at=one[0], stream=one[1], line=one[2], version=0)
            for one in self.lines
            if one[0] > at
        ]


@dataclass(slots=True)
class Channel:
    """A followed job and its followers."""

    version: int = 0
    status: str = ""
    attempt: int = 0
    log_bytes: int = 0
    followers: set[Follower] = field(default_factory=set)
    job: Job | None = None
    live: Latest | None = None
    tail: LogTail = field(default_factory=LogTail)
    told: tuple[int, int] = (0, 0)  # The version and the report that were sent last.
    told_at: float = -1e9
    timer: asyncio.TimerHandle | None = None

    def learn(self, job: Job) -> Job:
        """Note a version of the job, unless a later one is known; return the job to send."""
        if job.version > self.version:
            self.version, self.status, self.attempt = job.version, job.status, job.attempt
            self.job = job
        shown = overlaid(job, self.live)
        self.told = max(self.told, (job.version, serial_of(shown)))
        return shown

    def hear(self, latest: Latest) -> None:
        """Note a live value, unless it is older than the known one or from an unknown attempt."""
        known = self.live
        if known is not None and known.attempt == self.attempt and latest.attempt != self.attempt:
            return
        if known is None or latest.attempt != known.attempt or latest.serial > known.serial:
            self.live = latest
        if latest.lines and latest.attempt >= self.tail.attempt:
            self.tail.add(latest)

    def to_tell(self, lines: list[Line]) -> Iterator[tuple[list[Follower], list[Line], str]]:
        """Yield groups of followers with the stored lines that they did not get live, and the position after those.

        Usually there is one group.
        """
        groups: dict[tuple[tuple[int, Instant], bool], list[Follower]] = {}
        for follower in self.followers:
            groups.setdefault((follower.line, follower.is_live), []).append(follower)
        for (told, is_live), group in groups.items():
            new = [line for line in lines if line.attempt != told[0] or line.at > told[1]] if is_live else lines
            if lines and (not is_live or told <= (lines[-1].attempt, lines[-1].at)):
                told, is_live = (lines[-1].attempt, lines[-1].at), False
            for follower in group:
                follower.line, follower.is_live = told, is_live
            yield group, new, str(StreamPosition(self.version, *told) if is_live else StreamPosition(self.version))


def push_to(followers: Iterable[Follower], events: Iterable[StreamEvent]) -> None:
    for follower in followers:
        for event in events:
            follower.push(event)


def job_event(kind: str, job: Job, now: int) -> StreamEvent:
    """Build the event with a complete job: without the traceback, and with large arguments omitted and named."""
    told = job_of(job, now, with_traceback=False)
    return StreamEvent(kind, told, id=str(job.version), version=job.version, live=serial_of(job))


def log_event(lines: list[Line], place: str | None, version: int) -> StreamEvent:
    """Build the event with log lines of a job."""
    told = [
        line_of(
            {
                "seq": line.seq or None,
                "at": line.at,
                "attempt": line.attempt,
                "stream": line.stream,
                "line": line.line,
            }
        )
        for line in lines
    ]
    return StreamEvent("log", {"lines": told}, id=place, version=version)
