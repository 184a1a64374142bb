"""Open the operations of a server, for commands with `--server`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn, cast

from headway.cli.session import Desk
from headway.client import AsyncClient
from headway.client.remote_operations import RemoteOperations
from headway.core.clock import Clock
from headway.core.errors import (
    DefinitionError,
)
from headway.core.instants import SECOND, Instant
from headway.store import Store

RETRY_FOR: Final = "5s"


@asynccontextmanager
async def remote_desk(server: str, token: str | None) -> AsyncIterator[Desk]:
    """Talk to an API; hear first whether it lets us in, and what its time is."""
    async with AsyncClient(server, token, retry_for=RETRY_FOR) as client:
        clock = Clock(node="cli")
        sent = clock.monotonic()
        told = await client.time()
        latency_s = clock.monotonic() - sent
        if told is not None:
            _set_right(clock, told, told + SECOND + round(latency_s * SECOND))
        yield RemoteDesk(cast("Store", RemoteStore(client, clock)), clock, latency_s, server)


def _set_right(clock: Clock, earliest: Instant, latest: Instant) -> None:
    """Move a clock no further than it takes to be possible; the server tells its time in whole seconds."""
    now = clock.now()
    possible = min(max(now, earliest), latest)
    if possible != now:
        wall = clock.wall
        clock.wall = lambda: wall() + possible - now


class RemoteDesk(Desk):
    """A desk whose store is behind an API."""

    __slots__ = ()

    @property
    def _remote(self) -> "RemoteStore":
        return cast("RemoteStore", self.store)

    @property
    def operations(self) -> RemoteOperations:
        """The operations of the server."""
        return RemoteOperations(self._remote.client, self.clock)

    async def hear_time(self) -> None:
        """Nothing: what the server answers says what time it is."""


class RemoteStore:
    """As much of a store as an API gives."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self.client = client
        self.clock = clock

    def __getattr__(self, name: str) -> NoReturn:
        raise DefinitionError("this command works on the store itself: leave --server out, and run it where that is")
