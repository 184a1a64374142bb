"""Run a job later: in half an hour, or at a given time; and only once, with an idempotency key."""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from headway import DuplicateKey, Headway

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app = Headway()


@app.task
def remind(customer: int, text: str = "your cart misses you") -> str:
    return f"reminded {customer}: {text}"


if __name__ == "__main__":
    job = remind.options(delay="30m").enqueue_sync(customer=7)
    print(job.status, job.run_at - job.created_at)

    wish = remind.options(at=datetime(2037, 1, 1, 9, tzinfo=UTC), key="new-year-7").enqueue_sync(7, text="all the best")
    print(wish.status, wish.run_at, wish.args)
    try:
        remind.options(key="new-year-7").enqueue_sync(8)
    except DuplicateKey:
        print("same key, other arguments: rejected")

    command = [sys.executable, "-m", "headway", "worker", "--app", "run_in_30_minutes:app"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    print(remind.options(delay="1s").enqueue_sync(7).wait_sync(timeout="1m"))
    worker.terminate()
    worker.wait()

# SCHEDULED 0:30:00
# SCHEDULED 2037-01-01 09:00:00+00:00 {'customer': 7, 'text': 'all the best'}
# same key, other arguments: rejected
# reminded 7: your cart misses you
