"""The fan-out: one reader of the change feed per process, for all followers.

Changes of a job are read once and encoded once, however many clients follow it. A follower that does not keep up is
dropped (backpressure); it reconnects and gets the events that it missed, or `resync`: read everything again.

Followers of one job get its versions in order, by number. The feed delivers them at once. Every second the current
versions of the followed jobs are read too, so that no follower misses a change that the feed could not contain (one
that was in progress when the first follower came).

If there are live values (`ports.LiveView`), they are sent between the versions. They have no number, so a client that
reconnects resumes from a version as usual, and they are sent only as often as all followers can receive them. An event
for a version is never older than the live values sent before it. Log lines that were sent live are not sent again when
they are stored; a follower that may have missed one waits until the store has it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import StoreError
from headway.core.feed import EVERYTHING, Change, ChangeFeed, all_before, low_of
from headway.core.instants import SECOND, Instant
from headway.core.jobs import Job
from headway.core.ports import Latest, LiveView
from headway.operations.job_source import length_of, overlaid, serial_of
from headway.server.followers import Channel, Follower, StreamEvent, job_event, log_event, push_to
from headway.server.live_fanout import LiveChannels, LiveJobCache
from headway.server.offload import ThreadOffload
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.jobs import change_of, listed

FOLLOW_FOR: Final = 15 * SECOND
EXTEND_EVERY_S: Final = 5.0
SWEEP_EVERY_S: Final = 1.0
PRUNE_EVERY_S: Final = 60.0
POLL_S: Final = 0.25  # Without wake-ups.
OLDER_S_MAX: Final = 2.0
STATES_MAX: Final = 20_000
FOLLOWERS_MAX: Final = 20_000
AGAIN_BYTES_MAX: Final = 4 << 20  # Replayed to a follower of everything; if it missed more, it gets `resync`.
BREATH_BYTES: Final = 64 << 10
EVENT_BYTES: Final = 512


class Fanout:
    """The followers of this process. A `Loop` runs `tick` and is woken when the feed grows."""

    def __init__(
        self,
        feed: ChangeFeed,
        clock: Clock,
        live: LiveView | None = None,
        offload: ThreadOffload | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._feed = feed
        self._offload = offload or ThreadOffload()
        self._clock = clock
        self._live = live
        self._heard: set[str] = set()  # Jobs with a live subscription, and EVERYTHING.
        self._live_jobs = LiveJobCache(feed, wake=wake)
        self._live_channels = LiveChannels(clock, count=self.count, wake=wake)
        self._channels: dict[str, Channel] = {}
        self._everything: set[Follower] = set()
        self._count = 0
        self._states: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._position: str | None = None
        self._since = 0
        self._extend_at = self._sweep_at = self._prune_at = 0.0
        self._reading = asyncio.Lock()
        self._written = 0  # Bytes encoded since the last yield to other coroutines.
        self._telling: set[asyncio.Task[None]] = set()
        self.wake = wake
        self.is_woken = True  # Whether commits of other processes wake us; set by the listener.
        if live is not None:
            live.listen(self.hear)

    # --- followers

    def count(self) -> int:
        """The number of followers."""
        return self._count

    async def follow_job(self, job_id: str) -> Follower:
        """Start to follow a job; from now on its changes are queued for the follower."""
        follower = Follower(job_id)
        channel = self._channels.setdefault(job_id, Channel())
        channel.followers.add(follower)
        self._count += 1
        try:
            if len(channel.followers) == 1:
                await self._feed.follow([job_id], FOLLOW_FOR)
            await self._begin()
            if not channel.version:
                for job in await self._feed.jobs([job_id], largest=LISTED_BYTES_MAX):
                    channel.learn(job)
            await self._begin_to_hear(job_id)
        except BaseException:
            self.leave(follower)
            raise
        return follower

    async def follow_everything(self, wants: Callable[[Job], bool]) -> tuple[Follower, str]:
        """Start to follow all jobs that match; return the feed cursor where it begins."""
        follower = Follower(wants=wants)
        self._everything.add(follower)
        self._count += 1
        try:
            fed = await self._feed.follow([EVERYTHING], FOLLOW_FOR)
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
        """Subscribe to live values of a job, or of everything. Concurrent callers each ensure it."""
        if self._live is not None and what not in self._heard:
            await self._live.follow(what)
            self._heard.add(what)

    def leave(self, follower: Follower) -> None:
        """Stop following."""
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
                self._live_jobs.clear()

    def wake_all(self) -> None:
        """Wake all followers, so that each checks whether to go on."""
        for follower in (*self._everything, *(one for channel in self._channels.values() for one in channel.followers)):
            follower.wake.set()

    def cursor(self) -> str:
        """Return the cursor from which a follower of everything can resume; it may get known events again."""
        return f"{self._since}.{low_of(self._position or '0')}"

    async def missed(self, cursor: str, wants: Callable[[Job], bool]) -> list[StreamEvent] | None:
        """Return what a follower of everything may have missed since its cursor; None if that is unknown."""
        since, _, low = cursor.partition(".")
        if since != str(self._since) or not low.isdecimal() or len(low) > 18:
            return None
        changes = await self._feed.again(int(low))
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
        """Set the position to read from, after the triggers know which jobs are followed."""
        if self._position is None:
            self._position = await self._feed.position()
        self.wake()

    async def _wait_for_older(self) -> None:
        """Wait, with a limit, for transactions older than the first follower: their changes are not in the feed."""
        until, nothing = self._clock.monotonic() + OLDER_S_MAX, asyncio.Event()
        border = all_before(await self._feed.position())
        while low_of(await self._feed.position()) < border and self._clock.monotonic() < until:
            await self._clock.rest(0.05, nothing)

    # --- the tick

    async def tick(self) -> float:
        """Read new changes and send them."""
        if not self._channels and not self._everything:
            self._position = None
            await self._prune()
            return EXTEND_EVERY_S
        now = self._clock.monotonic()
        if now >= self._extend_at:
            await self._extend()
            self._extend_at = now + EXTEND_EVERY_S
        is_more = await self._read()
        for job in await self._live_jobs.load_unknown():
            self._tell_everybody(self._told_job(job, None), job)
        if now >= self._sweep_at:
            await self._sweep()
            self._sweep_at = self._clock.monotonic() + SWEEP_EVERY_S
        await self._prune()
        if is_more:
            return 0.0
        return SWEEP_EVERY_S if self.is_woken else POLL_S

    async def _extend(self) -> None:
        scopes = [*self._channels, *([EVERYTHING] if self._everything else [])]
        since = (await self._feed.follow(scopes, FOLLOW_FOR)).get(EVERYTHING)
        if since is not None:
            self._feeds_anew(since)

    def _feeds_anew(self, since: Instant, newcomer: Follower | None = None) -> bool:
        """Return whether the feed of all jobs has a new start; earlier followers then missed changes and must resync.

        That happens when there were no followers, or when this process was frozen long enough to cause a gap.
        """
        if since == self._since:
            return False
        self._since = since
        for follower in self._everything:
            if follower is not newcomer:
                follower.push(StreamEvent("resync", {}, id=self.cursor()))
        return True

    async def _read(self) -> bool:
        async with self._reading:
            if self._position is None:
                return False
            cursor = self.cursor()
            changes, self._position, is_more = await self._feed.read(self._position)
            await self._tell(changes, cursor)
            return is_more

    async def _tell(self, changes: Sequence[Change], cursor: str) -> None:
        if self._everything:  # First, so that they get nothing twice even if the store fails below.
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
        """Yield to other coroutines each time enough bytes were encoded."""
        self._written += length_of(job) + EVENT_BYTES
        if self._written > BREATH_BYTES:
            self._written = 0
            await self._clock.yield_to_loop()

    async def _tell_change(self, channel: Channel, change: Change) -> None:
        job = change.job
        kind = "progress" if (channel.status, channel.attempt) == (job.status, job.attempt) else "status"
        lines = []
        if change.log_bytes > channel.log_bytes:  # Lines of later versions are sent with those versions.
            lines = await self._feed.log_between(job.id, channel.version, job.version)
        shown = channel.learn(job)
        channel.log_bytes = change.log_bytes
        data = msgspec.json.encode(change_of(shown, self._clock.now()))
        for followers, new, place in channel.to_tell(lines):
            event = StreamEvent(kind, data, id=None if new else place, version=job.version, live=serial_of(shown))
            push_to(followers, [event, log_event(new, place, job.version)] if new else [event])
        self._live_channels.tell_soon(channel)

    async def _tell_jobs(self, job_ids: set[str], gaps: set[str]) -> None:
        """Send the complete current jobs: they have ended, or the feed lacks one of their versions."""
        for job in await self._feed.jobs(job_ids, largest=LISTED_BYTES_MAX):
            channel = self._channels.get(job.id)
            if channel is None or job.version <= channel.version:
                continue
            lines = await self._feed.log_between(job.id, channel.version, job.version)
            is_gap = job.id in gaps and not job.status.is_final
            kind = "done" if job.status.is_final else "resync" if is_gap else "status"
            shown = channel.learn(job)
            groups = list(channel.to_tell(lines))
            for followers, new, _ in groups:
                push_to(followers, [log_event(new, None, job.version)] if new else [])
            told = [(followers, place) for followers, _, place in groups]
            if job.status.is_final and "result" in job.omitted:
                task = asyncio.ensure_future(self._tell_large(job, told))  # Meanwhile the other jobs are sent.
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
                continue
            event = job_event(kind, shown, self._clock.now())
            for followers, place in told:
                push_to(followers, [event.at(place)])
            self._live_channels.tell_soon(channel)
            await self._breathe(job)

    async def _tell_large(self, job: Job, told: Iterable[tuple[list[Follower], str]]) -> None:
        """Send the end of a job with a large result. A follower that misses it reconnects and gets it then."""
        try:
            async with self._offload.turn(job.tenant):
                event = await self.whole_event("done", job, self._clock.now())
        except (StoreError, RuntimeError):  # The store does not answer, or the process is shutting down.
            event = None
        for followers, place in told:
            for follower in followers:
                if event is None:
                    follower.is_dropped = True
                    follower.wake.set()
                else:
                    follower.push(event.at(place))

    async def whole_event(self, kind: str, job: Job, now: Instant) -> StreamEvent:
        """Send a finished job with its complete result; a thread encodes a large one."""
        if "result" not in job.omitted:
            return job_event(kind, job, now)
        for found in await self._feed.jobs([job.id]):
            job = listed(found, parts=("args",))
        return await self._offload.run(length_of(job), job_event, kind, job, now)

    async def _sweep(self) -> None:
        """Check whether followed jobs have versions that the feed did not deliver."""
        if not self._channels:
            return
        asked = frozenset(self._channels)  # New followers may come during the read.
        found = await self._feed.versions(asked)
        late = {
            job_id for job_id, version in found.items() if (it := self._channels.get(job_id)) and version > it.version
        }
        if late:
            await self._read()  # Perhaps the feed was just not read since.
            late = {job_id for job_id in late if (it := self._channels.get(job_id)) and found[job_id] > it.version}
            await self._tell_jobs(late, late)
        for job_id in (asked - found.keys()) & self._channels.keys():
            push_to(self._channels[job_id].followers, [StreamEvent("gone", {"id": job_id})])

    async def _prune(self) -> None:
        now = self._clock.monotonic()
        if now >= self._prune_at:
            await self._feed.prune()
            self._prune_at = now + PRUNE_EVERY_S * (0.5 + self._clock.chance.random())

    def _told(self, change: Change, cursor: str) -> StreamEvent:
        job = change.job
        if self._live is not None and self._everything:
            job = self._live_jobs.keep(job)
        return self._told_job(job, cursor)

    def _told_job(self, job: Job, cursor: str | None) -> StreamEvent:
        before = self._states.get(job.id)
        kind = "done" if job.status.is_final else "progress" if before == (job.status, job.attempt) else "status"
        if job.status.is_final:
            self._states.pop(job.id, None)
        else:
            self._states[job.id] = (job.status, job.attempt)
            if len(self._states) > STATES_MAX:
                self._states.popitem(last=False)
        return StreamEvent(kind, change_of(job, self._clock.now()), id=cursor)

    # --- live values

    @property
    def tells_live(self) -> bool:
        """Whether there are live values."""
        return self._live is not None

    def overlaid(self, job: Job) -> Job:
        """Return a followed job with its live values, if they are newer."""
        channel = self._channels.get(job.id)
        return job if channel is None else overlaid(job, channel.live)

    def begin_live(self, follower: Follower, line: tuple[int, Instant], *, is_live: bool) -> None:
        """Send live lines to a follower from now on, starting after this line, the last one that it got."""
        if line >= follower.line:
            follower.line, follower.is_live = line, is_live
        follower.is_ready = True
        channel = self._channels.get(follower.job_id or "")
        if channel is not None:
            self._live_channels.tell_soon(channel)

    def hear(self, latest: Latest, is_of_everything: bool) -> None:
        """Handle a live value of a running job. Only the store knows whether it is from the current attempt."""
        channel = None if is_of_everything else self._channels.get(latest.job_id)
        if channel is not None:
            channel.hear(latest)
            self._live_channels.tell_soon(channel)
        elif is_of_everything and self._everything:
            shown = self._live_jobs.hear(latest)
            if shown is not None:
                self._tell_everybody(self._told_job(shown, None), shown)

    def _tell_everybody(self, event: StreamEvent, job: Job) -> None:
        for follower in self._everything:
            if follower.wants is None or follower.wants(job):
                follower.push(event)
