"""Bring a store in line with what an app declares: limits, tenants and schedules."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.limits import Limit
from headway.core.schedules import ScheduleSpec
from headway.core.tenants import Tenant
from headway.operations.limit_sync import sync_limits, sync_tenants
from headway.operations.schedule_sync import sync_schedules
from headway.store import Store
from headway.tasks.registry import TaskRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """What an app declares, and its name, which owns it. What is None is not known, and left as it is."""

    owner: str
    schedules: Mapping[str, ScheduleSpec]
    limits: Mapping[str, Limit] | None = None
    tenants: Mapping[str, Tenant] | None = None

    @classmethod
    def of(cls, app: TaskRegistry) -> "Declarations":
        """Return everything that an app declares."""
        return cls(owner=app.name, schedules=app.declared, limits=app.declared_limits, tenants=app.declared_tenants)


async def sync_app(store: Store, declared: Declarations) -> dict[str, str]:
    """Write what an app declares, limits first: jobs may name them. Return the outcome of each.

    Schedules have their own names there, limits `limit:NAME` and tenants `tenant:NAME`.
    """
    done: dict[str, str] = {}
    if declared.limits is not None:
        limits = await sync_limits(store, declared.owner, declared.limits)
        done |= {f"limit:{name}": outcome for name, outcome in limits.items()}
    if declared.tenants is not None:
        tenants = await sync_tenants(store, declared.owner, declared.tenants)
        done |= {f"tenant:{name}": outcome for name, outcome in tenants.items()}
    return done | await sync_schedules(store, declared.owner, declared.schedules)
