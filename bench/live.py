"""live: followers of jobs that report progress all the time, through the store alone and with Redis.

    updates   how many new values a second reach the followers of all jobs together
    latency   the time from each report of a task until a follower has it, or a later one
    carried   how many values a second one process can publish: a thousand jobs in a batch, without followers

Worker, API, store, Redis and followers share the machine.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from bench.api import api_server, follow_all, work
from bench.figures import Figure, Target, compared, percentile, plain
from bench.places import Place, Run, database, opened
from headway.adapters.redis.live_progress import RedisLive
from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.jobs import NewJob, Report
from headway.core.ports import Latest
from tests.support.redis import RedisServer

PATIENCE_S: Final = 60.0
WARM_UP_S: Final = 2.0
GAP_S: Final = 0.01  # Between two reports of a job that reports all the time;
CALM_GAP_S: Final = 0.15  # and of one that reports from time to time.
_SAID: Final = re.compile(rb'"said":\[(\d+),(\d+)\]')


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    with RedisServer() as redis:
        for place in run.places:
            figures += await _updates(place, run, redis)
            figures += await _latency(place, run, redis)
            figures += await _carried(place, run, redis)
    return figures


@contextlib.contextmanager
def _with(redis: RedisServer | None) -> Iterator[None]:
    """Configure processes started in this block with a Redis, or none."""
    if redis is not None:
        os.environ["HEADWAY_REDIS"] = redis.url()
    try:
        yield
    finally:
        os.environ.pop("HEADWAY_REDIS", None)


async def _heard(place: Place, redis: RedisServer | None, jobs: int, gap_s: float, seconds: float) -> list[list[float]]:
    """Follow reporting jobs; return the age in ms of each received value, and of those skipped before it."""
    last: dict[str, int] = {}
    ages_ms: list[list[float]] = []

    def hear(job_id: str, data: bytes) -> None:
        now = time.monotonic_ns()
        for number, at in _SAID.findall(data):
            if (new := int(number) - last.get(job_id, 0)) > 0:
                last[job_id] = int(number)
                ages_ms.append([(now - int(at)) / 1e6 + gap_s * 1_000 * passed for passed in range(new)])

    with _with(redis):
        async with database(place) as url, work(url, jobs) as app, api_server(url) as (port, _):
            made = await app.tasks["chatter"].enqueue_many(
                [{"seconds": seconds + 2 * WARM_UP_S, "gap_s": gap_s}] * jobs
            )
            connections = await follow_all(port, [job.id for job in made], jobs, hear)
            async with asyncio.timeout(PATIENCE_S):
                while len(last) < jobs:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(WARM_UP_S)
            ages_ms.clear()
            await asyncio.sleep(seconds)
            told = list(ages_ms)
            for connection in connections:
                connection.close()
            async with asyncio.timeout(PATIENCE_S):
                for job in made:
                    await job.wait()
    return told


async def _updates(place: Place, run: Run, redis: RedisServer) -> list[Figure]:
    jobs, seconds = run.size(50, 5), run.size(8, 2)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(min(run.repetitions, 3)):
        for is_live in rates:
            told = await _heard(place, redis if is_live else None, jobs, GAP_S, seconds)
            rates[is_live].append(len(told) / seconds)
    what = f"new values that reach followers of {jobs} jobs, with Redis against without"
    target = Target(">=", 5, of_ratio=True)
    return [compared("live", place.name, what, rates[True], rates[False], "/s", target)]


async def _latency(place: Place, run: Run, redis: RedisServer) -> list[Figure]:
    seconds = run.size(20, 3)
    ages: dict[bool, list[float]] = {}
    for is_live in (True, False):
        told = await _heard(place, redis if is_live else None, 5, CALM_GAP_S, seconds)
        ages[is_live] = [age for value in told for age in value]
    figures = []
    for percent in (50, 99):
        live, stored = (percentile(ages[is_live], percent) for is_live in (True, False))
        what = f"from a task to a follower, p{percent}"
        figures.append(plain("live", place.name, f"{what}, with Redis", [live], "ms", Target("<", 50)))
        figures.append(plain("live", place.name, f"{what}, by the store", [stored], "ms"))
    return figures


async def _carried(place: Place, run: Run, redis: RedisServer) -> list[Figure]:
    jobs, rounds = run.size(1_000, 50), run.size(10, 2)
    ours, theirs = [], []
    async with database(place) as url, opened(url) as (store, clock):
        ids = [clock.new_id("job") for _ in range(jobs)]
        await store.queue.enqueue([NewJob(id=job_id, task="work") for job_id in ids])
        await store.work.claim("default", node="bench", lease=600 * SECOND, limit=jobs)
        for _ in range(run.repetitions):
            started = time.perf_counter()
            for number in range(rounds):
                detail = f'{{"step":"Write","done":{number},"total":{rounds}}}'
                reports = [Report(job_id=job_id, attempt=1, progress=number, detail=detail) for job_id in ids]
                await store.work.report(reports)
            theirs.append(jobs * rounds / (time.perf_counter() - started))
            ours.append(await _told(redis, clock, jobs, rounds))
    what = "values that one process hands over, to Redis against to the store"
    return [compared("live", place.name, what, ours, theirs, "/s")]


async def _told(redis: RedisServer, clock: Clock, jobs: int, rounds: int) -> float:
    """Publish values of this many jobs at once, each time of other jobs; return the values per second."""
    live = RedisLive(redis.url(prefix="bench:"), clock=clock, node="bench")
    live.begin(lambda _job_id, _attempt: True, lambda: None)
    rates = []
    try:
        for number in range(rounds):
            detail = f'{{"step":"Write","done":{number},"total":{rounds},"serial":1}}'
            ids = [clock.new_id("job") for _ in range(jobs)]
            started = time.perf_counter()
            for job_id in ids:
                at = clock.now()
                live.tell(Latest(job_id=job_id, attempt=1, serial=1, at=at, progress=number, detail=detail))
            while live.waiting():
                await asyncio.sleep(0)
            rates.append(jobs / (time.perf_counter() - started))
            for job_id in ids:
                live.forget(job_id)
            await asyncio.sleep(0.1)
    finally:
        await live.close()
    return median(rates)
