"""What every engine promises, whichever it is: the port `Engine`, sentence by sentence, on real servers."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from headway.errors import EngineUnavailable
from headway.instants import SECOND
from headway.ports import Engine
from tests.engines.conftest import EngineServer, OpenEngine, make_server

LEASE = 2 * SECOND
LONG = 60 * SECOND
EXPIRY_S_MAX = 20.0  # Consul takes up to twice the lease, and the machine may be busy.
FEW_SECONDS = 8.0
SOON_S = 5.0

ODD_NAMES = [
    "scheduler/0",
    "occurrence/nightly report/1700000000000000",
    "occurrence/ü~🚂/1",
    "lock/a:b{c}d?e&f=g#h%2Fi",
    "lock//double/./dots/../x",
    "lock/" + "long" * 50,
]


async def _until(condition: Callable[[], Awaitable[bool]], limit_s: float = EXPIRY_S_MAX) -> float:
    """Wait until something is so, and return how long it took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < limit_s, f"not so after {limit_s:g} s"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


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
    old = await _take(engine, "dead", duration=LEASE)
    await _take(engine, "alive", duration=LEASE)
    await _take(other, "foreign", holder="bob")
    woken = asyncio.Event()
    await other.watch(woken.set)
    new: int | None = None

    async def is_free() -> bool:
        nonlocal new
        assert await engine.renew(["alive", "foreign", "unknown"], holder="ada", duration=LEASE) == {"alive"}
        new = await other.acquire("dead", holder="bob", duration=LONG)
        return new is not None

    assert await _until(is_free) > LEASE / SECOND * 0.5
    assert new is not None
    assert new > old
    assert await _is_refused(other, "alive")
    assert await engine.renew(["dead"], holder="ada", duration=LEASE) == frozenset()
    assert await engine.renew([], holder="ada", duration=LEASE) == frozenset()
    await engine.release(["dead"], holder="ada")
    assert await _is_refused(engine, "dead", holder="ada")


async def test_a_lock_that_is_given_back_wakes_who_waits(engine: Engine, url: str, open_at: OpenEngine) -> None:
    waiting = open_at(url, "waiting")
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    latencies = []
    for turn in range(3):
        holder = f"holder-{turn}"
        await _take(engine, holder=holder)
        assert await _is_refused(waiting)
        await asyncio.sleep(0.5)  # Until the subscription stands, and what was before has been heard.
        woken.clear()
        began = time.monotonic()
        await engine.release(["role"], holder=holder)
        await asyncio.wait_for(woken.wait(), SOON_S)
        latencies.append(time.monotonic() - began)
        await _take(waiting, holder="next")  # It is free when one is woken.
        await waiting.release(["role"], holder="next")
    assert min(latencies) < 1.0, latencies


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
    """Return what an engine says that is away; it must not let one wait for it."""
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        await asyncio.wait_for(call, FEW_SECONDS * 3)
    assert time.monotonic() - began < FEW_SECONDS
    return str(caught.value)


async def _comes_back(engine: Engine) -> bool:
    try:
        return await engine.acquire("after", holder="ada", duration=LONG) is not None
    except EngineUnavailable as error:
        print(f"{time.monotonic():.2f} {error}")
        return False


@pytest.mark.timeout(180)
async def test_a_server_that_is_away_is_said_to_be_and_found_again(kind: str, open_at: OpenEngine) -> None:
    """Frozen, then killed, then back: nobody hangs, and nobody has to be restarted."""
    with make_server(kind) as server:
        engine = open_at(server.url())
        woken = asyncio.Event()
        await engine.watch(woken.set)
        await _take(engine, duration=LEASE)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(0.2)  # Until the last of its threads stands still.
        try:
            assert kind in await _refusal(engine.renew(["role"], holder="ada", duration=LEASE))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await _until(lambda: _comes_back(engine))
        server.kill()
        for call in (
            engine.acquire("role", holder="ada", duration=LEASE),
            engine.renew(["role"], holder="ada", duration=LEASE),
            engine.release(["role"], holder="ada"),
        ):
            assert kind in await _refusal(call)
        server.start()
        await _until(lambda: _comes_back(engine))
        other = open_at(server.url(), "another")
        assert await _is_refused(other, "after")

        async def is_woken() -> bool:
            woken.clear()
            if await _comes_back(other):
                await other.release(["after"], holder="ada")
            await asyncio.sleep(0.3)
            return woken.is_set()

        await _until(is_woken)  # The subscription, too, was made again.


async def test_closing_twice_is_no_fault(engine: Engine) -> None:
    await engine.watch(lambda: None)
    await _take(engine)
    await engine.close()
    await engine.close()
