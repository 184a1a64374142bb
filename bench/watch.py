"""Measure processes from outside: descendants, CPU time and memory, and the load from unrelated processes."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
DISTURBED_MAX: Final = 0.05  # Other processes may use this share of the machine without invalidating a figure.
TRIES_MAX: Final = 3
CALM_S_MAX: Final = 30.0
CALM_LOOK_S: Final = 0.5


class Watched:
    """A process, measured through /proc."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folder = Path("/proc") / str(pid)

    def cpu_s(self) -> float:
        """Return the CPU time used so far."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_mb_max(self) -> float:
        """Return the peak resident memory."""
        return self._memory_mb("status", "VmHWM:")

    def memory_mb(self) -> float:
        """Return the resident memory, including shared pages."""
        return self._memory_mb("status", "VmRSS:")

    def own_memory_mb(self) -> float:
        """Return the proportional memory (PSS): shared pages are split among the processes that share them."""
        return self._memory_mb("smaps_rollup", "Pss:")

    def _memory_mb(self, file: str, label: str) -> float:
        for text in (self._folder / file).read_text().splitlines():
            if text.startswith(label):
                return int(text.split()[1]) / 1024
        raise LookupError("the system does not tell the memory of a process")


def family(pid: int) -> list[int]:
    """Return the process and all its descendants, itself first; return an empty list if it has exited."""
    found = [pid] if (Path("/proc") / str(pid)).exists() else []
    for parent in found:
        found += _children(parent)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of a process. It, or one of its threads, may exit at any moment."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    return found


class Bystanders:
    """The CPU load from processes outside the benchmark since this object was created."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._others_s = _busy_s() - family_cpu_s(os.getpid())

    def share(self) -> float:
        """Return their share of all CPUs, from 0 to 1; steal time of the host is included."""
        passed_s = (time.monotonic() - self._since) * (os.cpu_count() or 1)
        return max(0.0, _busy_s() - family_cpu_s(os.getpid()) - self._others_s) / passed_s


async def calm() -> None:
    """Wait until other processes are idle, for at most `CALM_S_MAX` seconds."""
    deadline = time.monotonic() + CALM_S_MAX
    while time.monotonic() < deadline:
        bystanders = Bystanders()
        await asyncio.sleep(CALM_LOOK_S)
        if bystanders.share() <= DISTURBED_MAX:
            break


def _busy_s() -> float:
    """Return the busy time of all CPUs, including steal time."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS_PER_S


def family_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants, including those that have exited."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            fields = (Path("/proc") / str(member) / "stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS_PER_S
