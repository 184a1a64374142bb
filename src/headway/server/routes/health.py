"""Liveness and readiness: /livez and /readyz.

/livez answers as long as the event loop runs, and checks nothing else: a process must not be killed because its store
is unavailable.

/readyz reports four things, each in a few words and without host names:

    store         accepts a write within a short time; if not, the process can promise nothing: 503
    loops         the loops of this process run; if one is stuck, this process is broken: 503
    leader        a scheduler is the leader; if not, jobs can still be enqueued and run: `degraded`, 200
    engines       all nodes can reach the servers beside the store; if not, the store replaces them: `degraded`, 200
"""

from typing import Final

from headway.operations.health import UNKNOWN, Condition
from headway.operations.store_trouble import AWAY, OK
from headway.server.web import Answer, Call, Route

ALIVE: Final = Answer({"status": "alive"})


async def livez(_: Call) -> Answer:
    """Return 200: the process answers."""
    return ALIVE


async def readyz(call: Call) -> Answer:
    """Return whether this process can serve requests."""
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
        summary="Is the process alive?",
        what="Answers as long as the process runs, whatever the state of the store.",
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
            "503 if the store accepts no writes (it does not answer, is read-only or full) or a loop of this process "
            "is stuck; at most two seconds old. `degraded` with 200 if no scheduler is the leader, or the server that "
            "grants leases does not answer: jobs can still be enqueued and run."
        ),
        tag="operations",
        answers={200: _READY, 503: _UNREADY},
    ),
)
