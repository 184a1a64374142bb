"""scale: measure how the number of schedules affects a scheduler when few of them are due.

Create databases with a thousand, a hundred thousand and a million schedules, most of them far in the future. In each
one in turn, time one tick that decides a thousand due schedules, and time an edit of one schedule. Then measure the
memory of a scheduler process on the largest database.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from bench import crowd
from bench.figures import Figure, Target, plain
from bench.places import Place, Run, database, opened
from bench.process import scheduler_process
from headway.core.clock import Clock, wall_now
from headway.core.instants import DAY, SECOND, Duration
from headway.core.ports import Shards
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron
from headway.scheduling.scheduler import LeaderFencing, Scheduler
from headway.store import Store

EDITS: Final = 30
LEASE: Final = DAY
SETTLE_S: Final = 2.0
PATIENCE_S: Final = 60.0
EVERYTHING: Final = Shards(of=1, held=frozenset({0}))
FAR: Final = ScheduleSpec.build(task="report", trigger=Cron("0 6 1 1 *", "Europe/Berlin"), args={"tenant_id": 1})

# Headway creates one schedule; the others are renamed copies, optionally spread over time. The SQL is portable.
MULTIPLY: Final = """
insert into headway_schedules (name, owner, tenant, slot, revision, version, definition, trigger_text, delay, next_at,
  decided_through, pauses, created_at, updated_at)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {count})
select name || '-' || n, owner, tenant, (slot + n) % 4294967296, revision, version, definition, trigger_text, delay,
  next_at + n * {apart}, decided_through, pauses, created_at, updated_at
from headway_schedules, numbers where name = '{name}' and n <= {count}
"""
APART: Final = 1_000


def multiply(name: str, count: int, apart: Duration = 0) -> str:
    """Return the statement that copies a schedule."""
    return MULTIPLY.format(name=name, count=count, apart=apart)


@dataclass(slots=True)
class _Size:
    """One database and its measurements."""

    registered: int
    url: str
    store: Store
    clock: Clock
    scheduler: Scheduler
    decide_us: list[float] = field(default_factory=list)
    edit_ms: list[float] = field(default_factory=list)
    rounds: int = 0


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    return [figure for place in run.places for figure in await _measure_on(place, run)]


async def _measure_on(place: Place, run: Run) -> list[Figure]:
    registered = (100, 1_000, 10_000) if run.is_quick else (1_000, 100_000, 1_000_000)
    due = run.size(1_000, 100)
    async with AsyncExitStack() as stack:
        sizes = [await _prepare(stack, place, count) for count in registered]
        for size in sizes:  # Warm-up: connections, prepared statements, caches.
            await _round(size, due, counts=False)
        for _ in range(run.repetitions):
            for size in sizes:
                await _round(size, due, counts=True)
        figures = _figures(place, sizes, due)
        figures.append(await _memory(place, sizes[-1], run.size(10_000, 100)))
    return figures


async def _prepare(stack: AsyncExitStack, place: Place, count: int) -> _Size:
    url = await stack.enter_async_context(database(place))
    store, clock = await stack.enter_async_context(opened(url))
    await store.schedules.put("far", FAR)
    bare = await place.bare(url)
    try:
        await bare.execute(multiply("far", count - 1, APART))
        await bare.execute("analyze")
    finally:
        await bare.close()
    held = await store.leases.acquire(["scheduler/0"], holder=clock.node, holder_name="bench", duration=LEASE)
    leases = {lease.name: lease for lease in held}
    fencing = LeaderFencing(1, lambda: leases, clock.node, lambda _: None)
    return _Size(count, url, store, clock, Scheduler(store.ledger, fencing, clock=clock, poll=SECOND))


async def _round(size: _Size, due: int, *, counts: bool) -> None:
    """Decide a batch of due schedules in one tick, then edit schedules one by one."""
    size.rounds += 1
    at = await crowd.gather(size.store, due, lead_s=1.0, prefix=f"crowd-{size.rounds}")
    await asyncio.sleep((at - wall_now()) / SECOND + 0.01)
    started = time.perf_counter()
    await size.scheduler.tick()
    decide_us = (time.perf_counter() - started) / due * 1e6
    assert (await size.store.ledger.next_due(EVERYTHING) or at) > at, "one tick decides them all"
    edit_ms = [await _edit(size, number) for number in range(EDITS)]
    if counts:
        size.decide_us.append(decide_us)
        size.edit_ms.append(median(edit_ms))


async def _edit(size: _Size, number: int) -> float:
    """Change the arguments of one schedule; return the duration in milliseconds."""
    spec = replace(FAR, args=f'{{"tenant_id":{size.rounds * EDITS + number}}}')
    name = "far" if number % 2 else f"far-{size.registered // 2}"
    started = time.perf_counter()
    await size.store.schedules.put(name, spec)
    return (time.perf_counter() - started) * 1e3


def _figures(place: Place, sizes: list[_Size], due: int) -> list[Figure]:
    figures = []
    for size in sizes:
        what = f"a decision, {due:,} due of {size.registered:,}"
        figures.append(plain("scale", place.name, what, size.decide_us, "us"))
    smallest, largest = sizes[0], sizes[-1]
    for size in sizes[1:]:
        what = f"a decision, {size.registered:,} against {smallest.registered:,}"
        growth = [here / there for here, there in zip(size.decide_us, smallest.decide_us, strict=True)]
        figures.append(plain("scale", place.name, what, growth, "x", Target("<=", 1.5)))
    for size in sizes:
        figures.append(plain("scale", place.name, f"an edit, one of {size.registered:,}", size.edit_ms, "ms"))
    # Compare the fastest rounds: most of an edit is one commit, and disk commit times vary more than the edit itself.
    growth = [min(largest.edit_ms) / min(smallest.edit_ms)]
    what = f"an edit, {largest.registered:,} against {smallest.registered:,}"
    return [*figures, plain("scale", place.name, what, growth, "x", Target("<=", 1.5))]


async def _memory(place: Place, size: _Size, due: int) -> Figure:
    """Run a scheduler process that decides a batch among all schedules; return its peak memory."""
    leases = await size.store.leases.held("scheduler/0")
    await size.store.leases.release([lease for lease, _ in leases])
    async with scheduler_process(size.url) as process:
        at = await crowd.gather(size.store, due, lead_s=2.0 + due / 1_000, prefix="memory")
        await asyncio.sleep((at - wall_now()) / SECOND)
        async with asyncio.timeout(PATIENCE_S):
            while (await size.store.ledger.next_due(EVERYTHING) or at) <= at:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        memory_mb = process.memory_mb_max()
    what = f"memory of a scheduler, {size.registered:,} schedules"
    return plain("scale", place.name, what, [memory_mb], "MB", Target("<", 200))
