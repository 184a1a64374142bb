"""A worker that was asked to drain still heeds a signal: then its grace begins."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway import Headway, JobHandle, Status

APP = """
import time
from headway import Headway

app = Headway()


@app.task
def sleep(seconds: float) -> None:
    time.sleep(seconds)
"""
PATIENCE_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def _headway(folder: Path, *args: str) -> "subprocess.Popen[bytes]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    command = [sys.executable, "-m", "headway", *args]
    return subprocess.Popen(command, cwd=folder, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _running(job: JobHandle) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await job.refresh()).status is not Status.RUNNING:
            await asyncio.sleep(0.1)


async def test_a_signal_ends_a_drain(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    worker = _headway(tmp_path, "worker", "--app", "jobs:app", "--node", "w", "--grace", "1s")
    try:
        async with Headway(f"sqlite:///{tmp_path}/headway.db") as app:
            job = await app.enqueue("sleep", {"seconds": 600})
            await _running(job)
            assert _headway(tmp_path, "workers", "drain", "w").wait(PATIENCE_S) == 0
            await asyncio.sleep(5)  # It beats every two seconds, and has a grace of one.
            assert worker.poll() is None, "a drain takes as long as the jobs do"
            worker.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert await asyncio.to_thread(worker.wait, PATIENCE_S) == 0
            assert time.monotonic() - began < 3 + 10, "grace + 2 s, and the noise of a busy machine"
            await job.refresh()
            assert (job.status, job.job.failures, job.job.reason) == ("PENDING", 0, "handed back: the worker ends")
    finally:
        worker.kill()
        worker.wait()
