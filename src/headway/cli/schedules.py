"""`headway schedules`: list, preview, pause, trigger, backfill and remove schedules. `define` has put and apply."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from headway.cli import define
from headway.cli.instants import PREVIEW_COLUMNS, preview_rows
from headway.cli.output import Column
from headway.cli.parsing import ArgOption, ArgsOption, YesOption, confirm, read_args, read_future, read_past
from headway.cli.schedule_names import NameArgument, TenantOption, find, read_cursor, which
from headway.cli.session import Session, command, new_group
from headway.cli.text import away, clean, count, is_fine, span, utc
from headway.core.clock import wall_now
from headway.core.errors import DefinitionError, InvalidSchedule
from headway.core.instants import Instant, isoformat, parse_instant
from headway.core.json_values import encode_args
from headway.core.schedule_names import schedule_label
from headway.core.schedules import FAILING_FLAGGED, ScheduleSpec
from headway.core.triggers import At, Every, Trigger
from headway.operations.everything import Operations
from headway.operations.schedule_instants import preview_spec
from headway.operations.verbs import pages
from headway.wire.schedules import Occurrence, Previews, Schedule

LIST_MAX: Final = 10_000
PREVIEW_MAX: Final = 1_000
HISTORY_MAX: Final = 10_000
BACKFILL_MAX: Final = 10_000

app = new_group(help="List, preview, change, pause, trigger and backfill schedules.")


def label_of(schedule: Schedule) -> str:
    """Return the label of a schedule on the command line."""
    return schedule_label(schedule.tenant, schedule.name)


def zone_of(schedule: Schedule) -> str:
    """Return the time zone of a schedule."""
    return str(schedule.trigger.get("tz") or "UTC")


@command(app, "list")
async def list_(
    session: Session,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Only those of this app or file.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only those of this tenant.")] = None,
    after: Annotated[str, typer.Option("--after", metavar="NAME", help="Start after this schedule.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 1_000,
) -> None:
    """List schedules by tenant and name; those of other tenants than the default are called tenant/name."""
    async with session.operations() as operations:
        listed = pages(
            operations.schedules.list,
            owner=owner,
            tenant=tenant,
            cursor=read_cursor(after) if after else None,
            most=limit + 1,
        )
        found = [await _complete(operations, schedule) async for schedule in listed]
        now = operations.now
    if session.as_json:
        session.out.json(found[:limit])
    elif not found:
        session.out.say("no schedules yet; see `headway schedules put --help`")
    else:
        columns = [
            Column("name", "name"),
            Column("rule", wraps=True),
            Column("task", wraps=True, spare=True),
            Column("state", wraps=True),
            Column("next", "time"),
            Column("at (UTC)", "quiet", spare=True),
        ]
        fine = is_fine(parse_instant(one.next_at) for one in found[:limit] if one.next_at is not None)
        session.out.table(columns, [_row(schedule, now, fine) for schedule in found[:limit]])
    if len(found) > limit:
        session.out.note(f"there are more: --after {clean(label_of(found[limit - 1]))!r}")


async def _complete(operations: Operations, schedule: Schedule) -> Schedule:
    """Read a schedule whose arguments are too large for a list."""
    if not schedule.omitted:
        return schedule
    complete = await operations.schedules.get(schedule.name, tenant=schedule.tenant)
    return msgspec.structs.replace(complete, next=msgspec.UNSET)


def _row(schedule: Schedule, now: Instant, fine: bool) -> tuple[object, ...]:
    next_at = None if schedule.paused or schedule.next_at is None else parse_instant(schedule.next_at)
    return (
        label_of(schedule),
        schedule.rule,
        schedule.task,
        state(schedule, now),
        None if next_at is None else away(next_at, now) if next_at > now else f"{span(now - next_at)} late",
        None if next_at is None else utc(next_at, fine=fine),
    )


def state(schedule: Schedule, now: Instant) -> str:
    """Describe the state of a schedule in a few words."""
    if schedule.attention is not None:
        return f"held: {schedule.attention}"
    pause = schedule.pause
    if pause is not None:
        until = "" if pause.until is None else f" for {span(max(0, parse_instant(pause.until) - now))}"
        return f"paused{until}" + (f": {pause.reason}" if pause.reason else "")
    if schedule.next_at is None:
        return "on (waits for its job to end)" if schedule.trigger["kind"] == "after" else "over"
    if schedule.failing >= FAILING_FLAGGED:
        return f"failing: its last {schedule.failing} jobs failed"
    return "on"


@command(app)
async def show(session: Session, name: NameArgument, tenant: TenantOption = None) -> None:
    """Show one schedule: rule, policies, state and its next instants."""
    async with session.operations() as operations:
        schedule, now = await find(operations, name, tenant), operations.now
    if session.as_json:
        session.out.json(schedule)
        return
    hidden = ("next", "trigger", "paused", "pause", "attention", "args", "tags", "next_at")
    pairs = {name: value for name, value in msgspec.to_builtins(schedule).items() if name not in hidden}
    pairs |= {"args": encode_args(schedule.args), "tags": " ".join(schedule.tags)}
    session.out.facts({"name": schedule.name, "state": state(schedule, now), **pairs})
    session.out.say("next", "quiet")
    rows = preview_rows(schedule.next or [], tz=zone_of(schedule), now=now)
    if rows:
        session.out.table(PREVIEW_COLUMNS, rows, indent=2)
    else:
        session.out.say("  nothing")


@command(app)
async def preview(
    session: Session,
    what: Annotated[
        str | None, typer.Argument(metavar="CRON|NAME", help="A cron expression, or the name of a schedule.")
    ] = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The time zone (IANA), default UTC.")] = None,
    dst: Annotated[str | None, typer.Option("--dst", metavar="RULE", help="shift, skip or both.")] = None,
    seconds: Annotated[
        str | None, typer.Option("--seconds", metavar="FIELD", help="The seconds of a cron expression.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="INTERVAL", help="A fixed rate instead.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="One time instead.")] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="T", help="Start at this time, default now.")] = None,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", min=1, max=PREVIEW_MAX, help="How many.")] = 5,
    tenant: TenantOption = None,
) -> None:
    """Show the next instants of a trigger or a schedule.

    Each has its local time, its UTC time, and a note if daylight saving affects it.

    \b
    headway schedules preview '30 2 * * *' --tz Europe/Berlin --from 2027-03-27 -n 3
    """
    spec = _rule(what, tz=tz, dst=dst, seconds=seconds, every=every, at=at)
    if spec is not None:
        now = wall_now()
        found = preview_spec(spec, now, since=since, number=number, tz=tz, what="--from")
    else:
        assert what is not None
        async with session.operations() as operations:
            name = await find(operations, what, tenant)
            found = await operations.schedules.preview(name.name, tenant=name.tenant, n=number, since=since, tz=tz)
            now = operations.now
    if found.note is not None:
        raise InvalidSchedule(f"{found.rule}: {found.note}")
    _tell_preview(session, found, None if since else now)


def _tell_preview(session: Session, found: Previews, now: Instant | None) -> None:
    if session.as_json:
        session.out.json(found.items)
    elif found.items:
        session.out.table(PREVIEW_COLUMNS, preview_rows(found.items, tz=found.tz, now=now))
    else:
        session.out.say("none: this trigger has no instant in that time")


def _rule(what: str | None, **given: str | None) -> ScheduleSpec | None:
    """Parse the trigger from the options; None if `what` is the name of a schedule."""
    others = [name for name in ("every", "at") if given[name] is not None]
    if (what is not None) + len(others) != 1:
        raise DefinitionError("give one of: a cron expression, the name of a schedule, --every, --at")
    cron_options = {name: value for name in ("dst", "seconds") if (value := given[name]) is not None}
    if others and cron_options:
        raise DefinitionError(f"--{min(cron_options)} needs a cron expression")
    trigger: Trigger
    if what is not None:
        if not _is_cron(what):
            if cron_options:
                raise DefinitionError(f"--{min(cron_options)} needs a cron expression; {what!r} is none")
            return None
        trigger = define.cron(what, given["tz"], given["dst"], given["seconds"])
    elif given["every"] is not None:
        trigger = Every(given["every"])
    else:
        trigger = At(str(given["at"]), given["tz"])
    return ScheduleSpec(task="preview", trigger=trigger)


# A cron field: numbers, names of months and days, and separators. Names of schedules have other words.
_CRON_FIELD: Final = re.compile(
    r"(?:[0-9*?,/#LW-]|SUN|MON|TUE|WED|THU|FRI|SAT|JAN|FEB|MAR|APR|MAY|JU[NL]|AUG|SEP|OCT|NOV|DEC)+"
)


def _is_cron(text: str) -> bool:
    """Return whether a text is a cron expression, also one with too few fields, and not a name."""
    fields = text.split()
    if len(fields) >= 5 or text.startswith("@"):
        return True
    return len(fields) > 1 and all(_CRON_FIELD.fullmatch(field.upper()) for field in fields)


@command(app)
async def history(
    session: Session,
    name: NameArgument,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", min=1, max=HISTORY_MAX, help="How many.")] = 20,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Only instants from this time on, or in the last 24h.")
    ] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="T", help="Only instants before this time.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Show the decisions and the manual runs of a schedule, newest first, with reasons.

    Manual runs are not instants of the schedule: `triggered` with the time, and `backfilled` with the number of jobs.
    """
    async with session.operations() as operations:
        now, ref = operations.now, await which(operations, name, tenant)
        listed = pages(
            operations.schedules.runs,
            ref.name,
            tenant=ref.tenant,
            since=None if since is None else isoformat(read_past(since, now, "--since")),
            before=None if before is None else isoformat(read_past(before, now, "--before")),
            most=number,
        )
        found = [run async for run in listed][:number]
    if session.as_json:
        session.out.json(found)
        return
    columns = [
        Column("instant (UTC)", "time"),
        Column("outcome", wraps=True),
        Column("decided", right=True),
        Column("job", "quiet"),
    ]
    fine = is_fine(parse_instant(run.instant) for run in found)
    session.out.table(columns, [_decision_row(run, fine) for run in found])


def _decision_row(run: Occurrence, fine: bool) -> tuple[object, ...]:
    instant = last = parse_instant(run.instant)
    until = ""
    if run.until:
        last = parse_instant(run.until)
        until = f" … {utc(last, fine=fine)} ({run.count:,})"
    if run.outcome == "backfilled":
        until = f" ({count(run.count, 'job')})"
    return (
        utc(instant, fine=fine) + until,
        f"{run.outcome}: {run.reason}" if run.reason else run.outcome,
        f"+{span(max(0, parse_instant(run.decided_at) - last))}",
        run.job_id,
    )


@command(app)
async def pause(
    session: Session,
    name: NameArgument,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="A time or a duration: 30m.")] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")] = "",
    tenant: TenantOption = None,
) -> None:
    """Pause a schedule; its instants are recorded as paused."""
    async with session.operations() as operations:
        found = await find(operations, name, tenant)
        end = None if until is None else read_future(until, operations.now, "--until", zone_of(found))
        schedule = await operations.schedules.pause(
            found.name, tenant=found.tenant, reason=reason, until=None if end is None else isoformat(end)
        )
        _tell_state(session, schedule, operations.now)


@command(app)
async def resume(session: Session, name: NameArgument, tenant: TenantOption = None) -> None:
    """Resume a paused schedule, starting now."""
    async with session.operations() as operations:
        found = await find(operations, name, tenant)
        schedule = await operations.schedules.resume(found.name, tenant=found.tenant)
        _tell_state(session, schedule, operations.now)


def _tell_state(session: Session, schedule: Schedule, now: Instant) -> None:
    if session.as_json:
        session.out.json(schedule)
    else:
        already = "" if schedule.changed else " already"
        session.out.say(clean(f"{label_of(schedule)} is{already} {state(schedule, now)}"))


@command(app)
async def trigger(
    session: Session,
    name: NameArgument,
    arg: ArgOption = None,
    args: ArgsOption = None,
    tenant: TenantOption = None,
) -> None:
    """Enqueue a job of the schedule now, under its overlap rule.

    With skip no second job is created while one is live, with queue it waits, replace stops the live one first. The
    instants of the schedule do not change.
    """
    other_args = read_args(arg, args) if arg or args is not None else None
    async with session.operations() as operations:
        found = await find(operations, name, tenant)
        job = await operations.schedules.trigger(found.name, tenant=found.tenant, args=other_args)
    if session.as_json:
        session.out.json(job)
    elif job.message is not None:
        session.out.say(clean(f"not started: {job.message}"))
    else:
        session.out.say(clean(f"{job.id} {job.status}: {job.why}"))


@command(app)
async def backfill(
    session: Session,
    name: NameArgument,
    since: Annotated[str, typer.Option("--from", metavar="T", help="The first instant; local to the schedule.")],
    until: Annotated[str, typer.Option("--to", metavar="T", help="The last instant; local to the schedule.")],
    again: Annotated[bool, typer.Option("--again", help="Include instants that have already fired.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show which instants.")] = False,
    yes: YesOption = False,
    tenant: TenantOption = None,
) -> None:
    """Enqueue a job for each past instant that has not fired.

    Shows the number and asks first. Repeating it adds nothing.
    """
    async with session.operations() as operations:
        schedule = await find(operations, name, tenant)
        now, tz = operations.now, zone_of(schedule)
        first, last = read_past(since, now, "--from", tz), read_past(until, now, "--to", tz)
        if first > last:
            raise DefinitionError(f"--from {isoformat(first)} must not be later than --to {isoformat(last)}")
        window: dict[str, Any] = {"first": isoformat(first), "last": isoformat(last), "again": again}
        whose: dict[str, Any] = {"tenant": schedule.tenant, "limit": BACKFILL_MAX}
        filled = await operations.schedules.backfill(schedule.name, **window, **whose, dry_run=True)
        if filled.instants and not dry_run:
            _confirm_backfill(label_of(schedule), filled.instants, yes=yes)
        if not dry_run:
            filled = await operations.schedules.backfill(schedule.name, **window, **whose)
    if session.as_json:
        session.out.json(filled)
        return
    instants = [parse_instant(text) for text in filled.instants]
    for instant in instants if dry_run else ():
        session.out.say(utc(instant, fine=is_fine(instants)))
    session.out.say(f"{count(len(instants), 'job')} {'would be added' if dry_run else 'added'}")


def _confirm_backfill(label: str, instants: Sequence[str], *, yes: bool) -> None:
    first, last = utc(parse_instant(instants[0])), utc(parse_instant(instants[-1]))
    confirm(f"This adds {count(len(instants), 'job')} to {clean(label)}, from {first} to {last}.", yes=yes)


@command(app)
async def remove(session: Session, name: NameArgument, yes: YesOption = False, tenant: TenantOption = None) -> None:
    """Remove a schedule; its decisions stay in the ledger."""
    async with session.operations() as operations:
        schedule = await find(operations, name, tenant)
        label = label_of(schedule)
        owned = f" It belongs to {schedule.owner}, which may bring it back." if schedule.owner else ""
        confirm(clean(f"This removes the schedule {label}.{owned}"), yes=yes)
        await operations.schedules.remove(schedule.name, tenant=schedule.tenant)
    if session.as_json:
        session.out.json({"schedule": schedule.name, "tenant": schedule.tenant, "removed": True})
    else:
        session.out.say(clean(f"{label} removed"))


command(app, "put")(define.put)
command(app, "apply")(define.apply)
