"""Find and kill everything that a child process has started.

One signal to the process group gets most of it. Processes that have left the group (a daemon, a process with its own
session) are found by their ancestry or, when their parents are gone, by the mark in their environment. This works on
Linux only; elsewhere the process group has to do.

A supervisor that is killed cannot clean up. So it starts an orphan reaper: this file, run by itself in a process that
needs next to nothing. The reaper holds a pipe. When the supervisor at its other end is gone, for whatever reason, the
reaper kills every process that still carries its mark.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MARK = "HEADWAY_CHILD"  # Every process that a child starts has it in its environment.
_PROC = Path("/proc")
_ROUNDS_MAX = 100
_ROUND_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """All processes of this host at one moment: their parents and the marks in their environments."""

    parents: dict[int, int]
    marks: dict[int, bytes]
    dead: frozenset[int]

    @classmethod
    def take(cls, variable: str = MARK) -> "ProcessTable":
        """Read all processes, looking for this variable in their environments."""
        needle = f"{variable}=".encode()
        parents: dict[int, int] = {}
        marks: dict[int, bytes] = {}
        dead = set()
        for entry in _PROC.glob("[0-9]*"):
            number = int(entry.name)
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                parents[number] = int(parent)
                if state in b"ZX":  # A zombie: its parent has not reaped it yet.
                    dead.add(number)
                for item in (entry / "environ").read_bytes().split(b"\0"):
                    if item.startswith(needle):
                        marks[number] = item
        return cls(parents, marks, frozenset(dead))

    def descendants_of(self, pid: int, mark: str) -> list[int]:
        """Return the processes that descend from this one or carry its mark in their environment."""
        needle = mark.encode()
        found = {number for number in self.parents if _descends(number, pid, self.parents)}
        found |= {number for number, item in self.marks.items() if item == needle}
        return sorted(found - self.dead - {pid, os.getpid()})


def descendants_of(pid: int, mark: str) -> list[int]:
    """Return the processes that descend from this one or carry its mark in their environment."""
    return ProcessTable.take(mark.partition("=")[0]).descendants_of(pid, mark)


def _descends(number: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = set()
    while number in parents and number not in seen:
        seen.add(number)
        number = parents[number]
        if number == ancestor:
            return True
    return False


def began_at(pid: int) -> int | None:
    """Return when a living process started, in kernel ticks: a pid may be reused, but not with the same time."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in b"ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def alive_with_descendants(heads: dict[int, int]) -> dict[int, int]:
    """Return the living ones of these processes with all their descendants, and when each started."""
    alive = {pid for pid, began in heads.items() if began_at(pid) == began}
    if not alive:
        return {}
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    found = {number for number in parents if any(_descends(number, head, parents) for head in alive)} | alive
    return {pid: began for pid in found if (began := began_at(pid)) is not None}


def kill_group(leader: int) -> None:
    """Kill a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_each(numbers: list[int]) -> None:
    """Kill some processes."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def start_orphan_reaper(mark: str) -> "subprocess.Popen[bytes] | None":
    """Start a process that kills everything whose mark begins so once we are gone; close its `stdin` to end it."""
    if not _PROC.is_dir():
        return None
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), mark]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, cwd="/", start_new_session=True, env={}
    )


def _marked(beginning: bytes) -> list[int]:
    found = []
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(item.startswith(beginning) for item in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def _guard(mark: str) -> None:
    """Wait for the end of the supervisor, then kill what it left, repeatedly: the rest may be starting others."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    for _ in range(_ROUNDS_MAX):
        found = _marked(mark.encode())
        if not found:
            return
        for number in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        select.select([], [], [], _ROUND_S)


def how_it_ended(code: int | None) -> str:
    """Describe how a process ended."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


if __name__ == "__main__":
    _guard(sys.argv[1])
