"""Whether this process lives, and whether it is of use: /livez and /readyz.

/livez answers as long as the event loop turns, and asks nobody: a process must not be killed because its store is away.

/readyz tells the truth about four things, each in a few words and without names of machines:

    store         takes a write within a moment, or it does not: then nothing can be promised to anybody: 503
    loops         the loops of this process turn; one that stands still is a fault of this process: 503
    leader        somebody decides the schedules; if nobody does, jobs can still be asked for and run: `degraded`, 200
    engines       servers beside the store answer all nodes; if not, the store does their part: `degraded`, 200

The store is asked on a connection of its own, so that the answer does not depend on what else this process does there.
What was seen counts for half a second, and many who ask at once cost one look, so nobody can use it to keep the store
busy. No answer is more than two seconds behind the truth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock, Loop
from headway.core.nodes import Lease, Node
from headway.operations.engine_state import engines_of
from headway.operations.store_trouble import AWAY, OK, examine
from headway.server.single_flight import Recent
from headway.server.web import Answer, Call, Route
from headway.store import Store

FRESH_S: Final = 0.5
STANDSTILL_S: Final = 5.0  # So much longer than it may rest a loop has been silent when it stands still.
SCHEDULER: Final = "scheduler"

NOBODY_DECIDES: Final = "nobody decides the schedules"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What was found: a few words about each part."""

    store: str
    loops: str
    leader: str
    engines: str = OK

    @property
    def status(self) -> str:
        """One word about all: `ready`, `degraded` (it serves, somebody should look) or `unready`."""
        if self.store != OK or self.loops != OK:
            return "unready"
        return "ready" if self.leader == self.engines == OK else "degraded"


class Health:
    """Looks at the store, at the loops of this process, at who leads and at what grants the leases."""

    def __init__(self, store: Store, clock: Clock, loops: Sequence[Loop] = ()) -> None:
        self._store = store
        self._loops = loops
        self._outside = Recent(self._look_outside, clock=clock, fresh_s=FRESH_S)

    async def look(self) -> Condition:
        """Say how it is now, or was a second ago."""
        store, leader, engines = await self._outside.get()
        return Condition(store=store, loops=self._look_at_loops(), leader=leader, engines=engines)

    async def _look_outside(self) -> tuple[str, str, str]:
        store, found = await examine(self._store)
        if store != OK:
            return store, UNKNOWN, UNKNOWN
        leader = OK if _is_led(found.leases, found.nodes) else NOBODY_DECIDES
        return store, leader, _look_at_engines(found.nodes)

    def _look_at_loops(self) -> str:
        still = [loop.name for loop in self._loops if loop.idle_s() > loop.rest_s_max + STANDSTILL_S]
        return f"{', '.join(still)} stands still" if still else OK


def _is_led(leases: Iterable[tuple[Lease, bool]], nodes: Iterable[Node]) -> bool:
    """Say whether somebody holds a lease on schedules, or decides them by locking each."""
    if any(is_running for _, is_running in leases):
        return True
    return any(SCHEDULER in node.roles and node.state.get("mode") == "lock" for node in nodes)


def _look_at_engines(nodes: Iterable[Node]) -> str:
    """Name the engines that do not answer somebody."""
    return "; ".join(engine.words for engine in engines_of(nodes) if engine.troubles) or OK


ALIVE: Final = Answer({"status": "alive"})


async def livez(_: Call) -> Answer:
    """Say that the process answers."""
    return ALIVE


async def readyz(call: Call) -> Answer:
    """Say whether it is worth asking this process for anything."""
    found: Condition = await call.services.health.look()
    checks = {
        "store": found.store,
        "loops": found.loops,
        "leader": found.leader,
        "engines": found.engines,
    }
    is_unready = found.status == "unready"
    return Answer(
        {"status": found.status, "checks": checks},
        503 if is_unready else 200,
        {"Retry-After": "1"} if is_unready else {},
    )


_READY: Final = {"status": "ready", "checks": {"store": OK, "loops": OK, "leader": OK, "engines": OK}}
_UNREADY: Final = {
    "status": "unready",
    "checks": {"store": AWAY, "loops": OK, "leader": UNKNOWN, "engines": UNKNOWN},
}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/livez",
        handler=livez,
        role=None,
        summary="Does the process live?",
        what="Answers as long as the process does, whatever the store is doing.",
        tag="operations",
        answers={200: {"status": "alive"}},
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=readyz,
        role=None,
        summary="Is the process ready to serve?",
        what=(
            "503 when the store takes no writes (it does not answer, is read-only or full) or a loop of this process "
            "stands still; true to within two seconds. `degraded` with 200 when nobody decides the schedules, or the "
            "server that grants leases does not answer: jobs can still be asked for and run."
        ),
        tag="operations",
        answers={200: _READY, 503: _UNREADY},
    ),
)
