"""The clock that follows the store's, sortable ids, and the loop that runs every tick."""

import asyncio
import contextlib
import random
import re

import pytest

from headway.core.clock import RETRY_REST_S_MAX, RETRY_REST_S_MIN, Clock, Loop, cancel_until_done
from headway.core.errors import StoreUnavailable
from headway.core.events import ClockStepped, EngineEvent, TickFailed, subscribed
from headway.core.instants import SECOND, Instant
from tests.simulation.virtual_loop import virtual

HOUR = 3600 * SECOND


class Hands:
    """Time that a test advances by hand."""

    def __init__(self) -> None:
        self.monotonic_s = 1_000.0
        self.wall_step: Instant = 0
        self.store_step: Instant = 0
        self.events: list[EngineEvent] = []

    @property
    def store(self) -> Instant:
        return 5_000_000 * SECOND + round(self.monotonic_s * SECOND) + self.store_step

    @property
    def wall(self) -> Instant:
        return 5_000_000 * SECOND + round(self.monotonic_s * SECOND) + self.wall_step

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.monotonic_s, wall=lambda: self.wall, chance=random.Random(1), node="n")

    def pass_s(self, seconds: float) -> None:
        self.monotonic_s += seconds

    def ask(self, clock: Clock, *, there_s: float, back_s: float) -> None:
        """Ask the store for its time, with a delay for the request and the response."""
        sent = self.monotonic_s
        self.pass_s(there_s)
        told = self.store
        self.pass_s(back_s)
        with subscribed(self.events.append):
            clock.observe(told, sent=sent)


def test_wall_clock_is_used_before_the_first_sync() -> None:
    hands = Hands()
    assert hands.clock().now() == hands.wall


def test_estimate_is_never_ahead_of_the_store() -> None:
    hands, chance = Hands(), random.Random(7)
    clock = hands.clock()
    for _ in range(500):
        there_s, back_s = chance.choice((0, 0.001, 0.2, 5)), chance.choice((0, 0.001, 0.2, 5))
        hands.ask(clock, there_s=there_s, back_s=back_s)
        assert hands.store - (there_s + back_s) * SECOND - 1 <= clock.now() <= hands.store
        hands.pass_s(chance.uniform(0, 10))
        assert clock.now() <= hands.store


def test_slow_response_does_not_worsen_the_estimate() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.ask(clock, there_s=0.0, back_s=0.0)
    hands.ask(clock, there_s=4.0, back_s=4.0)
    assert clock.now() == hands.store
    assert not hands.events


def test_faster_response_improves_the_estimate() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.ask(clock, there_s=0.0, back_s=0.8)
    assert clock.now() == hands.store - round(0.8 * SECOND)
    hands.ask(clock, there_s=0.8, back_s=0.0)
    assert clock.now() == hands.store
    assert not hands.events  # Less than a second is not reported as a step.


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_wall_clock_step_is_ignored(step: int) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.ask(clock, there_s=0.0, back_s=0.0)
    hands.wall_step += step
    assert clock.now() == hands.store
    assert clock.skew_s() == step / SECOND
    hands.ask(clock, there_s=0.01, back_s=0.01)
    assert clock.now() == hands.store
    assert not hands.events


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_store_clock_step_is_followed_and_reported(step: int) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.ask(clock, there_s=0.0, back_s=0.0)
    hands.store_step += step
    hands.ask(clock, there_s=0.0, back_s=0.0)
    assert clock.now() == hands.store
    (event,) = hands.events
    assert isinstance(event, ClockStepped)
    assert event.by_s == step / SECOND


def test_ids_of_one_process_are_unique_and_sort_by_age() -> None:
    hands, chance = Hands(), random.Random(3)
    clock, ids = hands.clock(), []
    for _ in range(5_000):
        ids.append(clock.new_id("job"))
        hands.pass_s(chance.choice((0, 0, 0.0001, 0.002)))
        if chance.random() < 0.01:
            hands.wall_step -= chance.choice((1, 60)) * SECOND  # Not synced yet: the wall clock counts.
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == ids
    assert all(re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", id_) for id_ in ids)


def test_ids_of_two_processes_sort_by_store_time() -> None:
    hands = Hands()
    first, second = hands.clock(), hands.clock()
    second.chance = random.Random(2)
    for clock in (first, second):
        hands.ask(clock, there_s=0.0, back_s=0.0)
    hands.wall_step += HOUR
    earlier = first.new_id("job")
    hands.pass_s(0.002)
    assert earlier < second.new_id("job")


@virtual
async def test_rest_ends_at_its_timeout_or_signal() -> None:
    loop = asyncio.get_running_loop()
    clock, wake = Clock(monotonic=loop.time), asyncio.Event()
    await clock.rest(3.0, wake)
    assert loop.time() == 3.0
    loop.call_later(1.0, wake.set)
    await clock.rest(3.0, wake)
    assert loop.time() == 4.0


class Ticks:
    """A tick that plays a script of results, and records when it was called."""

    def __init__(self, *answers: float | Exception, takes_s: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.times: list[float] = []
        self._answers = list(answers)
        self._takes_s = takes_s
        self.clock = Clock(monotonic=self.loop.time, chance=random.Random(5), node="n")
        self.running = Loop("test", self.tick, clock=self.clock, rest_s_max=60.0)

    async def tick(self) -> float:
        self.times.append(self.loop.time())
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        answer = self._answers.pop(0) if self._answers else 1_000.0
        if not self._answers:
            self.running.stop()
        if isinstance(answer, Exception):
            raise answer
        return answer


@virtual
async def test_loop_rests_as_long_as_the_tick_says_up_to_the_maximum() -> None:
    ticks = Ticks(1.5, 0.0, 1_000.0, 0.0)
    await ticks.running.run()
    assert ticks.times == [0.0, 1.5, 1.5, 61.5]


@virtual
async def test_signal_ends_the_rest() -> None:
    ticks = Ticks(50.0, 0.0)
    ticks.loop.call_later(2.0, ticks.running.wake)
    await ticks.running.run()
    assert ticks.times == [0.0, 2.0]


@virtual
async def test_signal_during_a_tick_is_not_lost() -> None:
    ticks = Ticks(50.0, 0.0, takes_s=3.0)
    ticks.loop.call_later(2.0, ticks.running.wake)
    await ticks.running.run()
    assert ticks.times == [0.0, 3.0]


@virtual
async def test_signals_are_coalesced() -> None:
    ticks = Ticks(50.0, 50.0, 0.0, takes_s=3.0)
    for at in (0.5, 1.0, 1.5):
        ticks.loop.call_later(at, ticks.running.wake)
    await ticks.running.run()
    assert ticks.times == [0.0, 3.0, 56.0]


@virtual
async def test_loop_backs_off_with_jitter_while_the_store_is_unavailable() -> None:
    away: list[Exception] = [StoreUnavailable("away") for _ in range(40)]
    ticks, events = Ticks(*away, 0.0), list[EngineEvent]()
    with subscribed(events.append):
        await ticks.running.run()
    rests = [after - before for before, after in zip(ticks.times, ticks.times[1:], strict=False)]
    assert len(rests) == 40
    assert rests[0] <= RETRY_REST_S_MIN * 2
    assert all(RETRY_REST_S_MIN / 2 <= rest <= RETRY_REST_S_MAX for rest in rests)
    assert min(rests[10:]) >= RETRY_REST_S_MAX / 2 - 1e-6
    assert len({round(rest, 6) for rest in rests[10:]}) > 20  # Jitter: not all nodes at once.
    assert [type(event) for event in events] == [TickFailed] * 40


@virtual
async def test_success_resets_the_backoff() -> None:
    away: list[float | Exception] = [StoreUnavailable("away") for _ in range(20)]
    ticks = Ticks(*away, 0.0, StoreUnavailable("away"), 0.0)
    await ticks.running.run()
    assert ticks.times[-1] - ticks.times[-2] <= RETRY_REST_S_MIN * 2


@virtual
async def test_any_other_error_ends_the_loop() -> None:
    ticks = Ticks(0.0, ZeroDivisionError("a bug"), 0.0)
    with pytest.raises(ZeroDivisionError):
        await ticks.running.run()
    assert len(ticks.times) == 2


@virtual
async def test_stop_ends_a_rest_at_once_and_a_tick_when_it_is_done() -> None:
    resting = Ticks(50.0, 50.0, 50.0)
    resting.loop.call_later(2.0, resting.running.stop)
    await resting.running.run()
    assert resting.loop.time() == 2.0
    ticking = Ticks(50.0, 50.0, 50.0, takes_s=5.0)
    ticking.loop.call_later(1.0, ticking.running.stop)
    await ticking.running.run()
    assert resting.loop.time() == 7.0
    assert len(ticking.times) == 1


@virtual
async def test_silence_counts_from_the_last_finished_tick() -> None:
    away: list[Exception] = [StoreUnavailable("away") for _ in range(5)]
    ticks = Ticks(1.0, *away, 1_000.0)
    await ticks.running.run()
    assert ticks.running.idle_s() == 0.0  # The last tick has just succeeded.
    failing = Ticks(1.0, *away)
    began = failing.loop.time()
    await failing.running.run()
    assert failing.running.idle_s() == pytest.approx(failing.loop.time() - began)


@virtual
async def test_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def deaf(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(asyncio.CancelledError):  # Some clients do this while connecting.
                await asyncio.sleep(3_600)

    tasks = [asyncio.ensure_future(deaf(times)) for times in (0, 1, 5)]
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await cancel_until_done(*tasks)
    assert all(task.done() for task in tasks)
    assert asyncio.get_running_loop().time() - began < 1
    await cancel_until_done()
