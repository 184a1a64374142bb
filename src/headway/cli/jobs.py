"""`headway jobs`: look at jobs, ask why, follow them, and steer them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

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
from headway.cli.session import AUTHOR, Desk, Session, command, new_group, paged
from headway.cli.text import away, clean, count, span
from headway.cli.watch import INTERRUPTED, LOOK_S, stay, tell
from headway.cli.watch import watch as watch_job
from headway.core.errors import DefinitionError
from headway.core.instants import MILLISECOND, SECOND, Instant, parse_instant, to_datetime
from headway.core.job_details import Step, error_line, read_detail, read_json
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.operations import audit_log as deeds
from headway.store import Store
from headway.store.bulk import Verb
from headway.wire.base import stamp
from headway.wire.jobs import LogLine, attempt_of, line_of
from headway.wire.shapes import Shape

LIST_MAX: Final = 10_000
LOG_PAGE: Final = 1_000
LOG_LINES_MAX: Final = 1_000_000
TRACEBACK_LINES_MAX: Final = 40
FAILED: Final = 1

app = new_group(help="List, show, watch, retry and cancel jobs, and ask why they are where they are.")

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the job, or the beginning of it when that is unique.")
]


IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The id of the job, or the beginning of it; or several.")
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
    async with session.open() as desk:
        found = await desk.told(await paged(desk.store.jobs.page, chosen.read(desk.now), before, limit + 1))
        names = await desk.node_names() if any(job.status is Status.RUNNING for job in found) else {}
        now, shapes = desk.now, [desk.job_shape(job, names=names) for job in found[:limit]]
    if session.as_json:
        session.out.json(shapes)
    elif not found:
        session.out.say(
            "no job matches" if chosen.given or before is not None else "no jobs yet; `headway enqueue TASK` makes one"
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
        session.out.table(columns, [_row(shape, now) for shape in shapes])
    if len(found) > limit:
        session.out.note(f"there are more: --before {found[limit - 1].id}")


def _row(shape: Shape, now: Instant) -> tuple[object, ...]:
    created = away(parse_instant(shape["created_at"]), now)
    return (
        shape["id"],
        shape["status"],
        shape["type"],
        job_label(shape["tenant"], shape["schedule"]),
        created,
        shape["why"],
    )


@command(app)
async def show(session: Session, job_id: IdArgument) -> None:
    """Show one job: what it is, how far it is, its attempts, what went wrong, and who repeats whom."""
    async with session.open() as desk:
        [job] = await desk.told([await _job(desk, job_id)])
        reason = await desk.why(job)
        attempts = [msgspec.to_builtins(attempt_of(attempt)) for attempt in await desk.store.jobs.attempts(job.id)]
        reruns = await desk.store.jobs.reruns(job.id)
        names = await desk.node_names()
        shape = {**desk.job_shape(job, why=reason), "history": attempts, "reruns": reruns}
    if session.as_json:
        session.out.json(shape)
        return
    session.out.facts(_facts(shape, job))
    _tell_steps(session.out, read_detail(job).steps)
    _tell_attempts(session.out, attempts, names)
    _tell_error(session.out, shape["error"])


def _facts(shape: Shape, job: Job) -> dict[str, object]:
    hidden = {"batch", "version", "detail", "history", "error", "progress", "eta_seconds", "attempts", "failures"}
    hidden |= {"max_attempts", "node", "ready_at", "reviewed_at", "parked", "reason"}
    facts: dict[str, object] = {
        "id": shape["id"],
        "type": shape["type"],
        "status": shape["status"],
        "why": shape["why"],
    }
    if job.status is Status.RUNNING:
        left = "" if shape["eta_seconds"] is None else f", about {span(shape['eta_seconds'] * SECOND)} left"
        facts["progress"] = f"{job.progress}%{left}"
    facts["attempts"] = f"{job.attempt} ({job.failures} failed, {job.max_attempts} allowed)" if job.attempt else ""
    facts["key"] = shape["key"]
    facts |= {name: _plain(value) for name, value in shape.items() if name not in hidden and name not in facts}
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


def _tell_attempts(out: Output, attempts: Sequence[Shape], names: dict[str, str]) -> None:
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


def _attempt_row(attempt: Shape, names: dict[str, str]) -> tuple[object, ...]:
    begin, end = attempt["started_at"], attempt["ended_at"]
    took = _seconds_between(begin, end)
    error = attempt["error"]
    text = attempt["reason"] or ""
    if error is not None:
        line = error_line(to_json(error))
        text = f"{text}: {line}" if text else line
    node = attempt["node"] or ""
    return (
        attempt["attempt"],
        (begin or "")[:19].replace("T", " "),
        took,
        attempt["outcome"],
        names.get(node, node),
        text,
    )


def _seconds_between(begin: str | None, end: str | None) -> str:
    return "" if begin is None or end is None else span(max(0, parse_instant(end) - parse_instant(begin)))


def _tell_error(out: Output, error: Shape | None) -> None:
    if error is None:
        return
    out.say("error", "quiet")
    out.say(f"  {clean(error_line(to_json(error)))}", "bad")
    lines = str(error.get("traceback") or "").splitlines()
    for line in lines[-TRACEBACK_LINES_MAX:]:
        out.say(f"  {clean(line)}", "quiet")


@command(app)
async def why(session: Session, job_id: IdArgument) -> None:
    """Say why a job is where it is, in one sentence, with the evidence."""
    async with session.open() as desk:
        job = await _job(desk, job_id)
        now = desk.now
        reason = await desk.explain(job)
    if session.as_json:
        session.out.json({"status": reason.status, "why": reason.why, "evidence": reason.evidence})
        return
    since = span(max(0, now - _since(job)))
    session.out.say(clean(f"{job.id} {job.task} is {reason.status} ({since})"), "name")
    evidence = {
        name.replace("_", " "): _plain(value)
        for name, value in reason.evidence.items()
        if name not in ("job", "task", "cure") and value not in (None, "", [], {})
    }
    cure = {"cure": text} if (text := reason.evidence.get("cure")) and text not in reason.why else {}
    session.out.facts({"why": reason.why, **cure, **evidence})


def _since(job: Job) -> Instant:
    """Return since when a job has been where it is."""
    by_status = {Status.PENDING: job.ready_at, Status.RUNNING: job.started_at, Status.SCHEDULED: job.created_at}
    since = job.finished_at or by_status.get(job.status)
    return job.updated_at if since is None else since


@command(app)
async def watch(session: Session, job_id: IdArgument, timeout: TimeoutOption = None) -> int:
    """Show the progress of a job until it has ended, also one that has not begun.

    Ctrl-C stops watching, not the job. The exit code is 0 when it completed, else 1.
    """
    timeout_s = read_timeout(timeout, True)
    async with session.open() as desk:
        return await watch_job(session, desk, (await _job(desk, job_id)).id, timeout_s=timeout_s)


@command(app)
async def logs(
    session: Session,
    job_id: IdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    number: Annotated[
        int | None, typer.Option("-n", "--number", metavar="N", min=0, max=LOG_LINES_MAX, help="Only the last so many.")
    ] = None,
) -> int:
    """Show what a job has logged."""
    async with session.open() as desk:
        job = await _job(desk, job_id)
        lines = [line async for line in _log(desk.store, job.id)]
        kept = lines if number is None else list(deque(lines, maxlen=number))
        if session.as_json and not follow:
            session.out.json([line_of(line) for line in kept])
            return 0
        writer = _LogWriter(session)
        writer.write(kept)
        if not follow:
            if not lines:
                session.out.note("nothing was logged" + ("" if job.status.is_final else " yet"))
            return 0
        try:
            await _follow_log(desk, job.id, lines[-1]["seq"] if lines else 0, writer)
        except asyncio.CancelledError:  # Ctrl-C.
            session.out.note("stopped following; the job goes on")
            return INTERRUPTED
    return 0


async def _log(store: Store, job_id: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
    while page := await store.jobs.log(job_id, after=after, limit=LOG_PAGE):
        for line in page:
            yield line
        after = page[-1]["seq"]


async def _follow_log(desk: Desk, job_id: str, after: int, writer: "_LogWriter") -> None:
    wake = asyncio.Event()
    is_over = False
    while not is_over:
        is_over = (await desk.store.jobs.get(job_id)).status.is_final  # Before the look, so that it is the last one.
        lines = [line async for line in _log(desk.store, job_id, after)]
        writer.write(lines)
        after = lines[-1]["seq"] if lines else after
        if not is_over:
            await desk.clock.rest(LOOK_S, wake)


class _LogWriter:
    """Writes lines of a log: with their time, and a mark where another attempt begins."""

    def __init__(self, session: Session) -> None:
        self._out, self._as_json = session.out, session.as_json
        self._attempt: int | None = None

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write some lines."""
        for line in lines:
            if self._as_json:
                print(to_json(line_of(line)), flush=True)
                continue
            if self._attempt is not None and line["attempt"] != self._attempt:
                self._out.say(f"— attempt {line['attempt']}", "quiet")
            self._attempt = line["attempt"]
            shown = line_of(line)
            text = f"{_milliseconds(line['at'])}  {clean(_source(shown) + line['line'])}"
            self._out.say(text, _LEVEL_STYLES.get(shown.level, ""))


_LEVEL_STYLES: Final = {"debug": "quiet", "warning": "warn", "error": "bad", "critical": "bad"}


def _source(line: LogLine) -> str:
    """Say who has logged a line, and how bad it is; what is only printed needs no name."""
    if line.logger:
        return f"{line.level.upper()} {line.logger}: "
    return "" if line.stream in ("log", "stdout") else f"{line.stream}: "


def _precise(instant: Instant) -> str:
    return f"{to_datetime(instant):%Y-%m-%d} {_milliseconds(instant)}"


def _milliseconds(instant: Instant) -> str:
    return to_datetime(instant // MILLISECOND * MILLISECOND).strftime("%H:%M:%S.%f")[:-3]


@command(app)
async def events(session: Session, job_id: IdArgument) -> None:
    """Show the history of a job: every change of its state, when, why and by whom."""
    async with session.open() as desk:
        job = await _job(desk, job_id)
        found = await desk.store.jobs.events(job.id)
        names = await desk.node_names()
    if session.as_json:
        session.out.json([{**event, "at": stamp(event["at"]), "data": read_json(event["data"])} for event in found])
        return
    rows = [(_precise(event["at"]), event["event"], _event_words(event["data"], names)) for event in found]
    session.out.table((Column("at (UTC)", "time"), Column("event", "name"), Column("", wraps=True)), rows)


def _event_words(text: str, names: dict[str, str]) -> str:
    data = read_json(text)
    if not isinstance(data, dict):
        return str(data)
    if "node" in data:
        data["node"] = names.get(data["node"], data["node"])
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
    """Run jobs that have ended once more, each as a new job linked to it; have parked ones looked at again.

    \b
    headway jobs retry job_01m7…                       one, perhaps with other arguments: -a day=monday
    headway jobs retry --status failed --task report   all that match; says the count and asks first

    What matches and was retried already is left alone.
    """
    other = read_args(arg, args) if arg or args is not None else None
    _require_which(ids, chosen)
    if len(ids or ()) != 1 and (watch or other is not None):
        raise DefinitionError("--watch, -a and --args are for one job: say its id")
    async with session.open() as desk:
        if ids is None or len(ids) != 1 or dry_run:
            return await _many(session, desk, "retry", ids, chosen, reason, dry_run=dry_run, yes=yes)
        found = await _job(desk, ids[0])
        job = await desk.retry(found, other)
        if watch:
            return await watch_job(session, desk, job.id)
        if session.as_json:
            session.out.json(desk.job_shape(job))
        elif job.id == found.id:
            session.out.say(clean(f"{job.id} is looked at again"))
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
    """End jobs that have not begun; ask those that run to stop.

    \b
    headway jobs cancel job_01m7…                         one
    headway jobs cancel --status pending --queue media    all that match; says the count and asks first
    """
    timeout_s = read_timeout(timeout, wait)
    _require_which(ids, chosen)
    if len(ids or ()) != 1 and wait:
        raise DefinitionError("--wait is for one job: say its id")
    async with session.open() as desk:
        if ids is None or len(ids) != 1 or dry_run:
            return await _many(session, desk, "cancel", ids, chosen, reason, dry_run=dry_run, yes=yes)
        found = await _job(desk, ids[0])
        job = await desk.acting(deeds.cancel(found, reason)).queue.cancel(found.id, author=AUTHOR, reason=reason)
        if wait and not job.status.is_final:
            await stay(session, desk, job.id, draws=False, timeout_s=timeout_s)
            job = await desk.store.jobs.get(job.id)
            return 0 if job.status is Status.CANCELLED else FAILED if job.status.is_final else INTERRUPTED
        await tell(session, job, desk)
    return 0


def _require_which(ids: list[str] | None, chosen: Chosen) -> None:
    if bool(ids) == bool(chosen.given):
        raise DefinitionError("say which: ids, or filters such as --status failed")


async def _many(
    session: Session,
    desk: Desk,
    verb: Verb,
    ids: list[str] | None,
    chosen: Chosen,
    reason: str,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Do something to the jobs with these ids, or to all that match; ask first where they were not named."""
    filters = chosen.read(desk.now)
    named = [(await _job(desk, job_id)).id for job_id in ids] if ids else None
    outcome = await desk.act_on_many(verb, ids=named, filters=filters, reason=reason, dry_run=dry_run or named is None)
    if named is None and not dry_run and outcome["matched"]:
        number = _how_many(outcome)
        confirm(f"This runs {number} again." if verb == "retry" else f"This cancels {number}.", yes=yes)
        outcome = await _until_done(desk, verb, filters, reason, outcome)
    if session.as_json:
        session.out.json(outcome)
    elif dry_run:
        session.out.say(f"{_how_many(outcome)} would be {'run again' if verb == 'retry' else 'cancelled'}")
    elif not outcome["matched"] and not outcome["refused"]:
        session.out.say("no job matches that could be " + ("run again" if verb == "retry" else "cancelled"))
    else:
        done = count(outcome["done"], "job")
        session.out.say(f"{done} enqueued" if verb == "retry" else f"{done} cancelled or asked to stop")
    for each in outcome["refused"]:
        session.out.note(clean(f"{each['id']}: {each['reason']}"))
    if outcome["more"] and not dry_run:
        session.out.note(f"at most {LIST_MAX:,} are taken at once; there are more")
    return FAILED if outcome["refused"] else 0


async def _until_done(desk: Desk, verb: Verb, filters: dict[str, Any], reason: str, counted: Shape) -> Shape:
    """Go on until there is nothing more to do; as each time a bounded number is taken."""
    total: Shape = {**counted, "done": 0, "refused": []}
    while total["done"] < LIST_MAX:
        outcome = await desk.act_on_many(verb, filters=filters, reason=reason)
        total["done"] += outcome["done"]
        total["refused"] += outcome["refused"]
        total["more"] = outcome["more"]
        if not outcome["more"] or not outcome["done"]:
            break
    return total


def _how_many(outcome: Shape) -> str:
    number = count(outcome["matched"], "job")
    return number if outcome["is_exact"] else f"more than {number}"


async def _job(desk: Desk, job_id: str) -> Job:
    return await desk.store.jobs.get(job_id if job_id.startswith("job_") else f"job_{job_id}")
