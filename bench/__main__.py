"""The command line of the benchmarks."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench import (
    api,
    batch,
    dashboard,
    decide,
    drain,
    enqueue,
    flat,
    idle,
    latency,
    leases,
    limits,
    live,
    outage,
    scale,
    sizing,
    sleepers,
    transports,
    worker_idle,
)
from bench.figures import Figure, append_json, table
from bench.peers.catalogue import TOP, UnknownPeer, chosen
from bench.places import Run, in_memory, places

Measure = Callable[[Run], Awaitable[list[Figure]]]

BENCHES: Final[dict[str, Measure]] = {
    "decide": decide.measure,
    "scale": scale.measure,
    "idle": idle.measure,
    "enqueue": enqueue.measure,
    "outage": outage.measure,
    "drain": drain.measure,
    "latency": latency.measure,
    "flat": flat.measure,
    "worker-idle": worker_idle.measure,
    "sleepers": sleepers.measure,
    "api": api.measure,
    "live": live.measure,
    "dashboard": dashboard.measure,
    "transports": transports.measure,
    "leases": leases.measure,
    "limits": limits.measure,
    "batch": batch.measure,
    "sizing": sizing.measure,
}
AGAINST_PEERS: Final = {"drain", "latency"}
STORES: Final = ("postgresql", "sqlite")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Headway against the bare database.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which benchmarks: {', '.join(BENCHES)} (all)")
    parser.add_argument("--store", action="append", choices=STORES, help="on which database (both)")
    parser.add_argument("--repetitions", type=int, help="how often each side is measured (5)")
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        default="none",
        help=f"whom to measure beside Headway: all, top ({', '.join(TOP)}) or names with commas (nobody)",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout, after `make setup` there: drain, latency and limits measure it in turn with this one",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--kills", type=int, default=0, help="how many leaders of each engine `leases` kills (10)")
    parser.add_argument("--cells", type=int, default=0, help="how many cells of a million schedules `sizing` has (1)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the databases are made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to a file, a line of JSON each")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    given = parser.parse_args()
    if given.before and not (given.before / ".venv" / "bin" / "python").exists():
        parser.error(f"{given.before} has no environment: run `make setup` there first")
    unknown = set(given.names) - BENCHES.keys()
    if unknown:
        parser.error(f"no benchmark is named {min(unknown)!r}; known are {', '.join(BENCHES)}")
    given.names = given.names or list(BENCHES)
    try:
        given.peers, absent = chosen(given.peers)
    except UnknownPeer as error:
        parser.error(str(error))
    if AGAINST_PEERS & set(given.names):
        if absent:
            print(f"left out: {', '.join(absent)}; bench/peers/setup makes what is missing", file=sys.stderr)
        if not given.peers:
            print("left out: every comparison with peers (--peers top, after bench/peers/setup)", file=sys.stderr)
    return given


def main() -> int:
    """Run the selected benchmarks; return the exit code."""
    given = arguments()
    if in_memory(given.folder):
        print(f"warning: {given.folder} is in memory; use --folder on a disk for figures that count", file=sys.stderr)
    found: list[Figure] = []
    with places(tuple(given.store or STORES), given.folder) as made:
        run = Run(
            places=made,
            repetitions=given.repetitions or (1 if given.quick else 5),
            is_quick=given.quick,
            folder=given.folder,
            peers=tuple(given.peers),
            before=given.before and given.before.resolve(),
            kills=given.kills,
            cells=given.cells,
        )
        for name in given.names:
            started = time.perf_counter()
            figures = asyncio.run(_measured(BENCHES[name], run))
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
            found += figures
            if given.json:
                append_json(given.json, figures)
    print(table(found))
    missed = [figure for figure in found if figure.is_met is False]
    return 1 if given.strict and missed else 0


async def _measured(measure: Measure, run: Run) -> list[Figure]:
    return await measure(run)


if __name__ == "__main__":
    raise SystemExit(main())
