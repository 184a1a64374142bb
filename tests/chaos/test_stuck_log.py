"""A log that is not read stops no node: its pipe is full from the beginning, as behind a stuck log driver or Ctrl-S."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway import Headway
from tests.chaos.arena import environment
from tests.chaos.ledger import query
from tests.support import evidence
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

PIPE_BYTES = 4096
APP = """
from headway import Every, Headway

app = Headway(name="unheard")

@app.task
def fails():
    raise ValueError("x" * 2_000)   # Each is a line of the log.

@app.task
def tick():
    pass

app.schedule("ticks", tick, Every("1s"))
"""


@contextmanager
def _full_pipe() -> Iterator[tuple[int, int]]:
    """Create a pipe that is full."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, b".")
    except BlockingIOError:
        os.set_blocking(theirs, True)
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def test_blocked_log_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "unheard.py").write_text(APP)
    store = f"sqlite:///{tmp_path}/headway.db"
    env = environment(store, PYTHONPATH=str(tmp_path))
    subprocess.run([sys.executable, "-m", "headway", "migrate"], env=env, check=True, timeout=DEADLINE_S)
    client = Headway(store, name="client")
    with _full_pipe() as (ours, theirs), evidence.log_file("standard output").open("wb") as out:
        command = [sys.executable, "-m", "headway", "--app", "unheard:app", "serve", "--port", "0", "--grace", "0s"]
        node = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=theirs)
        os.close(theirs)
        try:
            ids = [client.enqueue_sync("fails", max_attempts=1).id for _ in range(50)]
            ended = "select count(*) from headway_jobs where status = 'FAILED' and task = 'fails'"
            wait_until(lambda: query(store, ended) == [(len(ids),)], "the jobs to end")
            fired = "select count(*) from headway_occurrences where outcome = 'fired'"
            wait_until(lambda: query(store, fired)[0][0] >= 2, "the schedule to be decided")
            node.send_signal(signal.SIGTERM)
            assert node.wait(DEADLINE_S) == 0
            assert os.read(ours, PIPE_BYTES).strip(b".") == b"", "nothing could be written"
        finally:
            if node.poll() is None:
                node.kill()
                node.wait()
    assert query(store, "select count(*) from headway_attempts where outcome = 'expired'") == [(0,)]
