"""sleepers: run many sleeping jobs on one worker, each reporting progress twice a second.

No attempt may lose its lease, every progress report must reach the store, and the worker (supervisor and child, not the
database server) must use less than one core. Rates and CPU time are measured in the middle of the run.
"""

import asyncio
from statistics import median
from typing import Final

from bench.bare import Bare, Record
from bench.figures import Figure, Target, plain
from bench.places import Place, Run, database
from bench.tasks import PROGRESS_S, open_app
from bench.worker import worker_command

LOOK_S: Final = 0.1
PATIENCE_S: Final = 60


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    return [
        figure
        for place in run.places
        for figure in await _measure_on(place, run.size(1_000, 20), sleep_s=run.size(20, 4))
    ]


async def _measure_on(place: Place, count: int, sleep_s: int) -> list[Figure]:
    async with database(place) as url, worker_command(url, "--concurrency", count) as worker:
        async with open_app(url) as app:
            await app.tasks["sleeper"].enqueue_many([{"seconds": sleep_s}] * count)
        bare = await place.bare(url)
        try:
            await _until(bare, "<> 'PENDING'", count)
            before, cpu_s = await _versions(bare), worker.cpu_s()
            watch_s = sleep_s / 2
            await asyncio.sleep(watch_s)
            after, cpu_s = await _versions(bare), worker.cpu_s() - cpu_s
            await _until(bare, "= 'COMPLETED'", count)
            attempts = await _attempts(bare)
        finally:
            await bare.close()
    assert len(attempts) == count, "every sleeper has a row"
    writes = sorted((after[job] - version) / watch_s for job, version in before.items())

    def figure(what: str, value: float, unit: str, target: Target | None = None) -> Figure:
        return plain("sleepers", place.name, f"{count:,} at once: {what}", [value], unit, target)

    return [
        figure("attempts beyond the first", sum(attempts) - count, "", Target("<=", 0)),
        figure("progress writes of a job", median(writes), "/s", Target(">=", 0.9 / PROGRESS_S)),
        figure("progress writes of the slowest job", writes[0], "/s"),
        figure("processor of the worker", cpu_s / watch_s * 100, "%", Target("<", 50)),
    ]


async def _until(bare: Bare, status: str, count: int) -> None:
    """Wait until `count` sleepers match a status condition."""
    async with asyncio.timeout(PATIENCE_S):
        while len(await _chosen(bare, f"and status {status}", "id")) < count:
            await asyncio.sleep(LOOK_S)


async def _versions(bare: Bare) -> dict[str, int]:
    rows = await _chosen(bare, "", "id, version")
    return {str(job): int(version) for job, version in rows}


async def _attempts(bare: Bare) -> list[int]:
    return [int(attempt) for (attempt,) in await _chosen(bare, "", "attempt")]


async def _chosen(bare: Bare, condition: str, columns: str) -> list[Record]:
    table = f"(select {columns} from headway_jobs where task = 'sleeper' {condition}) as found"
    return list((await bare.read(table, "1")).records)
