"""Report progress from a task, and watch its job until it has ended."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway import Context, Headway

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app = Headway()


@app.task
async def hello(ctx: Context, n: int = 20) -> str:
    for _ in ctx.track(range(n), "Greeting"):  # Like tqdm: total, rate and time left.
        await asyncio.sleep(0.1)
    return f"greeted {n}"


if __name__ == "__main__":
    command = [sys.executable, "-m", "headway", "worker", "--app", "hello:app"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    job = hello.enqueue_sync(n=30)
    print(job.status)
    while job.refresh_sync().progress < 50:
        time.sleep(0.1)
    print(job.status, "half way")
    print(job.wait_sync(timeout="1m"))
    worker.terminate()
    worker.wait()

# PENDING
# RUNNING half way
# greeted 30
