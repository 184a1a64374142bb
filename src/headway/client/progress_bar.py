"""A progress bar for one job; without a terminal, or without the library rich, a line from time to time."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from headway.client.follow import Event, watch
from headway.client.requests import Shape, Steps, for_each

LINE_POINTS: Final = 10


def draw(job_id: str) -> Steps[Shape]:
    """Draw a job until it has ended; return it."""
    job: Shape = {"id": job_id}
    with ExitStack() as stack:
        show = (_bar(stack) if sys.stderr.isatty() else None) or _lines()

        def take(event: Event) -> None:
            if event.kind != "log":
                job.update(event.data)
                show(job)

        yield from for_each(watch(job_id), take)
    return job


def _lines() -> Callable[[Shape], None]:
    told: list[tuple[object, int]] = []

    def show(job: Shape) -> None:
        now = (job.get("status"), int(job.get("progress") or 0) // LINE_POINTS)
        if told != [now]:
            told[:] = [now]
            print(_words(job), file=sys.stderr, flush=True)

    return show


def _bar(stack: ExitStack) -> Callable[[Shape], None] | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    bars = stack.enter_context(Progress(text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=console))
    only = bars.add_task("", total=100)

    def show(job: Shape) -> None:
        bars.update(only, completed=int(job.get("progress") or 0), description=_words(job, percent=False))

    return show


def _words(job: Shape, *, percent: bool = True) -> str:
    """Describe a job in one line. Control characters in its data are removed: they could move the cursor."""
    step = (job.get("metadata") or {}).get("current_step")
    parts = [job.get("id"), job.get("type"), job.get("status"), f"{job.get('progress') or 0}%" if percent else "", step]
    if job.get("error"):
        parts.append(f"{job['error'].get('type')}: {job['error'].get('message')}")
    text = "  ".join(str(part) for part in parts if part)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
