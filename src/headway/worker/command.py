"""Command tasks: run a program with arguments, without a shell, as the function of a task.

    command(["pg_dump", "--file", "/backups/{day}.sql"])

A `{name}` is an argument of the job, `{occurrence}` the instant of the schedule that made it. It becomes part of the
one element that it stands in, whatever characters it has; a value that would turn an element into an option is refused.
The author sets the program, its folder and its environment; of the worker's environment a command sees only what
`INHERITED` names.

The command runs in a process group of its own, led by a guard: a small process that kills the group when this process
is gone, for whatever reason. A command that must stop gets SIGTERM, then SIGKILL; processes that it leaves behind are
killed too.
"""

import contextlib
import inspect
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from headway.core.clock import monotonic_now
from headway.core.errors import InvalidTask
from headway.core.instants import from_datetime, isoformat, quote
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX
from headway.core.process_tree import MARK
from headway.core.templates import Template, argument_text
from headway.tasks.context import Context, TaskStopped

INHERITED: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER")  # And every LC_….
OCCURRENCE: Final = "occurrence"  # In braces: the instant of the schedule, unless the job has an argument of that name.
ELEMENTS_MAX: Final = 1_000
LOOK_S: Final = 0.1
TERM_S: Final = 1.8  # Less than the supervisor waits before it kills this process.
DRAIN_S: Final = 0.5
READ_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 4 * LOG_LINE_LENGTH_MAX
TAIL_LINES: Final = 10
TAIL_LINE_LENGTH_MAX: Final = 300

_PROGRESS: Final = re.compile(r"::progress\s+(\d{1,3}(?:\.\d+)?)%?(?:\s+(.*))?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GUARD: Final = (
    "import os, signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; os.read(0, 1); os.killpg(0, 9)"
)


class CommandFailed(Exception):
    """A command could not be started, or ended with an exit code other than 0."""


class CommandRefused(CommandFailed):
    """The arguments of the job cannot be passed to the command; a retry would not help."""


def _element(text: object) -> Template:
    if not isinstance(text, str) or "\0" in text:
        raise InvalidTask(f"every element of a command must be text, not {quote(text)}")
    return Template.read(text)


def _fill(element: Template, values: Mapping[str, str], *, may_begin_with_dash: bool) -> str:
    filled = element.fill(values)
    if filled.startswith("-") and not element.texts[0] and not may_begin_with_dash:
        raise CommandRefused(
            f'{element.names[0]} must not begin with "-": the command would take {quote(filled)} for an option.'
            ' Put "--" before it in the command if it is none'
        )
    return filled


@dataclass(frozen=True, slots=True)
class _Vector:
    """An argument vector with placeholders for the arguments of a job."""

    elements: tuple[Template, ...]

    @classmethod
    def read(cls, argv: object) -> "_Vector":
        if not isinstance(argv, list | tuple) or not 0 < len(argv) <= ELEMENTS_MAX:
            raise InvalidTask(
                f'a command must be a list of a program and its arguments, such as ["ls", "-l"], not {quote(argv)};'
                " no shell is involved"
            )
        elements = tuple(map(_element, argv))
        if elements[0].names or not elements[0].texts[0].strip():
            raise InvalidTask(f"the program of a command must be fixed, not {quote(argv[0])}")
        return cls(elements)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for element in self.elements for name in element.names))

    def fill(self, args: Mapping[str, object]) -> list[str]:
        values = {name: _text_of(name, args[name]) for name in self.names}
        filled: list[str] = []
        for element in self.elements:
            filled.append(_fill(element, values, may_begin_with_dash="--" in filled))
        return filled


def _text_of(name: str, value: object) -> str:
    try:
        return argument_text(name, value)
    except InvalidTask:
        raise CommandRefused(
            f"{name} must be text or a number to be an argument of a command, not {quote(value)}"
        ) from None


def command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    memory: int | None = None,
) -> Callable[..., dict[str, Any]]:
    """Make the function of a task that runs a program; its arguments are the names in braces."""
    template, added, folder = _Vector.read(argv), _checked_env(env), None if cwd is None else str(cwd)

    def run(headway_context: Context, /, **args: Any) -> dict[str, Any]:
        filled = template.fill(_with_occurrence(args, template.names, headway_context))
        headway_context.check()
        return _Running(headway_context, filled, _environment(headway_context, added), folder, memory).finish()

    run.__doc__ = f"Run {' '.join(argv)[:200]}"
    run.__signature__ = _signature(template.names)  # type: ignore[attr-defined]
    return run


def _checked_env(env: Mapping[Any, Any] | None) -> dict[str, str]:
    if env is not None and not isinstance(env, Mapping):
        raise InvalidTask(f'env must be a dict such as {{"PGUSER": "backup"}}, not {type(env).__name__}')
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise InvalidTask(f"env must have names and texts, not {quote(name)} = {type(value).__name__}")
    return dict(env or {})


def _with_occurrence(args: Mapping[str, Any], names: Sequence[str], context: Context) -> Mapping[str, Any]:
    """Add the instant of the schedule where the command uses it and the job has no such argument."""
    if OCCURRENCE not in names or args.get(OCCURRENCE) is not None:
        return args
    instant = _occurrence_at(context)
    if instant is None:
        raise CommandRefused(
            "{occurrence} is the instant of a schedule, and no schedule made this job for one: give the job the"
            " argument occurrence, such as 2027-01-31T06:00:00Z"
        )
    return {**args, OCCURRENCE: instant}


def _occurrence_at(context: Context) -> str | None:
    made_for = context.occurrence
    return None if made_for is None or made_for.instant is None else isoformat(from_datetime(made_for.instant))


def _signature(names: Sequence[str]) -> inspect.Signature:
    context = inspect.Parameter("headway_context", inspect.Parameter.POSITIONAL_ONLY, annotation=Context)
    try:
        own = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None if name == OCCURRENCE else inspect.Parameter.empty
            )
            for name in names
        ]
        return inspect.Signature([context, *own])
    except ValueError as error:
        raise InvalidTask(f"a name in the braces of a command cannot be used: {error}") from None


def _environment(context: Context, added: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name in (*INHERITED, MARK) or name.startswith("LC_")
    }
    told = {
        "HEADWAY_JOB_ID": context.job_id,
        "HEADWAY_ATTEMPT": str(context.attempt),
        "HEADWAY_FENCING_TOKEN": str(context.token),  # HEADWAY_TOKEN is the API token of a client.
        "HEADWAY_TENANT": context.tenant,
        "HEADWAY_SCHEDULE": None if context.occurrence is None else context.occurrence.schedule,
        "HEADWAY_OCCURRENCE_AT": _occurrence_at(context),
    }
    return {**inherited, **{name: value for name, value in told.items() if value is not None}, **added}


def _limited(argv: Sequence[str], memory: int) -> list[str]:
    """Prefix a program with a command that limits its memory and then executes it.

    A limit set from outside would come too late for processes that the program starts at once, and could not be set for
    a program that runs as another user.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    return ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limit // 1024), *argv]


class _Running:
    """A running command: its output becomes the log and the progress of the job."""

    def __init__(
        self, context: Context, argv: list[str], env: dict[str, str], cwd: str | None, memory: int | None
    ) -> None:
        self._context = context
        self._program = argv[0]
        self._logged = 0
        self._selector = selectors.DefaultSelector()
        self._guard = _guard()  # First, so that nothing can be left behind at any time.
        try:
            self._process = subprocess.Popen(
                argv if memory is None else _limited(argv, memory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                process_group=self._guard.pid,
            )
        except OSError as error:
            self._dismiss_group()
            where = f" in {cwd}" if cwd is not None else ""
            raise CommandFailed(f"{self._program} cannot be started{where}: {error.strerror or error}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams = {"stdout": _Stream(self._process.stdout), "stderr": _Stream(self._process.stderr)}
        for name, stream in self._streams.items():
            self._selector.register(stream.file, selectors.EVENT_READ, name)

    def finish(self) -> dict[str, Any]:
        """Follow the command to its end."""
        try:
            while self._process.poll() is None:
                self._context.check()
                self._read(LOOK_S)
        except TaskStopped:  # From `check`, or from a signal at any point.
            self._stop_gently()
            raise
        finally:
            self._end()
        return self._outcome(self._process.returncode)

    def _stop_gently(self) -> None:
        """Give the command time to stop by itself."""
        self._signal_group(signal.SIGTERM)
        until = monotonic_now() + TERM_S
        while self._process.poll() is None and monotonic_now() < until:
            with contextlib.suppress(TaskStopped):  # Already stopping.
                self._read(LOOK_S)

    def _end(self) -> None:
        """Kill what is left of the command, and read its remaining output."""
        self._dismiss_group()
        self._process.wait()
        until = monotonic_now() + DRAIN_S  # Processes that have left the group may keep the pipes open for ever.
        while self._selector.get_map() and monotonic_now() < until:
            if not self._read(0):
                break
        for name, stream in self._streams.items():
            self._take(name, stream.rest())
            stream.file.close()
        self._selector.close()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, number)

    def _dismiss_group(self) -> None:
        """Kill the group, including the guard. Its id stays reserved until the guard is waited for."""
        self._signal_group(signal.SIGKILL)
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _read(self, wait_s: float) -> bool:
        """Read available output, or wait for it a moment; return False when there was none."""
        if not self._selector.get_map():  # It has closed both pipes and continues.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            return False
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            stream = self._streams[key.data]
            data = os.read(key.fd, READ_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            for line in stream.feed(data):
                self._take(key.data, line)
        return bool(ready)

    def _take(self, name: str, line: bytes | None) -> None:
        if line is None:
            return
        if name == "stdout" and line.startswith(b"::progress"):
            match = _PROGRESS.fullmatch(_readable(line))
            if match:
                self._context.progress(min(float(match[1]), 100.0), match[2])
                return
        self._streams[name].tail.append(line)
        if self._logged <= LOG_BYTES_MAX:  # More is not stored, and would only cost time.
            text = _readable(line)
            self._logged += min(len(text), LOG_LINE_LENGTH_MAX) + 1
            self._context.log(text, name)

    def _outcome(self, code: int) -> dict[str, Any]:
        if code == 0:
            return {"exit_code": 0}
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        tail = self._streams["stderr"].tail or self._streams["stdout"].tail
        lines = [_readable(line)[:TAIL_LINE_LENGTH_MAX] for line in tail]
        raise CommandFailed("\n".join([f"{self._program} {how}" + (":" if lines else ""), *lines]))


class _Stream:
    """Split the output of a command into lines. A very long line is truncated."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES_MAX]
        return [line[:LINE_BYTES_MAX] for line in lines]

    def rest(self) -> bytes | None:
        return self._rest or None


def _readable(line: bytes) -> str:
    """Return what a terminal would show of a line: the text after the last carriage return."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _guard() -> subprocess.Popen[bytes]:
    """Start the process that kills its group when this process is gone: the pipe between them closes."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
