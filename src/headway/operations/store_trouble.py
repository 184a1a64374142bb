"""What keeps the store from taking writes, in words: it is read-only, it is full, or it does not answer in time."""

from typing import Final

from headway.core.errors import HeadwayError, StoreFull, StoreReadOnly
from headway.operations.job_context import ALIVE_WITHIN
from headway.store import Store
from headway.store.metrics import StoreHealth

PROBE_S_MAX: Final = 1.4
SHARD_PREFIX: Final = "scheduler/"

OK: Final = "ok"
AWAY: Final = "does not answer"
READ_ONLY: Final = "is read-only"
FULL: Final = "has no room left"


def trouble_of(error: HeadwayError) -> str:
    """Say in a few words what an error of the store means for those who want to write."""
    if isinstance(error, StoreReadOnly):
        return READ_ONLY
    return FULL if isinstance(error, StoreFull) else AWAY


async def examine(store: Store, within_s: float | None = None) -> tuple[str, StoreHealth]:
    """Write to the store and read who lives and leads, within a moment; say how it is, and what was read."""
    limit_s = PROBE_S_MAX if within_s is None else within_s
    try:
        return OK, await store.metrics.check(SHARD_PREFIX, alive_within=ALIVE_WITHIN, within_s=limit_s)
    except HeadwayError as error:
        return trouble_of(error), StoreHealth(nodes=[], leases=[])
