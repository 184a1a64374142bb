"""Batches over HTTP, for tenants, on the command line and in callers' transactions."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headway import Headway
from headway.cli.batches import SEGMENTS, pieces, segments, words
from headway.client import Client
from headway.core.errors import BatchClosed, BatchNotFound, InvalidTask
from headway.core.jobs import NewJob
from headway.core.lifecycle import Succeeded
from headway.store import Store
from headway.wire.base import example_of
from headway.wire.batches import Batch, BatchCounts
from tests.conformance.arrange import end
from tests.conformance.grouping import FAILURE, keep, settle_all
from tests.support.command_line import Cli
from tests.support.house import SECRET, House, house
from tests.support.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(f"sqlite:///{tmp_path_factory.mktemp('batches')}/headway.db") as made:
        yield made


def jobs(count: int, key: str = "", **more: Any) -> list[dict[str, Any]]:
    """Describe jobs of a queue that nobody works on."""
    plain = {"type": "report", "queue": key or "batches", **more}
    return [plain | ({"key": f"{key}:{n}"} if key else {}) for n in range(count)]


# --- over HTTP


def test_batch_over_http_from_its_creation_to_its_end(home: House) -> None:
    body = {"name": "reports/2027", "on_done": "mail"}
    created = home.root.post("/api/batches", json=body)
    again = home.root.post("/api/batches", json=body)
    assert (created.status_code, again.status_code) == (201, 200)
    batch = created.json()
    assert created.headers["location"] == f"/api/batches/{batch['id']}"
    assert (batch["total"], batch["progress"], batch["rate"], batch["eta_seconds"]) == (0, 0, None, None)
    for _ in range(2):  # Keys: the second request finds the jobs of the first one.
        added = home.root.post("/api/jobs/bulk", json={"batch": "reports/2027", "jobs": jobs(3, "http")})
        assert added.status_code in (200, 201)
    assert added.json()["existing"] == 3
    assert {one["batch"] for one in added.json()["items"]} == {batch["id"]}
    shown = home.root.get("/api/batches/reports/2027").json()
    assert shown["counts"] == {"waiting": 3, "running": 0, "completed": 0, "failed": 0, "timed_out": 0, "cancelled": 0}
    listed = home.root.get("/api/jobs", params={"batch": "reports/2027"}).json()["items"]
    assert [one["batch"] for one in listed] == [batch["id"]] * 3
    assert home.root.get("/api/jobs/count", params={"batch": batch["id"]}).json()["count"] == 3
    assert home.root.get(f"/api/jobs/{listed[0]['id']}").json()["batch"] == batch["id"]
    closed = home.root.post("/api/batches/reports/2027/close").json()
    assert (closed["changed"], closed["open_until"]) == (True, None)
    assert home.root.post(f"/api/batches/{batch['id']}/close").json()["changed"] is False
    late = home.root.post("/api/jobs/bulk", json={"batch": batch["id"], "jobs": jobs(1)})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "batch_closed")
    assert "is closed, so it takes no more jobs" in late.json()["error"]["message"]

    async def finish(store: Store) -> None:
        claimed = await store.work.claim("http", node="n", lease=10**9, limit=9)
        assert len(claimed) == 3
        for job in claimed:
            await end(store, job, Succeeded())
        await keep(store)

    home.on_store(finish)
    done = home.root.get(f"/api/batches/{batch['id']}").json()
    assert (done["outcome"], done["progress"], done["counts"]["completed"]) == ("completed", 100, 3)
    assert done["rate"] > 0
    [callback] = home.root.get("/api/jobs", params={"type": "mail"}).json()["items"]
    assert callback["key"] == f"group:{batch['id']}:done"
    assert callback["args"]["batch"]["counts"]["completed"] == 3
    assert home.root.get("/api/batches", params={"state": "finished"}).json()["items"][0]["id"] == batch["id"]


def test_tenant_sees_and_changes_its_own_batches_only(home: House) -> None:
    own = home.acme.post("/api/batches", json={"name": "mine"}).json()
    assert own["tenant"] == "acme"
    assert home.globex.post("/api/batches", json={"name": "mine"}).json()["id"] != own["id"]
    platform = home.root.post("/api/batches", json={"name": "platform"}).json()
    rows = [{"type": "report", "queue": "platform", "tenant": tenant} for tenant in ("acme", "globex")]
    added = home.root.post("/api/jobs/bulk", json={"batch": "platform", "jobs": rows}).json()["items"]
    job_id = next(one["id"] for one in added if one["tenant"] == "acme")
    for name in (platform["id"], "platform"):
        assert home.acme.get(f"/api/batches/{name}").status_code == 404
        for action in ("close", "cancel", "retry"):
            assert home.acme.post(f"/api/batches/{name}/{action}").status_code == 404
        assert home.acme.get("/api/jobs", params={"batch": name}).json()["items"] == []
        assert home.acme.get("/api/jobs/count", params={"batch": name}).json()["count"] == 0
        bulk = {"batch": name, "jobs": [{"type": "report"}]}
        assert home.acme.post("/api/jobs/bulk", json=bulk).status_code == 404
    assert [one["id"] for one in home.acme.get("/api/batches").json()["items"]] == [own["id"]]
    assert home.acme.get("/api/batches", params={"tenant": "globex"}).status_code == 403
    # The tenant sees its job, not that it is in a batch of the platform.
    assert home.acme.get(f"/api/jobs/{job_id}").json()["batch"] is None
    assert {one["batch"] for one in home.acme.get("/api/jobs").json()["items"]} == {None}
    assert home.root.get(f"/api/jobs/{job_id}").json()["batch"] == platform["id"]
    assert home.viewer.post("/api/batches", json={"name": "no"}).status_code == 403
    assert home.acme.post("/api/batches", json={"name": "no", "tenant": "globex"}).status_code == 403


def test_actions_leave_one_audit_entry_each(home: House) -> None:
    batch = home.root.post("/api/batches", json={"name": "audited", "tenant": "acme"}).json()
    home.root.post("/api/jobs/bulk", json={"batch": batch["id"], "jobs": jobs(2, "audited", max_attempts=1)})

    async def fail(store: Store) -> None:
        [job, *_] = await store.work.claim("audited", node="n", lease=10**9, limit=1)
        await end(store, job, FAILURE)

    home.on_store(fail)
    for _ in range(2):
        for action in ("close", "retry"):
            home.root.post(f"/api/batches/{batch['id']}/{action}")
    for _ in range(2):
        home.acme.post(f"/api/batches/{batch['id']}/cancel", json={"reason": "wrong day"})
    shown = home.root.get(f"/api/batches/{batch['id']}").json()
    assert (shown["total"], shown["retried"], shown["counts"]["cancelled"]) == (3, 1, 2)
    assert shown["reason"] == "cancelled by acme: wrong day"
    found = home.root.get("/api/audit-log").json()["items"]
    entries = [(one["action"], one["tenant"]) for one in found if one["target"] == batch["id"]][::-1]
    assert entries == [("batch.close", "acme"), ("batch.retry", "acme"), ("batch.cancel", "acme")]


def test_refusals_over_http(home: House) -> None:
    for body in ({}, {"name": ""}, {"name": "x" * 600}, {"name": "batch_1"}, {"name": "a\nb"}, {"name": "a", "x": 1}):
        assert home.root.post("/api/batches", json=body).status_code == 422, body
    for wrong in ("nope", "-1s", "0s", -1):
        assert home.root.post("/api/batches", json={"name": "a", "open_for": wrong}).status_code == 422
    assert home.root.get("/api/batches/a").status_code == 404
    home.root.post("/api/batches", json={"name": "called", "on_done": "mail"})
    other = home.root.post("/api/batches", json={"name": "called", "on_done": "fax"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "duplicate_key")
    debounced = {"batch": "called", "jobs": [{"type": "report", "key": "k", "unique": "1m"}]}
    assert home.root.post("/api/jobs/bulk", json=debounced).status_code == 422
    with Client(home.api.url, SECRET) as client:
        assert client.batches.create("by-client", open_for="2h")["name"] == "by-client"
        client.enqueue_many([{"task": "report", "queue": "batches"}], batch="by-client")
        assert client.batches.show("by-client")["total"] == 1
        assert client.batches.close("by-client")["changed"] is True
        assert "by-client" in [one["name"] for one in client.batches.list(state="unfinished")]
        with pytest.raises(BatchClosed):
            client.enqueue_many([{"task": "report"}], batch="by-client")
        with pytest.raises(BatchNotFound):
            client.batches.show("nobody")
        with pytest.raises(InvalidTask):
            client.batches.create("batch_x")


# --- on the command line


def test_commands(cli: Cli) -> None:
    app = Headway(f"sqlite:///{cli.folder / 'headway.db'}", name="shop")

    @app.task
    def report(n: int) -> int:
        return n

    async def end_two() -> None:
        await settle_all(await app.store(), FAILURE, limit=1)
        await settle_all(await app.store(), limit=1)

    with app.batch_sync("reports") as batch:
        batch.add_many_sync(report, [{"n": n} for n in range(4)])
    app.batch_sync("other", tenant="acme")
    app.blocking(end_two())
    listed = cli("batches", "list", "--json").json
    assert [(one["name"], one["total"]) for one in listed] == [("other", 0), ("reports", 4)]
    assert "reports" in cli("batches", "list", "--unfinished").out
    assert cli("batches", "list", "--finished").out.startswith("no batches")
    shown = cli("batches", "show", "reports")
    assert "closed; 1 of 4 completed, 1 failed, 0 running, 2 waiting" in shown.out
    assert "headway jobs list --batch" in shown.out
    assert len(cli("jobs", "list", "--batch", "reports", "--status", "FAILED", "--json").json) == 1
    assert "the failed jobs run again" in cli("batches", "retry", "reports").out
    assert "no failed job is left to rerun" in cli("batches", "retry", "reports").out
    assert cli("batches", "show", "reports", "--json").json["retried"] == 1
    assert cli("batches", "close", "other").code == 3  # Of another tenant.
    assert "closed" in cli("batches", "close", "other", "--tenant", "acme").out
    assert "cancelled" in cli("batches", "cancel", "reports", "--reason", "wrong day").out
    app.blocking(_keep(app))
    watched = cli("batches", "watch", "reports")
    assert (watched.code, "reports: cancelled" in watched.out) == (1, True)
    changes = [json.loads(line) for line in cli("batches", "watch", "reports", "--json").out.splitlines()]
    assert [one["outcome"] for one in changes] == ["cancelled"]
    assert cli("batches", "watch", "other", "--tenant", "acme").code == 0


async def _keep(app: Headway) -> None:
    await keep(await app.store())


def _batch(**counts: int) -> Batch:
    plain = dict.fromkeys(BatchCounts.__struct_fields__, 0) | counts
    values = example_of(Batch) | {"counts": BatchCounts(**plain), "total": sum(counts.values()), "progress": 0}
    return Batch(**values)


def test_bar_shows_each_state_and_has_a_fixed_width() -> None:
    for batch in (
        _batch(),
        _batch(waiting=1),
        _batch(completed=9_999, failed=1),
        _batch(waiting=1, running=1, completed=1, failed=1, timed_out=1, cancelled=1),
        _batch(waiting=10**6, running=1, completed=10**6),
    ):
        widths = segments(batch)
        assert sum(widths) == 40
        assert all(width > 0 for (name, *_), width in zip(SEGMENTS, widths, strict=True) if getattr(batch.counts, name))
    drawn = "".join(text for text, _ in pieces(_batch(completed=20, failed=20), is_ascii=True))
    assert "####################xxxxxxxxxxxxxxxxxxxx" in drawn
    assert words(_batch(completed=2, failed=1)).startswith("2 of 3 completed, 1 failed, 0 running")


# --- in the caller's transaction


def test_batch_in_a_transaction_that_rolls_back(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db", name="shop")

    @app.task
    def report(n: int) -> int:
        return n

    assert app.batches_sync() == []  # Creates the store.
    connection = sqlite3.connect(tmp_path / "headway.db", timeout=DEADLINE_S)
    for is_kept in (False, True):
        connection.execute("begin")
        with app.batch_sync("reports", tx=connection) as batch:
            batch.add_many_sync(report, [{"n": n} for n in range(3)])
        assert batch.total == 3
        if is_kept:
            connection.commit()
        else:
            connection.rollback()
            assert app.batches_sync() == []
    [found] = app.batches_sync()
    assert (found.id, found.total, found.closed_at is not None) == (batch.id, 3, True)
    connection.close()


@pytest.mark.postgres
async def test_batch_in_a_transaction_on_postgresql(migrated_url: str) -> None:
    app = Headway(migrated_url, name="shop")

    @app.task
    def report(n: int) -> int:
        return n

    connection = await asyncpg.connect(migrated_url, timeout=DEADLINE_S)
    try:
        async with app:
            transaction = connection.transaction()
            await transaction.start()
            async with app.batch("reports", tx=connection) as batch:
                await batch.add_many(report, [{"n": n} for n in range(3)])
            assert await app.batches() == []
            await transaction.rollback()
            assert await app.batches() == []
            async with connection.transaction(), app.batch("reports", tx=connection) as batch:
                await batch.add_many(report, [{"n": n} for n in range(3)])
            assert [(one.total, one.closed_at is not None) for one in await app.batches()] == [(3, True)]
    finally:
        await connection.close()


def test_new_job_of_an_unknown_batch_is_refused(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db", name="shop")
    with pytest.raises(BatchNotFound):
        app.enqueue_jobs_sync([NewJob(id="job_1", task="report", group_id="batch_unknown")])
