"""`headway lock`: run a command while holding a lock, like flock, over all hosts.

The command gets the lock's name and token in its environment, and its exit code becomes ours. It is never left alone
with a lock that is gone: when the lease is lost it gets SIGTERM, and SIGKILL after a grace; when this process is
killed, a warden ends it. What the command leaves running when it ends is ended, too, before the lock is given back.

On a terminal the command stays in our process group, so that Ctrl-C and Ctrl-Z work as they do without us. Elsewhere it
has a group of its own, and signals that we get are passed on to it.
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

NOT_FOUND: Final = 127  # As shells say it.
NOT_RUNNABLE: Final = 126
SIGNALLED: Final = 128
MARK: Final = "HEADWAY_LOCK_HOLDER"
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)  # Which the terminal tells to everybody in the group.


async def lock(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, behind -- with its arguments.")],
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="How long others wait after a crash.")
    ] = LOCK_TTL,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="How long to wait for the lock; else for ever.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the lock.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="From SIGTERM to SIGKILL when the lock is lost.")
    ] = "10s",
) -> int:
    """Run a command while holding a lock, over all hosts.

    The command finds HEADWAY_LOCK_NAME and HEADWAY_LOCK_TOKEN in its environment; the token only grows. Its exit code
    is passed through. 75: the lock was not obtained. 76: it was lost, and the command was stopped.
    """
    if wait is not None and no_wait:
        raise DefinitionError("say --wait or --no-wait, not both")
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
    """Read `30` as flock does, and `30s` as we do."""
    return float(text) if text.replace(".", "", 1).isdecimal() else text


@contextmanager
def _ended_by_signals(waiting: "asyncio.Task[object]") -> Iterator[list[int]]:
    """Have these signals end the waiting for the lock, and remember which it was."""
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
    """Return the signals that we were not started to ignore."""
    return [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]


async def _run(lock: Lock, program: str, command: Sequence[str], grace_s: float) -> int:
    """Run the command to its end, or to that of the lock."""
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
            orphan_reaper.kill()  # There is nothing left for it to do.
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
    """Passes signals on to the command, which decides what they mean. Until it is there, they are kept for it."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._kept: list[int] = []
        for number in _heeded():
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)

    def pass_on_to(self, child: "_Child") -> None:
        """Have them answered by this command."""
        self._child = child
        for number in self._kept:
            child.hear(number)

    def _hear(self, number: int) -> None:
        if self._child is None:
            self._kept.append(number)
        else:
            self._child.hear(number)


class _Child:
    """The command, with everything that it has started."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str, *, has_group: bool) -> None:
        self._process = process
        self._mark = f"{MARK}={mark}"
        self._has_group = has_group

    @classmethod
    async def start(cls, lock: Lock, program: str, command: Sequence[str], mark: str) -> "_Child":
        """Start it with the lock in its environment."""
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
        """Send a signal on, unless the terminal has told it to the command itself."""
        if self._has_group or number not in FROM_TERMINAL:
            self.signal(number)

    def signal(self, number: int) -> None:
        """Send a signal to the command and to what it has started."""
        if self._has_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            return
        for pid in [self._process.pid, *self._others()]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill whatever of it is still there."""
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
