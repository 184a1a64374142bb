"""The heartbeat: a node renews its row, reads the store's time, listens for wake-ups and reads the other nodes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import SECOND, Duration
from headway.core.json_values import JsonObject
from headway.core.nodes import Node
from headway.core.ports import NodeRegistry, WakeUps

BEAT_S: Final = 2.0
WATCH_CHECK_S: Final = 10.0


class Heartbeat:
    """Keeps the row and the listener of one node alive. A `Loop` runs `tick`."""

    def __init__(
        self,
        nodes: NodeRegistry,
        listen: Callable[[], Awaitable[WakeUps]],
        node: Node,
        *,
        clock: Clock,
        lease: Duration,
        state: Callable[[], JsonObject],
        on_peers: Callable[[list[Node]], None],
        on_asked: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._nodes = nodes
        self._listen = listen
        self._wake_ups: WakeUps | None = None
        self._node = node
        self._clock = clock
        self._lease = lease
        self._state = state
        self._on_peers = on_peers
        self._on_asked = on_asked
        self._check_at = 0.0

    @property
    def wake_mode(self) -> str:
        """How this node learns of new work: `notify`, `watch` or `poll`."""
        return self._wake_ups.mode if self._wake_ups else "poll"

    async def tick(self) -> float:
        """Send a heartbeat, read the other nodes, and check at intervals that wake-ups still arrive."""
        asked = await self._beat()
        if asked is not None:
            self._on_asked(asked)
        self._on_peers(await self._nodes.alive(self._lease))
        if self._wake_ups is None:
            self._wake_ups = await self._listen()
            self._check_at = self._clock.monotonic() + WATCH_CHECK_S
        elif self._clock.monotonic() >= self._check_at:
            await self._wake_ups.check()
            self._check_at = self._clock.monotonic() + WATCH_CHECK_S
        return min(BEAT_S, self._lease / SECOND / 3)

    async def leave(self) -> None:
        """Write the last state, sign off, and stop listening."""
        if self._wake_ups is not None:
            await self._wake_ups.close()
        await self._beat()
        await self._nodes.leave(self._node.id)

    async def _beat(self) -> str | None:
        return await self._nodes.beat(replace(self._node, state=self._state()))
