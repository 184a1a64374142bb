"""Run the tests many times, also under load, and print which ones failed, how often, and where their logs are.

    python scripts/soak_tests.py [--runs 10] [--conditions idle,cpu,disk,reverse] [PART … or pytest arguments …]

Each run takes the next condition, in turn: `idle`; `cpu`, with one busy loop for each core; `disk`, with a process
that writes and syncs to the same disk without a pause; `reverse`, with the parts and their tests in reverse order.
Conditions can be combined: `cpu+disk`. No failed test is tried again.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import run_tests

BUSY = "while True: pass"
SYNCING = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range(16):
            file.write(os.urandom(65_536))
            os.fsync(file.fileno())
"""


def main() -> int:
    """Run everything that was asked for; return 0 if no test failed in any run."""
    options = _parse()
    failed: dict[str, list[Path]] = defaultdict(list)
    for number in range(1, options.runs + 1):
        condition = options.conditions[(number - 1) % len(options.conditions)]
        reports = options.reports / f"{number:02}-{condition}"
        began, clock = datetime.now(UTC), time.monotonic()
        with _load(condition, reports):
            code, said = _run(options.tests, reports, reverse="reverse" in condition.split("+"))
        print(
            f"run {number} of {options.runs}, {condition}: {said}, exit code {code}, "
            f"{time.monotonic() - clock:.0f} s from {began:%Y-%m-%d %H:%M} UTC",
            flush=True,
        )
        for name, log in _failures(reports, code):
            failed[name].append(log)
            print(f"  FAILED {name}\n         {log}", flush=True)
    print(_verdict(failed, options.runs))
    return 1 if failed else 0


def _run(tests: list[str], reports: Path, *, reverse: bool) -> tuple[int, str]:
    """Run parts, or pytest with arguments; return the exit code and the counts."""
    parts = tests or ["all"]
    if not set(parts) <= {"all", "fast", *run_tests.PARTS}:
        run_tests.PARTS["chosen"] = parts
        parts = ["chosen"]
    parts = [part for name in parts for part in run_tests.GROUPS.get(name, [name])]
    with (reports / "output.log").open("w") as log, contextlib.redirect_stdout(log):
        outcomes = run_tests.run(parts, reports, reverse=reverse)
        print(run_tests.times(outcomes))
    return max(outcome.code for outcome in outcomes), run_tests.summary(outcomes)


def _failures(reports: Path, code: int) -> list[tuple[str, Path]]:
    """Return the tests that failed in a run, each with its log."""
    logs = sorted((reports / "failures").glob("*.log"))
    found = [(log.read_text().partition("\n")[0], log) for log in logs]
    return found or ([("a part ended without a failed test", reports / "output.log")] if code else [])


def _verdict(failed: dict[str, list[Path]], runs: int) -> str:
    if not failed:
        return f"No test failed in {runs} runs."
    lines = [f"{len(failed)} tests failed in {runs} runs:"]
    for name, logs in sorted(failed.items(), key=lambda item: -len(item[1])):
        lines += [f"{len(logs):4} of {runs}  {name}", *(f"            {log}" for log in logs)]
    return "\n".join(lines)


@contextlib.contextmanager
def _load(condition: str, reports: Path) -> Iterator[None]:
    """Keep the machine busy as a condition says until the block ends."""
    shutil.rmtree(reports, ignore_errors=True)  # Remove the files of an earlier soak.
    reports.mkdir(parents=True)
    kinds = condition.split("+")
    programs = [[BUSY]] * (os.cpu_count() or 1) if "cpu" in kinds else []
    programs += [[SYNCING, str(reports / "synced")]] if "disk" in kinds else []
    processes = [subprocess.Popen([sys.executable, "-c", *program]) for program in programs]
    try:
        yield
        assert all(process.poll() is None for process in processes), "the load ended before the tests"
    finally:
        for process in processes:
            process.kill()
            process.wait()
        (reports / "synced").unlink(missing_ok=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--conditions", type=_conditions, default=["idle", "cpu", "disk", "reverse"])
    parser.add_argument("--reports", type=Path, default=Path(".soak"))
    options, options.tests = parser.parse_known_args()  # Other arguments are passed to pytest.
    return options


def _conditions(text: str) -> list[str]:
    found = text.split(",")
    known = {"idle", "cpu", "disk", "reverse"}
    if unknown := {kind for condition in found for kind in condition.split("+")} - known:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    return found


if __name__ == "__main__":
    sys.exit(main())
