"""Where the benchmarks run: private databases on a disk, each measured side in a fresh one.

A `Place` makes empty databases with Headway's schema, opens them for Headway, and opens them bare.
"""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.bare import Bare, BarePostgres, BareSqlite
from bench.peers.catalogue import Contestant
from headway.core.clock import Clock
from headway.store import Store, open_driver
from headway.store.migrations import migrate
from tests.support.postgres import PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options of this run."""

    places: tuple["Place", ...]
    repetitions: int
    is_quick: bool
    folder: Path
    peers: tuple[Contestant, ...] = ()
    before: Path | None = None  # Another checkout, with its own environment, that is measured in turn with this one.
    kills: int = 0  # How many leaders are killed to see how soon others lead; 0 is as many as usual.
    cells: int = 0  # How many stores of a million schedules are simulated; 0 is as many as usual.

    def size(self, full: int, quick: int) -> int:
        """Choose a size."""
        return quick if self.is_quick else full


class Place(Protocol):
    """One kind of database."""

    name: str
    ways: tuple[str, ...]  # The ways to insert many rows without Headway.

    async def fresh(self) -> str:
        """Make an empty database with Headway's schema, and return its address."""
        ...

    def drop(self, url: str) -> None:
        """Remove a database."""
        ...

    async def bare(self, url: str) -> Bare:
        """Connect to a database with its driver alone."""
        ...


class PostgresPlace:
    """A private PostgreSQL with its default settings, so that every commit waits for the disk."""

    name = "postgresql"
    ways: tuple[str, ...] = ("copy", "unnest")

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer(durable=True, folder=folder)
        self.server.start()
        self._template = self.server.create_database()
        asyncio.run(_migrate(self._template))

    async def fresh(self) -> str:
        """Copy the empty database."""
        return self.server.create_database(template=self._template)

    def drop(self, url: str) -> None:
        """Drop a database."""
        self.server.drop(url)

    async def bare(self, url: str) -> Bare:
        """Connect by asyncpg."""
        return await BarePostgres.connect(url)

    def close(self) -> None:
        """Stop the server and remove its data."""
        self.server.close()


class SqlitePlace:
    """A folder of SQLite files; every commit waits for the disk."""

    name = "sqlite"
    ways: tuple[str, ...] = ("executemany",)

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hw-sqlite-", dir=folder))
        self._numbers = itertools.count(1)

    async def fresh(self) -> str:
        """Name a new file and give it the schema."""
        url = f"sqlite:///{self._folder / f'bench_{next(self._numbers)}.db'}"
        await _migrate(url)
        return url

    def drop(self, url: str) -> None:
        """Remove the file and what SQLite keeps beside it."""
        for path in self._folder.glob(Path(url).name + "*"):
            path.unlink()

    async def bare(self, url: str) -> Bare:
        """Open the file by sqlite3."""
        return BareSqlite(url.removeprefix("sqlite:///"))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


async def _migrate(url: str) -> None:
    driver = open_driver(url)
    try:
        await migrate(driver)
    finally:
        await driver.close()


@contextlib.contextmanager
def places(names: tuple[str, ...], folder: Path) -> Iterator[tuple[Place, ...]]:
    """Start the selected databases, and remove everything afterwards."""
    with contextlib.ExitStack() as stack:
        found: list[Place] = []
        for kind in (PostgresPlace, SqlitePlace):
            if kind.name in names:
                place = kind(folder)
                stack.callback(place.close)
                found.append(place)
        yield tuple(found)


@contextlib.asynccontextmanager
async def database(place: Place) -> AsyncIterator[str]:
    """Create a fresh database for a block."""
    url = await place.fresh()
    try:
        yield url
    finally:
        place.drop(url)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Store, Clock]]:
    """Open a database as a process of Headway does."""
    clock = Clock()
    clock.node = clock.new_id("node")
    store = await Store.open(url, clock)
    try:
        yield store, clock
    finally:
        await store.close()


def in_memory(folder: Path) -> bool:
    """Return whether a folder is on a file system in memory."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] in {"tmpfs", "ramfs"}
