"""`headway schedules put` and `apply`: define schedules by options or from a file, and preview the changes.

A file is TOML (or the same as JSON):

    [schedules.daily-report]
    task = "report"
    cron = "0 6 * * *"          # or every = "30s", after = "10m", at = "2027-01-01T00:00"
    tz = "Europe/Berlin"        # with cron and at; dst and seconds with cron
    args = { day = "yesterday" }
    missed = "latest"           # and every other policy by its name in Python
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from headway.cli.instants import PREVIEW_COLUMNS, preview_rows
from headway.cli.parsing import ArgOption, ArgsOption, confirm, read_args
from headway.cli.schedule_names import Name, NameArgument, which
from headway.cli.session import Session
from headway.cli.text import clean
from headway.core.errors import (
    DefinitionError,
    InvalidSchedule,
    NotFound,
    ScheduleNotFound,
    ScheduleOwned,
    TaskNotFound,
)
from headway.core.instants import Instant
from headway.core.schedule_names import schedule_label
from headway.core.schedules import ScheduleSpec
from headway.core.settings import DEFINITIONS, Settings
from headway.core.tenants import check_tenant
from headway.core.triggers import Cron, describe, trigger_from_dict
from headway.core.validation import check_name
from headway.operations.everything import Operations
from headway.operations.verbs import pages
from headway.tasks.definitions import Definitions, inherited, table_of, take_trigger
from headway.wire.schedule_requests import APPLIED_MAX, NamedSchedule, SchedulesBody
from headway.wire.schedules import Preview, Schedule, ScheduleChange, complete_definition, definition_of

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
TOLD_IN_FULL: Final = 100  # For more schedules only the outcome is shown, not the instants.
PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
WARNINGS_SHOWN: Final = 10

ForceOption = Annotated[bool, typer.Option("--force", help="Take over a schedule that belongs to an app or a file.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show the next instants before and after.")
]


def cron(expr: str, tz: str | None, dst: str | None, seconds: str | None) -> Cron:
    """Make a cron trigger from the options."""
    return Cron(expr, tz or "UTC", cast("Any", dst or "shift"), seconds)


async def put(
    session: Session,
    name: NameArgument,
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="What runs.")],
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="EXPR", help="At the times of a cron expression.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="The time zone of --cron or --at, default UTC.")
    ] = None,
    dst: Annotated[str | None, typer.Option("--dst", metavar="RULE", help="shift, skip or both.")] = None,
    seconds: Annotated[str | None, typer.Option("--seconds", metavar="FIELD", help="The seconds of --cron.")] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="INTERVAL", help="At a fixed rate.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="DELAY", help="This long after the last job ended (fixed delay).")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="Once.")] = None,
    arg: ArgOption = None,
    args: ArgsOption = None,
    overlap: Annotated[
        str | None,
        typer.Option("--overlap", metavar="RULE", help="While its last job is live: skip, queue, allow or replace."),
    ] = None,
    queue_limit: Annotated[
        int | None,
        typer.Option("--queue-limit", metavar="N", help="Maximum number of waiting jobs with --overlap queue."),
    ] = None,
    missed: Annotated[
        str | None,
        typer.Option("--missed", metavar="RULE", help="Policy for instants not decided in time: latest, all or skip."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="DURATION", help="How late it may still start.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="DURATION", help="Lateness that still counts as on time.")
    ] = None,
    catch_up_limit: Annotated[
        int | None, typer.Option("--catch-up-limit", metavar="N", help="Maximum number of instants with --missed all.")
    ] = None,
    catch_up_rate: Annotated[
        str | None, typer.Option("--catch-up-rate", metavar="RATE", help="Rate limit with --missed all: 10/m.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option("--jitter", metavar="DURATION", help="Spread the starts randomly over this time.")
    ] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="T", help="No instants before this time.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="T", help="No instants after this time.")] = None,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="DURATION", help="How long its jobs are expected to take.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue of its jobs.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="Jobs with a higher priority run first.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="The tenant of the schedule and its jobs, instead of tenant/name."
        ),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Maximum number of attempts of a job.")
    ] = None,
    backoff: Annotated[
        str | None, typer.Option("--backoff", metavar="RANGE", help="The wait between attempts: 5s..5m.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be given several times.")] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Cancel a job that has not started after this time."),
    ] = None,
    callback_url: Annotated[
        str | None, typer.Option("--callback-url", metavar="URL", help="URL that is notified when its jobs end.")
    ] = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Create or change a schedule.

    \b
    headway schedules put daily-report --task report --cron '0 6 * * *' --tz Europe/Berlin --missed latest
    """
    given: dict[str, Any] = {
        "task": task,
        "cron": cron,
        "tz": tz,
        "dst": dst,
        "seconds": seconds,
        "every": every,
        "after": after,
        "at": at,
        "args": read_args(arg, args),
        "overlap": overlap,
        "queue_limit": queue_limit,
        "missed": missed,
        "deadline": deadline,
        "grace": grace,
        "catch_up_limit": catch_up_limit,
        "catch_up_rate": catch_up_rate,
        "jitter": jitter,
        "start": start,
        "end": end,
        "expect": expect,
        "callback_url": callback_url,
        "expires": expires,
        "queue": queue,
        "priority": priority,
        "tenant": tenant,
        "max_attempts": max_attempts,
        "backoff": backoff,
        "tags": tag,
    }
    spec = build_spec(tasks_of(session), {option: value for option, value in given.items() if value is not None})
    async with session.operations("imagine" if dry_run else "create") as operations:
        ref = await which(operations, name, tenant)
        check_name(ref.name, "schedule name")
        [change] = await _apply(operations, [_named(ref, spec)], owner="", force=force, dry_run=dry_run)
        schedule = None
        if session.as_json and not dry_run:
            schedule = await operations.schedules.get(change.name, tenant=change.tenant)
        now = operations.now
    warnings = _warnings([(change, spec)], tasks_of(session))
    if schedule is not None:
        outcome, warned = change.outcome, warnings
        session.out.json(msgspec.structs.replace(schedule, outcome=outcome, warnings=warned))
    elif session.as_json:
        definition = {**definition_of(spec), "tenant": change.tenant}
        session.out.json({**_fields(change), "dry_run": True, "definition": definition, "warnings": warnings})
    else:
        _tell(session, change, now, dry_run=dry_run)
        _warn(session, warnings)


def _named(ref: Name, spec: ScheduleSpec) -> NamedSchedule:
    """Convert a definition for the operations; the tenant is the given one, else that of the task's jobs."""
    fields = complete_definition(spec)
    if ref.tenant is not None:
        fields["tenant"] = check_tenant(ref.tenant, "tenant")
    return msgspec.convert({"name": ref.name, **fields}, NamedSchedule)


async def _apply(
    operations: Operations, schedules: Sequence[NamedSchedule], *, owner: str, force: bool, dry_run: bool
) -> list[ScheduleChange]:
    """Write definitions, or return the plan; an error names the option that takes schedules over."""
    changes: list[ScheduleChange] = []
    try:
        for piece in _pieces(schedules):
            body = SchedulesBody(schedules=piece)
            applied = await operations.schedules.apply(body, owner=owner or None, take_over=force, dry_run=dry_run)
            changes += applied.items
    except ScheduleOwned as error:
        raise ScheduleOwned(str(error).replace("take_over=1", "--force")) from None
    return changes


def _pieces(schedules: Sequence[NamedSchedule]) -> Iterator[list[NamedSchedule]]:
    """Split definitions into requests, bounded by number and size."""
    piece: list[NamedSchedule] = []
    size = 0
    for schedule in schedules:
        length = len(msgspec.json.encode(schedule))
        if piece and (len(piece) == APPLIED_MAX or size + length > PIECE_BYTES_MAX):
            yield piece
            piece, size = [], 0
        piece.append(schedule)
        size += length
    if piece:
        yield piece


# Warnings ---------------------------------------------------------------------------------------------------


def _warnings(changes: Iterable[tuple[ScheduleChange, ScheduleSpec]], tasks: Mapping[str, Any]) -> list[str]:
    """Warn of arguments that do not fit their task, and of unknown tasks whose jobs could not run now."""
    misfits, unserved = [], []
    for change, spec in changes:
        if spec.task not in tasks:
            unserved += change.warnings
            continue
        try:
            tasks[spec.task].bind((), msgspec.json.decode(spec.args))
        except DefinitionError as error:
            label = schedule_label(change.tenant, change.name)
            misfits.append(f"the arguments of {label!r} do not fit {spec.task!r}: {error}")
    return misfits + list(dict.fromkeys(unserved))


def _warn(session: Session, warnings: Sequence[str]) -> None:
    for warning in warnings[:WARNINGS_SHOWN]:
        session.out.note(clean(f"warning: {warning}"))
    if len(warnings) > WARNINGS_SHOWN:
        session.out.note(f"warning: and {len(warnings) - WARNINGS_SHOWN} more; --json has all")


# Changes ----------------------------------------------------------------------------------------------------


def _fields(change: ScheduleChange) -> dict[str, Any]:
    """Convert a change to JSON."""
    return {name: getattr(change, name) for name in ("name", "tenant", "outcome", "before", "after")}


def _tell(session: Session, change: ScheduleChange, now: Instant, *, dry_run: bool, in_full: bool = True) -> None:
    """Print a change and, if `in_full`, the next instants before and after."""
    out, label = session.out, schedule_label(change.tenant, change.name)
    would = "would be " if dry_run and change.outcome != "unchanged" else ""
    out.say(clean(f"{label} {would}{change.outcome}: {_rule(change.trigger)}"))
    if not in_full:
        return
    if change.previous_trigger is not None and change.previous_trigger != change.trigger:
        out.say(clean(f"  before ({_rule(change.previous_trigger)})"))
        _tell_next(session, change.previous_trigger, change.before or [], now)
        out.say("  after")
    if change.outcome != "unchanged":
        _tell_next(session, change.trigger, change.after, now)


def _rule(trigger: Mapping[str, Any]) -> str:
    return describe(trigger_from_dict(trigger))


def _tell_next(session: Session, trigger: Mapping[str, Any], previews: Sequence[Preview], now: Instant) -> None:
    if trigger["kind"] == "after":
        session.out.say("    at once, then whenever its job has ended and the delay is over")
    rows = preview_rows(previews, tz=trigger.get("tz") or "UTC", now=now)
    if rows:
        session.out.table(PREVIEW_COLUMNS, rows, indent=4)


# Definitions ------------------------------------------------------------------------------------------------


def tasks_of(session: Session) -> dict[str, Any]:
    """Return the tasks of the app, if there is one; with --server, the server checks tasks itself."""
    app = session.app() if session.server is None else None
    return {} if app is None else dict(app.tasks)


def build_spec(
    known: Mapping[str, Any], given: Mapping[str, Any], *, of_file: Mapping[str, Any] | None = None
) -> ScheduleSpec:
    """Build a definition from options; missing ones get the defaults of the task."""
    options = dict(given)
    trigger = take_trigger(options)
    task = check_name(options.pop("task", ""), "task")
    found = (of_file or {}).get(task) or known.get(task)
    if found is None and known:
        raise TaskNotFound(f"the app has no task {task!r}; it has {', '.join(sorted(known)[:20])}")
    defaults = {} if found is None else inherited(found.defaults, options)
    return ScheduleSpec.build(task=task, trigger=trigger, **(defaults | options))


async def apply(
    session: Session,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="TOML or JSON; - reads TOML from stdin.")],
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="The owner of the schedules; default file:NAME.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove schedules of this owner that are not in the file.")
    ] = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune removes schedules.")] = False,
) -> None:
    """Create and change schedules from a file.

    The file has one table per schedule, the same in TOML and JSON:

    \b
      [schedules.daily-report]
      task = "report"
      cron = "0 6 * * *"       # or every = "30s", after = "10m", at = "2027-01-01T00:00"
      tz = "Europe/Berlin"     # also dst and seconds
      args = { day = "yesterday" }
      overlap = "skip"         # and every other policy: missed, deadline, grace, jitter, …

    The tenant of a schedule is `tenant` in its table. The file may also contain tasks and settings, as in headway.toml:
    only workers use those. The whole file is checked before anything is written; then schedules are written in batches
    of some hundred, each in one transaction.

    The schedules belong to the file, by its name or --owner.
    """
    owner = check_name(owner or f"file:{file.name}", "owner")
    named, tasks = read_file(session, file)
    schedules = [_named(Name(name, None), spec) for name, spec in named.items()]
    async with session.operations("imagine" if dry_run else "create") as operations:
        changes = await _apply(operations, schedules, owner=owner, force=force, dry_run=True)
        gone = await _no_longer(operations, owner, changes) if prune else []
        if gone and not dry_run:
            names = ", ".join(schedule_label(schedule.tenant, schedule.name) for schedule in gone[:10])
            confirm(clean(f"This removes {len(gone)} schedules: {names}."), yes=yes)
        now = operations.now
        if not dry_run:
            changes = await _apply(operations, schedules, owner=owner, force=force, dry_run=False)
        for schedule in gone if not dry_run else ():
            with suppress(ScheduleNotFound):
                await operations.schedules.remove(schedule.name, tenant=schedule.tenant, owner=owner)
    warnings = _warnings(zip(changes, named.values(), strict=True), {**tasks_of(session), **tasks})
    if session.as_json:
        removed = [_removed(schedule) for schedule in gone]
        session.out.json([*map(_fields, changes), *removed])
        _warn(session, warnings)
        return
    for change in changes:
        _tell(session, change, now, dry_run=dry_run, in_full=len(changes) <= TOLD_IN_FULL)
    for schedule in gone:
        label = schedule_label(schedule.tenant, schedule.name)
        session.out.say(clean(f"{label} {'would be ' if dry_run else ''}removed"))
    _warn(session, warnings)


def _removed(schedule: Schedule) -> dict[str, Any]:
    return {"name": schedule.name, "tenant": schedule.tenant, "outcome": "removed", "before": [], "after": []}


async def _no_longer(operations: Operations, owner: str, changes: Sequence[ScheduleChange]) -> list[Schedule]:
    """Return the schedules of an owner that are not in its file."""
    kept = {(change.tenant, change.name) for change in changes}
    owned = pages(operations.schedules.list, owner=owner)
    return [schedule async for schedule in owned if (schedule.tenant, schedule.name) not in kept]


def read_file(session: Session, path: Path) -> tuple[dict[str, ScheduleSpec], dict[str, Any]]:
    """Parse and check every schedule of a file, and its tasks; an error names the schedule."""
    data = _decode(path)
    unknown = data.keys() - {*DEFINITIONS, *(option.name for option in fields(Settings))}
    tables = data.get("schedules")
    if unknown or not isinstance(tables, Mapping) or not tables:
        extra = f", not {min(unknown)!r}" if unknown else ""
        raise InvalidSchedule(f"{path} must have tables named [schedules.NAME]{extra}")
    known, tasks = tasks_of(session), _tasks(path, data)
    specs = {}
    for name, table in tables.items():
        try:
            if not isinstance(table, Mapping):
                raise InvalidSchedule("must be a table with task and cron, every, after or at")
            specs[check_name(name, "schedule name")] = build_spec(known, _plain_times(table), of_file=tasks)
        except NotFound:
            raise
        except DefinitionError as error:
            raise InvalidSchedule(f"{path}, schedule {name[:60]!r}: {error}") from None
    return specs, tasks


def _tasks(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the tasks of a file."""
    if "tasks" not in data:
        return {}
    from headway.app import Headway

    holder = Headway(settings=Settings())
    Definitions(file=path, tasks=table_of(path, data, "tasks")).add_tasks(holder)
    return dict(holder.tasks)


def _plain_times(table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dates and times of TOML to text, which the rest of the code parses."""
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in table.items()}


def _decode(path: Path) -> dict[str, Any]:
    try:
        raw = typer.get_binary_stream("stdin").read(FILE_BYTES_MAX + 1) if str(path) == "-" else path.read_bytes()
        if len(raw) > FILE_BYTES_MAX:
            raise InvalidSchedule(f"{path} has more than {FILE_BYTES_MAX // 1024 // 1024} MiB")
        data = msgspec.json.decode(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
    except OSError as error:
        raise InvalidSchedule(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise InvalidSchedule(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise InvalidSchedule(f"{path} must be an object with schedules")
    return data
