"""PostgreSQL in production: restarted, read-only, locked, frozen, migrated while in use, in any locale."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg
import psycopg
import pytest
from psycopg import sql

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, LeaseLost, StoreError, StoreUnavailable
from headway.core.events import EngineEvent, WakeModeChanged, subscribed
from headway.core.instants import HOUR
from headway.core.lifecycle import Attempt, Parked, Raised, Released, Succeeded, settle
from headway.core.nodes import Node
from headway.core.occurrences import Plan
from headway.core.ports import Fence
from headway.core.schedule_names import ScheduleRef
from headway.operations import attention
from headway.operations.attention import faults
from headway.operations.overview import read_overview
from headway.store import Store, postgres, primary
from headway.store.facts import facts
from headway.store.migrations import migrate
from headway.store.postgres import POOL_SIZE, PostgresDriver
from headway.store.transaction import Transaction, as_json, call
from headway.store.wrapping_driver import WrappingDriver
from tests.conformance.arrange import claim_one, decide, due_plans, enqueue, new_job, run_one, spec
from tests.support.certificates import make_certificate
from tests.support.postgres import PostgresServer, database_name
from tests.support.standby import configure
from tests.support.waiting import DEADLINE_S, async_wait_until

pytestmark = pytest.mark.postgres
LEASE = HOUR  # Too long to expire on a stalled machine.
NODE = Node(id="n", name="n", roles=("scheduler",))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts for a slow machine, except where a test sets them."""
    for limit in ("STATEMENT_S_MAX", "IDLE_S_MAX", "PROBE_S_MAX", "CLOSE_S_MAX"):
        monkeypatch.setattr(postgres, limit, DEADLINE_S)
    for limit in ("CONNECT_S_MAX", "IDENTIFY_S_MAX"):
        monkeypatch.setattr(primary, limit, DEADLINE_S)


@pytest.fixture
def url(migrated_url: str) -> str:
    """The URL of a migrated database."""
    return migrated_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url, Clock(node="n"))
    yield store
    await store.close()


@pytest.fixture
async def operator(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection besides the store."""
    connection = await asyncpg.connect(url, timeout=DEADLINE_S)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def stoppable_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server for this module."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_server(stoppable_server: PostgresServer) -> PostgresServer:
    """A running server that a test may stop."""
    if not stoppable_server.is_running():
        stoppable_server.start()
    return stoppable_server


async def wait_ended(operator: asyncpg.Connection, pids: list[int]) -> None:
    """Wait until backends have ended, which happens a moment after their client has disconnected."""

    async def are_gone() -> bool:
        return not set(pids) & set(await connections(operator))

    await async_wait_until(are_gone, f"the backends {pids} to end")


async def wait_blocked(operator: asyncpg.Connection, number: int) -> None:
    """Wait until this many statements wait for a lock."""

    async def are_blocked() -> bool:
        query = (
            "select count(*) from pg_locks join pg_database on pg_database.oid = pg_locks.database"
            " where not granted and datname = current_database()"
        )
        return bool(await operator.fetchval(query) >= number)

    await async_wait_until(are_blocked, f"{number} statements to wait for a lock")


def free(store: Store) -> list[asyncpg.Connection]:
    """Return the idle connections of the pool."""
    assert isinstance(store.driver, PostgresDriver)
    return store.driver._free


async def connections(operator: asyncpg.Connection) -> list[int]:
    """Return the backends that belong to stores."""
    rows = await operator.fetch(
        "select pid from pg_stat_activity where application_name = 'headway' and datname = current_database()"
    )
    return [row["pid"] for row in rows]


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://127.0.0.1:1/x",
        "postgresql://nobody:s3cret@127.0.0.1:1/x",
        "postgresql://nobody:s3cret@127.0.0.1:1,127.0.0.1:2/x",
    ],
)
async def test_unreachable_server(address: str) -> None:
    store = Store.on(PostgresDriver(address), Clock())
    words = r"cannot connect to PostgreSQL at 127\.0\.0\.1:1(,127\.0\.0\.1:2)?/x: .*; .*does HEADWAY_STORE name"
    with pytest.raises(StoreUnavailable, match=words) as caught:
        await store.jobs.page()
    assert "s3cret" not in str(caught.value)
    await store.close()


async def test_missing_database(postgres_server: PostgresServer) -> None:
    store = Store.on(PostgresDriver(postgres_server.url("missing")), Clock())
    with pytest.raises(StoreUnavailable, match=r"/missing.*; create the database, or name another"):
        await store.jobs.page()


async def test_invalid_url() -> None:
    store = Store.on(PostgresDriver("postgresql://host:port/x"), Clock())
    with pytest.raises(StoreError) as caught:
        await store.jobs.page()
    assert not isinstance(caught.value, StoreUnavailable)


async def test_writable_host_is_found(postgres_server: PostgresServer, url: str) -> None:
    both = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{postgres_server.port}/{database_name(url)}"
    store = await Store.open(both, Clock())
    await enqueue(store)
    await store.close()


# The pool


async def test_connections_are_few_and_reused(store: Store, operator: asyncpg.Connection) -> None:
    await asyncio.gather(*(enqueue(store) for _ in range(100)))
    pids = await connections(operator)
    assert 1 <= len(pids) <= POOL_SIZE
    await asyncio.gather(*(enqueue(store) for _ in range(100)))
    assert set(await connections(operator)) <= set(pids)
    await store.close()
    await wait_ended(operator, pids)


async def test_exhausted_pool_is_reported(
    store: Store, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operator.transaction():
        await operator.execute("lock table headway_nodes")
        hung = [asyncio.create_task(store.nodes.beat(NODE)) for _ in range(POOL_SIZE)]
        await wait_blocked(operator, POOL_SIZE)
        monkeypatch.setattr(postgres, "STATEMENT_S_MAX", 0.2)
        with pytest.raises(StoreUnavailable, match="in use"):
            await store.jobs.page()
    await asyncio.gather(*hung)


async def test_idle_connections_closed_by_the_server_are_not_used(store: Store, operator: asyncpg.Connection) -> None:
    await asyncio.gather(*(enqueue(store) for _ in range(20)))
    ended = list(free(store))
    for pid in await connections(operator):
        await operator.execute("select pg_terminate_backend($1)", pid)
    await async_wait_until(lambda: all(one.is_closed() for one in ended), "the connections to be closed")
    for _ in range(POOL_SIZE + 1):
        await enqueue(store)  # No call fails.


async def test_connection_lost_during_a_statement_fails_one_call(store: Store, operator: asyncpg.Connection) -> None:
    await enqueue(store)
    async with operator.transaction():
        await operator.execute("lock table headway_nodes")
        beat = asyncio.create_task(store.nodes.beat(NODE))
        await wait_blocked(operator, 1)
        for pid in await connections(operator):
            await operator.execute("select pg_terminate_backend($1)", pid)
        with pytest.raises(StoreUnavailable):
            await beat
    await store.nodes.beat(NODE)


async def test_ordinary_errors_keep_the_connection(store: Store, operator: asyncpg.Connection) -> None:
    await enqueue(store, id="job_1")
    pids = await connections(operator)
    for _ in range(3):
        with pytest.raises(StoreError):
            await enqueue(store, id="job_1")
        with pytest.raises(StoreError):
            await store.queue.enqueue([new_job(), new_job(id="job_1")])
        with pytest.raises(HeadwayError):
            await store.schedules.trigger("missing")
    assert await connections(operator) == pids


# Deadlines


@pytest.mark.parametrize("verb", ["fetch", "run"])
async def test_statements_time_out(
    store: Store, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    await enqueue(store)
    pids = await connections(operator)

    async def act() -> object:
        if verb == "fetch":
            return await store.nodes.beat(NODE)
        return await store.leases.acquire(["role"], holder="n", holder_name="", duration=LEASE)

    async with operator.transaction():  # It ends after the timeout, so a call that waits for it would not return.
        await operator.execute("lock table headway_nodes, headway_leases")
        with monkeypatch.context() as patch:
            patch.setattr(postgres, "STATEMENT_S_MAX", 0.3)
            with pytest.raises(StoreUnavailable):
                await act()
    await act()
    # A connection that timed out is not reused, and is closed.
    assert not set(pids) & {connection.get_server_pid() for connection in free(store)}
    await wait_ended(operator, pids)


async def test_server_ends_the_transaction_of_a_frozen_process(
    url: str, store: Store, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process frozen between two statements locks the row of its lease. Others must not wait until it thaws."""
    await store.schedules.put("s", spec("1d"))
    [lease] = await store.leases.acquire(["scheduler/0"], holder="frozen", holder_name="", duration=LEASE)
    is_frozen, thaw = threading.Event(), threading.Event()

    def begin() -> Transaction[None]:
        yield call("fence", names=as_json(["scheduler/0"]), holder="frozen")
        yield call("schedule_locked", tenant="default", name="s")
        is_frozen.set()
        thaw.wait(2 * DEADLINE_S)  # Blocks the whole event loop, as SIGSTOP would.
        yield call("schedule_touch", key="s", version=1)

    async def frozen_process() -> None:
        frozen = Store.on(PostgresDriver(url), Clock(node="frozen"))
        while not is_frozen.is_set():  # A slow machine may be taken for frozen too early.
            with pytest.raises(StoreUnavailable):
                await frozen.driver.run(begin)
        with pytest.raises(LeaseLost):
            await frozen.ledger.fire([], Fence(holder="frozen", tokens={"scheduler/0": lease.token}))
        await frozen.close()

    with monkeypatch.context() as patch:
        patch.setattr(postgres, "IDLE_S_MAX", 1.0)
        process = asyncio.create_task(asyncio.to_thread(asyncio.run, frozen_process()))
        await async_wait_until(is_frozen.is_set, "the process to be frozen")
    try:
        async with asyncio.timeout(DEADLINE_S):
            # The row of the lease is locked. An update waits until the server ends the transaction.
            await operator.execute("update headway_leases set until = 0 where name = 'scheduler/0'")
            taken = await store.leases.acquire(["scheduler/0"], holder="n", holder_name="", duration=LEASE)
            await store.schedules.put("s", spec("2d"))
        assert not thaw.is_set()
    finally:
        thaw.set()
        await process
    assert taken[0].token > lease.token
    assert (await store.schedules.get("s")).revision == 2


# Conflicts


async def test_deadlock_is_retried(url: str, store: Store) -> None:
    other = await Store.open(url, Clock(node="other"))
    for name in ("a", "b"):
        await store.schedules.put(name, spec("1d"))
    locked: set[str] = set()
    begun = []

    def crosswise(first: str, second: str) -> Transaction[str]:
        begun.append(first)
        yield call("schedule_locked", tenant="default", name=first)
        locked.add(first)
        while len(begun) <= 2 and second not in locked:  # Not in the retry: then the other transaction goes on.
            yield call("time")
        yield call("schedule_locked", tenant="default", name=second)
        yield call("schedule_touch", key=first, version=1)
        return first

    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(
            store.driver.run(lambda: crosswise("a", "b")), other.driver.run(lambda: crosswise("b", "a"))
        )
    assert list(answers) == ["a", "b"]
    assert len(begun) == 3
    await other.close()


async def test_permanent_deadlock_raises_unavailable(store: Store) -> None:
    begun = []

    def begin() -> Transaction[None]:
        begun.append(True)
        yield call("time")
        raise asyncpg.DeadlockDetectedError("deadlock detected")

    with pytest.raises(StoreUnavailable, match="deadlock"):
        await store.driver.run(begin)
    assert len(begun) == postgres.DEADLOCK_TRIES_MAX


async def test_migration_while_in_use(store: Store, operator: asyncpg.Connection) -> None:
    """Statements prepared for the old schema are prepared again, also within a transaction."""

    async def work() -> None:
        await store.schedules.trigger("t")  # First, because it reads whole rows within a transaction.
        await store.schedules.put("s", spec("1d", priority=len(done)))
        await store.queue.enqueue([new_job(), new_job()])
        jobs = await store.work.claim("default", node="n", lease=LEASE, limit=2)
        assert len(jobs) == 2
        attempts = [Attempt(job_id=job.id, attempt=1, failures=0, max_attempts=1) for job in jobs]
        assert not await store.work.settle([settle(attempt, Succeeded(), 0) for attempt in attempts])
        await store.schedules.get("s")
        done.append(True)

    done: list[bool] = []
    await store.schedules.put("t", spec("1d", queue="other", overlap="allow"))
    await work()
    await operator.execute("alter table headway_jobs add column note text")
    await operator.execute("alter table headway_schedules add column note text")
    await work()
    await operator.execute("alter table headway_jobs drop column note")
    await operator.execute("alter table headway_schedules drop column note")
    await work()


# Restart and failover


async def test_restart_loses_no_acknowledged_job(own_server: PostgresServer) -> None:
    store = Store.on(PostgresDriver(own_server.create_database()), Clock(node="n"))
    await migrate(store.driver)
    acknowledged: list[str] = []
    failed: list[StoreError] = []
    stopping = False

    async def client(number: int) -> None:
        while not stopping:
            jobs = [new_job(key=f"{number}-{len(acknowledged)}"), new_job()]
            try:
                rows = await store.queue.enqueue(jobs)
            except StoreUnavailable as error:
                failed.append(error)
                await asyncio.sleep(0.02)
            else:
                acknowledged.extend(row.id for row in rows)

    def more(number: int) -> Callable[[], bool]:
        enough = len(acknowledged) + number
        return lambda: len(acknowledged) > enough

    clients = [asyncio.create_task(client(number)) for number in range(6)]
    try:
        for _ in range(2):
            await async_wait_until(more(20), "a few jobs")
            await asyncio.to_thread(own_server.restart, "immediate")
            await async_wait_until(more(20), "a few more jobs")
    finally:
        stopping = True
        await asyncio.gather(*clients)
    assert failed
    with psycopg.connect(own_server.url(database_name(store.driver._url))) as connection:  # type: ignore[attr-defined]
        stored = {row[0] for row in connection.execute("select id from headway_jobs")}
    assert set(acknowledged) <= stored
    await store.close()


async def test_read_only_database(url: str, store: Store, postgres_server: PostgresServer) -> None:
    """As after a failover to the wrong server: writes fail, and no connection stays there."""
    await enqueue(store)
    name = sql.Identifier(database_name(url))
    postgres_server.execute(sql.SQL("alter database {} set default_transaction_read_only = on").format(name))
    with psycopg.connect(url, autocommit=True) as operator:
        operator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'headway' and datname = current_database()"
        )
    await async_wait_until(lambda: all(one.is_closed() for one in free(store)), "the connections to be closed")
    assert len(await store.jobs.page()) == 1  # Reading works, and leaves a connection in the pool.
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="read-only"):
            await enqueue(store)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.leases.acquire(["role"], holder="n", holder_name="", duration=LEASE)
    await store.jobs.page()
    postgres_server.execute(sql.SQL("alter database {} reset default_transaction_read_only").format(name))

    async def can_write() -> str | None:  # A connection from before may fail first, and is dropped.
        with contextlib.suppress(StoreUnavailable):
            return await enqueue(store)
        return None

    await async_wait_until(can_write, "a successful write")
    assert await store.leases.acquire(["role"], holder="n", holder_name="", duration=LEASE)


async def test_cancelled_commit_is_all_or_nothing(store: Store) -> None:
    for number in range(30):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(number * 0.0005):  # At another stage each time.
                await store.queue.enqueue([new_job(queue=f"q{number}") for _ in range(3)])
    counts = {depth["name"]: depth["pending"] for depth in await store.statistics.depths()}
    assert set(counts.values()) <= {3}


# Notifications


class Listener:
    """Record topics and changes of the wake mode."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.modes: list[str] = []

    def receive(self, topic: str) -> None:
        self.topics.append(topic)

    def event(self, event: EngineEvent) -> None:
        if isinstance(event, WakeModeChanged):
            self.modes.append(event.mode)

    async def wait_for(self, topic: str) -> None:
        """Wait for a topic, and forget earlier ones."""
        await async_wait_until(lambda: topic in self.topics, f"{topic!r} to be received")
        self.topics.clear()


async def test_notifications_arrive(url: str, store: Store) -> None:
    listener, other = Listener(), await Store.open(url, Clock(node="other"))
    with subscribed(listener.event):
        watch = await store.watch(listener.receive)
    assert (watch.mode, listener.modes) == ("notify", ["notify"])
    await enqueue(other, queue="media")
    await listener.wait_for("ready media")
    await enqueue(other, delay=HOUR)
    await listener.wait_for("waiting")
    await other.schedules.put("s", spec("1s"))
    await listener.wait_for("schedules")
    await other.leases.release(
        await other.leases.acquire(["role"], holder="n", holder_name="", duration=LEASE),
    )
    await listener.wait_for("leases")
    for outcome, topic in ((Released(), "ready media"), (Raised("{}", retry_in=HOUR), "waiting")):
        job = await claim_one(other, "media")
        attempt = Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=5)
        listener.topics.clear()
        await other.work.settle([settle(attempt, outcome, 0)])
        await listener.wait_for(topic)
    await enqueue(other, queue="media")
    await other.queue.cancel((await claim_one(other, "media")).id, author="ada")
    await listener.wait_for("stop")
    await enqueue(other, queue="media")
    await run_one(other, Parked("nobody knows it"), "media")
    listener.topics.clear()
    await other.work.unpark(["report"])
    await listener.wait_for("waiting")
    await other.queue.pause("media", author="ada")
    listener.topics.clear()
    await other.queue.resume("media")
    await listener.wait_for("resumed media")
    await other.nodes.beat(NODE)
    await other.nodes.ask(NODE.id, "drain")
    await listener.wait_for(f"beat {NODE.id}")
    await async_wait_until(lambda: decide(other), "the schedule to be due")
    await listener.wait_for("ready default")
    await watch.close()
    await other.close()


async def test_rollback_sends_no_notification(url: str, store: Store) -> None:
    listener = Listener()
    watch = await store.watch(listener.receive)

    def begin() -> Transaction[None]:
        yield call("notify", payload="ready never")
        raise ValueError

    with pytest.raises(ValueError):
        await store.driver.run(begin)
    await enqueue(store)
    await listener.wait_for("ready default")
    await watch.check()  # A round trip: earlier notifications would have arrived.
    assert listener.topics == []
    await watch.close()


async def test_commits_wait_for_a_standby_concurrently(own_server: PostgresServer) -> None:
    """Their notifications do not serialise the commits."""
    url = await asyncio.to_thread(own_server.create_database)
    store = await Store.open(url, Clock(node="n"), checked=False)
    received: list[str] = []
    await migrate(store.driver)
    watch = await store.watch(received.append)
    waiting = (
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'headway'"
        " and wait_event = 'SyncRep'"
    )
    await asyncio.to_thread(configure, own_server, "synchronous_standby_names", "nobody")
    try:
        operator = await asyncpg.connect(url, timeout=DEADLINE_S)
        tasks = [asyncio.create_task(enqueue(store, queue=f"it's {number}")) for number in range(POOL_SIZE)]

        async def all_wait() -> bool:
            return bool(await operator.fetchval(waiting) == POOL_SIZE)

        await async_wait_until(all_wait, "all commits to wait for the standby")
        assert received == [], "uncommitted changes send no notification"
        await operator.close()
    finally:
        await asyncio.to_thread(configure, own_server, "synchronous_standby_names", "")
    await asyncio.gather(*tasks)
    wanted = {f"ready it's {number}" for number in range(POOL_SIZE)}
    await async_wait_until(lambda: set(received) >= wanted, "all notifications")
    await watch.close()
    await store.close()


async def test_lost_listening_connection_is_replaced(url: str, store: Store, operator: asyncpg.Connection) -> None:
    listener = Listener()
    with subscribed(listener.event):
        watch = await store.watch(listener.receive)
        assert isinstance(watch, postgres.PostgresWatch)
        for _ in range(2):
            assert watch._connection is not None
            listening = watch._connection
            await operator.execute("select pg_terminate_backend($1)", listening.get_server_pid())
            await async_wait_until(listening.is_closed, "the connection to be closed")
            await watch.check()
            assert watch.mode == "notify"
            await enqueue(store)
            await listener.wait_for("ready default")
    assert listener.modes == ["notify"]
    await watch.close()


async def test_failed_listener_polls_and_reports_it(own_server: PostgresServer) -> None:
    store = Store.on(PostgresDriver(own_server.create_database(), node="n"), Clock(node="n"))
    await migrate(store.driver)
    listener = Listener()
    with subscribed(listener.event):
        watch = await store.watch(listener.receive)
        await asyncio.to_thread(own_server.stop, "immediate")
        await watch.check()
        assert watch.mode == "poll"
        await watch.check()
        await asyncio.to_thread(own_server.start)
        await watch.check()
    assert watch.mode == "notify"
    assert listener.modes == ["notify", "poll", "notify"]
    await enqueue(store)
    await listener.wait_for("ready default")
    await watch.close()
    await store.close()


# Another locale


@pytest.fixture
async def icu_store(postgres_server: PostgresServer) -> AsyncIterator[Store]:
    """A database with a natural sort order: ä beside a, case-insensitive, punctuation ignored."""
    name = "headway_icu"
    try:
        postgres_server.execute(
            sql.SQL(
                "create database {} template template0 locale_provider icu icu_locale 'en-US-u-ka-shifted' locale 'C'"
            ).format(sql.Identifier(name))
        )
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.SyntaxError):
        pytest.skip("this server has no ICU")
    store = Store.on(PostgresDriver(postgres_server.url(name)), Clock(node="n"))
    await migrate(store.driver)
    yield store
    await store.close()
    postgres_server.drop(name)


async def test_order_and_prefixes_do_not_depend_on_the_locale(icu_store: Store) -> None:
    store = icu_store
    assert isinstance(store.driver, PostgresDriver)
    raw = await store.driver.connect()
    assert await raw.fetchval("select 'a' < 'B' and 'ä' < 'b'"), "the locale has the wrong order"
    await raw.close()
    names = ["b", "B", "ä", "a-b", "ab", "a/b", "A", "_", "~", "Z", "z", "a b"]
    for name in names:
        await store.schedules.put(name, spec("1s", overlap="allow"))
    found: list[str] = []
    while page := await store.schedules.page(after=ScheduleRef("default", found[-1]) if found else None, limit=3):
        found += [schedule.name for schedule in page]
    assert found == sorted(names, key=str.encode)
    leases = [f"occurrence/{name}/1" for name in names]
    await store.leases.acquire([*leases, "occurrencez", "Occurrence/x"], holder="n", holder_name="", duration=LEASE)
    assert [lease.name for lease, _ in await store.leases.held("occurrence/")] == sorted(leases, key=str.encode)
    ids = ["job_0b", "job_0B", "job_0a", "job_1", "job_0ab", "job_0~"]
    for job_id in ids:
        await enqueue(store, id=job_id)
    assert [job.id for job in await store.jobs.page()] == sorted(ids, key=str.encode, reverse=True)
    assert (await store.jobs.get("job_1")).id == "job_1"
    assert (await store.jobs.get("job_0ab")).id == "job_0ab"

    async def all_due() -> list[Plan]:
        plans = await due_plans(store)
        return plans if {made.schedule.name for made in plans} == set(names) else []

    plans = await async_wait_until(all_due, "all schedules to be due")
    assert await store.ledger.fire(plans, None) == frozenset()
    jobs = await store.work.claim("default", node="n", lease=LEASE, limit=1_000)
    assert len(jobs) == len(ids) + sum(made.fires for made in plans)
    attempts = [Attempt(job_id=job.id, attempt=1, failures=0, max_attempts=1) for job in jobs]
    assert not await store.work.settle([settle(attempt, Succeeded(), 0) for attempt in attempts])


# Reports of status and doctor


async def test_long_transaction_is_reported(
    url: str, store: Store, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found() -> list[str]:
        seen = await read_overview(store, now=Clock().now(), facts=await facts(store.driver))
        return [alert.message for alert in faults(seen) if alert.code == "long_transaction"]

    assert await found() == []
    transaction = operator.transaction(isolation="repeatable_read")
    await transaction.start()
    await operator.execute("set application_name = 'a report'")
    await operator.fetchval("select count(*) from headway_jobs")
    assert await found() == [], "it is recent"
    monkeypatch.setattr(attention, "TRANSACTION_S_MAX", 0.0)
    (words,) = await found()
    assert "of a report, idle in transaction" in words
    seen = await read_overview(store, now=Clock().now(), facts=await facts(store.driver), tenant="acme")
    assert "long_transaction" not in {alert.code for alert in faults(seen)}, "tenants do not see it"
    await transaction.rollback()
    assert await found() == []


async def test_facts_of_a_wrapped_driver(store: Store) -> None:
    known = await facts(WrappingDriver(WrappingDriver(store.driver)))
    assert known == await facts(store.driver)
    assert known.kind == "postgresql"


async def test_encryption_of_a_connection_is_reported(own_server: PostgresServer) -> None:
    certificate, key = await asyncio.to_thread(make_certificate, own_server)
    for name, value in (("ssl_cert_file", certificate), ("ssl_key_file", key), ("ssl", "on")):
        await asyncio.to_thread(configure, own_server, name, str(value))

    async def is_encrypted(options: str) -> str:
        driver = PostgresDriver(f"{own_server.url()}?{options}")
        try:
            return (await facts(driver)).settings["encrypted"]
        finally:
            await driver.close()

    async def is_offered() -> bool:
        return await is_encrypted("sslmode=prefer") == "on"

    await async_wait_until(is_offered, "the server to offer encryption")
    assert await is_encrypted(f"sslmode=verify-full&sslrootcert={certificate}") == "on"
    assert await is_encrypted("sslmode=disable") == "off"
    with pytest.raises(StoreError, match=r"sslrootcert .*gone cannot be read"):
        await is_encrypted(f"sslmode=verify-full&sslrootcert={certificate}.gone")
