"""Declare a report for 2:30 every morning in Berlin, and preview a daylight saving transition."""

import subprocess
import sys
import tempfile

from headway import Cron, Headway

store = f"sqlite:///{tempfile.mkdtemp()}/headway.db"
app = Headway(store, name="reports")


@app.task
def report(kind: str) -> str:
    return f"the {kind} report"


app.schedule("nightly-report", report, Cron("30 2 * * *", tz="Europe/Berlin"), args={"kind": "sales"}, deadline="4h")

print("first sync:", app.sync_sync())
print("second sync:", app.sync_sync())

preview = "schedules preview nightly-report --from 2027-03-27T00:00Z -n 3"
command = [sys.executable, "-m", "headway", "--store", store, *preview.split()]
for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
    print(line)

# first sync: {'nightly-report': 'created'}
# second sync: {'nightly-report': 'unchanged'}
# 2027-03-27 02:30 +01:00  01:30Z
# 2027-03-28 03:00 +02:00  01:00Z  02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=shift
# 2027-03-29 02:30 +02:00  00:30Z
