"""Claim jobs as a worker does, whichever tenant they belong to."""

from typing import Any

from headway.core.jobs import Claimed
from headway.store import Store


async def claim(store: Store, queue: str = "default", **options: Any) -> list[Claimed]:
    """Claim ready jobs of a queue, of all tenants and limits."""
    return [*(await store.work.claim_lanes(queue, **options)).jobs]
