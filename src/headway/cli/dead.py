"""`headway dead`: jobs that have failed for good and that nobody has looked at yet.

Retrying one makes a new job, linked to it; dropping one only takes it off this list. Either way the failed job stays
what it is, for as long as history is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from headway import deeds
from headway.cli.filters import in_api
from headway.cli.given import YesOption, confirm
from headway.cli.session import AUTHOR, PAGE, Desk, Session, command, new_group, paged
from headway.cli.show import Column
from headway.cli.text import away, clean, count
from headway.errors import DefinitionError, HeadwayError, NotFinal, NotFound, StoreError
from headway.instants import Instant
from headway.model import Job
from headway.why import error_line

LIST_MAX: Final = 10_000
FAILED: Final = 1

app = new_group(help="List, retry and drop dead letters: jobs that failed for good and await a look.")

TaskOption = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only of this task.")]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only from this queue.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only of this tenant.")]
ScheduleOption = Annotated[str | None, typer.Option("--schedule", metavar="NAME", help="Only of this schedule.")]
AllOption = Annotated[bool, typer.Option("--all", help="All that match; without a filter, all there are.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These jobs.")]

Filters = Mapping[str, str | None]


@command(app, "list")
async def list_(
    session: Session,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 50,
) -> None:
    """List dead letters, newest first."""
    filters = {"task": task, "queue": queue, "tenant": tenant, "schedule": schedule}
    async with session.open() as desk:
        found = await paged(desk.store.queue.dead, filters, before, limit + 1)
        now, shapes = desk.now, [desk.job_shape(job) for job in found[:limit]]
    if session.as_json:
        session.out.json(shapes)
    elif not found:
        asked = any(value is not None for value in (*filters.values(), before))
        session.out.say("no dead letter matches" if asked else "no dead letters")
    else:
        columns = [
            Column("id", "quiet"),
            Column("status"),
            Column("task", "name", wraps=True),
            Column("schedule", wraps=True, spare=True),
            Column("ended", "time"),
            Column("error", wraps=True),
        ]
        session.out.table(columns, [_row(job, now) for job in found[:limit]])
    if len(found) > limit:
        session.out.note(f"there are more: --before {found[limit - 1].id}")


def _row(job: Job, now: Instant) -> tuple[object, ...]:
    ended = job.finished_at if job.finished_at is not None else now
    return job.id, job.status, job.task, job.schedule, away(ended, now), error_line(job.error) or job.reason


@command(app)
async def retry(
    session: Session,
    ids: IdsArgument = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
) -> int:
    """Run dead letters once more, each as a new job linked to it, oldest first.

    \b
    headway dead retry job_01m7…          these
    headway dead retry --task report      all of a task; says the count and asks first
    """
    filters = {"task": task, "queue": queue, "tenant": tenant, "schedule": schedule}
    done: list[dict[str, str]] = []
    refused: list[dict[str, str]] = []
    async with session.open() as desk:
        letters = await _chosen(desk, ids, filters, everything)
        if letters and not ids:
            confirm(f"This runs {_some(letters)} again.", yes=yes)
        for letter in letters:
            try:
                done.append({"id": letter.id, "rerun": (await desk.retry_dead(letter)).id})
            except StoreError:
                raise
            except HeadwayError as error:  # Gone or retried by somebody else meanwhile; the others are still to do.
                refused.append({"id": letter.id, "error": str(error)})
    if session.as_json:
        session.out.json({"count": len(done), "retried": done, "refused": refused})
    else:
        for pair in done if ids else ():
            session.out.say(f"{pair['rerun']} runs {pair['id']} again")
        if not ids:
            session.out.say(f"{count(len(done), 'job')} enqueued" if letters else "no dead letter matches")
    _tell_rest(session, letters)
    for each in refused:
        session.out.note(clean(f"{each['id']}: {each['error']}"))
    return FAILED if refused else 0


@command(app)
async def drop(
    session: Session,
    ids: IdsArgument = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
) -> None:
    """Take dead letters off the list. The jobs stay in the history; nothing runs again."""
    filters = {"task": task, "queue": queue, "tenant": tenant, "schedule": schedule}
    dropped: list[str] = []
    async with session.open() as desk:
        letters = await _chosen(desk, ids, filters, everything)
        if letters:
            confirm(f"This drops {_some(letters)}.", yes=yes)
        given = {name: value for name, value in in_api(filters).items() if name != "tenant"}
        for tenant in sorted({letter.tenant for letter in letters}):
            theirs = [letter.id for letter in letters if letter.tenant == tenant]
            for start in range(0, len(theirs), PAGE):
                acting = desk.acting(deeds.drop_dead_group(tenant, given))
                dropped += await acting.queue.drop_dead(theirs[start : start + PAGE], author=AUTHOR)
    if session.as_json:
        session.out.json({"count": len(dropped), "dropped": dropped})
    else:
        session.out.say(f"{_some(dropped)} dropped" if letters else "no dead letter matches")
    _tell_rest(session, letters)


def _tell_rest(session: Session, letters: list[Job]) -> None:
    if len(letters) == LIST_MAX:
        session.out.note(f"at most {LIST_MAX:,} are taken at once; there may be more")


def _some(letters: Sequence[object]) -> str:
    return count(len(letters), "dead letter")


async def _chosen(desk: Desk, ids: list[str] | None, filters: Filters, everything: bool) -> list[Job]:
    """Return the dead letters that are meant, oldest first."""
    filtered = any(value is not None for value in filters.values())
    if ids and (filtered or everything):
        raise DefinitionError("say which: ids, or filters, or --all")
    if not ids and not filtered and not everything:
        raise DefinitionError("say which: ids, a filter such as --task, or --all")
    if not ids:
        return list(reversed(await paged(desk.store.queue.dead, filters, None, LIST_MAX)))
    letters = {letter.id: letter for letter in [await _letter(desk, given) for given in ids]}
    return [letters[letter_id] for letter_id in sorted(letters)]


async def _letter(desk: Desk, given: str) -> Job:
    job = await desk.store.queue.get(given if given.startswith("job_") else f"job_{given}")
    if not job.status.is_final:
        raise NotFinal(f"{job.id} is {job.status}; it is no dead letter")
    if job.status not in ("FAILED", "TIMED_OUT") or job.reviewed_at is not None:
        raise NotFound(f"{job.id} is no dead letter: {job.status}" + (", reviewed" if job.reviewed_at else ""))
    return job
