"""`headway dev`: the scheduler on the configured store while you write your app, started anew when its files change.

The parent only watches files; a child does the work, so that a change, a syntax error or a crash never leaves half of
the old program in memory. The child gets its options as one line on its standard input, since a store's password must
not stand in the list of processes, and it stops in good order when that input ends: also when the parent is killed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headway.cli.log import EventLog
from headway.cli.serve import run_worker, stopped_by_signals
from headway.cli.session import Session, new_command
from headway.clock import Clock

LOOK_EVERY_S: Final = 0.5
FILES_MAX: Final = 5_000
STOP_S_MAX: Final = 5.0
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


async def dev(
    session: Session,
    path: Annotated[str | None, typer.Argument(metavar="MODULE:APP", help="The same as --app.")] = None,
    watch: Annotated[Path, typer.Option("--watch", metavar="FOLDER", help="Where its source files are.")] = Path(),
) -> None:
    """Run your app's schedules while you write it.

    Restarts when a Python file in the folder changes. The scheduler runs on the configured store, by default
    sqlite:///headway.db in this folder. Ctrl-C ends it.
    """
    options = {"app_path": path or session.app_path, "store_url": session.store_url, "as_json": session.as_json}
    log = EventLog.on_stderr(as_json=session.as_json)
    stopping, clock = asyncio.Event(), Clock()
    with stopped_by_signals(stopping, log):
        while not stopping.is_set():
            seen, has_ended = snapshot(watch), False
            child = await _start(options)
            while not stopping.is_set() and snapshot(watch) == seen:
                if child.returncode is not None and not has_ended:
                    has_ended = True
                    log.write("waiting for a change", level="warning", ended_with=child.returncode)
                await clock.rest(LOOK_EVERY_S, stopping)
            await _stop(child)
            if not stopping.is_set():
                log.write("restarting", reason="source files changed")


async def _start(options: dict[str, Any]) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from headway.cli.dev import run_child; run_child()"),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the parent, which then ends the child in good order.
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(options).encode() + b"\n")
    return child


async def _stop(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


def snapshot(folder: Path) -> dict[str, int]:
    """Return the times at which the Python files below a folder were changed; of very many, the first ones."""
    times: dict[str, int] = {}
    for entry in _python_files(str(folder)):
        if len(times) >= FILES_MAX:
            break
        try:
            times[entry.path] = entry.stat().st_mtime_ns
        except OSError:
            continue  # Gone between listing and looking: the next look sees it.
    return times


def _python_files(folder: str) -> Iterator["os.DirEntry[str]"]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED and not entry.name.startswith("."):
                yield from _python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry


def run_child() -> None:
    """Be the child: run the scheduler with the options on standard input until that input ends."""
    from headway.cli.root import guarded

    options = json.loads(sys.stdin.readline())
    sys.exit(guarded(lambda: asyncio.run(_serve(Session(**options))), as_json=options["as_json"]))


async def _serve(session: Session) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stopping.set)  # Nothing more is ever written, so readable means ended.
    try:
        log = EventLog.on_stderr(as_json=session.as_json)
        await run_worker(session.loaded(), log, store=session.store_url, schedules=True, stopping=stopping)
    finally:
        loop.remove_reader(sys.stdin.fileno())


app = new_command(dev)
