"""A leader dies while the standby has bad links to the engine; the standby becomes leader all the same.

etcd stands for the engines with several endpoints. In each scenario the leader vanishes without releasing anything,
and the standby has its own links to all three servers. The links stay bad until the scenario has ended, so waiting does
not help. No time is measured here: the promise, lease + 2 s, is the sum of the limits that are asserted below.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headway.adapters.engines import open_engine
from headway.coordination import admission, elector
from headway.coordination.admission import AdmittedLeases
from headway.coordination.elector import RENEWALS_PER_LEASE, Elector
from headway.core.clock import Clock, Loop
from headway.core.instants import SECOND
from headway.store import Store, open_driver, postgres
from headway.store.migrations import migrate
from tests.engines.conftest import PREFIXES, Patience
from tests.support.etcd import EtcdEnsemble
from tests.support.proxy import BLACK_HOLE, CLEAR, LOST_ANSWERS, REFUSED, Proxies, Weather, slow
from tests.support.waiting import async_wait_until

pytestmark = pytest.mark.slow

LEASE_S = 2.0
ENGINE_S = 3.0  # The timeout of an engine in production.
ROLES = ("scheduler/0", "scheduler/1", "scheduler/2")


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as made:
        yield made


@dataclass
class Candidate:
    """A node that wants to lead, with its own loop."""

    elector: Elector
    loop: "asyncio.Task[None]"

    def vanish(self) -> None:
        """Stop without releasing anything."""
        self.loop.cancel()

    async def leads(self) -> None:
        """Wait until it holds all roles."""
        await async_wait_until(lambda: len(self.elector.held()) == len(ROLES), "a candidate to hold all roles")


def address(ports: Iterable[int], prefix: str) -> str:
    """Build the URL of an engine with servers on these ports."""
    return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}?prefix={prefix}/"


@asynccontextmanager
async def candidate(name: str, store_url: str, engine_url: str) -> AsyncIterator[Candidate]:
    """Run a candidate."""
    clock, duration = Clock(node=name), round(LEASE_S * SECOND)
    async with AsyncExitStack() as stack:
        store = await Store.open(store_url, clock)
        stack.push_async_callback(store.close)
        engine = open_engine(engine_url, clock=clock, node=name)
        leases = AdmittedLeases(engine, store.leases, clock=clock, falls_back=True)
        stack.push_async_callback(leases.close)
        candidate_elector = Elector(
            leases,
            clock=clock,
            node_id=name,
            node_name=name,
            duration=duration,
            silence_s=lambda: 0.0,
            on_change=lambda: None,
        )
        candidate_elector.seek(ROLES, len(ROLES))
        loop = Loop("shards", candidate_elector.tick, clock=clock, rest_s_max=LEASE_S / RENEWALS_PER_LEASE)
        await leases.watch(loop.wake)
        running = asyncio.ensure_future(loop.run())
        try:
            yield Candidate(candidate_elector, running)
        finally:
            running.cancel()
            await asyncio.wait([running])


SCENARIOS = {
    "one black hole": (BLACK_HOLE, CLEAR, CLEAR),
    "one black hole, one refuses": (BLACK_HOLE, REFUSED, CLEAR),
    "black holes": (BLACK_HOLE, BLACK_HOLE, BLACK_HOLE),
    "answers are lost": (LOST_ANSWERS, LOST_ANSWERS, LOST_ANSWERS),
    "slow": (slow(0.1), slow(0.1), slow(0.1)),
}


@pytest.mark.parametrize("is_bad_before", [False, True], ids=["bad-from-now", "bad-before"])
async def test_standby_leads_despite_bad_links_to_engine(
    is_bad_before: bool, etcd_ensemble: EtcdEnsemble, proxies: Proxies, tmp_path: Path, patience: Patience
) -> None:
    patience(ENGINE_S)
    # The standby polls at this interval, then calls an engine that does not answer once; see `test_admission.py`.
    assert elector.WAIT_S + admission.PATIENCE * LEASE_S <= 2.0

    async def run(name: str, weathers: Sequence[Weather]) -> None:
        try:
            await _run_scenario(weathers, is_bad_before, etcd_ensemble, proxies, tmp_path / f"{name}.db")
        except BaseException as error:
            error.add_note(f"the links: {name}")
            raise

    # All scenarios at once: they mostly wait.
    outcomes = await asyncio.gather(*(run(*scenario) for scenario in SCENARIOS.items()), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise BaseExceptionGroup("a standby did not become leader", errors)


async def _run_scenario(
    weathers: Sequence[Weather], is_bad_before: bool, ensemble: EtcdEnsemble, proxies: Proxies, file: Path
) -> None:
    store_url, prefix = f"sqlite:///{file}", f"links-{next(PREFIXES)}"
    ports = [member.port for member in ensemble.members]
    links = [proxies.to(port) for port in ports]
    async with candidate("first", store_url, address(ports, prefix)) as first:
        await first.leads()
        async with candidate("second", store_url, address((link.port for link in links), prefix)) as second:
            await async_wait_until(lambda: any(link._connections for link in links), "the standby to connect")
            for link, weather in zip(links, random.sample(weathers, len(weathers)), strict=True):
                link.set(weather)
            await asyncio.sleep(LEASE_S if is_bad_before else 0.0)
            first.vanish()
            await second.leads()


@pytest.mark.postgres
async def test_leader_that_vanished_in_a_transaction_is_replaced_when_the_server_ends_it(
    etcd_ensemble: EtcdEnsemble, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay locked until then, and its connection stays open for the whole test."""
    driver = open_driver(postgres_url)
    await migrate(driver)
    await driver.close()
    url = address((member.port for member in etcd_ensemble.members), f"links-{next(PREFIXES)}")
    async with candidate("first", postgres_url, url) as first:
        await first.leads()
        async with candidate("second", postgres_url, url) as second:
            with closing(psycopg.connect(postgres_url, autocommit=True)) as decision:
                with monkeypatch.context() as patched:
                    patched.setattr(postgres, "IDLE_S_MAX", LEASE_S)
                    decision.execute(postgres._begin())
                decision.execute("select * from headway_leases where name like 'scheduler/%' for share")
                first.vanish()  # The connection stays open, as after a power failure of its host.
                await second.leads()
