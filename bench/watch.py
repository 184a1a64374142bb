"""Processes, watched from outside: who came of whom, their processor time and their memory; and who else is busy."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
DISTURBED_MAX: Final = 0.05  # So much of the machine others may use without spoiling a figure.
TRIES_MAX: Final = 3
CALM_S_MAX: Final = 30.0
CALM_LOOK_S: Final = 0.5


class Watched:
    """What the operating system says about a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folder = Path("/proc") / str(pid)

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_mb_max(self) -> float:
        """Return the most memory that it ever had resident."""
        return self._memory_mb("status", "VmHWM:")

    def memory_mb(self) -> float:
        """Return the memory that it has resident, shared pages included."""
        return self._memory_mb("status", "VmRSS:")

    def own_memory_mb(self) -> float:
        """Return its memory with shared pages split among those who share them."""
        return self._memory_mb("smaps_rollup", "Pss:")

    def _memory_mb(self, file: str, label: str) -> float:
        for text in (self._folder / file).read_text().splitlines():
            if text.startswith(label):
                return int(text.split()[1]) / 1024
        raise LookupError("the system does not tell the memory of a process")


def family(pid: int) -> list[int]:
    """Return a process and all processes that came of it, itself first; none when it is gone."""
    found = [pid] if (Path("/proc") / str(pid)).exists() else []
    for parent in found:
        for children in (Path("/proc") / str(parent) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


class Bystanders:
    """How much of the machine those had, since this was made, who do not belong to us."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._others_s = _busy_s() - _ours_s()

    def share(self) -> float:
        """Return their part of all processors, from 0 to 1; time that the host took away counts as theirs."""
        passed_s = (time.monotonic() - self._since) * (os.cpu_count() or 1)
        return max(0.0, _busy_s() - _ours_s() - self._others_s) / passed_s


async def calm() -> None:
    """Wait until others leave the machine alone, for a while at most."""
    deadline = time.monotonic() + CALM_S_MAX
    while time.monotonic() < deadline:
        bystanders = Bystanders()
        await asyncio.sleep(CALM_LOOK_S)
        if bystanders.share() <= DISTURBED_MAX:
            break


def _busy_s() -> float:
    """Return the time that all processors together have been at work, or taken away by the host."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS_PER_S


def _ours_s() -> float:
    """Return the processor time of this process and all that came of it, those that have ended included."""
    total = 0
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS_PER_S
