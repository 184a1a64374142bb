"""`headway dead`: dead letters, the jobs that failed for good and await review.

Retrying one creates a new job that is linked to it; dropping one only removes it from this list. Either way the failed
job stays in the history until it is pruned.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from headway.cli.filters import with_filters
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
    RetriedLetters,
)
from headway.wire.jobs import Job

KINDS_TOLD: Final = 20
FAILED: Final = 1
JOB_ID_LENGTH: Final = 30

app = new_group(help="List, retry and drop dead letters: jobs that failed for good and await review.")

_FLAGS: Final[dict[str, Any]] = {
    "type": typer.Option("--task", metavar="NAME", help="Only of this task."),
    "queue": typer.Option("--queue", metavar="NAME", help="Only from this queue."),
    "tenant": typer.Option("--tenant", metavar="NAME", help="Only of this tenant."),
    "schedule": typer.Option(
        "--schedule", metavar="NAME", help="Only of this schedule; tenant/name of another tenant."
    ),
    "error": typer.Option(
        "--error",
        metavar="TEXT",
        help="Only with this error: OSError, or 'OSError: row … is bad' as `dead list --by-error` shows it.",
    ),
}
AllOption = Annotated[bool, typer.Option("--all", help="All that match; without a filter, all dead letters.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show which dead letters match.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These jobs.")]

Outcome = TypeVar("Outcome", RetriedLetters, DroppedLetters)


def _filters(said: Mapping[str, str | None]) -> LetterFilter:
    error = said["error"]
    if error is not None and not 0 < len(error) <= ERROR_TEXT_MAX:
        raise DefinitionError(f"--error must have 1 to {ERROR_TEXT_MAX:,} characters")
    return LetterFilter(**with_tenant(said))


filtered: Final = with_filters(_FLAGS, _filters)


@command(app, "list")
@filtered
async def list_(
    session: Session,
    chosen: LetterFilter,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=LETTERS_PLANNED_MAX, help="How many.")
    ] = 50,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Count them by task and error; numbers and ids in it may differ.")
    ] = False,
) -> None:
    """List dead letters, newest first."""
    if by_error:
        if chosen.error is not None or before is not None:
            raise DefinitionError("--by-error counts all errors: leave out --error and --before")
        failed = FailureFilter(type=chosen.type, queue=chosen.queue, schedule=chosen.schedule, tenant=chosen.tenant)
        await _list_groups(session, failed, limit)
        return
    async with session.operations() as operations:
        listed = pages(operations.dead_letters.list, chosen, cursor=_cursor(before), most=limit + 1)
        found = [job async for job in listed]
        now = operations.now
    if session.as_json:
        session.out.json(found[:limit])
    elif not found:
        session.out.say("no dead letter matches" if chosen.given() or before else "no dead letters")
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
@filtered
async def retry(
    session: Session,
    chosen: LetterFilter,
    ids: IdsArgument = None,
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
    which = _which(ids, chosen, everything)
    async with session.operations() as operations:
        plan = await _planned(operations.dead_letters.retry_many, which)
        if dry_run:
            return _tell_plan(session, "run again", plan)
        if plan.ids and not ids:
            confirm(f"This runs {_some(plan.ids)} again.", yes=yes)
        outcomes = await _carried_out(operations.dead_letters.retry_many, which, plan)
    done = [letter for outcome in outcomes for letter in outcome.retried]
    refused = [letter for outcome in outcomes for letter in outcome.refused]
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
    return _tell_rest(session, plan.more, refused)


@command(app)
@filtered
async def drop(
    session: Session,
    chosen: LetterFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Drop dead letters from the list. The jobs stay in the history; nothing runs again."""
    which = _which(ids, chosen, everything)
    async with session.operations() as operations:
        plan = await _planned(operations.dead_letters.drop_many, which)
        if dry_run:
            return _tell_plan(session, "be dropped", plan)
        if plan.ids:
            confirm(f"This drops {_some(plan.ids)}.", yes=yes)
        outcomes = await _carried_out(operations.dead_letters.drop_many, which, plan)
    dropped = [letter for outcome in outcomes for letter in outcome.dropped]
    refused = [letter for outcome in outcomes for letter in outcome.refused]
    if session.as_json:
        told = DroppedLetters(
            count=len(dropped), ids=dropped, dropped=dropped, refused=refused, more=plan.more, dry_run=False
        )
        session.out.json(told)
    else:
        session.out.say(f"{_some(dropped)} dropped" if plan.ids else "no dead letter matches")
    return _tell_rest(session, plan.more)  # A letter that is gone already is what the operator wanted.


# --- selection


def _job_id(text: str) -> str:
    return text if text.startswith("job_") else f"job_{text}"


def _cursor(before: str | None) -> str | None:
    """Return the id before which a list begins; a prefix of an id is enough."""
    return None if before is None else _job_id(before).ljust(JOB_ID_LENGTH, "0")


def _which(ids: list[str] | None, filters: LetterFilter, everything: bool) -> ManyLetters:
    is_filtered = bool(filters.given())
    if ids and (is_filtered or everything):
        raise DefinitionError("give either ids, filters or --all")
    if not ids and not is_filtered and not everything:
        raise DefinitionError("give ids, a filter such as --task, or --all")
    if ids:
        return ManyLetters(ids=sorted(set(map(_job_id, ids))))
    return ManyLetters(**msgspec.structs.asdict(filters), all=everything and not is_filtered, limit=LETTERS_PLANNED_MAX)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The selected letters, oldest first, by their errors, and whether there are more."""

    ids: list[str]
    errors: Counter[tuple[str, str]]
    more: bool


async def _planned(act: Callable[[ManyLetters], Awaitable[Outcome]], which: ManyLetters) -> _Plan:
    """Select the letters with a dry run; raise an error for ids that are not dead letters."""
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


async def _carried_out(
    act: Callable[[ManyLetters], Awaitable[Outcome]], which: ManyLetters, plan: _Plan
) -> list[Outcome]:
    return [await act(ManyLetters(ids=part, chosen_by=which.filters())) for part in _parts(plan.ids)]


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    return (list(ids[start : start + PAGE]) for start in range(0, len(ids), PAGE))


# --- output


def _tell_plan(session: Session, verb: str, plan: _Plan) -> int:
    """Show what would change: all ids for programs, the number of each error for people."""
    if session.as_json:
        session.out.json({"count": len(plan.ids), "ids": plan.ids, "more": plan.more, "dry_run": True})
        return 0
    session.out.say(f"{_some(plan.ids)} would {verb}" if plan.ids else "no dead letter matches")
    kinds = plan.errors.most_common()
    for (task, kind), number in kinds[:KINDS_TOLD]:
        session.out.say(clean(f"  {number:>6,}  {task}  {kind}"))
    if len(kinds) > KINDS_TOLD:
        session.out.say(f"  and {count(len(kinds) - KINDS_TOLD, 'other error')}")
    return _tell_rest(session, plan.more)


def _tell_rest(session: Session, more: bool, refused: Sequence[RefusedLetter] = ()) -> int:
    """Report what was not done beside the output; return the exit code."""
    if more:
        session.out.note(f"at most {LETTERS_PLANNED_MAX:,} are taken at once; there are more")
    for each in refused:
        session.out.note(clean(f"{each.id}: {each.error}"))
    return FAILED if refused else 0


def _some(letters: Sequence[str]) -> str:
    return count(len(letters), "dead letter")
