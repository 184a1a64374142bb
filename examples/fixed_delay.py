"""Run a task with a fixed delay, counted from the end of the previous job, so that slow runs never pile up."""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from headway import After, Headway

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app = Headway()


@app.task
def poll_inbox() -> str:
    time.sleep(0.3)
    return "no mail"


app.schedule("poll-inbox", poll_inbox, After("500ms"))

if __name__ == "__main__":
    command = [sys.executable, "-m", "headway", "serve", "--app", "fixed_delay:app"]
    server = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(app.jobs_sync(status="COMPLETED")) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    server.terminate()
    server.wait()

    jobs = [handle.job for handle in reversed(app.jobs_sync(status="COMPLETED"))]
    waits = [(later.occurrence_at or 0) - (job.finished_at or 0) for job, later in pairwise(jobs)]
    print("runs:", len(jobs) >= 3)
    print("half a second from the end of each to the next:", all(wait >= 500_000 for wait in waits))

# runs: True
# half a second from the end of each to the next: True
