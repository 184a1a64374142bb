"""The runs of a schedule: the decisions about its instants, merged with manual runs.

A manual run creates no occurrence, since it belongs to no instant of the schedule (or to one that was decided earlier).
It is recorded in the events of the schedule, and shown in the form of a decision.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.instants import Instant
from headway.core.occurrences import ByHand, Occurrence
from headway.core.schedules import Schedule
from headway.store import Store
from headway.store.ledger import FOREVER


async def runs(
    store: Store, schedule: Schedule, *, since: Instant = 0, before: Instant = FOREVER, limit: int = 50
) -> list[Occurrence]:
    """Read a page of runs, newest first; runs with the same time as the last one are on the same page."""
    window = {"since": since, "before": before, "limit": limit}
    decided = await store.ledger.occurrences(schedule.key, **window)
    by_hand = [_run(schedule, event) for event in await store.schedules.by_hand(schedule, **window)]
    found = sorted((*decided, *by_hand), key=lambda run: run.instant, reverse=True)
    if len(found) <= limit:
        return found
    return [run for at, run in enumerate(found) if at < limit or run.instant == found[limit - 1].instant]


def _run(schedule: Schedule, event: Mapping[str, Any]) -> Occurrence:
    return Occurrence(
        schedule=schedule.name,
        tenant=schedule.tenant,
        instant=event["at"],
        outcome=ByHand(event["event"]),
        reason=f"by {event['author']}" if event.get("author") else "",
        decided_at=event["at"],
        count=event.get("jobs", 1),
        job_id=event.get("job_id"),
    )
