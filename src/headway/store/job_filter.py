"""Which jobs are meant: the filters that lists, counts and actions on many jobs have in common."""

import re
from dataclasses import dataclass

from headway.core.instants import Instant
from headway.core.tenants import DEFAULT_TENANT
from headway.store.transaction import as_json


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Jobs that have all of this in common; nothing said chooses all jobs.

    `words` may be anywhere in task, key, schedule, id or reason; `since` and `until` bound when a job was handed in.
    `schedule` is the name of one of the tenant, or of the default tenant.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tenant", tenant_of(self.tenant, self.schedule))

    @property
    def has_index(self) -> bool:
        """Say whether the jobs of its tenant have an index: those of the usual one are too many to need one."""
        return has_index(self.tenant)

    def parameters(self) -> dict[str, object]:
        """Return what the fragment `chosen` of a statement needs."""
        return {
            "status": self.status,
            "task": self.task,
            "queue": self.queue,
            "tenant": self.tenant,
            "schedule": self.schedule,
            "key": self.key,
            "rerun_of": self.rerun_of,
            "tag": None if self.tag is None else f"%{literally(as_json([self.tag])[1:-1])}%",
            "words": None if self.words is None else f"%{literally(self.words)}%",
            "since": self.since,
            "until": self.until,
            "finished_after": self.finished_after,
            "finished_before": self.finished_before,
        }


def tenant_of(tenant: str | None, schedule: str | None) -> str | None:
    """Return whose jobs a filter means: the name of a schedule is one of the default tenant where none is said."""
    return DEFAULT_TENANT if tenant is None and schedule is not None else tenant


def has_index(tenant: str | None) -> bool:
    """Say whether the jobs of a tenant have an index."""
    return tenant not in (None, DEFAULT_TENANT)


def literally(text: str) -> str:
    """Write a text for `like … escape '!'`, in which nothing stands for anything else."""
    return re.sub("([!%_])", r"!\1", text)
