"""Ways to follow jobs: long polling, server-sent events of one job or of all, and a WebSocket with the same events.

Events of one job are numbered by its versions. A client that reconnects with the last number it saw (`Last-Event-ID`,
`since`) gets the events after it from the records, or `resync` with the complete job if they are gone. Followers of
everything reconnect with a cursor and may get an event twice: a client ignores an event whose version of the job is not
newer than the one it has.

Live values come between the versions and have no number. Log lines that were sent live are part of the position with
which a follower reconnects (`17.2.1801375200104000`: version 17, and the lines of attempt 2 up to that time).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Self

import msgspec
from starlette.types import Message, Receive, Scope, Send

from headway.core.errors import JobNotFound, StoreUnavailable
from headway.core.feed import Change, Line
from headway.core.instants import SECOND, Instant, parse_duration
from headway.core.jobs import Job
from headway.core.schedule_names import schedule_name
from headway.core.tenants import DEFAULT_TENANT
from headway.operations.caller import Principal
from headway.operations.job_reads import PLAIN, needed_explanation, visible_job
from headway.operations.job_source import length_of, serial_of
from headway.server.fanout import Fanout
from headway.server.followers import Follower, StreamEvent, StreamPosition, job_event, log_event
from headway.server.offload import SMALL_BYTES_MAX, ThreadOffload
from headway.server.operation_routes import params_of
from headway.server.refusals import Refused
from headway.server.web import Answer, Call, Param, Route
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.job_requests import JobFilter
from headway.wire.jobs import JobViews, change_of, job_of

HEARTBEAT_S: Final = 15.0
VALID_EVERY_S: Final = 2.0
PULSE_S: Final = 1.0
SEND_S_MAX: Final = 30.0
WAIT_S_MAX: Final = 60.0
REPLAY_BYTES_MAX: Final = 256 << 10  # Versions that are replayed; if there are more, the current job is sent instead.

FILTERS: Final = params_of(JobFilter, "status", "type", "queue", "tenant", "schedule", "tag", "key")
SINCE: Final = Param("since", "the last version that you know", "int", low=0, high=10**15)
LIVE: Final = Param("live", "the last `live` that you know of that version", "int", low=0, high=10**15)
_PLACE: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})\.([0-9]{1,18}))?", re.ASCII)


# --- one job


async def events_of_job(call: Call) -> "Stream":
    """Stream the events of one job; ends after `done`."""
    job = await visible_job(call.caller, call.path("job_id"))
    since = call.query.get("since")
    known = place_of(call.request.headers.get("last-event-id", "")) or (
        None if since is None else StreamPosition(since)
    )
    return Stream(call, lambda: follow_job(call.services.fanout, call, job.id, known), ends_with_done=True)


def place_of(text: str) -> StreamPosition | None:
    """Parse the position of a client; None if it is malformed."""
    found = _PLACE.fullmatch(text)
    return None if found is None else StreamPosition(*(int(part) for part in found.groups("0")))


async def follow_job(
    fanout: Fanout, call: Call, job_id: str, known: StreamPosition | None
) -> tuple[Follower, list[StreamEvent]]:
    """Start to follow a job; also return the first events: the complete job, or those after the known version."""
    follower = await fanout.follow_job(job_id)
    try:
        found = await call.services.feed.jobs([job_id], largest=LISTED_BYTES_MAX)
        if not found:
            raise JobNotFound(f"no job has the id {job_id!r}")
        job = found[0]
        shown = fanout.overlaid(job)
        follower.floor = (job.version, serial_of(shown))
        events = await _catch_up(call, job, shown, known)
        if fanout.tells_live:
            last = await call.services.feed.last_line(job.id, job.version)
            told_live = (0, 0) if known is None else (known.attempt, known.at)
            fanout.begin_live(follower, max(last, told_live), is_live=told_live > last)
        return follower, events
    except BaseException:
        fanout.leave(follower)
        raise


async def _catch_up(call: Call, job: Job, shown: Job, known: StreamPosition | None) -> list[StreamEvent]:
    now, version = call.clock.now(), 0 if known is None else known.version
    live = [] if shown is job else [StreamEvent("progress", change_of(shown, now))]
    if known is not None and version == job.version:
        return live
    logged = await call.services.feed.log_between(job.id, version, job.version)
    lines = [line for line in logged if not _was_told(line, known)]
    final = None
    if job.status.is_final and not job.omitted:
        final = job_event("done", job, now)
    elif job.status.is_final:
        async with call.services.offload.turn(call.principal.holder):
            final = await call.services.fanout.whole_event("done", job, now)
    if known is not None and version < job.version:
        fed = [
            change for change in await call.services.feed.of_job(job.id, version) if change.job.version <= job.version
        ]
        if len(fed) == job.version - version and sum(length_of(change.job) for change in fed) <= REPLAY_BYTES_MAX:
            return [*_replayed(fed, lines, final, now), *live]
    first = [log_event(lines, None, 0)] if lines else []
    last = final or job_event("status" if known is None else "resync", shown, now)
    return [*first, _unnumbered(last)]


def _was_told(line: Line, known: StreamPosition | None) -> bool:
    return known is not None and line.attempt == known.attempt and line.at <= known.at


def _replayed(fed: list[Change], lines: list[Line], final: StreamEvent | None, now: int) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    before: tuple[str, int] | None = None
    for change in fed:
        version = change.job.version
        mine = [line for line in lines if line.version == version]
        if mine:
            events.append(log_event(mine, None, 0))
        if change is fed[-1] and final is not None:
            events.append(_unnumbered(final))
            continue
        kind = "progress" if before == (change.job.status, change.job.attempt) else "status"
        before = (change.job.status, change.job.attempt)
        events.append(StreamEvent(kind, change_of(change.job, now), id=str(version)))
    return events


def _unnumbered(event: StreamEvent) -> StreamEvent:
    """Let an event pass the floor of its follower: the floor was set by this event."""
    event.version = 0
    return event


# --- all jobs


def wanted(call_tenant: str | None, query: dict[str, Any]) -> Callable[[Job], bool]:
    """Return the filter of a follower of everything, limited to the jobs that it may see."""
    checks: list[Callable[[Job], bool]] = []
    if call_tenant is not None:
        checks.append(lambda job: job.tenant == call_tenant)
    fields = {
        "status": "status",
        "type": "task",
        "queue": "queue",
        "tenant": "tenant",
        "key": "key",
    }
    for name, attribute in fields.items():
        if name in query:
            checks.append(lambda job, attribute=attribute, value=query[name]: getattr(job, attribute) == value)  # type: ignore[misc]
    if (schedule := query.get("schedule")) is not None:
        whose = call_tenant or query.get("tenant") or DEFAULT_TENANT
        checks.append(lambda job: job.tenant == whose and schedule_name(job.schedule or "") == schedule)
    if "tag" in query:
        checks.append(lambda job: query["tag"] in job.tags)
    return lambda job: all(check(job) for check in checks)


async def stream(call: Call) -> "Stream":
    """Stream the events of all jobs that the caller may see and that match its filters."""
    if call.tenant is not None and call.query.get("tenant", call.tenant) != call.tenant:
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    wants = wanted(call.tenant, call.query)
    last = call.request.headers.get("last-event-id") or call.query.get("cursor")
    return Stream(call, lambda: follow_everything(call.services.fanout, wants, last))


async def follow_everything(
    fanout: Fanout, wants: Callable[[Job], bool], last: str | None
) -> tuple[Follower, list[StreamEvent]]:
    """Start to follow everything; also return the events that may have been missed since the cursor."""
    follower, cursor = await fanout.follow_everything(wants)
    try:
        ready = StreamEvent("ready", {"cursor": cursor}, id=cursor)
        if last is None:
            return follower, [ready]
        missed = await fanout.missed(last, wants)
        return follower, [StreamEvent("resync", {}, id=cursor)] if missed is None else [*missed, ready]
    except BaseException:
        fanout.leave(follower)
        raise


class Stream:
    """Server-sent events as an ASGI response. Ends with the client, the server, its credential, or the last event."""

    def __init__(self, call: Call, begin: Callable[[], Any], *, ends_with_done: bool = False) -> None:
        self._call = call
        self._begin = begin
        self._ends_with_done = ends_with_done
        self.headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or the stream ends."""
        call, fanout = self._call, self._call.services.fanout
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        start = {"type": "http.response.start", "status": 200, "headers": [*_SSE_HEADERS, *headers]}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        with call.services.quotas.stream(call.principal):
            await self._speak(fanout, receive, send, start)

    async def _speak(self, fanout: Fanout, receive: Receive, send: Send, start: Message) -> None:
        call = self._call
        follower, first = await self._begin()
        gone = asyncio.ensure_future(_gone(receive, follower))
        try:
            await send(start)
            with Attendance(follower) as attendance:
                await attendance.hear(send, b"retry: 1000\n\n" + b"".join(event.sse for event in first))
                if not (self._ends_with_done and is_over(first)):
                    await self._go_on(call, follower, partial(attendance.hear, send))
                await attendance.hear(send, b"", is_last=True)
        except (TimeoutError, StoreUnavailable):
            pass  # A client that does not read is dropped and can reconnect; the server closes the connection.
        finally:
            fanout.leave(follower)
            gone.cancel()

    async def _go_on(self, call: Call, follower: Follower, say: Callable[[bytes], Awaitable[None]]) -> None:
        async for events in spoken(call.services, call.principal, call, follower):
            await say(b"".join([event.sse for event in events]) if events else b": still here\n\n")
            if self._ends_with_done and is_over(events):
                return


def is_over(events: list[StreamEvent]) -> bool:
    """Return whether these events are the last ones of the job."""
    return any(event.kind in ("done", "gone") for event in events)


async def spoken(
    services: Any, principal: Principal, call: Call, follower: Follower
) -> AsyncIterator[list[StreamEvent]]:
    """Yield events as they come, and empty lists as heartbeats; end when the follower is dropped or loses its rights.

    The follower must be woken from time to time even if nothing happens: see `Attendance`.
    """
    clock = call.clock
    beat_at, valid_at = clock.monotonic() + HEARTBEAT_S, clock.monotonic() + VALID_EVERY_S
    while not services.is_closing:
        await follower.wake.wait()
        now = clock.monotonic()
        if now + PULSE_S / 2 >= valid_at:
            if services.auth is not None and not await services.auth.still_valid(principal):
                return
            valid_at = now + VALID_EVERY_S
        events = follower.take()
        if follower.is_dropped:
            return
        if events or now >= beat_at:
            yield events
            beat_at = now + HEARTBEAT_S


_SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Attendance:
    """Wakes a follower at intervals, and disconnects a client that does not read.

    One timer per stream does both: a timer per event would cost more than the event.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since: float | None = None  # When the current send began.
        self.is_over = False

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(PULSE_S, self._beat)
        return self

    def __exit__(self, *reason: object) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(PULSE_S, self._beat)
        self._follower.wake.set()
        if self._since is not None and self._loop.time() - self._since > SEND_S_MAX and self._task is not None:
            self.is_over = True
            self._task.cancel()

    async def hear(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of the stream; raise `TimeoutError` if the client has not read for too long."""
        self._since = self._loop.time()
        try:
            await send({"type": "http.response.body", "body": data, "more_body": not is_last})
        except asyncio.CancelledError:
            if self.is_over and self._task is not None and self._task.uncancel() == 0:
                raise TimeoutError from None
            raise
        finally:
            self._since = None


async def _gone(receive: Receive, follower: Follower) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    follower.is_dropped = True
    follower.wake.set()


# --- long polling


def wait_s(call: Call) -> float:
    """Return how long a caller wants to wait for a change."""
    text = call.query.get("wait")
    return 0.0 if text is None else min(parse_duration(text, what="wait") / SECOND, WAIT_S_MAX)


async def wait_for_change(call: Call, job: Job) -> Job:
    """Wait until a job has a newer version or live value than the caller knows, up to the requested time."""
    limit_s = wait_s(call)
    known = call.query.get("since", job.version), call.query.get("live", serial_of(job))
    if limit_s <= 0 or (job.version, serial_of(job)) > known or job.status.is_final:
        return job
    with call.services.quotas.stream(call.principal):
        return await _changed(call, job, known, limit_s)


async def _changed(call: Call, job: Job, known: tuple[int, int], limit_s: float) -> Job:
    fanout: Fanout = call.services.fanout
    follower = await fanout.follow_job(job.id)
    try:
        until = call.clock.monotonic() + limit_s
        latest = await _looked_at(call, job)
        while (
            (latest.version, serial_of(latest)) <= known
            and (rest_s := until - call.clock.monotonic()) > 0
            and not call.services.is_closing
        ):
            await call.clock.rest(min(rest_s, VALID_EVERY_S), follower.wake)
            if not await call.services.auth.still_valid(call.principal):
                raise Refused(401, "unauthorized", "the token was revoked or has expired")
            if follower.take() or follower.is_dropped:
                latest = await _looked_at(call, job)
            if follower.is_dropped:
                break
        return latest
    finally:
        fanout.leave(follower)


async def _looked_at(call: Call, job: Job) -> Job:
    fanout: Fanout = call.services.fanout
    [latest] = await call.services.feed.jobs([job.id], largest=LISTED_BYTES_MAX) or [job]
    return fanout.overlaid(latest)


# --- a complete job


async def job_answer(call: Call, job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a job and the explanation of its state; large content is read and encoded outside the event loop."""
    etag = _etag(job)
    if not job.omitted and length_of(job) <= SMALL_BYTES_MAX:
        encoded = call.services.encoded.get(job, **_views(call))
        body = encoded.at(call.clock.now() // SECOND) if job.status in PLAIN else None
        if body is None:
            now, why, node_name = await _outlook(call, job)
            body = encoded.encode(now, why=why, node_name=node_name)
        return Answer(body, status, headers or {}, etag=etag)
    if call.request.headers.get("if-none-match") == etag:
        return Answer(b"", status, headers or {}, etag=etag)  # The client already has it: do not load it.
    offload: ThreadOffload = call.services.offload
    async with offload.turn(call.principal.holder):
        job = await call.services.reader.whole(job)
        now, why, node_name = await _outlook(call, job)
        body = await offload.run(length_of(job), _encoded, job, now, why=why, node_name=node_name, **_views(call))
        return Answer(body, status, headers or {}, etag=_etag(job))


def _views(call: Call) -> JobViews:
    """Return what the caller may see of a job."""
    return {"with_traceback": call.principal.may("operator"), "all_tenants": call.principal.one_tenant is None}


def _encoded(job: Job, now: Instant, **outlook: Any) -> bytes:
    return msgspec.json.encode(job_of(job, now, **outlook))


def _etag(job: Job) -> str:
    """Return the version as a weak ETag: relative times in the JSON change without a new version."""
    serial = serial_of(job)
    return f'W/"{job.version}.{serial}"' if serial else f'W/"{job.version}"'


async def _outlook(call: Call, job: Job) -> tuple[Instant, str | None, str | None]:
    """Return what the JSON of a job needs: the time, the explanation of its state, and the name of its node."""
    words = await needed_explanation(call.caller, job)
    return call.clock.now(), words, await call.services.names.of(job.node)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/jobs/{job_id}/events",
        handler=events_of_job,
        role="viewer",
        summary="Follow one job",
        what="Server-sent events: status, progress, log, done; the id is the version. Resumes from Last-Event-ID.",
        tag="follow",
        query=(SINCE,),
        headers=("Last-Event-ID",),
        is_stream=True,
    ),
    Route(
        method="GET",
        path="/api/stream",
        handler=stream,
        role="viewer",
        summary="Follow everything",
        what="Server-sent events of all jobs that the token may see. Resumes from Last-Event-ID, or sends resync.",
        tag="follow",
        query=(*FILTERS, Param("cursor", "where to resume, like Last-Event-ID")),
        headers=("Last-Event-ID",),
        is_stream=True,
    ),
)
