"""A scheduler in a process of its own, watched from outside: its processor time and its memory.

python -m bench.process URL      is that process: it prints a line when it leads, and stops on SIGTERM
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.places import opened
from headway.app import scheduler_node
from headway.events import Event, TermWon, subscribed
from headway.settings import Settings

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Watched:
    """What the operating system says about a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_mb_max(self) -> float:
        """Return the most memory that it ever had resident."""
        for text in (self._folder / "status").read_text().splitlines():
            if text.startswith("VmHWM:"):
                return int(text.split()[1]) / 1024
        raise LookupError("the system does not tell the memory of a process")


@contextlib.asynccontextmanager
async def scheduler_process(url: str) -> AsyncIterator[Watched]:
    """Start a scheduler, wait until it leads, and stop it in the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.process", url, stdout=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S_MAX):
            first = await process.stdout.readline()
        assert first, "the scheduler process ended before it led"
        yield Watched(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await _ended(process)


async def _ended(process: Process) -> None:
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _run(url: str) -> None:
    def hear(event: Event) -> None:
        if isinstance(event, TermWon) and event.role.startswith("scheduler/"):
            print("leading", flush=True)

    async with opened(url) as (store, clock):
        node = scheduler_node(store, Settings(store=url, node="bench"), clock)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, node.stop)
        with subscribed(hear):
            await node.run()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
