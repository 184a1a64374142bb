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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from headway import deeds
from headway.cli.given import ArgOption, ArgsOption, confirm, read_args
from headway.cli.session import AUTHOR, Desk, Session
from headway.cli.shapes import PREVIEW_COLUMNS, preview_rows
from headway.cli.text import clean
from headway.definitions import take_trigger
from headway.errors import DefinitionError, InvalidSchedule, NotFound, ScheduleNotFound, ScheduleOwned, TaskNotFound
from headway.instants import Instant
from headway.model import Schedule, ScheduleSpec, check_name
from headway.scheduling.triggers import After, Cron, describe
from headway.shapes import Shape, instants_after, previews, require_instants, spec_shape, zone_of

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN: Final = 3

ForceOption = Annotated[bool, typer.Option("--force", help="Take over a schedule that belongs to an app or a file.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show the next instants before and after.")
]


def cron(expr: str, tz: str | None, dst: str | None, seconds: str | None) -> Cron:
    """Make a cron trigger of what was given."""
    return Cron(expr, tz or "UTC", cast("Any", dst or "shift"), seconds)


async def put(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")],
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
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whose jobs they are.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="How often a job is tried.")
    ] = None,
    backoff: Annotated[
        str | None, typer.Option("--backoff", metavar="RANGE", help="The wait between attempts: 5s..5m.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be given several times.")] = None,
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
        "queue": queue,
        "priority": priority,
        "tenant": tenant,
        "max_attempts": max_attempts,
        "backoff": backoff,
        "tags": tag,
    }
    spec = build_spec(session, {option: value for option, value in given.items() if value is not None})
    async with session.open("imagine" if dry_run else "create") as desk:
        change = await _change(desk, check_name(name, "schedule name"), spec, owner="", force=force)
        outcome = await change.write(desk, dry_run=dry_run, force=force)
        after_write = spec if dry_run else (await desk.store.schedules.get(name))
    if session.as_json and isinstance(after_write, Schedule):
        session.out.json({"outcome": outcome, **desk.schedule_shape(after_write)})
    elif session.as_json:
        session.out.json({**change.shape(desk.now), "dry_run": True, "definition": spec_shape(spec)})
    else:
        change.tell(session, desk.now, dry_run=dry_run)


def build_spec(session: Session, given: Mapping[str, Any]) -> ScheduleSpec:
    """Make a definition of options by name; what the app says of the task counts where nothing is given."""
    options = dict(given)
    trigger = take_trigger(options)
    task = check_name(options.pop("task", ""), "task")
    return ScheduleSpec.build(task=task, trigger=trigger, **(_defaults(session, task) | options))


def _defaults(session: Session, task: str) -> dict[str, Any]:
    app = session.app() if session.server is None else None  # What tasks there are, a server knows better.
    if app is None or not app.tasks:
        return {}
    if task not in app.tasks:
        raise TaskNotFound(f"the app has no task {task!r}; it has {', '.join(sorted(app.tasks)[:20])}")
    said = app.tasks[task].defaults
    names = ("queue", "priority", "tenant", "max_attempts", "backoff")
    return {name: getattr(said, name) for name in names}


class Change:
    """A definition beside the one that the store has."""

    def __init__(self, name: str, old: Schedule | None, spec: ScheduleSpec, owner: str) -> None:
        self.name = name
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

    async def write(self, desk: Desk, *, dry_run: bool, force: bool) -> str:
        """Put it into the store, unless it is only to be looked at."""
        if dry_run:
            return self.outcome
        acting = desk.acting(deeds.put_schedule(self.name, None if self.old is None else self.old.spec, self.spec))
        return await acting.schedules.put(self.name, self.spec, owner=self.owner, author=AUTHOR, take_over=force)

    def shape(self, now: Instant) -> Shape:
        """Write the change as JSON."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "before": None if self.old is None else previews(self.old.spec, now, SHOWN),
            "after": previews(self.spec, now, SHOWN),
        }

    def tell(self, session: Session, now: Instant, *, dry_run: bool) -> None:
        """Write what changes and the next instants before and after."""
        out, moved = session.out, self.old is not None and self.old.spec.trigger != self.spec.trigger
        would = "would be " if dry_run and self.outcome != "unchanged" else ""
        out.say(clean(f"{self.name} {would}{self.outcome}: {describe(self.spec.trigger)}"))
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


async def _change(desk: Desk, name: str, spec: ScheduleSpec, *, owner: str, force: bool) -> Change:
    """Compare with what is there, and refuse at once what the store would refuse."""
    try:
        old: Schedule | None = await desk.store.schedules.get(name)
    except ScheduleNotFound:
        old = None
    if old is not None and old.owner != owner and not force:
        whose = old.owner or "whoever put it by hand"
        raise ScheduleOwned(f"schedule {name!r} belongs to {whose}; --force takes it over")
    change = Change(name, old, spec, owner)
    if change.outcome != "unchanged":
        require_instants(name, spec, desk.now)
    return change


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

    All of it is read and checked before anything is written. The schedules belong to the file, by its name or --owner.
    """
    owner = check_name(owner or f"file:{file.name}", "owner")
    specs = read_file(session, file)
    async with session.open("imagine" if dry_run else "create") as desk:
        changes = [await _change(desk, name, spec, owner=owner, force=force) for name, spec in specs.items()]
        gone = await _no_longer(desk, owner, specs) if prune else []
        if gone and not dry_run:
            names = ", ".join(schedule.name for schedule in gone[:10])
            confirm(clean(f"This removes {len(gone)} schedules: {names}."), yes=yes)
        now = desk.now
        for change in changes:
            await change.write(desk, dry_run=dry_run, force=force)
        for schedule in gone if not dry_run else ():
            acting = desk.acting(deeds.remove_schedule(schedule))
            await acting.schedules.remove(schedule.name, author=AUTHOR, owner=owner)
    if session.as_json:
        shapes = [change.shape(now) for change in changes]
        shapes += [{"name": schedule.name, "outcome": "removed", "before": [], "after": []} for schedule in gone]
        session.out.json(shapes)
        return
    for change in changes:
        change.tell(session, now, dry_run=dry_run)
    for schedule in gone:
        session.out.say(clean(f"{schedule.name} {'would be ' if dry_run else ''}removed"))


async def _no_longer(desk: Desk, owner: str, specs: Mapping[str, ScheduleSpec]) -> list[Schedule]:
    gone: list[Schedule] = []
    after = ""
    while page := await desk.store.schedules.page(owner=owner, after=after):
        gone += [schedule for schedule in page if schedule.name not in specs]
        after = page[-1].name
    return gone


def read_file(session: Session, path: Path) -> dict[str, ScheduleSpec]:
    """Read and check every schedule of a file; an error names the schedule."""
    data = _decode(path)
    unknown = data.keys() - {"schedules"}
    tables = data.get("schedules")
    if unknown or not isinstance(tables, Mapping) or not tables:
        extra = f", not {min(unknown)!r}" if unknown else ""
        raise InvalidSchedule(f"{path} must have tables named [schedules.NAME]{extra}")
    specs = {}
    for name, table in tables.items():
        try:
            if not isinstance(table, Mapping):
                raise InvalidSchedule("must be a table with task and cron, every, after or at")
            specs[check_name(name, "schedule name")] = build_spec(session, _plain_times(table))
        except NotFound:
            raise
        except DefinitionError as error:
            raise InvalidSchedule(f"{path}, schedule {name[:60]!r}: {error}") from None
    return specs


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
