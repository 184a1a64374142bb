"""Batches as JSON."""

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET

from headway.core.groups import JobGroup
from headway.core.jobs import NewJob
from headway.wire.base import Absent, Count, Resource, Time, example, stamp
from headway.wire.jobs import Text

_AT: Final = "2027-01-31T06:00:00Z"
_COUNTS: Final = {"waiting": 8200, "running": 20, "completed": 1743, "failed": 37, "timed_out": 0, "cancelled": 0}


@example(_COUNTS, known_by=frozenset({"waiting", "completed", "timed_out"}))
class BatchCounts(Resource):
    """How many jobs of a batch wait, run, and ended in each way. The sum is `total`."""

    waiting: Count
    running: Count
    completed: Count
    failed: Count
    timed_out: Count
    cancelled: Count


@example(
    {
        "id": "batch_01m7h07rq30wjd03gjnmt8r3pz",
        "name": "reports:2027-01-31",
        "tenant": "default",
        "total": 10_000,
        "counts": _COUNTS,
        "retried": 0,
        "progress": 17,
        "rate": 12.5,
        "eta_seconds": 658,
        "created_at": _AT,
        "open_until": None,
        "closed_at": "2027-01-31T06:00:08Z",
        "cancel_requested_at": None,
        "finished_at": None,
        "outcome": None,
        "reason": "",
        "on_done": "mail_summary",
        "on_failure": None,
        "rerun_of": None,
    },
    known_by=frozenset({"id", "name", "counts"}),
)
class Batch(Resource, kw_only=True):
    """Many jobs as one thing. All numbers are of one instant."""

    id: Annotated[str, msgspec.Meta(examples=["batch_01m7h07rq30wjd03gjnmt8r3pz"])]
    name: str
    tenant: str
    total: Count
    counts: BatchCounts
    retried: Annotated[int, msgspec.Meta(ge=0, description="failed jobs that were rerun in the batch")]
    progress: Annotated[int, msgspec.Meta(ge=0, le=100, description="ended jobs in percent; 100 when it has finished")]
    rate: Annotated[float | None, msgspec.Meta(description="ended jobs per second since the first one began")]
    eta_seconds: Annotated[int | None, msgspec.Meta(description="until its jobs have ended, by the rate so far")]
    created_at: Time
    open_until: Annotated[
        Time | None, msgspec.Meta(description="when it closes by itself if nothing is added; null: it is closed")
    ]
    closed_at: Annotated[Time | None, msgspec.Meta(description="since when it takes no more jobs from outside")]
    cancel_requested_at: Time | None
    finished_at: Time | None
    outcome: Annotated[str | None, msgspec.Meta(description="completed, failed or cancelled; null: not finished")]
    reason: Annotated[str, msgspec.Meta(description="why it was closed or cancelled")]
    on_done: Annotated[str | None, msgspec.Meta(description="the task that is enqueued when it finishes")]
    on_failure: Annotated[str | None, msgspec.Meta(description="the task that is enqueued too if jobs failed")]
    rerun_of: Annotated[str | None, msgspec.Meta(description="the batch whose failed jobs it repeats")]
    changed: Annotated[bool, msgspec.Meta(description="whether this request changed it")] | Absent = UNSET


class NewBatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch to create."""

    name: Text
    tenant: Text | None = None
    on_done: Annotated[Text, msgspec.Meta(description="the task to enqueue when it finishes")] | None = None
    on_failure: Annotated[Text, msgspec.Meta(description="the task to enqueue too if jobs of it failed")] | None = None
    open_for: (
        Annotated[str | float | int, msgspec.Meta(description="how long after the last addition it closes by itself")]
        | None
    ) = None

    EXAMPLE: ClassVar = {"name": "reports:2027-01-31", "open_for": "2h"}


class CreatedBatch(Batch, kw_only=True):
    """A batch that this request has created."""


def _task(callback: str | None) -> str | None:
    return None if callback is None else msgspec.json.decode(callback, type=NewJob).task


def batch_of(group: JobGroup, *, kind: type[Batch] = Batch, changed: bool | Absent = UNSET) -> Batch:
    """Convert a batch to JSON."""
    counts = group.counts
    values: dict[str, Any] = {name: stamp(getattr(group, name)) for name in ("created_at", "closed_at", "finished_at")}
    return kind(
        **values,
        id=group.id,
        name=group.name,
        tenant=group.tenant,
        total=counts.total,
        counts=BatchCounts(
            group.waiting, group.running, counts.completed, counts.failed, counts.timed_out, counts.cancelled
        ),
        retried=counts.retried,
        progress=group.progress,
        rate=None if group.rate is None else round(group.rate, 3),
        eta_seconds=group.eta_seconds,
        open_until=stamp(group.open_until) if group.closed_at is None else None,
        cancel_requested_at=stamp(group.cancel_requested_at),
        outcome=group.outcome,
        reason=group.reason,
        on_done=_task(group.on_done),
        on_failure=_task(group.on_failure),
        rerun_of=group.rerun_of,
        changed=changed,
    )
