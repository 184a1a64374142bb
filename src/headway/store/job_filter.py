"""Filters of jobs, shared by lists, counts and bulk actions."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from headway.core.instants import Instant
from headway.core.tenants import DEFAULT_TENANT
from headway.store.transaction import as_json

Index: TypeAlias = Literal["group", "tenant", "all"]


class JobFilterValues(TypedDict, total=False):
    """The values of a `JobFilter`."""

    status: str | None
    task: str | None
    queue: str | None
    tenant: str | None
    schedule: str | None
    key: str | None
    tag: str | None
    words: str | None
    since: Instant | None
    until: Instant | None
    finished_after: Instant | None
    finished_before: Instant | None
    rerun_of: str | None
    group_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Match jobs that have all of these values; an empty filter matches all jobs.

    `words` may be anywhere in task, key, schedule, id or reason. `since` and `until` bound the time of enqueueing.
    `schedule` names a schedule of the tenant, or of the default tenant.
    """

    status: str | None = None
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    schedule: str | None = None
    key: str | None = None
    tag: str | None = None
    words: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    rerun_of: str | None = None
    group_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tenant", tenant_of(self.tenant, self.schedule))

    @property
    def index(self) -> Index:
        """The index that finds these jobs: of their group, of their tenant, or of all jobs."""
        if self.group_id is not None:
            return "group"
        return "tenant" if has_index(self.tenant) else "all"

    def parameters(self) -> dict[str, object]:
        """Return the parameters of the SQL fragment `chosen`."""
        return {
            "status": self.status,
            "task": self.task,
            "queue": self.queue,
            "tenant": self.tenant,
            "schedule": self.schedule,
            "key": self.key,
            "rerun_of": self.rerun_of,
            "group_id": self.group_id,
            "tag": None if self.tag is None else f"%{escape_like(as_json([self.tag])[1:-1])}%",
            "words": None if self.words is None else f"%{escape_like(self.words)}%",
            "since": self.since,
            "until": self.until,
            "finished_after": self.finished_after,
            "finished_before": self.finished_before,
        }


def tenant_of(tenant: str | None, schedule: str | None) -> str | None:
    """Return the tenant of a filter: a schedule without a tenant belongs to the default tenant."""
    return DEFAULT_TENANT if tenant is None and schedule is not None else tenant


def has_index(tenant: str | None) -> bool:
    """Return whether an index serves the jobs of a tenant."""
    return tenant not in (None, DEFAULT_TENANT)


def escape_like(text: str) -> str:
    """Escape the wildcards of a text for `like … escape '!'`."""
    return re.sub("([!%_])", r"!\1", text)
