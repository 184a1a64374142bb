"""A fixed delay counts from the end of the job before, so that slow runs never pile up."""

import sqlite3
import subprocess
import sys
import tempfile
import time

from headway import After, Headway

file = f"{tempfile.mkdtemp()}/headway.db"
app = Headway(f"sqlite:///{file}", name="mail")


@app.task
def poll_inbox() -> None: ...


app.put_schedule_sync("poll-inbox", task=poll_inbox, trigger=After("10m"))
scheduler = subprocess.Popen(
    [sys.executable, "-m", "headway", "scheduler", "--store", app.settings.store], stderr=subprocess.DEVNULL
)
deadline = time.monotonic() + 30
while not (decided := app.occurrences_sync("poll-inbox")) and time.monotonic() < deadline:
    time.sleep(0.1)
scheduler.terminate()
scheduler.wait()
print("the first one is due at once:", decided[0].outcome, decided[0].reason)

views = sqlite3.connect(file)
following = "select next_at from headway_schedules_v"
print("while its job has not ended:", views.execute(following).fetchone()[0])

job = app.cancel_sync(decided[0].job_id or "", reason="no worker in this example")
minutes = "select round((julianday(next_at) - julianday(finished_at)) * 1440) from headway_schedules_v, headway_jobs_v"
print("after its end, minutes to wait:", views.execute(minutes).fetchone()[0])

# the first one is due at once: fired on time
# while its job has not ended: None
# after its end, minutes to wait: 10.0
