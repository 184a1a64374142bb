"""Bring a store in line with the schedules that an app declares."""

from collections.abc import Mapping
from typing import Final

from headway.core.schedule_names import ScheduleRef, schedule_name
from headway.core.schedules import ScheduleSpec
from headway.store import Store
from headway.store.schedule_definitions import REFUSED
from headway.store.schedules import in_pieces

SYNC_PAGE: Final = 200
SKIPPED: Final = "skipped: "


async def sync_schedules(store: Store, owner: str, declared: Mapping[str, ScheduleSpec]) -> dict[str, str]:
    """Put what an app declares and remove what it declared before; return the outcome of each schedule.

    A schedule that another app owns is left alone: its outcome begins with `skipped: ` and names the owner.
    """
    author = f"app:{owner}"
    wanted = {ScheduleRef(spec.tenant, schedule_name(key)): spec for key, spec in declared.items()}
    done: dict[str, str] = {}
    for piece in in_pieces(wanted):
        outcomes = await store.schedules.put_many(piece, owner=owner, author=author, may_be_over=True)
        for ref, outcome in zip(piece, outcomes, strict=True):
            done[str(ref)] = outcome.replace(REFUSED, SKIPPED, 1) if outcome.startswith(REFUSED) else outcome
    last: ScheduleRef | None = None
    while page := await store.schedules.page(owner=owner, after=last, limit=SYNC_PAGE):
        refs = [ScheduleRef(schedule.tenant, schedule.name) for schedule in page]
        for ref in refs:
            if ref not in wanted and await store.schedules.remove(
                ref.name, tenant=ref.tenant, author=author, owner=owner
            ):
                done[str(ref)] = "removed"
        last = refs[-1]
    return done
