"""`headway dev`: run scheduler and worker on the configured store while you write your app; reload on change.

The parent only watches files; a child does the work, so that a change, a syntax error or a crash never leaves half of
the old program in memory. The child exits with the parent (see `subprocesses`), and the worker's own children exit with
it.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headway.cli import subprocesses
from headway.cli.log import EventLog
from headway.cli.serve import LabelOption, OfferOption, joined
from headway.cli.session import Session, new_command
from headway.core.clock import Clock
from headway.core.events import ChildEnded, ChildStarted, Draining, EngineEvent, TermLost, TermWon
from headway.core.process_tree import how_it_ended
from headway.core.settings import FILE_DEFAULT
from headway.wiring.processes import run_worker, stopped_by_signals

LOOK_EVERY_S: Final = 0.5
KILLED_REST_S: Final = 1.0
FILES_MAX: Final = 5_000
GRACE: Final = "1s"  # After a change do not wait for jobs; they are handed back and start again.
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


async def dev(
    session: Session,
    path: Annotated[str | None, typer.Argument(metavar="MODULE:APP", help="The same as --app.")] = None,
    watch: Annotated[Path, typer.Option("--watch", metavar="FOLDER", help="Where its source files are.")] = Path(),
    offer: OfferOption = None,
    label: LabelOption = None,
) -> None:
    """Run your app while you write it: decide its schedules, run its jobs, reload on change.

    Restarts when a Python file or headway.toml in the folder changes, and when the process was killed. It uses the
    configured store, by default sqlite:///headway.db in this folder. Ctrl-C ends it.
    """
    options = {"app_path": path or session.app_path, "store_url": session.store_url, "as_json": session.as_json}
    settings = {"offer": offer, "labels": joined(label)}
    session.loaded(**settings)  # Wrong ones are said once, here.
    log = EventLog.on_stderr(as_json=session.as_json)
    stopping, clock = asyncio.Event(), Clock()
    with stopped_by_signals(stopping, log):
        while not stopping.is_set():
            seen = snapshot(watch)
            child = await subprocesses.start("headway.cli.dev:run_child", {**options, "settings": settings})
            changed = await _watch(child, watch, seen, log, stopping)
            await subprocesses.stop(child)
            if changed:
                log.write("restarting", changed=changed)
            elif not stopping.is_set():
                log.write("restarting", level="warning", reason=f"the node {how_it_ended(child.returncode)}")
                await clock.rest(KILLED_REST_S, stopping)


async def _watch(
    child: asyncio.subprocess.Process, folder: Path, seen: dict[str, int], log: EventLog, stopping: asyncio.Event
) -> str:
    """Wait until a file changes and name it; return nothing when the node was killed, or on a stop.

    A node that has exited by itself is not restarted: without a change it would exit in the same way.
    """
    clock, is_told = Clock(), False
    while not stopping.is_set():
        if changed := _changed(seen, snapshot(folder), folder):
            return changed
        if child.returncode is not None and child.returncode < 0:
            return ""
        if child.returncode is not None and not is_told:
            is_told = True
            log.write("waiting for a change", level="warning", ended_with=child.returncode)
        await clock.rest(LOOK_EVERY_S, stopping)
    return ""


def snapshot(folder: Path) -> dict[str, int]:
    """Return the modification times of the source files below a folder, up to a limit."""
    times: dict[str, int] = {}
    for entry in _source_files(str(folder)):
        if len(times) >= FILES_MAX:
            break
        try:
            times[entry.path] = entry.stat().st_mtime_ns
        except OSError:
            continue  # Deleted since it was listed: the next look sees that.
    return times


def _changed(before: dict[str, int], after: dict[str, int], folder: Path) -> str:
    """Name what has changed: the first file, and how many others."""
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    if not paths:
        return ""
    return os.path.relpath(paths[0], folder) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _source_files(folder: str) -> Iterator["os.DirEntry[str]"]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED and not entry.name.startswith("."):
                yield from _source_files(entry.path)
        elif entry.name.endswith(".py") or entry.name == FILE_DEFAULT:
            yield entry


def run_child() -> None:
    """Run as the child: scheduler and worker, until the parent exits."""
    subprocesses.run_as_child(_serve)


class DevLog(EventLog):
    """A log for developers: events of schedules and jobs, without the starts and stops of processes."""

    def __call__(self, event: EngineEvent) -> None:
        """Log an event, unless it is part of every start and stop."""
        match event:
            case ChildStarted() | TermWon() | TermLost() | Draining():
                return
            case ChildEnded(reason=reason) if "killed by" not in reason and "did not stop" not in reason:
                return  # Replaced, or it could not import the app, which the command reports once.
            case _:
                super().__call__(event)


async def _serve(options: dict[str, Any], stopping: asyncio.Event) -> None:
    flags = options.pop("settings")
    session = Session(**options)
    settings = session.loaded(grace=GRACE, **flags)
    log = DevLog.on_stderr(as_json=session.as_json)
    await run_worker(settings, log, store=session.store_url, schedules=True, api="may", stopping=stopping)


app = new_command(dev)
