"""A world of batches: programs that add jobs, workers, housekeepers and operators, each of which may die at any step.

Every transaction may fail before it, after some of its statements, or after its commit with a lost response. Whoever
fails forgets everything and begins anew. A checker looks at the tables after every commit; it shares no code with the
store.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from headway.core.clock import Clock
from headway.core.errors import BatchClosed, Conflict, LeaseLost, StoreUnavailable
from headway.core.groups import NewGroup
from headway.core.instants import MINUTE, SECOND, Instant
from headway.core.jobs import Claimed, NewJob
from headway.core.lifecycle import Attempt, AttemptOutcome, Cancelled, Raised, Succeeded, settle
from headway.store import Store
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from headway.store.transaction import Begin, Rows, StatementCall, T, Transaction, one
from tests.simulation.checkers import require
from tests.simulation.stage import START, migrated

BATCHES: Final = 2
CALLS: Final = 3
ROWS: Final = 2
LEASE: Final = 20 * SECOND
FAULTS: Final = 0.12
TURNS: Final = 220
FINALS: Final = ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED")
CALLBACK: Final = NewJob(id="", task="mail", queue="mail")


class BatchChecker:
    """Compares the counts of batches with their jobs after every commit."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._raw = connection.raw
        self._seen: dict[str, tuple[int, ...]] = {}
        self._finished: dict[str, tuple[int, ...]] = {}
        self.saw: dict[str, int] = {}

    def _rows(self, text: str, *parameters: object) -> list[Any]:
        return self._raw.execute(text, parameters).fetchall()

    def check(self) -> None:
        """Check all batches."""
        for row in self._rows("select * from headway_groups"):
            self._check(row)
        reruns = self._rows("select rerun_of from headway_jobs where rerun_of is not null")
        require(len({row[0] for row in reruns}) == len(reruns), "S10: a job was rerun twice")

    def _check(self, row: Any) -> None:
        group_id = row["id"]
        states = dict(
            self._rows("select status, count(*) from headway_jobs where group_id = ? group by status", group_id)
        )
        [more] = self._rows(
            "select coalesce(sum(added), 0), coalesce(sum(completed), 0), coalesce(sum(failed), 0),"
            " coalesce(sum(timed_out), 0), coalesce(sum(cancelled), 0) from headway_deltas where group_id = ?",
            group_id,
        )
        columns = ("total", "completed", "failed", "timed_out", "cancelled")
        found = tuple(row[name] + extra for name, extra in zip(columns, more, strict=True))
        expected = (sum(states.values()), *(states.get(status, 0) for status in FINALS))
        require(found == expected, "S10: counts differ from the jobs", row["name"], found, expected)
        before = self._seen.get(group_id, (0,) * 5)
        require(all(map(int.__ge__, found, before)), "S10: a count shrank", row["name"], before, found)
        self._seen[group_id] = found
        callbacks = self._rows("select args from headway_jobs where key = ?", f"group:{group_id}:done")
        if row["finished_at"] is None:
            require(not callbacks, "S10: a callback before the end", row["name"])
            return
        require(row["closed_at"] is not None, "S10: finished while open", row["name"])
        require(len(callbacks) == 1, "S10: not one callback", row["name"], len(callbacks))
        require(found[0] == sum(found[1:]), "S10: finished while jobs run", row["name"], found)
        require(self._finished.setdefault(group_id, found) == found, "S10: changed after its end", row["name"], found)

    def note(self, what: str) -> None:
        """Count what happened, so that a world in which nothing went wrong is noticed."""
        self.saw[what] = self.saw.get(what, 0) + 1


class FailingDriver(InlineSqliteDriver):
    """Fails before a transaction, within it, or after its commit."""

    def __init__(self, connection: SqliteConnection, checker: BatchChecker, chance: random.Random) -> None:
        super().__init__(connection)
        self._checker = checker
        self._chance = chance
        self.faults = FAULTS

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, unless a fault prevents it."""
        draw = self._chance.random()
        if draw < self.faults:
            steps = self._chance.randint(1, 6)
            self._checker.note("died within a transaction")
            return await super().run(lambda: _dying(begin(), steps))
        result = await super().run(begin)
        self._checker.check()
        if draw > 1 - self.faults:
            self._checker.note("lost a response")
            raise StoreUnavailable("simulated: the response was lost")
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call."""
        return await self.run(lambda: one(statement))


def _dying(transaction: Transaction[T], steps: int) -> Transaction[T]:
    statement = next(transaction)
    for _ in range(steps):
        rows = yield statement
        try:
            statement = transaction.send(rows)
        except StopIteration:
            break
    raise StoreUnavailable("simulated: the process died")


class BatchWorld:
    """The actors, which take turns in an order drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"batches {seed}")
        self.now: Instant = START
        self.connection = SqliteConnection(":memory:", now=lambda: self.now)
        migrated().backup(self.connection.raw)
        self.checker = BatchChecker(self.connection)
        self.clock = Clock(monotonic=lambda: (self.now - START) / SECOND, wall=lambda: self.now, chance=self.chance)
        self.driver = FailingDriver(self.connection, self.checker, self.chance)
        self.store = Store.on(self.driver, self.clock)
        self._adders: list[Iterator[Callable[[], Awaitable[Any]]] | None] = [*map(self._adder, range(BATCHES))]
        self._held: list[Claimed] = []

    async def play(self) -> None:
        """Let the actors take turns, then end all faults and let everything end."""
        for _ in range(TURNS):
            self.now += self.chance.randint(0, 3 * SECOND)
            await self._turn()
        self.driver.faults = 0.0
        for _ in range(400):
            if await self._is_over():
                return
            self.now += 10 * SECOND
            for actor in (self._expire, self._fold, self._work):
                await actor()
            while self._held:
                await self._settle()
            for number in range(BATCHES):
                await self._add(number)
        require(False, "S10: a batch does not finish", self._unfinished())

    def _unfinished(self) -> list[Any]:
        found = self.connection.raw.execute("select name, total from headway_groups where finished_at is null")
        return [tuple(row) for row in found.fetchall()]

    async def _is_over(self) -> bool:
        return len(self.checker._seen) >= BATCHES and not self._unfinished() and not any(self._adders)

    async def _turn(self) -> None:
        actors = (self._add_some, self._work, self._settle, self._fold, self._fold, self._housekeep, self._operate)
        actor: Callable[[], Awaitable[None]] = self.chance.choices(actors, (4, 4, 5, 3, 3, 1, 2))[0]
        with suppress(StoreUnavailable):
            await actor()

    # --- programs that add jobs

    def _adder(self, number: int) -> Iterator[Callable[[], Awaitable[Any]]]:
        """Yield the calls of a program: it opens a batch, adds jobs in several calls, and closes it."""
        name = f"reports {number}"
        opened: list[str] = []

        async def open_batch() -> None:
            new = NewGroup(id=self.clock.new_id("batch"), name=name, tenant="default", on_done=CALLBACK)
            opened.append((await self.store.groups.open(new))[0].id)

        async def add(call: int) -> None:
            jobs = [self._job(opened[0], f"{name}:{call}:{row}") for row in range(ROWS)]
            await self.store.queue.enqueue(jobs)

        yield open_batch
        for call in range(CALLS):
            yield partial(add, call)
        yield partial(self.store.groups.close, opened[0])

    def _job(self, group_id: str, key: str | None = None) -> NewJob:
        return NewJob(id=self.clock.new_id("job"), task="report", key=key, group_id=group_id)

    async def _add_some(self) -> None:
        await self._add(self.chance.randrange(BATCHES))

    async def _add(self, number: int) -> None:
        adder = self._adders[number]
        if adder is None:
            return
        call = next(adder, None)
        if call is None:
            self._adders[number] = None
            return
        try:
            await call()
        except StoreUnavailable:
            self.checker.note("an adder began anew")
            self._adders[number] = self._adder(number)
            raise
        except BatchClosed:  # Cancelled by an operator.
            self._adders[number] = None

    # --- workers

    async def _work(self) -> None:
        """Claim some jobs, and one that is suspected of having crashed workers."""
        work = self.store.work
        self._held += await work.claim("default", node="n", lease=LEASE, limit=self.chance.randint(1, 4))
        for suspect in await work.apart(["report"], [], 1):
            claimed = await work.claim_apart(suspect.job_id, node="n", lease=LEASE)
            self._held += [] if claimed is None else [claimed[0]]

    async def _settle(self) -> None:
        """End the oldest attempts; each may add a job to its batch just before."""
        for _ in range(min(len(self._held), self.chance.randint(1, 4))):
            await self._end_one()

    async def _end_one(self) -> None:
        job = self._held.pop(0)
        [(group_id,)] = self.connection.raw.execute("select group_id from headway_jobs where id = ?", (job.id,))
        if group_id is not None and self.chance.random() < 0.15:
            with suppress(BatchClosed, LeaseLost):
                await self.store.work.enqueue_from(job.id, job.attempt, [self._job(group_id)])
                self.checker.note("a job added a job")
        attempt = Attempt(
            job_id=job.id, attempt=job.attempt, failures=job.failures, max_attempts=job.max_attempts, schedule=None
        )
        outcomes: tuple[AttemptOutcome, ...] = (Succeeded(), Raised("{}", retry_in=0), Cancelled())
        outcome = self.chance.choices(outcomes, (6, 3, 1))[0]
        await self.store.work.settle([settle(attempt, outcome, 0.5)])

    # --- nodes and operators

    async def _fold(self) -> None:
        await self.store.groups.keep_going()

    async def _housekeep(self) -> None:
        self.now += self.chance.randint(0, MINUTE)
        await self._expire()

    async def _expire(self) -> None:
        await self.store.housekeeping.expire(10)
        await self.store.housekeeping.promote(10)

    async def _operate(self) -> None:
        """Cancel or retry a batch."""
        found = [row[0] for row in self.connection.raw.execute("select id from headway_groups order by id")]
        if not found:
            return
        group_id = self.chance.choice(found)
        with suppress(Conflict):
            if self.chance.random() < 0.08:
                await self.store.groups.request_cancel(group_id, reason="enough")
                self.checker.note("cancelled")
                await self.store.groups.cancel_step(group_id)
                return
            target = await self.store.groups.begin_retry(group_id)
            if target is not None:
                self.checker.note("retried" if target == group_id else "retried in a new batch")
                await self.store.groups.retry_step(group_id, target, author="ada")
