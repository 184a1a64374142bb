"""Queues, workers, statistics, alerts, dead letters and the audit over HTTP, with a real server on both databases."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import httpx
import pytest

from headway.core.clock import Clock
from headway.core.instants import DAY, HOUR, SECOND
from headway.core.jobs import NewJob
from headway.core.lifecycle import Raised, Succeeded
from headway.core.nodes import Node
from headway.core.schedule_names import schedule_key
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every
from headway.store import Store
from tests.conformance.arrange import decide, run_one
from tests.support.claiming import claim
from tests.support.house import House

ERROR = '{"type": "IOError", "message": "the disk is full", "traceback": "line 1"}'
IDS = Clock()


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def items_of(client: httpx.Client, path: str, **params: str) -> list[dict[str, Any]]:
    """Read all pages, two items at a time."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = client.get(path, params={"limit": "2", **params, **more})
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def enqueue(home: House, number: int = 1, **options: Any) -> list[str]:
    jobs = [NewJob(id=IDS.new_id("job"), task="report", **options) for _ in range(number)]
    home.on_store(lambda store: store.queue.enqueue(jobs))
    return [job.id for job in jobs]


def fail(home: House, number: int = 1, *, queue: str, error: str = "the disk is full", **options: Any) -> list[str]:
    """Create dead letters."""
    ids, told = [], ERROR.replace("the disk is full", error)
    for _ in range(number):
        [job_id] = enqueue(home, queue=queue, **options)
        home.on_store(lambda store: run_one(store, Raised(told, retryable=False), queue))
        ids.append(job_id)
    return ids


@pytest.fixture
def worker(home: House) -> Iterator[Node]:
    """A live worker that takes from one queue."""
    state = {"worker": {"tasks": ["report"], "queues": ["served"], "slots": 4, "running": 1}}
    node = Node(id="node_worker", name="web-1", roles=("worker",), version="1", state=state)

    async def beat(store: Store) -> None:
        await store.nodes.beat(node)

    home.on_store(beat)
    home.keep_alive(node.id)
    yield node
    home.on_store(lambda store: store.nodes.leave(node.id))


# --- queues


def test_queues_are_counted_for_all_tenants_and_for_one(home: House) -> None:
    enqueue(home, 3, queue="counted", tenant="acme")
    enqueue(home, 2, queue="counted", tenant="globex")
    enqueue(home, 1, queue="counted-too", tenant="globex")
    enqueue(home, 1, queue="counted", tenant="acme", delay=HOUR)
    home.on_store(lambda store: claim(store, "counted", node="n", lease=HOUR, limit=1))
    mine = {queue["name"]: queue for queue in items_of(home.acme, "/api/queues")}
    assert "counted-too" not in mine
    assert (mine["counted"]["pending"], mine["counted"]["running"]) == (2, 1)
    assert mine["counted"]["oldest_age_seconds"] > 0
    everybodys = {queue["name"]: queue for queue in items_of(home.root, "/api/queues")}
    assert (everybodys["counted"]["pending"], everybodys["counted"]["running"]) == (4, 1)
    assert everybodys["counted-too"]["pending"] == 1
    assert list(everybodys) == sorted(everybodys)


def test_queue_is_paused_for_all_tenants_by_an_operator_of_all(home: House) -> None:
    assert error_of(home.acme.post("/api/queues/tap/pause"), 403)
    shown = home.everybody.post("/api/queues/tap/pause", json={"reason": "the disk is full"}).json()
    assert (shown["paused"], shown["paused_by"], shown["reason"]) == (True, "everybody", "the disk is full")
    enqueue(home, queue="tap", tenant="acme")
    assert home.on_store(lambda store: claim(store, "tap", node="n", lease=HOUR, limit=1)) == []
    mine = next(queue for queue in items_of(home.acme, "/api/queues") if queue["name"] == "tap")
    assert (mine["paused"], mine["pending"]) == (True, 1)
    alert = next(alert for alert in home.acme.get("/api/alerts").json()["items"] if alert["target"] == "tap")
    assert (alert["code"], alert["cure"]) == ("queue_paused", "headway queues resume tap")
    assert home.everybody.post("/api/queues/tap/pause", json={"reason": "other"}).json() == {
        **shown,
        "pending": 1,
        "oldest_age_seconds": ANY,
        "changed": False,
    }
    assert error_of(home.acme.post("/api/queues/tap/resume"), 403)
    assert home.everybody.post("/api/queues/tap/resume").json()["paused"] is False
    assert len(home.on_store(lambda store: claim(store, "tap", node="n", lease=HOUR, limit=1))) == 1
    trail = home.root.get("/api/trail", params={"target": "tap"}).json()["items"]
    assert [(item["action"], item["detail"]["after"]) for item in trail] == [
        ("queue.resume", "on"),
        ("queue.pause", "paused"),
    ]
    assert "reason" in error_of(home.everybody.post("/api/queues/tap/pause", json={"reason": 5}), 422)
    assert "queue" in error_of(home.everybody.post(f"/api/queues/{'x' * 300}/pause"), 422)


# --- workers and nodes


def test_workers_and_nodes_need_access_to_all_tenants(home: House, worker: Node) -> None:
    for path in ("/api/workers", "/api/nodes"):
        assert error_of(home.acme.get(path), 403)
    [shown] = [found for found in items_of(home.everybody, "/api/workers") if found["id"] == worker.id]
    assert (shown["name"], shown["slots"], shown["queues"], shown["draining"]) == ("web-1", 4, ["served"], False)
    nodes = items_of(home.everybody, "/api/nodes")
    assert {"api"} in [set(node["roles"]) for node in nodes]
    assert worker.id in [node["id"] for node in nodes]
    home.write(f"update headway_nodes set beat_at = beat_at - {DAY + HOUR // 2} where id = '{worker.id}'")
    assert worker.id not in [node["id"] for node in items_of(home.everybody, "/api/nodes")]
    assert worker.id in [node["id"] for node in items_of(home.everybody, "/api/nodes", gone="1")]


def test_worker_is_asked_to_drain(home: House, worker: Node) -> None:
    assert error_of(home.acme.post(f"/api/workers/{worker.id}/drain"), 403)
    asked = home.everybody.post("/api/workers/web-1/drain")
    assert (asked.status_code, asked.json()["id"], asked.json()["draining"]) == (202, worker.id, True)
    assert home.on_store(lambda store: store.nodes.beat(worker)) == "drain"
    home.keep_alive(worker.id)
    shown = next(found for found in items_of(home.everybody, "/api/workers") if found["id"] == worker.id)
    assert shown["draining"] is True
    assert "web-1" in error_of(home.everybody.post("/api/workers/nobody/drain"), 404)
    [entry] = home.root.get("/api/trail", params={"target": worker.id}).json()["items"]
    assert (entry["action"], entry["detail"]["after"]) == ("worker.drain", "drain")


# --- statistics


def test_stats_count_unfinished_jobs_and_outcomes_of_the_last_hour(home: House) -> None:
    before = home.globex.get("/api/stats").json()
    others = home.acme.get("/api/stats").json()
    for outcome in (Succeeded(), Succeeded(), Raised(ERROR, retryable=False)):
        enqueue(home, queue="figures", tenant="globex")
        home.on_store(lambda store, outcome=outcome: run_one(store, outcome, "figures"))  # type: ignore[misc]
    enqueue(home, 2, queue="figures", tenant="globex")
    enqueue(home, 1, queue="figures", tenant="globex", delay=HOUR)
    stats = home.globex.get("/api/stats").json()

    def more(*path: str) -> int:
        old, new = before, stats
        for name in path:
            old, new = old.get(name, 0) if isinstance(old, dict) else old, new[name]
        return int(new) - int(old)

    assert [more("jobs", name) for name in ("PENDING", "SCHEDULED")] == [2, 1]
    ended = [more("last_hour", status) for status in ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED")]
    assert ended == [2, 1, 0, 0]
    assert stats["last_hour"]["window_seconds"] == 3600
    assert 0 < stats["last_hour"]["failure_rate"] < 1
    assert stats["oldest_pending_seconds"] > 0
    assert more("dead", "total") == 1
    assert stats["tenant"] == "globex"
    assert not {"nodes", "workers", "leader", "store", "shards"} & stats.keys()
    now = home.acme.get("/api/stats").json()
    assert (now["jobs"], now["last_hour"]["COMPLETED"]) == (others["jobs"], others["last_hour"]["COMPLETED"])
    assert now["dead"] == others["dead"]
    everything = home.root.get("/api/stats").json()
    assert {"nodes", "workers", "leader", "store", "shards", "degraded"} <= everything.keys()
    assert "url" not in everything["store"]
    assert everything["jobs"]["PENDING"] >= stats["jobs"]["PENDING"]


def test_stats_count_late_schedules_of_one_tenant(home: House) -> None:
    before = home.acme.get("/api/stats").json()["schedules"]

    async def arrange(store: Store) -> None:
        for tenant in ("acme", "globex"):
            spec = ScheduleSpec.build(task="report", trigger=Every("1s"), tenant=tenant)
            await store.schedules.put(f"late-{tenant}", spec)

    home.on_store(arrange)
    for tenant in ("acme", "globex"):
        home.grow_older(f"late-{tenant}", 3 * SECOND)
    stats = home.acme.get("/api/stats").json()
    assert stats["schedules"]["total"] == before["total"] + 1
    assert "late-acme" in [coming["name"] for coming in stats["schedules"]["coming"]]
    assert "late-globex" not in str(stats)
    assert stats["oldest_undecided_seconds"] > 1
    home.on_store(decide)
    decided = home.acme.get("/api/stats").json()
    assert sum(decided["schedules"]["last_day"].values()) > sum(before["last_day"].values())
    home.on_store(lambda store: store.schedules.remove("late-acme", tenant="acme"))
    home.on_store(lambda store: store.schedules.remove("late-globex", tenant="globex"))


# --- alerts


def test_alerts_name_the_problem_and_the_fix(home: House, worker: Node) -> None:
    fail(home, 2, queue="served", tenant="acme")
    enqueue(home, queue="no one's", tenant="acme")

    async def arrange(store: Store) -> None:
        spec = ScheduleSpec.build(task="report", trigger=Every("1h"), tenant="acme", queue="alerts", overlap="allow")
        for name in ("failing one", "held"):
            await store.schedules.put(name, spec)
        for _ in range(3):
            await store.schedules.trigger("failing one", tenant="acme")
            await run_one(store, Raised(ERROR, retryable=False), "alerts")
        held = await store.schedules.get("held", tenant="acme")
        await store.ledger.hold(held.key, held.version, "its zone is gone")

    home.on_store(arrange)
    found = home.acme.get("/api/alerts").json()
    alerts = {(alert["code"], alert["target"]): alert for alert in found["items"]}
    assert found["total"] == len(found["items"])
    assert ("no_scheduler", None) in alerts
    assert alerts[("queue_without_worker", "no one's")]["cure"].endswith("--queues 'no one'\"'\"'s'")
    assert "its last 3 jobs failed" in alerts[("schedule_failing", "failing one")]["message"]
    assert alerts[("schedule_failing", "failing one")]["cure"] == "headway jobs list --schedule 'acme/failing one'"
    assert "its zone is gone" in alerts[("schedule_held", "held")]["message"]
    letters = alerts[("dead_letters", "report")]
    assert "IOError: the disk is full" in letters["message"]
    assert letters["cure"] == "headway dead list --task report"
    elsewhere = home.globex.get("/api/alerts").json()["items"]
    assert {"held", "failing one", "no one's"} & {alert["target"] for alert in elsewhere} == set()
    assert len(home.acme.get("/api/alerts", params={"limit": "1"}).json()["items"]) == 1


def test_alerts_are_unchanged_while_they_only_age(home: House) -> None:
    """Their texts contain the age of the oldest undecided instant."""

    def undecided() -> httpx.Response:
        answer = home.globex.get("/api/alerts")
        assert "undecided" in [alert["code"] for alert in answer.json()["items"]]
        return answer

    home.globex.put("/api/schedules/undecided", json={"task": "report", "every": "1h"})
    due = (time.time_ns() - 30 * 10**9) // 1_000
    key = schedule_key("globex", "undecided")
    home.write(f"update headway_schedules set next_at = {due} where name = '{key}'")
    first = undecided()
    time.sleep(1.2)
    etag = {"If-None-Match": first.headers["etag"]}
    assert home.globex.get("/api/alerts", headers=etag).status_code == 304
    assert undecided().json() != first.json()
    home.globex.delete("/api/schedules/undecided")
    assert home.globex.get("/api/alerts", headers=etag).status_code == 200


# --- dead letters


def test_dead_letters_are_listed_retried_once_and_dropped(home: House) -> None:
    first, second, third = fail(home, 3, queue="letters", tenant="acme")
    [foreign] = fail(home, 1, queue="letters", tenant="globex")
    listed = items_of(home.acme, "/api/dead", queue="letters")
    assert [job["id"] for job in listed] == [third, second, first]
    assert listed[0]["error"]["traceback"] == "line 1"
    seen = items_of(home.viewer, "/api/dead", queue="letters")
    assert [job["error"].get("traceback") for job in seen] == [None] * 3
    again = home.acme.post(f"/api/dead/{first}/retry")
    assert (again.status_code, again.json()["rerun_of"]) == (201, first)
    assert first in error_of(home.acme.post(f"/api/dead/{first}/retry"), 404)
    assert home.acme.post(f"/api/dead/{second}/drop").json() == {"id": second, "dropped": True}
    assert home.acme.post(f"/api/dead/{second}/drop").status_code == 404
    assert "not a dead letter" in error_of(home.acme.post(f"/api/dead/{again.json()['id']}/retry"), 409)
    for action in ("retry", "drop"):
        stranger, absent = (home.acme.post(f"/api/dead/{job_id}/{action}") for job_id in (foreign, "job_" + "0" * 26))
        assert error_of(stranger, 404) == error_of(absent, 404).replace("job_" + "0" * 26, foreign)
        assert home.viewer.post(f"/api/dead/{third}/{action}").status_code == 403
    assert [job["id"] for job in items_of(home.root, "/api/dead", queue="letters")] == [foreign, third]
    assert "tenant" in error_of(home.acme.get("/api/dead?tenant=globex"), 403)
    trail = home.root.get("/api/trail", params={"target": first}).json()["items"]
    assert [(item["action"], item["detail"]["new"]) for item in trail] == [("dead.retry", again.json()["id"])]


def test_concurrent_retries_run_a_dead_letter_once(home: House) -> None:
    [letter] = fail(home, 1, queue="raced", tenant="acme")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: home.acme.post(f"/api/dead/{letter}/retry").status_code, range(8)))
    assert answers.count(201) == 1
    assert set(answers) <= {201, 404, 409}
    jobs = home.acme.get("/api/jobs", params={"queue": "raced"}).json()["items"]
    assert [job["rerun_of"] for job in jobs] == [letter, None]


def test_bulk_actions_on_dead_letters_need_an_explicit_selection(home: House) -> None:
    ids = fail(home, 3, queue="group", tenant="acme")
    [foreign] = fail(home, 1, queue="group", tenant="globex")
    unclear: list[dict[str, Any]] = [
        {},
        {"all": False},
        {"all": True, "queue": "group"},
        {"ids": ids, "queue": "group"},
    ]
    for body in unclear:
        assert "give exactly one of" in error_of(home.acme.post("/api/dead/retry", json=body), 422)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"queue": "group", "limit": 10**9}, "limit"),
        ({"queue": "group", "colour": 1}, "colour"),
        ({"ids": []}, "ids"),
        ({"ids": [1]}, "ids[0]"),
    ]
    for body, field in wrong:
        assert field in error_of(home.acme.post("/api/dead/retry", json=body), 422)
    assert "tenant" in error_of(home.acme.post("/api/dead/retry", json={"tenant": "globex"}), 403)
    assert error_of(home.acme.post("/api/dead/retry", json={"ids": [ids[0], foreign]}), 404)
    dry = home.acme.post("/api/dead/retry", json={"queue": "group", "dry_run": True}).json()
    errors = dry.pop("errors")
    assert [(one["type"], one["count"]) for one in errors] == [("report", 3)]
    assert dry == {"count": 3, "ids": ids, "retried": [], "refused": [], "more": False, "dry_run": True}
    assert "dry_run" in error_of(home.acme.post("/api/dead/retry", json={"queue": "group", "limit": 1_001}), 422)
    done = home.acme.post("/api/dead/retry", json={"queue": "group", "limit": 2}).json()
    assert [pair["id"] for pair in done["retried"]] == ids[1:]  # The newest ones, oldest first.
    assert (done["count"], done["more"], done["refused"]) == (2, True, [])
    dropped = home.acme.post("/api/dead/drop", json={"ids": [ids[0]]}).json()
    assert (dropped["dropped"], dropped["more"]) == ([ids[0]], False)
    assert items_of(home.acme, "/api/dead", queue="group") == []
    assert [job["id"] for job in items_of(home.globex, "/api/dead", queue="group")] == [foreign]
    fail(home, 1, queue="group", tenant="acme")
    everybodys = home.everybody.post("/api/dead/drop", json={"queue": "group"}).json()
    assert everybodys["count"] == 2
    trails = home.root.get("/api/trail", params={"action": "dead.drop", "limit": "2"}).json()["items"]
    assert {item["tenant"] for item in trails} == {"acme", "globex"}  # Each tenant finds its own entry.
    [named] = fail(home, 1, queue="named", tenant="acme")
    body = {"ids": [named], "chosen_by": {"queue": "named", "error": "OSError"}}
    assert home.acme.post("/api/dead/drop", json=body).json()["dropped"] == [named]
    [entry] = home.root.get("/api/trail", params={"action": "dead.drop", "limit": "1"}).json()["items"]
    assert entry["detail"] == {"filters": body["chosen_by"], "letters": [named]}
    assert home.viewer.post("/api/dead/drop", json={"all": True}).status_code == 403


def test_dead_letters_are_grouped_by_error(home: House) -> None:
    """The group on the page, the dry run and the action refer to the same jobs."""
    full = [fail(home, 1, queue="kinds", tenant="acme", error=f"disk {number} is full")[0] for number in range(3)]
    late = fail(home, 2, queue="kinds", tenant="acme", error="the printer is late")
    [foreign] = fail(home, 1, queue="kinds", tenant="globex", error="disk 9 is full")
    found = home.acme.get("/api/failures", params={"queue": "kinds"}).json()
    assert [(item["type"], item["error"], item["count"], item["newest"]) for item in found["items"]] == [
        ("report", "IOError: disk … is full", 3, full[-1]),
        ("report", "IOError: the printer is late", 2, late[-1]),
    ]
    assert (found["total"], found["groups"], found["is_exact"]) == (5, 2, True)
    assert found["items"][0]["example"] == "IOError: disk 2 is full"
    alert = next(item for item in home.acme.get("/api/alerts").json()["items"] if item["code"] == "dead_letters")
    assert "disk … is full (3" in alert["message"]  # Both errors are named, each with its count.
    assert "the printer is late (2" in alert["message"]
    which = {"type": "report", "queue": "kinds", "error": found["items"][0]["error"]}
    listed = home.acme.get("/api/dead", params={**which, "limit": 2}).json()
    rest = home.acme.get("/api/dead", params={**which, "cursor": listed["next_cursor"]}).json()
    assert [job["id"] for job in listed["items"] + rest["items"]] == full[::-1]
    dry = home.acme.post("/api/dead/drop", json={**which, "dry_run": True}).json()
    assert (dry["ids"], dry["dropped"], dry["more"]) == (full, [], False)
    assert home.acme.post("/api/dead/drop", json={**which, "limit": 2, "dry_run": True}).json()["more"]
    # Another operator was faster with one of them;
    assert home.acme.post(f"/api/dead/{full[0]}/drop").status_code == 200
    raced = home.acme.post("/api/dead/drop", json={"ids": full}).json()
    # the others are still handled.
    assert (raced["ids"], [one["id"] for one in raced["refused"]]) == (full[1:], full[:1])
    assert home.acme.post("/api/dead/retry", json={"error": "IOErr", "dry_run": True}).json()["ids"] == []
    everything = home.acme.post("/api/dead/retry", json={"queue": "kinds", "error": "IOError"}).json()
    assert everything["ids"] == late
    assert home.acme.get("/api/failures", params={"queue": "kinds"}).json()["items"] == []
    hour = home.acme.get("/api/failures", params={"queue": "kinds", "finished_after": "2020-01-01T00:00:00Z"}).json()
    assert [item["count"] for item in hour["items"]] == [3, 2]  # Reviewed jobs still count as failed.
    assert "error" in error_of(home.acme.post("/api/dead/drop", json={"error": "x" * 2_000}), 422)
    assert [job["id"] for job in items_of(home.globex, "/api/dead", queue="kinds")] == [foreign]


# --- the audit


def test_audit_finds_missing_occurrences_and_is_paged(home: House) -> None:
    async def arrange(store: Store) -> None:
        for number in range(3):
            spec = ScheduleSpec.build(task="report", trigger=Every("1s"), tenant="acme", missed="all", overlap="allow")
            await store.schedules.put(f"audited-{number}", spec)
        foreign = ScheduleSpec.build(task="report", trigger=Every("1s"), tenant="globex")
        await store.schedules.put("audited-foreign", foreign)

    async def end(store: Store) -> None:
        await decide(store)
        for name in names:
            await store.schedules.remove(name, tenant="globex" if name.endswith("foreign") else "acme")

    names = ("audited-0", "audited-1", "audited-2", "audited-foreign")
    home.on_store(arrange)
    for name in names:
        home.grow_older(name, 3 * SECOND)
    home.on_store(end)
    whole = home.acme.get("/api/audit").json()
    assert whole["ok"] is True, whole
    assert whole["expected"] == whole["recorded"] >= 9
    schedules, expected, cursor = 0, 0, ""
    while True:
        page = home.acme.get("/api/audit", params={"limit": "1", "until": whole["until"], "cursor": cursor}).json()
        schedules, expected = schedules + page["schedules"], expected + page["expected"]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert (schedules, expected) == (whole["schedules"], whole["expected"])
    one = home.acme.get("/api/audit", params={"schedule": "audited-1"}).json()
    assert (one["schedules"], one["next_cursor"], one["ok"]) == (1, None, True)
    _lose_an_occurrence(home, "audited-1")
    broken = home.acme.get("/api/audit", params={"schedule": "audited-1"}).json()
    assert (broken["ok"], broken["totals"]["gaps"]) == (False, 1)
    assert broken["gaps"][0]["schedule"] == "audited-1"
    assert home.acme.get("/api/audit").json()["totals"]["gaps"] == 1
    assert home.globex.get("/api/audit").json()["ok"] is True
    foreign, absent = (home.globex.get("/api/audit", params={"schedule": name}) for name in ("audited-1", "absent-1"))
    assert error_of(foreign, 404) == error_of(absent, 404).replace("absent", "audited")


def _lose_an_occurrence(home: House, schedule: str) -> None:
    """Damage the ledger of a schedule of acme, as nothing in the product can."""
    schedule = schedule_key("acme", schedule)
    statement = (
        f"delete from headway_occurrences where schedule = '{schedule}' and instant ="
        f" (select min(instant) from headway_occurrences where schedule = '{schedule}')"
    )
    home.write(statement)


def test_audit_is_bounded(home: House) -> None:
    for params, field in (
        ({"since": "2020-01-01T00:00:00Z"}, "since"),
        ({"since": "2027-01-02T00:00:00Z", "until": "2027-01-01T00:00:00Z"}, "since"),
        ({"until": "yesterday"}, "until"),
        ({"limit": "100000"}, "limit"),
        ({"schedules": "x"}, "schedules"),
    ):
        assert field in error_of(home.acme.get("/api/audit", params=params), 422)
    assert home.acme.get("/api/audit", params={"until": "0001-01-01T00:00:00Z"}).status_code == 200
