"""The hub: one reader of the feed per process, and everybody who follows.

However many follow a job, its changes are read once and written as bytes once. A follower that does not keep up is
dropped, not waited for; it comes back and is told what it missed, or to read everything anew (`resync`).

Followers of one job get its versions in order, by number. The feed tells them at once; every second the versions that
the jobs really have are looked at too, so that a change which the feed could not have (one that was under way when the
first follower came) is missed by nobody.

Where jobs also say live what they do (`ports.LiveView`), that is told between the versions: without a number of its
own, so that whoever comes back goes on from a version as ever, and no oftener than all who follow can be told it. What
is told of a version is never older than what was told live before. Lines that were told live are not told again when
they are stored; a follower that may have missed one waits for the store to tell it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from headway.core.clock import Clock
from headway.core.errors import StoreError
from headway.core.instants import SECOND, Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.ports import Latest, LiveView
from headway.server.job_reader import length_of, overlaid, serial_of
from headway.server.offload import Offload
from headway.store import Store
from headway.store.feed import EVERYTHING, Change, Line, all_before, low_of
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.jobs import change_of, job_of, line_of, listed

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
LIVE_EVERY_S: Final = 0.025
LIVE_PER_SECOND_MAX: Final = 10_000  # To all followers together.
LIVE_BYTES_PER_SECOND_MAX: Final = 128 << 10  # Of one job; who says more at a time is told more rarely.
LIVE_LINES_MAX: Final = 200
AGAIN_BYTES_MAX: Final = 4 << 20  # Of what a follower of everything has missed; of more, it reads everything anew.
BREATH_BYTES: Final = 64 << 10
EVENT_BYTES: Final = 512
STRANGERS_MAX: Final = 500


class Place(NamedTuple):
    """Up to where a follower has been told: a version of the job, and a line of its log if that was told live."""

    version: int
    attempt: int = 0
    at: Instant = 0

    def __str__(self) -> str:
        return f"{self.version}.{self.attempt}.{self.at}" if self.at else str(self.version)


class Event:
    """Something to tell followers: its kind, its place in the order, and the words, written once for everybody."""

    __slots__ = ("data", "id", "kind", "live", "sse", "version")

    def __init__(self, kind: str, data: Any, *, id: str | None = None, version: int = 0, live: int = 0) -> None:
        self.kind = kind
        self.id = id
        self.version = version
        self.live = live
        self.data = data if isinstance(data, bytes) else msgspec.json.encode(data)
        place = b"" if id is None else b"id: " + id.encode() + b"\n"
        self.sse = b"event: " + kind.encode() + b"\n" + place + b"data: " + self.data + b"\n\n"

    def at(self, place: str) -> "Event":
        """Return the same event with another place; its words are not written again."""
        return self if place == self.id else Event(self.kind, self.data, id=place, version=self.version, live=self.live)

    def message(self) -> bytes:
        """Write the event for a WebSocket."""
        return msgspec.json.encode({"event": self.kind, "id": self.id, "data": msgspec.Raw(self.data)})


class Follower:
    """One open connection: what it has not been sent yet. Bounded."""

    __slots__ = ("_bytes", "_events", "floor", "is_dropped", "is_live", "is_ready", "job_id", "line", "wake", "wants")

    def __init__(self, job_id: str | None = None, wants: Callable[[Job], bool] | None = None) -> None:
        self.job_id = job_id
        self.wants = wants
        self.floor = (0, 0)  # What it knows already: up to this version, and this report of a running job.
        self.line: tuple[int, Instant] = (0, 0)  # The attempt and time of the last line that it was told,
        self.is_live = False  # and whether that was told live.
        self.is_ready = False  # Whether it has been told what came before, so that lines can be told live.
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
        events = [event for event in self._events if not event.version or (event.version, event.live) > self.floor]
        self._events.clear()
        self._bytes = 0
        return events


@dataclass(slots=True)
class _Tail:
    """The last lines that an attempt has logged, as they were told live; none between them is missing."""

    attempt: int = 0
    after: Instant = 0
    lines: deque[tuple[Instant, str, str]] = field(default_factory=deque)

    def add(self, latest: Latest) -> None:
        """Take lines; after a gap only what comes after it."""
        end = self.lines[-1][0] if self.lines else self.after
        if latest.attempt != self.attempt or latest.after > end:
            self.attempt, self.after, end = latest.attempt, latest.after, latest.after
            self.lines.clear()
        self.lines.extend(line for line in latest.lines if line[0] > end)
        while len(self.lines) > LIVE_LINES_MAX:
            self.after = self.lines.popleft()[0]

    def since(self, line: tuple[int, Instant]) -> list[Line]:
        """Return the lines after one that was told; none when some may be missing between."""
        at = line[1] if line[0] == self.attempt else 0
        if line[0] > self.attempt or self.after > at:
            return []
        return [
            Line(seq=0, attempt=self.attempt, at=one[0], stream=one[1], line=one[2], version=0)
            for one in self.lines
            if one[0] > at
        ]


@dataclass(slots=True)
class _Channel:
    """A job that is followed, as its followers know it."""

    version: int = 0
    status: str = ""
    attempt: int = 0
    log_bytes: int = 0
    followers: set[Follower] = field(default_factory=set)
    job: Job | None = None
    live: Latest | None = None
    tail: _Tail = field(default_factory=_Tail)
    told: tuple[int, int] = (0, 0)  # The version and the report that were told last.
    told_at: float = -1e9
    timer: asyncio.TimerHandle | None = None

    def learn(self, job: Job) -> Job:
        """Take note of a version of the job, unless a later one is known; return it as it is to be told."""
        if job.version > self.version:
            self.version, self.status, self.attempt = job.version, job.status, job.attempt
            self.job = job
        shown = overlaid(job, self.live)
        self.told = max(self.told, (job.version, serial_of(shown)))
        return shown

    def hear(self, latest: Latest) -> None:
        """Take note of what the job says live, unless it is older than what is known, or of an attempt that is not."""
        known = self.live
        if known is not None and known.attempt == self.attempt and latest.attempt != self.attempt:
            return
        if known is None or latest.attempt != known.attempt or latest.serial > known.serial:
            self.live = latest
        if latest.lines and latest.attempt >= self.tail.attempt:
            self.tail.add(latest)

    def to_tell(self, lines: list[Line]) -> Iterator[tuple[list[Follower], list[Line], str]]:
        """Yield followers with those of the stored lines that they were not told live, and the place where that is.

        Most of the time they are one group.
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
            yield group, new, str(Place(self.version, *told) if is_live else Place(self.version))


class Hub:
    """Who follows what in this process. Its tick is run by a `Loop`, which is woken when the feed grows."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        live: LiveView | None = None,
        offload: Offload | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._offload = offload or Offload()
        self._clock = clock
        self._live = live
        self._heard: set[str] = set()  # Jobs whose live values come, and EVERYTHING.
        self._bases: OrderedDict[str, tuple[Job, Latest | None]] = OrderedDict()  # Running jobs, for who follows all.
        self._strangers: dict[str, Latest] = {}  # What was said of jobs that we have not read yet.
        self._channels: dict[str, _Channel] = {}
        self._everything: set[Follower] = set()
        self._count = 0
        self._states: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._position: str | None = None
        self._since = 0
        self._extend_at = self._sweep_at = self._prune_at = 0.0
        self._reading = asyncio.Lock()
        self._written = 0  # Bytes, since others could go on.
        self._telling: set[asyncio.Task[None]] = set()
        self.wake = wake
        self.is_woken = True  # Whether commits of others wake us; said by whoever listens.
        if live is not None:
            live.listen(self.hear)

    # --- who follows

    def count(self) -> int:
        """How many follow."""
        return self._count

    async def follow_job(self, job_id: str) -> Follower:
        """Start to follow a job; from now on its changes are kept for the follower."""
        follower = Follower(job_id)
        channel = self._channels.setdefault(job_id, _Channel())
        channel.followers.add(follower)
        self._count += 1
        try:
            if len(channel.followers) == 1:
                await self._store.feed.follow([job_id], FOLLOW_FOR)
            await self._begin()
            if not channel.version:
                for job in await self._store.feed.jobs([job_id], largest=LISTED_BYTES_MAX):
                    channel.learn(job)
            await self._begin_to_hear(job_id)
        except BaseException:
            self.leave(follower)
            raise
        return follower

    async def follow_everything(self, wants: Callable[[Job], bool]) -> tuple[Follower, str]:
        """Start to follow all jobs that somebody wants; return where in the feed it begins."""
        follower = Follower(wants=wants)
        self._everything.add(follower)
        self._count += 1
        try:
            fed = await self._store.feed.follow([EVERYTHING], FOLLOW_FOR)
            is_anew = self._feeds_anew(fed[EVERYTHING], follower)
            await self._begin()
            if is_anew:
                await self._wait_for_older()
            await self._begin_to_hear(EVERYTHING)
        except BaseException:
            self.leave(follower)
            raise
        return follower, self.cursor()

    async def _begin_to_hear(self, what: str) -> None:
        """See to it that live values of a job, or of everything, come. Of several who come at once, all see to it."""
        if self._live is not None and what not in self._heard:
            await self._live.follow(what)
            self._heard.add(what)

    def leave(self, follower: Follower) -> None:
        """Follow no more."""
        job_id = follower.job_id or ""
        channel = self._channels.get(job_id)
        if channel is not None and follower in channel.followers:
            channel.followers.remove(follower)
            self._count -= 1
            if not channel.followers:
                del self._channels[job_id]
                if channel.timer is not None:
                    channel.timer.cancel()
                if self._live is not None:
                    self._heard.discard(job_id)
                    self._live.leave(job_id)
        if follower in self._everything:
            self._everything.remove(follower)
            self._count -= 1
            if self._live is not None and not self._everything:
                self._heard.discard(EVERYTHING)
                self._live.leave(EVERYTHING)
                self._bases.clear()
                self._strangers.clear()

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
        if since != str(self._since) or not low.isdecimal() or len(low) > 18:
            return None
        changes = await self._store.feed.again(int(low))
        if changes is None:
            return None
        wanted = [change.job for change in changes if wants(change.job)]
        if sum(length_of(job) for job in wanted) > AGAIN_BYTES_MAX:
            return None
        told = []
        for job in wanted:
            told.append(self._told_job(job, cursor))
            await self._breathe(job)
        return told

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
        if self._strangers:
            await self._meet_strangers()
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
        if since is not None:
            self._feeds_anew(since)

    def _feeds_anew(self, since: Instant, newcomer: Follower | None = None) -> bool:
        """Say whether everything is fed since another time than we knew; then those who followed before missed some.

        That is so when nobody followed, or when we stood still for so long that there was a break.
        """
        if since == self._since:
            return False
        self._since = since
        for follower in self._everything:
            if follower is not newcomer:
                follower.push(Event("resync", {}, id=self.cursor()))
        return True

    async def _read(self) -> bool:
        async with self._reading:
            if self._position is None:
                return False
            cursor = self.cursor()
            changes, self._position, is_more = await self._store.feed.read(self._position)
            await self._tell(changes, cursor)
            return is_more

    async def _tell(self, changes: Sequence[Change], cursor: str) -> None:
        if self._everything:  # First: they are told nothing a second time, also where the store fails below.
            for change in changes:
                self._tell_everybody(self._told(change, cursor), change.job)
                await self._breathe(change.job)
        ended: set[str] = set()
        gaps: set[str] = set()
        for change in changes:
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

    async def _breathe(self, job: Job) -> None:
        """Let others go on after each so many bytes that were written."""
        self._written += length_of(job) + EVENT_BYTES
        if self._written > BREATH_BYTES:
            self._written = 0
            await self._clock.yield_to_loop()

    async def _tell_change(self, channel: _Channel, change: Change) -> None:
        job = change.job
        kind = "progress" if (channel.status, channel.attempt) == (job.status, job.attempt) else "status"
        lines = []
        if change.log_bytes > channel.log_bytes:  # Lines of later versions are told with those versions.
            lines = await self._store.feed.log_between(job.id, channel.version, job.version)
        shown = channel.learn(job)
        channel.log_bytes = change.log_bytes
        data = msgspec.json.encode(change_of(shown, self._clock.now()))
        for followers, new, place in channel.to_tell(lines):
            event = Event(kind, data, id=None if new else place, version=job.version, live=serial_of(shown))
            _push(followers, [event, log_event(new, place, job.version)] if new else [event])
        self._tell_live_soon(channel)

    async def _tell_jobs(self, job_ids: set[str], gaps: set[str]) -> None:
        """Tell jobs as they are now, whole: they have ended, or a version of them was not fed."""
        for job in await self._store.feed.jobs(job_ids, largest=LISTED_BYTES_MAX):
            channel = self._channels.get(job.id)
            if channel is None or job.version <= channel.version:
                continue
            lines = await self._store.feed.log_between(job.id, channel.version, job.version)
            is_gap = job.id in gaps and not job.status.is_final
            kind = "done" if job.status.is_final else "resync" if is_gap else "status"
            shown = channel.learn(job)
            groups = list(channel.to_tell(lines))
            for followers, new, _ in groups:
                _push(followers, [log_event(new, None, job.version)] if new else [])
            told = [(followers, place) for followers, _, place in groups]
            if job.status.is_final and "result" in job.omitted:
                task = asyncio.ensure_future(self._tell_large(job, told))  # The others are told meanwhile.
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
                continue
            event = job_event(kind, shown, self._clock.now())
            for followers, place in told:
                _push(followers, [event.at(place)])
            self._tell_live_soon(channel)
            await self._breathe(job)

    async def _tell_large(self, job: Job, told: Iterable[tuple[list[Follower], str]]) -> None:
        """Tell that a job has ended whose result is large. Who cannot be told comes back, and is told then."""
        try:
            async with self._offload.turn(job.tenant):
                event = await self.whole_event("done", job, self._clock.now())
        except (StoreError, RuntimeError):  # The store does not answer, or the thread is gone with the process.
            event = None
        for followers, place in told:
            for follower in followers:
                if event is None:
                    follower.is_dropped = True
                    follower.wake.set()
                else:
                    follower.push(event.at(place))

    async def whole_event(self, kind: str, job: Job, now: Instant) -> Event:
        """Tell a job that has ended, with its result however large that is; what is large is written in a thread."""
        if "result" not in job.omitted:
            return job_event(kind, job, now)
        for found in await self._store.feed.jobs([job.id]):
            job = listed(found, parts=("args",))
        return await self._offload.run(length_of(job), job_event, kind, job, now)

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
            _push(self._channels[job_id].followers, [Event("gone", {"id": job_id})])

    async def _prune(self) -> None:
        now = self._clock.monotonic()
        if now >= self._prune_at:
            await self._store.feed.prune()
            self._prune_at = now + PRUNE_EVERY_S * (0.5 + self._clock.chance.random())

    def _told(self, change: Change, cursor: str) -> Event:
        job = change.job
        if self._live is not None and self._everything:
            job = self._keep_base(job)
        return self._told_job(job, cursor)

    def _told_job(self, job: Job, cursor: str | None) -> Event:
        before = self._states.get(job.id)
        kind = "done" if job.status.is_final else "progress" if before == (job.status, job.attempt) else "status"
        if job.status.is_final:
            self._states.pop(job.id, None)
        else:
            self._states[job.id] = (job.status, job.attempt)
            if len(self._states) > STATES_MAX:
                self._states.popitem(last=False)
        return Event(kind, change_of(job, self._clock.now()), id=cursor)

    # --- what jobs say live

    @property
    def tells_live(self) -> bool:
        """Whether there is anything to tell before it is stored."""
        return self._live is not None

    def overlaid(self, job: Job) -> Job:
        """Return a job that somebody follows with what it has said live, if that is newer."""
        channel = self._channels.get(job.id)
        return job if channel is None else overlaid(job, channel.live)

    def begin_live(self, follower: Follower, line: tuple[int, Instant], *, is_live: bool) -> None:
        """Tell a follower lines live from now on: those after this one, which was the last that it was told."""
        if line >= follower.line:
            follower.line, follower.is_live = line, is_live
        follower.is_ready = True
        channel = self._channels.get(follower.job_id or "")
        if channel is not None:
            self._tell_live_soon(channel)

    def hear(self, latest: Latest, is_of_everything: bool) -> None:
        """Take what a running job says. Whether it is still the attempt that counts is known from the store alone."""
        channel = None if is_of_everything else self._channels.get(latest.job_id)
        if channel is not None:
            channel.hear(latest)
            self._tell_live_soon(channel)
        elif is_of_everything and self._everything:
            self._hear_of_everything(latest)

    def _tell_live_soon(self, channel: _Channel) -> None:
        if self._live is None or channel.timer is not None:
            return
        size = 0 if channel.live is None else len(channel.live.metadata or "") + len(channel.live.detail or "")
        every_s = max(LIVE_EVERY_S, self.count() / LIVE_PER_SECOND_MAX, size / LIVE_BYTES_PER_SECOND_MAX)
        rest_s = channel.told_at + every_s - self._clock.monotonic()
        if rest_s > 0:
            channel.timer = asyncio.get_running_loop().call_later(rest_s, self._tell_live, channel)
        else:
            self._tell_live(channel)

    def _tell_live(self, channel: _Channel) -> None:
        job, live, channel.timer = channel.job, channel.live, None
        if job is None or live is None:
            return
        if live.attempt > channel.attempt:
            self.wake()  # That it has begun is told first, when it is read from the store.
        if live.attempt != channel.attempt or channel.status != Status.RUNNING:
            return
        channel.told_at = self._clock.monotonic()
        shown = overlaid(job, live)
        if (job.version, serial_of(shown)) > channel.told:
            channel.told = (job.version, serial_of(shown))
            data = change_of(shown, self._clock.now())
            _push(channel.followers, [Event("progress", data, version=job.version, live=serial_of(shown))])
        if channel.tail.attempt == channel.attempt and channel.tail.lines:
            self._tell_tail(channel)

    def _tell_tail(self, channel: _Channel) -> None:
        end = channel.attempt, channel.tail.lines[-1][0]
        behind: dict[tuple[int, Instant], list[Follower]] = {}
        for follower in channel.followers:
            if follower.is_ready and follower.line < end:
                behind.setdefault(follower.line, []).append(follower)
        for line, followers in behind.items():
            if new := channel.tail.since(line):
                _push(followers, [log_event(new, str(Place(channel.version, *end)), 0)])
                for follower in followers:
                    follower.line, follower.is_live = end, True

    def _hear_of_everything(self, latest: Latest) -> None:
        base, known = self._bases.get(latest.job_id, (None, None))
        if base is None or base.attempt < latest.attempt:
            if len(self._strangers) < STRANGERS_MAX:
                self._strangers[latest.job_id] = latest
                self.wake()
        elif known is None or (known.attempt, known.serial) < (latest.attempt, latest.serial):
            self._bases[latest.job_id] = base, latest
            shown = overlaid(base, latest)
            if shown is not base:
                self._tell_everybody(self._told_job(shown, None), shown)

    def _keep_base(self, job: Job) -> Job:
        """Keep a running job to add to it what it says live; return it as it is to be told now."""
        _, latest = self._bases.pop(job.id, (None, None))
        if job.status is not Status.RUNNING:
            return job
        self._bases[job.id] = job, latest
        if len(self._bases) > STATES_MAX:
            self._bases.popitem(last=False)
        return overlaid(job, latest)

    async def _meet_strangers(self) -> None:
        """Read the jobs that somebody who follows everything has not heard of, and tell what they have said."""
        said, self._strangers = self._strangers, {}
        for job in await self._store.feed.jobs(said, largest=LISTED_BYTES_MAX):
            base = self._bases.get(job.id)
            if job.status is Status.RUNNING and (base is None or base[0].version < job.version):
                self._keep_base(job)
                if job.attempt == said[job.id].attempt:
                    self._hear_of_everything(said[job.id])

    def _tell_everybody(self, event: Event, job: Job) -> None:
        for follower in self._everything:
            if follower.wants is None or follower.wants(job):
                follower.push(event)


def _push(followers: Iterable[Follower], events: Iterable[Event]) -> None:
    for follower in followers:
        for event in events:
            follower.push(event)


def job_event(kind: str, job: Job, now: int) -> Event:
    """Tell a whole job. Where its error came from is not for everybody; large arguments are left out, and named."""
    told = job_of(job, now, with_traceback=False)
    return Event(kind, told, id=str(job.version), version=job.version, live=serial_of(job))


def log_event(lines: list[Line], place: str | None, version: int) -> Event:
    """Tell what a job has logged."""
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
    return Event("log", {"lines": told}, id=place, version=version)
