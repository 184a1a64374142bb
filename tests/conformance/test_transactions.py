"""The contract of a driver's transactions: atomic, cancellable, and without effect on the next one."""

import asyncio
import contextlib

import pytest

from headway.core.errors import HeadwayError, SchemaMismatch
from headway.core.instants import MINUTE
from headway.store.transaction import ConstraintViolated, StatementCall, Transaction, as_json, call
from tests.conformance.arrange import enqueue, new_job, spec
from tests.conformance.backend import Backend
from tests.support.waiting import DEADLINE_S, async_wait_until


def _lease(name: str) -> StatementCall:
    leases = as_json([{"name": name, "token": 1}])
    return call("acquire", leases=leases, holder="n", holder_name="", duration=MINUTE)


async def _names(backend: Backend) -> list[str]:
    return [row["name"] for row in await backend.sql("select name from headway_leases order by name")]


async def test_transaction_returns_the_value_of_its_generator(backend: Backend) -> None:
    def begin() -> Transaction[int]:
        first = yield _lease("a")
        second = yield _lease("b")
        return len(first) + len(second)

    assert await backend.store.driver.run(begin) == 2
    assert await _names(backend) == ["a", "b"]


class Mine(Exception):
    """An error raised by the transaction itself."""


@pytest.mark.parametrize("error", [Mine("x"), HeadwayError("x"), ValueError("x"), KeyError("x")])
async def test_error_in_a_transaction_rolls_back(backend: Backend, error: Exception) -> None:
    def begin() -> Transaction[None]:
        yield _lease("a")
        raise error

    for _ in range(6):  # More often than there are connections: none of them leaks.
        with pytest.raises(type(error)):
            await backend.store.driver.run(begin)
    assert await _names(backend) == []
    await backend.store.driver.fetch(_lease("b"))
    assert await _names(backend) == ["b"]


async def test_error_before_the_first_statement(backend: Backend) -> None:
    def begin() -> Transaction[None]:
        names: list[str] = []
        for name in names:
            yield _lease(name)
        raise Mine

    with pytest.raises(Mine):
        await backend.store.driver.run(begin)
    await backend.store.driver.fetch(_lease("b"))


async def test_constraint_violation_rolls_back(backend: Backend) -> None:
    await enqueue(backend.store, schedule="s", exclusive=True, id="job_1")

    def begin() -> Transaction[None]:
        yield _lease("a")
        yield call("revision_add", revisions=as_json([_revision(), _revision()]))

    for _ in range(6):
        with pytest.raises(ConstraintViolated):
            await backend.store.driver.run(begin)
    assert await _names(backend) == []
    assert await backend.count("headway_revisions") == 0


def _revision() -> dict[str, object]:
    return {"schedule": "s", "revision": 1, "effective_at": 0, "definition": None, "author": ""}


async def test_generator_is_always_closed(backend: Backend) -> None:
    closed = []

    def begin() -> Transaction[None]:
        try:
            yield call("schedule", tenant="default", name="x")
            raise Mine
        finally:
            closed.append(True)

    with pytest.raises(Mine):
        await backend.store.driver.run(begin)
    assert closed == [True]


async def test_cancelled_task_rolls_back(shared: Backend) -> None:
    """Cancel at different moments, more often than there are connections: nothing is written, nothing hangs."""
    other = await shared.another()
    await shared.store.schedules.put("s", spec("1d"))
    for number in range(12):
        steps: list[int] = []

        def begin(steps: list[int] = steps, number: int = number) -> Transaction[None]:
            for step in range(500):
                steps.append(step)
                yield _lease(f"lease-{number}-{step}")
            raise AssertionError("not cancelled")

        task = asyncio.create_task(shared.store.driver.run(begin))
        await async_wait_until(lambda: len(steps) > number, "some steps", every_s=0)  # noqa: B023
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, AssertionError):
            await task
        async with asyncio.timeout(DEADLINE_S):
            await other.schedules.put("s", spec("1d", priority=number + 1))
            await shared.store.schedules.put("s", spec("1d", priority=-number - 1))
    assert await _names(shared) == []


async def test_many_transactions_share_few_connections(backend: Backend) -> None:
    await asyncio.gather(*(enqueue(backend.store, queue=f"q{number}") for number in range(60)))
    assert await backend.count("headway_jobs") == 60


async def test_missing_table(backend: Backend) -> None:
    await backend.sql("alter table headway_nodes rename to headway_nodes_gone")
    try:
        with pytest.raises(SchemaMismatch, match="headway migrate"):
            await backend.store.nodes.alive(MINUTE)
    finally:
        await backend.sql("alter table headway_nodes_gone rename to headway_nodes")
    assert await backend.store.nodes.alive(MINUTE) == []


async def test_time_is_constant_within_a_statement_and_advances_between_two(backend: Backend) -> None:
    rows = await backend.store.queue.enqueue([new_job(priority=number) for number in range(500)])
    assert len({row.created_at for row in rows}) == 1

    def begin() -> Transaction[tuple[int, int]]:
        first = (yield call("time"))[0]["now"]
        for _ in range(50):
            last = (yield call("time"))[0]["now"]
        return first, last

    first, last = await backend.store.driver.run(begin)
    assert first < last
