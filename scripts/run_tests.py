"""Run the tests in parts, several at a time.

    python scripts/run_tests.py all|fast|PART … [--reverse] [--reports DIR]

`all` is everything, five parts at a time: on two cores most parts wait for processes. `fast` is what needs no server
and little time, one half per core. The output of a part is printed when the part has ended. The last line counts the
tests of all parts. With `--reports` the output of each part, its results as JUnit XML and one file for each failed
test are kept in a folder.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
INTEGRATION = "tests/integration"
API = [f"{INTEGRATION}/test_api_*.py"]
CLIENTS = [f"{INTEGRATION}/test_{name}.py" for name in ("cli_remote", "client", "dashboard", "webhooks")]
SHOWN = [f"{INTEGRATION}/test_{name}.py" for name in ("bench", "bench_sizing", "demo", "docs", "examples")]
CONFIGURATIONS = "tests/engines/test_configurations.py"
NO_SERVER = ["-q", "-m", "not slow and not postgres"]

# The longest parts first, and parts that compute beside parts that wait.
ALL = {
    "api": API,
    "engines": ["tests/engines", f"--ignore={CONFIGURATIONS}"],
    "processes": [INTEGRATION, *(f"--ignore-glob={pattern}" for pattern in (*API, *CLIENTS, *SHOWN))],
    "conformance": ["tests/conformance"],
    "chaos": ["tests/chaos", "--ignore-glob=tests/chaos/test_workers*.py"],
    "configurations": [CONFIGURATIONS],
    "check": ["make", "check"],
    "shown": SHOWN,
    "workers": ["tests/chaos/test_workers*.py"],
    "simulation": ["tests/simulation"],
    "clients": CLIENTS,
    "browser": ["tests/browser"],
    "units": ["tests/unit"],
}
FAST = {
    "fast-units": [*NO_SERVER, "tests/unit", "tests/tidy", "--ignore=tests/unit/worker"],
    "fast-stores": [*NO_SERVER, "tests/conformance", "tests/unit/worker"],
}
PARTS = {**ALL, **FAST}
GROUPS = {"all": list(ALL), "fast": list(FAST)}
AT_A_TIME = 5
INTERRUPTS_MAX = 20
INTERRUPT_EVERY_S = 3.0
LIVE: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Outcome:
    """How one part ended."""

    part: str
    code: int
    seconds: float
    cpu_seconds: float
    output: str
    counts: Counter[str]


def main() -> int:
    """Run the parts that the command line names; return 0 if every test passed."""
    options = _parse()
    with tempfile.TemporaryDirectory() as unkept:
        reports = options.reports or Path(unkept)
        reports.mkdir(parents=True, exist_ok=True)
        outcomes = run(options.parts, reports, reverse=options.reverse)
    failed = [outcome.part for outcome in outcomes if outcome.code]
    print(times(outcomes))
    print(summary(outcomes))
    return 1 if failed else 0


def run(parts: list[str], reports: Path, *, reverse: bool = False) -> list[Outcome]:
    """Run parts side by side and print the output of each when it has ended."""
    # A process that was started in the background ignores these, and so would the servers that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _interrupt)
    at_a_time = len(FAST) if set(parts) <= set(FAST) else AT_A_TIME
    outcomes = []
    with ThreadPoolExecutor(at_a_time) as pool, tempfile.TemporaryDirectory(prefix="hw-shared-") as shared:
        Path(shared).chmod(0o755)  # Servers run as another user, and read what is shared here.
        # Tests start hundreds of processes, which share compiled bytecode unless this variable is set.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env = {
            **inherited,
            "SUITE_FAILURES": str((reports / "failures").resolve()),
            "SUITE_ORDER": "reverse" if reverse else "usual",
            "SUITE_SHARED": shared,
        }
        turns = [pool.submit(_run_part, part, reports, env) for part in (reversed(parts) if reverse else parts)]
        try:
            for ended in as_completed(turns):
                outcome = ended.result()
                print(outcome.output, flush=True)
                outcomes.append(outcome)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            _stop_parts()
            raise
    return outcomes


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _stop_parts() -> None:
    """Stop the parts, and with them the servers of their tests, as Ctrl-C in a terminal does.

    A test that runs a command in its own process interrupts only the command: so the parts are interrupted repeatedly.
    """
    for number in [signal.SIGINT] * INTERRUPTS_MAX + [signal.SIGTERM]:
        for process in tuple(LIVE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        until = time.monotonic() + INTERRUPT_EVERY_S
        while LIVE and time.monotonic() < until:
            time.sleep(0.05)


def times(outcomes: list[Outcome]) -> str:
    """Say how long each part took, one line each, and whether it passed."""
    slowest_first = sorted(outcomes, key=lambda outcome: -outcome.seconds)
    return "\n".join(
        f"{one.part:14} {one.seconds:6.1f} s  {one.cpu_seconds:6.1f} s CPU  {'FAILED' if one.code else 'ok'}"
        for one in slowest_first
    )


def summary(outcomes: list[Outcome]) -> str:
    """Count the tests of all parts in one line."""
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def _run_part(part: str, reports: Path, env: Mapping[str, str]) -> Outcome:
    results = reports / f"{part}.xml"
    began = time.monotonic()
    with (reports / f"{part}.log").open("w+b") as log:
        process = subprocess.Popen(
            _command(part, results),
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        LIVE.add(process)
        _, status, usage = os.wait4(process.pid, 0)
        LIVE.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        output = log.read().decode(errors="replace")
    seconds, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return Outcome(part, process.returncode, seconds, cpu, output, _counts(results))


def _command(part: str, results: Path) -> list[str]:
    arguments = PARTS[part]
    if arguments[0] == "make":
        return arguments
    named = [name for argument in arguments for name in _expand(argument)]
    return [str(Path(sys.executable).parent / "pytest"), *named, f"--junitxml={results}"]


def _expand(argument: str) -> list[str]:
    is_pattern = argument.startswith("tests/") and "*" in argument
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(argument)) if is_pattern else [argument]


def _counts(results: Path) -> Counter[str]:
    """Read how many tests passed, failed and were skipped. A part without results has none."""
    counts: Counter[str] = Counter()
    if results.exists():
        for suite in ET.parse(results).getroot().iter("testsuite"):
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            counts += Counter(failed=failed, skipped=skipped, passed=int(suite.get("tests", 0)) - failed - skipped)
    return counts


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["all", "fast", *PARTS], metavar="all|fast|PART")
    parser.add_argument("--reverse", action="store_true", help="run the parts, and the tests of each, in reverse order")
    parser.add_argument("--reports", type=Path, help="keep outputs and results in this folder")
    options = parser.parse_args()
    options.parts = [part for name in options.parts for part in GROUPS.get(name, [name])]
    return options


if __name__ == "__main__":
    sys.exit(main())
