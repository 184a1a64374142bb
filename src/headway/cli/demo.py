"""`headway demo`: the first minute of a newcomer. Sample schedules on a store in a temporary folder, decided live.

Nothing has to be set up and nothing stays behind. On a terminal a table shows every schedule with its rule, its next
instant and its last decision; in a pipe every decision is a line. At the end the audit says whether each instant got
exactly one decision, as it can say for any store at any time.
"""

import asyncio
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headway.app import new_node_id, scheduler_node
from headway.cli.audit import FOUND, verdict
from headway.cli.log import EventLog
from headway.cli.serve import stopped_by_signals
from headway.cli.session import AUTHOR, Session, new_command
from headway.cli.shapes import PREVIEW_COLUMNS, instants_after, preview_rows, zone_of
from headway.cli.show import Column, Output, console, drawn
from headway.cli.text import away, clean, utc
from headway.clock import Clock
from headway.events import Event, SchedulesDecided, subscribed
from headway.instants import SECOND, Instant
from headway.model import Decision, Schedule, ScheduleSpec
from headway.scheduling import audit as auditing
from headway.scheduling.triggers import After, Cron, Every
from headway.scheduling.triggers import describe as rule_of
from headway.settings import Settings
from headway.store import Store

if TYPE_CHECKING:
    from rich.table import Table

FRAME_S: Final = 0.25

BERLIN: Final = Cron("30 2 * * *", tz="Europe/Berlin")
SAMPLES: Final[dict[str, tuple[ScheduleSpec, str]]] = {
    "heartbeat": (
        ScheduleSpec.build(task="beat", trigger=Every("2s"), overlap="allow"),
        "every two seconds, whether the last job has ended or not",
    ),
    "minutely": (
        ScheduleSpec.build(task="report", trigger=Cron("* * * * *"), overlap="allow"),
        "cron, at each full minute",
    ),
    "nightly": (
        ScheduleSpec.build(task="backup", trigger=BERLIN),
        "at 02:30 in Berlin, a time that one night of the year does not have",
    ),
    "inbox": (
        ScheduleSpec.build(task="poll_inbox", trigger=After("10m")),
        "ten minutes after its last job has ended",
    ),
    "careful": (
        ScheduleSpec.build(task="import", trigger=Every("3s"), overlap="skip"),
        "skips while its last job is live, and no worker runs here",
    ),
    "resting": (
        ScheduleSpec.build(task="beat", trigger=Every("4s")),
        "paused: its instants are recorded, too",
    ),
}
NEXT_COMMANDS: Final = (
    ("headway schedules put hello --task hello --every 5s", "define a schedule on a store of your own"),
    ("headway scheduler", "decide it; start several and stop any of them"),
    ("headway schedules history hello", "see what was decided, and why"),
    ("headway audit", "check that nothing was missed or done twice"),
)


@dataclass(slots=True)
class Board:
    """What has been decided so far, by schedule."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    last: dict[str, tuple[Decision, Instant]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take note of decisions."""
        if isinstance(event, SchedulesDecided):
            for plan in event.plans:
                for decision in plan.decisions:
                    name = plan.schedule.name
                    self.counts.setdefault(name, Counter())[str(decision.outcome)] += decision.count
                    self.last[name] = (decision, plan.now)


async def demo(
    session: Session,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=1, max=86_400, help="Stop after so long; else with Ctrl-C."),
    ] = None,
) -> int:
    """See schedules being decided, in a minute, with nothing to set up.

    Runs a scheduler on a store in a temporary folder, which is removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="headway-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'headway.db'}"
        settings = replace(Settings.load({"store": url}, environ={}, file=Path(folder) / "none"), node="demo")
        clock = Clock()
        clock.node = new_node_id(clock)
        store = await Store.open(url, clock)
        try:
            report = await _play(session.out, store, settings, clock, seconds)
        finally:
            await store.close()
    if session.as_json:
        session.out.json(report.to_dict())
    else:
        _say_goodbye(session.out, verdict(report.to_dict()), report.ok)
    return 0 if report.ok else FOUND


async def _play(
    out: Output, store: Store, settings: Settings, clock: Clock, seconds: float | None
) -> auditing.AuditReport:
    for name, (spec, _) in SAMPLES.items():
        await store.schedules.put(name, spec, author=AUTHOR)
    await store.schedules.pause("resting", author=AUTHOR, reason="it is a demo")
    if not out.as_json:
        _introduce(out, clock.now())
    board, stopping = Board(), asyncio.Event()
    quiet = EventLog(lambda _: None, look="plain")
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals(stopping, quiet))
        stack.enter_context(subscribed(board.hear))
        if not out.on_terminal and not out.as_json:
            stack.enter_context(subscribed(_print_decisions(out)))
        await _run(out, store, settings, clock, board, stopping, seconds)
    return await auditing.audit(store.ledger)


async def _run(
    out: Output,
    store: Store,
    settings: Settings,
    clock: Clock,
    board: Board,
    stopping: asyncio.Event,
    seconds: float | None,
) -> None:
    node = scheduler_node(store, settings, clock)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(node.run())
        if out.on_terminal and not out.as_json:
            await _show_live(store, clock, board, stopping, seconds)
        elif seconds is not None:
            await clock.rest(seconds, stopping)
        else:
            await stopping.wait()
        node.stop()
        await working


async def _show_live(store: Store, clock: Clock, board: Board, stopping: asyncio.Event, seconds: float | None) -> None:
    from rich.live import Live

    end = None if seconds is None else clock.monotonic() + seconds
    with Live(console=console(), auto_refresh=False) as live:
        while not stopping.is_set() and (end is None or clock.monotonic() < end):
            schedules = {schedule.name: schedule for schedule in await store.schedules.page()}
            live.update(_frame(schedules, board, clock.now()), refresh=True)
            await clock.rest(FRAME_S, stopping)


def _frame(schedules: dict[str, Schedule], board: Board, now: Instant) -> "Table":
    columns = (
        Column("schedule", "name"),
        Column("rule", wraps=True),
        Column("next", "time"),
        Column("last decision"),
        Column("so far", "quiet"),
    )
    return drawn(columns, [_row(schedules[name], board, now) for name in SAMPLES])


def _row(schedule: Schedule, board: Board, now: Instant) -> tuple[str, ...]:
    last = board.last.get(schedule.name)
    counts = board.counts.get(schedule.name, Counter())
    return (
        schedule.name,
        rule_of(schedule.spec.trigger).removeprefix("cron "),
        _next_text(schedule, now),
        "—" if last is None else f"{last[0].outcome} {away(last[1], now)}",
        " · ".join(f"{number:,} {outcome}" for outcome, number in counts.items()),
    )


def _next_text(schedule: Schedule, now: Instant) -> str:
    if schedule.paused_at(now) is not None:
        return "paused"
    return "after its job" if schedule.next_at is None else away(schedule.next_at, now)


def _print_decisions(out: Output) -> Any:
    def hear(event: Event) -> None:
        if isinstance(event, SchedulesDecided):
            for plan in event.plans:
                for decision in plan.decisions:
                    reason = f"  {decision.reason}" if decision.reason else ""
                    second = decision.instant // SECOND * SECOND
                    line = f"{utc(second, fine=True)}  {plan.schedule.name:<10} {decision.outcome:<8}{reason}"
                    out.say(clean(line))

    return hear


def _introduce(out: Output, now: Instant) -> None:
    out.say("A scheduler decides six sample schedules on a SQLite file. Ctrl-C ends it.")
    out.say()
    for name, (_, text) in SAMPLES.items():
        out.say(f"  {name:<10} {text}")
    out.say()
    out.say("The rule of nightly around the next change of the clock:")
    out.table(PREVIEW_COLUMNS, _berlin_rows(now), indent=2)
    out.say()


def _berlin_rows(now: Instant) -> list[tuple[str, ...]]:
    """Show the nights before and after the next instant that daylight saving moves or doubles."""
    spec = ScheduleSpec(task="backup", trigger=BERLIN)
    before: list[Instant] = []
    for instant in instants_after(spec, now, 400):
        before = [*before[-2:], instant]
        if len(before) > 2 and BERLIN.note(before[-2]):
            break
    return preview_rows(BERLIN, before, now=now, clock=zone_of(BERLIN))


def _say_goodbye(out: Output, sentence: str, is_ok: bool) -> None:
    out.say()
    out.say(f"audit  {sentence}", "good" if is_ok else "bad")
    out.say()
    out.say("Next:")
    out.table((Column("", "name"), Column("", wraps=True)), NEXT_COMMANDS, indent=2)


app = new_command(demo)
