"""Requests about jobs: filters, jobs to enqueue, and the outcome of bulk actions."""

from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.lifecycle import Status
from headway.wire.base import Count, Resource, Time, example
from headway.wire.jobs import Job, NewJob, Text

GROUP_MAX: Final = 1_000
JOBS_MAX: Final = 10_000


class JobFilter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Filters of jobs; all must match."""

    status: Annotated[Status, msgspec.Meta(description="only with this status", examples=["RUNNING"])] | None = None
    type: Annotated[Text, msgspec.Meta(description="only jobs of this task")] | None = None
    queue: Annotated[Text, msgspec.Meta(description="only jobs of this queue")] | None = None
    tenant: Annotated[Text, msgspec.Meta(description="only jobs of this tenant")] | None = None
    schedule: Annotated[Text, msgspec.Meta(description="only jobs of this schedule")] | None = None
    tag: Annotated[Text, msgspec.Meta(description="only jobs with this tag")] | None = None
    key: Annotated[Text, msgspec.Meta(description="only the job with this idempotency key")] | None = None
    batch: Annotated[Text, msgspec.Meta(description="only jobs of this batch: its id, or its name")] | None = None
    created_after: Annotated[Time, msgspec.Meta(description="only jobs enqueued at or after this time")] | None = None
    created_before: Annotated[Time, msgspec.Meta(description="only jobs enqueued before this time")] | None = None
    finished_after: Annotated[Time, msgspec.Meta(description="only jobs that ended at or after this time")] | None = (
        None
    )
    finished_before: Annotated[Time, msgspec.Meta(description="only jobs that ended before this time")] | None = None
    rerun_of: Annotated[Text, msgspec.Meta(description="only jobs that repeat this one")] | None = None
    q: (
        Annotated[Text, msgspec.Meta(description="only jobs with this text in task, key, schedule, id or reason")]
        | None
    ) = None

    def given(self) -> dict[str, str]:
        """Return the filters that are set."""
        return {name: str(value) for name, value in msgspec.structs.asdict(self).items() if value is not None}


class ManyJobs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Many jobs: those that match a filter, oldest first, or those with these ids."""

    filter: JobFilter | None = None
    ids: (
        Annotated[
            list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]],
            msgspec.Meta(min_length=1, max_length=GROUP_MAX),
        ]
        | None
    ) = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=GROUP_MAX)] = GROUP_MAX
    dry_run: bool = False
    reason: Annotated[str, msgspec.Meta(max_length=300)] = ""

    EXAMPLE: ClassVar = {
        "filter": {"status": "FAILED", "type": "report"},
        "limit": GROUP_MAX,
        "dry_run": True,
        "reason": "fixed",
    }


class RefusedJob(Resource):
    """A job that was left unchanged, and why."""

    id: str
    reason: str


@example(
    {"matched": 37, "is_exact": True, "done": 0, "refused": [], "more": False},
    known_by=frozenset({"matched", "done", "more"}),
)
class ManyOutcome(Resource):
    """The outcome of a bulk action; it names a few of the refused jobs."""

    matched: Count
    is_exact: bool
    done: Count
    refused: list[RefusedJob]
    more: bool


class NewJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Many jobs to enqueue, all or none."""

    jobs: Annotated[list[NewJob], msgspec.Meta(min_length=1, max_length=JOBS_MAX)]
    batch: Annotated[Text, msgspec.Meta(description="the batch that they belong to: its id, or its name")] | None = None

    EXAMPLE: ClassVar = {"jobs": [NewJob.EXAMPLE]}


@example(
    {
        "items": [{"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "type": "report", "status": "PENDING"}],
        "created": 1,
        "existing": 0,
        "merged": 0,
    },
    known_by=frozenset({"items", "created", "existing"}),
)
class EnqueuedJobs(Resource):
    """The enqueued jobs, existing jobs whose keys were used before, and jobs that others were merged into."""

    items: list[Job]
    created: Count
    existing: Count
    merged: Count = 0
