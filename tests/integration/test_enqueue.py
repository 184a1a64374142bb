"""Jobs as a program enqueues them: single and bulk, with keys, callbacks and options per row, on both databases."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headway import Context, DuplicateKey, Headway, InvalidTask, Status
from headway.core.errors import DefinitionError
from headway.core.lifecycle import Raised, Succeeded
from headway.tasks.handles import JobHandle
from headway.tasks.rows import ROWS_MAX
from headway.testing import virtual
from tests.conformance.arrange import claim_one, run_one
from tests.support.command_line import Cli
from tests.support.house import SECRET

HOOK = "https://example.org/done"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Headway]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/headway.db" if is_sqlite else request.getfixturevalue("migrated_url")
    app = Headway(url, name="billing")

    @app.task
    def report(tenant_id: int, level: int = 0) -> None: ...

    yield app
    if not is_sqlite:
        app.blocking(app.close())


async def stored(app: Headway, handle: JobHandle) -> Any:
    return await (await app.store()).jobs.get(handle.id)


async def deliveries(app: Headway) -> list[str]:
    """Return the URLs of callback deliveries."""
    return sorted(one.url for one in await (await app.store()).webhooks.deliveries(limit=200))


# --- repeated keys


async def test_repeated_key_returns_the_current_job(app: Headway) -> None:
    options: dict[str, Any] = {"key": "r-1", "metadata": {"of": "ada"}, "timeout": "5m", "expires": "1h"}
    first = await app.enqueue("report", {"tenant_id": 1}, **options, tags=["a"], callback_url=HOOK)
    assert first.job == await stored(app, first)  # The handle of a new job matches the store.
    other = {"key": "r-1", "metadata": {"of": "bob"}, "timeout": "1m", "priority": 9}
    again = await app.enqueue("report", {"tenant_id": 1}, **other)
    assert again.job == first.job
    await run_one(await app.store(), Succeeded('{"n": 1}'))
    ended = await app.enqueue("report", {"tenant_id": 1}, key="r-1")
    assert (ended.id, ended.status, ended.result) == (first.id, Status.COMPLETED, {"n": 1})
    assert ended.metadata == {"of": "ada"}
    assert (ended.job.timeout, ended.job.expires_at) == (first.job.timeout, first.job.expires_at)
    assert await ended.wait() == {"n": 1}
    new, old = await app.tasks["report"].enqueue_many([{"tenant_id": 2}, {"tenant_id": 1}], key="r-{tenant_id}")
    assert (new.status, old.status, old.result) == (Status.PENDING, Status.COMPLETED, {"n": 1})
    await app.close()


def test_repeated_key_in_the_callers_transaction(app: Headway) -> None:
    app.job_sync(app.enqueue_sync("report", {"tenant_id": 0}).id)
    path = app.settings.store
    connection: Any = (
        sqlite3.connect(path.removeprefix("sqlite:///")) if path.startswith("sqlite") else psycopg.connect(path)
    )
    try:
        options: dict[str, Any] = {"key": "tx", "metadata": {"of": "ada"}, "callback_url": HOOK, "tx": connection}
        first = app.enqueue_sync("report", {"tenant_id": 1}, **options)
        again = app.enqueue_sync("report", {"tenant_id": 1}, **{**options, "metadata": {"of": "bob"}})
        assert (again.id, again.metadata, again.job.callback) == (first.id, {"of": "ada"}, HOOK)
        connection.commit()
    finally:
        connection.close()
    assert app.job_sync(first.id).job == first.job


# --- windows


async def test_key_of_a_window_is_a_template(app: Headway) -> None:
    report = app.tasks["report"]
    debounced = report.options(key="r-{tenant_id}", debounce="30s", max_wait="5m")
    first = await debounced.enqueue(1, level=1)
    again = await debounced.enqueue(tenant_id=1, level=2)
    assert (first.merged_into, again.merged_into, again.args) == (None, first.id, {"tenant_id": 1, "level": 2})
    assert again.job == await stored(app, first)
    assert (await debounced.enqueue(2)).merged_into is None
    by_name = await app.enqueue("report", {"tenant_id": 1}, key="r-{tenant_id}", debounce="30s")
    assert by_name.merged_into == first.id
    rows = [{"tenant_id": 1}, {"tenant_id": 3, "level": 1}, {"tenant_id": 3, "level": 2}]
    for many in (await debounced.enqueue_many(rows), await report.enqueue_many(rows, key="r-{tenant_id}", debounce=30)):
        assert many[0].merged_into == first.id
        assert many[1].id == many[2].merged_into
        assert many[1].args == many[2].args == rows[2]
    braces = await app.enqueue_many("report", [{"tenant_id": "{level}"}] * 2, key="r-{tenant_id}", unique="1h")
    assert [one.merged_into for one in braces] == [None, braces[0].id]  # Filled once, not twice.


async def test_mistakes_with_windows_name_the_cure(app: Headway) -> None:
    report = app.tasks["report"]
    mistakes: dict[str, dict[str, Any]] = {
        "key needs the argument 'level', which the job does not have": {"key": "r-{level}", "unique": "1h"},
        "brace that holds no name": {"key": "r-{", "unique": "1h"},
        "throttle needs a key": {"throttle": "1m"},
        "debounce and throttle exclude each other": {"key": "k", "throttle": "1m", "debounce": "1m"},
        "leave out delay": {"key": "k", "debounce": "1m", "at": "2100-01-01T00:00:00Z"},
        "add debounce, or leave out max_wait": {"key": "k", "max_wait": "1m"},
    }
    for message, options in mistakes.items():
        with pytest.raises(InvalidTask, match=message):
            await report.options(**options).enqueue(tenant_id=1)
    with pytest.raises(InvalidTask, match=r"rows\[1\]: key needs the argument 'level'"):
        await report.options(key="r-{level}", debounce="1m").enqueue_many(
            [{"tenant_id": 1, "level": 1}, {"tenant_id": 2}]
        )
    assert await app.jobs() == []
    plain = await report.options(key="r-{tenant_id}").enqueue(tenant_id=1)
    assert plain.job.key == "r-{tenant_id}"  # Without a window, the key is what it says.


def test_windows_in_the_callers_transaction(app: Headway) -> None:
    before = app.enqueue_sync("report", {"tenant_id": 0}, key="w", debounce="1h")
    path = app.settings.store
    connection: Any = (
        sqlite3.connect(path.removeprefix("sqlite:///")) if path.startswith("sqlite") else psycopg.connect(path)
    )
    options: dict[str, Any] = {"tx": connection, "debounce": "1h"}
    try:
        for commits in (False, True):
            merged = app.enqueue_sync("report", {"tenant_id": 1}, key="w", **options)
            own = app.enqueue_sync("report", {"tenant_id": 2}, key="own", **options)
            again = app.enqueue_sync("report", {"tenant_id": 3}, key="own", **options)
            assert (merged.merged_into, own.merged_into, again.merged_into) == (before.id, None, own.id)
            if commits:
                connection.commit()
            else:
                connection.rollback()
                assert app.job_sync(before.id).args == {"tenant_id": 0}
                assert [job.id for job in app.jobs_sync()] == [before.id]
    finally:
        connection.close()
    assert app.job_sync(before.id).job == merged.job
    assert app.job_sync(own.id).job == again.job


def test_running_task_debounces() -> None:
    app = Headway("sqlite://", name="billing")
    seen: list[Any] = []

    @app.task
    async def report(tenant_id: int, n: int) -> None:
        seen.append((tenant_id, n))

    @app.task
    async def burst(ctx: Context) -> None:
        ids = [
            await ctx.enqueue(report, {"tenant_id": 1, "n": n}, key="r-{tenant_id}", debounce="30s") for n in range(5)
        ]
        rows = [{"tenant_id": 1, "n": 7}, {"tenant_id": 2, "n": 8}]
        ids += await ctx.enqueue_many(report, rows, key="r-{tenant_id}", debounce="30s")
        seen.append(len(set(ids)))

    with virtual(app) as world:
        app.tasks["burst"].enqueue_sync()
        world.advance(seconds=20)
        assert seen == [2]
        world.advance(seconds=20)
        world.drain()
    assert sorted(seen[1:]) == [(1, 7), (2, 8)]


# --- the audit log


async def test_http_enqueues_are_audited_if_enabled(app: Headway) -> None:
    store = await app.store()
    results = []
    for choice in ("off", "on"):
        app.settings = replace(app.settings, audit_enqueues=choice, token=SECRET)
        asgi = httpx.ASGITransport(app.api())
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=asgi, base_url="http://headway", headers=headers) as http:
            one = (await http.post("/api/jobs", json={"type": "report", "args": {"tenant_id": 1}})).json()["id"]
            keyed = {"type": "report", "args": {"tenant_id": 2}, "key": f"Ada-{choice}", "tenant": "acme"}
            first, again = [(await http.post("/api/jobs", json=keyed)).json()["id"] for _ in range(2)]
            others = [{**keyed, "key": f"{choice}-{n}", "tenant": f"t{n % 2}"} for n in range(3)]
            many = (await http.post("/api/jobs/bulk", json={"jobs": [keyed, *others]})).json()["items"]
        assert first == again == many[0]["id"]
        ids = [job["id"] for job in many]
        lines = [(line.tenant, line.target, line.detail) for line in reversed(await store.audit_log.page())]
        results.append((lines, one, first, ids))
    assert results[0][0] == []
    lines, one, first, ids = results[1]
    assert lines == [
        ("default", one, {"types": ["report"], "count": 1}),
        ("acme", first, {"types": ["report"], "count": 1}),
        ("t0", "*", {"types": ["report"], "count": 2, "jobs": [ids[1], ids[3]]}),
        ("t1", ids[2], {"types": ["report"], "count": 1}),
    ]  # No entry for the existing job.
    await app.close()


# --- handles


async def test_handle_has_times_and_reasons(app: Headway) -> None:
    store = await app.store()
    job = await app.enqueue("report", {"tenant_id": 1}, max_attempts=2)
    assert (job.started_at, job.finished_at, job.attempts, job.updated_at) == (None, None, 0, job.created_at)
    assert job.why
    await store.queue.pause("default", author="ada", reason="the disk is full")
    assert "the disk is full" in (await job.refresh()).why  # The same text as the API, which looks at the queue.
    assert "the disk is full" in (await app.job(job.id)).why
    await store.queue.resume("default")
    await claim_one(store)
    await job.refresh()
    assert (job.attempts, job.failures, job.max_attempts) == (1, 0, 2)
    assert job.started_at is not None
    assert job.created_at <= job.started_at <= job.updated_at
    await job.cancel("no more")
    assert job.why
    failed = await app.enqueue("report", {"tenant_id": 2}, queue="other")
    await run_one(store, Raised('{"type": "IOError", "message": "full"}', retryable=False), "other")
    [listed] = await app.jobs(queue="other")
    for handle in (await failed.refresh(), listed):
        assert handle.started_at is not None
        assert handle.finished_at == handle.updated_at >= handle.started_at
        assert "IOError" in handle.why
    await app.close()


# --- callbacks


async def finish(app: Headway, number: int) -> None:
    for _ in range(number):
        await run_one(await app.store())


def test_callback_url_works_with_every_way_to_enqueue(app: Headway, cli: Cli) -> None:
    report = app.tasks["report"]
    report.options(callback_url=f"{HOOK}?1").enqueue_sync(tenant_id=1)
    app.enqueue_sync("report", {"tenant_id": 2}, callback_url=f"{HOOK}?2", tenant="acme")
    report.enqueue_many_sync([{"tenant_id": 3}], callback_url=f"{HOOK}?{{tenant_id}}", tenant="tenant-{tenant_id}")
    assert cli("enqueue", "report", "--callback-url", f"{HOOK}?4", "--store", app.settings.store).code == 0
    assert app.blocking(deliveries(app)) == []
    app.blocking(finish(app, 4))
    assert app.blocking(deliveries(app)) == [f"{HOOK}?{number}" for number in (1, 2, 3, 4)]


def test_callback_urls_are_validated_as_over_http(app: Headway, cli: Cli) -> None:
    for wrong in ("file:///etc/passwd", "example.org", "https://ada:secret@example.org/", "", 7):
        with pytest.raises(DefinitionError, match="callback_url"):
            app.tasks["report"].options(callback_url=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match=r"rows\[1\]: callback_url"):
        app.enqueue_many_sync("other", [{"n": "a"}, {"n": " "}], callback_url="https://example.org/{n}")
    assert app.jobs_sync() == []
    refused = cli("enqueue", "report", "--callback-url", "gopher://x/", "--store", app.settings.store)
    assert (refused.code, "callback_url" in refused.err) == (2, True)


def test_running_task_enqueues_with_callbacks_and_in_bulk() -> None:
    app = Headway("sqlite://", name="billing")
    seen: list[Any] = []

    @app.task
    async def report(tenant_id: int, level: int = 0) -> None:
        seen.append((tenant_id, level))

    @app.task
    async def fan_out(ctx: Context, n: int) -> None:
        await ctx.enqueue(report, {"tenant_id": -1}, callback_url=HOOK)
        rows = [{"tenant_id": number, "level": number % 3} for number in range(n)]
        options: dict[str, Any] = {
            "key": "r:{tenant_id}",
            "tenant": "t{tenant_id}",
            "priority": lambda row: row["level"],
        }
        ids = await ctx.enqueue_many(report, rows, **options)
        assert await ctx.enqueue_many("report", rows, **options) == ids
        mine = await ctx.enqueue_many(report, [{"tenant_id": 99}])
        seen.append((len(set(ids)), len(mine)))
        with pytest.raises(InvalidTask, match=r"rows\[1\]: .*tenant_id"):
            await ctx.enqueue_many(report, [{"tenant_id": 1}, {"level": 1}])
        with pytest.raises(InvalidTask, match="tx"):
            await ctx.enqueue_many(report, rows, tx=object())

    with virtual(app) as world:
        app.tasks["fan_out"].options(tenant="a{b}").enqueue_sync(n=5)
        world.drain()
        jobs = {job.args["tenant_id"]: job.job for job in app.jobs_sync(task="report", limit=200)}
        results = app.blocking(deliveries(app))
    assert seen[0] == (5, 1)
    assert sorted(seen[1:]) == [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (99, 0)]
    assert {number: (job.tenant, job.key, job.priority) for number, job in jobs.items() if 0 <= number < 5} == {
        number: (f"t{number}", f"r:{number}", number % 3) for number in range(5)
    }
    assert jobs[99].tenant == "a{b}"  # The tenant of the running job, whatever characters it has.
    assert len({job.parent for job in jobs.values()}) == 1
    assert results == [HOOK]


# --- bulk


async def test_each_row_has_its_own_options(app: Headway) -> None:
    report = app.tasks["report"]
    rows = [{"tenant_id": number, "level": number} for number in range(3)]
    options: dict[str, Any] = {
        "key": "r:{tenant_id}",
        "tenant": "{tenant_id}",
        "priority": "{level}",
        "delay": lambda row: f"{row['level']}m",
        "tags": ["nightly"],
        "queue": "q{{1}}",
    }
    first = await report.enqueue_many(iter(rows), **options)
    assert [job.job for job in first] == [await stored(app, job) for job in first]
    found = [(job.job.key, job.job.tenant, job.job.priority, job.job.tags, job.job.queue) for job in first]
    assert found == [(f"r:{number}", str(number), number, ("nightly",), "q{1}") for number in range(3)]
    assert [(job.run_at - job.created_at).total_seconds() for job in first] == [0, 60, 120]
    again = report.enqueue_many_sync(rows, **options)
    assert [job.id for job in again] == [job.id for job in first]
    by_name = await app.enqueue_many("unknown-here", [{"n": 1}, {"n": 2}], key="u:{n}")
    assert [job.args for job in by_name] == [{"n": 1}, {"n": 2}]
    assert await report.enqueue_many([]) == []
    await app.close()


async def test_invalid_row_is_named_and_nothing_is_enqueued(app: Headway) -> None:
    report = app.tasks["report"]
    good = {"tenant_id": 1, "level": 1}
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([good, {"tenant_id": None}], {"key": "r:{tenant_id}"}, r"rows\[1\]: tenant_id must be text or a number"),
        ([good, {"tenant_id": 2}], {"key": "r:{level}"}, r"rows\[1\]: key needs the argument 'level'"),
        ([good, {"who": 2}], {}, r"rows\[1\]: task 'report'"),
        ([good, 7], {}, r"rows\[1\]: must be an object"),
        ([good, {**good, "level": 5_000}], {"priority": "{level}"}, r"rows\[1\]: priority"),
        ([good, {**good, "level": -1}], {"delay": "{level}"}, r"rows\[1\]: delay"),
        ([good], {"delay": lambda row: row["soon"]}, r"rows\[0\]: delay cannot be computed: KeyError"),
        ([good], {"key": "r:{tenant_id"}, "brace"),
        ([good], {"colour": "red"}, "unknown option 'colour'"),
        ([good], {"delay": "1s", "at": "2027-01-01T00:00Z"}, "exclude each other"),
        ([good, {"tenant_id": 2}], {"key": "same"}, "key is the same for all rows"),
        ([good] * (ROWS_MAX + 1), {}, "at most 10,000 jobs"),
    ]
    for rows, options, words in wrong:
        with pytest.raises(InvalidTask, match=words):
            await report.enqueue_many(rows, **options)

    async def stream() -> AsyncIterator[Any]:
        yield good

    with pytest.raises(InvalidTask, match="not async_generator"):
        await report.enqueue_many(stream())  # type: ignore[arg-type]
    with pytest.raises(DuplicateKey, match=r"jobs\[1\]: key 'k:1' was used for job_"):
        await report.enqueue_many([good, {**good, "level": 2}], key="k:{tenant_id}")
    assert await app.jobs() == []
    await app.close()


async def test_ten_thousand_rows(app: Headway) -> None:
    rows = [{"tenant_id": number, "level": number % 7} for number in range(ROWS_MAX)]
    options: dict[str, Any] = {"key": "r:{tenant_id}", "tenant": "t{tenant_id}", "priority": "{level}"}
    first = await app.tasks["report"].enqueue_many(rows, **options)
    again = await app.tasks["report"].enqueue_many(rows, **options)
    assert len({job.id for job in first}) == ROWS_MAX
    assert [job.id for job in again] == [job.id for job in first]
    await app.close()
