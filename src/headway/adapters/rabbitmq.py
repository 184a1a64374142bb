"""Hints through RabbitMQ: one RabbitMQ queue per Headway queue, consumed by all workers.

    headway.classic.QUEUE     messages whose body is the id of a job; ten thousand at most, the oldest are dropped

Classic queues are the default: hints need not survive anything, and these cost least. `?queues=quorum` is for clusters,
where queues outlive a broker. A single broker that crashes may come back without a leader for a new quorum queue (seen
with 3.10), and then that queue does not answer until it is deleted. Messages have no priority (quorum queues do not
support it) and need none: a hint only says where to look, and the store returns the most urgent job.

The broker pushes messages to consumers (prefetch). So a worker without free slots stops consuming and requeues its
unused messages; otherwise hints would wait at busy workers while others are idle. The broker drops a hint that was
requeued twenty times.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPError, DeliveryError
from aiormq.channel import Channel as UnderlayChannel

from headway.adapters.adapter_url import AdapterUrl
from headway.core.clock import Clock, is_cancelled
from headway.core.errors import EngineUnavailable, InvalidConfig
from headway.core.ports import Hint

PORT: Final = 5672
PORT_TLS: Final = 5671
PREFIX: Final = "headway."
OPTIONS: Final = ("prefix", "queues", "ca", "cert", "key")
LENGTH_MAX: Final = 10_000
BYTES_MAX: Final = 4 << 20
KEPT_MS: Final = 86_400_000  # An unused queue is deleted after this time.
DELIVERIES_MAX: Final = 20
PREFETCH: Final = 100
HEARTBEAT_S: Final = 10
WAIT_S: Final = 1.0
ANSWER_S_MAX: Final = 4.0
CHECK_EVERY_S: Final = 5.0
_PLAUSIBLE: Final = re.compile(rb"[!-~]{1,64}")
_KINDS: Final = ("classic", "quorum")
# The client raises RuntimeError for a closed channel, and uvloop does for a closed connection.
_FAILURES: Final = (AMQPError, RuntimeError, OSError, TimeoutError)
_RAISED: Final = (Exception, asyncio.CancelledError)  # `_told_plainly` says which are failures.

for _client in ("aio_pika", "aiormq"):  # They log long tracebacks; we log one line, once.
    logging.getLogger(_client).setLevel(logging.CRITICAL)


@dataclass(slots=True, eq=False)
class _Link:
    """A connection, with a channel for publishing and one for consuming."""

    connection: AbstractConnection
    telling: AbstractChannel
    hearing: AbstractChannel
    declared: set[str] = field(default_factory=set)
    consumers: dict[str, tuple[AbstractQueue, str]] = field(default_factory=dict)  # Queue and tag, by our queue.
    arrived: deque[Hint] = field(default_factory=deque)
    signal: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_closed(self) -> bool:
        """Whether the connection or a channel is closed."""
        return self.connection.is_closed or self.telling.is_closed or self.hearing.is_closed


class RabbitTransport:
    """Hints on a RabbitMQ broker. The port `Transport` says what the methods promise."""

    name = "rabbitmq"

    def __init__(self, url: str, *, clock: Clock) -> None:
        port = PORT_TLS if url.startswith("amqps:") else PORT
        self._address = AdapterUrl.parse(url, port=port, options=OPTIONS)
        self._kind = self._address.options.get("queues", _KINDS[0])
        if self._kind not in _KINDS:
            raise InvalidConfig(f"queues must be {' or '.join(_KINDS)}, not {self._kind[:40]!r}")
        self._prefix = f"{self._address.options.get('prefix', PREFIX)}{self._kind}."
        self._clock = clock
        self._server = 0
        self._link: _Link | None = None
        self._linking = asyncio.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._check_at = 0.0

    async def announce(self, ready: Mapping[str, Sequence[str]]) -> None:
        """Publish a message for each job, and wait until the broker has them all."""
        async with self._talk() as link:
            for queue in ready:
                if queue not in link.declared:
                    await self._declare(link.telling, queue)
                    link.declared.add(queue)
            try:
                await self._publish(link, ready)
            except DeliveryError:  # A queue was deleted; its messages were returned. Duplicates are harmless.
                for queue in ready:
                    await self._declare(link.telling, queue)
                await self._publish(link, ready)
            if not ready:
                await link.telling.get_exchange("amq.direct", ensure=True)  # Any request that needs a response.

    async def attend(self, queues: Collection[str]) -> None:
        """Consume from these queues; requeue unused messages of other queues."""
        self._wanted = frozenset(queues)
        if self._link is None and not queues:
            return
        async with self._talk() as link:
            await self._consume(link)

    async def take(self, limit: int) -> list[Hint]:
        """Wait for messages."""
        async with self._talk() as link:
            await self._check(link)
            if not link.arrived:
                link.signal.clear()
                await self._clock.rest(WAIT_S, link.signal)
            if link.is_closed:
                raise ConnectionError("the connection was lost")
            return [link.arrived.popleft() for _ in range(min(limit, len(link.arrived)))]

    async def acknowledge(self, hints: Sequence[Hint]) -> None:
        """Acknowledge messages."""
        for hint in hints:
            await self._end(hint, is_done=True)

    async def give_back(self, hints: Sequence[Hint]) -> None:
        """Requeue messages for other workers."""
        for hint in hints:
            await self._end(hint, is_done=False)

    async def close(self) -> None:
        """Disconnect; the broker redelivers unacknowledged messages to other workers."""
        await self._disconnect()

    # --- messages

    async def _publish(self, link: _Link, ready: Mapping[str, Sequence[str]]) -> None:
        exchange = link.telling.default_exchange
        sent = [
            exchange.publish(aio_pika.Message(job_id.encode()), routing_key=self._prefix + queue)
            for queue, job_ids in ready.items()
            for job_id in job_ids
        ]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise _told_plainly(answer)

    async def _end(self, hint: Hint, *, is_done: bool) -> None:
        link, message = hint.receipt
        if link is not self._link:
            return  # Its connection is gone, so the broker has already redelivered it.
        try:
            await (message.ack() if is_done else message.nack(requeue=True))
        except _RAISED as problem:
            error = _told_plainly(problem)
            if not isinstance(error, _FAILURES):
                raise
            await self._disconnect(link)
            raise self._unavailable(error) from None

    # --- queues

    async def _declare(self, channel: AbstractChannel, queue: str) -> AbstractQueue:
        arguments: dict[str, Any] = {
            "x-max-length": LENGTH_MAX,
            "x-max-length-bytes": BYTES_MAX,
            "x-overflow": "drop-head",
            "x-expires": KEPT_MS,
        }
        if self._kind == "quorum":
            arguments |= {"x-queue-type": "quorum", "x-delivery-limit": DELIVERIES_MAX}
        return await channel.declare_queue(self._prefix + queue, durable=True, arguments=arguments)

    async def _consume(self, link: _Link) -> None:
        """Start and stop consumers to match the wanted queues."""
        for queue in [queue for queue in link.consumers if queue not in self._wanted]:
            source, tag = link.consumers.pop(queue)
            await source.cancel(tag)
        for queue in self._wanted - link.consumers.keys():
            source = await self._declare(link.hearing, queue)
            link.consumers[queue] = source, await source.consume(self._receiver(link, queue))
        unwanted = [hint for hint in link.arrived if hint.queue not in self._wanted]
        link.arrived = deque(hint for hint in link.arrived if hint.queue in self._wanted)
        await self.give_back(unwanted)

    def _receiver(self, link: _Link, queue: str) -> Any:
        async def receive(message: AbstractIncomingMessage) -> None:
            hint = Hint(queue, (link, message))
            if not _PLAUSIBLE.fullmatch(message.body):
                await self._end(hint, is_done=True)  # Not a hint of ours: remove it.
            elif queue in self._wanted:
                link.arrived.append(hint)
                link.signal.set()
            else:
                await self._end(hint, is_done=False)  # It was in flight when we stopped consuming.

        return receive

    async def _check(self, link: _Link) -> None:
        """Check that our consumers still exist and, at intervals, that the broker answers."""
        channel = await link.hearing.get_underlay_channel()
        assert isinstance(channel, UnderlayChannel)
        for queue, (_, tag) in list(link.consumers.items()):
            if tag not in channel.consumers:  # The queue was deleted, and the broker cancelled the consumer.
                del link.consumers[queue]
        if link.consumers.keys() != self._wanted:
            await self._consume(link)
        elif self._wanted and self._clock.monotonic() >= self._check_at:
            await self._declare(link.hearing, next(iter(self._wanted)))
            self._check_at = self._clock.monotonic() + CHECK_EVERY_S

    # --- the connection

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[_Link]:
        """Use the connection in a block; after any error the next connection tries the next server."""
        link: _Link | None = None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                link = await self._linked()
                yield link
        except _RAISED as problem:
            error = _told_plainly(problem)
            if not isinstance(error, _FAILURES):
                raise
            unavailable = self._unavailable(error)
            self._server = (self._server + 1) % len(self._address.endpoints)
            await self._disconnect(link)
            raise unavailable from None

    async def _linked(self) -> _Link:
        async with self._linking:
            if self._link is not None and self._link.is_closed:
                await self._disconnect()
            if self._link is None:
                self._link = await self._connect()
                self._check_at = 0.0
            return self._link

    async def _connect(self) -> _Link:
        host, port = self._address.endpoints[self._server]
        is_encrypted = self._address.scheme == "amqps"
        connection = await aio_pika.connect(
            host=host,
            port=port,
            login=self._address.user or "guest",
            password=self._address.password or "guest",
            virtualhost=self._address.path or "/",
            ssl=is_encrypted,
            ssl_context=self._address.tls() if is_encrypted else None,
            client_properties={"connection_name": "headway"},
            heartbeat=HEARTBEAT_S,
            timeout=ANSWER_S_MAX,
        )
        try:
            telling = await connection.channel(on_return_raises=True)
            hearing = await connection.channel()
            await hearing.set_qos(prefetch_count=PREFETCH)
        except BaseException:
            await _close(connection)
            raise
        link = _Link(connection, telling, hearing)
        connection.close_callbacks.add(lambda *_: link.signal.set())
        return link

    async def _disconnect(self, link: _Link | None = None) -> None:
        """Close this connection, unless another one has replaced it."""
        if self._link is None or (link is not None and link is not self._link):
            return
        gone, self._link = self._link, None
        gone.signal.set()
        await _close(gone.connection)

    def _unavailable(self, error: BaseException) -> EngineUnavailable:
        host, port = self._address.endpoints[self._server]
        return EngineUnavailable(f"rabbitmq at {host}:{port}: {str(error) or 'it does not answer'}")


async def _close(connection: AbstractConnection) -> None:
    """Close a connection that may be broken."""
    try:
        async with asyncio.timeout(WAIT_S):
            await connection.close()
    except _RAISED as problem:
        if not isinstance(_told_plainly(problem), _FAILURES):
            raise


def _told_plainly(error: BaseException) -> BaseException:
    """Normalise an error of the client.

    If the connection is lost or closed meanwhile, it raises a bare `Exception`, or `CancelledError` although nobody
    cancelled the caller.
    """
    if type(error) is Exception or (isinstance(error, asyncio.CancelledError) and not is_cancelled()):
        return ConnectionError("the connection was lost")
    return error
