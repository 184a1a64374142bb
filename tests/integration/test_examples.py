"""The examples are programs: each runs as a user would run it, and its last comments are what it prints."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LINES_MAX = 52  # Of which a fifth is the start and the end of a worker.
RUN_S_MAX = 90


def last_comments(source: str) -> str:
    """Return the comment block that ends a program, without its marks."""
    lines = source.rstrip().splitlines()
    first = len(lines)
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[first:])


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which nothing of this machine's Headway is set, and `folder` is for temporary files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {**kept, "TMPDIR": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    source = example.read_text()
    assert len(source.splitlines()) <= LINES_MAX, f"one feature in at most {LINES_MAX} lines"
    expected = last_comments(source)
    assert expected, "an example ends with a comment block: what it prints"
    process = subprocess.Popen(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        written, errors = process.communicate(timeout=RUN_S_MAX)
    finally:  # With the worker that a failing example leaves behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(RUN_S_MAX)
    assert process.returncode == 0, errors
    assert written.rstrip() == expected
