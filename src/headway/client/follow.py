"""Follow jobs: streams that resume after a lost connection, long polling if no stream gets through, and waiting.

A follower sees every event once and in order: an event that is repeated after a reconnect is recognised by the version
of the job, or the number of the log line, and left out. If something may be missing, the server sends `resync`, which
is passed on to the caller.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from headway.client.requests import (
    AskTerms,
    Flow,
    Give,
    Open,
    Patience,
    Read,
    Reply,
    Request,
    Rest,
    Shape,
    Steps,
    Terms,
    Unreached,
    ask,
    error_of,
    part,
    query_of,
    read,
)
from headway.client.sse import EventReader, Message
from headway.core.backoff import backoff
from headway.core.errors import HeadwayError, JobFailed, JobNotFound, StoreError
from headway.core.instants import SECOND, DurationLike, parse_duration

SILENCE_S_MAX: Final = 40.0  # The server sends at least a heartbeat every 15 s.
SILENT_MAX: Final = 2  # Empty streams in a row before giving up: a proxy probably buffers them.
POLL_S: Final = 25
POLL_MORE_S: Final = 20.0  # How much later than requested a response may come.
POLL_REST_S: Final = 0.1  # Rest between two polls, for jobs that report all the time.
LINES_MAX: Final = 200
JOBS_KNOWN_MAX: Final = 100_000
NO_STREAM: Final = frozenset({405, 406, 501})
FINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job.

    `kind` is status, progress, log, done, or resync, which means that states in between may have been missed. `data`
    has the fields of the job that change, and at the end of a watched job all of them; for log it has `lines`. A
    `resync` of everything names no job: read the jobs again.
    """

    kind: str
    job_id: str | None
    version: int | None
    data: Shape

    @property
    def is_last(self) -> bool:
        """Whether the job has ended."""
        return self.kind == "done"


class _NoStream(HeadwayError):
    """The server, or a proxy before it, does not stream."""


class _Stream:
    """A stream of events that resumes after every lost connection."""

    def __init__(self, request: Request, terms: Terms) -> None:
        self._request = replace(request, headers={"Accept": "text/event-stream", "Cache-Control": "no-cache"})
        self._chance = terms.clock.chance
        self._patience = Patience(terms)
        self._reader: EventReader | None = None
        self._last_id = ""
        self._silent = 0
        self._has_spoken = False

    def more(self) -> Steps[list[Message]]:
        """Return the next messages; reconnect if necessary."""
        while True:
            reader = self._reader or (yield from self._connect())
            chunk: bytes | Unreached = yield Read(SILENCE_S_MAX)
            if isinstance(chunk, Unreached) or not chunk:
                yield from self._cut(reader, chunk or Unreached("the stream ended", was_sent=True))
                continue
            self._patience.renew()
            self._has_spoken, self._silent = True, 0
            messages = reader.feed(chunk)
            self._last_id = reader.last_id
            if messages:
                return messages

    def _connect(self) -> Steps[EventReader]:
        place = {"Last-Event-ID": self._last_id} if self._last_id else {}
        request = replace(self._request, headers={**self._request.headers, **place})
        while True:
            outcome: Reply | Unreached = yield Open(request)
            if isinstance(outcome, Reply) and outcome.status < 300:
                if not outcome.headers.get("content-type", "").startswith("text/event-stream"):
                    raise _NoStream
                self._reader, self._has_spoken = EventReader(self._last_id), False
                return self._reader
            if isinstance(outcome, Reply) and outcome.status in NO_STREAM:
                raise _NoStream
            rest_s = self._patience.rest_s(request, outcome)
            if rest_s is None:
                raise error_of(request, outcome)
            yield Rest(rest_s)

    def _cut(self, reader: EventReader, how: bytes | Unreached) -> Steps[None]:
        """Rest before the next connection; give up on streams that never deliver anything."""
        assert isinstance(how, Unreached)
        self._reader = None
        self._silent += not self._has_spoken
        if self._silent >= SILENT_MAX:
            raise _NoStream
        rest_s = self._patience.rest_s(self._request, how)
        if rest_s is None:
            raise error_of(self._request, how)
        wanted_s = reader.retry_s or 0.0
        yield Rest(max(rest_s, backoff(1, first=wanted_s, most=wanted_s, spread=self._chance.random())))


class _Known:
    """What a follower of one job has received."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._status: tuple[Any, Any] | None = None
        self.version = 0
        self.live = 0
        self.seq = 0

    def event(self, message: Message) -> Event | None:
        """Convert a message to an event; None if it is not new."""
        data = _data(message)
        if message.event == "gone":
            raise JobNotFound(f"{self._job_id} is gone")
        if message.event == "log":
            return self.lines(data.get("lines"))
        return self.state(message.event, data) if message.event in ("status", "progress", "done", "resync") else None

    def lines(self, lines: Any) -> Event | None:
        """Return an event with the new log lines."""
        # Live lines have no number yet, and come once.
        new = [line for line in lines or () if (seq := _number(line, "seq")) == 0 or seq > self.seq]
        if not new:
            return None
        self.seq = max(self.seq, *(_number(line, "seq") for line in new))
        return Event("log", self._job_id, None, {"lines": new})

    def state(self, kind: str, data: Shape) -> Event | None:
        """Return an event for a new state of the job."""
        version, live = _number(data, "version"), _number(data, "live")
        if (version, live) <= (self.version, self.live) and kind != "done":
            return None
        self._job_id = str(data.get("id") or self._job_id)
        self._status = (data.get("status"), data.get("attempts"))
        self.version, self.live = max((version, live), (self.version, self.live))
        return Event(kind, self._job_id, version, data)

    def job(self, job: Shape) -> Event | None:
        """Return an event for a complete job that was read."""
        if job.get("status") in FINAL:
            return self.state("done", job)
        is_same = self._status == (job.get("status"), job.get("attempts"))
        return self.state("progress" if is_same else "status", job)


def watch(job_id: str) -> Flow[Event]:
    """Follow one job to its end."""
    terms: Terms = yield AskTerms()
    known = _Known(job_id)
    stream = _Stream(Request(method="GET", path=f"/api/jobs/{part(job_id)}/events", missing=JobNotFound), terms)
    try:
        while True:
            for message in (yield from stream.more()):
                event = known.event(message)
                if event is not None:
                    yield Give(event)
                    if event.is_last:
                        return
    except _NoStream:
        yield from _poll(job_id, known)


def _poll(job_id: str, known: _Known) -> Flow[Event]:
    """Follow one job by long polling."""
    while True:
        job = yield from long_poll(job_id, known.version, POLL_S, known.live)
        is_behind = True
        while is_behind:
            lines = yield from lines_after(job_id, known.seq)
            is_behind = len(lines) == LINES_MAX
            if (logged := known.lines(lines)) is not None:
                yield Give(logged)
        if (event := known.job(job)) is not None:
            yield Give(event)
            if event.is_last:
                return
        yield Rest(POLL_REST_S)


def long_poll(job_id: str, version: int, wait_s: float, live: int | None = None) -> Steps[Shape]:
    """Return the job when it has a newer version or live value, or when the time is up (long polling)."""
    waiting = {"wait": f"{max(1, round(wait_s * 1000))}ms", "since": version, "live": live or None} if version else {}
    request = Request(
        method="GET",
        path=f"/api/jobs/{part(job_id)}",
        query=query_of(waiting),
        missing=JobNotFound,
        timeout_s=wait_s + POLL_MORE_S,
    )
    job: Shape = read((yield from ask(request)))
    return job


def lines_after(job_id: str, seq: int) -> Steps[list[Shape]]:
    """Return a page of a job's log lines after this one."""
    query = query_of({"cursor": seq or None, "limit": LINES_MAX})
    request = Request(method="GET", path=f"/api/jobs/{part(job_id)}/log", query=query, missing=JobNotFound)
    lines: list[Shape] = read((yield from ask(request)))["items"]
    return lines


def stream(filters: Mapping[str, Any]) -> Flow[Event]:
    """Follow all jobs that match."""
    terms: Terms = yield AskTerms()
    source = _Stream(Request(method="GET", path="/api/stream", query=query_of(filters)), terms)
    versions: OrderedDict[str, tuple[int, int]] = OrderedDict()
    try:
        while True:
            for message in (yield from source.more()):
                event = _global_event(message, versions)
                if event is not None:
                    yield Give(event)
    except _NoStream:
        raise StoreError("no stream of events arrives; a proxy between here and the server may buffer it") from None


def _global_event(message: Message, versions: "OrderedDict[str, tuple[int, int]]") -> Event | None:
    if message.event not in ("status", "progress", "done", "resync"):
        return None
    data = _data(message)
    job_id, version = data.get("id"), _number(data, "version")
    if message.event == "resync" or not isinstance(job_id, str):
        return Event("resync", None, None, data)
    if (told := (version, _number(data, "live"))) <= versions.get(job_id, (0, 0)):
        return None
    versions[job_id] = told
    versions.move_to_end(job_id)
    if len(versions) > JOBS_KNOWN_MAX:
        versions.popitem(last=False)
    return Event(message.event, job_id, version, data)


def wait(job_id: str, timeout: DurationLike | None = None) -> Steps[Any]:
    """Wait for the end of a job; return its result, raise `JobFailed` or `TimeoutError`."""
    terms: Terms = yield AskTerms()
    limit_s = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
    until = None if limit_s is None else terms.clock.monotonic() + limit_s
    version = 0
    while True:
        left_s = POLL_S if until is None else max(0.0, min(POLL_S, until - terms.clock.monotonic()))
        job = yield from long_poll(job_id, version, left_s)
        if job["status"] in FINAL:
            return outcome_of(job)
        if until is not None and terms.clock.monotonic() >= until:
            raise TimeoutError(f"{job['id']} has not ended within {limit_s:g} s; it is {job['status']}")
        version = _number(job, "version")
        yield Rest(POLL_REST_S)


def outcome_of(job: Shape) -> Any:
    """Return the result of a finished job, or raise its error."""
    if job["status"] == "COMPLETED":
        return job["result"]
    error = job.get("error") or {}
    words = f"{error['type']}: {error.get('message', '')}" if error.get("type") else job.get("why") or ""
    raise JobFailed(f"{job['id']} ended as {job['status']}" + (f": {words}" if words else ""))


def _data(message: Message) -> Shape:
    try:
        data = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise StoreError("the stream has an event that is not a JSON object; is this the address of Headway's API?")
    return data


def _number(data: Any, name: str) -> int:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, int) else 0
