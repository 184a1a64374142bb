"""Detect that a database was restored from a backup, and recover from it.

A restored backup looks like any other database from inside. What was not restored with it tells it apart:

    a live node         its last heartbeat was acknowledged, but the row is gone or has an older one
    PostgreSQL          identifies server, database, tables and timeline; the rows name others
    a SQLite file       has a small file beside it with the time of the last heartbeat; the rows have an older one

A promotion changes the timeline too. A node that ran before and after it, and misses nothing, confirms it; if no node
ran, an operator has to. `recover` raises all tokens above every token that was ever issued, and stores new marks.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headway.core.errors import StoreError
from headway.core.instants import DAY, Instant, isoformat
from headway.store.file_access import PRIVATE
from headway.store.sqlite import SqliteDriver
from headway.store.transaction import Driver, Transaction, call
from headway.store.wrapping_driver import unwrapped

PREFIX: Final = "origin|"
SEEN: Final = "origin|seen"
LOST: Final = "origin|lost"
TIMELINE: Final = "origin|timeline"
COPIED: Final = ("origin|system", "origin|database", "origin|tables")
ATTEMPTS_RAISED: Final = 1_000_000
ATTEMPT_MAX: Final = 2_000_000_000
PAGE: Final = 5_000
BESIDE: Final = "-seen"

Marks = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign that a database was restored; not `is_sure` if a failover could explain it too."""

    words: str
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The result of a recovery: the highest reserved token, and the number of jobs whose attempts were raised."""

    token: int
    jobs: int


def signs(marks: Marks, present: Marks, outside: Instant | None) -> list[Sign]:
    """Compare the stored marks with the present server and with the file beside the database."""
    found = []
    if LOST in marks:
        when = isoformat(marks[LOST] // 1_000_000 * 1_000_000)
        found.append(Sign(words=f"a node found at {when} that the store had forgotten what it acknowledged before"))
    if outside is not None and SEEN in marks and outside > marks[SEEN]:
        last, known = (isoformat(at // 1_000_000 * 1_000_000) for at in (outside, marks[SEEN]))
        found.append(Sign(words=f"nodes wrote to it until {last}, and it knows of nothing after {known}"))
    if any(name in marks and name in present and marks[name] != present[name] for name in COPIED):
        found.append(Sign(words="its tables were copied from another database, or restored from a dump"))
    elif TIMELINE in marks and 0 < marks[TIMELINE] < present.get(TIMELINE, 0):
        words = f"its server was promoted or restored (timeline {present[TIMELINE]}, was {marks[TIMELINE]})"
        found.append(Sign(words=f"{words} while no node ran", is_sure=False))
    return found


def _take_marks(present: Marks) -> Transaction[Instant]:
    for name, value in present.items():
        yield call("set_mark", name=name, value=value)
    yield call("drop_mark", name=LOST)
    rows = yield call("move_mark", name=SEEN)
    return rows[0]["value"] if rows else 0


def _raise_page(after: str) -> Transaction[tuple[str | None, int]]:
    last = (yield call("last_job_of_page", after=after, limit=PAGE))[0]["last"]
    if last is None:
        return None, 0
    rows = yield call("raise_attempts", after=after, last=last, by=ATTEMPTS_RAISED, below=ATTEMPT_MAX)
    return last, len(rows)


class StoreRestoreDetection:
    """The marks of one store, which identify where its rows came from."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._timeline = 0  # The last timeline on which nothing was missing.

    async def signs(self) -> list[Sign]:
        """Return the signs that this is a restored backup."""
        outside = await self._outside()  # First: it is never ahead of the marks, but both may move meanwhile.
        return signs(await self._marks(), await self._present(), outside)

    async def keep(self) -> None:
        """Store missing marks and update the moving ones; called by nodes that miss nothing."""
        outside = await self._outside()
        marks, present = await self._marks(), await self._present()
        if outside is not None and outside > marks.get(SEEN, outside):
            await self.note_lost()
        for name, value in present.items():
            if name not in marks:
                await self._driver.fetch(call("set_mark", name=name, value=value))
        await self._witness(marks.get(TIMELINE), present.get(TIMELINE, 0))
        await self._remember()

    async def _witness(self, marked: int | None, timeline: int) -> None:
        """Confirm a promotion if this node ran before it."""
        if self._timeline and self._timeline == marked and marked < timeline:
            await self._driver.fetch(call("set_mark", name=TIMELINE, value=timeline))
            marked = timeline
        if marked in (None, timeline):
            self._timeline = timeline

    async def note_lost(self) -> None:
        """Record that acknowledged data was lost, so that `doctor` reports it."""
        self._timeline = 0
        await self._driver.fetch(call("move_mark", name=LOST))

    async def recover(self) -> Recovered:
        """Raise tokens and attempts above all that were ever issued, and store the marks of this database."""
        token = (await self._driver.fetch(call("raise_tokens")))[0]["value"]
        raised, after = 0, ""
        while True:
            last, jobs = await self._driver.run(lambda after=after: _raise_page(after))  # type: ignore[misc]
            raised += jobs
            if last is None:
                break
            after = last
        present = await self._present()
        await self._write_outside(await self._driver.run(lambda: _take_marks(present)), is_new=True)
        return Recovered(token=token, jobs=raised)

    async def _marks(self) -> dict[str, int]:
        return {row["name"]: row["value"] for row in await self._driver.fetch(call("marks"))}

    async def _present(self) -> dict[str, int]:
        """Return the marks of this server; none where they cannot be read."""
        if self._driver.dialect_name == "sqlite":
            return {}
        try:
            row = (await self._driver.fetch(call("server_identity")))[0]
        except StoreError as error:
            if type(error) is StoreError:  # No right to read them: there is nothing to compare.
                return {}
            raise
        return {f"{PREFIX}{name}": row[name] for name in ("system", "database", "tables", "timeline") if row[name]}

    # --- outside

    @property
    def _file(self) -> str | None:
        driver = unwrapped(self._driver)
        return driver.path + BESIDE if isinstance(driver, SqliteDriver) and driver.path != ":memory:" else None

    async def _outside(self) -> Instant | None:
        return None if self._file is None else await asyncio.to_thread(_read, self._file)

    async def _remember(self) -> None:
        if self._file is not None:
            rows = await self._driver.fetch(call("move_mark", name=SEEN))
            if rows:
                await self._write_outside(rows[0]["value"])

    async def _write_outside(self, value: Instant, *, is_new: bool = False) -> None:
        if self._file is not None and (is_new or value > (await self._outside() or 0)):
            await asyncio.to_thread(_write, self._file, value)


def _read(file: str) -> Instant | None:
    try:
        with open(file, encoding="ascii") as text:
            found = text.read(32).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(found) if found.isdecimal() else None


def _write(file: str, value: Instant) -> None:
    """Write the file atomically; an error is ignored, since it only prevents the detection of a restore."""
    with suppress(OSError):
        number = os.open(f"{file}.new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, PRIVATE)
        try:
            os.write(number, f"{value}\n".encode())
        finally:
            os.close(number)
        os.replace(f"{file}.new", file)


class HeartbeatMemory:
    """The last acknowledged heartbeat of a node, to detect that the store lost it."""

    def __init__(self) -> None:
        self._node = ""
        self._started: Instant = 0
        self.seen: Instant = 0

    def seen_by(self, node: str) -> Instant:
        """Return the last acknowledged heartbeat of this node, or 0."""
        return self.seen if node == self._node else 0

    def is_lost(self, node: str, started: Instant, now: Instant) -> bool:
        """Return whether the row of this node was lost; rows are pruned after a day, which does not count."""
        return node == self._node and started != self._started and now - self.seen < DAY // 2

    def note(self, node: str, started: Instant, now: Instant) -> None:
        """Remember an acknowledged heartbeat."""
        self._node, self._started, self.seen = node, started, now

    def forget(self, node: str) -> None:
        """Forget the heartbeat of a node that leaves."""
        if node == self._node:
            self.note("", 0, 0)
