"""One cell: a store with very many schedules, and a scheduler that decides them on virtual time.

Everything but the clock is the real code: the store (SQLite in memory), the statements, the scheduler, the planner, the
fencing. Time advances by the CPU time that all of this takes, and jumps over the rests. So the lateness is that of a
scheduler that shares one core with its store, without disk, network and other users of the database.

The schedules are those of a large company: a few every minute, some every quarter of an hour, many every hour, most
once a day, in eight time zones. Half of them are due on the full hour or quarter, as people write them; the others are
spread. The window starts half a minute before midnight UTC, the worst hour.

python -m bench.cell SCHEDULES SECONDS      is that process; it prints what it found as JSON
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Final

import msgspec

from bench.crowd import ZONES
from bench.scale import LEASE, multiply
from headway.core.clock import Clock
from headway.core.instants import SECOND, Instant, parse_instant
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron, Trigger
from headway.scheduling.scheduler import LeaderFencing, Scheduler
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection

START: Final = parse_instant("2027-06-15T23:59:30Z")
EVERY_MINUTE: Final = 0.02
EVERY_QUARTER: Final = 0.08
EVERY_HOUR: Final = 0.30
EVERY_DAY: Final = 0.60
ON_THE_DOT: Final = 0.5
SPREAD: Final = (3, 8, 14, 19, 26, 34, 41, 47, 52, 58)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cell."""

    schedules: int
    decisions: int
    busy_s: float
    peak: int  # The number due at midnight.
    peak_s: float  # The lateness of the last of them.
    late_median_s: float
    memory_mb: float
    schedule_bytes: float


def mix() -> Iterator[tuple[Trigger, float]]:
    """Yield triggers, each with its share of all schedules."""
    zones = cycle(ZONES)
    yield Cron("* * * * *", next(zones)), EVERY_MINUTE
    for every, pattern in ((EVERY_QUARTER, "{}/15 * * * *"), (EVERY_HOUR, "{} * * * *")):
        minutes = [minute for minute in SPREAD if "/" not in pattern or minute < 15]
        yield Cron(pattern.format(0), next(zones)), every * ON_THE_DOT
        for minute in minutes:
            yield Cron(pattern.format(minute), next(zones)), every * (1 - ON_THE_DOT) / len(minutes)
    for hour in range(24):
        yield Cron(f"0 {hour} * * *", next(zones)), EVERY_DAY * ON_THE_DOT / 24
        for minute in SPREAD:
            yield Cron(f"{minute} {hour} * * *", next(zones)), EVERY_DAY * (1 - ON_THE_DOT) / 24 / len(SPREAD)


class Cell:
    """The store and the scheduler, and their time."""

    def __init__(self) -> None:
        self._began = time.process_time()
        self._skipped_s = 0.0
        self.connection = SqliteConnection(":memory:", now=self.now)
        self.clock = Clock(monotonic=self._elapsed_s, wall=self.now, node="cell")
        self.store = Store.on(InlineSqliteDriver(self.connection), self.clock)

    def now(self) -> Instant:
        """Return the time of the cell."""
        return START + round(self._elapsed_s() * SECOND)

    def _elapsed_s(self) -> float:
        return time.process_time() - self._began + self._skipped_s

    async def fill(self, schedules: int) -> None:
        """Create this many schedules before the window begins."""
        await migrate(self.store.driver)
        for number, (trigger, part) in enumerate(mix()):
            self._began = time.process_time()
            name = f"t{number:03d}"
            await self.store.schedules.put(
                name, ScheduleSpec.build(task="report", trigger=trigger, args={"tenant_id": number}, overlap="allow")
            )
            self.connection.raw.execute(multiply(name, round(schedules * part) - 1))
        self.connection.raw.execute("analyze")

    async def run(self, seconds: float) -> float:
        """Decide for this long; return the seconds of CPU time."""
        held = await self.store.leases.acquire(["scheduler/0"], holder="cell", holder_name="cell", duration=LEASE)
        fencing = LeaderFencing(1, lambda: {lease.name: lease for lease in held}, "cell", lambda _: None)
        scheduler = Scheduler(self.store.ledger, fencing, clock=self.clock, poll=SECOND)
        self._began, self._skipped_s = time.process_time(), 0.0
        while self._elapsed_s() < seconds:
            self._skipped_s += await scheduler.tick()
        return self._elapsed_s() - self._skipped_s

    def one(self, question: str) -> float:
        """Query one number."""
        return float(self.connection.raw.execute(question).fetchone()[0] or 0)


async def simulate(schedules: int, seconds: float) -> Found:
    """Fill a cell, and let it decide."""
    cell = Cell()
    await cell.fill(schedules)
    registered = round(cell.one("select count(*) from headway_schedules"))
    store_bytes = cell.one("pragma page_count") * cell.one("pragma page_size")
    busy_s = await cell.run(seconds)
    midnight = parse_instant("2027-06-16T00:00:00Z")
    at_midnight = f"from headway_occurrences where instant = {midnight}"
    decisions = round(cell.one("select count(*) from headway_occurrences"))
    middle = f"order by decided_at - instant limit 1 offset {decisions // 2}"
    return Found(
        schedules=registered,
        decisions=decisions,
        busy_s=busy_s,
        peak=round(cell.one(f"select count(*) {at_midnight}")),
        peak_s=cell.one(f"select max(decided_at - instant) {at_midnight}") / SECOND,
        late_median_s=cell.one(f"select decided_at - instant from headway_occurrences {middle}") / SECOND,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        schedule_bytes=store_bytes / registered,
    )


if __name__ == "__main__":
    found = asyncio.run(simulate(int(sys.argv[1]), float(sys.argv[2])))
    print(json.dumps(msgspec.to_builtins(found)))
