"""Which schedule a command means: `name`, or `tenant/name` of another tenant than one's own.

One's own is the default tenant at a store, and that of the token at a server. A name may have a slash itself: then both
readings are looked up, and if both exist, the command asks for `--tenant`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from headway.cli.session import Desk
from headway.core.errors import DefinitionError
from headway.core.schedule_names import ScheduleRef, schedule_label, schedule_name

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the schedule; tenant/name of another tenant.")
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Whose schedule, instead of tenant/name.")
]


async def which(desk: Desk, text: str, tenant: str | None = None) -> ScheduleRef:
    """Return which schedule is meant, whether it exists or not."""
    whole, split = ScheduleRef(tenant or desk.own_tenant, text), _split(text)
    if tenant is not None or split is None:
        return whole
    found = await desk.store.schedules.find([whole, split])
    if whole in found and split in found:
        raise DefinitionError(
            f"{text!r} can be two schedules: say --tenant {split.tenant} {split.name}, or --tenant with your own tenant"
        )
    return whole if whole in found else split


def _split(text: str) -> ScheduleRef | None:
    tenant, slash, name = text.partition("/")
    return ScheduleRef(tenant, name) if slash and tenant and name else None


def read_label(text: str, own: str) -> ScheduleRef:
    """Read what a list calls a schedule."""
    return _split(text) or ScheduleRef(own, text)


def job_label(tenant: str, schedule: str | None) -> str | None:
    """Return what to call the schedule of a job."""
    return None if schedule is None else schedule_label(tenant, schedule_name(schedule))


def with_tenant(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return filters of jobs in which a schedule `tenant/name` is a tenant and a name."""
    schedule, tenant = filters.get("schedule"), filters.get("tenant")
    if schedule is None or tenant is not None or (ref := _split(schedule)) is None:
        return dict(filters)
    return {**filters, "tenant": ref.tenant, "schedule": ref.name}
