"""Transport servers, with ways to inspect and disturb their contents."""

import re
from dataclasses import dataclass
from typing import TypeAlias

import aio_pika
from aio_pika.exceptions import ChannelNotFoundEntity

from headway.adapters.rabbitmq import RabbitTransport
from headway.adapters.redis.transport import GROUP, RedisTransport
from headway.core.ports import Transport
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer

KINDS = ("redis", "classic", "quorum")


TransportServer: TypeAlias = RedisServer | RabbitServer


def start_server(kind: str, started: dict[str, TransportServer]) -> TransportServer:
    """Return the server of a kind, started on first use; both kinds of queues share a broker."""
    name = "redis" if kind == "redis" else "rabbitmq"
    if name not in started:
        started[name] = RedisServer() if kind == "redis" else RabbitServer()
    server = started[name]
    if not server.is_running():  # Also after a failed test that killed it.
        server.start()
    return server


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything under one prefix of one server."""

    kind: str
    server: TransportServer
    prefix: str

    @property
    def url(self) -> str:
        """Return the URL of the transport."""
        return self.at(self.prefix)

    def at(self, prefix: str) -> str:
        """Return the URL of a transport with another prefix."""
        if isinstance(self.server, RedisServer):
            return self.server.url(prefix=prefix)
        return self.server.url(prefix=prefix, queues=self.kind)

    async def count(self, queue: str) -> int:
        """Count the hints that wait or are not acknowledged."""
        if isinstance(self.server, RedisServer):
            with self.server.client() as client:
                length: int = client.xlen(self._key(queue))
                return length
        async with await aio_pika.connect(self.server.url()) as connection, connection.channel() as channel:
            found = await channel.declare_queue(self._key(queue), passive=True)
            return found.declaration_result.message_count or 0

    async def listeners(self, queue: str) -> int:
        """Count the listeners of a queue, or on Redis of any queue."""
        if isinstance(self.server, RedisServer):
            with self.server.client() as client:
                return sum("b" in found["flags"] for found in client.client_list() if found["cmd"] == "xreadgroup")
        async with await aio_pika.connect(self.server.url()) as connection, connection.channel() as channel:
            try:
                answer = await channel.declare_queue(self._key(queue), passive=True)
            except ChannelNotFoundEntity:
                return 0
            return answer.declaration_result.consumer_count or 0

    async def put(self, queue: str, body: bytes) -> None:
        """Put a message into the channel of a queue, as any client with the password could."""
        if isinstance(self.server, RedisServer):
            with self.server.client() as client:
                client.xadd(self._key(queue), {b"id": body})
            return
        async with await aio_pika.connect(self.server.url()) as connection, connection.channel() as channel:
            await channel.default_exchange.publish(aio_pika.Message(body), routing_key=self._key(queue))

    async def put_foreign(self, queue: str) -> None:
        """Put a message of an unknown format into it."""
        if isinstance(self.server, RedisServer):
            with self.server.client() as client:
                client.xadd(self._key(queue), {b"name": b"value", b"more": b"x" * 1_000})
            return
        async with await aio_pika.connect(self.server.url()) as connection, connection.channel() as channel:
            message = aio_pika.Message(b"{}" * 50, headers={"id": "job_1"}, content_type="application/json")
            await channel.default_exchange.publish(message, routing_key=self._key(queue))

    async def lose(self, queue: str) -> None:
        """Delete everything on the server, or at least this queue."""
        if isinstance(self.server, RedisServer):
            self.server.flush()
            return
        async with await aio_pika.connect(self.server.url()) as connection, connection.channel() as channel:
            await channel.queue_delete(self._key(queue))

    def unacknowledged(self, queue: str) -> int:
        """Count the hints that were received but not acknowledged."""
        if isinstance(self.server, RedisServer):
            with self.server.client() as client:
                pending: dict[str, int] = client.xpending(self._key(queue), GROUP)
                return pending["pending"]
        # Only this queue: a list of all would wait a minute for a quorum queue without a leader after a crash.
        queue_name = f'rabbit_misc:r(<<"/">>, queue, <<"{self._key(queue)}">>)'
        counted = "rabbit_amqqueue:info(Queue, [messages_unacknowledged])"
        answer = self.server.control("eval", f"{{ok, Queue}} = rabbit_amqqueue:lookup({queue_name}), {counted}.")
        found = re.search(r"messages_unacknowledged,(\d+)", answer)
        assert found is not None, answer
        return int(found[1])

    async def cut(self, transport: Transport) -> None:
        """Disconnect a transport without closing it."""
        if isinstance(transport, RedisTransport):
            transport._attended = {}
            await transport.close()
        elif isinstance(transport, RabbitTransport):
            assert transport._link is not None
            await transport._link.connection.close()

    def _key(self, queue: str) -> str:
        if isinstance(self.server, RedisServer):
            return f"{{{self.prefix}}}hints:{queue}"
        return f"{self.prefix}{self.kind}.{queue}"
