"""The contract of the port `Engine`, for every engine, on real servers."""

import asyncio
import itertools
import time
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from headway.adapters import consul, etcd
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND
from headway.core.ports import Engine
from headway.core.schedule_names import schedule_key
from tests.engines.conftest import (
    PATIENT_S,
    EngineServer,
    OpenEngine,
    Patience,
    acquire_eventually,
    frozen,
    make_server,
)
from tests.support.waiting import DEADLINE_S, async_wait_until

LEASE = 2 * SECOND
LONG = 600 * SECOND  # Longer than any test waits: a lock that is free earlier was released, not expired.
IN_TIME = 0.8  # A renewal after this part of a lease is in time for every engine.

ODD_NAMES = [
    "scheduler/0",
    "occurrence/nightly report/1700000000000000",
    "occurrence/ü~🚂/1",
    f"occurrence/{schedule_key('acme', 'nightly')}/1",
    "lock/a:b{c}d?e&f=g#h%2Fi",
    "lock//double/./dots/../x",
    "lock/" + "long" * 50,
]


async def _acquire(engine: Engine, name: str = "role", holder: str = "ada", duration: int = LONG) -> int:
    token = await engine.acquire(name, holder=holder, duration=duration)
    assert token is not None
    assert token > 0
    return token


async def _is_refused(engine: Engine, name: str = "role", holder: str = "bob") -> bool:
    return await engine.acquire(name, holder=holder, duration=LONG) is None


async def test_one_holder_at_a_time(engine: Engine, kind: str) -> None:
    assert engine.name == kind
    first = await _acquire(engine)
    assert await _is_refused(engine)
    assert await _acquire(engine) >= first  # The holder can acquire its own lock again.
    await _acquire(engine, "other", holder="bob")
    await engine.release(["role", "other"], holder="bob")  # Bob does not hold the first one, so it is left alone.
    assert await _is_refused(engine)
    await engine.release(["role", "unknown"], holder="ada")
    await engine.release(["role"], holder="ada")
    await engine.release([], holder="ada")
    await _acquire(engine, holder="bob")


async def test_tokens_increase_over_names_holders_and_releases(engine: Engine, url: str, open_at: OpenEngine) -> None:
    tokens, engines = [], itertools.cycle([engine, open_at(url, "another")])
    for number in range(3):
        for holder in ("ada", "bob"):
            at = next(engines)
            tokens += [await _acquire(at, holder=holder), await _acquire(at, f"name-{number}", holder=holder)]
            await at.release(["role", f"name-{number}"], holder=holder)
    assert tokens == sorted(set(tokens))


async def test_renewed_locks_are_kept_and_others_expire(engine: Engine, url: str, open_at: OpenEngine) -> None:
    """The lock of a dead holder is free after its lease; that of a live one is not, for as long as it is renewed."""
    other = open_at(url, "another")
    await _acquire(other, "foreign", holder="bob")
    deadline = time.monotonic() + DEADLINE_S
    for number in itertools.count(1):
        dead, alive = f"dead-{number}", f"alive-{number}"
        if await _outlives(engine, other, dead, alive):
            break
        assert time.monotonic() < deadline, "the machine is too slow for a lease of two seconds"
    assert await _is_refused(other, alive)
    assert await engine.renew([dead], holder="ada", duration=LEASE) == frozenset()
    assert await engine.renew([], holder="ada", duration=LEASE) == frozenset()
    await engine.release([dead], holder="ada")
    assert await _is_refused(engine, dead, holder="ada")


async def _outlives(engine: Engine, other: Engine, dead: str, alive: str) -> bool:
    """Renew one of two locks until another holder gets the other; return False if a renewal was too late to count.

    A lock may expire if more than its lease passes between sending a renewal and the answer to the next one.
    """
    sent = time.monotonic()
    await _acquire(engine, alive, duration=LEASE)
    began = time.monotonic()
    old = await _acquire(engine, dead, duration=LEASE)
    while True:
        last, sent = sent, time.monotonic()
        renewed = await engine.renew([alive, "foreign", "unknown"], holder="ada", duration=LEASE)
        if time.monotonic() - last > LEASE / SECOND * IN_TIME:
            return False
        assert renewed == {alive}
        new = await other.acquire(dead, holder="bob", duration=LONG)
        if new is not None:
            assert time.monotonic() - began > LEASE / SECOND * 0.5
            assert new > old
            # Renewed for longer, so that what follows does not depend on time.
            return await engine.renew([alive], holder="ada", duration=LONG) == {alive}
        await asyncio.sleep(0.05)


async def test_released_lock_notifies_waiters(
    engine: Engine, url: str, open_at: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the server's notification counts: no engine polls or resubscribes before the test has failed."""
    monkeypatch.setattr(etcd, "QUIET_S", LONG / SECOND)
    monkeypatch.setattr(consul, "QUIET_S", LONG / SECOND)
    monkeypatch.setattr(consul, "WAIT_S", LONG // SECOND - 60)
    waiting = open_at(url, "waiting")
    notified = asyncio.Event()
    await waiting.watch(notified.set)
    for turn in range(3):
        holder = f"holder-{turn}"
        await _acquire(engine, holder=holder)
        assert await _is_refused(waiting)
        if turn == 0:
            await async_wait_until(notified.is_set, "the subscription")
        # Earlier notifications have arrived by now. A later one would only hide that the next is missing.
        await asyncio.sleep(0.2)
        notified.clear()
        await engine.release(["role"], holder=holder)
        await async_wait_until(notified.is_set, "the waiter to be notified")
        await _acquire(waiting, holder="next")  # The lock is free when the notification arrives.
        await waiting.release(["role"], holder="next")


async def test_prefixes_are_separate_namespaces(server: EngineServer, open_at: OpenEngine) -> None:
    one, two = open_at(server.url(prefix="world-1/")), open_at(server.url(prefix="world-2/"))
    await _acquire(one)
    await _acquire(two, holder="bob")
    await two.release(["role"], holder="ada")
    assert await _is_refused(one)


async def test_one_of_many_concurrent_requests_wins(url: str, open_at: OpenEngine) -> None:
    engines = [open_at(url, f"node-{number}") for number in range(4)]
    tokens = []
    for _ in range(3):
        answers = await asyncio.gather(
            *(engines[number % 4].acquire("role", holder=f"holder-{number}", duration=LONG) for number in range(20))
        )
        [(winner, token)] = [(number, token) for number, token in enumerate(answers) if token is not None]
        tokens.append(token)
        await engines[winner % 4].release(["role"], holder=f"holder-{winner}")
    assert tokens == sorted(set(tokens))


async def test_many_locks_of_one_holder(engine: Engine) -> None:
    """As in lock mode: a hundred locks at once, renewed and released together."""
    names = [f"occurrence/schedule-{number}/1" for number in range(100)]
    tokens = await asyncio.gather(*(_acquire(engine, name) for name in names))
    assert len(set(tokens)) == 100
    assert await engine.renew(names, holder="ada", duration=LONG) == set(names)
    await engine.release(names[:50], holder="ada")
    assert await engine.renew(names, holder="ada", duration=LONG) == set(names[50:])


async def test_names_may_contain_any_characters(engine: Engine) -> None:
    for name in ODD_NAMES:
        await _acquire(engine, name, holder="ä/node 1?")
    for name in ODD_NAMES:
        assert await _is_refused(engine, name, holder="ä/node 2?")
    assert await engine.renew(ODD_NAMES, holder="ä/node 1?", duration=LONG) == set(ODD_NAMES)
    await engine.release(ODD_NAMES, holder="ä/node 1?")
    await _acquire(engine, ODD_NAMES[0], holder="bob")


async def _error_of(call: Awaitable[object]) -> str:
    """Return the error of an unavailable engine, which must not block forever."""
    with pytest.raises(EngineUnavailable) as caught:
        await asyncio.wait_for(call, DEADLINE_S)
    return str(caught.value)


async def test_unavailable_server_is_reported_and_reconnected(
    kind: str, open_at: OpenEngine, patience: Patience
) -> None:
    """Frozen, killed and restarted: no call hangs, and no process has to be restarted."""
    with make_server(kind) as server:
        engine = open_at(server.url())
        notified = asyncio.Event()
        await engine.watch(notified.set)
        await _acquire(engine)
        patience(1.0)
        with frozen(server.pid):
            assert kind in await _error_of(engine.renew(["role"], holder="ada", duration=LONG))
        patience(PATIENT_S)
        await acquire_eventually(engine, "after", "ada", LONG)
        server.kill()
        patience(1.0)
        for call in (
            engine.acquire("role", holder="ada", duration=LONG),
            engine.renew(["role"], holder="ada", duration=LONG),
            engine.release(["role"], holder="ada"),
        ):
            assert kind in await _error_of(call)
        server.start()  # A starting server may accept a connection and never answer on it.
        patience(PATIENT_S)
        await acquire_eventually(engine, "after", "ada", LONG)
        other = open_at(server.url(), "another")
        assert await _is_refused(other, "after")

        async def is_notified() -> bool:
            notified.clear()
            await acquire_eventually(other, "told", "bob", LONG)
            await other.release(["told"], holder="bob")
            # The lock may have been released before the subscription; then it is tried again.
            with suppress(TimeoutError):
                await asyncio.wait_for(notified.wait(), 1.0)  # short: retried.
            return notified.is_set()

        await async_wait_until(is_notified, "the new subscription")


async def test_closing_twice_is_allowed(engine: Engine) -> None:
    await engine.watch(lambda: None)
    await _acquire(engine)
    await engine.close()
    await engine.close()
