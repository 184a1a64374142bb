"""`headway dead`: dead letters, the jobs that failed for good and await review.

Retrying one makes a new job, linked to it; dropping one only takes it off this list. Either way the failed job stays
what it is, for as long as history is kept.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
import typer

from headway.cli.output import Column
from headway.cli.parsing import YesOption, confirm
from headway.cli.schedule_names import job_label, with_tenant
from headway.cli.session import PAGE, Session, command, new_group
from headway.cli.text import away, clean, count
from headway.core.errors import DefinitionError, JobNotFound
from headway.core.failures import ERROR_TEXT_MAX
from headway.core.instants import Instant, parse_instant
from headway.core.job_details import error_line
from headway.operations.verbs import pages
from headway.wire.dead_letters import (
    LETTERS_PLANNED_MAX,
    DroppedLetters,
    ErrorGroup,
    FailureFilter,
    LetterFilter,
    ManyLetters,
    RefusedLetter,
    RetriedLetter,
    RetriedLetters,
)
from headway.wire.jobs import Job

KINDS_TOLD: Final = 20
FAILED: Final = 1
JOB_ID_LENGTH: Final = 30

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

Outcome = TypeVar("Outcome", RetriedLetters, DroppedLetters)


@command(app, "list")
async def list_(
    session: Session,
    task: TaskOption = None,
    queue: QueueOption = None,
    tenant: TenantOption = None,
    schedule: ScheduleOption = None,
    error: ErrorOption = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=LETTERS_PLANNED_MAX, help="How many.")
    ] = 50,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Count them by task and error; numbers and ids in it may differ.")
    ] = False,
) -> None:
    """List dead letters, newest first."""
    which = _filters(task, queue, tenant, schedule, error)
    if by_error:
        if error is not None or before is not None:
            raise DefinitionError("--by-error counts all errors: leave out --error and --before")
        failed = FailureFilter(type=which.type, queue=which.queue, schedule=which.schedule, tenant=which.tenant)
        await _list_groups(session, failed, limit)
        return
    async with session.operations() as operations:
        listed = pages(operations.dead_letters.list, which, cursor=_cursor(before), most=limit + 1)
        found = [job async for job in listed]
        now = operations.now
    if session.as_json:
        session.out.json(found[:limit])
    elif not found:
        session.out.say("no dead letter matches" if which.given() or before else "no dead letters")
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


async def _list_groups(session: Session, which: FailureFilter, limit: int) -> None:
    async with session.operations() as operations:
        found = await operations.failures.list(which, limit=limit)
        now = operations.now
    if session.as_json:
        session.out.json(found.items)
    elif not found.items:
        session.out.say("no dead letter matches" if which.given() else "no dead letters")
    else:
        columns = [
            Column("jobs", right=True),
            Column("task", "name", wraps=True),
            Column("newest", "time"),
            Column("error", wraps=True),
        ]
        session.out.table(columns, [_group_row(group, now) for group in found.items])
    if found.groups > len(found.items):
        session.out.note(f"there are {found.groups - len(found.items):,} more groups: --limit {found.groups}")


def _group_row(group: ErrorGroup, now: Instant) -> tuple[object, ...]:
    return group.count, group.type, away(parse_instant(group.newest_at), now), group.error


def _row(job: Job, now: Instant) -> tuple[object, ...]:
    ended = now if job.finished_at is None else parse_instant(job.finished_at)
    error = "" if job.error is None else error_line(msgspec.json.encode(job.error).decode())
    return (
        job.id,
        job.status,
        job.type,
        job_label(job.tenant, job.schedule),
        away(ended, now),
        error or job.reason,
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
    """Retry dead letters, each as a new job linked to it, oldest first.

    \b
    headway dead retry job_01m7…                        these
    headway dead retry --task report                    all of a task; shows the number and asks first
    headway dead retry --task report --error OSError    those that failed with this error
    """
    which = _which(ids, _filters(task, queue, tenant, schedule, error), everything)
    done: list[RetriedLetter] = []
    refused: list[RefusedLetter] = []
    async with session.operations() as operations:
        plan = await _planned(operations.dead_letters.retry_many, which)
        if dry_run:
            return _tell_plan(session, "run again", plan)
        if plan.ids and not ids:
            confirm(f"This runs {_some(plan.ids)} again.", yes=yes)
        for part in _parts(plan.ids):
            outcome = await operations.dead_letters.retry_many(ManyLetters(ids=part, chosen_by=which.filters()))
            done += outcome.retried
            refused += outcome.refused
    if session.as_json:
        told = RetriedLetters(
            count=len(done),
            ids=[letter.id for letter in done],
            retried=done,
            refused=refused,
            more=plan.more,
            dry_run=False,
        )
        session.out.json(told)
    else:
        for letter in done if ids else ():
            session.out.say(f"{letter.rerun} runs {letter.id} again")
        if not ids:
            session.out.say(f"{count(len(done), 'job')} enqueued" if plan.ids else "no dead letter matches")
    _tell_rest(session, plan.more)
    for each in refused:
        session.out.note(clean(f"{each.id}: {each.error}"))
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
    which = _which(ids, _filters(task, queue, tenant, schedule, error), everything)
    dropped: list[str] = []
    refused: list[RefusedLetter] = []
    async with session.operations() as operations:
        plan = await _planned(operations.dead_letters.drop_many, which)
        if dry_run:
            return _tell_plan(session, "be dropped", plan)
        if plan.ids:
            confirm(f"This drops {_some(plan.ids)}.", yes=yes)
        for part in _parts(plan.ids):
            outcome = await operations.dead_letters.drop_many(ManyLetters(ids=part, chosen_by=which.filters()))
            dropped += outcome.dropped
            refused += outcome.refused
    if session.as_json:
        told = DroppedLetters(
            count=len(dropped), ids=dropped, dropped=dropped, refused=refused, more=plan.more, dry_run=False
        )
        session.out.json(told)
    else:
        session.out.say(f"{_some(dropped)} dropped" if plan.ids else "no dead letter matches")
    _tell_rest(session, plan.more)
    return 0


# --- which dead letters


def _filters(
    task: str | None, queue: str | None, tenant: str | None, schedule: str | None, error: str | None
) -> LetterFilter:
    if error is not None and not 0 < len(error) <= ERROR_TEXT_MAX:
        raise DefinitionError(f"--error must have 1 to {ERROR_TEXT_MAX:,} characters")
    given = with_tenant({"type": task, "queue": queue, "tenant": tenant, "schedule": schedule})
    return LetterFilter(**given, error=error)


def _job_id(text: str) -> str:
    return text if text.startswith("job_") else f"job_{text}"


def _cursor(before: str | None) -> str | None:
    """Return the id before which a list begins; the beginning of an id is enough."""
    return None if before is None else _job_id(before).ljust(JOB_ID_LENGTH, "0")


def _which(ids: list[str] | None, filters: LetterFilter, everything: bool) -> ManyLetters:
    is_filtered = bool(filters.given())
    if ids and (is_filtered or everything):
        raise DefinitionError("say which: ids, or filters, or --all")
    if not ids and not is_filtered and not everything:
        raise DefinitionError("say which: ids, a filter such as --task, or --all")
    if ids:
        return ManyLetters(ids=sorted(set(map(_job_id, ids))))
    return ManyLetters(**msgspec.structs.asdict(filters), all=everything and not is_filtered, limit=LETTERS_PLANNED_MAX)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The letters that are meant, oldest first, by their errors, and whether there are more."""

    ids: list[str]
    errors: Counter[tuple[str, str]]
    more: bool


async def _planned(act: Callable[[ManyLetters], Awaitable[Outcome]], which: ManyLetters) -> _Plan:
    """Find the letters that are meant by a dry run; refuse ids that are no dead letters."""
    asked = [which] if which.ids is None else [ManyLetters(ids=part) for part in _parts(which.ids)]
    ids: list[str] = []
    errors: Counter[tuple[str, str]] = Counter()
    more = False
    for one in asked:
        found = await act(msgspec.structs.replace(one, dry_run=True))
        if found.refused:
            raise JobNotFound(found.refused[0].error)
        ids += found.ids
        errors.update({(kind.type, kind.error): kind.count for kind in found.errors or ()})
        more = more or found.more
    return _Plan(ids, errors, more)


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    return (list(ids[start : start + PAGE]) for start in range(0, len(ids), PAGE))


# --- output


def _tell_plan(session: Session, verb: str, plan: _Plan) -> int:
    """Show what would be touched: all ids for programs, the number of each error for people."""
    if session.as_json:
        session.out.json({"count": len(plan.ids), "ids": plan.ids, "more": plan.more, "dry_run": True})
        return 0
    session.out.say(f"{_some(plan.ids)} would {verb}" if plan.ids else "no dead letter matches")
    kinds = plan.errors.most_common()
    for (task, kind), number in kinds[:KINDS_TOLD]:
        session.out.say(clean(f"  {number:>6,}  {task}  {kind}"))
    if len(kinds) > KINDS_TOLD:
        session.out.say(f"  and {count(len(kinds) - KINDS_TOLD, 'other error')}")
    _tell_rest(session, plan.more)
    return 0


def _tell_rest(session: Session, more: bool) -> None:
    if more:
        session.out.note(f"at most {LETTERS_PLANNED_MAX:,} are taken at once; there are more")


def _some(letters: Sequence[str]) -> str:
    return count(len(letters), "dead letter")
