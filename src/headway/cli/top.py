"""`headway top`: the terminal dashboard. Health in one sentence, queues, running jobs, coming runs, alerts.

Reading a frame (`gather`) and drawing it (`frame`) are separate: drawing is pure, and distributes the lines of the
terminal, so that it never scrolls and never jumps. In a pipe it writes one frame and exits.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec
import typer
from msgspec import UNSET

from headway.cli.output import console
from headway.cli.queues import queue_state
from headway.cli.session import Session, new_command
from headway.cli.status import attention, located, nodes_of, schedulers_of, used_text, waiting_text
from headway.cli.text import clean, count, span, utc
from headway.cli.watch import Line, bar, painted
from headway.core.errors import Denied, StoreUnavailable
from headway.core.instants import SECOND, Instant, parse_instant
from headway.core.lifecycle import Status
from headway.core.schedule_names import schedule_label
from headway.operations.everything import Operations
from headway.operations.overview import LATE
from headway.wire.base import PAGE_MAX
from headway.wire.job_requests import JobFilter
from headway.wire.jobs import Detail, Job
from headway.wire.nodes import Worker
from headway.wire.overview import ComingSchedule, Stats

FRAME_S: Final = 1.0
RUNNING_READ: Final = 50
COMING_READ: Final = 20
FAULTS_SHOWN: Final = 3
WIDTH_PIPED: Final = 100
HEIGHT_PIPED: Final = 1_000
BAR_WIDTH: Final = 20
BAR_WIDTH_MIN: Final = 6
WIDTH_TASK_MAX: Final = 32
KEYS: Final = "q quits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content of one frame."""

    stats: Stats
    running: list[Job]
    trouble: str = ""

    @property
    def now(self) -> Instant:
        """The store's time of the frame."""
        return parse_instant(self.stats.at)


async def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Write one frame and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3_600, help="Refresh interval.")
    ] = FRAME_S,
) -> None:
    """Show the status live: health, queues, running jobs, coming runs, alerts.

    q or Ctrl-C leaves. In a pipe, or with --once, it writes one frame.
    """
    async with session.operations() as operations:
        if session.as_json or once or not session.out.on_terminal:
            _write(session, await gather(operations))
        else:
            await _live(operations, every)


async def gather(operations: Operations) -> Picture:
    """Read the content of one frame."""
    stats = await operations.monitoring.stats()
    if stats.tenant is not None:
        raise Denied("this shows what concerns all tenants; a token for all of them is needed")
    found = await operations.jobs.list(JobFilter(status=Status.RUNNING), limit=PAGE_MAX)
    longest_first = sorted(found.items, key=lambda job: (job.started_at or "", job.id))
    return Picture(stats=stats, running=longest_first[:RUNNING_READ])


def _write(session: Session, picture: Picture) -> None:
    if session.as_json:
        figures = msgspec.to_builtins(located(session, picture.stats))
        session.out.json({**figures, "running": picture.running, "health": health(picture.stats)})
    elif session.out.on_terminal:
        screen = console()
        lines = frame(picture, screen.size.width, HEIGHT_PIPED, keys="")
        screen.print(painted(lines, screen.encoding))
    else:
        for line in frame(picture, WIDTH_PIPED, HEIGHT_PIPED, keys=""):
            session.out.say("".join(clean(piece) for piece, _ in line).rstrip())


async def _live(operations: Operations, every: float) -> None:
    from rich.live import Live

    screen = console()
    leaving = asyncio.Event()
    picture: Picture | None = None
    with (
        suppress(asyncio.CancelledError),  # Ctrl-C is a normal exit.
        _keys(leaving),
        Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not leaving.is_set():
            try:
                picture = await gather(operations)
            except StoreUnavailable as error:
                if picture is None:
                    raise
                picture = replace(picture, trouble=f"the store does not answer: {error}")
            size = screen.size
            live.update(painted(frame(picture, size.width, size.height), screen.encoding), refresh=True)
            await operations.clock.rest(every, leaving)


@contextmanager
def _keys(leaving: asyncio.Event) -> Iterator[None]:
    """Read single keys: q and Escape exit. Without a terminal for input, only Ctrl-C does."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    try:
        where = sys.stdin.fileno()
        before = termios.tcgetattr(where)
    except (OSError, ValueError, termios.error):
        yield
        return

    def hear() -> None:
        pressed = os.read(where, 64)
        if not pressed or pressed in (b"q", b"Q", b"\x1b", b"\x04"):
            leaving.set()

    loop = asyncio.get_running_loop()
    tty.setcbreak(where)
    loop.add_reader(where, hear)
    try:
        yield
    finally:
        loop.remove_reader(where)
        termios.tcsetattr(where, termios.TCSADRAIN, before)


# --- drawing


def health(stats: Stats) -> str:
    """Describe the health in one sentence."""
    late, total = stats.schedules.late, stats.schedules.total - stats.schedules.paused
    if not total:
        schedules = "no schedules"
    elif late:
        schedules = f"{late:,} of {count(total, 'schedule')} late"
    else:
        schedules = f"all {count(total, 'schedule')} on time" if total > 1 else "the schedule is on time"
    running, waiting = stats.jobs.get(Status.RUNNING, 0), stats.jobs.get(Status.PENDING, 0)
    needs = stats.dead.total + len(stats.failing)
    parts = [schedules, f"{running:,} running", f"{waiting:,} waiting"]
    if needs:
        parts.append(f"{needs:,} need{'s' if needs == 1 else ''} you")
    text = " · ".join(parts)
    return text[0].upper() + text[1:]


def _names(stats: Stats) -> dict[str, str]:
    return {node.id: node.name for node in nodes_of(stats)}


def frame(picture: Picture, width: int, height: int, *, keys: str = KEYS) -> list[Line]:
    """Draw a frame that fits: sections get their lines by priority."""
    top_lines = _head(picture, width, keys)
    needs = _needs(picture, width)
    room = height - len(top_lines) - (1 + len(needs) if needs else 0)
    sections = _shared(
        [
            ("queues", _queue_lines(picture), 3),
            ("limits", _limit_lines(picture), 2),
            ("running", _running_lines(picture, width), 4),
            ("next", _coming_lines(picture, width), 3),
        ],
        room,
    )
    lines = [*top_lines]
    for section in sections:
        lines += [[], *section]
    if needs:
        lines += [[], *needs]
    return lines[:height]


def _shared(sections: Sequence[tuple[str, list[Line], int]], room: int) -> list[list[Line]]:
    """Distribute lines: each section gets a few, and unused ones go to the others, running jobs first."""
    wanted = {name: len(lines) for name, lines, _ in sections}
    given = {name: min(wanted[name], least) for name, _, least in sections}
    for name in ("limits", "next", "queues"):  # On a very small terminal some must go.
        if room < sum(given.values()) + len(sections):
            given[name] = 0
    spare = room - sum(number + 1 for number in given.values() if number)
    for name in ("running", "queues", "limits", "next"):
        more = max(0, min(spare, wanted[name] - given[name])) if given[name] else 0
        given[name] += more
        spare -= more
    return [_cut(lines, given[name]) for name, lines, _ in sections if given[name] > 0]


def _cut(lines: list[Line], room: int) -> list[Line]:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], [(f"  … {len(lines) - room + 1:,} more", "quiet")]]


def _head(picture: Picture, width: int, keys: str) -> list[Line]:
    stats = picture.stats
    faults = [picture.trouble] if picture.trouble else stats.degraded
    style = "bad" if faults else "warn" if stats.dead.tasks or stats.failing else "good"
    mark = {"bad": "!", "warn": "!", "good": "✓"}[style]
    sentence = f"{mark} {health(stats)}"
    at = utc(picture.now // SECOND * SECOND, fine=True)[-9:]
    led = f"led by {stats.leader.name}" if stats.leader else count(len(schedulers_of(stats)), "scheduler")
    store = f"{stats.store.kind} {stats.store.version}" if stats.store else "store"
    under = f"  {store} · {led} · {_workers(stats.workers or [])}"
    return [
        [(sentence, style), (_spread(sentence, at, width), "quiet")],
        [(under, "quiet"), (_spread(under, keys, width) if keys else "", "quiet")],
        *([(_cut_text(clean(f"  ! {fault}"), width), "bad")] for fault in faults[:FAULTS_SHOWN]),
    ]


def _workers(workers: Sequence[Worker]) -> str:
    if not workers:
        return "no worker"
    draining = sum(worker.draining for worker in workers)
    slots, busy = sum(worker.slots for worker in workers), sum(worker.running for worker in workers)
    return f"{count(len(workers), 'worker')}{f' ({draining} draining)' if draining else ''} · {busy:,}/{slots:,} slots"


def _spread(left: str, right: str, width: int) -> str:
    """Return a piece that is right-aligned after a text."""
    return " " * max(2, width - len(left) - len(right)) + right


def _queue_lines(picture: Picture) -> list[Line]:
    queues = sorted(picture.stats.queues, key=lambda queue: (-queue.pending, -queue.running, queue.name))
    if not queues:
        return [[("queues", "name"), ("  nothing waits, nothing runs", "quiet")]]
    name_width = max(12, min(30, max(len(clean(queue.name)) for queue in queues)))
    lines: list[Line] = [
        [("queues", "name"), (" " * (name_width - 4) + f"{'waiting':>9}  {'oldest':>8}  {'running':>9}", "quiet")]
    ]
    for queue in queues:
        oldest = span(round(queue.oldest_age_seconds) * SECOND) if queue.pending else "—"
        lines.append(
            [
                (f"  {_fit(queue.name, name_width)}", ""),
                (f"{queue.pending:>9,}", "name" if queue.pending else "quiet"),
                (f"  {oldest:>8}", "time" if queue.pending else "quiet"),
                (f"  {queue.running:>9,}", "" if queue.running else "quiet"),
                (f"  {queue_state(queue, picture.now)}" if queue.paused else "", "warn"),
            ]
        )
    return lines


def _limit_lines(picture: Picture) -> list[Line]:
    """Draw the limits for which jobs wait; nothing if there are none."""
    found = picture.stats.limits
    if not found.total:
        return []
    name_width = max(12, min(30, max(len(clean(limit.name)) for limit in found.items)))
    lines: list[Line] = [[("full limits", "name")]]
    lines += [
        [
            (f"  {_fit(limit.name, name_width)}", ""),
            (f"{used_text(limit):>16}", "name"),
            (f"  {limit.rate or '':>9}", "time"),
            (f"  {waiting_text(limit)}", "warn"),
        ]
        for limit in found.items
    ]
    if (more := found.total - len(found.items)) > 0:
        lines.append([(f"  … {more:,} more", "quiet")])
    return lines


def _running_lines(picture: Picture, width: int) -> list[Line]:
    stats, jobs = picture.stats, picture.running
    slots = sum(worker.slots for worker in stats.workers or [])
    total = stats.jobs.get(Status.RUNNING, 0)
    right = f"{total:,} of {count(slots, 'slot')}" if slots else ""
    if not jobs:
        return [[("running", "name"), ("  nothing", "quiet")]]
    names = _names(stats)
    task_width = max(8, min(WIDTH_TASK_MAX, width - 62, max(len(clean(job.type)) for job in jobs)))
    lines = [_job_line(job, picture.now, names, task_width, width) for job in jobs]
    return [[("running", "name"), (_spread("running", right, width) if right else "", "quiet")], *lines]


def _job_line(job: Job, now: Instant, names: dict[str, str], task_width: int, width: int) -> Line:
    """Draw one job: the complete id, which other commands need; the rest as far as there is room."""
    detail = job.detail or Detail()
    left = "" if job.eta_seconds is None else f"{span(job.eta_seconds * SECOND)} left"
    bar_width = max(BAR_WIDTH_MIN, min(BAR_WIDTH, width - task_width - 56))
    line: Line = [(f"  {job.id}  ", "quiet"), (_fit(job.type, task_width), "name"), ("  ", "")]
    if job.progress or detail.step or detail.done is not UNSET:
        line += [*bar(job.progress / 100, bar_width), (f" {job.progress:>3}%", "name")]
    else:
        line += [(" " * (bar_width + 5), "")]
    if job.cancel_requested_at is not None:
        return [*line, (f"  {'asked to stop':>13}", "warn")]
    if job.node not in names:
        return [*line, (f"  {'worker lost':>13}", "bad")]
    started_at = now if job.started_at is None else parse_instant(job.started_at)
    elapsed = span(max(0, now - started_at) // SECOND * SECOND)
    line.append((f"  {left or 'for ' + elapsed:>13}", "time" if left else "quiet"))
    used = sum(len(piece) for piece, _ in line)
    words = "  ".join(part for part in (names[job.node], detail.step or "") if part)
    return [*line, (f"  {_cut_text(clean(words), width - used - 2)}" if width - used > 8 else "", "quiet")]


def _coming_lines(picture: Picture, width: int) -> list[Line]:
    coming = picture.stats.schedules.coming[:COMING_READ]
    if not coming:
        return [[("next", "name"), ("  nothing is scheduled", "quiet")]]
    name_width = max(12, min(width - 40, max(len(clean(_label(entry))) for entry in coming)))
    lines: list[Line] = [[("next", "name")]]
    for entry in coming:
        next_at = parse_instant(entry.next_at)
        ahead = next_at - picture.now
        late = -ahead > LATE
        when = (
            "now" if -LATE <= ahead < SECOND else f"in {span(_rounded(ahead))}" if ahead > 0 else f"{span(-ahead)} late"
        )
        lines.append(
            [
                (f"  {_fit(_label(entry), name_width)}", ""),
                (f"  {when:>12}", "bad" if late else "time"),
                (f"  {utc(next_at // SECOND * SECOND, fine=True)}", "quiet"),
            ]
        )
    return lines


def _label(entry: ComingSchedule) -> str:
    return schedule_label(entry.tenant, entry.name)


def _rounded(duration: int) -> int:
    return duration // SECOND * SECOND


def _needs(picture: Picture, width: int) -> list[Line]:
    """Draw an alert; if it is too long, the text is truncated, never the command."""
    found = list(attention(picture.stats))
    if not found:
        return []
    lines: list[Line] = [[("needs you", "name")]]
    for text, command in found:
        way = clean(f"  →  {command}")
        lines.append([(f"  {_cut_text(clean(text), width - 2 - len(way))}", "warn"), (way, "quiet")])
    return lines


def _fit(text: str, width: int) -> str:
    return _cut_text(clean(text), width).ljust(width)


def _cut_text(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


app = new_command(top)
