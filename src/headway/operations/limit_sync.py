"""Bring a store in line with the limits and tenants that an app declares."""

from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import LimitOwned, NodesTooOld
from headway.core.limits import Limit
from headway.core.tenants import Tenant
from headway.operations.schedule_sync import SKIPPED
from headway.store import Store

WAITS: Final = "waits: "  # For nodes of an older release to end.


async def sync_limits(store: Store, owner: str, declared: Mapping[str, Limit]) -> dict[str, str]:
    """Put the limits that an app declares and remove those that it declared before; return the outcome of each.

    A limit of another app, or of an operator, is left alone: its outcome begins with `skipped: ` and names the owner. A
    limit that older nodes would ignore is not put while they run: its outcome begins with `waits: ` and names them.
    """
    author, found = f"app:{owner}", {limit.name: limit for limit in await store.limits.all()}
    done: dict[str, str] = {}
    for name, limit in declared.items():
        wanted, old = msgspec.structs.replace(limit, owner=owner), found.get(name)
        if old == wanted:  # A limit that is not in force yet differs.
            done[name] = "unchanged"
            continue
        try:
            await store.limits.put(wanted, author=author, replaces=False)
            done[name] = "created" if old is None else "changed"
        except LimitOwned as error:
            done[name] = f"{SKIPPED}{error}"
        except NodesTooOld as error:
            done[name] = f"{WAITS}{error}"
    for name, limit in found.items():
        if limit.owner == owner and name not in declared and await store.limits.remove(name, author=author):
            done[name] = "removed"
    return done


async def sync_tenants(store: Store, owner: str, declared: Mapping[str, Tenant]) -> dict[str, str]:
    """Put the tenants that an app declares and remove those that it declared before; return the outcome of each."""
    author, found = f"app:{owner}", await store.tenants.all()
    done: dict[str, str] = {}
    for name, tenant in declared.items():
        if found.get(name) == (tenant, author):
            done[name] = "unchanged"
            continue
        try:
            await store.tenants.put(tenant, author=author, replaces=False)
            done[name] = "changed" if name in found else "created"
        except LimitOwned as error:
            done[name] = f"{SKIPPED}{error}"
        except NodesTooOld as error:
            done[name] = f"{WAITS}{error}"
    for name, (_, whose) in found.items():
        if whose == author and name not in declared and await store.tenants.remove(name, author=author):
            done[name] = "removed"
    return done
