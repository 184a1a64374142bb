"""The live view of `headway demo`: what runs, what has just ended, what comes next, and the story of the crash.

Pure: a `DemoView` and the size of the terminal give lines. Every section keeps its place from frame to frame.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway.cli.samples import BATCHES, CRASHES_IN
from headway.cli.text import away, clean, span
from headway.cli.watch import Line, bar
from headway.core.instants import SECOND, Duration, Instant
from headway.core.job_details import error_line, left_words, read_detail
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.schedules import Schedule
from headway.core.triggers import describe as rule_of

NAME_WIDTH: Final = 15
RULE_WIDTH: Final = 30
BAR_WIDTH_MIN: Final = 12
BAR_WIDTH_MAX: Final = 40
RUNNING_ROWS: Final = 4
ENDED_ROWS_MIN: Final = 2
ENDED_ROWS_MAX: Final = 10
ROWS_AROUND: Final = 12  # Rows besides running, ended and schedules: titles, gaps, the story.
ABOUT: Final = "a scheduler and a worker on a SQLite file, with real processes"
QUIET_TASKS: Final = frozenset({"beat"})  # They end so often that they would hide everything else.


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoView:
    """The content of one frame."""

    now: Instant
    elapsed: Duration
    jobs: Sequence[Job]
    schedules: Sequence[Schedule]
    decided: Mapping[str, Counter[str]] = field(default_factory=dict)
    note: str = ""
    hero: Job | None = None
    completed: int = 0
    url: str = ""


def frame(view: DemoView, width: int, height: int) -> list[Line]:
    """Draw a frame that fits the terminal."""
    room = height - ROWS_AROUND - len(view.schedules)
    running_rows = max(2, min(RUNNING_ROWS, room - ENDED_ROWS_MIN))
    ended_rows = max(ENDED_ROWS_MIN, min(ENDED_ROWS_MAX, room - running_rows))
    lines = [
        _spread("headway demo", f"{span(view.elapsed // SECOND * SECOND)} · Ctrl-C ends", width),
        [
            *([(view.url, "name"), ("  ", "")] if view.url else []),
            (_cut(ABOUT, width - len(view.url) - 2 * bool(view.url)), "quiet"),
        ],
        [],
        _spread("running", f"{sum(job.status is Status.RUNNING for job in view.jobs):,}", width),
        *_filled([_running_line(job, view.now, width) for job in _at_work(view)], running_rows, "starting up"),
        [],
        _spread("just ended", f"{view.completed:,} completed", width),
        *_filled([_ended_line(job, view.now, width) for job in _over(view)], ended_rows, "nothing yet"),
        [],
        _spread("schedules", "each instant is decided once", width),
        *[_schedule_line(schedule, view, width) for schedule in view.schedules],
        [(_cut(f"    {view.note}", width), "quiet")],
        [],
        *([(_cut(text, width), style)] for text, style in story(view.hero, view.now)),
    ]
    return lines[:height]


def _at_work(view: DemoView) -> list[Job]:
    found = [job for job in view.jobs if job.status in (Status.RUNNING, Status.RETRYING)]
    return sorted((job for job in found if job.task not in QUIET_TASKS), key=lambda job: (job.task, job.id))


def _over(view: DemoView) -> list[Job]:
    ended = [job for job in view.jobs if job.status.is_final and job.task not in QUIET_TASKS]
    return sorted(ended, key=lambda job: job.finished_at or 0, reverse=True)


def _running_line(job: Job, now: Instant, width: int) -> Line:
    name: Line = [("  ", ""), (_fit(job.task, NAME_WIDTH), "name")]
    if job.status is Status.RETRYING:
        return [*name, (_cut(clean(f"{job.reason}, {away(job.run_at, now)}"), width - NAME_WIDTH - 2), "warn")]
    left, step = left_words(job, now), clean(read_detail(job).step or "")
    bar_width = max(BAR_WIDTH_MIN, min(BAR_WIDTH_MAX, width - NAME_WIDTH - 47))
    line: Line = [
        *name,
        *bar(job.progress / 100, bar_width),
        (f" {job.progress:>3}%", "name"),
        (f"  {left:<13}", "time"),
    ]
    words = f"attempt {job.attempt}" if job.failures else ""
    room = width - sum(len(piece) for piece, _ in line)
    if words:
        line.append((f"{words}  ", "warn"))
        room -= len(words) + 2
    return [*line, (_cut(step, room), "quiet")]


def _ended_line(job: Job, now: Instant, width: int) -> Line:
    mark, style = ("✓", "good") if job.status is Status.COMPLETED else ("✗", "bad")
    took = span(max(0, (job.finished_at or now) - (job.started_at or now)))
    ago = f"{span(max(0, now - (job.finished_at or now)) // SECOND * SECOND)} ago"
    words = job.result or "" if job.status is Status.COMPLETED else error_line(job.error) or job.reason
    if job.status is Status.COMPLETED and job.failures:
        words = f"in attempt {job.attempt}  {words}"
    text = _cut(clean(words.replace('"', "")), width - NAME_WIDTH - 14 - len(ago) - 2)
    used = 4 + NAME_WIDTH + 8 + len(text)
    gap = " " * max(2, width - used - len(ago))
    return [
        (f"  {mark} ", style),
        (_fit(job.task, NAME_WIDTH - 1), ""),
        (f"{took:>7}  ", "quiet"),
        (text, ""),
        (gap + ago, "quiet"),
    ]


def _schedule_line(schedule: Schedule, view: DemoView, width: int) -> Line:
    counts = view.decided.get(schedule.name, Counter())
    so_far = " · ".join(f"{number:,} {outcome}" for outcome, number in counts.items())
    upcoming = "after its job" if schedule.next_at is None else _until(schedule.next_at - view.now)
    rule = _fit(rule_of(schedule.spec.trigger).removeprefix("cron "), min(RULE_WIDTH, width - NAME_WIDTH - 34))
    head: Line = [("  ", ""), (_fit(schedule.name, NAME_WIDTH), "name"), (rule, ""), (f" {upcoming:>13}", "time")]
    room = width - sum(len(piece) for piece, _ in head) - 2
    return [*head, (f"  {_cut(so_far, room)}", "quiet")]


def _until(ahead: Duration) -> str:
    return "now" if ahead < SECOND else f"in {span(ahead // SECOND * SECOND)}"


def story(hero: Job | None, now: Instant) -> list[tuple[str, str]]:
    """Describe the job that kills its own process, in at most two lines."""
    again = f"▸ Attempt {hero.attempt} runs: batches 1 to {CRASHES_IN - 1} are not repeated." if hero else ""
    killed = f"✗ import_orders killed its own process (SIGKILL) in the middle of batch {CRASHES_IN} of {BATCHES}."
    if hero is None or not hero.failures:
        return [("▸ import_orders will kill its own process half way: watch what becomes of it.", "warn")]
    if hero.status is Status.COMPLETED:
        return [
            (f"✓ import_orders crashed in batch {CRASHES_IN}, and recovered. Batches 1 to {CRASHES_IN - 1}", "good"),
            (f"  were kept by ctx.once: attempt {hero.attempt} imported only {CRASHES_IN} to {BATCHES}.", "good"),
        ]
    if hero.status is Status.RETRYING:
        again = f"  The worker saw it at once. The job starts again {away(hero.run_at, now)}."
    return [(killed, "bad"), (again, "warn")]


def _spread(left: str, right: str, width: int) -> Line:
    return [(left, "name"), (" " * max(2, width - len(left) - len(right)) + right, "quiet")]


def _filled(lines: list[Line], rows: int, empty: str) -> list[Line]:
    """Cut or pad lines to a fixed height."""
    shown = lines[:rows] or [[(f"  {empty}", "quiet")]]
    return [*shown, *([] for _ in range(rows - len(shown)))]


def _fit(text: str, width: int) -> str:
    return _cut(clean(text), width - 1).ljust(width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
