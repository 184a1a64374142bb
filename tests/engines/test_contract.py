"""What every engine promises, whichever it is: the port `Engine`, sentence by sentence, on real servers."""

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
from tests.engines.conftest import PATIENT_S, EngineServer, OpenEngine, Patience, frozen, make_server, take_in_the_end
from tests.support.waiting import DEADLINE_S, async_wait_until

LEASE = 2 * SECOND
LONG = 600 * SECOND  # Longer than any test waits: what comes free earlier did not run out.
IN_TIME = 0.8  # Who renews after this part of a lease is not too late for any engine.

ODD_NAMES = [
    "scheduler/0",
    "occurrence/nightly report/1700000000000000",
    "occurrence/ü~🚂/1",
    f"occurrence/{schedule_key('acme', 'nightly')}/1",
    "lock/a:b{c}d?e&f=g#h%2Fi",
    "lock//double/./dots/../x",
    "lock/" + "long" * 50,
]


async def _take(engine: Engine, name: str = "role", holder: str = "ada", duration: int = LONG) -> int:
    token = await engine.acquire(name, holder=holder, duration=duration)
    assert token is not None
    assert token > 0
    return token


async def _is_refused(engine: Engine, name: str = "role", holder: str = "bob") -> bool:
    return await engine.acquire(name, holder=holder, duration=LONG) is None


async def test_one_holder_at_a_time(engine: Engine, kind: str) -> None:
    assert engine.name == kind
    first = await _take(engine)
    assert await _is_refused(engine)
    assert await _take(engine) >= first  # One's own lock is taken again.
    await _take(engine, "other", holder="bob")
    await engine.release(["role", "other"], holder="bob")  # The first is not his, and is left alone.
    assert await _is_refused(engine)
    await engine.release(["role", "unknown"], holder="ada")
    await engine.release(["role"], holder="ada")
    await engine.release([], holder="ada")
    await _take(engine, holder="bob")


async def test_tokens_grow_over_names_holders_and_releases(engine: Engine, url: str, open_at: OpenEngine) -> None:
    tokens, engines = [], itertools.cycle([engine, open_at(url, "another")])
    for number in range(3):
        for holder in ("ada", "bob"):
            at = next(engines)
            tokens += [await _take(at, holder=holder), await _take(at, f"name-{number}", holder=holder)]
            await at.release(["role", f"name-{number}"], holder=holder)
    assert tokens == sorted(set(tokens))


async def test_what_is_renewed_is_kept_and_what_is_not_runs_out(engine: Engine, url: str, open_at: OpenEngine) -> None:
    """A dead holder's lock is free after its lease; a living one's is not, for as long as it is renewed."""
    other = open_at(url, "another")
    await _take(other, "foreign", holder="bob")
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
    """Renew one of two locks until another holder has the other one; False if a renewal came too late to be promised.

    A lock may run out when more than its lease has passed between the sending of a renewal and the next answer.
    """
    sent = time.monotonic()
    await _take(engine, alive, duration=LEASE)
    began = time.monotonic()
    old = await _take(engine, dead, duration=LEASE)
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
            # It is renewed for longer, so that what comes next does not depend on time.
            return await engine.renew([alive], holder="ada", duration=LONG) == {alive}
        await asyncio.sleep(0.05)


async def test_a_lock_that_is_given_back_wakes_who_waits(
    engine: Engine, url: str, open_at: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the server's word wakes: nobody asks again or listens anew before the test has failed."""
    monkeypatch.setattr(etcd, "QUIET_S", LONG / SECOND)
    monkeypatch.setattr(consul, "QUIET_S", LONG / SECOND)
    monkeypatch.setattr(consul, "WAIT_S", LONG // SECOND - 60)
    waiting = open_at(url, "waiting")
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    for turn in range(3):
        holder = f"holder-{turn}"
        await _take(engine, holder=holder)
        assert await _is_refused(waiting)
        if turn == 0:
            await async_wait_until(woken.is_set, "the subscription to stand")
        # What was before is told now. Were it told later, it would only hide that the next turn is not.
        await asyncio.sleep(0.2)
        woken.clear()
        await engine.release(["role"], holder=holder)
        await async_wait_until(woken.is_set, "the one who waits to be woken")
        await _take(waiting, holder="next")  # It is free when one is woken.
        await waiting.release(["role"], holder="next")


async def test_prefixes_are_worlds_of_their_own(server: EngineServer, open_at: OpenEngine) -> None:
    one, two = open_at(server.url(prefix="world-1/")), open_at(server.url(prefix="world-2/"))
    await _take(one)
    await _take(two, holder="bob")
    await two.release(["role"], holder="ada")
    assert await _is_refused(one)


async def test_many_at_once_have_one_winner(url: str, open_at: OpenEngine) -> None:
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
    """As in lock mode: a hundred locks at once, renewed and given back together."""
    names = [f"occurrence/schedule-{number}/1" for number in range(100)]
    tokens = await asyncio.gather(*(_take(engine, name) for name in names))
    assert len(set(tokens)) == 100
    assert await engine.renew(names, holder="ada", duration=LONG) == set(names)
    await engine.release(names[:50], holder="ada")
    assert await engine.renew(names, holder="ada", duration=LONG) == set(names[50:])


async def test_names_may_have_any_characters(engine: Engine) -> None:
    for name in ODD_NAMES:
        await _take(engine, name, holder="ä/node 1?")
    for name in ODD_NAMES:
        assert await _is_refused(engine, name, holder="ä/node 2?")
    assert await engine.renew(ODD_NAMES, holder="ä/node 1?", duration=LONG) == set(ODD_NAMES)
    await engine.release(ODD_NAMES, holder="ä/node 1?")
    await _take(engine, ODD_NAMES[0], holder="bob")


async def _refusal(call: Awaitable[object]) -> str:
    """Return what an engine says that is away; it must not let one wait for it for ever."""
    with pytest.raises(EngineUnavailable) as caught:
        await asyncio.wait_for(call, DEADLINE_S)
    return str(caught.value)


async def test_a_server_that_is_away_is_said_to_be_and_found_again(
    kind: str, open_at: OpenEngine, patience: Patience
) -> None:
    """Frozen, then killed, then back: nobody hangs, and nobody has to be restarted."""
    with make_server(kind) as server:
        engine = open_at(server.url())
        woken = asyncio.Event()
        await engine.watch(woken.set)
        await _take(engine)
        patience(1.0)
        with frozen(server.pid):
            assert kind in await _refusal(engine.renew(["role"], holder="ada", duration=LONG))
        patience(PATIENT_S)
        await take_in_the_end(engine, "after", "ada", LONG)
        server.kill()
        patience(1.0)
        for call in (
            engine.acquire("role", holder="ada", duration=LONG),
            engine.renew(["role"], holder="ada", duration=LONG),
            engine.release(["role"], holder="ada"),
        ):
            assert kind in await _refusal(call)
        server.start()  # A server that is starting may take a connection and forget it.
        patience(PATIENT_S)
        await take_in_the_end(engine, "after", "ada", LONG)
        other = open_at(server.url(), "another")
        assert await _is_refused(other, "after")

        async def is_woken() -> bool:
            woken.clear()
            await take_in_the_end(other, "told", "bob", LONG)
            await other.release(["told"], holder="bob")
            with suppress(TimeoutError):  # It may have been given back before anybody listened; then once more.
                await asyncio.wait_for(woken.wait(), 1.0)  # short: it is tried again.
            return woken.is_set()

        await async_wait_until(is_woken, "the subscription to be made again")


async def test_closing_twice_is_no_fault(engine: Engine) -> None:
    await engine.watch(lambda: None)
    await _take(engine)
    await engine.close()
    await engine.close()
