"""Hints through Redis Streams: one stream per queue, read by the consumer group `workers`.

    {headway:}hints:QUEUE    entries with the field `id`; about ten thousand at most; expires a day after the last one

The group delivers each entry to one waiting worker, which deletes it after it has queried the store. Entries of a dead
worker are taken over by others after a while (XAUTOCLAIM); the sweep has found these jobs long before. If the server
has lost its data, streams and groups are created again. The braces keep all streams in one slot of a cluster.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from headway.adapters.redis.client import clients_of, in_words, key_prefix, read_address
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.ports import Hint

GROUP: Final = "workers"
LENGTH_MAX: Final = 10_000
KEPT_S: Final = 86_400  # An unused stream expires after this time.
WAIT_S: Final = 1.0
CONNECTIONS_MAX: Final = 8
ANSWER_S_MAX: Final = 3.0  # Longer than a read waits for hints.
RECLAIM_EVERY_S: Final = 15.0
RECLAIM_IDLE_S: Final = 15.0  # Longer than a worker takes to query the store or return a hint.
RECLAIM_MAX: Final = 100
CONSUMER_KEPT_S: Final = 3_600
_PLAUSIBLE: Final = re.compile(rb"[!-~]{1,64}")

_Entry = tuple[bytes, Mapping[bytes, bytes] | None]


class RedisTransport:
    """Hints on a Redis server. The port `Transport` says what the methods promise."""

    name = "redis"

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        self._address = read_address(url)
        self._prefix = key_prefix(self._address) + "hints:"
        self._clock = clock
        self._node = node
        self._clients = clients_of(self._address, node=node, answer_s=ANSWER_S_MAX, connections=CONNECTIONS_MAX)
        self._at = 0
        self._attended: dict[str, str] = {}  # The streams to read, with their queues.
        self._reclaim_at = 0.0

    async def announce(self, ready: Mapping[str, Sequence[str]]) -> None:
        """Add an entry for each job, all in one round trip."""
        async with self._talk() as client:
            if not ready:
                await client.ping()
                return
            pipeline = client.pipeline(transaction=False)
            for queue, job_ids in ready.items():
                for job_id in job_ids:
                    pipeline.xadd(self._key(queue), {"id": job_id}, maxlen=LENGTH_MAX, approximate=True)
                pipeline.expire(self._key(queue), KEPT_S)
            await pipeline.execute()

    async def attend(self, queues: Collection[str]) -> None:
        """Read these streams from now on. Redis pushes nothing, so there is nothing to return."""
        streams = {self._key(queue): queue for queue in queues}
        new = streams.keys() - self._attended.keys()
        if new:
            await self._prepare(new)
        self._attended = streams

    async def take(self, limit: int) -> list[Hint]:
        """Wait for new entries."""
        if not self._attended:
            return []
        if self._clock.monotonic() >= self._reclaim_at and (found := await self._reclaim()):
            return found
        answer: Any = None
        async with self._talk() as client:
            try:
                answer = await client.xreadgroup(
                    GROUP, self._node, dict.fromkeys(self._attended, ">"), count=limit, block=round(WAIT_S * 1_000)
                )
            except ResponseError as error:
                if not _is_forgotten(error):
                    raise
        if answer is None:  # The server has lost its data.
            await self._prepare(self._attended)
            return []
        taken: list[Hint] = []
        for key, entries in answer:
            taken += await self._read(key.decode(), entries)
        return taken

    async def acknowledge(self, hints: Sequence[Hint]) -> None:
        """Delete entries."""
        async with self._talk() as client:
            pipeline = client.pipeline(transaction=False)
            for key, entries in _by_stream(hints).items():
                ids = [entry for entry, _ in entries]
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
            await pipeline.execute()

    async def give_back(self, hints: Sequence[Hint]) -> None:
        """Append the entries again, and delete the old ones."""
        async with self._talk() as client:
            pipeline = client.pipeline(transaction=True)
            for key, entries in _by_stream(hints).items():
                for _, job_id in entries:
                    pipeline.xadd(key, {"id": job_id}, maxlen=LENGTH_MAX, approximate=True)
                ids = [entry for entry, _ in entries]
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
            await pipeline.execute()

    async def close(self) -> None:
        """Leave the groups, and disconnect."""
        if self._attended:
            with suppress(EngineUnavailable):  # Otherwise other workers remove this consumer in an hour.
                async with self._talk() as client:
                    pipeline = client.pipeline(transaction=False)
                    for key in self._attended:
                        pipeline.xgroup_delconsumer(key, GROUP, self._node)
                    await pipeline.execute(raise_on_error=False)
        for client in self._clients:
            with suppress(RedisError, OSError):
                await client.aclose()

    # --- maintenance

    async def _prepare(self, keys: Iterable[str]) -> None:
        """Create missing streams and groups; a new group starts with the entries that exist already."""
        async with self._talk() as client:
            for key in keys:
                try:
                    await client.xgroup_create(key, GROUP, id="0", mkstream=True)
                except ResponseError as error:
                    if not str(error).startswith("BUSYGROUP"):
                        raise
                await client.expire(key, KEPT_S)

    async def _reclaim(self) -> list[Hint]:
        """Take over entries of dead workers, and delete their consumers."""
        self._reclaim_at = self._clock.monotonic() + RECLAIM_EVERY_S * (0.5 + self._clock.chance.random())
        found: list[Hint] = []
        for key in self._attended:
            async with self._talk() as client:
                try:
                    await client.expire(key, KEPT_S)
                    _, entries, *_ = await client.xautoclaim(
                        key, GROUP, self._node, round(RECLAIM_IDLE_S * 1_000), count=RECLAIM_MAX
                    )
                    await self._forget_gone(client, key)
                except ResponseError as error:
                    if not _is_forgotten(error):
                        raise
                    continue  # The next read creates it again.
            found += await self._read(key, entries)
        return found

    async def _forget_gone(self, client: Redis, key: str) -> None:
        for consumer in await client.xinfo_consumers(key, GROUP):
            if consumer["pending"] == 0 and consumer["idle"] > CONSUMER_KEPT_S * 1_000:
                await client.xgroup_delconsumer(key, GROUP, consumer["name"])

    async def _read(self, key: str, entries: Sequence[_Entry]) -> list[Hint]:
        """Convert entries to hints; delete entries that are not ours."""
        queue, good, bad = self._attended.get(key), [], []
        for entry, fields in entries:
            job_id = (fields or {}).get(b"id", b"")
            if queue is not None and _PLAUSIBLE.fullmatch(job_id):
                good.append(Hint(queue, (key, entry, job_id)))
            else:
                bad.append(Hint("", (key, entry, b"")))
        if bad:
            await self.acknowledge(bad)
        return good

    # --- the connection

    def _key(self, queue: str) -> str:
        return self._prefix + queue

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[Redis]:
        """Use a client in a block; after any error the next use tries the next server."""
        at = self._at
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                yield self._clients[at]
        except (RedisError, OSError, TimeoutError) as error:
            if self._at == at:
                self._at = (at + 1) % len(self._clients)
            host, port = self._address.endpoints[at]
            words = in_words(error, answer_s=ANSWER_S_MAX)
            raise EngineUnavailable(f"redis at {host}:{port}: {words}") from None


def _is_forgotten(error: ResponseError) -> bool:
    """Return whether the stream or its group does not exist."""
    return str(error).startswith(("NOGROUP", "no such key", "UNBLOCKED"))


def _by_stream(hints: Sequence[Hint]) -> dict[str, list[tuple[bytes, bytes]]]:
    streams: dict[str, list[tuple[bytes, bytes]]] = {}
    for hint in hints:
        key, entry, job_id = hint.receipt
        streams.setdefault(key, []).append((entry, job_id))
    return streams
