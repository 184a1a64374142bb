"""Bulk operations over HTTP: count, retry and cancel jobs, rerun with other arguments, charts and calendars."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND
from headway.core.jobs import NewJob, Report
from headway.core.lifecycle import Raised
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron, Every, Trigger
from headway.store import Store
from tests.conformance.arrange import claim_one, decide, run_one
from tests.support.house import House

IDS = Clock()
NOTHING = {"matched": 0, "is_exact": True, "done": 0, "refused": [], "more": False}


def enqueue(home: House, number: int = 1, **options: Any) -> list[str]:
    jobs = [NewJob(id=IDS.new_id("job"), **{"task": "report", **options}) for _ in range(number)]
    home.on_store(lambda store: store.queue.enqueue(jobs))
    return [job.id for job in jobs]


def fail(home: House, number: int = 1, *, queue: str, **options: Any) -> list[str]:
    """Create dead letters."""
    ids = enqueue(home, number, queue=queue, **options)

    async def run(store: Store) -> None:
        for _ in ids:
            await run_one(store, Raised("{}", retryable=False), queue)

    home.on_store(run)
    return ids


def error_of(answer: httpx.Response, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def jobs_of(client: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/jobs", params={"limit": 200, **query})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def act(client: httpx.Client, verb: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/jobs/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# --- many jobs


def test_matching_jobs_are_counted_and_retried_once(home: House) -> None:
    letters = fail(home, 3, queue="again", tenant="acme", task="mail")
    enqueue(home, 2, queue="again", tenant="acme", task="mail")
    chosen = {"queue": "again", "type": "mail"}
    assert home.acme.get("/api/jobs/count", params=chosen).json() == {"count": 5, "is_exact": True}
    assert act(home.acme, "retry", filter=chosen, dry_run=True) == {**NOTHING, "matched": 3}
    assert len(jobs_of(home.acme, **chosen)) == 5
    done = act(home.acme, "retry", filter=chosen, reason="the printer is back")
    assert done == {**NOTHING, "matched": 3, "done": 3}
    for letter in letters:
        [rerun] = jobs_of(home.acme, rerun_of=letter)
        assert (rerun["rerun_of"], rerun["status"], rerun["type"]) == (letter, "PENDING", "mail")
    assert act(home.acme, "retry", filter=chosen) == NOTHING
    assert act(home.acme, "retry", filter=chosen, dry_run=True) == NOTHING
    [line] = [
        line
        for line in home.root.get("/api/trail", params={"action": "job.retry"}).json()["items"]
        if line["detail"].get("filter") == chosen
    ]
    assert (line["actor"], line["target"], line["tenant"]) == ("acme", "*", "acme")
    assert (line["detail"]["jobs"], line["detail"]["reason"]) == (sorted(letters), "the printer is back")


def test_cancelling_is_bounded_and_oldest_first(home: House) -> None:
    ids = enqueue(home, 250, queue="too-many", delay=HOUR)
    chosen = {"status": "SCHEDULED", "queue": "too-many"}
    first = act(home.everybody, "cancel", filter=chosen, limit=120, reason="wrong month")
    assert first == {**NOTHING, "matched": 250, "done": 120, "more": True}
    assert {job["id"] for job in jobs_of(home.everybody, status="CANCELLED", queue="too-many")} == set(ids[:120])
    assert act(home.everybody, "cancel", filter=chosen, limit=100, dry_run=True)["more"] is True
    rest = act(home.everybody, "cancel", filter=chosen)
    assert rest == {**NOTHING, "matched": 130, "done": 130}
    shown = home.everybody.get(f"/api/jobs/{ids[0]}").json()
    assert (shown["status"], shown["reason"]) == ("CANCELLED", "cancelled by everybody: wrong month")
    trail = home.root.get("/api/trail", params={"action": "job.cancel", "limit": 200}).json()["items"]
    told = [job_id for line in trail for job_id in line["detail"].get("jobs", ())]
    assert set(ids) <= set(told)
    mine = [line for line in trail if line["target"] == "*" and not set(ids).isdisjoint(line["detail"].get("jobs", ()))]
    assert len(mine) == 4  # Few transactions.


def test_jobs_are_selected_by_id_and_others_are_refused(home: House) -> None:
    [letter] = fail(home, queue="named", tenant="acme")
    [waiting] = enqueue(home, queue="named-too", tenant="acme")
    ids = [letter, waiting, "job_absent", letter]
    assert act(home.acme, "retry", ids=ids, dry_run=True) == {
        **NOTHING,
        "matched": 1,
        "refused": [{"id": "job_absent", "reason": "no job has this id"}],
    }
    done = act(home.acme, "retry", ids=ids)
    assert (done["matched"], done["done"], done["more"]) == (1, 1, False)
    assert {refused["id"]: refused["reason"] for refused in done["refused"]} == {
        "job_absent": "no job has this id",
        waiting: "it is PENDING; only a job that has ended can be retried",
    }
    again = act(home.acme, "retry", ids=[letter])
    assert (again["matched"], again["done"]) == (0, 0)
    assert "repeats it already" in again["refused"][0]["reason"]
    many = act(home.acme, "cancel", ids=[f"job_absent_{number}" for number in range(30)])
    assert (many["done"], len(many["refused"])) == (0, 20)
    assert act(home.acme, "cancel", ids=[waiting])["done"] == 1


def test_each_tenant_has_its_own_audit_entry(home: House) -> None:
    for tenant in ("acme", "globex"):
        enqueue(home, 2, queue="shared", tenant=tenant)
    assert act(home.everybody, "cancel", filter={"queue": "shared"})["done"] == 4
    lines = home.root.get("/api/trail", params={"action": "job.cancel", "limit": 200}).json()["items"]
    told = {line["tenant"]: line["detail"]["jobs"] for line in lines if line["detail"]["filter"] == {"queue": "shared"}}
    assert {tenant: len(jobs) for tenant, jobs in told.items()} == {"acme": 2, "globex": 2}


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_invalid_selection_is_rejected_with_the_field(home: House, verb: str) -> None:
    path, before = f"/api/jobs/{verb}", home.root.get("/api/jobs/count").json()
    for body, field in [
        ({}, "filter or ids"),
        ({"filter": {"status": "FAILED"}, "ids": ["job_1"]}, "filter or ids"),
        ({"filter": {}}, "filter: it is empty"),
        ({"filter": {"status": None}}, "filter: it is empty"),
        ({"filter": {"tenant": "acme"}}, "filter: it is empty"),
        ({"filter": {"status": "GONE"}}, "filter.status"),
        ({"filter": {"stauts": "FAILED"}}, "stauts"),
        ({"filter": {"finished_after": "soon"}}, "filter.finished_after"),
        ({"filter": {"q": "a\nb"}}, "filter.q"),
        ({"filter": {"q": ""}}, "filter.q"),
        ({"filter": {"q": "x" * 513}}, "filter.q"),
        ({"ids": []}, "ids"),
        ({"ids": ["job_1"] * 1_001}, "ids"),
        ({"filter": {"status": "FAILED"}, "limit": 0}, "limit"),
        ({"filter": {"status": "FAILED"}, "limit": 1_001}, "limit"),
        ({"filter": {"status": "FAILED"}, "reason": "x" * 301}, "reason"),
        ({"filter": {"status": "FAILED"}, "dry_run": "yes"}, "dry_run"),
    ]:
        assert field in error_of(home.acme.post(path, json=body)), body
    assert act(home.acme, verb, filter={"batch": "b"}) == NOTHING
    assert error_of(home.viewer.post(path, json={"filter": {"status": "FAILED"}, "dry_run": True}), 403)
    assert home.root.get("/api/jobs/count").json() == before


def test_lists_and_counts_filter_by_finish_time(home: House) -> None:
    [letter] = fail(home, queue="timed", tenant="acme")
    ended = home.acme.get(f"/api/jobs/{letter}").json()["finished_at"]
    for query, number in (
        ({"finished_after": ended}, 1),
        ({"finished_before": ended}, 0),
        ({"finished_after": "2100-01-01T00:00:00Z"}, 0),
        ({"finished_before": "2100-01-01T00:00:00Z", "status": "FAILED"}, 1),
    ):
        chosen = {"queue": "timed", **query}
        assert len(jobs_of(home.acme, **chosen)) == number
        assert home.acme.get("/api/jobs/count", params=chosen).json()["count"] == number
    assert "finished_after" in error_of(home.acme.get("/api/jobs?finished_after=soon"))
    assert "finished_before" in error_of(home.acme.get("/api/jobs/count?finished_before=soon"))
    assert home.acme.get("/api/jobs/count?batch=b").json() == {"count": 0, "is_exact": True}
    assert error_of(home.acme.get("/api/jobs/count?limit=5"))


# --- other arguments


def test_job_is_rerun_with_other_arguments(home: House) -> None:
    [letter] = fail(home, queue="edited", tenant="acme", args='{"day":"monday","password":"secret","n":1}')
    shown = home.acme.get(f"/api/jobs/{letter}").json()
    assert shown["args"]["password"] == "***"
    answer = home.acme.post(f"/api/jobs/{letter}/retry", json={"args": {**shown["args"], "day": "tuesday"}})
    assert answer.status_code == 201, answer.text
    again = answer.json()
    assert (again["rerun_of"], again["queue"], again["args"]["day"]) == (letter, "edited", "tuesday")
    stored = home.on_store(lambda store: store.jobs.get(again["id"])).args
    assert json.loads(stored) == {"day": "tuesday", "password": "secret", "n": 1}  # Masked values are kept.
    plain = home.acme.post(f"/api/jobs/{letter}/retry").json()
    assert home.on_store(lambda store: store.jobs.get(plain["id"])).args.count("monday") == 1
    lines = home.root.get("/api/trail", params={"target": letter}).json()["items"]
    assert [line["detail"] for line in lines] == [{"new": plain["id"]}, {"other_args": True, "new": again["id"]}]
    assert "args" in error_of(home.acme.post(f"/api/jobs/{letter}/retry", json={"args": [1]}))
    assert "arg" in error_of(home.acme.post(f"/api/jobs/{letter}/retry", json={"argz": {}}))
    [waiting] = enqueue(home, queue="edited", tenant="acme")
    assert error_of(home.acme.post(f"/api/jobs/{waiting}/retry", json={"args": {}}), 409)
    empty = home.acme.post(f"/api/jobs/{letter}/retry", json={"args": {}}).json()
    assert empty["args"] == {}


# --- the log


def test_log_is_newest_first(home: House) -> None:
    [job_id] = enqueue(home, queue="logged", tenant="acme")

    async def write_log(store: Store) -> None:
        job = await claim_one(store, "logged")
        lines = tuple((None, "log", f"line {number}") for number in range(5))
        await store.work.report([Report(job_id=job.id, attempt=job.attempt, lines=lines)])

    home.on_store(write_log)
    found: list[str] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = home.acme.get(f"/api/jobs/{job_id}/log", params={"order": "desc", "limit": "2", **more}).json()
        found += [line["line"] for line in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"line {number}" for number in (4, 3, 2, 1, 0)]
    ascending = home.acme.get(f"/api/jobs/{job_id}/log?order=asc").json()
    assert [line["line"] for line in ascending["items"]] == found[::-1]
    assert "order" in error_of(home.acme.get(f"/api/jobs/{job_id}/log?order=up"))
    assert "cursor" in error_of(home.acme.get(f"/api/jobs/{job_id}/log?order=desc&cursor=x"))


# --- charts


def test_finished_jobs_are_a_time_series(home: House) -> None:
    fail(home, 2, queue="charted", task="chart")

    async def complete(store: Store) -> None:
        await run_one(store, queue="charted")

    enqueue(home, queue="charted", task="chart")
    home.on_store(complete)
    for window, seconds in (("1h", 30), ("6h", 180), ("24h", 720)):
        found = home.root.get("/api/stats/series", params={"window": window, "task": "chart", "queue": "charted"})
        series = found.json()
        assert (series["step_seconds"], len(series["points"]), series["truncated"]) == (seconds, 120, False)
        assert sum(point["failed"] for point in series["points"]) == 2
        assert sum(point["completed"] for point in series["points"]) == 1
        [took] = [point["duration_p95"] for point in series["points"] if point["completed"]]
        assert took > 0
    assert len(home.acme.get("/api/stats/series").json()["points"]) == 120
    assert "window" in error_of(home.acme.get("/api/stats/series?window=2h"))


# --- schedules


@pytest.fixture(scope="module")
def schedules(home: House) -> None:
    async def put(store: Store) -> None:
        triggers: dict[str, Trigger] = {"nightly-report": Cron("0 6 * * *", tz="Europe/Berlin")}
        triggers |= {"poll": Every("1h"), "stopped": Every("1h")}
        for name, trigger in triggers.items():
            spec = ScheduleSpec.build(task=f"task.{name}", trigger=trigger, tenant="acme", queue="scheduled")
            await store.schedules.put(name, spec)
        await store.schedules.pause("stopped", tenant="acme")
        await store.schedules.put(
            "ticking",
            ScheduleSpec.build(task="tick", trigger=Every("1s"), tenant="acme", queue="tick", overlap="allow"),
        )

    home.on_store(put)
    home.grow_older("ticking", 3 * SECOND)
    home.on_store(_tick)


async def _tick(store: Store) -> None:
    await decide(store)
    await run_one(store, queue="tick")


def names(client: httpx.Client, **query: str) -> list[str]:
    answer = client.get("/api/schedules", params=query)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.usefixtures("schedules")
def test_schedules_are_filtered_by_text_and_state(home: House) -> None:
    assert names(home.acme, q="NIGHT") == ["nightly-report"]
    assert names(home.acme, q="task.p") == ["poll"]
    assert names(home.acme, q="task.", limit="2") == ["nightly-report", "poll"]
    assert names(home.acme, state="paused") == ["stopped"]
    assert names(home.acme, state="active", q="p") == ["nightly-report", "poll"]
    assert names(home.acme, state="ended") == []
    assert names(home.globex, q="poll") == []
    assert "state" in error_of(home.acme.get("/api/schedules?state=gone"))


@pytest.mark.usefixtures("schedules")
def test_schedules_include_their_latest_decisions(home: House) -> None:
    shown = {item["name"]: item for item in home.acme.get("/api/schedules?recent=20").json()["items"]}
    assert shown["poll"]["recent"] == []
    recent = shown["ticking"]["recent"]
    assert 2 <= len(recent) <= 20
    assert [entry["at"] for entry in recent] == sorted(entry["at"] for entry in recent)
    assert (recent[0]["outcome"], recent[-1]["outcome"]) != (None, None)
    ran = [entry for entry in recent if entry["job_status"] == "COMPLETED"]
    assert len(ran) == 1
    assert home.acme.get(f"/api/jobs/{ran[0]['job_id']}").json()["schedule"] == "ticking"
    [one] = home.acme.get("/api/schedules?recent=1&q=ticking").json()["items"]
    assert one["recent"] == recent[-1:]
    assert "recent" not in home.acme.get("/api/schedules?q=ticking").json()["items"][0]
    for number in ("0", "21", "x"):
        assert "recent" in error_of(home.acme.get(f"/api/schedules?recent={number}"))


@pytest.mark.usefixtures("schedules")
def test_schedule_has_a_calendar_of_a_year(home: House) -> None:
    begin = datetime.now(UTC)
    found = home.acme.get("/api/schedules/ticking/calendar").json()
    assert found["year"] in {begin.year, datetime.now(UTC).year}
    occurrences = home.acme.get("/api/schedules/ticking/occurrences?limit=200").json()["items"]
    # A test that starts before midnight has instants on two days, and once a year in two years.
    stretch = {item[name][:10] for item in occurrences for name in ("instant", "until") if name in item}
    days = []
    for year in sorted({day[:4] for day in stretch}):
        found = home.acme.get(f"/api/schedules/ticking/calendar?year={year}").json()
        assert (found["year"], found["tz"], found["truncated"]) == (int(year), "UTC", False)
        days += found["days"]
    decided = sum(number for day in days for number in day["outcomes"].values())
    assert decided == sum(item["count"] for item in occurrences)
    assert sum(day["ended"].get("COMPLETED", 0) for day in days) == 1
    assert stretch >= {day["day"] for day in days} != set()
    assert home.acme.get("/api/schedules/nightly-report/calendar?year=2027").json() == {
        "year": 2027,
        "tz": "Europe/Berlin",
        "days": [],
        "truncated": False,
    }
    for year in ("1969", "2200", "x"):
        assert "year" in error_of(home.acme.get(f"/api/schedules/ticking/calendar?year={year}"))
    assert error_of(home.acme.get("/api/schedules/absent/calendar"), 404)
