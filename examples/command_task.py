"""Run a program as a task: no shell, its output is the log, its exit code is the outcome."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from headway import Headway, JobFailed

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app = Headway()

SCRIPT = """
echo "::progress 50 Copying tables"
if [ "$1" = 1970-01-01 ]; then echo "there was nothing then" >&2; exit 3; fi
echo "backup of $1, attempt $HEADWAY_ATTEMPT"
"""
backup = app.command("backup", ["/bin/sh", "-c", SCRIPT, "backup", "{day}"], timeout="30m")

if __name__ == "__main__":
    command = [sys.executable, "-m", "headway", "worker", "--app", "command_task:app"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    job = backup.enqueue_sync(day="2027-01-01; rm -rf /")  # One argument, whatever it contains.
    print(job.wait_sync(timeout="1m"))
    log = subprocess.run([sys.executable, "-m", "headway", "jobs", "logs", job.id], capture_output=True, text=True)
    print(log.stdout.split("  ")[1].strip())
    try:
        backup.enqueue_sync(day="1970-01-01").wait_sync(timeout="1m")
    except JobFailed as error:
        print(str(error).partition("CommandFailed: ")[2])
    worker.terminate()
    worker.wait()

# {'exit_code': 0}
# backup of 2027-01-01; rm -rf /, attempt 1
# /bin/sh ended with exit code 3:
# there was nothing then
