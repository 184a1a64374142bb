"""worker-idle: measure the CPU time and memory of an idle worker.

Measure the CPU time of the supervisor and its children over half a minute, after a first job has run; exclude the
database server. Report memory twice: resident (RSS, shared pages in full) and proportional (PSS, shared pages split).
"""

import asyncio
from typing import Final

from bench.figures import Figure, Target, plain
from bench.places import Place, Run, database
from bench.worker import worker_command

SETTLE_S: Final = 3.0


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    return [figure for place in run.places for figure in await _measure_on(place, run.size(30, 2))]


async def _measure_on(place: Place, watch_s: int) -> list[Figure]:
    async with database(place) as url, worker_command(url) as worker:
        await asyncio.sleep(SETTLE_S)
        before = worker.cpu_s()
        await asyncio.sleep(watch_s)
        cpu_percent = (worker.cpu_s() - before) / watch_s * 100
        children = worker.children()
        resident_mb = worker.supervisor.memory_mb(), max(child.memory_mb() for child in children)
        split_mb = worker.supervisor.own_memory_mb(), max(child.own_memory_mb() for child in children)

    def figure(what: str, value: float, unit: str, target: Target | None = None) -> Figure:
        return plain("worker-idle", place.name, what, [value], unit, target)

    return [
        figure(f"processor, supervisor and {len(children)} child processes", cpu_percent, "%", Target("<", 1)),
        figure("memory of the supervisor, resident", resident_mb[0], "MB", Target("<", 80)),
        figure("memory of the supervisor, shared pages split", split_mb[0], "MB"),
        figure("memory of the largest child, resident", resident_mb[1], "MB", Target("<", 60)),
        figure("memory of the largest child, shared pages split", split_mb[1], "MB"),
    ]
