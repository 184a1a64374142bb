"""Set up a stage: a fresh store for one contestant, its processes, and the record that its jobs write.

Every step runs in the contestant's own environment with a time limit. Closing the stage kills every process it started.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import asyncpg

from bench.bare import Bare, BarePostgres, BareSqlite
from bench.peers.catalogue import Contestant, earlier, folder
from bench.peers.kit import RECORD, WARM_UP
from bench.peers.redis_server import RedisServer
from bench.places import Place, PostgresPlace, Run
from bench.watch import Bystanders, Watched, family
from tests.support.postgres import PostgresServer

STEP_S_MAX: Final = 180.0
STANDSTILL_S_MAX: Final = 20.0
DRAIN_S_MAX: Final = 180.0
LOOK_S: Final = 0.01
END_S_MAX: Final = 10.0


class Failed(Exception):
    """A contestant failed; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One job that started."""

    key: int
    sent_ns: int
    started_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Durations, measured from the start of the first job."""

    jobs: int
    bodies_s: float  # Until the last job started.
    settled_s: float  # Until the last completion was committed, where the store records it.
    disturbed: float  # The share of the machine that other processes used meanwhile.

    @property
    def rate(self) -> float:
        """Return the jobs per second, including completions."""
        return self.jobs / self.settled_s


class Grounds:
    """The servers that the contestants of one run share; Redis starts on first use."""

    def __init__(self, postgres: PostgresServer | None, workspace: Path) -> None:
        self.postgres = postgres
        self.workspace = workspace
        self._redis: RedisServer | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, run: Run, place: Place) -> Iterator[Self]:
        """Open the servers of a run and close them on exit."""
        grounds = cls(place.server if isinstance(place, PostgresPlace) else None, run.folder)
        try:
            yield grounds
        finally:
            grounds.close()

    def redis(self) -> RedisServer:
        """Return an empty Redis."""
        if self._redis is None:
            self._redis = RedisServer()
            self._redis.start()
        self._redis.empty()
        return self._redis

    def close(self) -> None:
        """Stop the servers started here."""
        if self._redis is not None:
            self._redis.close()


def rivals(run: Run, place: Place) -> list[Contestant]:
    """Return whom to compare with: the earlier build, other servers for a server database, other files for SQLite."""
    stores = ("sqlite",) if place.name == "sqlite" else ("postgresql", "redis")
    builds = [] if run.before is None else [earlier(place.name, run.before)]
    return builds + [peer for peer in run.peers if peer.store in stores]


class Stage:
    """One contestant and its fresh store."""

    def __init__(self, contestant: Contestant, workspace: Path, addresses: dict[str, str]) -> None:
        self._contestant = contestant
        self._addresses = addresses
        self._record = workspace / "record"
        self._record.touch()
        self._log = (workspace / "log").open("ab+")
        self._workspace = workspace
        self._workers: list[Process] = []

    async def run(self, step: str, *arguments: object) -> None:
        """Run a step and wait for it to finish."""
        process = await self._start(step, *arguments)
        try:
            async with asyncio.timeout(STEP_S_MAX):
                code = await process.wait()
        except TimeoutError:
            raise Failed(f"{step} took more than {STEP_S_MAX:g} s") from None
        finally:
            await _end(process)
        if code:
            raise Failed(f"{step} ended with {code}: {self.last_words()}")

    async def start_worker(self) -> Watched:
        """Start one more worker."""
        process = await self._start("worker")
        self._workers.append(process)
        return Watched(process.pid)

    def count(self) -> int:
        """Return the number of jobs that have started."""
        return self._record.stat().st_size // RECORD.size

    def hits(self) -> list[Hit]:
        """Return the jobs that have started, ordered by start time."""
        content = self._record.read_bytes()
        whole = content[: len(content) // RECORD.size * RECORD.size]
        hits = [Hit(*fields) for fields in RECORD.iter_unpack(whole)]
        return sorted((hit for hit in hits if hit.key < WARM_UP), key=lambda hit: hit.started_ns)

    async def bodies(self, count: int) -> None:
        """Wait until `count` jobs have started."""
        started = moved = time.monotonic()
        seen = -1
        while (now := time.monotonic()) < started + DRAIN_S_MAX and now < moved + STANDSTILL_S_MAX:
            found = self.count()
            if found >= count:
                return
            if found > seen:
                seen, moved = found, now
            ended = [worker.returncode for worker in self._workers if worker.returncode is not None]
            if ended:
                raise Failed(f"a worker ended with {ended[0]}: {self.last_words()}")
            await asyncio.sleep(LOOK_S)
        raise Failed(f"{seen} of {count} jobs ran in {now - started:.0f} s: {self.last_words()}")

    async def drained(self, jobs: int) -> Drained:
        """Wait until all jobs have run and are settled in the store."""
        await self.bodies(1)
        bystanders = Bystanders()
        await self.bodies(jobs)
        settled_ns = await self._settled_ns()
        disturbed = bystanders.share()
        hits = self.hits()
        if len({hit.key for hit in hits}) != jobs:
            raise Failed(f"{len({hit.key for hit in hits})} different jobs of {jobs} ran")
        bodies_ns = hits[-1].started_ns - hits[0].started_ns
        return Drained(
            jobs=jobs,
            bodies_s=bodies_ns / 1e9,
            settled_s=max(bodies_ns, (settled_ns or 0) - hits[0].started_ns) / 1e9,
            disturbed=disturbed,
        )

    async def started(self, jobs: int) -> float:
        """Wait until this many jobs have started, of a backlog that is larger; return the jobs per second."""
        await self.bodies(jobs)
        hits = self.hits()[:jobs]
        return jobs / ((hits[-1].started_ns - hits[0].started_ns) / 1e9)

    async def bare(self) -> Bare:
        """Connect to the store with its driver alone."""
        if self._contestant.store == "sqlite":
            return BareSqlite(self._addresses["BENCH_SQLITE"])
        return await BarePostgres.connect(self._addresses["BENCH_POSTGRES"])

    async def _settled_ns(self) -> int | None:
        """Wait until the store has every completion; return the time when this was first seen."""
        if self._contestant.unsettled is None or self._contestant.unfinished is None:
            return None
        async with _counting(self._contestant, self._addresses) as counting:
            deadline = time.monotonic() + STANDSTILL_S_MAX
            while left := await counting.count(self._contestant.unsettled):
                if time.monotonic() > deadline:
                    raise Failed(f"{left} jobs were not settled: {self.last_words()}")
                await asyncio.sleep(LOOK_S)
            settled_ns = time.time_ns()
            if left := await counting.count(self._contestant.unfinished):
                raise Failed(f"{left} jobs did not end well")
        return settled_ns

    def last_words(self) -> str:
        """Return the end of the contestant's log."""
        text = (self._workspace / "log").read_text(errors="replace")
        return text[-800:].strip() or "it said nothing"

    async def close(self) -> None:
        """Kill every process started here."""
        for worker in self._workers:
            await _end(worker)
        self._log.close()

    async def _start(self, step: str, *arguments: object) -> Process:
        return await asyncio.create_subprocess_exec(
            *(*self._contestant.command(), step, *map(str, arguments)),
            cwd=self._workspace,
            env={
                **os.environ,
                **self._addresses,
                "PYTHONPATH": str(self._contestant.root),
                "PYTHONDONTWRITEBYTECODE": "1",
                "BENCH_VARIANT": self._contestant.name,
                "BENCH_RECORD": str(self._record),
                "BENCH_NUMBER": str(len(self._workers)),
                "BENCH_NODE_MODULES": str(folder().resolve() / "node"),
            },
            stdin=DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )


class _Counting:
    """Counts jobs directly in the store, bypassing the contestant."""

    def __init__(self, connection: asyncpg.Connection | sqlite3.Connection) -> None:
        self._connection = connection

    async def count(self, statement: str) -> int:
        """Run a `count` statement and return its result."""
        if isinstance(self._connection, sqlite3.Connection):
            return int(self._connection.execute(statement).fetchone()[0])
        return int(await self._connection.fetchval(statement))


@contextlib.asynccontextmanager
async def _counting(contestant: Contestant, addresses: dict[str, str]) -> AsyncIterator[_Counting]:
    if contestant.store == "sqlite":
        with contextlib.closing(sqlite3.connect(addresses["BENCH_SQLITE"], timeout=30)) as connection:
            yield _Counting(connection)
        return
    connection = await asyncpg.connect(addresses["BENCH_POSTGRES"])
    try:
        yield _Counting(connection)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def stage(contestant: Contestant, grounds: Grounds) -> AsyncIterator[Stage]:
    """Create a fresh store for a contestant and run its setup."""
    workspace = Path(tempfile.mkdtemp(prefix=f"hw-{contestant.name}-", dir=grounds.workspace))
    addresses = {"BENCH_SQLITE": str(workspace / "queue.db")}
    try:
        if contestant.store == "redis":
            addresses["BENCH_REDIS"] = grounds.redis().url()
        elif contestant.store == "postgresql":
            assert grounds.postgres is not None, "a contestant on PostgreSQL needs one"
            addresses["BENCH_POSTGRES"] = grounds.postgres.create_database()
        made = Stage(contestant, workspace, addresses)
        try:
            await made.run("setup")
            yield made
        finally:
            await made.close()
    finally:
        if grounds.postgres is not None and "BENCH_POSTGRES" in addresses:
            grounds.postgres.drop(addresses["BENCH_POSTGRES"])
        shutil.rmtree(workspace, ignore_errors=True)


async def _end(process: Process) -> None:
    """Kill a process and all its descendants."""
    members = family(process.pid)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(END_S_MAX):
        await process.wait()
