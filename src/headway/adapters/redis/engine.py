"""Locks on Redis: a key with a TTL per lock, and scripts that check its owner before they change it.

    {headway:}lock:NAME    the holder; it expires with the lease
    {headway:}token        counts the grants, so tokens grow for as long as Redis keeps its data
    {headway:}freed        the channel that announces released locks

Each operation is one script, so it is atomic and takes one round trip, however many locks. The braces (hash tag) keep
all keys in one slot of a Redis Cluster. Several endpoints are one Redis: a primary with its replicas, or the nodes of a
cluster. A replica or a node without the slot refuses, and the next endpoint is tried, so the primary is found again
after a fail-over. Redis replicates asynchronously, so a fail-over can lose a lock; the store makes that harmless.

Redis does not announce expired keys. A caller that is refused learns the remaining TTL, and is woken then.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headway.adapters.redis.client import clients_of, in_words, key_prefix, read_address
from headway.core.clock import Clock, cancel_until_done
from headway.core.errors import EngineUnavailable
from headway.core.instants import MILLISECOND, Duration

ANSWER_S_MAX: Final = 1.5  # For one endpoint: to connect, and again for the response.
CALL_S_MAX: Final = 3.0  # For all of them together.
CONNECTIONS_MAX: Final = 16
QUIET_S: Final = 5.0  # A subscription that is silent for this long is pinged.
LISTEN_AGAIN_S: Final = 1.0
EXPIRY_S: Final = 0.01  # Redis counts in milliseconds; after this margin the lock has surely expired.

ACQUIRE: Final = """
local owner = redis.call('get', KEYS[1])
if owner and owner ~= ARGV[1] then return {0, redis.call('pttl', KEYS[1])} end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return {1, redis.call('incr', KEYS[2])}
"""
RENEW: Final = """
local kept = {}
for index, key in ipairs(KEYS) do
  if redis.call('get', key) == ARGV[1] then
    redis.call('pexpire', key, ARGV[2])
    kept[#kept + 1] = index
  end
end
return kept
"""
RELEASE: Final = """
local freed = 0
for _, key in ipairs(KEYS) do
  if redis.call('get', key) == ARGV[1] then freed = freed + redis.call('del', key) end
end
if freed > 0 then redis.call('publish', ARGV[2], freed) end
return freed
"""


class RedisEngine:
    """Locks on one Redis. The port `Engine` says what its methods promise."""

    name: Final = "redis"

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        address = read_address(url)
        self._prefix = key_prefix(address)
        self._endpoints = [f"{host}:{port}" for host, port in address.endpoints]
        self._clients = clients_of(address, node=node, answer_s=ANSWER_S_MAX, connections=CONNECTIONS_MAX)
        self._at = 0  # The endpoint that answered last.
        self._clock = clock
        self._hear: Callable[[], None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Acquire a lock that is free, has expired or is the holder's own."""
        keys = [self._lock(name), f"{self._prefix}token"]
        is_ours, number = await self._run(ACQUIRE, keys, holder, _millis(duration))
        if is_ours:
            return int(number)
        if number >= 0:  # Not for a key without a TTL, which is not ours.
            self._wake_after(number / 1_000 + EXPIRY_S)
        return None

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend the locks that are still the holder's."""
        asked = list(names)
        if not asked:
            return frozenset()
        kept = await self._run(RENEW, [self._lock(name) for name in asked], holder, _millis(duration))
        return frozenset(asked[index - 1] for index in kept)

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Release the holder's locks, and announce it."""
        if keys := [self._lock(name) for name in names]:
            await self._run(RELEASE, keys, holder, self._channel)

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever a lock is released, or a refused one must have expired."""
        self._hear = hear
        if self._listener is None:
            self._listener = asyncio.create_task(self._keep_listening(), name="redis locks")

    async def close(self) -> None:
        """Close every connection."""
        self._hear = None
        if self._alarm is not None:
            self._alarm.cancel()
        if self._listener is not None:
            await cancel_until_done(self._listener)
        for client in self._clients:
            await client.aclose()

    def _lock(self, name: str) -> str:
        return f"{self._prefix}lock:{name}"

    @property
    def _channel(self) -> str:
        return f"{self._prefix}freed"

    async def _run(self, script: str, keys: Sequence[str], *args: str | int) -> Any:
        """Run a script at the endpoint that answered last, else at the next one that accepts it."""
        troubles: dict[str, str] = {}
        first, reached = self._at, None
        try:
            async with asyncio.timeout(CALL_S_MAX):
                for turn in range(len(self._clients) + 1):  # Retried once: Redis may just have closed the connection.
                    index = (first + turn) % len(self._clients)
                    try:
                        answer: Any = await self._clients[index].eval(script, len(keys), *keys, *args)
                    except (RedisError, OSError) as error:
                        troubles[self._endpoints[index]] = in_words(error, answer_s=ANSWER_S_MAX)
                    else:
                        reached = index
                        return answer
        except TimeoutError:
            troubles[self._endpoints[first]] = f"no answer within {CALL_S_MAX:g} s"
        finally:  # Also if the caller gave up.
            self._at = (first + 1) % len(self._clients) if reached is None else reached
        raise EngineUnavailable(
            f"redis cannot be used: {'; '.join(f'{endpoint}: {words}' for endpoint, words in troubles.items())}"
        )

    def _wake_after(self, seconds: float) -> None:
        """Schedule a wake-up for when the refused lock has expired, unless an earlier one is scheduled."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._hear is None or (self._alarm is not None and self._alarm.when() <= at):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._hear is not None:
            self._hear()

    async def _keep_listening(self) -> None:
        turn = 0
        while True:
            try:
                await self._listen(self._clients[turn % len(self._clients)])
            except (RedisError, OSError):
                turn += 1  # Replicas and all nodes of a cluster receive published messages too.
            await self._clock.rest(LISTEN_AGAIN_S, asyncio.Event())

    async def _listen(self, client: Redis) -> None:
        """Listen until the connection is lost or does not answer a ping."""
        async with client.pubsub() as subscription:
            await subscription.subscribe(self._channel)
            is_asked = False
            while True:
                message = await subscription.get_message(timeout=QUIET_S)
                if message is not None:
                    is_asked = False
                    if message["type"] in ("message", "subscribe") and self._hear is not None:
                        self._hear()  # Locks may have been released before we listened.
                elif is_asked:
                    return
                else:
                    is_asked = True
                    await subscription.ping()


def _millis(duration: Duration) -> int:
    return max(1, duration // MILLISECOND)
