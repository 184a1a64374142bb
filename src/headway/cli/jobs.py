"""`headway jobs`: list, show, explain, watch, retry and cancel jobs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from headway.cli.filters import Chosen, filtered
from headway.cli.output import Column, Output, to_json
from headway.cli.parsing import (
    ArgOption,
    ArgsOption,
    TimeoutOption,
    YesOption,
    confirm,
    read_args,
    read_timeout,
)
from headway.cli.schedule_names import job_label
from headway.cli.session import Session, command, new_group
from headway.cli.text import away, clean, count, span
from headway.cli.watch import INTERRUPTED, LOOK_S, node_names, stay, tell
from headway.cli.watch import watch as watch_job
from headway.core.errors import DefinitionError
from headway.core.instants import MILLISECOND, SECOND, Instant, parse_instant, to_datetime
from headway.core.job_details import error_words
from headway.core.lifecycle import Status
from headway.operations.everything import Operations
from headway.operations.job_reads import JOB_ID
from headway.operations.verbs import pages
from headway.wire.job_requests import ManyJobs, ManyOutcome
from headway.wire.jobs import Attempt, Failure, Job, LogLine, Step

LIST_MAX: Final = 10_000
LOG_PAGE: Final = 1_000
LOG_LINES_MAX: Final = 1_000_000
TRACEBACK_LINES_MAX: Final = 40
FAILED: Final = 1

app = new_group(help="List, show, watch, retry and cancel jobs, and explain their status.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the job, or a unique prefix of it.")]


IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="One or more ids of jobs, or prefixes of them.")
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


@command(app, "list")
@filtered
async def list_(
    session: Session,
    chosen: Chosen,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Older than this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 50,
) -> None:
    """List jobs, newest first."""
    async with session.operations() as operations:
        which, cursor = chosen.read(operations.now), await _cursor(operations, before)
        found = [job async for job in pages(operations.jobs.list, which, cursor=cursor, most=limit + 1)]
        now, shown = operations.now, found[:limit]
    if session.as_json:
        session.out.json(shown)
    elif not found:
        session.out.say(
            "no job matches"
            if chosen.given or before is not None
            else "no jobs yet; create one with `headway enqueue TASK`"
        )
    else:
        columns = [
            Column("id", "quiet"),
            Column("status"),
            Column("task", "name", wraps=True),
            Column("schedule", wraps=True, spare=True),
            Column("created", "time", spare=True),
            Column("why", wraps=True),
        ]
        session.out.table(columns, [_row(job, now) for job in shown])
    if len(found) > limit:
        session.out.note(f"there are more: --before {found[limit - 1].id}")


def _row(job: Job, now: Instant) -> tuple[object, ...]:
    created = away(parse_instant(job.created_at), now)
    return job.id, job.status, job.type, job_label(job.tenant, job.schedule), created, job.why


@command(app)
async def show(session: Session, job_id: IdArgument) -> None:
    """Show one job: its options, progress, attempts, errors and reruns."""
    async with session.operations() as operations:
        job = await _find(operations, job_id)
        reason = await operations.jobs.why(job.id)
        attempts = (await operations.jobs.attempts(job.id)).items
        names = await node_names(operations)
    job = msgspec.structs.replace(job, why=reason.why)
    shown = {**msgspec.to_builtins(job), "history": attempts, "reruns": reason.evidence.get("reruns", [])}
    if session.as_json:
        session.out.json(shown)
        return
    session.out.facts(_facts(job, shown))
    _tell_steps(session.out, (job.detail.steps if job.detail is not None else None) or [])
    _tell_attempts(session.out, attempts, names)
    _tell_error(session.out, job.error)


def _facts(job: Job, shown: Mapping[str, Any]) -> dict[str, object]:
    hidden = {"batch", "version", "detail", "history", "error", "progress", "eta_seconds", "attempts", "failures"}
    hidden |= {"max_attempts", "node", "ready_at", "reviewed_at", "parked", "reason"}
    facts: dict[str, object] = {"id": job.id, "type": job.type, "status": job.status, "why": job.why}
    if job.status is Status.RUNNING:
        left = "" if job.eta_seconds is None else f", about {span(job.eta_seconds * SECOND)} left"
        facts["progress"] = f"{job.progress}%{left}"
    facts["attempts"] = f"{job.attempts} ({job.failures} failed, {job.max_attempts} allowed)" if job.attempts else ""
    facts["key"] = job.key
    facts |= {name: _plain(value) for name, value in shown.items() if name not in hidden and name not in facts}
    return facts


def _plain(value: Any) -> object:
    if isinstance(value, dict):
        return to_json(value) if value else ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value


def _tell_steps(out: Output, steps: Sequence[Step]) -> None:
    if not steps:
        return
    marks = {"done": "✓", "running": "▸"}
    out.say("steps", "quiet")
    rows = [
        (marks.get(step.state, " "), step.name, "" if step.seconds is None else span(round(step.seconds * SECOND)))
        for step in steps
    ]
    out.table((Column("", "good"), Column("", wraps=True), Column("", "quiet", right=True)), rows, indent=2)


def _tell_attempts(out: Output, attempts: Sequence[Attempt], names: dict[str, str]) -> None:
    if not attempts:
        return
    out.say("attempts", "quiet")
    columns = (
        Column("", "name", right=True),
        Column("", "time"),
        Column("", "quiet", right=True),
        Column(""),
        Column("", "quiet"),
        Column("", wraps=True),
    )
    out.table(columns, [_attempt_row(attempt, names) for attempt in attempts], indent=2)


def _attempt_row(attempt: Attempt, names: dict[str, str]) -> tuple[object, ...]:
    begin, end = attempt.started_at, attempt.ended_at
    text = attempt.reason or ""
    if attempt.error is not None:
        line = error_words(attempt.error.type, attempt.error.message)
        text = f"{text}: {line}" if text else line
    node = attempt.node or ""
    return (
        attempt.attempt,
        (begin or "")[:19].replace("T", " "),
        _seconds_between(begin, end),
        attempt.outcome,
        names.get(node, node),
        text,
    )


def _seconds_between(begin: str | None, end: str | None) -> str:
    return "" if begin is None or end is None else span(max(0, parse_instant(end) - parse_instant(begin)))


def _tell_error(out: Output, error: Failure | None) -> None:
    if error is None:
        return
    out.say("error", "quiet")
    out.say(f"  {clean(error_words(error.type, error.message))}", "bad")
    lines = (error.traceback or "").splitlines()
    for line in lines[-TRACEBACK_LINES_MAX:]:
        out.say(f"  {clean(line)}", "quiet")


@command(app)
async def why(session: Session, job_id: IdArgument) -> None:
    """Explain why a job has its status, in one sentence, with the evidence."""
    async with session.operations() as operations:
        job = await _find(operations, job_id)
        now = operations.now
        reason = await operations.jobs.why(job.id)
    if session.as_json:
        session.out.json({"status": reason.status, "why": reason.why, "evidence": reason.evidence})
        return
    since = span(max(0, now - _since(job)))
    session.out.say(clean(f"{job.id} {job.type} is {reason.status} ({since})"), "name")
    evidence = {
        name.replace("_", " "): _plain(value)
        for name, value in reason.evidence.items()
        if name not in ("job", "task", "cure") and value not in (None, "", [], {})
    }
    cure = {"cure": text} if (text := reason.evidence.get("cure")) and text not in reason.why else {}
    session.out.facts({"why": reason.why, **cure, **evidence})


def _since(job: Job) -> Instant:
    """Return since when a job has had its status."""
    by_status = {Status.PENDING: job.ready_at, Status.RUNNING: job.started_at, Status.SCHEDULED: job.created_at}
    return parse_instant(job.finished_at or by_status.get(job.status) or job.updated_at)


@command(app)
async def watch(session: Session, job_id: IdArgument, timeout: TimeoutOption = None) -> int:
    """Show the progress of a job until it has ended, also of one that has not started.

    Ctrl-C stops watching, not the job. The exit code is 0 when it completed, else 1.
    """
    timeout_s = read_timeout(timeout, True)
    async with session.operations() as operations:
        return await watch_job(session, operations, (await _find(operations, job_id)).id, timeout_s=timeout_s)


@command(app)
async def logs(
    session: Session,
    job_id: IdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    number: Annotated[
        int | None,
        typer.Option("-n", "--number", metavar="N", min=0, max=LOG_LINES_MAX, help="Only this many of the last lines."),
    ] = None,
) -> int:
    """Show the log of a job."""
    async with session.operations() as operations:
        job = await _find(operations, job_id)
        lines = await _read_log(operations, job.id, number)
        kept = lines if number is None else lines[len(lines) - min(number, len(lines)) :]
        if session.as_json and not follow:
            session.out.json(kept)
            return 0
        writer = _LogWriter(session)
        writer.write(kept)
        if not follow:
            if not lines:
                session.out.note("nothing was logged" + ("" if job.status.is_final else " yet"))
            return 0
        try:
            await _follow_log(operations, job.id, lines[-1].seq if lines else None, writer)
        except asyncio.CancelledError:  # Ctrl-C.
            session.out.note("stopped following; the job goes on")
            return INTERRUPTED
    return 0


async def _read_log(operations: Operations, job_id: str, number: int | None) -> list[LogLine]:
    """Read the log, oldest line first: all of it, or the last lines, at least one of them."""
    if number is None:
        return [line async for line in pages(operations.jobs.log, job_id)]
    newest = [line async for line in pages(operations.jobs.log, job_id, order="desc", most=max(number, 1))]
    return newest[::-1]


async def _follow_log(operations: Operations, job_id: str, after: int | None, writer: "_LogWriter") -> None:
    wake = asyncio.Event()
    is_over = False
    while not is_over:
        is_over = (
            await operations.jobs.show(job_id)
        ).status.is_final  # Read before the lines, so that this is the last round.
        cursor = None if after is None else str(after)
        lines = [line async for line in pages(operations.jobs.log, job_id, cursor=cursor)]
        writer.write(lines)
        after = lines[-1].seq if lines else after
        if not is_over:
            await operations.clock.rest(LOOK_S, wake)


class _LogWriter:
    """Prints log lines with their time, and a mark where another attempt begins."""

    def __init__(self, session: Session) -> None:
        self._out, self._as_json = session.out, session.as_json
        self._attempt: int | None = None

    def write(self, lines: Sequence[LogLine]) -> None:
        """Write some lines."""
        for line in lines:
            if self._as_json:
                print(to_json(line), flush=True)
                continue
            if self._attempt is not None and line.attempt != self._attempt:
                self._out.say(f"— attempt {line.attempt}", "quiet")
            self._attempt = line.attempt
            text = f"{_milliseconds(parse_instant(line.at))}  {clean(_source(line) + line.line)}"
            self._out.say(text, _LEVEL_STYLES.get(line.level, ""))


_LEVEL_STYLES: Final = {"debug": "quiet", "warning": "warn", "error": "bad", "critical": "bad"}


def _source(line: LogLine) -> str:
    """Return the level and logger of a line; empty for printed output."""
    if line.logger:
        return f"{line.level.upper()} {line.logger}: "
    return "" if line.stream in ("log", "stdout") else f"{line.stream}: "


def _precise(instant: Instant) -> str:
    return f"{to_datetime(instant):%Y-%m-%d} {_milliseconds(instant)}"


def _milliseconds(instant: Instant) -> str:
    return to_datetime(instant // MILLISECOND * MILLISECOND).strftime("%H:%M:%S.%f")[:-3]


@command(app)
async def events(session: Session, job_id: IdArgument) -> None:
    """Show the history of a job: every change of its status, when, why and by whom."""
    async with session.operations() as operations:
        job = await _find(operations, job_id)
        found = (await operations.jobs.history(job.id)).items
        names = await node_names(operations)
    if session.as_json:
        session.out.json(found)
        return
    rows = [(_precise(parse_instant(entry.at)), entry.event, _event_words(entry.data, names)) for entry in found]
    session.out.table((Column("at (UTC)", "time"), Column("event", "name"), Column("", wraps=True)), rows)


def _event_words(data: Any, names: dict[str, str]) -> str:
    if not isinstance(data, dict):
        return str(data)
    if "node" in data:
        data = {**data, "node": names.get(data["node"], data["node"])}
    return "  ".join(f"{name} {_plain(value)}" for name, value in data.items() if value not in (None, ""))


@command(app)
@filtered
async def retry(
    session: Session,
    chosen: Chosen,
    ids: IdsArgument = None,
    arg: ArgOption = None,
    args: ArgsOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the progress of the new job until it has ended.")
    ] = False,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Run finished jobs again, each as a new job linked to it; parked jobs are tried again themselves.

    \b
    headway jobs retry job_01m7…                       one, perhaps with other arguments: -a day=monday
    headway jobs retry --status failed --task report   all that match; shows the number and asks first

    Jobs that were already retried are left alone.
    """
    other = read_args(arg, args) if arg or args is not None else None
    _require_which(ids, chosen)
    if len(ids or ()) != 1 and (watch or other is not None):
        raise DefinitionError("--watch, -a and --args are for one job: give its id")
    async with session.operations() as operations:
        if ids is None or len(ids) != 1 or dry_run:
            return await _many(session, operations, "retry", ids, chosen, reason, dry_run=dry_run, yes=yes)
        found = await _find(operations, ids[0])
        job = await operations.jobs.retry(found.id, args=other)
        if watch:
            return await watch_job(session, operations, job.id)
        if session.as_json:
            session.out.json(job)
        elif job.id == found.id:
            session.out.say(clean(f"{job.id} is tried again"))
        else:
            session.out.say(clean(f"{job.id} {job.status}: runs {found.id} again"))
    return 0


@command(app)
@filtered
async def cancel(
    session: Session,
    chosen: Chosen,
    ids: IdsArgument = None,
    reason: ReasonOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has stopped.")] = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Cancel jobs; those that run are asked to stop.

    \b
    headway jobs cancel job_01m7…                         one
    headway jobs cancel --status pending --queue media    all that match; shows the number and asks first
    """
    timeout_s = read_timeout(timeout, wait)
    _require_which(ids, chosen)
    if len(ids or ()) != 1 and wait:
        raise DefinitionError("--wait is for one job: give its id")
    async with session.operations() as operations:
        if ids is None or len(ids) != 1 or dry_run:
            return await _many(session, operations, "cancel", ids, chosen, reason, dry_run=dry_run, yes=yes)
        job = await operations.jobs.cancel((await _find(operations, ids[0])).id, reason=reason)
        if wait and not job.status.is_final:
            await stay(session, operations, job.id, draws=False, timeout_s=timeout_s)
            job = await operations.jobs.show(job.id)
            return 0 if job.status is Status.CANCELLED else FAILED if job.status.is_final else INTERRUPTED
        await tell(session, job, operations)
    return 0


def _require_which(ids: list[str] | None, chosen: Chosen) -> None:
    if bool(ids) == bool(chosen.given):
        raise DefinitionError("give ids, or filters such as --status failed")


async def _many(
    session: Session,
    operations: Operations,
    verb: Literal["retry", "cancel"],
    ids: list[str] | None,
    chosen: Chosen,
    reason: str,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Retry or cancel the jobs with these ids, or all that match; ask first unless ids were given."""
    act = operations.jobs.retry_many if verb == "retry" else operations.jobs.cancel_many
    if ids:
        named = [(await _find(operations, job_id)).id for job_id in ids]
        outcome = await act(ManyJobs(ids=named, reason=reason, dry_run=dry_run))
    else:
        matching = ManyJobs(filter=chosen.read(operations.now), reason=reason)
        outcome = await act(msgspec.structs.replace(matching, dry_run=True))
        if not dry_run and outcome.matched:
            number = _how_many(outcome)
            confirm(f"This runs {number} again." if verb == "retry" else f"This cancels {number}.", yes=yes)
            outcome = await _until_done(act, matching, outcome)
    if session.as_json:
        session.out.json(outcome)
    elif dry_run:
        session.out.say(f"{_how_many(outcome)} would be {'run again' if verb == 'retry' else 'cancelled'}")
    elif not outcome.matched and not outcome.refused:
        session.out.say("no job matches that could be " + ("run again" if verb == "retry" else "cancelled"))
    else:
        done = count(outcome.done, "job")
        session.out.say(f"{done} enqueued" if verb == "retry" else f"{done} cancelled or asked to stop")
    for each in outcome.refused:
        session.out.note(clean(f"{each.id}: {each.reason}"))
    if outcome.more and not dry_run:
        session.out.note(f"at most {LIST_MAX:,} are taken at once; there are more")
    return FAILED if outcome.refused else 0


async def _until_done(
    act: Callable[[ManyJobs], Awaitable[ManyOutcome]], many: ManyJobs, counted: ManyOutcome
) -> ManyOutcome:
    """Repeat until nothing is left: each request takes a bounded number."""
    total = msgspec.structs.replace(counted, done=0, refused=[])
    while total.done < LIST_MAX:
        outcome = await act(many)
        total.done += outcome.done
        total.refused += outcome.refused
        total.more = outcome.more
        if not outcome.more or not outcome.done:
            break
    return total


def _how_many(outcome: ManyOutcome) -> str:
    number = count(outcome.matched, "job")
    return number if outcome.is_exact else f"more than {number}"


async def _find(operations: Operations, text: str) -> Job:
    """Return the job with this id or id prefix."""
    return await operations.jobs.show(text if text.startswith("job_") else f"job_{text}")


async def _cursor(operations: Operations, before: str | None) -> str | None:
    """Return the complete id of the job before which a list begins."""
    return before if before is None or JOB_ID.fullmatch(before) else (await _find(operations, before)).id
