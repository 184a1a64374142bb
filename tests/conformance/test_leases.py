"""Leases and nodes, on every database: one holder at a time, and tokens that only increase."""

import asyncio

from headway.core.clock import Clock
from headway.core.instants import DAY, HOUR, SECOND
from headway.core.nodes import Lease, Node
from headway.store import Store
from headway.store.coordination import StoreLeases, StoreNodes, _acquire
from tests.conformance.backend import Backend, Interrupted

LEASE = 30 * SECOND
SOON = 10 * SECOND  # Longer than any of these tests takes.


async def _take(store: Store, *names: str, holder: str = "ada", duration: int = LEASE) -> list[Lease]:
    return await store.leases.acquire(list(names), holder=holder, holder_name=f"{holder}-name", duration=duration)


async def test_free_lease_is_acquired(backend: Backend) -> None:
    before = await backend.now()
    [lease] = await _take(backend.store, "role")
    assert (lease.name, lease.holder, lease.holder_name) == ("role", "ada", "ada-name")
    assert lease.token > 0
    assert before <= lease.since <= await backend.now()
    assert lease.until == lease.since + LEASE
    assert await _take(backend.store, "role", holder="bob") == []
    [(held, runs)] = await backend.store.leases.held("role")
    assert (held, runs) == (lease, True)


async def test_renew_keeps_the_token_and_moves_the_end(backend: Backend) -> None:
    leases = await _take(backend.store, "a", "b")
    await backend.advance(LEASE // 2)
    renewed = await backend.store.leases.renew(leases, duration=LEASE)
    assert {(lease.name, lease.token, lease.since) for lease in renewed} == {
        (lease.name, lease.token, lease.since) for lease in leases
    }
    assert all(lease.until >= leases[0].until + LEASE // 2 for lease in renewed)
    await backend.advance(LEASE // 2 + SECOND)
    assert await _take(backend.store, "a", holder="bob") == []  # It would have expired without the renewal.
    assert await backend.store.leases.renew([], duration=LEASE) == []


async def test_expired_lease_can_be_taken_over(backend: Backend) -> None:
    [old] = await _take(backend.store, "role")
    await backend.advance(LEASE - SOON)
    assert await _take(backend.store, "role", holder="bob") == []
    await backend.advance(2 * SOON)
    [new] = await _take(backend.store, "role", holder="bob")
    assert new.token > old.token
    assert await backend.store.leases.renew([old], duration=LEASE) == []
    await backend.store.leases.release([old])  # A no-op without an error.
    [(held, runs)] = await backend.store.leases.held("role")
    assert (held.holder, held.token, runs) == ("bob", new.token, True)


async def test_expired_lease_is_not_renewed(backend: Backend) -> None:
    """Even if it is still free: its holder has stopped trusting it, and must acquire it again."""
    expired, released = await _take(backend.store, "expired"), await _take(backend.store, "released", duration=DAY)
    await backend.advance(HOUR)
    await backend.store.leases.release(released)
    assert await backend.store.leases.renew([*expired, *released], duration=LEASE) == []
    assert [runs for _, runs in await backend.store.leases.held("")] == [False, False]


async def test_released_lease_is_free_at_once(backend: Backend) -> None:
    [old] = await _take(backend.store, "role")
    await backend.store.leases.release([old])
    [(last, runs)] = await backend.store.leases.held("role")
    assert (last.holder, runs) == ("ada", False)
    [new] = await _take(backend.store, "role", holder="bob")
    assert new.token > old.token
    await backend.store.leases.release([])


async def test_acquiring_ones_own_lease_again_gives_a_new_token(backend: Backend) -> None:
    [old] = await _take(backend.store, "role")
    [new] = await _take(backend.store, "role")
    assert new.token > old.token
    assert await backend.store.leases.renew([old], duration=LEASE) == []
    assert len(await backend.store.leases.renew([new], duration=LEASE)) == 1


async def test_batch_acquires_the_free_leases(backend: Backend) -> None:
    taken = await _take(backend.store, "b", "d", holder="bob")
    won = await _take(backend.store, "d", "c", "a", "b", "a")
    assert sorted(lease.name for lease in won) == ["a", "c"]
    tokens = [lease.token for lease in (*taken, *won)]
    assert len(set(tokens)) == 4
    assert min(lease.token for lease in won) > max(lease.token for lease in taken)
    assert await _take(backend.store) == []


async def test_tokens_only_increase(backend: Backend) -> None:
    """Across release, expiry, manual deletion of rows, pruning and different names."""
    store, tokens = backend.store, []
    for number in range(5):
        leases = await _take(store, "role", f"name-{number}")
        tokens += sorted(lease.token for lease in leases)
        await store.leases.release(leases)
        tokens += [lease.token for lease in await _take(store, "role", holder="bob")]
        await backend.sql("delete from headway_leases")
        tokens += [lease.token for lease in await _take(store, "role", holder="cid", duration=SECOND)]
        await backend.advance(HOUR + 2 * SECOND)
        await store.housekeeping.prune(DAY, 100)
        assert await store.leases.held("") == []
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 20


async def test_waiting_for_a_lease_writes_nothing(backend: Backend) -> None:
    await _take(backend.store, "role")
    before = await backend.sql("select * from headway_counters order by name")
    assert await _take(backend.store, "role", holder="bob") == []
    assert await backend.sql("select * from headway_counters order by name") == before


async def test_race_for_one_lease_has_one_winner(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    tokens = []
    for number in range(8):
        answers = await asyncio.gather(*(_take(stores[n % 3], "role", holder=f"node-{n}") for n in range(9)))
        won = [lease for leases in answers for lease in leases]
        assert len(won) == 1, won
        tokens += [lease.token for lease in won]
        if number % 2:
            await shared.store.leases.release(won)
        else:
            await shared.advance(LEASE + SECOND)
    assert tokens == sorted(set(tokens))


async def test_racing_batches_do_not_deadlock(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    names = [f"lease-{number}" for number in range(30)]
    answers = await asyncio.gather(
        *(_take(stores[n % 3], *(names if n % 2 else reversed(names)), holder=f"node-{n}") for n in range(9))
    )
    won = [lease for leases in answers for lease in leases]
    assert sorted(lease.name for lease in won) == sorted(names)
    assert len({lease.token for lease in won}) == 30


async def test_reacquired_lease_is_not_taken_over_by_a_stale_read(shared: Backend) -> None:
    """The other node saw the lease expire; before it writes, the holder has acquired it again with a new token."""
    [old] = await _take(shared.store, "role", duration=SECOND)
    await shared.advance(2 * SECOND)
    async with Interrupted(
        shared, lambda: _acquire(["role"], "thief", "", LEASE), after="held_by_others"
    ) as in_between:
        await in_between.act(_take(shared.store, "role", holder="ada"))
    won = [lease for lease, runs in await shared.store.leases.held("role") if runs]
    assert len(won) == 1
    assert won[0].token > old.token
    assert (won[0].holder == "thief") == bool(in_between.result)


async def test_held_finds_prefixes_with_any_characters(backend: Backend) -> None:
    names = ["occurrence/ü/1", "occurrence/~/2", "occurrence/a/3", "occurrence/🚂/4"]
    await _take(backend.store, *names, "occurrencf", "other")
    assert {lease.name for lease, _ in await backend.store.leases.held("occurrence/")} == set(names)
    assert len(await backend.store.leases.held("", limit=2)) == 2


async def test_empty_store_has_no_leases(backend: Backend) -> None:
    assert await StoreLeases(backend.store.driver).held("") == []


async def test_nodes(backend: Backend) -> None:
    clock = Clock(node="n1", wall=lambda: 0, monotonic=lambda: 0.0)
    nodes = StoreNodes(backend.store.driver, clock)
    first = Node(id="n1", name="host-1", roles=("scheduler", "worker"), version="1.2", state={"loops": {"ü": 1}})
    assert await nodes.beat(first) is None  # No request is pending.
    now = await backend.now()
    assert abs(clock.now() - now) < SOON  # The clock is synced with the store's.
    await backend.advance(SOON)
    await nodes.beat(Node(id="n1", name="host-1", roles=("scheduler",), state={"k": 2}))
    later = await backend.now()
    await nodes.beat(Node(id="n2", name="host-2", roles=()))
    one, two = await nodes.alive(HOUR)
    assert (one.id, one.roles, one.version, one.state) == ("n1", ("scheduler",), "1.2", {"k": 2})
    assert now - SOON // 2 <= one.started_at <= now < one.beat_at <= later
    assert (two.id, two.roles) == ("n2", ())
    assert await nodes.ask("n3", "drain") is False
    assert await nodes.ask("n1", "drain") is True
    assert [(node.id, node.asked) for node in await nodes.alive(HOUR)] == [("n1", "drain"), ("n2", None)]
    assert [await nodes.beat(one), await nodes.beat(one), await nodes.beat(two)] == ["drain", "drain", None]
    await backend.advance(HOUR + SECOND)
    assert await nodes.alive(HOUR) == []
    await nodes.beat(first)
    assert [node.id for node in await nodes.alive(HOUR)] == ["n1"]
    await nodes.leave("n1")
    await nodes.leave("n1")
    assert await nodes.alive(HOUR) == []
    assert await backend.count("headway_nodes") == 1
    await backend.advance(2 * DAY)
    await backend.store.housekeeping.prune(DAY, 10)
    assert await backend.count("headway_nodes") == 0
