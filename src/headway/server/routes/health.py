"""Whether this process lives, and whether it is of use: /livez and /readyz.

/livez answers as long as the event loop turns, and asks nobody: a process must not be killed because its store is away.

/readyz tells the truth about four things, each in a few words and without names of machines:

    store         takes a write within a moment, or it does not: then nothing can be promised to anybody: 503
    loops         the loops of this process turn; one that stands still is a fault of this process: 503
    leader        somebody decides the schedules; if nobody does, jobs can still be asked for and run: `degraded`, 200
    engines       servers beside the store answer all nodes; if not, the store does their part: `degraded`, 200
"""

from typing import Final

from headway.operations.health import UNKNOWN, Condition
from headway.operations.store_trouble import AWAY, OK
from headway.server.web import Answer, Call, Route

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
