"""Read the context of a job from the store, as far as its status requires it: workers, queue, predecessor."""

from typing import Final

from headway.core.errors import JobNotFound
from headway.core.instants import DAY, SECOND, Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.nodes import Node
from headway.core.schedule_names import schedule_name
from headway.operations.why import Around, QueuePause
from headway.store import Store
from headway.store.job_filter import JobFilter

ALIVE_WITHIN: Final = 10 * SECOND  # A node sends a heartbeat at least every two seconds.
RIVALS_SHOWN: Final = 20


async def alive(store: Store) -> list[Node]:
    """Return the live nodes."""
    return await store.nodes.alive(ALIVE_WITHIN)


async def known(store: Store) -> list[Node]:
    """Return the live nodes and those that died without signing off within the last day."""
    return await store.nodes.alive(DAY)


async def node_names(store: Store) -> dict[str, str]:
    """Return the names of the known nodes by id."""
    return {node.id: node.name for node in await known(store)}


async def look_around(store: Store, job: Job, now: Instant, *, tenant: str | None = None) -> Around:
    """Read the context of a job, as far as a tenant may see it."""
    if job.status.is_final:
        return Around(now=now, reruns=tuple(await store.jobs.reruns(job.id)))
    nodes = tuple(await alive(store))
    match job.status:
        case Status.PENDING:
            pause = (await pauses(store, tenant=tenant)).get(job.queue)
            ahead = await store.jobs.ahead(job, tenant=tenant)
            return Around(
                now=now,
                nodes=nodes,
                pause=pause,
                ahead=ahead,
                is_for_tenant=tenant is not None,
                hold=await store.limit_reads.hold(job.id, tenant=tenant),
                share=await store.limit_reads.share(job.id),
            )
        case Status.BLOCKED if job.blocked_by is not None:
            before = await _job(store, job.blocked_by)
            return Around(now=now, nodes=nodes, predecessor=before, rivals=await _rivals(store, job, before))
        case Status.RUNNING:
            return Around(now=now, nodes=nodes, names=await node_names(store))
        case _:
            return Around(now=now, nodes=nodes)


async def pauses(store: Store, *, tenant: str | None = None) -> dict[str, QueuePause]:
    """Return the paused queues. Only callers that see all tenants learn by whom and why: a queue has no tenant."""
    return {
        name: QueuePause(since=row["paused_at"])
        if tenant is not None
        else QueuePause(since=row["paused_at"], author=row["paused_by"], reason=row["reason"])
        for name, row in (await store.queue.paused()).items()
    }


async def _rivals(store: Store, job: Job, before: Job | None) -> tuple[Job, ...]:
    """Return the live jobs of an exclusive schedule that still block although the predecessor has ended."""
    if not job.exclusive or job.schedule is None or (before is not None and not before.status.is_final):
        return ()
    found: list[Job] = []
    for status in (Status.RUNNING, Status.PENDING, Status.RETRYING, Status.SCHEDULED):
        rivals = JobFilter(status=status, schedule=schedule_name(job.schedule), tenant=job.tenant)
        found += await store.jobs.chosen(rivals, limit=RIVALS_SHOWN, largest=0)
    return tuple(found[:RIVALS_SHOWN])


async def _job(store: Store, job_id: str) -> Job | None:
    try:
        return await store.jobs.get(job_id)
    except JobNotFound:  # Pruned.
        return None
