"""Finding and ending everything that a child process has started.

A process group gets most of it with one signal. What has left the group (a daemon, a process with its own session) is
found by its ancestry, and where its parents are gone, by the mark in its environment. Linux only; elsewhere the
group has to do.
"""

import contextlib
import os
import signal
from pathlib import Path

_PROC = Path("/proc")


def descendants_of(pid: int, mark: str) -> list[int]:
    """Return the processes that descend from this one, or carry its mark in their environment."""
    parents: dict[int, int] = {}
    marked: set[int] = set()
    needle = mark.encode()
    for entry in _PROC.glob("[0-9]*"):
        number = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[number] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                marked.add(number)
    found = {number for number in parents if _descends(number, pid, parents)} | marked
    return sorted(found - {pid, os.getpid()})


def _descends(number: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = set()
    while number in parents and number not in seen:
        seen.add(number)
        number = parents[number]
        if number == ancestor:
            return True
    return False


def kill_group(leader: int, others: list[int]) -> None:
    """Kill a process group and some more processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for number in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)
