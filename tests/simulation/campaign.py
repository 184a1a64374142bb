"""Run many seeds on all cores, and check that the campaign saw every kind of event.

A failing seed prints the command that replays it; a replay prints what every actor did.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.simulation.simulation import Result, simulate

FAILURES_SHOWN_MAX: Final = 10
LINES_SHOWN_MAX: Final = 400

# Events that must happen at least once in a campaign, or the checkers had nothing to check.
MUST_SEE: Final = (
    "lease expired and taken over",
    "stale token refused",
    "unknown commit",
    "leader changed over a due instant",
    "job lease expired",
    "paused",
    "range coalesced",
    "edit with pending instants",
    "another node decided first",
    "stale attempt refused",
    "term lost: the store refused its token",
    "crash",
    "freeze",
    "outage",
    "cut off",
    "wake-up lost",
    "wall clock stepped",
    "pruned",
    "attempt lost: their leases could not be extended in time",
    "attempt released",
    "attempt crashed",
    "child paused",
    "child crashed with jobs",
    "job left out",
    "attempt parked",
    "drained with jobs",
    "asked to drain",
    "event cancel_requested",
    "event settle_refused",
    "child enqueued",
    "line logged",
    "step kept",
    "step reused",
    "rescued from a dead worker",
    "retried by hand",
    "worker killed by its job",
    "claim unheard",
    "suspect taken",
    "given up for killing its worker",
    "attempt lost: the answer to the claim was lost",
    "handed back for a worker that lives",
    "started under a limit",
    "limit reached",
    "limit changed",
    "limit removed",
    "limit lowered below what runs",
    "limits repeat",
    "lane held",
    "lane held at a rate",
)


def missing(seen: Counter[str]) -> list[str]:
    """Return the events that a campaign should have seen but did not."""
    return [what for what in MUST_SEE if not seen[what]]


def run_many(seeds: Iterable[int], processes: int) -> Iterator[Result]:
    """Simulate seeds, in order, on several cores."""
    if processes == 1:
        yield from map(simulate, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(simulate, seeds, chunksize=4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and tell everything")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    sys.exit(replay(options.seed) if options.seed is not None else campaign(options))


def replay(seed: int) -> int:
    """Run one seed and print its log, truncated to the last lines."""
    result = simulate(seed, verbose=True)
    print(*result.log[-LINES_SHOWN_MAX:], sep="\n")
    print(f"seed {seed}: {result.problem or 'every promise kept'}; history {result.digest[:16]}")
    return int(result.problem is not None)


def campaign(options: argparse.Namespace) -> int:
    """Run many seeds and print what they saw."""
    started, seen, failed = time.monotonic(), Counter[str](), 0
    seeds = range(options.start, options.start + options.seeds)
    for done, result in enumerate(run_many(seeds, options.processes), 1):
        seen.update(result.seen)
        if result.problem is not None:
            failed += 1
            if failed <= FAILURES_SHOWN_MAX:
                print(f"FAILED seed {result.seed}: {result.problem[:1_500]}\n  replay: make sim SEED={result.seed}")
        if done % 100 == 0:
            print(f"{done} seeds, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    for what, count in sorted(seen.items()):
        print(f"{count:>10,}  {what}")
    unseen = missing(seen)
    if unseen:
        print(f"FAILED: the campaign never saw: {', '.join(unseen)}")
    print(f"{len(seeds)} seeds, {failed} failed, {time.monotonic() - started:.0f} s")
    return int(failed > 0 or bool(unseen))
