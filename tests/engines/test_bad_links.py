"""A leader dies while the next one's way to the engine is bad: the lease and a bit must do all the same.

etcd stands for the engines with several endpoints. Each story is of one who leads and is gone without a word, and of
one who waits, behind links of his own to all three servers.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headway.clock import Clock, Loop
from headway.coordination.admission import AdmittedLeases
from headway.coordination.elector import RENEWALS_PER_LEASE, Elector
from headway.coordination.engines import open_engine
from headway.instants import SECOND
from headway.store import Store, open_driver
from headway.store.migrations import migrate
from headway.store.postgres import IDLE_S_MAX, _begin
from tests.engines.conftest import PREFIXES, _do_without
from tests.support.etcd import EtcdEnsemble
from tests.support.proxy import BLACK_HOLE, CLEAR, LOST_ANSWERS, REFUSED, Proxies, Weather, slow
from tests.support.server import ServerMissing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LEASE_S = 2.0
NOISE_S = 2.0  # What a busy machine may add.
FAIL_OVER_S_MAX = LEASE_S + 2.0 + NOISE_S
GIVE_UP_S = 25.0
ROLES = ("scheduler/0", "scheduler/1", "scheduler/2")


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EtcdEnsemble]:
    try:
        servers = EtcdEnsemble()
    except ServerMissing as missing:
        _do_without(missing)
    with servers:
        yield servers


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as made:
        yield made


@dataclass
class Candidate:
    """One who wants to lead, with a loop of his own."""

    elector: Elector
    loop: "asyncio.Task[None]"

    def vanish(self) -> None:
        """Be gone: nothing is given back."""
        self.loop.cancel()

    async def leads(self) -> float:
        """Wait until he leads everything; return how long it took."""
        began = time.monotonic()
        while len(self.elector.held()) < len(ROLES):
            assert time.monotonic() - began < GIVE_UP_S
            await asyncio.sleep(0.02)
        return time.monotonic() - began


def address(ports: Iterable[int], prefix: str) -> str:
    """Write the address of an engine whose servers are at these ports."""
    return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}?prefix={prefix}/"


@asynccontextmanager
async def candidate(name: str, store_url: str, engine_url: str) -> AsyncIterator[Candidate]:
    """Let somebody try."""
    clock, duration = Clock(node=name), round(LEASE_S * SECOND)
    async with AsyncExitStack() as stack:
        store = await Store.open(store_url, clock)
        stack.push_async_callback(store.close)
        engine = open_engine(engine_url, clock=clock, node=name)
        leases = AdmittedLeases(engine, store.leases, clock=clock, falls_back=True)
        stack.push_async_callback(leases.close)
        elector = Elector(
            leases,
            clock=clock,
            node_id=name,
            node_name=name,
            duration=duration,
            silence_s=lambda: 0.0,
            on_change=lambda: None,
        )
        elector.seek(ROLES, len(ROLES))
        loop = Loop("shards", elector.tick, clock=clock, rest_s_max=LEASE_S / RENEWALS_PER_LEASE)
        await leases.watch(loop.wake)
        running = asyncio.ensure_future(loop.run())
        try:
            yield Candidate(elector, running)
        finally:
            running.cancel()
            await asyncio.wait([running])


@pytest.mark.parametrize("is_long_bad", [False, True], ids=["from then on", "for a while before"])
@pytest.mark.parametrize(
    "weathers",
    [
        (BLACK_HOLE, CLEAR, CLEAR),
        (BLACK_HOLE, REFUSED, CLEAR),
        (BLACK_HOLE, BLACK_HOLE, BLACK_HOLE),
        (LOST_ANSWERS, LOST_ANSWERS, LOST_ANSWERS),
        (slow(0.1), slow(0.1), slow(0.1)),
    ],
    ids=["one black hole", "one black hole, one refuses", "black holes", "answers are lost", "slow"],
)
async def test_a_bad_way_to_the_engine_does_not_delay_who_is_next(
    weathers: Sequence[Weather], is_long_bad: bool, ensemble: EtcdEnsemble, proxies: Proxies, tmp_path: Path
) -> None:
    store_url, prefix = f"sqlite:///{tmp_path}/headway.db", f"links-{next(PREFIXES)}"
    ports = [member.port for member in ensemble.members]
    links = [proxies.to(port) for port in ports]
    async with candidate("first", store_url, address(ports, prefix)) as first:
        await first.leads()
        async with candidate("second", store_url, address((link.port for link in links), prefix)) as second:
            await asyncio.sleep(1.0)  # Until he has connections.
            for link, weather in zip(links, random.sample(weathers, len(weathers)), strict=True):
                link.set(weather)
            await asyncio.sleep(LEASE_S if is_long_bad else 0.0)
            first.vanish()
            assert await second.leads() < FAIL_OVER_S_MAX


@pytest.mark.postgres
async def test_a_leader_that_vanished_in_the_middle_of_a_transaction_is_followed_when_the_server_ends_it(
    ensemble: EtcdEnsemble, postgres_url: str
) -> None:
    """Its rows stay locked until then, which is longer than such a short lease."""
    driver = open_driver(postgres_url)
    await migrate(driver)
    await driver.close()
    url = address((member.port for member in ensemble.members), f"links-{next(PREFIXES)}")
    async with candidate("first", postgres_url, url) as first:
        await first.leads()
        async with candidate("second", postgres_url, url) as second:
            with closing(psycopg.connect(postgres_url, autocommit=True)) as decision:
                decision.execute(_begin())
                decision.execute("select * from headway_leases where name like 'scheduler/%' for share")
                first.vanish()  # And the connection stays, as that of a host without power does.
                took_s = await second.leads()
    assert took_s < max(LEASE_S, IDLE_S_MAX) + 2.0 + NOISE_S
