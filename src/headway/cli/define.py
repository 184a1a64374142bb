"""`headway schedules put` and `apply`: define schedules by hand or from a file, and see first what would change.

A file is TOML (or the same as JSON):

    [schedules.daily-report]
    task = "report"
    cron = "0 6 * * *"          # or every = "30s", after = "10m", at = "2027-01-01T00:00"
    tz = "Europe/Berlin"        # with cron and at; dst and seconds with cron
    args = { day = "yesterday" }
    missed = "latest"           # and every other policy by its name in Python
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from headway.cli.instants import PREVIEW_COLUMNS, preview_rows
from headway.cli.parsing import ArgOption, ArgsOption, confirm, read_args
from headway.cli.schedule_names import NameArgument, which
from headway.cli.session import AUTHOR, Desk, Session
from headway.cli.text import clean
from headway.core.errors import DefinitionError, InvalidSchedule, NotFound, ScheduleOwned, TaskNotFound
from headway.core.instants import Instant
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.settings import DEFINITIONS, Settings
from headway.core.tenants import DEFAULT_TENANT, check_tenant
from headway.core.triggers import After, Cron, describe
from headway.core.validation import check_name
from headway.operations import audit_log as deeds
from headway.tasks.definitions import Definitions, inherited, table_of, take_trigger
from headway.wire.shapes import Shape, instants_after, previews, require_instants, spec_shape, zone_of

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN: Final = 3
TOLD_IN_FULL: Final = 100  # Of more schedules at once only what becomes of each is told, and not when they run.
FOUND_AT_ONCE: Final = 1_000
WARNED_OF: Final = 100
WARNINGS_SHOWN: Final = 10

ForceOption = Annotated[bool, typer.Option("--force", help="Take over a schedule that belongs to an app or a file.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show the next instants before and after.")
]


def cron(expr: str, tz: str | None, dst: str | None, seconds: str | None) -> Cron:
    """Make a cron trigger of what was given."""
    return Cron(expr, tz or "UTC", cast("Any", dst or "shift"), seconds)


async def put(
    session: Session,
    name: NameArgument,
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="What runs.")],
    cron: Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="At the times of a cron text.")] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="The time zone of --cron or --at, default UTC.")
    ] = None,
    dst: Annotated[str | None, typer.Option("--dst", metavar="RULE", help="shift, skip or both.")] = None,
    seconds: Annotated[str | None, typer.Option("--seconds", metavar="FIELD", help="The seconds of --cron.")] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="INTERVAL", help="At a fixed rate.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="DELAY", help="So long after the last job ended.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="Once.")] = None,
    arg: ArgOption = None,
    args: ArgsOption = None,
    overlap: Annotated[
        str | None,
        typer.Option("--overlap", metavar="RULE", help="While its last job is live: skip, queue, allow or replace."),
    ] = None,
    queue_limit: Annotated[
        int | None, typer.Option("--queue-limit", metavar="N", help="How many may wait with --overlap queue.")
    ] = None,
    missed: Annotated[
        str | None, typer.Option("--missed", metavar="RULE", help="What was not decided in time: latest, all or skip.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="DURATION", help="How late it may still start.")
    ] = None,
    grace: Annotated[str | None, typer.Option("--grace", metavar="DURATION", help="What lateness is on time.")] = None,
    catch_up_limit: Annotated[
        int | None, typer.Option("--catch-up-limit", metavar="N", help="How many at most with --missed all.")
    ] = None,
    catch_up_rate: Annotated[
        str | None, typer.Option("--catch-up-rate", metavar="RATE", help="How fast with --missed all: 10/m.")
    ] = None,
    jitter: Annotated[str | None, typer.Option("--jitter", metavar="DURATION", help="Spread the starts.")] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="T", help="No instant before.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="T", help="No instant after.")] = None,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="DURATION", help="How long its jobs should take.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Where its jobs wait.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher runs first.")] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Whose schedule and jobs they are, instead of tenant/name."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="How often a job is tried.")
    ] = None,
    backoff: Annotated[
        str | None, typer.Option("--backoff", metavar="RANGE", help="The wait between attempts: 5s..5m.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be given several times.")] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Cancel a job that has not started after so long."),
    ] = None,
    callback_url: Annotated[
        str | None, typer.Option("--callback-url", metavar="URL", help="Where the end of its jobs is told.")
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
    async with session.open("imagine" if dry_run else "create") as desk:
        ref, spec = await _whose(desk, name, spec, tenant)
        change = (await _changes(desk, {ref: spec}, owner="", force=force))[0]
        if not dry_run:
            await desk.put_schedules(_definitions([change]), owner="", take_over=force)
        after_write = spec if dry_run else await desk.store.schedules.get(ref.name, tenant=ref.tenant)
        warnings = _misfits({ref: spec}, tasks_of(session)) + await _unserved(desk, session, [spec])
    if session.as_json and isinstance(after_write, Schedule):
        session.out.json({"outcome": change.outcome, **desk.schedule_shape(after_write), "warnings": warnings})
    elif session.as_json:
        shape = {**change.shape(desk.now), "dry_run": True, "definition": spec_shape(spec), "warnings": warnings}
        session.out.json(shape)
    else:
        change.tell(session, desk.now, dry_run=dry_run)
        _warn(session, warnings)


async def _whose(desk: Desk, name: str, spec: ScheduleSpec, tenant: str | None) -> tuple[ScheduleRef, ScheduleSpec]:
    """Return which schedule is put, and its definition with the tenant in it."""
    ref = await which(desk, name, tenant)
    if tenant is None and ref.name == name:  # Nobody has said whose: then it is whose the jobs of the task are.
        ref = _ref(desk, name, spec)
    check_name(ref.name, "schedule name")
    return ref, (replace(spec, tenant=check_tenant(ref.tenant, "tenant")) if ref.tenant else spec)


def _ref(desk: Desk, name: str, spec: ScheduleSpec) -> ScheduleRef:
    return ScheduleRef(desk.own_tenant if spec.tenant == DEFAULT_TENANT else spec.tenant, name)


# What may be wrong without being refused --------------------------------------------------------------------


async def _unserved(desk: Desk, session: Session, specs: Iterable[ScheduleSpec]) -> list[str]:
    """Say what keeps jobs of these definitions from running as things are; once for each task and queue."""
    known = tasks_of(session)
    distinct = {(spec.task, spec.queue): spec for spec in specs if spec.task not in known}
    warnings = [warning for spec in islice(distinct.values(), WARNED_OF) for warning in await desk.warnings(spec)]
    return list(dict.fromkeys(warnings))


def _misfits(specs: Mapping[ScheduleRef, ScheduleSpec], known: Mapping[str, Any]) -> list[str]:
    """Say which arguments do not fit their task, as far as the task is there to ask."""
    warnings = []
    for ref, spec in specs.items():
        if spec.task in known:
            try:
                known[spec.task].bind((), msgspec.json.decode(spec.args))
            except DefinitionError as error:
                warnings.append(f"the arguments of {str(ref)!r} do not fit {spec.task!r}: {error}")
    return warnings


def _warn(session: Session, warnings: Sequence[str]) -> None:
    for warning in warnings[:WARNINGS_SHOWN]:
        session.out.note(clean(f"warning: {warning}"))
    if len(warnings) > WARNINGS_SHOWN:
        session.out.note(f"warning: and {len(warnings) - WARNINGS_SHOWN} more; --json has all")


# A change ---------------------------------------------------------------------------------------------------


def tasks_of(session: Session) -> dict[str, Any]:
    """Return the tasks of the app, where there is one; what tasks there are, a server knows better."""
    app = session.app() if session.server is None else None
    return {} if app is None else dict(app.tasks)


def build_spec(
    known: Mapping[str, Any], given: Mapping[str, Any], *, of_file: Mapping[str, Any] | None = None
) -> ScheduleSpec:
    """Make a definition of options by name; what the task says counts where nothing is given."""
    options = dict(given)
    trigger = take_trigger(options)
    task = check_name(options.pop("task", ""), "task")
    found = (of_file or {}).get(task) or known.get(task)
    if found is None and known:
        raise TaskNotFound(f"the app has no task {task!r}; it has {', '.join(sorted(known)[:20])}")
    defaults = {} if found is None else inherited(found.defaults)
    return ScheduleSpec.build(task=task, trigger=trigger, **(defaults | options))


class Change:
    """A definition beside the one that the store has."""

    def __init__(self, ref: ScheduleRef, old: Schedule | None, spec: ScheduleSpec, owner: str) -> None:
        self.ref = ref
        self.old = old
        self.spec = spec
        self.owner = owner

    @property
    def outcome(self) -> str:
        """What the store will make of it."""
        if self.old is None:
            return "created"
        same = self.old.spec == self.spec and self.old.owner == self.owner
        return "unchanged" if same else "changed"

    def shape(self, now: Instant) -> Shape:
        """Write the change as JSON."""
        return {
            "name": self.ref.name,
            "tenant": self.spec.tenant if self.old is None else self.old.tenant,
            "outcome": self.outcome,
            "before": None if self.old is None else previews(self.old.spec, now, SHOWN),
            "after": previews(self.spec, now, SHOWN),
        }

    def tell(self, session: Session, now: Instant, *, dry_run: bool, in_full: bool = True) -> None:
        """Write what changes and, in full, the next instants before and after."""
        out, moved = session.out, self.old is not None and self.old.spec.trigger != self.spec.trigger
        would = "would be " if dry_run and self.outcome != "unchanged" else ""
        label = str(self.ref) if self.ref.tenant else self.ref.name
        out.say(clean(f"{label} {would}{self.outcome}: {describe(self.spec.trigger)}"))
        if not in_full:
            return
        if self.old is not None and moved:
            out.say(clean(f"  before ({describe(self.old.spec.trigger)})"))
            _tell_next(session, self.old.spec, now)
            out.say("  after")
        if self.outcome != "unchanged":
            _tell_next(session, self.spec, now)


def _tell_next(session: Session, spec: ScheduleSpec, now: Instant) -> None:
    if isinstance(spec.trigger, After):
        session.out.say("    at once, then whenever its job has ended and the delay is over")
    instants = instants_after(spec, now, SHOWN)
    rows = preview_rows(spec.trigger, instants, now=now, clock=zone_of(spec.trigger))
    if rows:
        session.out.table(PREVIEW_COLUMNS, rows, indent=4)


async def _changes(desk: Desk, specs: Mapping[ScheduleRef, ScheduleSpec], *, owner: str, force: bool) -> list[Change]:
    """Compare with what is there, and refuse at once what the store would refuse."""
    found: dict[ScheduleRef, Schedule] = {}
    refs = list(specs)
    for start in range(0, len(refs), FOUND_AT_ONCE):
        found |= await desk.store.schedules.find(refs[start : start + FOUND_AT_ONCE])
    changes = []
    for ref, spec in specs.items():
        old = found.get(ref)
        if old is not None and old.owner != owner and not force:
            whose = old.owner or "whoever put it by hand"
            raise ScheduleOwned(f"schedule {old.label!r} belongs to {whose}; --force takes it over")
        change = Change(ref, old, spec, owner)
        if change.outcome != "unchanged":
            require_instants(ref.name, spec, desk.now)
        changes.append(change)
    return changes


def _definitions(changes: Iterable[Change]) -> dict[ScheduleRef, tuple[ScheduleSpec | None, ScheduleSpec]]:
    """Return what is to be written: definitions before and after."""
    return {
        change.ref: (None if change.old is None else change.old.spec, change.spec)
        for change in changes
        if change.outcome != "unchanged"
    }


async def apply(
    session: Session,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="TOML or JSON; - reads TOML from stdin.")],
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Whose schedules they are; default file:NAME.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what this owner had applied before and is not in the file.")
    ] = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune removes.")] = False,
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

    The tenant of a schedule is `tenant` in its table. Tasks and settings may be in the file, too, as in headway.toml:
    they are left to the workers that read it. All of it is read and checked before anything is written; then some
    hundred schedules are written at once, all of those or none.

    The schedules belong to the file, by its name or --owner.
    """
    owner = check_name(owner or f"file:{file.name}", "owner")
    named, tasks = read_file(session, file)
    async with session.open("imagine" if dry_run else "create") as desk:
        specs = {_ref(desk, name, spec): spec for name, spec in named.items()}
        changes = await _changes(desk, specs, owner=owner, force=force)
        gone = await _no_longer(desk, owner, specs) if prune else []
        if gone and not dry_run:
            names = ", ".join(schedule.label for schedule in gone[:10])
            confirm(clean(f"This removes {len(gone)} schedules: {names}."), yes=yes)
        now = desk.now
        if not dry_run:
            await desk.put_schedules(_definitions(changes), owner=owner, take_over=force)
        for schedule in gone if not dry_run else ():
            acting = desk.acting(deeds.remove_schedule(schedule))
            await acting.schedules.remove(schedule.name, tenant=schedule.tenant, author=AUTHOR, owner=owner)
        foreign = [spec for spec in specs.values() if spec.task not in tasks]
        warnings = _misfits(specs, {**tasks_of(session), **tasks}) + await _unserved(desk, session, foreign)
    if session.as_json:
        shapes = [change.shape(now) for change in changes]
        shapes += [_removed_shape(schedule) for schedule in gone]
        session.out.json(shapes)
        _warn(session, warnings)
        return
    for change in changes:
        change.tell(session, now, dry_run=dry_run, in_full=len(changes) <= TOLD_IN_FULL)
    for schedule in gone:
        session.out.say(clean(f"{schedule.label} {'would be ' if dry_run else ''}removed"))
    _warn(session, warnings)


def _removed_shape(schedule: Schedule) -> Shape:
    return {"name": schedule.name, "tenant": schedule.tenant, "outcome": "removed", "before": [], "after": []}


async def _no_longer(desk: Desk, owner: str, specs: Mapping[ScheduleRef, ScheduleSpec]) -> list[Schedule]:
    gone: list[Schedule] = []
    after: ScheduleRef | None = None
    while page := await desk.store.schedules.page(owner=owner, after=after):
        refs = [ScheduleRef(schedule.tenant, schedule.name) for schedule in page]
        own = [ScheduleRef(desk.own_tenant, schedule.name) for schedule in page]
        gone += [
            schedule for schedule, *known in zip(page, refs, own, strict=True) if not any(ref in specs for ref in known)
        ]
        after = refs[-1]
    return gone


def read_file(session: Session, path: Path) -> tuple[dict[str, ScheduleSpec], dict[str, Any]]:
    """Read and check every schedule of a file, and its tasks; an error names the schedule."""
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
    """Read the tasks of a file."""
    if "tasks" not in data:
        return {}
    from headway.app import Headway

    holder = Headway(settings=Settings())
    Definitions(file=path, tasks=table_of(path, data, "tasks")).add_tasks(holder)
    return dict(holder.tasks)


def _plain_times(table: Mapping[str, Any]) -> dict[str, Any]:
    """Write the dates and times of TOML as the text that everything else reads."""
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
