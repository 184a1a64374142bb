"""A scheduler in its own process, measured from outside: CPU time and memory.

python -m bench.process URL      is that process: it prints a line when it leads, and stops on SIGTERM

Other settings come from the environment.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from typing import Final

from bench.places import opened
from bench.watch import Watched
from headway.core.events import EngineEvent, TermWon, subscribed
from headway.core.settings import Settings
from headway.wiring.roles import scheduler_node

START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 10.0


@contextlib.asynccontextmanager
async def scheduler_process(url: str, variables: Mapping[str, str] | None = None) -> AsyncIterator[Watched]:
    """Start a scheduler, wait until it leads, and stop it in the end."""
    command, env = (sys.executable, "-m", "bench.process", url), {**os.environ, **(variables or {})}
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE)
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


def node_name(pid: int) -> str:
    """Return the name of the node that is a process."""
    return f"bench-{pid}"


async def _ended(process: Process) -> None:
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _run(url: str) -> None:
    def hear(event: EngineEvent) -> None:
        if isinstance(event, TermWon) and event.role.startswith("scheduler/"):
            print("leading", flush=True)

    async with opened(url) as (store, clock):
        node = scheduler_node(store, Settings.load({"store": url, "node": node_name(os.getpid())}), clock)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, node.stop)
        with subscribed(hear):
            await node.run()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
