"""Run a worker from the command line, as users do, and measure it from outside."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.peers.catalogue import ROOT
from bench.tasks import open_app
from bench.watch import Watched, family

READY_S_MAX: Final = 60
STOP_S_MAX: Final = 40.0


class Worker:
    """A supervisor and its child processes."""

    def __init__(self, pid: int) -> None:
        self.supervisor = Watched(pid)

    def children(self) -> list[Watched]:
        """Return the processes that run tasks."""
        return [Watched(pid) for pid in family(self.supervisor.pid)[1:]]

    def cpu_s(self) -> float:
        """Return the CPU time of the supervisor and its children."""
        return sum(process.cpu_s() for process in (self.supervisor, *self.children()))


@contextlib.asynccontextmanager
async def worker_command(url: str, *options: object) -> AsyncIterator[Worker]:
    """Start a worker, wait until it has run a first job, and stop it on exit."""
    program = Path(sys.executable).parent / "headway"
    arguments = ("--store", url, "worker", "--app", "bench.tasks:app", *map(str, options))
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            str(program), *arguments, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            await _first_job(url)
            yield Worker(process.pid)
        except TimeoutError:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-2_000:])
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _first_job(url: str) -> None:
    async with open_app(url) as app:
        job = await app.tasks["nothing"].enqueue()
        async with asyncio.timeout(READY_S_MAX):
            await job.wait()
