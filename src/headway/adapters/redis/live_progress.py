"""Live values on Redis: progress of running attempts reaches readers before the store has it.

    {headway:}live:JOB    the latest value of a running attempt with its last log lines; it has a TTL
                          and the channel of the same name, which carries each new value with its new lines
    {headway:}live:*      the channel for followers of everything: all new values of a node, twice a second

A worker publishes the first value of a job at once, and then the latest one at a limited rate: forty times a second
with subscribers, four times without. Values are sent in batches of up to a hundred per script, so that their number
costs little. A value that cannot be sent within a second is dropped; the worker writes to the store as if there were no
Redis, and checks every second whether it is back. Subscribers do the same.

Live values are never trusted by themselves. Readers compare them with the job in the store: see
`operations/job_reader.py`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headway.core.clock import Clock, cancel_until_done
from headway.core.errors import InvalidConfig
from headway.core.events import EngineLost, EngineReturned, emit
from headway.core.instants import Instant
from headway.core.ports import Latest

try:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub
    from redis.exceptions import RedisError

    from headway.adapters.redis.client import clients_of, in_words, key_prefix, read_address
except ImportError as error:
    raise InvalidConfig("HEADWAY_REDIS needs a client: pip install 'headway[redis]'") from error

NAME: Final = "redis"
EVERYTHING: Final = "*"
TELL_EVERY_S: Final = 0.025
UNHEARD_EVERY_S: Final = 0.25
TOGETHER_S: Final = 0.005  # Values within this time are sent together.
DIGEST_EVERY_S: Final = 0.5
DIGEST_MAX: Final = 1_000
LISTENERS_EVERY_S: Final = 2.0
KEPT_S: Final = 30
BATCH_MAX: Final = 250
PER_SECOND_MAX: Final = 20_000  # Limit of values per node; a flood must not block its event loop.
LINES_MAX: Final = 200
TAIL_MAX: Final = 100
TAIL_BYTES_MAX: Final = 8_192
ANSWER_S_MAX: Final = 1.0
CONNECTIONS_MAX: Final = 8
MOMENT_S: Final = 0.25
AGAIN_S: Final = 1.0
QUIET_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 4 << 20

_TELL: Final = """
local heard = {}
for index, key in ipairs(KEYS) do
  local value, news = ARGV[2 * index], ARGV[2 * index + 1]
  redis.call('set', key, value, 'ex', ARGV[1])
  heard[index] = redis.call('publish', key, news == '' and value or news)
end
return heard
"""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[Latest]).decode


class _Link:
    """A Redis connection to the endpoint that answers, and its state."""

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        address = read_address(url)
        self._prefix = key_prefix(address) + "live:"
        self._clients = clients_of(address, node=node, answer_s=ANSWER_S_MAX, connections=CONNECTIONS_MAX)
        self._at = 0
        self._clock = clock
        self.trouble: str | None = None
        self.changed: Callable[[], None] = _nobody

    def key(self, job_id: str) -> str:
        """Return the key and channel of a job."""
        return self._prefix + job_id

    def job_of(self, key: bytes) -> str:
        """Return the job id of a channel."""
        return key.decode().removeprefix(self._prefix)

    @property
    def client(self) -> Redis:
        """The client of the endpoint that is in use."""
        return self._clients[self._at]

    def lost(self, error: BaseException) -> None:
        """Note that Redis is unavailable; use the next endpoint from now on."""
        self._at = (self._at + 1) % len(self._clients)
        before, self.trouble = self.trouble, in_words(error, answer_s=ANSWER_S_MAX)
        if before is None:
            emit(EngineLost(node=self._clock.node, engine=f"{NAME} (live)", error=self.trouble, falls_back=True))
            self.changed()

    def returned(self) -> None:
        """Note that Redis works."""
        if self.trouble is not None:
            self.trouble = None
            emit(EngineReturned(node=self._clock.node, engine=f"{NAME} (live)"))
            self.changed()

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            await client.aclose()


@dataclass(slots=True)
class _Speaker:
    """A running attempt: its latest values, and those not published yet."""

    latest: Latest
    next_at: float = 0.0
    after: Instant = 0
    lines: list[tuple[Instant, str, str]] = field(default_factory=list)
    is_cut: bool = False  # More lines came than are sent at once; followers get the rest from the store.
    tail_after: Instant = 0
    tail: deque[tuple[Instant, str, str]] = field(default_factory=deque)
    tail_bytes: int = 0

    def hear(self, latest: Latest) -> None:
        """Take a new report of the attempt."""
        self.latest = latest
        if not latest.lines:
            return
        if not self.lines:
            self.after = latest.after
        room = LINES_MAX - len(self.lines)
        if not self.is_cut:
            self.lines += latest.lines[:room]
            self.is_cut = len(latest.lines) > room
        for line in latest.lines[-TAIL_MAX:]:
            self.tail.append(line)
            self.tail_bytes += len(line[2])
        if len(latest.lines) > TAIL_MAX:
            self.tail_after = latest.lines[-TAIL_MAX - 1][0]
        while len(self.tail) > TAIL_MAX or self.tail_bytes > TAIL_BYTES_MAX:
            self.tail_after, _, text = self.tail.popleft()
            self.tail_bytes -= len(text)

    def words(self) -> tuple[bytes, bytes]:
        """Return the value to keep for later readers, and the one to publish if it differs; mark both as sent."""
        value = _encode([_with_lines(self.latest, self.tail_after, self.tail)])
        is_same = len(self.lines) == len(self.tail)
        news = b"" if is_same else _encode([_with_lines(self.latest, self.after, self.lines)])
        self.lines, self.is_cut = [], False
        return value, news


def _with_lines(latest: Latest, after: Instant, lines: Collection[tuple[Instant, str, str]]) -> Latest:
    if not lines and not latest.lines:
        return latest
    return msgspec.structs.replace(latest, after=after, lines=tuple(lines))


class RedisLive:
    """The publisher in a worker. The port `Live` documents its methods."""

    name: Final = NAME

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        self._link = _Link(url, clock=clock, node=node)
        self._clock = clock
        self._speakers: dict[str, _Speaker] = {}
        self._waiting: dict[str, _Speaker] = {}
        self._digest: dict[str, Latest] = {}
        self._is_watched = False  # Whether the channel of everything has subscribers.
        self._digest_at = 0.0
        self._wake = asyncio.Event()
        self._may_tell: Callable[[str, int], bool] = lambda _job_id, _attempt: True
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """The reason if nothing can be published."""
        return self._link.trouble

    def begin(self, may_tell: Callable[[str, int], bool], changed: Callable[[], None]) -> None:
        """Start to publish."""
        self._may_tell, self._link.changed = may_tell, changed
        self._task = asyncio.ensure_future(self._run())

    def tell(self, latest: Latest) -> None:
        """Queue a report for publishing."""
        speaker = self._speakers.get(latest.job_id)
        if speaker is None or speaker.latest.attempt != latest.attempt:
            speaker = self._speakers[latest.job_id] = _Speaker(latest)
        speaker.hear(latest)
        if latest.job_id not in self._waiting or speaker.next_at <= self._clock.monotonic():
            self._wake.set()
        self._waiting[latest.job_id] = speaker

    def waiting(self) -> int:
        """The number of jobs with unpublished values."""
        return len(self._waiting)

    def forget(self, job_id: str) -> None:
        """Publish nothing more of this job."""
        self._speakers.pop(job_id, None)
        self._waiting.pop(job_id, None)
        self._digest.pop(job_id, None)

    async def close(self) -> None:
        """Stop telling."""
        if self._task is not None:
            await cancel_until_done(self._task)
        await self._link.close()

    async def _run(self) -> None:
        nothing = asyncio.Event()
        while True:
            try:
                rest_s = await self._round()
            except (RedisError, OSError, TimeoutError) as error:
                self._link.lost(error)
                await self._clock.rest(AGAIN_S, nothing)
                continue
            await self._clock.rest(rest_s, nothing)
            due_at = min([self._digest_at, *(speaker.next_at for speaker in self._waiting.values())])
            await self._clock.rest(max(0.0, due_at - self._clock.monotonic()), self._wake)
            self._wake.clear()

    async def _round(self) -> float:
        """Publish due values; return the seconds until the next tick. Without values, check that Redis answers."""
        now = self._clock.monotonic()
        due = [speaker for speaker in self._waiting.values() if speaker.next_at <= now]
        if self._link.trouble is not None or now >= self._digest_at:
            await self._tell_everything(now)
        for start in range(0, len(due), BATCH_MAX):
            await self._tell(due[start : start + BATCH_MAX])
        self._link.returned()
        return max(TOGETHER_S, len(due) / PER_SECOND_MAX)

    async def _tell(self, speakers: Sequence[_Speaker]) -> None:
        mine = [it for it in speakers if self._may_tell(it.latest.job_id, it.latest.attempt)]
        for speaker in speakers:
            self._waiting.pop(speaker.latest.job_id, None)
        if not mine:
            return
        keys = [self._link.key(speaker.latest.job_id) for speaker in mine]
        arguments = [part for speaker in mine for part in speaker.words()]
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                heard = await self._link.client.eval(_TELL, len(keys), *keys, KEPT_S, *arguments)
        except BaseException:
            for speaker in mine:  # Unless they have ended meanwhile; the store has their lines.
                if self._speakers.get(speaker.latest.job_id) is speaker:
                    self._waiting[speaker.latest.job_id] = speaker
            raise
        now = self._clock.monotonic()
        for speaker, listeners in zip(mine, heard, strict=True):
            speaker.next_at = now + (TELL_EVERY_S if listeners else UNHEARD_EVERY_S)
            if self._is_watched:
                self._digest[speaker.latest.job_id] = speaker.latest

    async def _tell_everything(self, now: float) -> None:
        """Publish new values to followers of everything, and note whether there are any."""
        told = [self._digest.pop(job_id) for job_id in list(self._digest)[:DIGEST_MAX]]
        message = _encode([_with_lines(latest, 0, ()) for latest in told])
        async with asyncio.timeout(ANSWER_S_MAX):
            if self._link.trouble is not None:  # A full Redis still allows publishing.
                await self._link.client.set(self._link.key("?"), b"", ex=1)
            self._is_watched = bool(await self._link.client.publish(self._link.key(EVERYTHING), message))
        self._digest_at = now + (DIGEST_EVERY_S if self._is_watched else LISTENERS_EVERY_S)
        if not self._is_watched:
            self._digest.clear()


class RedisView:
    """The subscriber. The port `LiveView` documents its methods."""

    name: Final = NAME

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        self._link = _Link(url, clock=clock, node=node)
        self._clock = clock
        self._hear: Callable[[Latest, bool], None] | None = None
        self._wanted: set[str] = set()
        self._acknowledged: dict[str, asyncio.Event] = {}
        self._listening: PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._again_at = 0.0

    @property
    def trouble(self) -> str | None:
        """The reason if nothing can be received."""
        return self._link.trouble

    async def latest(self, job_ids: Collection[str]) -> dict[str, Latest]:
        """Return the latest values of these jobs."""
        if not job_ids or (self._link.trouble is not None and self._clock.monotonic() < self._again_at):
            return {}
        try:
            async with asyncio.timeout(MOMENT_S):
                found = await self._link.client.mget([self._link.key(job_id) for job_id in job_ids])
        except (RedisError, OSError, TimeoutError) as error:
            self._lost(error)
            return {}
        if self._task is None:
            self._link.returned()  # Otherwise the listener notes when it works again.
        values = (value for data in found if isinstance(data, bytes) for value in _read(data))
        return {value.job_id: value for value in values if value.job_id in job_ids}

    def listen(self, hear: Callable[[Latest, bool], None]) -> None:
        """Start to listen; values are passed to `hear`."""
        self._hear = hear
        self._task = asyncio.ensure_future(self._keep_listening())

    async def follow(self, job_id: str) -> None:
        """Subscribe to a job, or to everything; pass on the values that exist already."""
        self._wanted.add(job_id)
        subscription = self._listening
        if subscription is None:
            return  # The listener subscribes to it once connected.
        came = self._acknowledged.setdefault(job_id, asyncio.Event())
        try:
            async with asyncio.timeout(MOMENT_S):
                await subscription.subscribe(self._link.key(job_id))
                await came.wait()
        except (RedisError, OSError, TimeoutError):
            return  # The listener notices and subscribes again.
        await self._look([job_id])

    def leave(self, job_id: str) -> None:
        """Unsubscribe."""
        self._wanted.discard(job_id)
        if self._listening is not None and self._acknowledged.pop(job_id, None) is not None:
            self._start(self._unsubscribe(self._listening, job_id))

    async def close(self) -> None:
        """Stop listening."""
        await cancel_until_done(*self._beside, *([self._task] if self._task is not None else []))
        await self._link.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _unsubscribe(self, subscription: PubSub, job_id: str) -> None:
        if job_id not in self._wanted:  # A follower may have come back meanwhile.
            with suppress(RedisError, OSError):
                await subscription.unsubscribe(self._link.key(job_id))

    async def _look(self, job_ids: Collection[str]) -> None:
        """Pass on values from before the subscription."""
        for latest in (await self.latest([job_id for job_id in job_ids if job_id != EVERYTHING])).values():
            if self._hear is not None:
                self._hear(latest, False)

    async def _look_again(self, job_ids: Sequence[str]) -> None:
        """Read the values missed while disconnected, once all subscriptions are restored."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                for job_id in job_ids:
                    await self._acknowledged.setdefault(job_id, asyncio.Event()).wait()
        for start in range(0, len(job_ids), BATCH_MAX):
            await self._look(job_ids[start : start + BATCH_MAX])

    def _lost(self, error: BaseException) -> None:
        self._again_at = self._clock.monotonic() + AGAIN_S
        self._link.lost(error)

    async def _keep_listening(self) -> None:
        nothing = asyncio.Event()
        while True:
            try:
                async with self._link.client.pubsub() as subscription:
                    await self._listen(subscription)
            except (RedisError, OSError, TimeoutError) as error:
                self._lost(error)
            finally:
                self._listening = None
                self._acknowledged.clear()
            await self._clock.rest(AGAIN_S, nothing)

    async def _listen(self, subscription: PubSub) -> None:
        """Listen until the connection is lost or does not answer a ping."""
        async with asyncio.timeout(ANSWER_S_MAX):
            # Always keep one subscription: without one, the client would not read.
            await subscription.subscribe(self._link.key("?"))
            self._listening, wanted = subscription, sorted(self._wanted)  # From now on followers subscribe themselves.
            if wanted:
                await subscription.subscribe(*map(self._link.key, wanted))
        self._start(self._look_again(wanted))
        is_asked = True
        while True:
            message = await subscription.get_message(timeout=ANSWER_S_MAX if is_asked else QUIET_S)
            if message is None:
                if is_asked:
                    raise TimeoutError
                async with asyncio.timeout(ANSWER_S_MAX):
                    await subscription.ping()
                is_asked = True
                continue
            is_asked = False
            self._link.returned()
            if message["type"] == "message":
                self._take(message["channel"], message["data"])
            elif message["type"] == "subscribe":
                self._acknowledged.setdefault(self._link.job_of(message["channel"]), asyncio.Event()).set()

    def _take(self, channel: bytes, data: bytes) -> None:
        job_id = self._link.job_of(channel)
        for latest in _read(data):
            if self._hear is not None and job_id in (latest.job_id, EVERYTHING):
                self._hear(latest, job_id == EVERYTHING)


def _read(data: bytes) -> list[Latest]:
    """Decode a value; None if it is not one of ours."""
    try:
        return _decode(data) if len(data) <= MESSAGE_BYTES_MAX else []
    except (msgspec.DecodeError, RecursionError):
        return []


def _nobody() -> None:
    """Ignore a value: the default before `start`."""
