"""From release 0.1.0, with schema 5, to limits: nodes of both releases work on one store, and nothing is lost.

The old release is represented by its statements, as they were written. It knows neither lanes nor limits.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from headway.core.clock import Clock
from headway.core.errors import NodesTooOld
from headway.core.instants import HOUR
from headway.core.lifecycle import Succeeded
from headway.core.limits import SINCE_SCHEMA, Limit
from headway.core.nodes import Node
from headway.core.tenants import Tenant
from headway.operations.app_sync import Declarations, sync_app
from headway.operations.limit_sync import WAITS
from headway.store import Store, open_driver
from headway.store.migrations import migrate, steps_for
from headway.store.postgres import PostgresDriver
from headway.store.sqlite import SqliteDriver
from headway.store.statements import POSTGRES, SQLITE, parse, positional
from headway.store.transaction import Driver, Rows, as_json, call
from headway.wiring.declarations import DeclarationSync
from tests.conformance.arrange import end, new_job
from tests.conformance.limiting import claim, claimed, fill, finish, put

OLD: Final = """
-- name: old_claim
update headway_jobs
set status = 'RUNNING', attempt = {next_attempt}, node = :node, lease_until = {now_once} + :lease,
  started_at = {now_once}, progress = 0, detail = null, updated_at = {now_once}, version = {next version}
where {addressed} from headway_jobs
  where status = 'PENDING' and queue = :queue and (expires_at is null or expires_at > {now_once})
    and task not in {list skip} and company is null
    and not exists (select 1 from headway_queues where name = :queue and paused_at is not null)
  order by priority desc, run_at, id
  limit :limit {skip_locked}
{end_addressed}
returning id, attempt;

-- name: old_enqueue
insert into headway_jobs (id, task, args, tenant, queue, priority, max_attempts, exclusive, status, run_at, attempt,
  failures, version, created_at, updated_at, ready_at, progress, reason)
select r.id, r.task, 'null', r.tenant, 'default', 0, 1, 0, 'PENDING', {now}, 0, 0, 1, {now}, {now}, {now}, 0, ''
from {rows jobs as r (id text, task text, tenant text)} where true
returning id;

-- name: old_beat
insert into headway_nodes (id, name, roles, version, started_at, beat_at, state)
values (:id, :name, :roles, :version, {now}, {now}, :state)
on conflict (id) do update set beat_at = {now}, state = excluded.state, roles = excluded.roles
where headway_nodes.beat_at >= :seen
returning {now} as now, asked, started_at;
"""


def _teach(driver: Driver) -> None:
    """Let a driver run the statements of the old release."""
    if isinstance(driver, PostgresDriver):
        for statement in parse(OLD, POSTGRES):
            driver._texts[statement.name] = positional(statement, lambda index: f"${index}"), statement.parameters
    else:
        assert isinstance(driver, SqliteDriver)
        known = {statement.name: statement for statement in parse(OLD, SQLITE)}
        driver._connection._statements = {**driver._connection._statements, **known}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driver]:
    """Provide a database as the old release has left it."""
    is_sqlite = request.param == "sqlite"
    driver = open_driver(f"sqlite:///{tmp_path}/headway.db" if is_sqlite else request.getfixturevalue("postgres_url"))
    for step in steps_for(driver)[: SINCE_SCHEMA - 1]:
        await driver.script(step.statements, "test")
    _teach(driver)
    yield driver
    await driver.close()


async def _old_enqueue(driver: Driver, count: int, **options: str) -> list[str]:
    jobs = [{"id": new_job().id, "task": "report", "tenant": "default", **options} for _ in range(count)]
    return [row["id"] for row in await driver.fetch(call("old_enqueue", jobs=as_json(jobs)))]


async def _old_claim(driver: Driver, limit: int = 1) -> Rows:
    return await driver.fetch(call("old_claim", queue="default", node="old", lease=HOUR, limit=limit, skip="[]"))


async def _old_beat(driver: Driver, name: str = "old-1") -> None:
    said = {"roles": "worker", "version": "0.1.0", "state": '{"worker": {"tasks": ["report"]}}', "seen": 0}
    await driver.fetch(call("old_beat", id=name, name=name, **said))


async def _count(driver: Driver, where: str, table: str = "headway_jobs") -> int:
    [statement] = parse(f"-- name: counted\nselect count(*) as n from {table} where {where};", POSTGRES)
    if isinstance(driver, PostgresDriver):
        driver._texts["counted"] = statement.text, ()
    else:
        assert isinstance(driver, SqliteDriver)
        driver._connection._statements = {**driver._connection._statements, "counted": statement}
    return int((await driver.fetch(call("counted")))[0]["n"])


async def test_both_releases_work_on_one_store_and_every_job_runs_once(driver: Driver) -> None:
    before = await _old_enqueue(driver, 4) + await _old_enqueue(driver, 2, tenant="acme")
    await _old_beat(driver)
    assert len(await _old_claim(driver)) == 1  # It runs while the schema changes.
    assert await migrate(driver) == (SINCE_SCHEMA - 1, steps_for(driver)[-1].version)
    store = Store.on(driver, Clock(node="new"))
    await store.nodes.beat(Node(id="new", name="new-1", roles=("worker",)))
    await _old_beat(driver)
    ids = before + await _old_enqueue(driver, 2) + await _old_enqueue(driver, 3, tenant="globex")
    ids += await fill(store, 3, tenant="acme") + await fill(store, 1)
    started = [row["id"] for row in await _old_claim(driver, 3)]
    queues = await store.work.ready_queues()
    assert queues == {"default": True}
    plain = await store.work.claim("default", node="new", lease=HOUR, limit=1)
    lanes = await claimed(store)
    started += [job.id for job in (*plain, *lanes)]
    started += [row["id"] for row in await _old_claim(driver, 100)]
    assert len(started) == len({*started}) == len(ids) - 1
    assert not await _count(driver, "status = 'PENDING'")
    for job in (*plain, *lanes):
        assert not await end(store, job, Succeeded())


async def test_jobs_of_tenants_from_before_the_migration_are_found(driver: Driver) -> None:
    """No ring says that they are there: triggers are younger than they are."""
    await _old_enqueue(driver, 2, tenant="acme")
    await _old_enqueue(driver, 2)
    await migrate(driver)
    store = Store.on(driver, Clock(node="new"))
    assert await store.work.ready_queues() == {"default": True}
    jobs = [*await store.work.claim("default", node="new", lease=HOUR, limit=9), *await claimed(store)]
    assert len(jobs) == 4


async def test_limits_and_tenants_are_refused_while_old_nodes_run(driver: Driver) -> None:
    await migrate(driver)
    store = Store.on(driver, Clock(node="new"))
    await store.nodes.beat(Node(id="new", name="new-1", roles=("worker",)))
    await _old_beat(driver)
    limit, tenant = Limit.build("queue:default", concurrency=1), Tenant.build("acme", weight=2)
    with pytest.raises(NodesTooOld, match=r"'queue:default'.*old-1 \(worker\); upgrade or stop them, and try again"):
        await store.limits.put(limit, author="ada")
    with pytest.raises(NodesTooOld, match=r"'acme'.*old-1"):
        await store.tenants.put(tenant, author="ada")
    assert not await _count(driver, "true", "headway_limits")
    assert not await _count(driver, "true", "headway_limit_revisions")
    assert not await _count(driver, "true", "headway_tenants")
    assert not await _count(driver, "limited = 1", "headway_queues")
    declared = Declarations(owner="shop", schedules={}, limits={limit.name: limit}, tenants={tenant.name: tenant})
    done = await sync_app(store, declared)
    assert [outcome.startswith(WAITS) for outcome in done.values()] == [True, True]
    for number in range(7):
        await _old_beat(driver, f"more-{number}")
    with pytest.raises(NodesTooOld, match="and 3 more"):
        await store.limits.put(limit, author="ada")
    for name in ("old-1", *(f"more-{number}" for number in range(7))):
        await store.nodes.leave(name)
    assert [*(await sync_app(store, declared)).values()] == ["created", "created"]
    await _old_beat(driver)  # It was started by mistake. What is in force can still be changed.
    await put(store, "queue:default", concurrency=2)
    assert await store.limits.remove("queue:default", author="ada")


class _Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, event: str, *, level: str = "info", **facts: object) -> None:
        self.said.append(f"{event} {facts}")


async def test_node_that_starts_among_old_ones_writes_its_limits_later(driver: Driver) -> None:
    await migrate(driver)
    store, log = Store.on(driver, Clock(node="new")), _Log()
    await _old_beat(driver)
    limit = Limit.build("queue:default", concurrency=1)
    sync = DeclarationSync(store, Declarations(owner="shop", schedules={}, limits={limit.name: limit}), Clock(), log)
    await sync.run(asyncio.Event())
    [attention] = sync.attention
    assert "old-1 (worker)" in attention
    await sync.tick()
    assert len(sync.attention) == 1
    assert sum("declaration skipped" in line for line in log.said) == 1  # It is not repeated.
    await store.nodes.leave("old-1")
    await sync.tick()
    assert (sync.is_waiting, sync.attention) == (False, [])
    assert [found.name for found in await store.limits.all()] == ["queue:default"]


async def test_no_place_is_lost_after_an_upgrade(driver: Driver) -> None:
    """Attempts that old nodes have begun are counted, and jobs that old programs enqueue start."""
    await _old_enqueue(driver, 3)
    assert len(await _old_claim(driver, 2)) == 2
    await migrate(driver)
    store = Store.on(driver, Clock(node="new"))
    await put(store, "task:report", concurrency=3)
    while await store.limits.keep_going():
        pass
    late = await _old_enqueue(driver, 2, tenant="acme")  # A program that only enqueues, and is upgraded last.
    [job] = await claimed(store)
    assert await claimed(store) == []
    await store.work.hand_back_unknown("old", known=(), given_up=())  # Its two attempts end.
    await store.limits.keep_going()
    started = [job]
    while (found := await claim(store)).jobs or found.has_more or await store.limits.keep_going():
        started += found.jobs
        assert await _count(driver, "lease_until is not null") <= 3
        await finish(store, *found.jobs)
    assert {*late} < {one.id for one in started}
    await finish(store, job)
    assert not await _count(driver, "finished_at is null")
