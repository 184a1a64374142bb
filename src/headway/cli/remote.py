"""Open the operations of a server, for commands with `--server`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headway.client import AsyncClient
from headway.client.remote_operations import RemoteOperations
from headway.core.clock import Clock
from headway.core.instants import SECOND, Instant

RETRY_FOR: Final = "5s"


@asynccontextmanager
async def open_operations(server: str, token: str | None) -> AsyncIterator[RemoteOperations]:
    """Connect to a server; check first that it accepts the token, and read its time."""
    async with AsyncClient(server, token, retry_for=RETRY_FOR) as client:
        clock = Clock(node="cli")
        sent = clock.monotonic()
        told = await client.time()
        latency_s = clock.monotonic() - sent
        if told is not None:
            _adjust(clock, told, told + SECOND + round(latency_s * SECOND))
        yield RemoteOperations(client, clock)


def _adjust(clock: Clock, earliest: Instant, latest: Instant) -> None:
    """Adjust a clock to these bounds, and no further; the server reports its time in whole seconds."""
    now = clock.now()
    possible = min(max(now, earliest), latest)
    if possible != now:
        wall = clock.wall
        clock.wall = lambda: wall() + possible - now
