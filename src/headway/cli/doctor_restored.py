"""`headway doctor --restored`: make a store safe to use after a backup was restored."""

import json
from collections.abc import Mapping
from typing import Final

from headway.cli.session import Session
from headway.cli.text import clean, count
from headway.core.access import COMMAND_LINE
from headway.core.errors import Conflict
from headway.operations.audit_log import origin
from headway.operations.job_context import alive
from headway.operations.queues import read_queues
from headway.wiring.local_operations import OpenStore

NAMES_SHOWN: Final = 5
NEXT: Final = (
    "! instants decided since the backup are decided again, by each schedule's missed policy",
    "  cancel what must not run twice (`headway jobs cancel`, `headway queues pause`), then start the nodes",
)


async def recover(session: Session) -> None:
    """Raise the token counter, accept the restored database as current, and show what is about to run."""
    async with session.open() as opened:
        await _refuse_while_nodes_live(opened)
        done = await opened.store.restore_detection.recover()
        await _record(opened, {"token": done.token, "jobs": done.jobs})
        pending = sum(queue.pending for queue in await read_queues(opened.store))
        jobs = {"PENDING": pending, **await opened.store.statistics.waiting()}
    if session.as_json:
        session.out.json({"token": done.token, "jobs_raised": done.jobs, "jobs": jobs})
        return
    session.out.say(f"✓ no fencing token up to {done.token} is issued again")
    session.out.say(f"✓ attempts of {count(done.jobs, 'unfinished job')} continue with numbers that were never used")
    session.out.say("✓ the database is accepted as it is now")
    many = count(sum(jobs.values()), "unfinished job")
    session.out.say(f"! {many} may have run or ended since the backup: `headway jobs list`", "warn")
    for line in NEXT:
        session.out.say(line, "warn")


async def _refuse_while_nodes_live(opened: OpenStore) -> None:
    if nodes := await alive(opened.store):
        names = ", ".join(clean(node.name) for node in nodes[:NAMES_SHOWN])
        raise Conflict(
            f"{count(len(nodes), 'node')} ran here a moment ago ({names}): stop all nodes, and all programs that"
            " enqueue; repeat the command ten seconds later"
        )


async def _record(opened: OpenStore, done: Mapping[str, int]) -> None:
    await opened.store.audit_log.record(
        actor=COMMAND_LINE,
        tenant="*",
        origin=origin(),
        action="store.restored",
        target="store",
        detail=json.dumps(done),
    )
