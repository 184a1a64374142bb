"""What people see of limits and tenants: who holds a limit, what waits, and nothing about other tenants."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from headway.core.instants import HOUR
from headway.core.nodes import Node
from headway.core.ports import Charge
from headway.operations.limit_metrics import LABELS_MAX
from headway.store import Store
from tests.support.claiming import claim
from tests.support.command_line import Cli
from tests.support.house import SECRET, House, house

WORKER = {"tasks": ["report", "merger"], "slots": 50, "queues": ["*"]}
CHANGING = "at|oldest_age_seconds|oldest_pending_seconds|ready_seconds|waited_seconds|lease_seconds"
TIMES = re.compile(rf'"(?:{CHANGING})":(?:"[^"]*"|[\d.]+)')
SPAN = re.compile(r"\b\d[\d.]*(?:us|ms|s|m|h)\b")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('seen')}/headway.db"
    else:
        template = request.getfixturevalue("migrated_database")
        url = request.getfixturevalue("postgres_server").create_database(template=template)
    with house(url) as made:

        async def beat(store: Store) -> None:
            await store.nodes.beat(Node(id="node_1", name="web-1", roles=("worker",), state={"worker": WORKER}))

        made.on_store(beat)
        made.keep_alive("node_1")
        yield made


def put(home: House, name: str, **limit: Any) -> None:
    made = home.root.put(f"/api/limits/{name}", json=limit)
    assert made.status_code == 200, made.text


def enqueue(home: House, queue: str, tenant: str, **more: Any) -> str:
    made = home.root.post("/api/jobs", json={"type": "report", "queue": queue, "tenant": tenant, **more})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def start(home: House, queue: str) -> int:
    """Claim twice: the second claim finds only lanes that have to wait, and says so."""

    async def take(store: Store) -> int:
        return sum([len(await claim(store, queue, node="node_1", lease=HOUR, limit=50)) for _ in range(2)])

    return home.on_store(take)


def why(home: House, who: str, job_id: str) -> tuple[str, dict[str, Any]]:
    found = getattr(home, who).get(f"/api/jobs/{job_id}/why").json()
    return found["why"], found["evidence"]


def listed(home: House, who: str, path: str) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = getattr(home, who).get(f"{path}?limit=200").json()["items"]
    return {one["name"]: one for one in found}


# --- why


def test_why_names_the_limit_and_its_holder(home: House) -> None:
    put(home, "held-*", concurrency=1)
    holder, waiting = (enqueue(home, "held", "acme", limit="held-1") for _ in range(2))
    foreign, blocked = enqueue(home, "held", "globex", limit="held-2"), enqueue(home, "held", "acme", limit="held-2")
    assert start(home, "held") == 2
    words, evidence = why(home, "root", waiting)
    assert re.fullmatch(rf"limit held-1 allows 1 at a time; {holder} holds it for [\d.]+m?s", words)
    assert (evidence["limit"], evidence["defined_as"], evidence["holder"]) == ("held-1", "held-*", holder)
    assert evidence["holder_since"] == home.root.get(f"/api/jobs/{holder}").json()["started_at"]
    assert why(home, "acme", waiting)[1]["holder"] == holder  # Its own job.
    if home.root.get(f"/api/jobs/{blocked}").json()["status"] == "RUNNING":  # Whoever was served first holds it.
        foreign, blocked = blocked, foreign
    owner = home.root.get(f"/api/jobs/{blocked}").json()["tenant"]
    assert foreign in why(home, "root", blocked)[0]
    own_words, own_evidence = why(home, owner, blocked)
    assert own_words == "limit held-2 allows 1 at a time"
    assert not {"holder", "holder_since", "running"} & own_evidence.keys()


def test_why_says_when_a_rate_allows_the_next_start(home: House) -> None:
    put(home, "hourly", rate="1/h")
    jobs = [enqueue(home, "rated", "acme", limit="hourly") for _ in range(2)]
    assert start(home, "rated") == 1
    for who in ("root", "acme"):
        words, evidence = why(home, who, jobs[1])
        assert re.fullmatch(r"limit hourly allows 1/h; the next may start in (59m|1h).*", words)
    assert listed(home, "root", "/api/limits")["hourly"]["next_at"] == evidence["next_at"]
    assert "next_at" not in listed(home, "acme", "/api/limits")["hourly"]


def test_why_names_the_share_of_the_tenant(home: House) -> None:
    for tenant in ("acme", "globex"):
        for _ in range(2):
            enqueue(home, "shared", tenant)

    async def serve(store: Store) -> None:
        for _ in range(2):
            await claim(store, "shared", node="node_1", lease=HOUR, limit=1)
        await store.work.charge([Charge(queue="shared", tenant="acme", more=10**9, took=5_000_000, jobs=1)])

    home.on_store(serve)
    waiting = [job["id"] for job in home.acme.get("/api/jobs?queue=shared&status=PENDING").json()["items"]]
    words, evidence = why(home, "root", waiting[0])
    assert "tenant acme has used 5s of the queue, 1 tenant has used less" in words
    assert evidence["tenants_ahead"] == 1
    own_words, own = why(home, "acme", waiting[0])
    assert own["tenant_used_seconds"] == 5.0
    assert "tenants_ahead" not in own
    assert "used less" not in own_words


# --- tenants learn nothing of others


def own_view(home: House) -> dict[str, str]:
    """Read everything that a token of one tenant can read about limits and tenants, without times."""
    paths = ["/api/limits", "/api/limits?limit=1", "/api/limits/queue:crowded", "/api/limits/crowd-*"]
    paths += ["/api/limits/tenant:globex", "/api/limits/crowd-globex", "/api/limits/none", "/api/limits?cursor=crowd"]
    paths += [f"/api/tenants{rest}" for rest in ("", "/acme", "/globex", "/nobody", "?cursor=b")]
    paths += ["/api/stats", "/api/alerts", "/api/queues", "/api/queues/crowded/scale", "/api/jobs/count", "/metrics"]
    paths += [f"/api/jobs/{job['id']}/why" for job in home.acme.get("/api/jobs?queue=crowded").json()["items"]]
    found = {}
    for path in paths:
        answer = home.acme.get(path)
        text = SPAN.sub("", TIMES.sub("", answer.text)).replace(answer.headers["x-request-id"], "")
        text = re.sub(r'"(?:used_seconds|latency_ms)":[\d.e-]+', "", text)
        found[path] = f"{answer.status_code} {text}"
    return found


def test_view_of_a_tenant_does_not_depend_on_others(home: House) -> None:
    """Two tenants share full limits. Whatever one of them adds, the other reads the same."""
    put(home, "queue:crowded", concurrency=3)
    put(home, "crowd-*", concurrency=1)
    put(home, "tenant:globex", concurrency=50)
    for tenant in ("acme", "globex"):
        home.root.put(f"/api/tenants/{tenant}", json={"weight": 2, "wait_slo": "1d"})
    enqueue(home, "crowded", "acme", limit="crowd-acme")
    start(home, "crowded")
    for _ in range(2):
        enqueue(home, "crowded", "acme", limit="crowd-acme")
        enqueue(home, "crowded", "globex", limit="crowd-globex")
        enqueue(home, "crowded", "globex", limit="crowd-other")
        start(home, "crowded")
    before = own_view(home)
    assert '"held":1' in before["/api/limits/crowd-*"]
    assert "globex" not in "".join(before[path] for path in before if "globex" not in path)
    for number in range(30):
        enqueue(home, "crowded", "globex", limit=f"crowd-{number}", type="merger", priority=9)
        enqueue(home, "elsewhere", "globex", limit=f"crowd-{number}", type="merger")
    put(home, "elsewhere-*", concurrency=1)
    start(home, "crowded")
    assert start(home, "elsewhere") == 30
    home.root.put("/api/tenants/globex", json={"weight": 9, "wait_slo": "1us"})
    home.root.put("/api/tenants/initech", json={"weight": 9, "wait_slo": "1us"})
    after = own_view(home)
    assert after == before
    for path in ("/api/limits/tenant:globex", "/api/limits/crowd-globex"):  # As if they did not exist.
        assert after[path].replace(path.removeprefix("/api/limits/"), "none") == after["/api/limits/none"]
    assert after["/api/tenants/globex"] == after["/api/tenants/nobody"]
    everything = home.root.get("/api/limits/crowd-*").json()
    assert len(everything["holders"]) == 20  # The probe could have found it.
    assert everything["held"] > 20


# --- figures


def test_lists_show_what_waits(home: House) -> None:
    put(home, "queue:listed", concurrency=2)
    put(home, "list-*", concurrency=1)
    put(home, "list-a*", concurrency=1)  # The longer name counts.
    home.root.put("/api/tenants/acme", json={"weight": 4, "wait_slo": "1us"})
    for key in ("list-a1", "list-a1", "list-b1", "list-b1"):
        enqueue(home, "listing", "acme", limit=key)
    for tenant in ("acme", "globex", "initech", "hooli"):
        enqueue(home, "listed", tenant)
    start(home, "listing")
    start(home, "listed")
    limits = listed(home, "root", "/api/limits")
    assert {name: limits[name]["held"] for name in ("list-*", "list-a*", "queue:listed")} == {
        "list-*": 1,
        "list-a*": 1,
        "queue:listed": 2,
    }
    assert limits["queue:listed"]["running"] == 2
    [holder] = home.root.get("/api/limits/list-a*").json()["holders"]
    assert holder["gate"] == "list-a1"
    tenants = listed(home, "root", "/api/tenants")
    assert tenants["acme"]["ready"] >= 2
    assert tenants["acme"]["oldest_ready_at"] is not None
    assert sum(one["used_part"] for one in tenants.values()) == pytest.approx(1, abs=0.01)
    pages = [home.root.get("/api/tenants?limit=2").json()]
    while pages[-1]["next_cursor"]:
        pages.append(home.root.get(f"/api/tenants?limit=2&cursor={pages[-1]['next_cursor']}").json())
    assert [one["name"] for page in pages for one in page["items"]] == sorted(tenants)

    stats = home.root.get("/api/stats").json()
    full = {one["name"] for one in stats["limits"]["items"]}
    assert {"queue:listed", "list-*", "list-a*"} <= full
    assert "acme" in {one["name"] for one in stats["tenants"]["items"]}
    [alert] = [one for one in home.root.get("/api/alerts").json()["items"] if one["target"] == "acme"]
    assert alert["code"] == "tenant_waits"
    assert alert["message"].startswith("tenant acme waits longer than its wait_slo: a job has been ready for ")
    assert alert["cure"] == "headway tenants show acme"
    assert home.acme.get("/api/stats").json()["tenants"]["total"] == 1
    assert home.globex.get("/api/limits/list-*").status_code == 404


def test_running_jobs_count_as_used(home: House) -> None:
    """A job of an hour is not free until it ends."""
    enqueue(home, "long", "acme")
    put(home, "queue:long", concurrency=1)
    start(home, "long")
    home.write("update headway_jobs set started_at = started_at - 3600000000 where queue = 'long'")
    shares = {one["queue"]: one for one in home.root.get("/api/tenants/acme").json()["queues"]}
    assert 3600 <= shares["long"]["used_seconds"] < 7200
    assert (shares["long"]["used_part"], shares["long"]["fair_part"]) == (1.0, 0.8)  # `default` has the weight 1.


def test_counts_are_bounded(home: House) -> None:
    put(home, "many-*", concurrency=1)
    home.write(
        "insert into headway_lanes (queue, needs, tenant, limit_key, limited_task, turn, open, held_by)"
        " with recursive n (i) as (select 1 union all select i + 1 from n where i < 1500)"
        " select 'many', '', 'acme', 'many-' || i, '', i, 0, 'many-' || i from n"
    )
    assert home.root.get("/api/limits/many-*").json()["held"] == 1_000
    home.write("delete from headway_lanes where queue = 'many'")
    assert home.root.get("/api/limits/many-*").json()["held"] == 0


def test_metrics_have_a_bounded_number_of_labels(home: House) -> None:
    for number in range(LABELS_MAX + 10):
        put(home, f"queue:labelled-{number}", concurrency=2)
        home.root.put(f"/api/tenants/labelled-{number}", json={"wait_slo": "1h"})
    enqueue(home, "labelled-0", "unheard-of")
    put(home, "queue:first", concurrency=2)
    lines = home.root.get("/metrics").text.splitlines()
    values: dict[str, dict[str, float]] = {}
    for line in lines:
        if match := re.fullmatch(r'(headway_(?:limit|tenant)\w+)\{(?:limit|tenant)="([^"]*)"\} ([\d.e+]+)', line):
            values.setdefault(match[1], {})[match[2]] = float(match[3])
    assert values.keys() == {
        "headway_limit_running",
        "headway_limit_concurrency",
        "headway_limit_waiting_lanes",
        "headway_tenant_oldest_wait_seconds",
        "headway_tenant_wait_slo_ratio",
    }
    for name, by_label in values.items():
        assert "other" in by_label, name
        assert len(by_label) <= LABELS_MAX + 1, name
    assert "unheard-of" not in "\n".join(lines)
    assert not [label for label in values["headway_limit_running"] if label.endswith("*")]
    assert any(line.startswith("headway_tenants_late ") for line in lines)


# --- the command line


def test_status_and_top_show_full_limits_and_late_tenants(home: House, cli: Cli) -> None:
    put(home, "queue:shown", concurrency=1)
    home.root.put("/api/tenants/acme", json={"wait_slo": "1us"})
    for tenant in ("acme", "globex"):
        enqueue(home, "shown", tenant)
        enqueue(home, "shown", tenant)
    start(home, "shown")
    found = home.root.get("/api/stats").json()
    assert found["limits"]["total"] > len(found["limits"]["items"][:3])
    server = ("--server", home.api.url, "--token", SECRET)
    status = cli("status", *server).out
    [line] = [line for line in status.splitlines() if line.startswith("full limits")]
    assert re.search(r"\w+(-a)?\*? (\d+ of \d+|each name|\d+ at \S+), (\d+ lanes|1 lane) waits?", line)
    assert re.search(r"· and \d+ more$", line)
    assert re.search(r"tenant acme waits for \S+.*, 1us allowed  →  headway tenants show acme", status)
    top = cli("top", "--once", *server).out
    assert "full limits" in top
    assert "headway tenants show acme" in top
    listing = cli("limits", "list", *server).out
    assert re.search(r"queue:shown +1 +1 ", listing)
    shown = cli("limits", "show", "queue:shown", *server).out
    assert re.search(r"queue:shown allows 1 at a time; 1 running; [12] waiting", shown)
    assert re.search(r"account-42|list-a1", cli("limits", "show", "list-a*", *server).out)
    assert re.search(r"^acme +\d", cli("tenants", "list", *server).out, re.MULTILINE)
    shown = cli("tenants", "show", "acme", *server).out
    assert re.search(r"\d+ ready jobs?; one has waited for ", shown)
    assert re.search(r"p50 \S+, p95 \S+", shown)
