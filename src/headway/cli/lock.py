"""`headway lock`: run a command while holding a lock, like flock, across all hosts.

The command gets the lock's name and fencing token in its environment, and its exit code becomes ours. It never runs on
with a lock that is lost: when the lease is lost it gets SIGTERM, and SIGKILL after a grace period; when this process is
killed, an orphan reaper kills it. Processes that the command leaves behind are killed, too, before the lock is
released.

On a terminal the command stays in our process group, so that Ctrl-C and Ctrl-Z work as usual. Elsewhere it has a group
of its own, and signals are forwarded to it.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from headway import Lock
from headway.cli.session import Session, new_command
from headway.cli.text import clean
from headway.core.errors import DefinitionError, LeaseLost
from headway.core.instants import SECOND, DurationLike, parse_duration
from headway.core.process_tree import descendants_of, start_orphan_reaper
from headway.wiring.locks import LOCK_TTL, hold_lock, lock_wish

NOT_FOUND: Final = 127  # As shells do.
NOT_RUNNABLE: Final = 126
SIGNALLED: Final = 128
MARK: Final = "HEADWAY_LOCK_HOLDER"
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)  # The terminal sends them to the whole group.


async def lock(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")],
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command to run, after --, with its arguments.")
    ],
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="Lease: how long others wait after a crash.")
    ] = LOCK_TTL,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="How long to wait for the lock (default: forever).")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the lock.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="From SIGTERM to SIGKILL when the lock is lost.")
    ] = "10s",
) -> int:
    """Run a command while holding a lock, across all hosts.

    The command finds HEADWAY_LOCK_NAME and HEADWAY_LOCK_TOKEN in its environment; the token, a fencing token, only
    grows. The command's exit code is passed through. 75: the lock was not acquired. 76: it was lost, and the command
    was stopped.
    """
    if wait is not None and no_wait:
        raise DefinitionError("use --wait or --no-wait, not both")
    wish = lock_wish(name, _seconds(ttl), None if wait is None else _seconds(wait), blocking=not no_wait)
    grace_s = parse_duration(_seconds(grace), what="grace") / SECOND
    program = shutil.which(command[0])
    if program is None:
        _say(f"{command[0]}: command not found")
        return NOT_FOUND
    waiting = asyncio.current_task()
    assert waiting is not None
    with _ended_by_signals(waiting) as told:
        try:
            async with hold_lock(session.settings(), wish) as lock:
                return await _run(lock, program, command, grace_s)
        except asyncio.CancelledError:
            if told:
                return SIGNALLED + told[0]
            raise


def _seconds(text: str) -> DurationLike:
    """Parse `30` like flock, and `30s` like durations elsewhere."""
    return float(text) if text.replace(".", "", 1).isdecimal() else text


@contextmanager
def _ended_by_signals(waiting: "asyncio.Task[object]") -> Iterator[list[int]]:
    """Let these signals end the wait for the lock, and remember which one did."""
    told: list[int] = []
    loop = asyncio.get_running_loop()

    def hear(number: int) -> None:
        told.append(number)
        waiting.cancel()

    for number in _heeded():
        loop.add_signal_handler(number, hear, number)
    try:
        yield told
    finally:
        for number in PASSED_ON:
            loop.remove_signal_handler(number)


def _heeded() -> list[int]:
    """Return the signals that this process was not started to ignore."""
    return [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]


async def _run(lock: Lock, program: str, command: Sequence[str], grace_s: float) -> int:
    """Run the command until it ends or the lock is lost."""
    mark = f"{lock.name.encode().hex()[:40]}.{lock.token}.{os.getpid()}."
    orphan_reaper = start_orphan_reaper(f"{MARK}={mark}")
    try:
        relay = _SignalForwarder()
        child = await _Child.start(lock, program, command, mark)
        relay.pass_on_to(child)
        try:
            return await _attend(child, lock, grace_s)
        finally:
            child.end()
    except OSError as error:
        _say(f"{command[0]}: {error.strerror or error}")
        return NOT_RUNNABLE
    finally:
        if orphan_reaper is not None:
            orphan_reaper.kill()  # It has nothing left to do.
            orphan_reaper.wait()


async def _attend(child: "_Child", lock: Lock, grace_s: float) -> int:
    ended = asyncio.ensure_future(child.wait())
    lost = asyncio.ensure_future(lock.lost.wait())
    await asyncio.wait([ended, lost], return_when=asyncio.FIRST_COMPLETED)
    lost.cancel()
    if ended.done():
        return ended.result()
    child.signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(ended), grace_s)
    child.end()
    await ended
    raise LeaseLost(f"{lock.loss}; the command was stopped")


class _SignalForwarder:
    """Forward signals to the command. Signals that arrive before it has started are kept for it."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._kept: list[int] = []
        for number in _heeded():
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)

    def pass_on_to(self, child: "_Child") -> None:
        """Forward signals to this command from now on."""
        self._child = child
        for number in self._kept:
            child.hear(number)

    def _hear(self, number: int) -> None:
        if self._child is None:
            self._kept.append(number)
        else:
            self._child.hear(number)


class _Child:
    """The command and its descendants."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str, *, has_group: bool) -> None:
        self._process = process
        self._mark = f"{MARK}={mark}"
        self._has_group = has_group

    @classmethod
    async def start(cls, lock: Lock, program: str, command: Sequence[str], mark: str) -> "_Child":
        """Start the command with the lock in its environment."""
        has_group = not (sys.stdin is not None and sys.stdin.isatty())
        environ = {
            **os.environ,
            "HEADWAY_LOCK_NAME": lock.name,
            "HEADWAY_LOCK_TOKEN": str(lock.token),
            MARK: mark,
        }
        process = await asyncio.create_subprocess_exec(
            *command, executable=program, env=environ, process_group=0 if has_group else None
        )
        return cls(process, mark, has_group=has_group)

    async def wait(self) -> int:
        """Wait for its end; return the exit code that a shell would show."""
        code = await self._process.wait()
        return code if code >= 0 else SIGNALLED - code

    def hear(self, number: int) -> None:
        """Forward a signal, unless the terminal has sent it to the command as well."""
        if self._has_group or number not in FROM_TERMINAL:
            self.signal(number)

    def signal(self, number: int) -> None:
        """Send a signal to the command and its process group."""
        if self._has_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            return
        for pid in [self._process.pid, *self._others()]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill whatever is left of it."""
        if self._has_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _others(self) -> list[int]:
        return descendants_of(self._process.pid, self._mark)


def _say(text: str) -> None:
    print(f"headway: {clean(text)}", file=sys.stderr)


app = new_command(lock)
