"""A batch: many reports as one thing, with exact counts and one callback when the last of them has ended."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headway import Headway

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app = Headway()


@app.task
def report(tenant: int) -> str:
    if tenant == 13:
        raise ValueError("no data")
    return f"report of {tenant}"


@app.task
def summary(batch: dict[str, Any]) -> str:
    return f"{batch['counts']['completed']} of {batch['total']} reports, {batch['counts']['failed']} failed"


if __name__ == "__main__":
    for _ in range(2):  # Running it again finds the batch by its name, and its jobs by their keys.
        with app.batch_sync("reports:2027-01-01", on_done=summary) as batch:
            batch.add_many_sync(report, [{"tenant": n} for n in range(20)], key="report:{tenant}")
    print(batch.total, batch.counts["waiting"], batch.progress)

    command = [sys.executable, "-m", "headway", "worker", "--app", "batch:app"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    while batch.refresh_sync().finished_at is None:
        time.sleep(0.1)
    print(batch.outcome, batch.counts["completed"], [job.args for job in batch.jobs_sync(status="FAILED")])
    print(app.jobs_sync(task="summary")[0].wait_sync(timeout="1m"))
    worker.terminate()
    worker.wait()

# 20 20 0
# failed 19 [{'tenant': 13}]
# 19 of 20 reports, 1 failed
