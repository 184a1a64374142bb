"""Find the schedule that a command names: `name`, or `tenant/name` for another tenant than the caller's.

The caller's is the default tenant on a store, and that of the token on a server. A name may have a slash itself: then
both readings are looked up, and if both exist, the command asks for `--tenant`.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer

from headway.core.errors import DefinitionError, Denied, ScheduleNotFound
from headway.core.schedule_names import ScheduleRef, schedule_label, schedule_name
from headway.operations.everything import Operations
from headway.wire.schedules import Schedule, schedule_cursor

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the schedule; tenant/name of another tenant.")
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="The tenant of the schedule, instead of tenant/name.")
]


class Name(NamedTuple):
    """The name and tenant of a schedule; None is the caller's tenant."""

    name: str
    tenant: str | None


async def which(operations: Operations, text: str, tenant: str | None = None) -> Name:
    """Return the reference of the named schedule, whether it exists or not."""
    whole, split = Name(text, tenant), _split(text)
    if tenant is not None or split is None:
        return whole
    named = Name(split.name, split.tenant)
    exists = [await _find(operations, name) is not None for name in (whole, named)]
    if all(exists):
        raise DefinitionError(
            f"{text!r} can be two schedules: use --tenant {split.tenant} {split.name}, or --tenant with your own tenant"
        )
    return whole if exists[0] else named


async def find(operations: Operations, text: str, tenant: str | None = None) -> Schedule:
    """Read the named schedule; if there is none, suggest those of other tenants."""
    name = await which(operations, text, tenant)
    try:
        return await operations.schedules.get(name.name, tenant=name.tenant)
    except ScheduleNotFound as error:
        same = [one for one in (await operations.schedules.list(q=name.name)).items if one.name == name.name]
        labels = [schedule_label(one.tenant, one.name) for one in same[:3]]
        hint = f"; did you mean {' or '.join(labels)}?" if labels else ""
        raise ScheduleNotFound(f"{error}{hint}") from None


async def _find(operations: Operations, name: Name) -> Schedule | None:
    with suppress(ScheduleNotFound, Denied):
        return await operations.schedules.get(name.name, tenant=name.tenant)
    return None


def _split(text: str) -> ScheduleRef | None:
    tenant, slash, name = text.partition("/")
    return ScheduleRef(tenant, name) if slash and tenant and name else None


def read_cursor(label: str) -> str:
    """Return the cursor of a list that continues after a schedule."""
    split = _split(label)
    return label if split is None else schedule_cursor(split)


def job_label(tenant: str, schedule: str | None) -> str | None:
    """Return the label of the schedule of a job."""
    return None if schedule is None else schedule_label(tenant, schedule_name(schedule))


def with_tenant(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Split a schedule `tenant/name` in job filters into a tenant and a name."""
    schedule, tenant = filters.get("schedule"), filters.get("tenant")
    if schedule is None or tenant is not None or (ref := _split(schedule)) is None:
        return dict(filters)
    return {**filters, "tenant": ref.tenant, "schedule": ref.name}
