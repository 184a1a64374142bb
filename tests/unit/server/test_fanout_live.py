"""Live reports of jobs between stored versions: in order, once, bounded, and without gaps in the log."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.instants import HOUR, SECOND
from headway.core.jobs import NewJob, Report
from headway.core.ports import Latest
from headway.server import fanout, live_fanout
from headway.server.fanout import Fanout
from headway.server.followers import Follower, StreamEvent, StreamPosition
from headway.server.routes import streams as follow
from headway.store import Store
from tests.simulation.stage import Stage
from tests.simulation.virtual_loop import virtual
from tests.support.claiming import claim


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every feed on for the whole test: on SQLite the feed expires by the system clock."""
    monkeypatch.setattr(fanout, "FOLLOW_FOR", HOUR)


class Words:
    """The port `LiveView` without a server."""

    name = "words"
    trouble: str | None = None

    def __init__(self) -> None:
        self.followed: list[str] = []
        self.say: Callable[[Latest, bool], None] = lambda _latest, _is_of_everything: None

    async def latest(self, job_ids: Collection[str]) -> dict[str, Latest]:
        return {}

    def listen(self, hear: Callable[[Latest, bool], None]) -> None:
        self.say = hear

    async def follow(self, job_id: str) -> None:
        self.followed.append(job_id)

    def leave(self, job_id: str) -> None:
        self.followed.remove(job_id)

    async def close(self) -> None:
        """Do nothing."""


@dataclass
class Room:
    """A running job and its followers."""

    store: Store
    fanout: Fanout
    words: Words
    job_id: str
    call: Any
    heard: dict[Follower, list[StreamEvent]] = field(default_factory=dict)
    serial: int = 0

    async def follow(self, known: StreamPosition | None = None) -> Follower:
        follower, first = await follow.follow_job(self.fanout, self.call, self.job_id, known)
        self.heard[follower] = first
        return follower

    def say(self, progress: int, after: int = 0, lines: Collection[int] = ()) -> None:
        self.serial += 1
        texts = tuple((at, "log", f"line {at}") for at in lines)
        self.words.say(self._latest(progress, after=after, lines=texts), False)

    def say_to_all(self, progress: int) -> None:
        self.serial += 1
        self.words.say(self._latest(progress), True)

    def _latest(self, progress: int, **more: Any) -> Latest:
        detail = json.dumps({"serial": self.serial})
        return Latest(job_id=self.job_id, attempt=1, serial=self.serial, at=1, progress=progress, detail=detail, **more)

    async def keep(self, progress: int, lines: Collection[int] = ()) -> None:
        texts = tuple((at, "log", f"line {at}") for at in lines)
        detail = json.dumps({"serial": self.serial})
        await self.store.work.report(
            [Report(job_id=self.job_id, attempt=1, progress=progress, detail=detail, lines=texts)]
        )
        await self.fanout.tick()

    async def told(self, follower: Follower) -> list[StreamEvent]:
        await asyncio.sleep(2 * live_fanout.LIVE_EVERY_S)
        self.heard[follower] += follower.take()
        return self.heard[follower]

    async def lines(self, follower: Follower) -> list[str]:
        told = [json.loads(event.data)["lines"] for event in await self.told(follower) if event.kind == "log"]
        return [line["line"] for lines in told for line in lines]

    async def progress(self, follower: Follower) -> list[int]:
        return [json.loads(event.data)["progress"] for event in await self.told(follower) if event.kind != "log"]


@asynccontextmanager
async def room() -> AsyncIterator[Room]:
    async with Stage() as stage:
        seat = stage.seat("test")
        store, clock, words = seat.store, seat.clock, Words()
        made = Fanout(store.feed, clock, words)
        services = SimpleNamespace(fanout=made, feed=store.feed, auth=None, is_closing=False)
        [row] = await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="work", tenant="acme")])
        await claim(store, "default", node="node_1", lease=60 * SECOND, limit=1)
        yield Room(store, made, words, row.id, SimpleNamespace(services=services, clock=clock))


def named(*lines: int) -> list[str]:
    return [f"line {at}" for at in lines]


@virtual
async def test_lines_are_sent_live_only_without_a_gap() -> None:
    async with room() as it:
        first = await it.follow()
        it.say(1, 0, (1, 2))
        assert await it.lines(first) == named(1, 2)
        second = await it.follow()
        assert await it.lines(second) == named(1, 2), "a late follower gets the buffered reports"
        it.say(2, 3, (4, 5))  # The report with line 3 was lost.
        assert await it.lines(first) == named(1, 2), "nothing is sent after a gap"
        third = await it.follow()
        assert await it.lines(third) == []
        await it.keep(2, (1, 2, 3, 4))
        for follower in (first, second, third):
            assert await it.lines(follower) == named(1, 2, 3, 4, 5), (
                "the store fills the gap, and live reports continue"
            )
        it.say(3, 5, (6,))
        await it.keep(3, (5, 6))
        for follower in (first, second, third):
            assert await it.lines(follower) == named(1, 2, 3, 4, 5, 6)


@virtual
async def test_resumed_follower_gets_no_line_twice() -> None:
    async with room() as it:
        first = await it.follow()
        it.say(1, 0, (1, 2))
        places = [event.id for event in await it.told(first) if event.id is not None]
        assert places[-1] == f"{json.loads(it.heard[first][0].data)['version']}.1.2"
        it.fanout.leave(first)
        assert it.words.followed == []
        await it.keep(1, (1, 2, 3))
        again = await it.follow(follow.place_of(places[-1]))
        it.say(2, 3, (4,))
        assert await it.lines(again) == named(3, 4)
        assert await it.progress(again) == [1, 2]
        plain = await it.follow(follow.place_of(places[0]))
        assert await it.lines(plain) == named(1, 2, 3, 4)


@virtual
async def test_progress_never_goes_back() -> None:
    async with room() as it:
        follower = await it.follow()
        it.say(10)
        it.say(20)
        assert (await it.progress(follower))[-1] == 20
        it.serial -= 1  # The stored version is older than the last live report.
        await it.keep(10)
        it.serial += 1
        it.say(30)
        told = await it.progress(follower)
        assert told == sorted(told)
        assert told[-1] == 30
        numbers = [(event.version, event.live) for event in it.heard[follower] if event.version]
        assert numbers == sorted(set(numbers))
        assert [event.id for event in it.heard[follower] if event.kind == "progress"].count(None) >= 2


@virtual
async def test_flood_of_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with room() as it:
        follower = await it.follow()
        for number in range(50):
            it.say(number)
        assert await it.progress(follower) == [0, 0, 49]
        monkeypatch.setattr(live_fanout, "LIVE_PER_SECOND_MAX", 1)
        it.say(60)
        it.say(70)
        assert await it.progress(follower) == [0, 0, 49], "with many followers each gets events less often"
        await asyncio.sleep(1.0)
        assert await it.progress(follower) == [0, 0, 49, 70]


@virtual
async def test_follower_of_all_jobs_gets_only_permitted_jobs() -> None:
    async with room() as it:
        mine, _ = await it.fanout.follow_everything(lambda job: job.tenant == "acme")
        other, _ = await it.fanout.follow_everything(lambda job: job.tenant == "globex")
        assert it.words.followed == ["*"]
        it.say_to_all(10)
        await it.fanout.tick()  # Loads the job, which was not cached yet.
        it.say_to_all(20)
        it.words.say(Latest(job_id="job_none", attempt=1, serial=1, at=1, progress=50), True)
        await it.fanout.tick()
        told = [json.loads(event.data) for event in mine.take()]
        assert [(job["progress"], job["live"]) for job in told] == [(10, 1), (20, 2)]
        assert other.take() == []
        for follower in (mine, other):
            it.fanout.leave(follower)
        assert (it.words.followed, it.fanout.count()) == ([], 0)
