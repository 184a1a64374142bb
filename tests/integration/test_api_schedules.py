"""Schedules over HTTP, with a real server on both databases: define, read, control, and invalid requests."""

import json
from typing import Any

import httpx
import pytest

from headway.core.instants import HOUR, SECOND, parse_instant
from headway.core.nodes import Node
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every
from headway.store import Store
from tests.conformance.arrange import decide
from tests.support.command_line import Cli
from tests.support.house import SECRET, House

DAILY = {"task": "report", "cron": "0 6 * * *", "tz": "Europe/Berlin", "args": {"day": "yesterday"}}


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def put(client: httpx.Client, name: str, body: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
    answer = client.put(f"/api/schedules/{name}", json=DAILY if body is None else body, **options)
    assert answer.status_code in (200, 201), answer.text
    return answer


# --- define


def test_schedule_is_created_and_changed_with_etags(home: House) -> None:
    made = put(home.acme, "guarded")
    assert (made.status_code, made.json()["outcome"], made.json()["tenant"]) == (201, "created", "acme")
    assert put(home.acme, "guarded").json()["outcome"] == "unchanged"
    read = home.acme.get("/api/schedules/guarded")
    etag = read.headers["etag"]
    assert home.acme.get("/api/schedules/guarded", headers={"If-None-Match": etag}).status_code == 304
    later = {**DAILY, "cron": "0 7 * * *"}
    changed = put(home.acme, "guarded", later, headers={"If-Match": etag})
    assert (changed.status_code, changed.json()["outcome"], changed.json()["revision"]) == (200, "changed", 2)
    assert changed.headers["etag"] == home.acme.get("/api/schedules/guarded").headers["etag"]
    stale = home.acme.put("/api/schedules/guarded", json=DAILY, headers={"If-Match": etag})
    assert "revision 2" in error_of(stale, 412)
    assert home.acme.get("/api/schedules/guarded").json()["trigger"]["expr"] == "0 7 * * *"
    assert "If-Match" in error_of(home.acme.put("/api/schedules/guarded", json=DAILY, headers={"If-Match": "x"}), 422)
    put(home.acme, "guarded", headers={"If-Match": "*"})


def test_callback_url_is_stored_and_shown_without_its_secret(home: House, cli: Cli) -> None:
    hook, shown = "https://example.org/done?token=abc123&n=1", "https://example.org/done?token=***&n=1"
    body = {**DAILY, "callback_url": hook, "tenant": "default"}

    def stored() -> str | None:
        return home.on_store(lambda store: store.schedules.get("called")).spec.callback_url

    assert put(home.root, "called", body).json()["callback_url"] == shown
    read = home.root.get("/api/schedules/called").json()
    again = put(home.root, "called", {**body, "callback_url": read["callback_url"]})  # As it was returned.
    assert (again.json()["outcome"], stored()) == ("unchanged", hook)
    assert "abc123" not in home.root.get("/api/trail", params={"target": "called"}).text
    refused = home.root.put("/api/schedules/called", json={**body, "callback_url": "ftp://example.org/"})
    assert "callback_url" in error_of(refused, 422)
    words = ("schedules", "put", "called", "--task", "report", "--every", "1h", "--callback-url")
    for number, way in enumerate((("--store", home.url), ("--server", home.api.url, "--token", SECRET))):
        assert cli(*words, f"{hook}{number}", *way).code == 0
        assert stored() == f"{hook}{number}"
        assert "abc123" not in cli("schedules", "show", "called", "--json", *way).out
    assert cli(*words, "gopher://x/", "--store", home.url).code == 2
    put(home.root, "called", {**DAILY, "tenant": "default"})
    assert stored() is None


def test_decided_instant_does_not_change_the_etag(home: House) -> None:
    body = {"task": "report", "every": "1h", "start": "2020-01-01T00:00:00Z"}
    etag = put(home.acme, "ticking", body).headers["etag"]
    home.acme.post("/api/schedules/ticking/pause")  # Advances the schedule, as a decision does, but not its definition.
    assert home.acme.get("/api/schedules/ticking", headers={"If-None-Match": etag}).status_code == 200
    assert put(home.acme, "ticking", {**body, "every": "2h"}, headers={"If-Match": etag}).json()["outcome"] == "changed"


def test_preconditions_choose_between_create_and_change(home: House) -> None:
    url = "/api/schedules/conditional"
    assert error_of(home.acme.put(url, json=DAILY, headers={"If-Match": '"1"'}), 412)
    assert home.acme.put(url, json=DAILY, headers={"If-None-Match": "*"}).status_code == 201
    assert "exists" in error_of(home.acme.put(url, json=DAILY, headers={"If-None-Match": "*"}), 412)
    assert error_of(home.acme.delete(url, headers={"If-Match": '"7"'}), 412)
    assert home.acme.delete(url, headers={"If-Match": '"1"'}).json() == {
        "schedule": "conditional",
        "tenant": "acme",
        "removed": True,
    }
    assert error_of(home.acme.delete(url), 404)
    assert home.acme.put(url, json=DAILY, headers={"If-None-Match": "*"}).status_code == 201  # It can be created again.


def check_unknown_task_warning(warnings: list[str]) -> None:
    """No worker of this module registers the task; a worker of another test may be or have been alive."""
    alive = {"no worker is alive", "no live worker knows the task 'report'"}
    assert warnings, "no warning"
    assert {*warnings} <= alive | {"unknown task 'report': no worker registers it; see `headway workers list`"}
    assert alive & {*warnings}


def test_dry_run_writes_nothing_and_previews_the_change(home: House) -> None:
    url = "/api/schedules/planned?dry_run=1"
    plan = home.acme.put(url, json=DAILY).json()
    assert (plan["action"], plan["next"]["before"], len(plan["next"]["after"])) == ("create", [], 3)
    check_unknown_task_warning(plan["warnings"])
    assert home.acme.get("/api/schedules/planned").status_code == 404
    put(home.acme, "planned")
    assert home.acme.put(url, json=DAILY).json()["action"] == "nothing"
    plan = home.acme.put(url, json={**DAILY, "cron": "30 6 * * *"}).json()
    assert plan["action"] == "change"
    assert plan["next"]["before"][0]["local"].split("T")[1].startswith("06:00:00")
    assert plan["next"]["after"][0]["local"].split("T")[1].startswith("06:30:00")
    assert home.acme.get("/api/schedules/planned").json()["revision"] == 1
    assert error_of(home.acme.put(url, json=DAILY, headers={"If-Match": '"9"'}), 412)
    assert "no instant" in error_of(home.acme.put(url, json={"task": "t", "at": "2020-01-01T00:00:00Z"}), 422)


def test_plan_warns_of_tasks_unknown_to_workers(home: House) -> None:
    async def beat(store: Store) -> None:
        state = {"worker": {"tasks": ["known"], "queues": ["default"], "slots": 1}}
        await store.nodes.beat(Node(id="node_known", name="w", roles=("worker",), state=state))

    home.on_store(beat)
    try:
        url = "/api/schedules/unknown?dry_run=1"
        assert home.acme.put(url, json={**DAILY, "task": "known"}).json()["warnings"] == []
        warnings = home.acme.put(url, json={**DAILY, "queue": "media"}).json()["warnings"]
        assert warnings == ["no live worker knows the task 'report'", "no live worker takes from the queue 'media'"]
        assert put(home.acme, "unknown").status_code == 201  # A later worker may register it.
    finally:
        home.on_store(lambda store: store.nodes.leave("node_known"))


def test_masked_secrets_survive_an_edit(home: House) -> None:
    args = {"user": "me", "password": "s3cret", "deep": [{"api_key": "k", "n": 1}]}
    shown = put(home.acme, "secretive", {**DAILY, "args": args}).json()["args"]
    assert shown == {"user": "me", "password": "***", "deep": [{"api_key": "***", "n": 1}]}
    put(home.acme, "secretive", {**DAILY, "args": {**shown, "user": "you"}})
    stored = home.on_store(lambda store: store.schedules.get("secretive", tenant="acme"))
    assert '"password":"s3cret"' in stored.spec.args
    assert '"api_key":"k"' in stored.spec.args
    assert '"user":"you"' in stored.spec.args
    trail = home.root.get("/api/trail", params={"target": "secretive"})
    assert trail.json()["items"]
    assert "s3cret" not in trail.text


def test_schedule_of_an_app_is_changed_only_with_take_over(home: House) -> None:
    spec = ScheduleSpec.build(task="report", trigger=Every("1h"))
    home.on_store(lambda store: store.schedules.put("owned", spec, owner="shop"))
    assert "shop" in error_of(home.root.put("/api/schedules/owned", json=DAILY), 409)
    assert put(home.root, "owned?take_over=1").json()["owner"] == ""
    put(home.root, "filed?owner=file:a.toml")
    found = home.root.get("/api/schedules", params={"owner": "file:a.toml"}).json()["items"]
    assert [schedule["name"] for schedule in found] == ["filed"]
    assert home.root.delete("/api/schedules/filed?owner=other").status_code == 404
    assert home.root.delete("/api/schedules/filed?owner=file:a.toml").status_code == 200


def test_many_schedules_are_put_at_once(home: House) -> None:
    args = {"user": "me", "password": "s3cret"}
    many = {"schedules": [{"name": f"many-{n}", **DAILY, "args": args} for n in range(3)]}
    planned = home.acme.put("/api/schedules?dry_run=1", json=many).json()
    assert ([item["outcome"] for item in planned["items"]], planned["dry_run"]) == (["created"] * 3, True)
    assert home.acme.get("/api/schedules?q=many-").json()["items"] == []
    made = home.acme.put("/api/schedules?owner=file:many.toml", json=many)
    assert made.status_code == 200
    first = made.json()["items"][0]
    assert (first["name"], first["tenant"], first["outcome"], first["before"]) == ("many-0", "acme", "created", None)
    assert (first["trigger"]["expr"], first["previous_trigger"], len(first["after"])) == ("0 6 * * *", None, 3)
    check_unknown_task_warning(first["warnings"])
    found = home.acme.get("/api/schedules?q=many-").json()["items"]
    assert {(item["owner"], item["args"]["password"]) for item in found} == {("file:many.toml", "***")}
    again = {"schedules": [{"name": item["name"], **DAILY, "args": item["args"]} for item in found[:2]]}
    again["schedules"][1]["cron"] = "0 7 * * *"
    second = home.acme.put("/api/schedules?owner=file:many.toml", json=again).json()["items"]
    assert [item["outcome"] for item in second] == ["unchanged", "changed"]
    assert second[1]["previous_trigger"]["expr"] == "0 6 * * *"
    stored = home.on_store(lambda store: store.schedules.get("many-1", tenant="acme"))
    assert '"password":"s3cret"' in stored.spec.args
    trail = home.root.get("/api/trail", params={"actor": "acme", "action": "schedule.put"})
    assert [item["target"] for item in trail.json()["items"][:4]] == ["many-1", "many-2", "many-1", "many-0"]
    assert "s3cret" not in trail.text


def test_many_schedules_are_put_all_or_none(home: House) -> None:
    put(home.acme, "none-taken?owner=shop")
    fine = {"name": "none-fine", **DAILY}
    for wrong, words, status in (
        ({"name": "none-taken", **DAILY}, "'acme/none-taken' belongs to shop; take_over=1", 409),
        ({"name": "none-cron", **DAILY, "cron": "61 * * * *"}, "'none-cron': ", 422),
        ({"name": "none-over", "task": "t", "at": "2020-01-01T00:00:00Z"}, "'none-over' has no instant", 422),
        ({"name": "none-fine", **DAILY}, "'acme/none-fine' is defined twice", 422),
        ({"name": "none-tenant", **DAILY, "tenant": "globex"}, "tenant", 403),
        ({"name": "none-tenant", **DAILY, "unknown": 1}, "unknown", 422),
        ({"name": "x" * 300, **DAILY}, "schedule name", 422),
    ):
        assert words in error_of(home.acme.put("/api/schedules", json={"schedules": [fine, wrong]}), status)
        assert home.acme.get("/api/schedules/none-fine").status_code == 404
    for bad in ([], [fine] * 501):
        assert "schedules" in error_of(home.acme.put("/api/schedules", json={"schedules": bad}), 422)
    both = {"schedules": [fine, {"name": "none-taken", **DAILY}]}
    assert home.acme.put("/api/schedules?take_over=1", json=both).status_code == 200
    assert home.acme.get("/api/schedules/none-taken").json()["owner"] == ""
    assert home.viewer.put("/api/schedules?dry_run=1", json=both).status_code == 403


BAD_BODIES = [
    ({}, "task"),
    ({"task": "t"}, "say when"),
    ({"task": "t", "cron": "0 6 * * *", "every": "1m"}, "say when"),
    ({"task": "t", "cron": "61 * * * *"}, "minute"),
    ({"task": "t", "cron": 5}, "cron"),
    ({"task": "t", "cron": "0 6 * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
    ({"task": "t", "every": "1m", "tz": "UTC"}, "tz"),
    ({"task": "t", "every": "0s"}, "interval"),
    ({"task": "t", "every": 1e400}, "every"),
    ({"task": "t", "trigger": {"kind": "moon"}}, "moon"),
    ({"task": "t", "trigger": {"kind": "cron", "expr": ["*"]}}, "expr"),
    ({"task": "t", "trigger": "0 6 * * *"}, "trigger"),
    ({"task": "t", "every": "1m", "unknown": 1}, "unknown"),
    ({"task": "t", "every": "1m", "overlap": "maybe"}, "overlap"),
    ({"task": "t", "every": "1m", "priority": 10**30}, "priority"),
    ({"task": "t", "every": "1m", "priority": 5000}, "priority"),
    ({"task": "t", "every": "1m", "deadline": "soon"}, "deadline"),
    ({"task": "t", "every": "1m", "start": "9999-12-31T23:59:59-12:00"}, "start"),
    ({"task": "t", "every": "3660d", "start": "9999-12-31T00:00:00Z"}, "no instant"),
    ({"task": "t", "every": "1m", "start": "2027-02-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, "start"),
    ({"task": "t", "every": "1m", "args": [1]}, "args"),
    ({"task": "t", "every": "1m", "args": {"a": "x" * 300_000}}, "args"),
    ({"task": "t\n", "every": "1m"}, "task"),
    ({"task": "", "every": "1m"}, "task"),
    ({"task": "t", "every": "1m", "tags": ["x"] * 33}, "tags"),
    ({"task": "t", "every": "1m", "tenant": "globex"}, "tenant"),
]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES, ids=lambda value: str(value)[:50])
def test_invalid_definition_is_rejected_with_its_field(home: House, body: dict[str, Any], field: str) -> None:
    status = 403 if body.get("tenant") else 422
    text = json.dumps(body).replace("Infinity", "1e400")  # Python writes a literal that JSON does not have.
    answer = home.acme.put("/api/schedules/bad", content=text, headers={"Content-Type": "application/json"})
    assert field in error_of(answer, status)
    assert home.acme.get("/api/schedules/bad").status_code == 404


def test_invalid_names_and_parameters_are_rejected(home: House) -> None:
    assert "schedule name" in error_of(home.acme.put("/api/schedules/" + "x" * 300, json=DAILY), 422)
    assert home.acme.put("/api/schedules/a%00b", json=DAILY).status_code == 404
    assert home.acme.get("/api/schedules/" + "x" * 3000).status_code == 404
    assert "limit" in error_of(home.acme.get("/api/schedules?limit=100000"), 422)
    assert "sort" in error_of(home.acme.get("/api/schedules?sort=name"), 422)
    put(home.acme, "reports/daily")  # A name may contain a slash.
    assert home.acme.get("/api/schedules/reports/daily").json()["name"] == "reports/daily"
    assert home.acme.get("/api/schedules/reports/daily/preview").json()["name"] == "reports/daily"


# --- read


def test_lists_are_paged_by_name(home: House) -> None:
    for number in range(5):
        put(home.globex, f"listed-{number}")
    names: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = home.globex.get("/api/schedules", params=params).json()
        names += [schedule["name"] for schedule in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [name for name in names if name.startswith("listed-")] == [f"listed-{number}" for number in range(5)]
    assert names == sorted(names)
    everybody = home.root.get("/api/schedules", params={"tenant": "globex"}).json()["items"]
    assert [schedule["name"] for schedule in everybody] == names


def test_occurrences_are_paged_newest_first(home: House) -> None:
    async def arrange(store: Store) -> None:
        spec = ScheduleSpec.build(task="report", trigger=Every("1s"), tenant="acme", missed="all", overlap="allow")
        await store.schedules.put("decided", spec)

    home.on_store(arrange)
    home.grow_older("decided", 3 * SECOND)
    home.on_store(decide)
    home.on_store(lambda store: store.schedules.remove("decided", tenant="acme"))  # Its history stays.
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = home.acme.get("/api/schedules/decided/occurrences", params=params).json()
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    instants = [item["instant"] for item in items]
    assert len(instants) >= 3
    assert instants == sorted(set(instants), reverse=True)
    assert {item["outcome"] for item in items} == {"fired"}
    assert home.acme.get(f"/api/jobs/{items[0]['job_id']}").json()["occurrence_at"] == instants[0]
    newer = home.acme.get("/api/schedules/decided/occurrences", params={"since": instants[0]}).json()["items"]
    assert [item["instant"] for item in newer] == instants[:1]
    older = home.acme.get("/api/schedules/decided/occurrences", params={"before": instants[0]}).json()["items"]
    assert [item["instant"] for item in older] == instants[1:]
    bad = home.acme.get("/api/schedules/decided/occurrences", params={"cursor": "x"})
    assert "cursor" in error_of(bad, 422)
    assert home.globex.get("/api/schedules/decided/occurrences").status_code == 404


def test_previews_explain_daylight_saving(home: House) -> None:
    body = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-27T00:00:00", "n": 3}
    shown = home.viewer.post("/api/schedules/preview", json=body).json()
    assert [item["instant"] for item in shown["items"]] == [
        "2027-03-27T01:30:00Z",
        "2027-03-28T01:00:00Z",
        "2027-03-29T00:30:00Z",
    ]
    assert "02:30" in shown["items"][1]["note"]
    put(home.acme, "previewed", {"task": "t", "cron": "30 2 * * *", "tz": "Europe/Berlin"})
    params = {"from": "2027-03-27T00:00:00", "n": "3"}
    stored = home.viewer.get("/api/schedules/previewed/preview", params=params).json()
    assert stored["items"] == shown["items"]
    other = home.viewer.get("/api/schedules/previewed/preview", params={**params, "tz": "Asia/Tokyo"}).json()
    assert other["tz"] == "Asia/Tokyo"
    follows = home.viewer.post("/api/schedules/preview", json={"after": "10m"}).json()
    assert follows["items"] == []
    assert "when its jobs end" in follows["note"]
    for edge in ("9999-12-31T22:30:00Z", "0001-01-01T00:00:00Z"):  # Not every time zone can represent these.
        shown = home.viewer.post("/api/schedules/preview", json={"cron": "0 * * * *", "tz": "Asia/Tokyo", "from": edge})
        assert shown.status_code == 200, shown.text
        west = home.viewer.get("/api/schedules/previewed/preview", params={"from": edge, "tz": "America/Lima"})
        assert west.status_code == 200, west.text
    assert home.acme.get("/api/schedules/preview").status_code == 405
    for wrong, field in (({**body, "n": 0}, "n"), ({**body, "from": "now"}, "from"), ({"cron": "* * * *"}, "cron")):
        assert field in error_of(home.viewer.post("/api/schedules/preview", json=wrong), 422)


# --- control


def test_pause_and_resume(home: House) -> None:
    put(home.acme, "paused")
    shown = home.acme.post("/api/schedules/paused/pause", json={"until": "2h", "reason": "the disk is full"}).json()
    assert (shown["paused"], shown["pause"]["reason"], shown["pause"]["author"]) == (True, "the disk is full", "acme")
    pause = shown["pause"]
    assert abs(parse_instant(pause["until"]) - parse_instant(pause["since"]) - 2 * HOUR) < HOUR // 60
    again = home.acme.post("/api/schedules/paused/pause", json={"until": "3h"})
    assert "already paused" in error_of(again, 409)
    assert home.acme.post("/api/schedules/paused/pause").json()["pause"] == pause
    past = home.acme.post("/api/schedules/paused/pause", json={"until": "2020-01-01T00:00:00Z"})
    assert past.status_code == 409
    assert home.acme.post("/api/schedules/paused/resume").json()["paused"] is False
    assert home.acme.post("/api/schedules/paused/resume").json()["paused"] is False
    past = home.acme.post("/api/schedules/paused/pause", json={"until": "2020-01-01T00:00:00Z"})
    assert "future" in error_of(past, 422)
    assert "until" in error_of(home.acme.post("/api/schedules/paused/pause", json={"until": "tomorrow"}), 422)
    assert "reason" in error_of(home.acme.post("/api/schedules/paused/pause", json={"reason": "x" * 301}), 422)


def test_trigger_is_idempotent_with_a_key(home: House) -> None:
    put(home.acme, "by-hand", {**DAILY, "overlap": "allow"})
    url = "/api/schedules/by-hand/trigger"
    first = home.acme.post(url, headers={"Idempotency-Key": "hand-1"})
    assert (first.status_code, first.json()["schedule"], first.json()["tenant"]) == (201, "by-hand", "acme")
    again = home.acme.post(url, json={"key": "hand-1"})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    other = home.acme.post(url, json={"key": "hand-1", "args": {"day": "today"}})
    assert "hand-1" in error_of(other, 409)
    changed = home.acme.post(url, json={"args": {"day": "today"}})
    assert (changed.status_code, changed.json()["args"]) == (201, {"day": "today"})
    assert home.acme.get(changed.headers["location"]).json()["occurrence_at"] is None
    assert "key" in error_of(home.acme.post(url, json={"key": "a"}, headers={"Idempotency-Key": "b"}), 422)
    assert "args" in error_of(home.acme.post(url, json={"args": 5}), 422)


def test_backfill_is_counted_bounded_and_idempotent(home: House) -> None:
    put(home.acme, "filled", {"task": "report", "cron": "0 6 * * *", "overlap": "allow"})
    url, week = "/api/schedules/filled/backfill", {"from": "2026-01-01", "to": "2026-01-07T23:59:59"}
    dry = home.acme.post(url, json={**week, "dry_run": True}).json()
    assert (dry["count"], dry["instants"][0], dry["dry_run"]) == (7, "2026-01-01T06:00:00Z", True)
    assert home.acme.post(f"{url}?dry_run=1", json=week).json() == dry
    assert "7 jobs" in error_of(home.acme.post(url, json={**week, "limit": 6}), 422)
    assert home.acme.get("/api/jobs", params={"schedule": "filled"}).json()["items"] == []
    done = home.acme.post(url, json=week).json()
    assert (done["count"], done["dry_run"]) == (7, False)
    assert len(home.acme.get("/api/jobs", params={"schedule": "filled"}).json()["items"]) == 7
    assert home.acme.post(url, json=week).json()["count"] == 0
    assert "from" in error_of(home.acme.post(url, json={"from": "2026-02-01", "to": "2026-01-01"}), 422)
    assert "to" in error_of(home.acme.post(url, json={"from": "2026-02-01"}), 422)
    assert error_of(home.acme.post(url, json={"from": "0001-01-01", "to": "2026-01-01"}), 422)


def test_every_action_is_in_the_audit_log_of_its_tenant(home: House) -> None:
    put(home.acme, "trailed")
    put(home.everybody, "trailed?tenant=acme", {**DAILY, "cron": "0 8 * * *"})
    window = {"from": "2026-01-01", "to": "2026-01-02"}
    for action, body in (("pause", {"reason": "r"}), ("resume", None), ("trigger", {}), ("backfill", window)):
        assert home.acme.post(f"/api/schedules/trailed/{action}", json=body).status_code in (200, 201)
    home.acme.delete("/api/schedules/trailed")
    found = home.root.get("/api/trail", params={"target": "trailed"}).json()["items"]
    assert [item["action"] for item in found] == [
        "schedule.remove",
        "schedule.backfill",
        "schedule.trigger",
        "schedule.resume",
        "schedule.pause",
        "schedule.put",
        "schedule.put",
    ]
    assert {item["tenant"] for item in found} == {"acme"}
    change = found[5]["detail"]
    assert (change["before"]["trigger"]["expr"], change["after"]["trigger"]["expr"]) == ("0 6 * * *", "0 8 * * *")
    assert [item["actor"] for item in found[-2:]] == ["everybody", "acme"]


# --- tenants


def test_schedule_of_another_tenant_is_not_found(home: House) -> None:
    put(home.acme, "hers")
    url = "/api/schedules/hers"
    window = {"from": "2026-01-01", "to": "2026-01-02"}
    probes: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", "", None),
        ("GET", "/occurrences", None),
        ("GET", "/preview", None),
        ("POST", "/pause", {}),
        ("POST", "/resume", None),
        ("POST", "/trigger", {}),
        ("POST", "/backfill", {**window, "dry_run": True}),
        ("POST", "/backfill", window),
        ("DELETE", "", None),
    ]
    for method, path, body in probes:
        foreign, absent = (home.globex.request(method, f"{url}{more}{path}", json=body) for more in ("", "-not"))
        assert foreign.status_code == absent.status_code == 404, (method, path)
        assert foreign.json()["error"]["message"] == absent.json()["error"]["message"].replace("hers-not", "hers")
    assert error_of(home.globex.put(url, json=DAILY, headers={"If-Match": '"1"'}), 412)
    assert home.globex.put(f"{url}?dry_run=1", json=DAILY).json()["action"] == "create"
    answers = [home.globex.get(f"{url}{more}?tenant=acme") for more in ("", "-not")]
    assert error_of(answers[0], 403) == error_of(answers[1], 403)
    assert "hers" not in home.globex.get("/api/schedules?limit=200").text
    assert "tenant" in error_of(home.globex.get("/api/schedules?tenant=acme"), 403)
    shown = home.acme.get(url).json()
    assert (shown["revision"], shown["paused"], shown["tenant"]) == (1, False, "acme")
    home.acme.delete(url)
    assert home.globex.get(f"{url}/occurrences").status_code == 404  # Other tenants cannot read its history.
    assert home.globex.put(url, json=DAILY, headers={"If-None-Match": "*"}).status_code == 201
    assert home.acme.get(url).status_code == 404
    assert put(home.acme, "hers").status_code == 201


def test_same_name_in_three_tenants(home: House) -> None:
    url = "/api/schedules/shared"
    clients = {"acme": home.acme, "globex": home.globex, "default": home.everybody}
    crons = {"acme": "1 1 * * *", "globex": "2 2 * * *", "default": "3 3 * * *"}
    for tenant, client in clients.items():
        assert put(client, "shared", {**DAILY, "cron": crons[tenant]}).status_code == 201
    for tenant, client in clients.items():
        shown = client.get(url).json()
        assert (shown["name"], shown["tenant"], shown["trigger"]["expr"]) == ("shared", tenant, crons[tenant])
        assert client.get(f"{url}/preview").json()["tenant"] == tenant
        assert home.everybody.get(f"{url}?tenant={tenant}").json() == shown
    listed = home.everybody.get("/api/schedules", params={"q": "shared"}).json()["items"]
    assert [item["tenant"] for item in listed] == ["acme", "default", "globex"]
    seen: list[str] = []
    cursor = None
    while True:  # Pages of all tenants, and of one tenant.
        params = {"q": "shared", "limit": "1", **({"cursor": cursor} if cursor else {})}
        page = home.everybody.get("/api/schedules", params=params).json()
        seen += [item["tenant"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["acme", "default", "globex"]
    assert [item["tenant"] for item in home.acme.get("/api/schedules?q=shared").json()["items"]] == ["acme"]

    home.acme.post(f"{url}/pause", json={"reason": "release"})
    assert [client.get(url).json()["paused"] for client in clients.values()] == [True, False, False]
    with home.globex.stream("GET", "/api/stream?schedule=shared") as stream:
        told = iter(stream.iter_lines())
        while "ready" not in next(told):
            pass
        made = {tenant: client.post(f"{url}/trigger").json() for tenant, client in clients.items()}
        heard = ""
        while made["globex"]["id"] not in heard:
            heard += next(told)
        assert not any(made[tenant]["id"] in heard for tenant in ("acme", "default"))
    for tenant, client in clients.items():
        jobs = client.get("/api/jobs", params={"schedule": "shared"}).json()["items"]
        assert [(job["id"], job["schedule"], job["tenant"]) for job in jobs] == [(made[tenant]["id"], "shared", tenant)]
        [run] = client.get(f"{url}/runs").json()["items"]
        assert (run["outcome"], run["job_id"], run["tenant"]) == ("triggered", made[tenant]["id"], tenant)
        assert run["reason"].startswith("by ")
        assert client.get(f"{url}/occurrences").json()["items"] == []
        second = client.post(f"{url}/trigger")  # A double click.
        assert (second.status_code, second.json()["id"]) == (200, made[tenant]["id"])
        assert second.json()["outcome"] == "not started"
        assert "overlap=skip" in second.json()["message"]
    window = {"from": "2026-01-01", "to": "2026-01-02"}
    assert home.acme.post(f"{url}/backfill", json=window).json()["count"] == 1
    assert [run["outcome"] for run in home.acme.get(f"{url}/runs").json()["items"]] == ["backfilled", "triggered"]
    assert home.globex.get("/api/audit?schedule=shared").json()["ok"] is True
    trail = home.root.get("/api/trail", params={"target": "shared", "action": "schedule.trigger"}).json()["items"]
    assert sorted(item["tenant"] for item in trail) == ["acme", "default", "globex"]
    assert home.everybody.delete(f"{url}?tenant=globex").json()["tenant"] == "globex"
    assert [client.get(url).status_code for client in clients.values()] == [200, 404, 200]
    for client in (home.acme, home.everybody):
        client.delete(url)


def test_only_callers_with_all_tenants_choose_the_tenant(home: House) -> None:
    assert put(home.everybody, "placed", {**DAILY, "tenant": "globex"}).json()["tenant"] == "globex"
    assert home.globex.get("/api/schedules/placed").status_code == 200
    assert home.everybody.get("/api/schedules/placed").status_code == 404  # It would belong to the default tenant.
    changed = put(home.everybody, "placed?tenant=globex", {**DAILY, "cron": "5 5 * * *"})
    assert (changed.status_code, changed.json()["tenant"], changed.json()["revision"]) == (200, "globex", 2)
    other = put(home.everybody, "placed", {**DAILY, "cron": "5 5 * * *"})
    assert (other.status_code, other.json()["tenant"]) == (201, "default")
    both = {**DAILY, "tenant": "globex"}
    assert "different" in error_of(home.everybody.put("/api/schedules/placed?tenant=acme", json=both), 422)
    assert "tenant" in error_of(home.everybody.put("/api/schedules/all", json={**DAILY, "tenant": "*"}), 422)
    assert put(home.acme, "own", {**DAILY, "tenant": "acme"}).json()["tenant"] == "acme"


def test_viewers_cannot_change_schedules(home: House) -> None:
    put(home.acme, "watched")
    url = "/api/schedules/watched"
    assert home.viewer.get(url).status_code == 200
    assert home.viewer.put(url, json=DAILY).status_code == 403
    assert home.viewer.put(f"{url}?dry_run=1", json=DAILY).status_code == 403
    assert home.viewer.delete(url).status_code == 403
    for action in ("pause", "resume", "trigger", "backfill"):
        assert home.viewer.post(f"{url}/{action}", json={}).status_code == 403
