"""`headway dead`: jobs that have failed for good and that nobody has looked at yet.

Retrying one makes a new job, linked to it; dropping one only takes it off this list. Either way the failed job stays
what it is, for as long as history is kept.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from headway.cli.output import Column
from headway.cli.parsing import YesOption, confirm
from headway.cli.schedule_names import job_label, with_tenant
from headway.cli.session import AUTHOR, PAGE, Desk, Session, command, new_group, paged
from headway.cli.text import away, clean, count
from headway.core.errors import DefinitionError, HeadwayError, NotFinal, NotFound, StoreError
from headway.core.instants import Instant
from headway.core.job_details import error_line
from headway.core.jobs import Job
from headway.operations import audit_log as deeds
from headway.server.routes.dead_letters import group_shape
from headway.store.failures import ERROR_TEXT_MAX, DeadLetter, ErrorGroup, dead_letter_of

LIST_MAX: Final = 10_000
KINDS_TOLD: Final = 20
FAILED: Final = 1

app = new_group(help="List, retry and drop dead letters: jobs that failed for good and await review.")

TaskOption = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only of this task.")]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only from this queue.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only of this tenant.")]
ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help="Only of this schedule; tenant/name of another tenant.")
]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TEXT",
        help="Only with this error: OSError, or 'OSError: row … is bad' as `dead list --by-error` shows it.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All that match; without a filter, all there are.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say which dead letters are meant.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These jobs.")]

Filters = Mapping[str, str | None]


@command(app, "list")
async def list_(
    session: Session,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    error: ErrorOption = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 50,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Count them by task and error; numbers and ids in it may differ.")
    ] = False,
) -> None:
    """List dead letters, newest first."""
    filters = with_tenant({"task": task, "queue": queue, "tenant": tenant, "schedule": schedule})
    is_filtered = any(value is not None for value in (*filters.values(), error, before))
    if by_error:
        if error is not None or before is not None:
            raise DefinitionError("--by-error counts all errors: leave out --error and --before")
        await _list_groups(session, filters, limit)
        return
    async with session.open() as desk:
        found = await _jobs(desk, filters, error, before, limit + 1)
        now, shapes = desk.now, [desk.job_shape(job) for job in found[:limit]]
    if session.as_json:
        session.out.json(shapes)
    elif not found:
        session.out.say("no dead letter matches" if is_filtered else "no dead letters")
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


async def _jobs(desk: Desk, filters: Filters, error: str | None, before: str | None, limit: int) -> list[Job]:
    if error is None:
        return await paged(desk.store.jobs.dead, filters, before, limit)
    letters, _ = await desk.store.failures.letters(error=_error(error), before=before, limit=limit, **filters)
    found: list[Job] = []
    for start in range(0, len(letters), PAGE):
        found += await desk.store.failures.jobs([letter.id for letter in letters[start : start + PAGE]])
    return found


async def _list_groups(session: Session, filters: Filters, limit: int) -> None:
    async with session.open() as desk:
        groups = await desk.store.failures.groups(
            task=filters["task"], queue=filters["queue"], tenant=filters["tenant"], schedule=filters["schedule"]
        )
        now = desk.now
    if session.as_json:
        session.out.json([group_shape(group) for group in groups[:limit]])
    elif not groups:
        is_filtered = any(value is not None for value in filters.values())
        session.out.say("no dead letter matches" if is_filtered else "no dead letters")
    else:
        columns = [
            Column("jobs", right=True),
            Column("task", "name", wraps=True),
            Column("newest", "time"),
            Column("error", wraps=True),
        ]
        session.out.table(columns, [_group_row(group, now) for group in groups[:limit]])
    if len(groups) > limit:
        session.out.note(f"there are {len(groups) - limit:,} more groups: --limit {len(groups)}")


def _group_row(group: ErrorGroup, now: Instant) -> tuple[object, ...]:
    return group.jobs, group.task, away(group.newest_at, now), group.error


def _row(job: Job, now: Instant) -> tuple[object, ...]:
    ended = job.finished_at if job.finished_at is not None else now
    return (
        job.id,
        job.status,
        job.task,
        job_label(job.tenant, job.schedule),
        away(ended, now),
        error_line(job.error) or job.reason,
    )


@command(app)
async def retry(
    session: Session,
    ids: IdsArgument = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    error: ErrorOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Run dead letters once more, each as a new job linked to it, oldest first.

    \b
    headway dead retry job_01m7…                        these
    headway dead retry --task report                    all of a task; says the count and asks first
    headway dead retry --task report --error OSError    those that failed with this error
    """
    filters = with_tenant(
        {"task": task, "queue": queue, "tenant": tenant, "schedule": schedule, "error": _error(error)}
    )
    done: list[dict[str, str]] = []
    refused: list[dict[str, str]] = []
    async with session.open() as desk:
        letters, more = await _chosen(desk, ids, filters, everything)
        if dry_run:
            return _tell_plan(session, "run again", letters, more)
        if letters and not ids:
            confirm(f"This runs {_some(letters)} again.", yes=yes)
        for letter in letters:
            try:
                done.append({"id": letter.id, "rerun": (await desk.retry_dead(letter)).id})
            except StoreError:
                raise
            except HeadwayError as refusal:  # Gone or retried by somebody else meanwhile; the others are still to do.
                refused.append({"id": letter.id, "error": str(refusal)})
    if session.as_json:
        answer = {"count": len(done), "ids": [pair["id"] for pair in done], "retried": done, "refused": refused}
        session.out.json({**answer, "more": more, "dry_run": False})
    else:
        for pair in done if ids else ():
            session.out.say(f"{pair['rerun']} runs {pair['id']} again")
        if not ids:
            session.out.say(f"{count(len(done), 'job')} enqueued" if letters else "no dead letter matches")
    _tell_rest(session, more)
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
    error: ErrorOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Take dead letters off the list. The jobs stay in the history; nothing runs again."""
    filters = with_tenant(
        {"task": task, "queue": queue, "tenant": tenant, "schedule": schedule, "error": _error(error)}
    )
    dropped: list[str] = []
    async with session.open() as desk:
        letters, more = await _chosen(desk, ids, filters, everything)
        if dry_run:
            return _tell_plan(session, "be dropped", letters, more)
        if letters:
            confirm(f"This drops {_some(letters)}.", yes=yes)
        said = {"type" if name == "task" else name: value for name, value in filters.items()}
        given = {name: value for name, value in said.items() if value is not None and name != "tenant"}
        for owner in sorted({letter.tenant for letter in letters}):
            theirs = [letter.id for letter in letters if letter.tenant == owner]
            for start in range(0, len(theirs), PAGE):
                acting = desk.acting(deeds.drop_dead_group(owner, given))
                dropped += await acting.queue.drop_dead(theirs[start : start + PAGE], author=AUTHOR)
    if session.as_json:
        session.out.json(
            {"count": len(dropped), "ids": dropped, "dropped": dropped, "refused": [], "more": more, "dry_run": False}
        )
    else:
        session.out.say(f"{_some(dropped)} dropped" if letters else "no dead letter matches")
    _tell_rest(session, more)
    return 0


def _tell_plan(session: Session, verb: str, letters: Sequence[DeadLetter], more: bool) -> int:
    """Say what would be touched: all ids for programs, the count of each error for people."""
    if session.as_json:
        ids = [letter.id for letter in letters]
        session.out.json({"count": len(ids), "ids": ids, "more": more, "dry_run": True})
        return 0
    session.out.say(f"{_some(letters)} would {verb}" if letters else "no dead letter matches")
    kinds = Counter((letter.task, letter.kind) for letter in letters).most_common()
    for (task, kind), number in kinds[:KINDS_TOLD]:
        session.out.say(clean(f"  {number:>6,}  {task}  {kind}"))
    if len(kinds) > KINDS_TOLD:
        session.out.say(f"  and {count(len(kinds) - KINDS_TOLD, 'other error')}")
    _tell_rest(session, more)
    return 0


def _tell_rest(session: Session, more: bool) -> None:
    if more:
        session.out.note(f"at most {LIST_MAX:,} are taken at once; there are more")


def _some(letters: Sequence[object]) -> str:
    return count(len(letters), "dead letter")


def _error(text: str | None) -> str | None:
    if text is not None and not 0 < len(text) <= ERROR_TEXT_MAX:
        raise DefinitionError(f"--error must have 1 to {ERROR_TEXT_MAX:,} characters")
    return text


async def _chosen(
    desk: Desk, ids: list[str] | None, filters: Filters, everything: bool
) -> tuple[list[DeadLetter], bool]:
    """Return the dead letters that are meant, oldest first, and whether there are more of them."""
    filtered = any(value is not None for value in filters.values())
    if ids and (filtered or everything):
        raise DefinitionError("say which: ids, or filters, or --all")
    if not ids and not filtered and not everything:
        raise DefinitionError("say which: ids, a filter such as --task, or --all")
    if not ids:
        found, following = await desk.store.failures.letters(limit=LIST_MAX, **filters)
        return found[::-1], following is not None
    letters = {letter.id: letter for letter in [await _letter(desk, given) for given in ids]}
    return [letters[letter_id] for letter_id in sorted(letters)], False


async def _letter(desk: Desk, given: str) -> DeadLetter:
    job = await desk.store.jobs.get(given if given.startswith("job_") else f"job_{given}")
    if not job.status.is_final:
        raise NotFinal(f"{job.id} is {job.status}; it is no dead letter")
    if job.status not in ("FAILED", "TIMED_OUT") or job.reviewed_at is not None:
        raise NotFound(f"{job.id} is no dead letter: {job.status}" + (", reviewed" if job.reviewed_at else ""))
    return dead_letter_of(job)
