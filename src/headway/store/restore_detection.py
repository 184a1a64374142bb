"""Notices that a database is older than what it has acknowledged, and does what has to be done then.

A restored backup looks like any other database from inside. What tells it apart is what did not go back with it:

    a living node       its last beat was acknowledged and is gone, or the row has an older one
    PostgreSQL          says which server, database and table these are, and on which timeline; the rows name others
    a SQLite file       has a small file beside it with the time of the last beat; the rows know an older one

A promotion changes the timeline, too. A node that lives through one and misses nothing says so; where no node did, a
person has to say it. `recover` raises all tokens above those that were ever given, and takes the marks of today.
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
    """Why a database seems to be a restored one; `is_sure` unless a mere fail-over could be the reason."""

    words: str
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What was done after a restore: the token up to which none is given again, and the jobs whose attempts went up."""

    token: int
    jobs: int


def signs(marks: Marks, present: Marks, outside: Instant | None) -> list[Sign]:
    """Compare what the rows say of their origin with where they are, and with what is known outside."""
    found = []
    if LOST in marks:
        when = isoformat(marks[LOST] // 1_000_000 * 1_000_000)
        found.append(Sign(words=f"a node found at {when} that the store had forgotten what it acknowledged before"))
    if outside is not None and SEEN in marks and outside > marks[SEEN]:
        last, known = (isoformat(at // 1_000_000 * 1_000_000) for at in (outside, marks[SEEN]))
        found.append(Sign(words=f"nodes wrote to it until {last}, and it knows of nothing after {known}"))
    if any(name in marks and name in present and marks[name] != present[name] for name in COPIED):
        found.append(Sign(words="its tables were copied from another database, or made anew from a dump"))
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


class StoreOrigin:
    """Keeps the marks, compares them, and takes new ones after a restore."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._timeline = 0  # The last one under which nothing was missing.

    async def signs(self) -> list[Sign]:
        """Say why this seems to be a restored backup; nothing when it does not."""
        outside = await self._outside()  # First: it is never ahead of the marks, but both may move meanwhile.
        return signs(await self._marks(), await self._present(), outside)

    async def keep(self) -> None:
        """Take marks where there are none, and move those that move; called by nodes that miss nothing of their own."""
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
        """Say that nothing is missing after a promotion, if we were there before it."""
        if self._timeline and self._timeline == marked and marked < timeline:
            await self._driver.fetch(call("set_mark", name=TIMELINE, value=timeline))
            marked = timeline
        if marked in (None, timeline):
            self._timeline = timeline

    async def note_lost(self) -> None:
        """Keep that something acknowledged was lost, for people to see."""
        self._timeline = 0
        await self._driver.fetch(call("move_mark", name=LOST))

    async def recover(self) -> Recovered:
        """Give no token and no attempt again that was ever given, and take the marks of this database."""
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
        """Return the marks of this server; none where it does not say."""
        if self._driver.dialect_name == "sqlite":
            return {}
        try:
            row = (await self._driver.fetch(call("server_identity")))[0]
        except StoreError as error:
            if type(error) is StoreError:  # It does not let us ask; then there is nothing to compare.
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
    """Write at once or not at all; what keeps it from being written costs no more than the notice of a restore."""
    with suppress(OSError):
        number = os.open(f"{file}.new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, PRIVATE)
        try:
            os.write(number, f"{value}\n".encode())
        finally:
            os.close(number)
        os.replace(f"{file}.new", file)


class Memory:
    """What a node remembers of its own beats, to notice when the store does not."""

    def __init__(self) -> None:
        self._node = ""
        self._started: Instant = 0
        self.seen: Instant = 0

    def seen_by(self, node: str) -> Instant:
        """Return the last beat of this node that was acknowledged; 0 when it knows of none."""
        return self.seen if node == self._node else 0

    def is_lost(self, node: str, started: Instant, now: Instant) -> bool:
        """Say whether the row of this node was gone and had to be made anew; one that is a day old is cleared away."""
        return node == self._node and started != self._started and now - self.seen < DAY // 2

    def note(self, node: str, started: Instant, now: Instant) -> None:
        """Remember an acknowledged beat."""
        self._node, self._started, self.seen = node, started, now

    def forget(self, node: str) -> None:
        """The node leaves."""
        if node == self._node:
            self.note("", 0, 0)
