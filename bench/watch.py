"""Processes, watched from outside: who came of whom, their processor time and their memory."""

import contextlib
import os
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


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
