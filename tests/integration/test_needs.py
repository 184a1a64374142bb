"""Needs from the outside: over HTTP, on the command line, and with real workers that offer something."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway import Headway, InvalidTask
from headway.core.clock import Clock
from headway.core.needs import read_amounts
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.store import Store
from headway.wiring.api import new_api
from tests.chaos.worker_arena import WorkerArena, everywhere
from tests.support.command_line import Cli
from tests.support.waiting import DEADLINE_S, wait_until

SECRET = "4f9ac2d07b16e8354f9a-needs"
ROOT = {"Authorization": f"Bearer {SECRET}"}
LEASE = "10m"  # Too long to expire: a slow machine would cause one more attempt than expected.


def worker_node(name: str, **offered: Any) -> Node:
    state = {"tasks": ["report", "pinned"], "queues": ["*"], "slots": 4, "running": 0, "defaults": DEFAULTS, **offered}
    return Node(id=f"node_{name}", name=name, roles=("worker",), version="0.2", state={"worker": state})


DEFAULTS = {"report": {"needs": {"cpu": 1}}, "pinned": {"pin": True}}


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[tuple[Store, httpx.AsyncClient]]:
    settings = Settings(store=f"sqlite:///{folder}/headway.db", token=SECRET, **options)
    app = Headway(settings=settings)
    api = new_api(app.store, settings, Clock())
    transport = httpx.ASGITransport(app=api)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=ROOT) as client:
            yield await app.store(), client
    finally:
        await api.close()


async def test_needs_over_http(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, client):
        await store.nodes.beat(worker_node("small", offer={"cpu": 2}, offer_free={"cpu": 0}))
        sent = {"type": "report", "needs": {"memory": "4G", "cpu": 0.5}, "labels": {"zone": "eu"}}
        job = (await client.post("/api/jobs", json=sent)).json()
        assert (job["needs"], job["labels"], job["pinned_to"]) == (
            {"cpu": 0.5, "memory": 1 << 32},
            {"zone": "eu"},
            None,
        )
        plain = (await client.post("/api/jobs", json={"type": "report"})).json()
        assert (plain["needs"], plain["labels"]) == ({"cpu": 1}, None)
        none = (await client.post("/api/jobs", json={"type": "report", "needs": {}})).json()
        assert none["needs"] is None
        many = {"jobs": [{"type": "report", "needs": {"gpu": 1}}, {"type": "report"}]}
        bulk = (await client.post("/api/jobs/bulk", json=many)).json()
        assert [item["needs"] for item in bulk["items"]] == [{"gpu": 1}, {"cpu": 1}]
        why = [(await client.get(f"/api/jobs/{one['id']}/why")).json() for one in (job, plain, none, bulk["items"][0])]
        assert why[0]["why"] == "needs memory=4G, nobody offers it; the label zone=eu, no worker has it"
        assert why[0]["evidence"]["cure"] == (
            "headway worker --app MODULE:APP --offer cpu=0.5,memory=4294967296 --label zone=eu"
        )
        assert why[1]["why"].startswith("needs cpu=1, and the worker that offers it has too little free")
        assert why[2]["why"].startswith("ready for")
        assert why[3]["why"] == "needs gpu=1, nobody offers it"
        before = (await client.get("/api/jobs/count")).json()["count"]
        for wrong in ({"cpu": -1}, {"cpu": 0}, {"cpu": "4X"}, {"CPU": 1}, {"cpu": 1e30}, {"cpu": "500m"}):
            refused = await client.post("/api/jobs", json={"type": "report", "needs": wrong})
            assert (refused.status_code, refused.json()["error"]["message"][:5]) == (422, "needs")
        refused = await client.post("/api/jobs", json={"type": "report", "labels": {"zone": "e u"}})
        assert refused.status_code == 422
        assert (await client.get("/api/jobs/count")).json()["count"] == before


async def test_workers_show_what_they_offer_and_what_is_free(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, client):
        offered = {"offer": {"cpu": 8, "memory": 1 << 35}, "offer_free": {"cpu": 6.5, "memory": 1 << 34}}
        await store.nodes.beat(worker_node("big", **offered, labels={"zone": "eu"}, app_version="1.4"))
        await store.nodes.beat(worker_node("old"))
        big, old = (await client.get("/api/workers")).json()["items"]
        assert {name: big[name] for name in offered} == offered
        assert (big["labels"], big["app_version"]) == ({"zone": "eu"}, "1.4")
        assert (old["offer"], old["offer_free"], old["labels"], old["app_version"]) == ({}, {}, {}, None)


async def test_tenant_chooses_no_workers_and_learns_no_numbers(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, client):
        await store.nodes.beat(worker_node("small", offer={"cpu": 2}, offer_free={"cpu": 0}))
        made = await client.post("/api/tokens", json={"name": "a", "tenant": "acme", "role": "operator"})
        acme = {"Authorization": f"Bearer {made.json()['token']}"}
        chosen: list[dict[str, Any]] = [{"needs": {"cpu": 64}}, {"needs": {}}, {"labels": {"zone": "eu"}}]
        for wrong in chosen:
            refused = await client.post("/api/jobs", json={"type": "report", **wrong}, headers=acme)
            assert refused.status_code == 403, wrong
        put = {"task": "report", "every": "1h", "needs": {"cpu": 64}}
        assert (await client.put("/api/schedules/s", json=put, headers=acme)).status_code == 403
        assert (
            await client.put("/api/schedules/s", json={**put, "needs": {"cpu": 1}}, headers=acme)
        ).status_code == 201
        busy = (await client.post("/api/jobs", json={"type": "report"}, headers=acme)).json()
        huge = {"type": "report", "tenant": "acme", "needs": {"cpu": 64, "gpu": 1}}
        large = (await client.post("/api/jobs", json=huge)).json()
        said = [(await client.get(f"/api/jobs/{one['id']}/why", headers=acme)).json() for one in (busy, large)]
        assert re.fullmatch(r"ready for .*, waits for a worker", said[0]["why"])
        assert said[1]["why"] == "needs cpu=64, nobody offers so much; gpu=1, nobody offers it"
        assert not {"offer_free", "offered_by", "cure"} & (said[0]["evidence"].keys() | said[1]["evidence"].keys())


async def test_pinned_task_over_http(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with opened(tmp_path / "a") as (store, client):
        await store.nodes.beat(worker_node("any", app_version="1.3"))
        refused = await client.post("/api/jobs", json={"type": "pinned"})
        assert refused.status_code == 422
        assert "HEADWAY_APP_VERSION" in refused.json()["error"]["message"]
        assert (await client.get("/api/jobs/count")).json()["count"] == 0
    async with opened(tmp_path / "a", app_version="1.4") as (store, client):
        await store.nodes.beat(worker_node("any", app_version="1.3"))
        job = (await client.post("/api/jobs", json={"type": "pinned"})).json()
        assert job["pinned_to"] == "1.4"
        why = (await client.get(f"/api/jobs/{job['id']}/why")).json()
        assert why["why"] == "needs version 1.4, no worker runs it"
        assert why["evidence"]["cure"].startswith("HEADWAY_APP_VERSION=1.4 headway worker")


async def test_schedule_keeps_needs_and_gives_them_to_its_jobs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, client):
        await store.nodes.beat(worker_node("small", offer={"cpu": 2}))
        body = {"task": "report", "every": "1h", "needs": {"memory": "1G"}, "labels": {"zone": "eu"}, "version": "7"}
        made = (await client.put("/api/schedules/s", json=body)).json()
        assert (made["needs"], made["labels"], made["version"]) == ({"memory": 1 << 30}, {"zone": "eu"}, "7")
        assert any("memory=1G, nobody offers it" in warning for warning in made["warnings"])
        same = (await client.put("/api/schedules/s", json={**body, "needs": {"memory": 1 << 30}})).json()
        assert same["outcome"] == "unchanged"
        triggered = (await client.post("/api/schedules/s/trigger")).json()
        stored = await store.jobs.get(triggered["job_id"] if "job_id" in triggered else triggered["id"])
        assert stored.needs == "memory=1073741824 zone:eu @7"
        inherited = (await client.put("/api/schedules/t", json={"task": "report", "every": "1h"})).json()
        assert inherited["needs"] == {"cpu": 1}


def test_command_line(cli: Cli) -> None:
    needs = ("--need", "cpu=2", "--need", "memory=4G", "--label", "zone=eu")
    job = cli("enqueue", "report", *needs, "--json").json
    assert (job["needs"], job["labels"]) == ({"cpu": 2, "memory": 1 << 32}, {"zone": "eu"})
    assert cli("jobs", "why", job["id"], "--json").json["why"] == "no worker is alive"
    again = cli("jobs", "cancel", job["id"], "--json")
    assert again.code == 0
    assert cli("jobs", "retry", job["id"], "--json").json["needs"] == job["needs"]
    for wrong in ("cpu", "cpu=", "cpu=-1", "cpu=nan", "cpu=1,cpu=2"):
        refused = cli("enqueue", "report", "--need", wrong)
        assert refused.code == 2
        assert "--need" in refused.err
    for flags in (("--offer", "cpu=0"), ("--offer", "cpu"), ("--label", "zone"), ("--label", "zone=e u")):
        for role in ("worker", "serve", "dev"):
            refused = cli(role, *flags)
            assert refused.code == 2, (role, flags, refused.err)
            assert flags[0] in refused.err


def test_tasks_in_a_file_have_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headway.toml").write_text(
        'app_version = "9"\noffer = {cpu = 4, memory = "8G"}\nlabels = {zone = "eu"}\n'
        '[tasks.backup]\ncommand = ["true"]\nneeds = {cpu = 2, memory = "4G"}\nlabels = {zone = "eu"}\npin = true\n'
        '[schedules.nightly]\ntask = "backup"\ncron = "0 2 * * *"\n'
    )
    app = Headway(f"sqlite:///{tmp_path}/x.db", name="files")
    text = "cpu=2 memory=4294967296 zone:eu @9"
    assert app.tasks["backup"].defaults.needs_text == text
    assert app.declared["nightly"].needs_text == text
    assert (app.settings.offer, app.settings.labels) == (read_amounts("cpu=4,memory=8G", "offer"), {"zone": "eu"})
    (tmp_path / "headway.toml").write_text('[tasks.backup]\ncommand = ["true"]\nneeds = {cpu = -2}\n')
    with pytest.raises(Exception, match=r"tasks\.backup: needs: cpu must be"):
        Headway(f"sqlite:///{tmp_path}/x.db", name="files")


async def test_needs_of_many_rows_and_of_child_jobs(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/x.db", name="rows", version="3")

    @app.task(needs={"cpu": 1}, pin=True)
    def work(n: int) -> None: ...

    async with app:
        sizes = [{"n": 1}, {"n": 4}]
        made = await work.enqueue_many(sizes, needs=lambda row: {"cpu": row["n"]})
        made += await work.options(needs={"memory": "1G"}, labels={"zone": "eu"}).enqueue_many(sizes)
        stored = [(await app.job(handle.id)).job.needs for handle in made]
    memory = "memory=1073741824 zone:eu @3"
    assert stored == ["cpu=1 @3", "cpu=4 @3", memory, memory]
    with pytest.raises(InvalidTask, match="unknown option 'pin'"):
        work.options(pin=False)  # type: ignore[call-arg]


# --- real workers


@pytest.mark.postgres
@pytest.mark.slow
def test_real_workers_take_what_fits(postgres_url: str, tmp_path: Path) -> None:
    stores = {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}
    everywhere(_what_fits, stores, tmp_path)


def _what_fits(arena: WorkerArena) -> None:
    gate = arena.folder / "gate"
    common = ("--processes", "4", "--poll", "0.3s", "--worker-lease", LEASE)
    arena.start(*common, "--offer", "cpu=2", "--queues", "default,media", HEADWAY_NODE="small")
    arena.start(*common, HEADWAY_OFFER="cpu=4,gpu=1", HEADWAY_LABELS="zone=eu", HEADWAY_NODE="big")
    until = {"until": str(gate)}
    gpu = arena.enqueue("hold", until, needs={"gpu": 1, "cpu": 2})
    labelled = arena.enqueue("hold", until, labels={"zone": "eu"})
    for job in (gpu, labelled):
        wait_until(lambda job=job: arena.job(job, "status") == "RUNNING", "the big worker to take it")  # type: ignore[misc]
    many = arena.enqueue_many("hold", [until] * 8, needs={"cpu": 1}, queue="media")
    never = arena.enqueue("short", needs={"cpu": 64})
    plain = arena.enqueue_many("short", [{}] * 10)

    def running() -> dict[str, int]:
        rows = arena.sql(
            "select n.name, count(*) from headway_jobs j join headway_nodes n on n.id = j.node"
            " where j.status = 'RUNNING' and j.needs like 'cpu=%' group by n.name"
        )
        return dict(rows)

    wait_until(lambda: running() == {"small": 2, "big": 3}, f"the workers to be full: {running()}")
    arena.wait_final(plain, DEADLINE_S)  # They claim on, and take nothing more.
    assert running() == {"small": 2, "big": 3}
    waiting = [job for job in many if arena.job(job, "status") == "PENDING"]
    assert len(waiting) == 4
    arena.cancel(waiting.pop())
    gate.touch()
    arena.wait_final([gpu, labelled, *many], DEADLINE_S)
    assert arena.job(never, "status") == "PENDING"


def test_offer_in_the_list_of_workers(cli: Cli, tmp_path: Path) -> None:
    async def beat() -> None:
        store = await Store.open(f"sqlite:///{tmp_path}/headway.db", Clock(node="test"))
        offered = {"offer": {"cpu": 8, "memory": 1 << 35}, "offer_free": {"cpu": 6.5, "memory": 28 << 30}}
        await store.nodes.beat(worker_node("big", **offered, labels={"zone": "eu"}, app_version="1.4"))
        await store.close()

    asyncio.run(beat())
    listed = cli("workers", "list")
    assert "cpu 6.5/8, memory 28G/32G, zone=eu, version 1.4" in " ".join(listed.out.split())
    [worker] = cli("workers", "list", "--json").json
    assert json.dumps(worker["offer_free"]) == '{"cpu": 6.5, "memory": 30064771072}'
