"""Send live values of running jobs to followers, between the stored versions.

Live values have no number of their own. A follower that reconnects resumes from a version, as usual.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.core.feed import ChangeFeed
from headway.core.instants import Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.ports import Latest
from headway.operations.job_source import overlaid, serial_of
from headway.server.followers import Channel, Follower, StreamEvent, StreamPosition, log_event, push_to
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.jobs import change_of

LIVE_EVERY_S: Final = 0.025
LIVE_PER_SECOND_MAX: Final = 10_000  # For all followers together.
LIVE_BYTES_PER_SECOND_MAX: Final = 128 << 10  # For one job; a job with larger values is sent less often.
JOBS_MAX: Final = 20_000
UNKNOWN_MAX: Final = 500


class LiveChannels:
    """Sends to the followers of single jobs; `wake` triggers a read of the store, `count` returns all followers."""

    def __init__(self, clock: Clock, *, count: Callable[[], int], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._count = count
        self._wake = wake

    def tell_soon(self, channel: Channel) -> None:
        """Send the followers of a job its latest live value, as often as the rate limits allow."""
        if channel.timer is not None or channel.live is None:
            return
        size = len(channel.live.metadata or "") + len(channel.live.detail or "")
        every_s = max(LIVE_EVERY_S, self._count() / LIVE_PER_SECOND_MAX, size / LIVE_BYTES_PER_SECOND_MAX)
        rest_s = channel.told_at + every_s - self._clock.monotonic()
        if rest_s > 0:
            channel.timer = asyncio.get_running_loop().call_later(rest_s, self._tell, channel)
        else:
            self._tell(channel)

    def _tell(self, channel: Channel) -> None:
        job, live, channel.timer = channel.job, channel.live, None
        if job is None or live is None:
            return
        if live.attempt > channel.attempt:
            self._wake()  # The start of the attempt is sent first, once it is read from the store.
        if live.attempt != channel.attempt or channel.status != Status.RUNNING:
            return
        channel.told_at = self._clock.monotonic()
        shown = overlaid(job, live)
        if (job.version, serial_of(shown)) > channel.told:
            channel.told = (job.version, serial_of(shown))
            data = change_of(shown, self._clock.now())
            push_to(channel.followers, [StreamEvent("progress", data, version=job.version, live=serial_of(shown))])
        if channel.tail.attempt == channel.attempt and channel.tail.lines:
            _tell_tail(channel)


def _tell_tail(channel: Channel) -> None:
    """Send each follower the log lines that it has not got yet."""
    end = channel.attempt, channel.tail.lines[-1][0]
    behind: dict[tuple[int, Instant], list[Follower]] = {}
    for follower in channel.followers:
        if follower.is_ready and follower.line < end:
            behind.setdefault(follower.line, []).append(follower)
    for line, followers in behind.items():
        if new := channel.tail.since(line):
            push_to(followers, [log_event(new, str(StreamPosition(channel.version, *end)), 0)])
            for follower in followers:
                follower.line, follower.is_live = end, True


class LiveJobCache:
    """A bounded cache of running jobs with live values, for followers of everything."""

    def __init__(self, feed: ChangeFeed, *, wake: Callable[[], None]) -> None:
        self._feed = feed
        self._wake = wake
        self._known: OrderedDict[str, tuple[Job, Latest | None]] = OrderedDict()
        self._unknown: dict[str, Latest] = {}  # Live values of jobs that are not cached yet.

    def hear(self, latest: Latest) -> Job | None:
        """Handle a live value; return the job to send to followers, if there is anything new."""
        job, before = self._known.get(latest.job_id, (None, None))
        if job is None or job.attempt < latest.attempt:
            if len(self._unknown) < UNKNOWN_MAX:
                self._unknown[latest.job_id] = latest
                self._wake()
            return None
        if before is not None and (before.attempt, before.serial) >= (latest.attempt, latest.serial):
            return None
        self._known[latest.job_id] = job, latest
        shown = overlaid(job, latest)
        return None if shown is job else shown

    def keep(self, job: Job) -> Job:
        """Cache a running job; return it with its live values."""
        _, latest = self._known.pop(job.id, (None, None))
        if job.status is not Status.RUNNING:
            return job
        self._known[job.id] = job, latest
        if len(self._known) > JOBS_MAX:
            self._known.popitem(last=False)
        return overlaid(job, latest)

    async def load_unknown(self) -> list[Job]:
        """Load jobs seen on the live channel that are not cached yet; return those with something to send."""
        said, self._unknown = self._unknown, {}
        found = []
        for job in await self._feed.jobs(said, largest=LISTED_BYTES_MAX) if said else ():
            known = self._known.get(job.id)
            if job.status is Status.RUNNING and (known is None or known[0].version < job.version):
                self.keep(job)
                if job.attempt == said[job.id].attempt and (shown := self.hear(said[job.id])) is not None:
                    found.append(shown)
        return found

    def clear(self) -> None:
        """Clear the cache: there are no more followers of everything."""
        self._known.clear()
        self._unknown.clear()
