"""`headway schedules`: look at schedules and steer them. How they are defined is in `define`."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

import typer

from headway.cli import define
from headway.cli.instants import PREVIEW_COLUMNS, preview_rows
from headway.cli.output import Column
from headway.cli.parsing import ArgOption, ArgsOption, YesOption, confirm, read_args, read_future, read_past
from headway.cli.schedule_names import NameArgument, TenantOption, read_label, which
from headway.cli.session import AUTHOR, Desk, Session, command, new_group
from headway.cli.text import away, clean, count, is_fine, span, utc
from headway.core.errors import Conflict, DefinitionError, InvalidSchedule, ScheduleNotFound
from headway.core.instants import Instant, isoformat, parse_instant
from headway.core.json_values import encode_args
from headway.core.occurrences import ByHand, Occurrence
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import FAILING_FLAGGED, Schedule, ScheduleSpec
from headway.core.triggers import After, At, Every, Trigger, describe
from headway.core.zones import zone
from headway.operations import audit_log as deeds
from headway.store import Store
from headway.wire.shapes import instants_after, occurrence_shape, previews, zone_of

LIST_MAX: Final = 10_000
PREVIEW_MAX: Final = 1_000
HISTORY_MAX: Final = 10_000
PAGE: Final = 200

app = new_group(help="List, preview, change, pause, trigger and backfill schedules.")


@command(app, "list")
async def list_(
    session: Session,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Only those of this app or file.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only those of this tenant.")] = None,
    after: Annotated[str, typer.Option("--after", metavar="NAME", help="Begin behind this one.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIST_MAX, help="How many.")] = 1_000,
) -> None:
    """List schedules by tenant and name; those of other tenants than the default are called tenant/name."""
    async with session.open() as desk:
        first = read_label(after, tenant or desk.own_tenant) if after else None
        filters = {"owner": owner, "tenant": tenant}
        found = [schedule async for schedule in _pages(desk.store, filters, first, limit + 1)]
        now, shapes = desk.now, [desk.schedule_shape(schedule) for schedule in found[:limit]]
    if session.as_json:
        session.out.json(shapes)
    elif not found:
        session.out.say("no schedules yet; `headway schedules put --help` shows how to make one")
    else:
        columns = [
            Column("name", "name"),
            Column("rule", wraps=True),
            Column("task", wraps=True, spare=True),
            Column("state", wraps=True),
            Column("next", "time"),
            Column("at (UTC)", "quiet", spare=True),
        ]
        fine = is_fine(schedule.next_at or 0 for schedule in found[:limit])
        session.out.table(columns, [_row(schedule, now, fine) for schedule in found[:limit]])
    if len(found) > limit:
        session.out.note(f"there are more: --after {clean(found[limit - 1].label)!r}")


async def _pages(
    store: Store, filters: Mapping[str, str | None], after: ScheduleRef | None, limit: int
) -> AsyncIterator[Schedule]:
    while limit > 0 and (page := await store.schedules.page(**filters, after=after, limit=min(limit, PAGE))):
        for schedule in page:
            yield schedule
        after, limit = ScheduleRef(page[-1].tenant, page[-1].name), limit - len(page)


def _row(schedule: Schedule, now: Instant, fine: bool) -> tuple[object, ...]:
    next_at = schedule.next_at if schedule.paused_at(now) is None else None
    return (
        schedule.label,
        describe(schedule.spec.trigger),
        schedule.spec.task,
        state(schedule, now),
        None if next_at is None else away(next_at, now) if next_at > now else f"{span(now - next_at)} late",
        None if next_at is None else utc(next_at, fine=fine),
    )


def state(schedule: Schedule, now: Instant) -> str:
    """Say in a few words whether a schedule runs."""
    if schedule.attention is not None:
        return f"held: {schedule.attention}"
    pause = schedule.paused_at(now)
    if pause is not None:
        until = "" if pause.until is None else f" for {span(pause.until - now)}"
        return f"paused{until}" + (f": {pause.reason}" if pause.reason else "")
    if schedule.next_at is None:
        return "on (waits for its job to end)" if isinstance(schedule.spec.trigger, After) else "over"
    if schedule.failing >= FAILING_FLAGGED:
        return f"failing: its last {schedule.failing} jobs failed"
    return "on"


async def _get(desk: Desk, text: str, tenant: str | None) -> Schedule:
    """Read the schedule that is meant."""
    ref = await which(desk, text, tenant)
    try:
        return await desk.store.schedules.get(ref.name, tenant=ref.tenant)
    except ScheduleNotFound as error:
        named = [found.label for found in await desk.store.schedules.page(words=ref.name) if found.name == ref.name]
        hint = f"; did you mean {' or '.join(named[:3])}?" if named else ""
        raise ScheduleNotFound(f"{error}{hint}") from None


@command(app)
async def show(session: Session, name: NameArgument, tenant: TenantOption = None) -> None:
    """Show one schedule: rule, policies, state and what comes next."""
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        now, shape = desk.now, desk.schedule_shape(schedule)
    after = max(now, schedule.decided_through)
    shape = {**shape, "next": previews(schedule.spec, after, 5)}
    if session.as_json:
        session.out.json(shape)
        return
    hidden = ("next", "trigger", "paused", "pause", "attention", "args", "tags", "next_at")
    pairs = {name: value for name, value in shape.items() if name not in hidden}
    pairs |= {"args": encode_args(shape["args"]), "tags": " ".join(shape["tags"])}
    session.out.facts({"name": schedule.name, "state": state(schedule, now), **pairs})
    _tell_preview(session, "next", schedule.spec, after, 5, now=now)


@command(app)
async def preview(
    session: Session,
    what: Annotated[
        str | None, typer.Argument(metavar="CRON|NAME", help="A cron text, or the name of a schedule.")
    ] = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The time zone (IANA), default UTC.")] = None,
    dst: Annotated[str | None, typer.Option("--dst", metavar="RULE", help="shift, skip or both.")] = None,
    seconds: Annotated[
        str | None, typer.Option("--seconds", metavar="FIELD", help="The seconds of a cron text.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="INTERVAL", help="A fixed rate instead.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="One time instead.")] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="T", help="From this time on, default now.")] = None,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", min=1, max=PREVIEW_MAX, help="How many.")] = 5,
    tenant: TenantOption = None,
) -> None:
    """Show the next instants of a rule or a schedule.

    Each with its local time, its UTC time, and what daylight saving does to it.

    \b
    headway schedules preview '30 2 * * *' --tz Europe/Berlin --from 2027-03-27 -n 3
    """
    spec = _rule(what, tz=tz, dst=dst, seconds=seconds, every=every, at=at)
    now: Instant | None = None
    if spec is None:
        assert what is not None
        async with session.open() as desk:
            spec, now = (await _get(desk, what, tenant)).spec, desk.now
    if isinstance(spec.trigger, After):
        raise InvalidSchedule(f"{describe(spec.trigger)}: its instants follow from when its jobs end")
    clock = zone(tz) if tz is not None else zone_of(spec.trigger)
    now = _wall() if now is None else now
    after = now if since is None else parse_instant(since, tz=clock.key, what="--from") - 1
    if session.as_json:
        session.out.json(previews(spec, after, number, clock))
    else:
        _tell_preview(session, None, spec, after, number, now=None if since else now, clock=clock)


def _wall() -> Instant:
    from headway.core.clock import wall_now

    return wall_now()


def _rule(what: str | None, **given: str | None) -> ScheduleSpec | None:
    """Read the rule from the options; None when `what` is the name of a schedule."""
    others = [name for name in ("every", "at") if given[name] is not None]
    if (what is not None) + len(others) != 1:
        raise DefinitionError("say one of: a cron text, the name of a schedule, --every, --at")
    cron_options = {name: value for name in ("dst", "seconds") if (value := given[name]) is not None}
    if others and cron_options:
        raise DefinitionError(f"--{min(cron_options)} belongs to a cron text")
    trigger: Trigger
    if what is not None:
        if not _is_cron(what):
            if cron_options:
                raise DefinitionError(f"--{min(cron_options)} belongs to a cron text; {what!r} is none")
            return None
        trigger = define.cron(what, given["tz"], given["dst"], given["seconds"])
    elif given["every"] is not None:
        trigger = Every(given["every"])
    else:
        trigger = At(str(given["at"]), given["tz"])
    return ScheduleSpec(task="preview", trigger=trigger)


# A field of a cron text: numbers, names of months and days, and what is between them. Names of schedules have words.
_CRON_FIELD: Final = re.compile(
    r"(?:[0-9*?,/#LW-]|SUN|MON|TUE|WED|THU|FRI|SAT|JAN|FEB|MAR|APR|MAY|JU[NL]|AUG|SEP|OCT|NOV|DEC)+"
)


def _is_cron(text: str) -> bool:
    """Tell a cron text, also one with too few fields, from a name."""
    fields = text.split()
    if len(fields) >= 5 or text.startswith("@"):
        return True
    return len(fields) > 1 and all(_CRON_FIELD.fullmatch(field.upper()) for field in fields)


def _tell_preview(
    session: Session,
    title: str | None,
    spec: ScheduleSpec,
    after: Instant,
    number: int,
    *,
    now: Instant | None = None,
    clock: ZoneInfo | None = None,
) -> None:
    instants = list(instants_after(spec, after, number))
    rows = preview_rows(spec.trigger, instants, now=now, clock=clock or zone_of(spec.trigger))
    if title:
        session.out.say(title, "quiet")
    if rows:
        session.out.table(PREVIEW_COLUMNS, rows, indent=2 if title else 0)
    else:
        session.out.say("  nothing" if title else "nothing: this rule has no instant in that time")


@command(app)
async def history(
    session: Session,
    name: NameArgument,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", min=1, max=HISTORY_MAX, help="How many.")] = 20,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Only instants from this time on, or so long ago: 24h.")
    ] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="T", help="Only instants before this time.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Show what was decided for a schedule and what was started by hand, newest first, and why.

    What was started by hand is no instant of the schedule: `triggered` with the time, and `backfilled` with the number
    of jobs.
    """
    async with session.open() as desk:
        first = 0 if since is None else read_past(since, desk.now, "--since")
        last = None if before is None else read_past(before, desk.now, "--before")
        found = await _runs(desk, await which(desk, name, tenant), first, last, number)
    if session.as_json:
        session.out.json([occurrence_shape(occurrence) for occurrence in found])
        return
    columns = [
        Column("instant (UTC)", "time"),
        Column("outcome", wraps=True),
        Column("decided", right=True),
        Column("job", "quiet"),
    ]
    fine = is_fine(occurrence.instant for occurrence in found)
    session.out.table(columns, [_decision_row(occurrence, fine) for occurrence in found])


async def _runs(desk: Desk, ref: ScheduleRef, since: Instant, before: Instant | None, limit: int) -> list[Occurrence]:
    found: list[Occurrence] = []
    while len(found) < limit:
        page = await desk.runs(ref, since=since, before=before, limit=min(limit - len(found), PAGE))
        found += page
        if not page:
            break
        before = page[-1].instant
    return found[:limit]


def _decision_row(occurrence: Occurrence, fine: bool) -> tuple[object, ...]:
    until = "" if occurrence.until is None else f" … {utc(occurrence.until, fine=fine)} ({occurrence.count:,})"
    if occurrence.outcome is ByHand.BACKFILLED:
        until = f" ({count(occurrence.count, 'job')})"
    last = occurrence.until or occurrence.instant
    return (
        utc(occurrence.instant, fine=fine) + until,
        f"{occurrence.outcome}: {occurrence.reason}" if occurrence.reason else occurrence.outcome,
        f"+{span(max(0, occurrence.decided_at - last))}",
        occurrence.job_id,
    )


@command(app)
async def pause(
    session: Session,
    name: NameArgument,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="A time, or for so long: 30m.")] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")] = "",
    tenant: TenantOption = None,
) -> None:
    """Stop a schedule; its instants are recorded as paused."""
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        tz = zone_of(schedule.spec.trigger).key
        end = None if until is None else read_future(until, desk.now, "--until", tz)
        acting = desk.acting(deeds.pause_schedule(schedule, reason, end))
        is_new = await acting.schedules.pause(
            schedule.name, tenant=schedule.tenant, author=AUTHOR, reason=reason, until=end
        )
        schedule = await desk.store.schedules.get(schedule.name, tenant=schedule.tenant)
    if not is_new and until is not None:
        raise Conflict(f"schedule {schedule.label!r} is paused already; resume it first to pause it until another time")
    _tell_state(session, desk, schedule, "" if is_new else " already")


@command(app)
async def resume(session: Session, name: NameArgument, tenant: TenantOption = None) -> None:
    """Let a paused schedule run again, from now on."""
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        acting = desk.acting(deeds.resume_schedule(schedule, desk.now))
        was_paused = await acting.schedules.resume(schedule.name, tenant=schedule.tenant, author=AUTHOR)
        schedule = await desk.store.schedules.get(schedule.name, tenant=schedule.tenant)
    _tell_state(session, desk, schedule, "" if was_paused else " already")


def _tell_state(session: Session, desk: Desk, schedule: Schedule, already: str) -> None:
    if session.as_json:
        session.out.json(desk.schedule_shape(schedule))
    else:
        session.out.say(clean(f"{schedule.label} is{already} {state(schedule, desk.now)}"))


@command(app)
async def trigger(
    session: Session,
    name: NameArgument,
    arg: ArgOption = None,
    args: ArgsOption = None,
    tenant: TenantOption = None,
) -> None:
    """Enqueue a job of the schedule now, under its overlap rule.

    With skip there is no second job while one is live, with queue it waits in line, replace stops the live one first.
    The instants of the schedule stay as they are.
    """
    other_args = encode_args(read_args(arg, args)) if arg or args is not None else None
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        acting = desk.acting(deeds.trigger_schedule(schedule))
        made = await acting.schedules.trigger_once(
            schedule.name, None, tenant=schedule.tenant, author=AUTHOR, args=other_args
        )
        job = await desk.store.jobs.get(made.job_id)
        shape = desk.job_shape(job)
    if session.as_json:
        outcome = "started" if made.is_new else "not started"
        session.out.json({**shape, "outcome": outcome, "message": made.why})
    elif made.why is not None:
        session.out.say(clean(f"not started: {made.why}"))
    else:
        session.out.say(clean(f"{job.id} {job.status}: {shape['why']}"))


@command(app)
async def backfill(
    session: Session,
    name: NameArgument,
    since: Annotated[str, typer.Option("--from", metavar="T", help="The first instant; local to the schedule.")],
    until: Annotated[str, typer.Option("--to", metavar="T", help="The last instant; local to the schedule.")],
    again: Annotated[bool, typer.Option("--again", help="Also those that have fired.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which instants.")] = False,
    yes: YesOption = False,
    tenant: TenantOption = None,
) -> None:
    """Enqueue a job for each past instant that has not fired.

    Says the count and asks first. Repeating it adds nothing.
    """
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        own: dict[str, Any] = {"tenant": schedule.tenant, "again": again, "author": AUTHOR}
        tz = zone_of(schedule.spec.trigger).key
        first, last = read_past(since, desk.now, "--from", tz), read_past(until, desk.now, "--to", tz)
        if first > last:
            raise DefinitionError(f"--from {isoformat(first)} must not be later than --to {isoformat(last)}")
        instants = await desk.store.schedules.backfill(schedule.name, first, last, dry_run=True, **own)
        if instants and not dry_run:
            jobs = count(len(instants), "job")
            confirm(
                f"This adds {jobs} to {clean(schedule.label)}, from {utc(instants[0])} to {utc(instants[-1])}.", yes=yes
            )
            acting = desk.acting(deeds.backfill_schedule(schedule, first, last))
            instants = await acting.schedules.backfill(schedule.name, first, last, **own)
    if session.as_json:
        stamps = [isoformat(instant) for instant in instants]
        whose = {"schedule": schedule.name, "tenant": schedule.tenant}
        session.out.json({**whose, "count": len(instants), "instants": stamps, "dry_run": dry_run})
        return
    for instant in instants if dry_run else ():
        session.out.say(utc(instant, fine=is_fine(instants)))
    session.out.say(f"{count(len(instants), 'job')} {'would be added' if dry_run else 'added'}")


@command(app)
async def remove(session: Session, name: NameArgument, yes: YesOption = False, tenant: TenantOption = None) -> None:
    """Remove a schedule; what was decided stays in the ledger."""
    async with session.open() as desk:
        schedule = await _get(desk, name, tenant)
        owned = f" It belongs to {schedule.owner}, which may bring it back." if schedule.owner else ""
        confirm(clean(f"This removes the schedule {schedule.label}.{owned}"), yes=yes)
        acting = desk.acting(deeds.remove_schedule(schedule))
        if not await acting.schedules.remove(schedule.name, tenant=schedule.tenant, author=AUTHOR):
            raise ScheduleNotFound(f"no schedule is named {schedule.label!r}")
    if session.as_json:
        session.out.json({"schedule": schedule.name, "tenant": schedule.tenant, "removed": True})
    else:
        session.out.say(clean(f"{schedule.label} removed"))


command(app, "put")(define.put)
command(app, "apply")(define.apply)
