"""A draining worker still reacts to SIGTERM, which starts its grace period."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway import Headway, Status
from headway.cli.root import run
from headway.core.instants import HOUR
from tests.support import evidence
from tests.support.command_line import be_patient
from tests.support.waiting import DEADLINE_S, async_wait_until

APP = """
import time
from headway import Headway

app = Headway()


@app.task
def sleep(seconds: float) -> None:
    time.sleep(seconds)
"""

pytestmark = pytest.mark.slow


def _worker(folder: Path) -> "subprocess.Popen[bytes]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    kept["HEADWAY_WORKER_LEASE"] = "10m"  # A stalled machine must not cost an attempt.
    command = [sys.executable, "-m", "headway", "worker", "--app", "jobs:app", "--node", "w", "--grace", "1s"]
    with evidence.log_file("worker").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=kept, stdout=log, stderr=log)


async def test_sigterm_ends_a_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    (tmp_path / "jobs.py").write_text(APP)
    store_url = f"sqlite:///{tmp_path}/headway.db"
    async with Headway(store_url) as app:
        job = await app.enqueue("sleep", {"seconds": 600})
        store = await app.store()
        worker = _worker(tmp_path)
        try:

            async def is_running() -> bool:
                return (await job.refresh()).status is Status.RUNNING

            async def beat() -> int:
                """Return the time of the last heartbeat that reports the drain."""
                [node] = await store.nodes.alive(HOUR)
                return node.beat_at if node.state["worker"]["draining"] is True else 0

            async def has_beaten() -> bool:
                return await beat() > last

            await async_wait_until(is_running, "the job to run")
            assert await asyncio.to_thread(run, ["workers", "drain", "w", "--store", store_url]) == 0
            last = await async_wait_until(beat, "the worker to drain")
            # The heartbeat is every two seconds; a drain must not start the grace period of one second.
            for _ in range(2):
                await async_wait_until(has_beaten, "a heartbeat")
                last = await beat()
            assert worker.poll() is None, "a drain waits for the jobs"
            worker.send_signal(signal.SIGTERM)
            # The job would take ten minutes, so only the signal can end the worker sooner.
            assert await asyncio.to_thread(worker.wait, DEADLINE_S) == 0
            await job.refresh()
            assert (job.status, job.job.failures, job.job.reason) == ("PENDING", 0, "handed back: the worker ends")
        finally:
            worker.kill()
            worker.wait()
