"""Readiness of this process: the store, the loops, the leader and the engines, in a few words each.

The check uses its own connection to the store, so other work of this process does not affect the result. The result is
cached for half a second and read by one caller at a time (single-flight), so frequent requests cannot keep the store
busy. No result is more than two seconds old.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock, Loop
from headway.core.nodes import Lease, Node
from headway.core.single_flight import CachedRead
from headway.operations.engine_state import engines_of
from headway.operations.store_trouble import OK, examine
from headway.store import Store

FRESH_S: Final = 0.5
STANDSTILL_S: Final = 5.0  # A loop that is silent for this long beyond its longest rest counts as stuck.
SCHEDULER: Final = "scheduler"

NOBODY_DECIDES: Final = "no scheduler is the leader: schedules are not decided"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The result of the check: a few words about each part."""

    store: str
    loops: str
    leader: str
    engines: str = OK

    @property
    def status(self) -> str:
        """The overall status: `ready`, `degraded` (it serves requests but needs attention) or `unready`."""
        if self.store != OK or self.loops != OK:
            return "unready"
        return "ready" if self.leader == self.engines == OK else "degraded"


class Health:
    """Checks the store, the loops of this process, the leader, and the engines that grant leases."""

    def __init__(self, store: Store, clock: Clock, loops: Sequence[Loop] = ()) -> None:
        self._store = store
        self._loops = [*loops]
        self._outside = CachedRead(self._look_outside, clock=clock, fresh_s=FRESH_S)

    def add(self, loop: Loop) -> None:
        """Check this loop as well."""
        self._loops.append(loop)

    async def look(self) -> Condition:
        """Return the condition now, or that of a moment ago."""
        store, leader, engines = await self._outside.get()
        return Condition(store=store, loops=self._look_at_loops(), leader=leader, engines=engines)

    async def trouble(self) -> str:
        """Return what keeps the store from accepting writes; `ok` if nothing does."""
        return (await self._outside.get())[0]

    async def _look_outside(self) -> tuple[str, str, str]:
        store, found = await examine(self._store)
        if store != OK:
            return store, UNKNOWN, UNKNOWN
        leader = OK if _is_led(found.leases, found.nodes) else NOBODY_DECIDES
        return store, leader, _look_at_engines(found.nodes)

    def _look_at_loops(self) -> str:
        still = [loop.name for loop in self._loops if loop.idle_s() > loop.rest_s_max + STANDSTILL_S]
        return f"{', '.join(still)} is stuck" if still else OK


def _is_led(leases: Iterable[tuple[Lease, bool]], nodes: Iterable[Node]) -> bool:
    """Return whether a node holds a lease on schedules, or decides them by locking each."""
    if any(is_running for _, is_running in leases):
        return True
    return any(SCHEDULER in node.roles and node.state.get("mode") == "lock" for node in nodes)


def _look_at_engines(nodes: Iterable[Node]) -> str:
    """Name the engines that some node cannot reach."""
    return "; ".join(engine.words for engine in engines_of(nodes) if engine.troubles) or OK
