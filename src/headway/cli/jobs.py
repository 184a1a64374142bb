"""`headway jobs`: list, show and cancel jobs."""

from typing import Annotated, Final

import typer

from headway.cli.session import AUTHOR, Session, command, new_group
from headway.cli.shapes import Shape, job_shape
from headway.cli.show import Column, to_json
from headway.cli.text import away, clean
from headway.errors import DefinitionError
from headway.instants import Instant
from headway.lifecycle import Status
from headway.model import Job
from headway.store import Store

LIST_MAX: Final = 10_000
PAGE: Final = 200

app = new_group(help="List, show and cancel jobs.")

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the job, or the beginning of it when that is unique.")
]


@command(app, "list")
async def list_(
    session: Session,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="PENDING, RUNNING, FAILED, …")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME")] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="NAME")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 50,
) -> None:
    """List jobs, newest first."""
    filters = {"status": _status(status), "task": task, "queue": queue, "tenant": tenant, "schedule": schedule}
    async with session.open() as desk:
        found = await _jobs(desk.store, filters, before, limit + 1)
        now = desk.now
    if session.as_json:
        session.out.json([job_shape(job, now) for job in found[:limit]])
    elif not found:
        asked = any(value is not None for value in (*filters.values(), before))
        session.out.say("no job matches" if asked else "no jobs yet; `headway enqueue TASK` makes one")
    else:
        columns = [
            Column("id", "quiet"),
            Column("status"),
            Column("task", "name", wraps=True),
            Column("schedule", wraps=True, spare=True),
            Column("created", "time", spare=True),
            Column("why", wraps=True),
        ]
        session.out.table(columns, [_row(job, now) for job in found[:limit]])
    if len(found) > limit:
        session.out.note(f"there are more: --before {found[limit - 1].id}")


def _status(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(Status(text.upper()))
    except ValueError:
        raise DefinitionError(f"--status must be one of {', '.join(Status)}, not {text[:40]!r}") from None


async def _jobs(store: Store, filters: dict[str, str | None], before: str | None, limit: int) -> list[Job]:
    found: list[Job] = []
    while len(found) < limit:
        page = await store.queue.page(**filters, before=before, limit=min(limit - len(found), PAGE))
        found += page
        if not page:
            break
        before = page[-1].id
    return found


def _row(job: Job, now: Instant) -> tuple[object, ...]:
    shape = job_shape(job, now)
    return job.id, job.status, job.task, job.schedule, away(job.created_at, now), shape["why"]


@command(app)
async def show(session: Session, job_id: IdArgument) -> None:
    """Show one job."""
    async with session.open() as desk:
        shape = job_shape(await desk.store.queue.get(_full(job_id)), desk.now)
    if session.as_json:
        session.out.json(shape)
    else:
        session.out.facts(_facts(shape))


def _facts(shape: Shape) -> dict[str, object]:
    hidden = ("metadata", "batch", "eta_seconds", "version", "progress")
    return {
        name: to_json(value) if isinstance(value, dict) else " ".join(value) if isinstance(value, list) else value
        for name, value in shape.items()
        if name not in hidden
    }


@command(app)
async def cancel(
    session: Session,
    job_id: IdArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for those who will ask.")] = "",
) -> None:
    """End a job that has not begun; ask one that runs to stop."""
    async with session.open() as desk:
        found = await desk.store.queue.get(_full(job_id))
        job = await desk.store.queue.cancel(found.id, author=AUTHOR, reason=reason)
        shape = job_shape(job, desk.now)
    if session.as_json:
        session.out.json(shape)
    else:
        session.out.say(clean(f"{job.id} {job.status}: {shape['why']}"))


def _full(job_id: str) -> str:
    return job_id if job_id.startswith("job_") else f"job_{job_id}"
