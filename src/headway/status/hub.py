"""The hub: one reader of the feed per process, and everybody who follows.

However many follow a job, its changes are read once and written as bytes once. A follower that does not keep up is
dropped, not waited for; it comes back and is told what it missed, or to read everything anew (`resync`).

Followers of one job get its versions in order, by number. The feed tells them at once; every second the versions that
the jobs really have are looked at too, so that a change which the feed could not have (one that was under way when the
first follower came) is missed by nobody.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headway.clock import Clock
from headway.instants import SECOND
from headway.model import Job
from headway.shapes import job_shape, stamp
from headway.store import Store
from headway.store.feed import EVERYTHING, Change, Line, all_before, low_of

FOLLOW_FOR: Final = 15 * SECOND
EXTEND_EVERY_S: Final = 5.0
SWEEP_EVERY_S: Final = 1.0
PRUNE_EVERY_S: Final = 60.0
POLL_S: Final = 0.25  # Where nobody wakes us.
OLDER_S_MAX: Final = 2.0
EVENTS_MAX: Final = 1_000
BYTES_MAX: Final = 1 << 20
STATES_MAX: Final = 20_000
FOLLOWERS_MAX: Final = 20_000
_FED: Final = (
    "id type tenant queue schedule key tags status progress attempts failures max_attempts metadata detail "
    "started_at finished_at updated_at why eta_seconds version"
).split()


class Event:
    """Something to tell followers: its kind, its place in the order, and the words, written once for everybody."""

    __slots__ = ("data", "id", "kind", "sse", "version")

    def __init__(self, kind: str, data: Any, *, id: str | None = None, version: int = 0) -> None:
        self.kind = kind
        self.id = id
        self.version = version
        self.data = data if isinstance(data, bytes) else msgspec.json.encode(data)
        place = b"" if id is None else b"id: " + id.encode() + b"\n"
        self.sse = b"event: " + kind.encode() + b"\n" + place + b"data: " + self.data + b"\n\n"

    def message(self) -> bytes:
        """Write the event for a WebSocket."""
        return msgspec.json.encode({"event": self.kind, "id": self.id, "data": msgspec.Raw(self.data)})


class Follower:
    """One open connection: what it has not been sent yet. Bounded."""

    __slots__ = ("_bytes", "_events", "floor", "is_dropped", "job_id", "wake", "wants")

    def __init__(self, job_id: str | None = None, wants: Callable[[Job], bool] | None = None) -> None:
        self.job_id = job_id
        self.wants = wants
        self.floor = 0  # Versions up to here it knows already.
        self.is_dropped = False
        self.wake = asyncio.Event()
        self._events: deque[Event] = deque()
        self._bytes = 0

    def push(self, event: Event) -> None:
        """Have an event sent; one who lets too many wait is dropped."""
        if len(self._events) >= EVENTS_MAX or self._bytes > BYTES_MAX:
            self.is_dropped = True
        if not self.is_dropped:
            self._events.append(event)
            self._bytes += len(event.sse)
        self.wake.set()

    def take(self) -> list[Event]:
        """Return what has not been sent yet."""
        self.wake.clear()
        events = [event for event in self._events if not event.version or event.version > self.floor]
        self._events.clear()
        self._bytes = 0
        return events


@dataclass(slots=True)
class _Channel:
    """A job that is followed, as its followers know it."""

    version: int = 0
    status: str = ""
    attempt: int = 0
    log_bytes: int = 0
    followers: set[Follower] = field(default_factory=set)

    def learn(self, job: Job) -> None:
        """Take note of a version of the job, unless a later one is known."""
        if job.version > self.version:
            self.version, self.status, self.attempt = job.version, job.status, job.attempt


class Hub:
    """Who follows what in this process. Its tick is run by a `Loop`, which is woken when the feed grows."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._channels: dict[str, _Channel] = {}
        self._everything: set[Follower] = set()
        self._states: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._position: str | None = None
        self._since = 0
        self._extend_at = self._sweep_at = self._prune_at = 0.0
        self._reading = asyncio.Lock()
        self.wake: Callable[[], None] = lambda: None
        self.is_woken = True  # Whether commits of others wake us; said by whoever listens.

    # --- who follows

    def count(self) -> int:
        """How many follow."""
        return len(self._everything) + sum(len(channel.followers) for channel in self._channels.values())

    async def follow_job(self, job_id: str) -> Follower:
        """Start to follow a job; from now on its changes are kept for the follower."""
        follower = Follower(job_id)
        channel = self._channels.setdefault(job_id, _Channel())
        channel.followers.add(follower)
        try:
            if len(channel.followers) == 1:
                await self._store.feed.follow([job_id], FOLLOW_FOR)
            await self._begin()
            if not channel.version:
                for job in await self._store.feed.jobs([job_id]):
                    channel.learn(job)
        except BaseException:
            self.leave(follower)
            raise
        return follower

    async def follow_everything(self, wants: Callable[[Job], bool]) -> tuple[Follower, str]:
        """Start to follow all jobs that somebody wants; return where in the feed it begins."""
        follower = Follower(wants=wants)
        self._everything.add(follower)
        try:
            before, self._since = self._since, (await self._store.feed.follow([EVERYTHING], FOLLOW_FOR))[EVERYTHING]
            await self._begin()
            if before != self._since:
                await self._wait_for_older()
        except BaseException:
            self.leave(follower)
            raise
        return follower, self.cursor()

    def leave(self, follower: Follower) -> None:
        """Follow no more."""
        self._everything.discard(follower)
        channel = self._channels.get(follower.job_id or "")
        if channel is not None:
            channel.followers.discard(follower)
            if not channel.followers:
                del self._channels[follower.job_id or ""]

    def wake_all(self) -> None:
        """Have everybody look whether to go on."""
        for follower in (*self._everything, *(one for channel in self._channels.values() for one in channel.followers)):
            follower.wake.set()

    def cursor(self) -> str:
        """Return the place in the feed from which a follower of everything can go on; what it knows may come again."""
        return f"{self._since}.{low_of(self._position or '0')}"

    async def missed(self, cursor: str, wants: Callable[[Job], bool]) -> list[Event] | None:
        """Return what a follower of everything may have missed since its cursor; None when nobody can tell."""
        since, _, low = cursor.partition(".")
        if not since.isdecimal() or not low.isdecimal() or int(since) != self._since or len(low) > 18:
            return None
        changes = await self._store.feed.again(int(low))
        if changes is None:
            return None
        return [self._told(change, cursor) for change in changes if wants(change.job)]

    async def _begin(self) -> None:
        """Have a position to read from: taken after the triggers know whom we follow."""
        if self._position is None:
            self._position = await self._store.feed.position()
        self.wake()

    async def _wait_for_older(self) -> None:
        """Wait for transactions that began before anybody followed: their changes are not fed. Not for ever, though."""
        until, nothing = self._clock.monotonic() + OLDER_S_MAX, asyncio.Event()
        border = all_before(await self._store.feed.position())
        while low_of(await self._store.feed.position()) < border and self._clock.monotonic() < until:
            await self._clock.rest(0.05, nothing)

    # --- the tick

    async def tick(self) -> float:
        """Read what is new and tell it."""
        if not self._channels and not self._everything:
            self._position = None
            await self._prune()
            return EXTEND_EVERY_S
        now = self._clock.monotonic()
        if now >= self._extend_at:
            await self._extend()
            self._extend_at = now + EXTEND_EVERY_S
        is_more = await self._read()
        if now >= self._sweep_at:
            await self._sweep()
            self._sweep_at = self._clock.monotonic() + SWEEP_EVERY_S
        await self._prune()
        if is_more:
            return 0.0
        return SWEEP_EVERY_S if self.is_woken else POLL_S

    async def _extend(self) -> None:
        scopes = [*self._channels, *([EVERYTHING] if self._everything else [])]
        since = (await self._store.feed.follow(scopes, FOLLOW_FOR)).get(EVERYTHING)
        if since is not None and since != self._since:  # We stood still for so long that there was a break.
            self._since = since
            for follower in self._everything:
                follower.push(Event("resync", {}, id=self.cursor()))

    async def _read(self) -> bool:
        async with self._reading:
            if self._position is None:
                return False
            cursor = self.cursor()
            changes, self._position, is_more = await self._store.feed.read(self._position)
            await self._tell(changes, cursor)
            return is_more

    async def _tell(self, changes: Iterable[Change], cursor: str) -> None:
        ended: set[str] = set()
        gaps: set[str] = set()
        for change in changes:
            if self._everything:
                told = self._told(change, cursor)
                for follower in self._everything:
                    if follower.wants is None or follower.wants(change.job):
                        follower.push(told)
            channel = self._channels.get(change.job.id)
            if channel is None or change.job.version <= channel.version:
                continue
            if change.job.version > channel.version + 1 and channel.version:
                gaps.add(change.job.id)
            elif change.job.status.is_final:
                ended.add(change.job.id)
            else:
                await self._tell_change(channel, change)
        if ended or gaps:
            await self._tell_jobs(ended | gaps, gaps)

    async def _tell_change(self, channel: _Channel, change: Change) -> None:
        job = change.job
        kind = "progress" if (channel.status, channel.attempt) == (job.status, job.attempt) else "status"
        lines = (
            await self._store.feed.log_since(job.id, channel.version) if change.log_bytes > channel.log_bytes else []
        )
        channel.learn(job)
        channel.log_bytes = change.log_bytes
        place = str(job.version)
        event = Event(kind, change_shape(job, self._clock.now()), id=None if lines else place, version=job.version)
        self._push(channel, event)
        if lines:
            self._push(channel, log_event(lines, place, job.version))

    async def _tell_jobs(self, job_ids: set[str], gaps: set[str]) -> None:
        """Tell jobs as they are now, whole: they have ended, or a version of them was not fed."""
        for job in await self._store.feed.jobs(job_ids):
            channel = self._channels.get(job.id)
            if channel is None or job.version <= channel.version:
                continue
            lines = await self._store.feed.log_since(job.id, channel.version)
            is_gap = job.id in gaps and not job.status.is_final
            kind = "done" if job.status.is_final else "resync" if is_gap else "status"
            channel.learn(job)
            if lines:
                self._push(channel, log_event(lines, None, job.version))
            self._push(channel, job_event(kind, job, self._clock.now()))

    async def _sweep(self) -> None:
        """Look whether the jobs that are followed have versions that nobody told us of."""
        if not self._channels:
            return
        asked = frozenset(self._channels)  # Others may come while we ask.
        found = await self._store.feed.versions(asked)
        late = {
            job_id for job_id, version in found.items() if (it := self._channels.get(job_id)) and version > it.version
        }
        if late:
            await self._read()  # Perhaps it is only that the feed was not read since.
            late = {job_id for job_id in late if (it := self._channels.get(job_id)) and found[job_id] > it.version}
            await self._tell_jobs(late, late)
        for job_id in (asked - found.keys()) & self._channels.keys():
            self._push(self._channels[job_id], Event("gone", {"id": job_id}))

    async def _prune(self) -> None:
        now = self._clock.monotonic()
        if now >= self._prune_at:
            await self._store.feed.prune()
            self._prune_at = now + PRUNE_EVERY_S * (0.5 + self._clock.chance.random())

    def _push(self, channel: _Channel, event: Event) -> None:
        for follower in channel.followers:
            follower.push(event)

    def _told(self, change: Change, cursor: str) -> Event:
        job = change.job
        before = self._states.get(job.id)
        kind = "done" if job.status.is_final else "progress" if before == (job.status, job.attempt) else "status"
        if job.status.is_final:
            self._states.pop(job.id, None)
        else:
            self._states[job.id] = (job.status, job.attempt)
            if len(self._states) > STATES_MAX:
                self._states.popitem(last=False)
        return Event(kind, change_shape(job, self._clock.now()), id=cursor)


def change_shape(job: Job, now: int) -> dict[str, Any]:
    """Write what the feed has of a job."""
    shape = job_shape(job, now)
    return {name: shape[name] for name in _FED}


def job_event(kind: str, job: Job, now: int) -> Event:
    """Tell a whole job. Where its error came from is not for everybody."""
    shape = job_shape(job, now)
    if shape["error"] is not None:
        shape["error"].pop("traceback", None)
    return Event(kind, shape, id=str(job.version), version=job.version)


def log_event(lines: list[Line], place: str | None, version: int) -> Event:
    """Tell what a job has logged."""
    told = [
        {"seq": line.seq, "at": stamp(line.at), "attempt": line.attempt, "stream": line.stream, "line": line.line}
        for line in lines
    ]
    return Event("log", {"lines": told}, id=place, version=version)
