"""Describe what keeps the store from accepting writes: it is read-only, full, or does not answer in time."""

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
FULL: Final = "is full"


def trouble_of(error: HeadwayError) -> str:
    """Return what an error of the store means for writes, in a few words."""
    if isinstance(error, StoreReadOnly):
        return READ_ONLY
    return FULL if isinstance(error, StoreFull) else AWAY


async def examine(store: Store, within_s: float | None = None) -> tuple[str, StoreHealth]:
    """Probe the store with a write, and read nodes and leases, within a short timeout; return its state and both."""
    limit_s = PROBE_S_MAX if within_s is None else within_s
    try:
        return OK, await store.metrics.check(SHARD_PREFIX, alive_within=ALIVE_WITHIN, within_s=limit_s)
    except HeadwayError as error:
        return trouble_of(error), StoreHealth(nodes=[], leases=[])
