"""Each example runs as a user would run it, and prints the comments at its end.

The speed of the machine does not matter: a test runs a copy with longer leases and timeouts, keeps the output of
workers, and waits where the example depends on timing (`STAGED`).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import DEADLINE_S

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LINES_MAX = 52  # A fifth of it starts and stops a worker.
RUN_S_MAX = 240
PATIENT = (
    (re.compile(r'\btimeout="1m"'), 'timeout="10m"'),
    (re.compile(r"time\.monotonic\(\) \+ 60\b"), "time.monotonic() + 600"),
    (re.compile(r"subprocess\.DEVNULL"), "None"),
)
_EXPIRE = (
    'worker.wait(); (folder / "killed").touch(); import sqlite3; store = sqlite3.connect(folder / "headway.db", 60); '
    'store.execute("update headway_jobs set lease_until = 1"); '
    'store.execute("update headway_leases set until = 1"); store.commit(); store.close()'
)
_WAIT = """
async def wait_a_little(done: int) -> None:
    await asyncio.sleep(0.01)
    while done == 20 and not (Path(os.environ["TMPDIR"]) / "said").exists():
        await asyncio.sleep(0.05)


"""
# The output about a half-finished job is printed before the job continues; a worker is killed before its last step.
STAGED = {
    "hello": (
        ("await asyncio.sleep(0.1)", "await wait_a_little(_)"),
        ("@app.task", f"{_WAIT}@app.task"),
        (
            'print(job.status, "half way")',
            'print(job.status, "half way"); (Path(os.environ["TMPDIR"]) / "said").touch()',
        ),
    ),
    "transcode_survives_a_kill": (
        ("--worker-lease 2s", "--worker-lease 10m"),
        ("time.sleep(1)", 'while size == "480p" and not (folder / "killed").exists(): time.sleep(0.05)'),
        ("worker.kill()", f"worker.kill(); {_EXPIRE}"),
    ),
}


def last_comments(source: str) -> str:
    """Return the comment block at the end of a program, without comment signs."""
    lines = source.rstrip().splitlines()
    first = len(lines)
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[first:])


def environment(folder: Path) -> dict[str, str]:
    """Return an environment without settings of Headway, with `folder` for temporary files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    ours = {"HEADWAY_PORT": "0", "HEADWAY_PROCESSES": "1", "HEADWAY_WORKER_LEASE": "10m"}
    return {**kept, **ours, "TMPDIR": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}


def staged(name: str, source: str) -> str:
    """Return a copy of an example that tolerates stalls."""
    for found, better in PATIENT:
        source = found.sub(better, source)
    for old, new in STAGED.get(name, ()):
        assert source.count(old) == 1, f"{name}: {old}"
        source = source.replace(old, new)
    return source


def test_examples_exist() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    source = example.read_text()
    assert len(source.splitlines()) <= LINES_MAX, f"one feature in at most {LINES_MAX} lines"
    expected = last_comments(source)
    assert expected, "an example ends with a comment block with its output"
    copy = tmp_path / example.name
    copy.write_text(staged(example.stem, source))
    process = subprocess.Popen(
        [sys.executable, str(copy)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        written, errors = process.communicate(timeout=RUN_S_MAX)
    finally:  # Including a worker that a failed example left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    print(errors, file=sys.stderr)  # Shown if the test fails; it includes the log of the worker.
    assert process.returncode == 0
    assert unnumbered(written.rstrip()) == unnumbered(expected)


def unnumbered(output: str) -> str:
    """Leave out the numbers of attempts: some may have been handed back before they began."""
    return re.sub(r"\battempt \d+", "attempt N", output)
