"""Tenant isolation, probed on every route and on both databases.

Everything of the tenant `zebra` contains that word: names, arguments, errors, log lines, tags, keys. An admin of the
tenant `otter`, who has all rights within a tenant, requests it on every route. Three things must hold: the word never
comes back, except where it was in the request; foreign objects look like missing ones; and afterwards everything of
zebra is unchanged. Wherever a list is probed, the same request by an admin of all tenants does find the word, which
shows that the probe can fail. A route without a probe fails a test here.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from headway.core.clock import Clock
from headway.core.groups import NewGroup
from headway.core.instants import HOUR, SECOND
from headway.core.jobs import Report
from headway.core.lifecycle import Raised, Succeeded
from headway.core.limits import Limit
from headway.core.nodes import Node
from headway.core.schedules import ScheduleSpec
from headway.core.tenants import Tenant
from headway.core.triggers import Every
from headway.server.api import ROUTES
from headway.store import Store
from tests.conformance.arrange import claim_one, decide, end, enqueue
from tests.support.claiming import claim
from tests.support.house import House, house
from tests.support.waiting import DEADLINE_S, wait_until

WORD = "zebra"
ERROR = json.dumps({"type": "ZebraError", "message": "zebra failed", "traceback": "zebra.py"})
HOOK = "https://zebra.invalid/hook"
POLL_S = 60  # The longest wait that the API grants, so waiting would be noticed; no machine is that slow.


@dataclass
class Isolation:
    """A server with two tenants, and the ids of the objects of zebra."""

    home: House
    ids: dict[str, str]
    otter: httpx.Client
    zebra: httpx.Client

    def filled(self, value: Any) -> Any:
        """Replace <…> by ids."""
        if isinstance(value, str):
            return re.sub(r"<(\w+)>", lambda match: self.ids[match[1]], value)
        if isinstance(value, dict):
            return {name: self.filled(inner) for name, inner in value.items()}
        return [self.filled(inner) for inner in value] if isinstance(value, list) else value

    def ask(self, client: httpx.Client, probe: "Probe", *, absent: bool = False) -> tuple[httpx.Response, str]:
        """Send a probe; return the response, and its text without the words of the request."""
        said = {**self.ids, **ABSENT} if absent else self.ids
        asked = Isolation(self.home, said, self.otter, self.zebra)
        options: dict[str, Any] = {} if probe.body is None else {"json": asked.filled(probe.body)}
        path = asked.filled(probe.at or probe.path)
        answer = client.request(probe.method, path, headers=probe.headers, **options)
        text = answer.text.replace(answer.headers.get("x-request-id", "\0"), "")
        for spoken in sorted({*said.values(), "zebra-type", "absent-type", "zebra-queue"}, key=len, reverse=True):
            if spoken in path or spoken in json.dumps(options):
                text = text.replace(spoken, "<said>")
        return answer, text


@dataclass(frozen=True)
class Probe:
    """One request for objects of another tenant."""

    method: str
    path: str  # As in the table of routes.
    at: str = ""  # The actual path, if it differs; <job> stands for the id of a foreign job.
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = "" if self.body is None else " " + json.dumps(self.body)[:60]
        return f"{self.method} {self.at or self.path}{said}"


ABSENT = {
    "job": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "running": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "dead": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "schedule": "absent-schedule",
    "webhook": "wh_01m7h07rq30wjd03gjnmt8r3pz",
    "callbacks": "callbacks:absent",
    "delivery": "msg_0006498a1f2c80a1b2c3d4e5f60718293a4b5c",
    "token": "tok_01m7h07rq30wjd03gjnmt8r3pz",
    "type": "absent-type",
    "limit": "tenant:absent",
    "batch": "batch_absent",
    "batch_name": "absent-batch",
}

JOB, SCHEDULE = "/api/jobs/{job_id}", "/api/schedules/{name:path}"
WEBHOOK, DELIVERY = "/api/webhooks/{id}", "/api/deliveries/{id}"
BATCH = "/api/batches/{name:path}"
LIMIT, TENANT = "/api/limits/{name:path}", "/api/tenants/{name:path}"
RULE = {"task": "report", "cron": "0 6 * * *"}

# Foreign objects look like missing ones.
HIDDEN = [
    Probe("GET", JOB, "/api/jobs/<job>"),
    Probe("GET", JOB, "/api/jobs/<dead>"),
    Probe("GET", JOB, f"/api/jobs/<running>?wait={POLL_S}s&since=0"),
    Probe("GET", JOB, f"/api/jobs/<running>?wait={POLL_S}s&since=999999"),
    Probe("GET", JOB, "/api/jobs/<job>", headers={"If-None-Match": "*"}),
    Probe("GET", JOB, "/api/jobs/<job>", headers={"Accept": "text/event-stream"}),
    Probe("GET", f"{JOB}/attempts", "/api/jobs/<dead>/attempts"),
    Probe("GET", f"{JOB}/log", "/api/jobs/<running>/log"),
    Probe("GET", f"{JOB}/log", "/api/jobs/<running>/log?order=desc"),
    Probe("GET", f"{JOB}/history", "/api/jobs/<dead>/history"),
    Probe("GET", f"{JOB}/why", "/api/jobs/<running>/why"),
    Probe("POST", f"{JOB}/cancel", "/api/jobs/<job>/cancel", body={}),
    Probe("POST", f"{JOB}/cancel", "/api/jobs/<running>/cancel", body={"reason": "x"}),
    Probe("POST", f"{JOB}/cancel", "/api/jobs/<dead>/cancel", body={}),
    Probe("POST", f"{JOB}/retry", "/api/jobs/<dead>/retry"),
    Probe("POST", f"{JOB}/retry", "/api/jobs/<job>/retry"),
    Probe("POST", f"{JOB}/retry", "/api/jobs/<dead>/retry", body={"args": {"who": "otter"}}),
    Probe("GET", f"{JOB}/events", "/api/jobs/<running>/events"),
    Probe("GET", f"{JOB}/events", "/api/jobs/<dead>/events", headers={"Last-Event-ID": "1"}),
    Probe("GET", "/api/jobs/latest", "/api/jobs/latest?type=<type>"),
    Probe("GET", SCHEDULE, "/api/schedules/<schedule>"),
    Probe("DELETE", SCHEDULE, "/api/schedules/<schedule>"),
    Probe("PUT", SCHEDULE, "/api/schedules/<schedule>", body=RULE, headers={"If-Match": "*"}),
    Probe("GET", f"{SCHEDULE}/occurrences", "/api/schedules/<schedule>/occurrences"),
    Probe("GET", f"{SCHEDULE}/runs", "/api/schedules/<schedule>/runs"),
    Probe("GET", f"{SCHEDULE}/preview", "/api/schedules/<schedule>/preview"),
    Probe("GET", f"{SCHEDULE}/calendar", "/api/schedules/<schedule>/calendar"),
    Probe("POST", f"{SCHEDULE}/pause", "/api/schedules/<schedule>/pause", body={"reason": "x"}),
    Probe("POST", f"{SCHEDULE}/resume", "/api/schedules/<schedule>/resume"),
    Probe("POST", f"{SCHEDULE}/trigger", "/api/schedules/<schedule>/trigger", body={}),
    Probe("POST", f"{SCHEDULE}/trigger", "/api/schedules/<schedule>/trigger", body={"args": {"n": 1}}),
    Probe(
        "POST",
        f"{SCHEDULE}/backfill",
        "/api/schedules/<schedule>/backfill",
        body={"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"},
    ),
    Probe("GET", "/api/audit", "/api/audit?schedule=<schedule>"),
    Probe("POST", "/api/dead/{id}/retry", "/api/dead/<dead>/retry"),
    Probe("POST", "/api/dead/{id}/drop", "/api/dead/<dead>/drop"),
    Probe("POST", "/api/dead/{id}/retry", "/api/dead/<job>/retry"),
    Probe("POST", "/api/dead/retry", body={"ids": ["<dead>"]}),
    Probe("POST", "/api/dead/retry", body={"ids": ["<own_dead>", "<dead>"]}),
    Probe("POST", "/api/dead/retry", body={"ids": ["<dead>"], "dry_run": True}),
    Probe("POST", "/api/dead/drop", body={"ids": ["<dead>"]}),
    Probe("POST", "/api/dead/drop", body={"ids": ["<own_dead>", "<dead>"]}),
    Probe("GET", WEBHOOK, "/api/webhooks/<webhook>"),
    Probe("GET", WEBHOOK, "/api/webhooks/<callbacks>"),
    Probe("PUT", WEBHOOK, "/api/webhooks/<webhook>", body={"url": "https://otter.invalid/"}),
    Probe("PUT", WEBHOOK, "/api/webhooks/<webhook>", body={"enabled": False}),
    Probe("DELETE", WEBHOOK, "/api/webhooks/<webhook>"),
    Probe("DELETE", WEBHOOK, "/api/webhooks/<callbacks>"),
    Probe("POST", f"{WEBHOOK}/rotate", "/api/webhooks/<webhook>/rotate", body={}),
    Probe("POST", f"{WEBHOOK}/rotate", "/api/webhooks/<callbacks>/rotate", body={"keep": "0s"}),
    Probe("POST", f"{WEBHOOK}/test", "/api/webhooks/<webhook>/test", body={}),
    Probe("POST", f"{WEBHOOK}/test", "/api/webhooks/<callbacks>/test", body={"url": "https://otter.invalid/"}),
    Probe("GET", DELIVERY, "/api/deliveries/<delivery>"),
    Probe("POST", f"{DELIVERY}/replay", "/api/deliveries/<delivery>/replay"),
    Probe("DELETE", "/api/tokens/{id}", "/api/tokens/<token>"),
    Probe("GET", LIMIT, "/api/limits/<limit>"),
    Probe("GET", BATCH, "/api/batches/<batch>"),
    Probe("GET", BATCH, "/api/batches/<batch_name>"),
    Probe("POST", f"{BATCH}/close", "/api/batches/<batch>/close"),
    Probe("POST", f"{BATCH}/cancel", "/api/batches/<batch_name>/cancel", body={"reason": "x"}),
    Probe("POST", f"{BATCH}/cancel", "/api/batches/<batch>/cancel", body={}),
    Probe("POST", f"{BATCH}/retry", "/api/batches/<batch>/retry"),
    Probe("POST", "/api/jobs/bulk", body={"batch": "<batch>", "jobs": [{"type": "shared"}]}),
    Probe("POST", "/api/jobs/bulk", body={"batch": "<batch_name>", "jobs": [{"type": "shared"}]}),
]

# Lists contain objects of the own tenant only, whatever the filter.
LISTS = [
    Probe("GET", "/api/jobs", "/api/jobs?limit=200"),
    Probe("GET", "/api/jobs", "/api/jobs?type=zebra-type"),
    Probe("GET", "/api/jobs", "/api/jobs?queue=zebra-queue"),
    Probe("GET", "/api/jobs", "/api/jobs?key=zebra-key"),
    Probe("GET", "/api/jobs", "/api/jobs?tag=zebra-tag"),
    Probe("GET", "/api/jobs", "/api/jobs?q=zebra"),
    Probe("GET", "/api/jobs", "/api/jobs?q=<job>"),
    Probe("GET", "/api/jobs", "/api/jobs?status=FAILED"),
    Probe("GET", "/api/jobs", "/api/jobs?status=RUNNING"),
    Probe("GET", "/api/jobs", "/api/jobs?finished_after=2020-01-01T00:00:00Z"),
    Probe("GET", "/api/jobs", "/api/jobs?rerun_of=<shared>"),
    Probe("GET", "/api/jobs", "/api/jobs?batch=<batch>"),
    Probe("GET", JOB, "/api/jobs/<own_member>"),
    Probe("GET", "/api/batches"),
    Probe("GET", "/api/jobs/latest", "/api/jobs/latest?type=shared"),
    Probe("GET", "/api/jobs/latest", "/api/jobs/latest?type=shared&key=shared-key"),
    Probe("GET", "/api/schedules", "/api/schedules?limit=200"),
    Probe("GET", "/api/schedules", "/api/schedules?owner=zebra-app"),
    Probe("GET", "/api/schedules", "/api/schedules?q=zebra"),
    Probe("GET", "/api/schedules", "/api/schedules?state=active&recent=20"),
    Probe("GET", "/api/queues"),
    Probe("GET", "/api/limits"),
    Probe("GET", "/api/tenants"),
    Probe("GET", "/api/stats"),
    Probe("GET", "/api/alerts"),
    Probe("GET", "/api/dead"),
    Probe("GET", "/api/failures"),
    Probe("GET", "/api/failures", "/api/failures?finished_after=2020-01-01T00:00:00Z"),
    Probe("GET", "/api/dead", "/api/dead?type=zebra-type"),
    Probe("GET", "/api/webhooks"),
    Probe("GET", "/api/deliveries"),
    Probe("GET", "/api/deliveries", "/api/deliveries?endpoint=<webhook>"),
    Probe("GET", "/api/deliveries", "/api/deliveries?job=<dead>"),
    Probe("GET", "/api/tokens"),
    Probe("GET", "/api/audit-log"),
    Probe("GET", "/api/audit-log", "/api/audit-log?target=<token>"),
    Probe("GET", "/api/trail"),
    Probe("GET", "/api/trail", "/api/trail?target=<token>"),
    Probe("GET", "/api/trail", "/api/trail?actor=zebra-admin"),
]

# Requests that name another tenant, or concern all tenants, are refused, whether or not that tenant exists.
REFUSED = [
    Probe("GET", SCHEDULE, "/api/schedules/<schedule>?tenant=zebra"),
    Probe("GET", "/api/jobs", "/api/jobs?schedule=<schedule>&tenant=zebra"),
    Probe("GET", "/api/audit", "/api/audit?schedule=<schedule>&tenant=zebra"),
    Probe("GET", "/api/jobs", "/api/jobs?tenant=zebra"),
    Probe("GET", "/api/jobs", "/api/jobs?tenant=*"),
    Probe("GET", "/api/jobs/count", "/api/jobs/count?tenant=zebra"),
    Probe("POST", "/api/jobs/retry", body={"filter": {"tenant": "zebra"}}),
    Probe("POST", "/api/jobs/retry", body={"filter": {"tenant": "*", "status": "FAILED"}, "dry_run": True}),
    Probe("POST", "/api/jobs/cancel", body={"filter": {"tenant": "zebra", "status": "PENDING"}}),
    Probe("GET", "/api/jobs/latest", "/api/jobs/latest?type=zebra-type&tenant=zebra"),
    Probe("GET", "/api/schedules", "/api/schedules?tenant=zebra"),
    Probe("GET", "/api/dead", "/api/dead?tenant=zebra"),
    Probe("GET", "/api/failures", "/api/failures?tenant=zebra"),
    Probe("GET", "/api/batches", "/api/batches?tenant=zebra"),
    Probe("GET", BATCH, "/api/batches/<batch_name>?tenant=zebra"),
    Probe("POST", "/api/batches", body={"name": "x", "tenant": "zebra"}),
    Probe("POST", "/api/jobs", body={"type": "shared", "tenant": "zebra"}),
    Probe("POST", "/api/jobs", body={"type": "shared", "tenant": "*"}),
    Probe("POST", "/api/jobs", body={"type": "shared", "tenant": "default"}),
    Probe("POST", "/api/jobs/bulk", body={"jobs": [{"type": "shared"}, {"type": "shared", "tenant": "zebra"}]}),
    Probe("PUT", SCHEDULE, "/api/schedules/otter-new", body={**RULE, "tenant": "zebra"}),
    Probe("PUT", SCHEDULE, "/api/schedules/otter-new?dry_run=1", body={**RULE, "tenant": "zebra"}),
    Probe("PUT", "/api/schedules", body={"schedules": [{"name": "zebra-schedule", **RULE, "tenant": "zebra"}]}),
    Probe("PUT", "/api/schedules", "/api/schedules?tenant=zebra", body={"schedules": [{"name": "x", **RULE}]}),
    Probe("POST", "/api/dead/retry", body={"tenant": "zebra"}),
    Probe("POST", "/api/dead/drop", body={"tenant": "zebra"}),
    Probe("POST", "/api/webhooks", body={"url": "https://otter.invalid/", "tenant": "zebra"}),
    Probe("POST", "/api/webhooks", body={"url": "https://otter.invalid/", "tenant": "*"}),
    Probe("POST", "/api/tokens", body={"name": "x", "role": "viewer", "tenant": "zebra"}),
    Probe("POST", "/api/tokens", body={"name": "x", "role": "viewer", "tenant": "*"}),
    Probe("GET", "/api/workers"),
    Probe("GET", "/api/nodes"),
    Probe("GET", "/metrics"),
    Probe("POST", "/api/workers/{id}/drain", "/api/workers/<node>/drain"),
    Probe("POST", "/api/workers/{id}/drain", "/api/workers/absent/drain"),
    Probe("POST", "/api/queues/{name:path}/pause", "/api/queues/zebra-queue/pause", body={}),
    Probe("POST", "/api/queues/{name:path}/pause", "/api/queues/otter-queue/pause", body={}),
    Probe("POST", "/api/queues/{name:path}/resume", "/api/queues/zebra-paused/resume"),
    Probe("GET", "/api/queues/{name:path}/scale", "/api/queues/zebra-queue/scale"),
    Probe("GET", "/api/audit/limits"),
    Probe("PUT", LIMIT, "/api/limits/<limit>", body={"concurrency": 1}),
    Probe("PUT", LIMIT, "/api/limits/tenant:otter", body={"concurrency": 1}),
    Probe("DELETE", LIMIT, "/api/limits/<limit>"),
    Probe("GET", TENANT, "/api/tenants/zebra"),
    Probe("PUT", TENANT, "/api/tenants/zebra", body={"weight": 2}),
    Probe("PUT", TENANT, "/api/tenants/otter", body={"weight": 2}),
]

# Responses that do not depend on the data of any tenant, and contain none.
NEUTRAL = [
    Probe("GET", "/api/me"),
    Probe("GET", "/api/stats/series"),
    Probe("GET", "/api/jobs/count"),
    Probe("POST", "/api/schedules/preview", body={"cron": "0 6 * * *"}),
    Probe("GET", "/api/audit"),
    Probe("GET", "/openapi.json"),
    Probe("GET", "/docs"),
    Probe("GET", "/docs/docs.js"),
    Probe("GET", "/docs/docs.css"),
]

# Routes that have their own tests below.
BY_HAND = {("GET", "/api/stream")}


def text_of(probe: Probe) -> str:
    return str(probe)


# Data of both tenants


async def fill(store: Store) -> dict[str, str]:
    """Create objects of every kind for both tenants."""
    await store.webhooks.add(tenant="otter", url="https://otter.invalid/hook", author="otter-admin")
    webhook = await store.webhooks.add(tenant=WORD, url=HOOK, note="zebra-note", author="zebra-admin")
    await store.webhooks.ensure_callbacks(WORD)
    ids = {"webhook": webhook.id, "callbacks": f"callbacks:{WORD}", "schedule": "zebra-schedule", "type": "zebra-type"}
    for tenant in ("otter", WORD):  # Zebra's objects are newer, so that an admin of all tenants finds them first.
        common: dict[str, Any] = {"task": f"{tenant}-type", "queue": f"{tenant}-queue", "tenant": tenant}
        common |= {"args": json.dumps({"who": tenant}), "tags": (f"{tenant}-tag",)}
        dead = await enqueue(store, **common, max_attempts=1)
        await end(store, await claim_one(store, f"{tenant}-queue"), Raised(ERROR if tenant == WORD else "{}"))
        done = await enqueue(store, **common)
        await end(store, await claim_one(store, f"{tenant}-queue"), Succeeded(json.dumps({"who": tenant})))
        running = await enqueue(store, **common)
        [claimed] = await claim(store, f"{tenant}-queue", node=f"node_{tenant}", lease=HOUR, limit=1)
        said = ((None, "log", f"{tenant} says"),)
        await store.work.report([Report(job_id=running, attempt=claimed.attempt, progress=5, lines=said)])
        waiting = await enqueue(store, **common, key=f"{tenant}-key")
        shared = await enqueue(store, **{**common, "task": "shared"}, key="shared-key")
        await enqueue(store, **common, rerun_of=shared)
        found = {"job": waiting, "running": running, "dead": dead, "done": done, "shared": shared}
        ids |= found if tenant == WORD else {f"own_{name}": job_id for name, job_id in found.items()}
        batch = NewGroup(id=f"batch_{tenant}", name=f"{tenant}-batch", tenant=tenant)
        await store.groups.open(batch)
        spec = ScheduleSpec.build(task=f"{tenant}-type", trigger=Every("1s"), tenant=tenant, queue=f"{tenant}-late")
        await store.schedules.put(f"{tenant}-schedule", spec, owner=f"{tenant}-app", author=f"{tenant}-admin")
    member = {"task": "shared", "queue": "otter-queue", "tenant": "otter"}
    ids |= {"batch": "batch_zebra", "batch_name": "zebra-batch"}
    await enqueue(store, task="zebra-type", queue="zebra-queue", tenant=WORD, group_id=ids["batch"])
    ids["own_member"] = await enqueue(store, **member, group_id=ids["batch"])  # As a program of the platform may do.
    await store.queue.pause("zebra-paused", author="zebra-admin", reason="zebra-reason")
    await store.limits.put(Limit.build("tenant:zebra", concurrency=9), author="zebra-admin")
    await store.tenants.put(Tenant.build("zebra", weight=3), author="zebra-admin")
    ids["limit"] = "tenant:zebra"
    worker = {"tasks": ["shared", "report", "zebra-type", "otter-type"], "slots": 1}
    for tenant in ("otter", WORD):
        node = Node(id=f"node_{tenant}", name=f"{tenant}-node", roles=("worker",), state={"worker": worker})
        await store.nodes.beat(node)
    await store.audit_log.record(
        actor="zebra-admin",
        tenant=WORD,
        origin="zebra-host",
        action="jobs.cancel",
        target=waiting,
        detail='{"a":"zebra"}',
    )
    return {**ids, "node": "node_zebra"}


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def isolation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Isolation]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('tenants')}/headway.db"
    else:
        template = request.getfixturevalue("migrated_database")
        url = request.getfixturevalue("postgres_server").create_database(template=template)
    with house(url) as home, ExitStack() as stack:
        ids = home.on_store(fill)
        for tenant in ("otter", WORD):
            home.grow_older(f"{tenant}-schedule", 2 * SECOND)
            home.keep_alive(f"node_{tenant}")
        home.on_store(decide)
        clients = {}
        for tenant in (WORD, "otter"):
            body = {"name": f"{tenant}-admin", "role": "admin", "tenant": tenant}
            made = home.root.post("/api/tokens", json=body).json()
            clients[tenant] = stack.enter_context(home.api.client(made["token"]))
            ids["token" if tenant == WORD else "own_token"] = made["id"]
        ids["delivery"] = clients[WORD].get("/api/deliveries").json()["items"][0]["id"]
        yield Isolation(home, ids, clients["otter"], clients[WORD])


def belongings(isolation: Isolation) -> dict[str, Any]:
    """Read everything of zebra, except what changes as time passes."""
    found: dict[str, Any] = {}
    for path in ("/api/jobs?limit=200", "/api/schedules", "/api/webhooks", "/api/tokens", "/api/dead"):
        found[path] = isolation.zebra.get(path).json()["items"]
    for item in found["/api/jobs?limit=200"] + found["/api/dead"]:
        item.pop("why")
        item.pop("eta_seconds")
    found["trail"] = isolation.zebra.get("/api/trail?limit=200").json()["items"]
    found["deliveries"] = [item["id"] for item in isolation.zebra.get("/api/deliveries?limit=200").json()["items"]]
    found["queues"] = [
        {**item, "oldest_age_seconds": 0}
        for item in isolation.home.root.get("/api/queues").json()["items"]
        if WORD in item["name"]
    ]
    return found


@pytest.fixture(scope="module")
def before(isolation: Isolation) -> dict[str, Any]:
    return belongings(isolation)


@pytest.fixture(autouse=True)
def zebra_is_unchanged(isolation: Isolation, before: dict[str, Any]) -> Iterator[None]:
    yield
    assert belongings(isolation) == before


# The probes


def test_every_route_has_a_probe() -> None:
    probed = {(probe.method, probe.path) for probe in (*HIDDEN, *LISTS, *REFUSED, *NEUTRAL)} | BY_HAND
    known = {(route.method, route.path) for route in ROUTES if route.role is not None}
    assert known - probed == set(), "routes without a probe"
    assert probed - known == set(), "probes of removed routes"
    assert len(HIDDEN) + len(LISTS) + len(REFUSED) >= 60


def test_zebra_has_data_to_find(isolation: Isolation, before: dict[str, Any]) -> None:
    for name, items in before.items():
        assert items, name
        assert name == "deliveries" or WORD in json.dumps(items)


@pytest.mark.parametrize("probe", HIDDEN, ids=text_of)
def test_foreign_objects_look_like_missing_ones(isolation: Isolation, probe: Probe) -> None:
    begin = time.monotonic()
    answer, text = isolation.ask(isolation.otter, probe)
    absent, absent_text = isolation.ask(isolation.otter, probe, absent=True)
    assert answer.status_code == (412 if "If-Match" in probe.headers else 404), answer.text
    assert (absent.status_code, absent_text) == (answer.status_code, text)
    assert WORD not in text.lower()
    ignored = {"date", "x-request-id", "content-length"}
    assert {name: value for name, value in answer.headers.items() if name not in ignored} == {
        name: value for name, value in absent.headers.items() if name not in ignored
    }
    assert time.monotonic() - begin < POLL_S  # Requests for missing objects do not wait.


@pytest.mark.parametrize("probe", LISTS, ids=text_of)
def test_lists_contain_the_own_tenant_only(isolation: Isolation, probe: Probe) -> None:
    answer, text = isolation.ask(isolation.otter, probe)
    assert answer.status_code == 200, answer.text
    assert WORD not in text.lower()
    everybody, everything = isolation.ask(isolation.home.root, probe)
    assert everybody.status_code == 200
    assert WORD in everything.lower() or isolation.ids["shared"] in everything, "the probe could not fail"


@pytest.mark.parametrize("probe", REFUSED, ids=text_of)
def test_requests_for_other_or_all_tenants_are_refused(isolation: Isolation, probe: Probe) -> None:
    answer, text = isolation.ask(isolation.otter, probe)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), answer.text
    assert WORD not in text.lower()


@pytest.mark.parametrize("probe", NEUTRAL, ids=text_of)
def test_neutral_routes_contain_no_data_of_tenants(isolation: Isolation, probe: Probe) -> None:
    answer, text = isolation.ask(isolation.otter, probe)
    assert answer.status_code == 200, answer.text
    assert WORD not in text.lower()


# Beyond the tables


def test_stats_cover_the_own_tenant_only(isolation: Isolation) -> None:
    mine, all_of_it = isolation.otter.get("/api/stats").json(), isolation.home.root.get("/api/stats").json()
    for status, number in mine["jobs"].items():
        assert number <= all_of_it["jobs"][status]
    own = [job["status"] for job in isolation.otter.get("/api/jobs?limit=200").json()["items"]]
    assert mine["jobs"]["RUNNING"] == own.count("RUNNING") < all_of_it["jobs"]["RUNNING"]
    assert mine["jobs"]["PENDING"] == own.count("PENDING") < all_of_it["jobs"]["PENDING"]
    dead, schedules = (len(isolation.otter.get(f"/api/{name}").json()["items"]) for name in ("dead", "schedules"))
    assert mine["dead"]["total"] == dead < all_of_it["dead"]["total"]
    assert mine["schedules"]["total"] == schedules < all_of_it["schedules"]["total"]
    for name in ("nodes", "workers", "leader", "store"):
        assert not mine.get(name)
    # Including removed ones.
    assert schedules <= isolation.otter.get("/api/audit").json()["schedules"] <= schedules + 1


def _ended(client: httpx.Client) -> int:
    jobs = client.get("/api/jobs?limit=200").json()["items"]
    return sum(job["status"] in ("COMPLETED", "FAILED") for job in jobs)


def test_charts_and_counts_cover_the_own_tenant_only(isolation: Isolation) -> None:
    ended = {}
    for who, client in (("otter", isolation.otter), ("zebra", isolation.zebra), ("all", isolation.home.root)):
        points = client.get("/api/stats/series").json()["points"]
        ended[who] = sum(point["completed"] + point["failed"] for point in points)
    ended_in_lists = {who: _ended(client) for who, client in (("otter", isolation.otter), ("zebra", isolation.zebra))}
    assert min(ended_in_lists.values()) >= 2
    assert ended == {**ended_in_lists, "all": sum(ended_in_lists.values())}
    for query in ("task=zebra-type", "queue=zebra-queue"):
        points = isolation.otter.get(f"/api/stats/series?{query}").json()["points"]
        assert not any(point["completed"] or point["failed"] for point in points)
    own = len(isolation.otter.get("/api/jobs?limit=200").json()["items"])
    assert isolation.otter.get("/api/jobs/count").json() == {"count": own, "is_exact": True}
    assert isolation.home.root.get("/api/jobs/count").json()["count"] > own
    for query in ("type=zebra-type", "q=zebra", "key=zebra-key", "schedule=zebra-schedule"):
        assert isolation.otter.get(f"/api/jobs/count?{query}").json()["count"] == 0


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_bulk_actions_cover_the_own_tenant_only(isolation: Isolation, verb: str) -> None:
    """Neither a filter nor an id reaches foreign jobs; the fixture `zebra_is_unchanged` checks it afterwards."""
    for chosen in ({"type": "zebra-type"}, {"q": "zebra"}, {"queue": "zebra-queue"}, {"tag": "zebra-tag"}):
        for dry_run in (True, False):
            answer = isolation.otter.post(f"/api/jobs/{verb}", json={"filter": chosen, "dry_run": dry_run})
            assert answer.json() == {"matched": 0, "is_exact": True, "done": 0, "refused": [], "more": False}
    for name in ("job", "running", "dead", "done"):
        foreign, absent = (
            isolation.otter.post(f"/api/jobs/{verb}", json={"ids": [job_id]}).json()
            for job_id in (isolation.ids[name], ABSENT["job"])
        )
        assert foreign["refused"] == [{"id": isolation.ids[name], "reason": "no job has this id"}]
        assert {**foreign, "refused": absent["refused"]} == absent
        found = isolation.home.root.post(
            f"/api/jobs/{verb}", json={"ids": [isolation.ids[name]], "dry_run": True}
        ).json()
        assert found["matched"] == ((name in ("dead", "done")) == (verb == "retry"))  # Shows that the probe can fail.


def test_cursors_do_not_reveal_foreign_objects(isolation: Isolation) -> None:
    for path, cursor in (
        ("/api/jobs", isolation.ids["job"]),
        ("/api/jobs", "~"),
        ("/api/schedules", "zebra"),
        ("/api/schedules", "otter-schedule"),
        ("/api/dead", "~"),
        ("/api/tokens", "~"),
        ("/api/webhooks", ""),
        ("/api/deliveries", "~"),
        ("/api/queues", "otter-queue"),
        ("/api/trail", "999999"),
        ("/api/audit", "otter-schedule"),
    ):
        answer = isolation.otter.get(path, params={"cursor": cursor, "limit": 200})
        assert answer.status_code in (200, 422), answer.text
        assert WORD not in answer.text.lower()


def test_key_of_another_tenant_is_free(isolation: Isolation) -> None:
    body = {"type": "otter-type", "key": "zebra-key", "queue": "otter-keys"}
    made = isolation.otter.post("/api/jobs", json=body)
    assert (made.status_code, made.json()["tenant"]) == (201, "otter")
    assert made.json()["id"] != isolation.ids["job"]
    bulk = isolation.otter.post("/api/jobs/bulk", json={"jobs": [{**body, "key": "shared-key", "type": "other-type"}]})
    # The own job has this key; the response does not mention the one of the other tenant.
    assert bulk.status_code in (404, 409)
    assert WORD not in bulk.text
    # Its key contains the word that other tests look for.
    isolation.home.write("delete from headway_jobs where queue = 'otter-keys'")


def test_bulk_with_one_foreign_job_creates_none(isolation: Isolation) -> None:
    jobs = [{"type": "otter-type", "tags": ["bulk-probe"]} for _ in range(5)]
    answer = isolation.otter.post("/api/jobs/bulk", json={"jobs": [*jobs, {**jobs[0], "tenant": WORD}]})
    assert answer.status_code == 403
    assert "jobs[5]" in answer.json()["error"]["message"]
    assert isolation.home.root.get("/api/jobs", params={"tag": "bulk-probe"}).json()["items"] == []


def test_tenant_comes_from_the_token_only(isolation: Isolation) -> None:
    headers = {"X-Tenant": WORD, "Tenant": WORD, "X-Headway-Tenant": WORD, "Cookie": f"tenant={WORD}"}
    made = isolation.otter.post("/api/jobs", json={"type": "otter-type", "queue": "otter-headers"}, headers=headers)
    assert (made.status_code, made.json()["tenant"]) == (201, "otter")
    found = isolation.otter.get("/api/jobs?limit=200", headers=headers).json()["items"]
    assert {job["tenant"] for job in found} == {"otter"}
    named = isolation.otter.put("/api/schedules/otter-own", json={**RULE, "tenant": "otter"}, headers=headers)
    assert named.json()["tenant"] == "otter"
    assert isolation.otter.delete("/api/schedules/otter-own").status_code in (200, 204)


def test_nothing_can_belong_to_all_tenants(isolation: Isolation) -> None:
    for path, body in (
        ("/api/jobs", {"type": "shared", "tenant": "*"}),
        ("/api/jobs/bulk", {"jobs": [{"type": "shared", "tenant": "*"}]}),
    ):
        assert isolation.home.root.post(path, json=body).status_code == 422, path
    assert isolation.home.root.put("/api/schedules/star", json={**RULE, "tenant": "*"}).status_code == 422


def test_name_of_a_foreign_schedule_is_free(isolation: Isolation) -> None:
    """The response to PUT reveals nothing about other tenants. A third tenant keeps other tests unaffected."""
    made = isolation.home.root.post(
        "/api/tokens", json={"name": "lynx-admin", "role": "admin", "tenant": "lynx"}
    ).json()
    with isolation.home.api.client(made["token"]) as lynx:
        for query in ("?dry_run=1", "", "?take_over=1"):
            answers = [lynx.put(f"/api/schedules/{name}{query}", json=RULE) for name in ("zebra-schedule", "absent")]
            texts = [re.sub(r'"(?:20\d\d-[^"]*|zebra-schedule|absent)"', "", answer.text) for answer in answers]
            assert (answers[0].status_code, texts[0]) == (answers[1].status_code, texts[1])
            assert answers[0].status_code == (201 if not query else 200)
        assert lynx.get("/api/jobs?schedule=zebra-schedule").json()["items"] == []
        assert isolation.zebra.get("/api/schedules/zebra-schedule").json()["revision"] == 1
        assert isolation.home.root.get("/api/jobs?schedule=zebra-schedule&tenant=zebra").json()["items"]
        for name in ("zebra-schedule", "absent"):
            assert lynx.delete(f"/api/schedules/{name}").status_code == 200
    assert isolation.home.root.delete(f"/api/tokens/{made['id']}").status_code in (200, 204)


def test_groups_of_dead_letters_cover_the_own_tenant_only(isolation: Isolation) -> None:
    answer = isolation.otter.post("/api/dead/retry", json={"all": True, "dry_run": True})
    assert answer.json()["count"] == 1
    assert isolation.home.root.post("/api/dead/retry", json={"all": True, "dry_run": True}).json()["count"] == 2
    for body in ({"type": "zebra-type"}, {"queue": "zebra-queue"}, {"schedule": "zebra-schedule"}):
        for path in ("/api/dead/retry", "/api/dead/drop"):
            answer = isolation.otter.post(path, json=body)
            assert (answer.status_code, answer.json()["count"]) == (200, 0)
    own = [job["id"] for job in isolation.otter.get("/api/dead").json()["items"]]
    assert own == [isolation.ids["own_dead"]]  # Not retried together with foreign ones either.


def test_why_reveals_nothing_about_other_tenants(isolation: Isolation) -> None:
    for name in ("own_job", "own_running", "own_dead"):
        answer = isolation.otter.get(f"/api/jobs/{isolation.ids[name]}/why")
        assert answer.status_code == 200
        assert WORD not in answer.text.lower()


# Streams


class Listener:
    """Collect the text of a stream."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self.text, self._client, self._path = "", client, path
        self.is_open = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.is_open.wait(DEADLINE_S), "the stream did not begin"

    def _listen(self) -> None:
        with suppress(httpx.HTTPError), self._client.stream("GET", self._path) as answer:
            for chunk in answer.iter_text():
                self.text += chunk
                self.is_open.set()

    def wait_for(self, word: str) -> None:
        wait_until(lambda: word in self.text, f"{word} in the stream")


def change_both_tenants(isolation: Isolation) -> tuple[str, str]:
    """Run a job in each tenant; return their ids. Otter's job is the last one."""

    async def act(store: Store) -> tuple[str, str]:
        made = []
        for tenant in (WORD, "otter"):
            job_id = Clock().new_id("job")
            await enqueue(store, id=job_id, task=f"{tenant}-type", tenant=tenant, queue=f"{tenant}-streamed")
            await end(store, await claim_one(store, f"{tenant}-streamed"), Succeeded())
            made.append(job_id)
        return made[0], made[1]

    return isolation.home.on_store(act)


@pytest.fixture
def changing(before: dict[str, Any], isolation: Isolation) -> Iterator[None]:
    """For tests that change data of zebra themselves."""
    yield
    before.clear()
    before.update(belongings(isolation))


@pytest.mark.usefixtures("changing")
def test_stream_of_all_jobs_covers_the_own_tenant_only(isolation: Isolation) -> None:
    streams = {}
    for query in ("", "?tenant=zebra", "?queue=zebra-streamed", "?type=zebra-type", "?cursor=0"):
        streams[query] = Listener(isolation.otter, f"/api/stream{query}")
    everything = Listener(isolation.home.root, "/api/stream")
    foreign, own = change_both_tenants(isolation)
    everything.wait_for(foreign)  # Shows that it could have been received.
    everything.wait_for(own)
    streams[""].wait_for(own)
    time.sleep(0.5)  # A filtered stream may send nothing at all, so there is nothing to wait for.
    for query, stream in streams.items():
        assert foreign not in stream.text, query
        assert WORD not in stream.text.lower(), query


@pytest.mark.usefixtures("changing")
def test_websocket_covers_the_own_tenant_only(isolation: Isolation) -> None:
    url = isolation.home.api.url.replace("http", "ws") + "/api/ws"
    received: list[str] = []
    with connect(url, additional_headers={"Authorization": isolation.otter.headers["authorization"]}) as socket:
        errors = []
        for job_id in (isolation.ids["running"], ABSENT["job"]):
            socket.send(json.dumps({"subscribe": {"job": job_id}}))
            errors.append(str(socket.recv(timeout=DEADLINE_S)).replace(job_id, "<said>"))
        assert errors[0] == errors[1]
        assert "error" in errors[0]
        socket.send(json.dumps({"subscribe": {"all": {}}}))
        assert json.loads(socket.recv(timeout=DEADLINE_S))["event"] == "ready"
        foreign, own = change_both_tenants(isolation)
        while not any(own in message for message in received):  # The foreign job ended before it.
            received.append(str(socket.recv(timeout=DEADLINE_S)))
    assert foreign not in "".join(received)
    assert WORD not in "".join(received).lower()
