"""Data of charts and calendars: outcomes per step of time, the latest decisions of schedules, their years."""

from typing import Any

import msgspec
import pytest

from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Duration, isoformat, parse_instant
from headway.core.jobs import Report
from headway.core.json_values import encode_args
from headway.core.lifecycle import Cancelled, Raised, Succeeded, TimedOut
from headway.core.triggers import Every
from headway.store import Store
from headway.store.job_columns import ONLY_FOR_CLAIMS
from headway.store.job_filter import JobFilter
from headway.store.job_rows import ANY_SIZE
from headway.store.schedules import STATES
from headway.store.transaction import as_json, call
from tests.conformance.arrange import after, claim_one, decide, end, enqueue, run_one, spec
from tests.conformance.backend import Backend

FAILED = Raised("{}", retryable=False)


async def took(backend: Backend, duration: Duration, outcome: Any = None, **options: Any) -> None:
    """Run a job for a given time."""
    await enqueue(backend.store, **options)
    job = await claim_one(backend.store, options.get("queue", "default"))
    await backend.advance(duration)
    await end(backend.store, job, outcome or Succeeded())


# --- outcomes of jobs


async def test_outcomes_are_counted_by_step_with_durations(backend: Backend) -> None:
    store = backend.store
    step = HOUR  # So long that no step ends during the first part of the test.
    await backend.advance(step - await backend.now() % step)
    begin = await backend.now()
    for seconds in range(1, 21):
        await took(backend, seconds * SECOND)
    await took(backend, 500 * SECOND, FAILED)
    await took(backend, SECOND, Cancelled())
    await backend.advance(step)
    await took(backend, 7 * SECOND, TimedOut("{}"))
    rows, oldest = await store.statistics.ended_series(begin, step)
    assert oldest is None
    found = {(row["step"] - begin // step, row["status"]): row for row in rows}
    assert {place: row["ended"] for place, row in found.items()} == {
        (0, "COMPLETED"): 20,
        (0, "FAILED"): 1,
        (0, "CANCELLED"): 1,
        (1, "TIMED_OUT"): 1,
    }
    completed = found[0, "COMPLETED"]
    assert completed["half"] == pytest.approx(10 * SECOND, abs=SECOND / 2)
    assert completed["most"] == pytest.approx(19 * SECOND, abs=SECOND / 2)
    assert await store.statistics.ended_series(begin + 3 * step, step) == ([], None)


async def test_outcomes_are_filtered_by_tenant_task_and_queue(backend: Backend) -> None:
    store = backend.store
    since = await backend.now() - SECOND
    await took(backend, SECOND, tenant="acme", task="a", queue="q")
    await took(backend, SECOND, tenant="acme", task="b")
    await took(backend, SECOND, tenant="globex", task="a")

    async def ended(**which: Any) -> int:
        rows, _ = await store.statistics.ended_series(since, MINUTE, **which)
        return sum(row["ended"] for row in rows)

    assert [await ended(), await ended(tenant="acme"), await ended(task="a"), await ended(queue="q")] == [3, 2, 2, 1]
    assert await ended(tenant="globex", task="b") == 0


async def test_only_the_newest_outcomes_are_read(backend: Backend) -> None:
    store = backend.store
    since = await backend.now() - SECOND
    for tenant in ("acme", "globex", "globex"):
        await took(backend, MINUTE, tenant=tenant)
    jobs = sorted(job.finished_at or 0 for job in await store.jobs.page())
    rows, oldest = await store.statistics.ended_series(since, DAY, limit=2)
    assert (sum(row["ended"] for row in rows), oldest) == (2, jobs[1])
    rows, oldest = await store.statistics.ended_series(since, DAY, tenant="acme", limit=2)
    assert (rows, oldest) == ([], jobs[1])
    _, oldest = await store.statistics.ended_series(since, DAY, limit=4)
    assert oldest is None


# --- the log


async def test_log_is_read_from_either_end(store: Store) -> None:
    await enqueue(store)
    job = await claim_one(store)
    lines = tuple((None, "log", f"line {n}") for n in range(5))
    await store.work.report([Report(job_id=job.id, attempt=job.attempt, lines=lines)])
    assert [line["line"] for line in await store.jobs.log(job.id, limit=2)] == ["line 0", "line 1"]
    newest = await store.jobs.log_newest(job.id, limit=2)
    assert [line["line"] for line in newest] == ["line 4", "line 3"]
    older = await store.jobs.log_newest(job.id, before=newest[-1]["seq"])
    assert [line["line"] for line in older] == ["line 2", "line 1", "line 0"]
    assert await store.jobs.log_newest(job.id, before=older[-1]["seq"]) == []


# --- schedules


async def names(store: Store, **which: Any) -> list[str]:
    return [schedule.name for schedule in await store.schedules.page(**which)]


async def test_schedules_are_searched_by_words_in_name_and_task(backend: Backend) -> None:
    store = backend.store
    for name, task, args in (
        ("Daily-Report", "send.mail", '{"task":"decoy"}'),
        ("weekly", 'odd"task\\name', "{}"),
        ("50%_done", "Ümlaut", "{}"),
    ):
        definition = spec()
        await store.schedules.put(name, type(definition).build(task=task, trigger=definition.trigger, args=args))
    expected = {
        "report": ["Daily-Report"],
        "REPORT": ["Daily-Report"],
        "send.": ["Daily-Report"],
        "odd": ["weekly"],
        'd"t': ["weekly"],
        "k\\n": ["weekly"],
        "%": ["50%_done"],
        "_": ["50%_done"],
        "mlaut": ["50%_done"],
        "e": ["50%_done", "Daily-Report", "weekly"],
        "decoy": [],
        "cron": [],
        '"': ["weekly"],
    }
    for words, found in expected.items():
        assert await names(store, words=words) == found, words
    await backend.sql("update headway_schedules set definition = 'nonsense' where name = 'weekly'")
    assert await names(store, words="weekl") == ["weekly"]
    assert await names(store, words="nonsense") == []


async def test_schedules_are_filtered_by_state(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    tomorrow = Every("1d", start=isoformat(now))  # Not at midnight, which may be close.
    await store.schedules.put("active", spec(tomorrow))
    await store.schedules.put("delayed", after())
    await store.schedules.put("paused", spec(tomorrow))
    await store.schedules.pause("paused")
    await store.schedules.put("late", spec("2h"))
    await store.schedules.put("held", spec(tomorrow))
    await store.ledger.hold("held", 1, "cannot be planned")
    await store.schedules.put("failing", spec(tomorrow))
    await backend.sql("update headway_schedules set failing = 3 where name = 'failing'")
    await store.schedules.put("over", spec(tomorrow, end=isoformat(now + 2 * DAY)))
    await backend.sql("update headway_schedules set next_at = null where name = 'over'")
    await store.schedules.put("delay-over", after(end=isoformat(now + MINUTE)))
    await backend.sql("update headway_schedules set next_at = null where name in ('delayed', 'delay-over')")
    await backend.advance(3 * HOUR)
    found = {state: await names(store, state=state) for state in STATES}
    # The first held instant is planned again after a minute, which has passed as well.
    assert found == {
        "active": ["active", "delayed", "failing", "late"],
        "paused": ["paused"],
        "late": ["held", "late"],
        "attention": ["held"],
        "failing": ["failing"],
        "ended": ["delay-over", "over"],
    }
    assert await names(store, state="active", words="ail") == ["failing"]


async def test_latest_decisions_of_many_schedules_are_read_in_one_query(backend: Backend) -> None:
    store = backend.store
    for name in ("a", "b", "never"):
        await store.schedules.put(name, spec("1d" if name == "never" else "1s", overlap="allow", queue=name))
    for _ in range(4):
        await backend.advance(SECOND)
        await decide(store)
    await run_one(store, queue="a")
    await run_one(store, FAILED, queue="b")
    found = await store.ledger.recent(["a", "b", "never", "absent"], 3)
    assert set(found) == {"a", "b"}
    for name in ("a", "b"):
        expected = [(o.instant, o.outcome, o.job_id) for o in reversed(await store.ledger.occurrences(name, limit=3))]
        assert [(row["instant"], row["outcome"], row["job_id"]) for row in found[name]] == expected
    everything = await store.ledger.recent(["a", "b"], 20)
    assert [row["job_status"] for row in everything["a"]][:2] == ["COMPLETED", "PENDING"]
    assert everything["b"][0]["job_status"] == "FAILED"
    await backend.sql("delete from headway_jobs where queue = 'b'")
    assert {row["job_status"] for row in (await store.ledger.recent(["b"], 20))["b"]} == {None}
    assert await store.ledger.recent([], 5) == {}


# --- the calendar


ROW = "insert into headway_occurrences values ('s', {instant}, {until}, {count}, '{outcome}', '', 0, 1, 1, 'n', {job})"


async def occur(
    backend: Backend, at: str, outcome: str = "fired", until: str = "", count: int = 1, job: str = ""
) -> None:
    values = {"instant": parse_instant(at), "until": parse_instant(until) if until else "null", "count": count}
    await backend.sql(ROW.format(**values, outcome=outcome, job=f"'{job}'" if job else "null"))


async def test_decisions_are_counted_by_local_days(backend: Backend) -> None:
    store = backend.store
    jobs = [(await enqueue(store), await run_one(store, outcome))[0] for outcome in (None, None, FAILED)]
    waiting = await enqueue(store, queue="other")
    await occur(backend, "2027-01-30T23:30:00Z", job=jobs[0])  # 00:30 in Berlin.
    await occur(backend, "2027-01-31T10:00:00Z", job=jobs[1])
    await occur(backend, "2027-01-31T11:00:00Z", job=jobs[2])
    await occur(backend, "2027-01-31T12:00:00Z", job=waiting)
    await occur(backend, "2027-01-31T22:59:59Z", "skipped")
    await occur(backend, "2027-01-31T23:00:00Z", "missed")
    await occur(backend, "2027-07-31T22:00:00Z", "fired")  # Midnight in summer time.
    await occur(backend, "2027-08-02T00:00:00Z", "paused", until="2027-08-04T00:00:00Z", count=49)
    await occur(backend, "2028-01-01T00:00:00Z", "fired")
    begin, end_, summer, winter = (
        parse_instant(text)
        for text in ("2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z", "2027-03-28T01:00:00Z", "2027-10-31T01:00:00Z")
    )
    stretches = [(begin, summer, HOUR), (summer, winter, 2 * HOUR), (winter, end_, HOUR)]
    rows, runs = await store.ledger.calendar("s", begin, end_, stretches, limit=100, runs_limit=10)
    january = parse_instant("2027-01-31T00:00:00Z") // DAY
    assert {(row["day"] - january, row["outcome"], row["status"]): row["decisions"] for row in rows} == {
        (0, "fired", "COMPLETED"): 2,
        (0, "fired", "FAILED"): 1,
        (0, "fired", "PENDING"): 1,
        (0, "skipped", None): 1,
        (1, "missed", None): 1,
        (182, "fired", None): 1,
    }
    assert [(run["outcome"], run["count"]) for run in runs] == [("paused", 49)]
    rows, _ = await store.ledger.calendar("s", begin, end_, stretches, limit=2, runs_limit=10)
    assert sum(row["decisions"] for row in rows) == 1  # One of the two newest records is a run.
    assert await store.ledger.calendar("absent", begin, end_, stretches, limit=9, runs_limit=9) == ([], [])


async def test_run_that_began_before_the_year_counts_in_it(backend: Backend) -> None:
    await occur(backend, "2026-12-30T00:00:00Z", "paused", until="2026-12-30T12:00:00Z", count=3)
    await occur(backend, "2026-12-31T00:00:00Z", "paused", until="2027-01-02T00:00:00Z", count=3)
    begin, end_ = parse_instant("2027-01-01T00:00:00Z"), parse_instant("2028-01-01T00:00:00Z")
    for first, reaches in ((begin, 1), (begin + 2 * DAY, 0)):
        _, runs = await backend.store.ledger.calendar("s", first, end_, [(first, end_, 0)], limit=9, runs_limit=9)
        assert len(runs) == reaches


async def test_lists_of_jobs_omit_large_columns(store: Store) -> None:
    text = "ä" * 3_000
    large = await enqueue(store, args=encode_args({"text": text}), metadata='{"a":1}')
    small = await enqueue(store, args='{"n":1}')
    await run_one(store, Succeeded(result=encode_args({"text": text})))
    for listed in (
        await store.jobs.page(),
        await store.jobs.chosen(JobFilter(), largest=4_096),
        await store.feed.jobs([large, small], largest=4_096),
        await store.jobs.chosen(JobFilter(tenant="default"), largest=4_096),
    ):
        found = {job.id: job for job in listed}
        assert found[small] == await store.jobs.get(small)
        whole = await store.jobs.get(large)
        if found[large].omitted:
            assert found[large].omitted == ("args", "result")
            without = msgspec.structs.replace(whole, args="null", result=None, omitted=("args", "result"))
            assert found[large] == without
        else:
            assert found[large] == whole
    [job] = await store.feed.jobs([large], largest=3_100)  # The limit is in bytes, not characters.
    assert job.omitted == ("args", "result")


async def test_every_column_of_a_job_is_read_in_lists(backend: Backend) -> None:
    await enqueue(backend.store)
    [job] = await backend.store.jobs.page()
    [listed] = await backend.store.driver.fetch(call("jobs_by_id", ids=as_json([job.id]), largest=ANY_SIZE))
    [table] = await backend.store.driver.fetch(call("job", id=job.id))
    names: Any = [set(row.keys()) for row in (listed, table)]  # type: ignore[attr-defined]
    expected = {*names[1] - ONLY_FOR_CLAIMS, "omitted"}
    assert names[0] == expected, "add the new column to Job in core/jobs.py, or to store/job_columns.py"
