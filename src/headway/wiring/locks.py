"""Hold a lock from a process that has no app, such as `headway lock`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headway.coordination.locks import TTL_DEFAULT, Grants, Lock, Wish
from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.store import Store
from headway.wiring.engines import admission_of, grants_of

LOCK_TTL: Final = TTL_DEFAULT
lock_wish: Final = Wish.of


@asynccontextmanager
async def hold_lock(settings: Settings, wish: Wish) -> AsyncIterator[Lock]:
    """Hold a lock during a block."""
    clock = Clock(node="lock")
    store = await Store.open(settings.store, clock, synchronous=settings.sqlite_synchronous)
    admission = admission_of(store, settings, clock)

    async def grants() -> Grants:
        return grants_of(store, admission)

    lock = Lock(wish, grants, clock=clock, holder_name=settings.node)
    try:
        yield await lock.acquire()
    finally:
        await lock.release()
        if admission is not None:
            await admission.close()
        await store.close()
