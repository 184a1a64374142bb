"""sizing: measure the capacity of one store and of many stores together.

shards   many schedules are due at the same instant: decisions per second by one scheduler that holds 1, 4 or 16
         shards, and by two schedulers in separate processes that share the shards
cells    cells of a million schedules each, every cell with its own store, in virtual time (bench/cell.py describes
         which parts are real): ten cells are ten million schedules. The cells run one after the other, so that each
         has the machine to itself. Cells share nothing, so the capacity of parallel cells is their sum
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from bench import crowd
from bench.cell import Found
from bench.decide import decided_by_node
from bench.figures import Figure, plain
from bench.places import Place, Run, database, opened
from bench.process import scheduler_process
from bench.scale import EVERYTHING
from headway.core.clock import wall_now
from headway.core.instants import SECOND
from headway.core.settings import Settings

SHARDS: Final = (1, 4, 16)
PROCESSES: Final = 2
WINDOW_S: Final = 330
PATIENCE_S: Final = 120.0
LOOK_S: Final = 0.02
LEAD_PER_S: Final = 500  # Schedules that a busy machine inserts per second; sets the lead time.


async def measure(run: Run) -> list[Figure]:
    """Measure the shards on both databases and simulate the cells."""
    figures = [figure for place in run.places for figure in await _shards(place, run)]
    return figures + await _cells(run)


async def _shards(place: Place, run: Run) -> list[Figure]:
    count = run.size(10_000, 300)
    rates: dict[str, list[float]] = {}
    costs_us: dict[str, list[float]] = {}
    for _ in range(run.repetitions):
        for shards in SHARDS:
            what = f"one scheduler, {_shards_text(shards)}"
            rate, cost_us = await crowd.in_time(partial(_one, place, count, shards), _lead_s(count))
            rates.setdefault(what, []).append(rate)
            costs_us.setdefault(what, []).append(cost_us)
        for shards in SHARDS[1:]:
            what = f"{PROCESSES} schedulers, {_shards_text(shards)}"
            rate = await crowd.in_time(partial(_several, place, count, shards), _lead_s(count))
            rates.setdefault(what, []).append(rate)
    return [
        *(plain("sizing", place.name, f"decisions by {what}", found, "/s") for what, found in rates.items()),
        *(plain("sizing", place.name, f"its processor time each: {what}", us, "us") for what, us in costs_us.items()),
    ]


def _shards_text(shards: int) -> str:
    return f"{shards} shard{'' if shards == 1 else 's'}"


def _lead_s(count: int) -> float:
    return 2.0 + count / LEAD_PER_S


async def _one(place: Place, count: int, shards: int, lead_s: float) -> tuple[float, float]:
    """Decide a batch on one node in this process; return decisions per second and CPU microseconds per decision."""
    async with database(place) as url, opened(url) as (store, clock):
        at = await crowd.gather(store, count, lead_s=lead_s)
        settings, began = Settings(node="bench", scheduler_shards=shards), time.process_time()
        seconds, _ = await decided_by_node(store, clock, count, at, settings)
    return count / seconds, (time.process_time() - began) / count * 1e6


async def _several(place: Place, count: int, shards: int, lead_s: float) -> float:
    """Decide a batch in several processes that share the shards; return decisions per second."""
    variables = {"HEADWAY_SCHEDULER_SHARDS": str(shards)}
    async with database(place) as url, opened(url) as (store, _), AsyncExitStack() as stack:
        for _ in range(PROCESSES):
            await stack.enter_async_context(scheduler_process(url, variables))
        async with asyncio.timeout(PATIENCE_S):
            while len({lease.holder for lease, runs in await store.leases.held("scheduler/") if runs}) < PROCESSES:
                await asyncio.sleep(0.1)
        at = await crowd.gather(store, count, lead_s=lead_s)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.sleep((at - wall_now()) / SECOND)
            while (await store.ledger.next_due(EVERYTHING) or at) <= at:
                await asyncio.sleep(LOOK_S)
        return count / ((wall_now() - at) / SECOND)


async def _cells(run: Run) -> list[Figure]:
    schedules, cells = run.size(1_000_000, 2_000), run.cells or 1
    found = [await _cell(schedules) for _ in range(cells)]
    total = sum(cell.schedules for cell in found)
    decisions = sum(cell.decisions for cell in found)
    busy_s = sum(cell.busy_s for cell in found)
    of = f"{cells} × {schedules:,} schedules" if cells > 1 else f"{schedules:,} schedules"
    where = "virtual time"
    return [
        plain("sizing", where, f"{of}: all of them", [total], ""),
        plain("sizing", where, f"{of}: decisions in {WINDOW_S} s around midnight", [decisions], ""),
        plain("sizing", where, f"{of}: decisions a second of one core", [decisions / busy_s], "/s"),
        plain("sizing", where, f"{of}: a cell is busy", [cell.busy_s / WINDOW_S * 100 for cell in found], "%"),
        plain("sizing", where, f"{of}: due at midnight in a cell", [cell.peak for cell in found], ""),
        plain("sizing", where, f"{of}: the last of those is late by", [cell.peak_s for cell in found], "s"),
        plain("sizing", where, f"{of}: half of all decisions are late by", [cell.late_median_s for cell in found], "s"),
        plain("sizing", where, f"{of}: memory of a cell, store included", [cell.memory_mb for cell in found], "MB"),
        plain("sizing", where, f"{of}: a schedule in the store", [cell.schedule_bytes for cell in found], "bytes"),
    ]


async def _cell(schedules: int) -> Found:
    command = (sys.executable, "-m", "bench.cell", str(schedules), str(WINDOW_S))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0, "the cell has failed"
    return msgspec.json.decode(printed, type=Found)
