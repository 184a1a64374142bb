"""Locks in virtual worlds, where users test tasks that need them."""

import asyncio
from pathlib import Path

import pytest

from headway import Headway, LeaseLost, LockHeld
from headway.testing import virtual

START = "2027-03-27T00:00Z"


@pytest.fixture
def app(tmp_path: Path) -> Headway:
    return Headway(f"sqlite:///{tmp_path}/never.db", name="shop")


def test_tasks_wait_for_each_other_in_virtual_time(app: Headway) -> None:
    diary: list[tuple[str, int]] = []

    @app.task
    async def write(number: int) -> None:
        async with app.lock("stock", ttl="1s") as lock:
            diary.append(("in", lock.token))
            await asyncio.sleep(60)  # Long enough for hundreds of renewals.
            lock.check()
            diary.append(("out", lock.token))

    with virtual(app, START):
        jobs = [write.enqueue_sync(number) for number in range(3)]
        for job in jobs:
            job.wait_sync(timeout="2h")
    tokens = sorted({token for _, token in diary})
    assert len(tokens) == 3
    assert diary == [(way, token) for token in tokens for way in ("in", "out")]


def test_synchronous_code_can_use_locks(app: Headway) -> None:
    ended: list[int] = []

    @app.task
    def count() -> None:
        with app.lock_sync("stock", blocking=False) as lock:
            ended.append(lock.token)

    with virtual(app, START) as world:
        with app.lock_sync("stock", ttl="30s") as lock:
            with pytest.raises(LockHeld):
                app.lock_sync("stock", timeout="1s").acquire()
            lock.check()
        count.enqueue_sync().wait_sync()
        assert ended
        assert ended[0] > 1
        late = app.lock_sync("stock", ttl="30s").acquire()
        world.play(60)
        with pytest.raises(LeaseLost, match="not renewed in time"):
            late.check()
