"""Process-wide state that tasks can change: directory, umask, limits, signal handlers, timers, output.

A child saves this state before its first job and restores it between jobs, so that no job suffers from an earlier one.
When something cannot be restored (a lowered hard limit, for example), the child asks to be replaced and names it.
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from typing import Any, Final

_SIGNALS: Final = tuple(
    number
    for name in "ALRM TERM INT USR1 USR2 CHLD PIPE HUP QUIT PROF VTALRM TSTP WINCH".split()
    if (number := getattr(signal, f"SIG{name}", None)) is not None
)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS: Final = tuple(
    number
    for name in "NOFILE AS DATA FSIZE CPU STACK NPROC CORE".split()
    if (number := getattr(resource, f"RLIMIT_{name}", None)) is not None
)
_OUTPUTS: Final = ("stdout", "stderr")


class ProcessState:
    """The state of this process at the time this object was made."""

    def __init__(self) -> None:
        self._directory = _open_directory()
        self._path = _working_directory()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._mask = _blocked_signals()
        self._limits = {number: resource.getrlimit(number) for number in _LIMITS}
        self._recursion = sys.getrecursionlimit()
        self._switching = sys.getswitchinterval()
        self._timeout = socket.getdefaulttimeout()
        self._niceness = os.nice(0)
        self._outputs = {name: getattr(sys, name) for name in _OUTPUTS}
        self._files = {number: _duplicate(number) for number in (1, 2)}
        self._identities = {number: _identity(number) for number in (1, 2)}

    def changes(self) -> list[str]:
        """Name what has changed since."""
        found = []
        if _working_directory() != self._path:
            found.append("working directory")
        umask = os.umask(self._umask)
        if umask != self._umask:
            os.umask(umask)
            found.append("umask")
        if any(signal.getsignal(number) != handler for number, handler in self._handlers.items()):
            found.append("signal handlers")
        if any(signal.getitimer(number) != (0.0, 0.0) for number in _TIMERS):
            found.append("timers")
        if _blocked_signals() != self._mask:
            found.append("blocked signals")
        found += [f"limits ({number})" for number, limit in self._limits.items() if resource.getrlimit(number) != limit]
        if sys.getrecursionlimit() != self._recursion or sys.getswitchinterval() != self._switching:
            found.append("interpreter limits")
        if socket.getdefaulttimeout() != self._timeout or not gc.isenabled():
            found.append("interpreter settings")
        if os.nice(0) != self._niceness:
            found.append("priority")
        if any(_identity(number) != identity for number, identity in self._identities.items()) or any(
            getattr(sys, name) is not stream or _is_closed(stream) for name, stream in self._outputs.items()
        ):
            found.append("output")
        return found

    def restore(self) -> str | None:
        """Restore what was changed; return what could not be restored, None when everything was."""
        if not self.changes():
            return None
        self._restore_files()
        for number in _TIMERS:
            signal.setitimer(number, 0)
        with contextlib.suppress(OSError, ValueError):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                with contextlib.suppress(
                    ValueError, TypeError, OSError
                ):  # Not the main thread, or not Python's handler.
                    signal.signal(number, handler)
        for limit, bounds in self._limits.items():
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(limit, bounds)
        os.umask(self._umask)
        sys.setrecursionlimit(self._recursion)
        sys.setswitchinterval(self._switching)
        socket.setdefaulttimeout(self._timeout)
        gc.enable()
        # A deleted directory is gone for any other child, too.
        left = [change for change in self.changes() if change != "working directory"]
        return ", ".join(left) or None

    def _restore_files(self) -> None:
        if self._directory is not None and _working_directory() != self._path:
            with contextlib.suppress(OSError):
                os.fchdir(self._directory)
        for number, identity in self._identities.items():
            copy = self._files[number]
            if copy is not None and _identity(number) != identity:
                with contextlib.suppress(OSError):
                    os.dup2(copy, number)
        for number, name in enumerate(_OUTPUTS, 1):
            if _is_closed(self._outputs[name]):
                with contextlib.suppress(OSError, ValueError):
                    self._outputs[name] = open(  # noqa: SIM115 - it lives as long as the process
                        number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
                    )
            setattr(sys, name, self._outputs[name])


def _open_directory() -> int | None:
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _blocked_signals() -> Any:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _duplicate(number: int) -> int | None:
    """Copy a file descriptor to a high number, out of reach of tasks that close the low ones."""
    try:
        copy = os.dup(number)
    except OSError:
        return None
    os.set_inheritable(copy, False)
    return copy


def _identity(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_closed(stream: Any) -> bool:
    return bool(getattr(stream, "closed", False))
