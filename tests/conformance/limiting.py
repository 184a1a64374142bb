"""Define limits and claim under them, for tests."""

from typing import Any

from headway.core.jobs import Claimed
from headway.core.lifecycle import Succeeded
from headway.core.limits import Limit
from headway.core.ports import LaneClaim
from headway.store import Store
from tests.conformance.arrange import LEASE, end, new_job
from tests.conformance.backend import Backend

# A limit of each kind, and the options of jobs under it.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "queue": ("queue:default", {}),
    "task": ("task:report", {}),
    "tenant": ("tenant:*", {"tenant": "acme"}),
    "key": ("account-*", {"limit_key": "account-1"}),
}
GATES = {"queue": "queue:default", "task": "task:report", "tenant": "tenant:acme", "key": "account-1"}


async def put(store: Store, name: str, **options: Any) -> None:
    """Define a limit."""
    await store.limits.put(Limit.build(name, **options), author="ada")


async def fill(store: Store, count: int, **options: Any) -> list[str]:
    """Enqueue jobs, all in one statement."""
    return [row.id for row in await store.queue.enqueue([new_job(**options) for _ in range(count)])]


async def claim(store: Store, queue: str = "default", *, limit: int = 100, **options: Any) -> LaneClaim:
    """Claim by lanes."""
    return await store.work.claim_lanes(queue, **{"node": "worker-1", "lease": LEASE, **options}, limit=limit)


async def claimed(store: Store, queue: str = "default", **options: Any) -> list[Claimed]:
    """Claim by lanes until nothing more may start, as a worker with much room does."""
    jobs: list[Claimed] = []
    while True:
        found = await claim(store, queue, **options)
        jobs += found.jobs
        is_opened = bool(found.unused) and bool(await store.work.reopen(dict.fromkeys(found.unused, 1)))
        if not found.has_more and not is_opened:
            return jobs


async def finish(store: Store, *jobs: Claimed) -> None:
    """End attempts with success, and let lanes go on that waited for them, as their worker does."""
    freed: dict[str, int] = {}
    for job in jobs:
        assert not await end(store, job, Succeeded())
        for gate in job.gates:
            freed[gate] = freed.get(gate, 0) + 1
    await store.work.reopen(freed)


async def running(backend: Backend) -> int:
    """Count the attempts that run, from the leases."""
    return await backend.count("headway_jobs", "lease_until is not null")
