"""The app as a program uses it: tasks, jobs, schedules, and jobs in the caller's own transaction (S6)."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import (
    After,
    AlreadyFinal,
    At,
    Cron,
    DuplicateKey,
    Every,
    Headway,
    InvalidConfig,
    InvalidSchedule,
    InvalidTask,
    JobNotFound,
    Retry,
    SchemaMismatch,
    Status,
    Task,
    TaskNotFound,
)
from headway.core.instants import MINUTE
from headway.store import open_driver
from headway.store.migrations import migrate
from tests.support.waiting import DEADLINE_S

FORKING = """
import os, sys
from headway import Headway

app = Headway(sys.argv[1], name="forking")
app.enqueue_sync("work", {"process": "parent"})
child = os.fork()
if child == 0:
    app.enqueue_sync("work", {"process": "child"})
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
app.enqueue_sync("work", {"process": "parent"})
"""


@pytest.fixture
def app(tmp_path: Path) -> Headway:
    return Headway(f"sqlite:///{tmp_path}/headway.db", name="billing")


@pytest.fixture
def postgres_app(migrated_url: str) -> Iterator[Headway]:
    app = Headway(migrated_url, name="billing")
    yield app
    app.blocking(app.close())


async def _migrate(url: str) -> None:
    driver = open_driver(url)
    await migrate(driver)
    await driver.close()


def ids(app: Headway) -> set[str]:
    return {job.id for job in app.jobs_sync(limit=200)}


class TestTasks:
    async def test_task_is_still_a_function(self, app: Headway) -> None:
        @app.task
        def double(n: int) -> int:
            return 2 * n

        assert double(4) == 8
        assert double.name == "double"

    async def test_enqueue_keeps_arguments_and_options(self, app: Headway) -> None:
        @app.task(name="video.transcode", queue="media", priority=5, retry=Retry(max_attempts=3, backoff="1s..1m"))
        async def transcode(source: str, fast: bool = False) -> None: ...

        job = await transcode.options(delay="30m", tags=["video"], tenant="acme").enqueue("a.mp4", fast=True)
        stored = (await app.job(job.id)).job
        assert (stored.task, stored.queue, stored.priority, stored.tenant) == ("video.transcode", "media", 5, "acme")
        assert (stored.status, stored.max_attempts, stored.tags) == (Status.SCHEDULED, 3, ("video",))
        assert str(stored.backoff) == "1s..1m"
        assert job.args == {"source": "a.mp4", "fast": True}
        assert (job.run_at - job.created_at).total_seconds() == 1800
        await app.close()

    async def test_bad_calls_name_the_problem(self, app: Headway) -> None:
        @app.task
        def hello(n: int = 1) -> None: ...

        with pytest.raises(InvalidTask, match="too many positional arguments"):
            await hello.enqueue(1, 2)  # type: ignore[call-arg]
        refused: list[tuple[str, object, str]] = [
            ("hello", object(), "args must be JSON"),
            ("hello", "x" * 300_000, "at most 262144 bytes"),
            ("hello", "\0", "NUL"),
            ("a\nb", 1, "control characters"),
        ]
        for name, value, words in refused:
            with pytest.raises(InvalidTask, match=words):
                await app.enqueue(name, {"n": value})
        for options, words in (
            ({"delay": "soon"}, "delay"),
            ({"priority": 10**9}, "priority"),
            ({"colour": "red"}, "unknown option"),
            ({"delay": "1m", "at": "2027-01-01"}, "exclude each other"),
            ({"tags": "video"}, "tags"),
        ):
            with pytest.raises(Exception, match=words):
                hello.options(**options)
        with pytest.raises(InvalidTask, match="two tasks"):
            app.task(hello)
        assert await app.jobs() == []
        await app.close()

    async def test_key_returns_the_same_job(self, app: Headway) -> None:
        @app.task
        def hello(n: int) -> None: ...

        first = await hello.options(key="k").enqueue(1)
        assert (await hello.options(key="k").enqueue(1)).id == first.id
        assert (await hello.options(key="k", tenant="other").enqueue(1)).id != first.id
        with pytest.raises(DuplicateKey, match=first.id):
            await hello.options(key="k").enqueue(2)
        await app.close()

    async def test_cancel_and_get(self, app: Headway) -> None:
        @app.task
        def hello() -> None: ...

        job = await hello.enqueue()
        assert (await app.job(job.id[:28])).id == job.id
        assert (await app.cancel(job.id)).status is Status.CANCELLED
        with pytest.raises(AlreadyFinal):
            await job.cancel()
        with pytest.raises(JobNotFound):
            await app.job("job_nothing")
        await app.close()

    def test_sync_calls_work_in_threads_and_beside_a_running_loop(self, app: Headway) -> None:
        @app.task
        def hello(n: int) -> None: ...

        async def within_a_loop() -> None:
            await hello.enqueue(0)
            await asyncio.to_thread(hello.enqueue_sync, 1)
            await app.close()

        asyncio.run(within_a_loop())
        threads = [threading.Thread(target=hello.enqueue_sync, args=(n,)) for n in range(2, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(job.args["n"] for job in app.jobs_sync()) == list(range(10))

    def test_sync_calls_return_the_same_as_async_ones(self, app: Headway) -> None:
        job = app.enqueue_sync("work", {"n": 1}, delay="1h")
        assert (app.job_sync(job.id).status, job.refresh_sync().status) == (Status.SCHEDULED, Status.SCHEDULED)
        app.put_schedule_sync("s", task="work", trigger=Every("1h"))
        assert app.occurrences_sync("s") == []
        assert app.remove_schedule_sync("s") is True
        assert app.remove_schedule_sync("s") is False
        assert job.cancel_sync().status is Status.CANCELLED
        with pytest.raises(AlreadyFinal):
            app.cancel_sync(job.id)

    @pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
    def test_sync_calls_work_after_a_fork(self, database: str, request: pytest.FixtureRequest) -> None:
        app = request.getfixturevalue("app" if database == "sqlite" else "postgres_app")
        program = subprocess.run(
            [sys.executable, "-c", FORKING, app.settings.store],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert program.returncode == 0, program.stderr
        assert sorted(job.args["process"] for job in app.jobs_sync()) == ["child", "parent", "parent"]

    def test_bulk_enqueue_is_all_or_nothing(self, app: Headway) -> None:
        @app.task
        def hello(n: int) -> None: ...

        assert len(hello.enqueue_many_sync({"n": n} for n in range(10_000))) == 10_000
        with pytest.raises(InvalidTask, match="at most 10,000"):
            hello.enqueue_many_sync({"n": n} for n in range(10_001))
        hello.options(key="taken").enqueue_sync(1)
        with pytest.raises(DuplicateKey):
            app.enqueue_jobs_sync(
                [app.new_job("hello", {"n": 5}, hello.options(key=k).defaults) for k in ("a", "taken")]
            )
        assert app.jobs_sync(limit=1)[0].job.key == "taken"


class TestSchedules:
    async def test_sync_follows_the_code_and_keeps_schedules_of_others(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/headway.db"
        billing, media = Headway(url, name="billing"), Headway(url, name="media")
        billing.schedule("invoices", "invoice", Cron("0 6 * * *", tz="Europe/Berlin"))
        billing.schedule("dunning", "remind", Every("1h"))
        media.schedule("thumbnails", "thumb", After("10m"))
        await media.put_schedule("tenant-42", task="report", trigger=Cron("0 0 * * *"), args={"tenant_id": 42})
        assert await billing.sync() == {"invoices": "created", "dunning": "created"}
        assert await media.sync() == {"thumbnails": "created"}
        assert set((await billing.sync()).values()) == {"unchanged"}

        changed = Headway(url, name="billing")
        changed.schedule("invoices", "invoice", Cron("0 7 * * *", tz="Europe/Berlin"))
        changed.schedule("invoices", "invoice", Cron("0 8 * * *"), tenant="acme")  # A separate schedule.
        with pytest.raises(InvalidSchedule, match="two schedules are named 'acme/invoices'"):
            changed.schedule("invoices", "invoice", Cron("0 9 * * *"), tenant="acme")
        assert await changed.sync() == {"invoices": "changed", "dunning": "removed", "acme/invoices": "created"}
        assert await changed.occurrences("invoices", tenant="acme") == []
        assert await changed.remove_schedule("invoices", tenant="acme")
        names = [schedule.name for schedule in await (await changed.store()).schedules.page()]
        assert names == ["invoices", "tenant-42", "thumbnails"]

        @changed.task(expires="90m", queue="late")
        def invoice() -> None: ...

        inheriting = changed.schedule("expiring", invoice, Every("1h"))
        assert (inheriting.expires, inheriting.queue) == (90 * MINUTE, "late")
        assert changed.schedule("own", invoice, Every("1h"), expires="1m").expires == MINUTE

        thief = Headway(url, name="thief")
        thief.schedule("thumbnails", "thumb", Every("1m"))
        assert "belongs to the app 'media'" in (await thief.sync())["thumbnails"]
        assert (await (await thief.store()).schedules.get("thumbnails")).owner == "media"
        for app in (billing, media, changed, thief):
            await app.close()

    async def test_invalid_declarations_raise_at_the_call(self, app: Headway) -> None:
        @app.task
        def hello(n: int) -> None: ...

        with pytest.raises(InvalidTask, match="missing a required argument"):
            app.schedule("a", hello, Every("1m"))
        with pytest.raises(TaskNotFound, match="hello"):
            app.schedule("a", "helo", Every("1m"))
        with pytest.raises(InvalidSchedule, match="overlap"):
            app.schedule("a", hello, Every("1m"), args={"n": 1}, overlap="sometimes")
        with pytest.raises(InvalidSchedule, match="no instant after"):
            await app.put_schedule("a", task="hello", trigger=At("2020-01-01"), args={"n": 1})
        await app.close()

    async def test_cron_shorthand(self, app: Headway) -> None:
        @app.cron("*/15 * * * *", missed="skip")
        def sweep() -> None: ...

        assert isinstance(sweep, Task)
        assert app.declared["sweep"].trigger == Cron("*/15 * * * *")


@pytest.mark.parametrize("commits", [True, False])
class TestCallersTransaction:
    """S6: the job exists if and only if the caller's transaction commits."""

    def test_sqlite3(self, app: Headway, commits: bool) -> None:
        task = _task(app)
        app.sync_sync()
        connection = sqlite3.connect(app.settings.store.removeprefix("sqlite:///"))
        job = task.options(tx=connection).enqueue_sync(1)
        connection.commit() if commits else connection.rollback()
        connection.close()
        assert (job.id in ids(app)) is commits

    def test_sqlalchemy_on_sqlite(self, app: Headway, commits: bool) -> None:
        from sqlalchemy import create_engine

        task = _task(app)
        app.sync_sync()
        engine = create_engine(app.settings.store)
        with engine.connect() as connection:
            job = task.options(tx=connection).enqueue_sync(1)
            connection.commit() if commits else connection.rollback()
        engine.dispose()
        assert (job.id in ids(app)) is commits

    @pytest.mark.postgres
    def test_psycopg(self, postgres_app: Headway, commits: bool) -> None:
        import psycopg

        with psycopg.connect(postgres_app.settings.store) as connection:
            job = _task(postgres_app).options(tx=connection, key="k").enqueue_sync(1)
            connection.commit() if commits else connection.rollback()
        assert (job.id in ids(postgres_app)) is commits

    @pytest.mark.postgres
    @pytest.mark.parametrize("kind", ["session", "connection"])
    def test_sqlalchemy_on_postgresql(self, postgres_app: Headway, commits: bool, kind: str) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session

        engine = create_engine(postgres_app.settings.store.replace("postgresql://", "postgresql+psycopg://"))
        with Session(engine) if kind == "session" else engine.connect() as tx:
            job = _task(postgres_app).options(tx=tx).enqueue_sync(1)
            tx.commit() if commits else tx.rollback()
        engine.dispose()
        assert (job.id in ids(postgres_app)) is commits

    @pytest.mark.postgres
    async def test_asyncpg(self, postgres_app: Headway, commits: bool) -> None:
        import asyncpg

        connection = await asyncpg.connect(postgres_app.settings.store)
        transaction = connection.transaction()
        await transaction.start()
        job = await _task(postgres_app).options(tx=connection).enqueue(1)
        await (transaction.commit() if commits else transaction.rollback())
        await connection.close()
        assert (job.id in {found.id for found in await postgres_app.jobs()}) is commits
        await postgres_app.close()

    @pytest.mark.postgres
    async def test_psycopg_async(self, postgres_app: Headway, commits: bool) -> None:
        import psycopg

        connection = await psycopg.AsyncConnection.connect(postgres_app.settings.store)
        job = await _task(postgres_app).options(tx=connection).enqueue(1)
        await (connection.commit() if commits else connection.rollback())
        await connection.close()
        assert (job.id in {found.id for found in await postgres_app.jobs()}) is commits
        await postgres_app.close()

    @pytest.mark.postgres
    @pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
    async def test_sqlalchemy_async_session(self, postgres_app: Headway, commits: bool, driver: str) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        engine = create_async_engine(postgres_app.settings.store.replace("postgresql://", f"postgresql+{driver}://"))
        async with AsyncSession(engine) as session:
            job = await _task(postgres_app).options(tx=session).enqueue(1)
            await (session.commit() if commits else session.rollback())
        await engine.dispose()
        assert (job.id in {found.id for found in await postgres_app.jobs()}) is commits
        await postgres_app.close()


def _task(app: Headway) -> Task[Any, Any]:
    @app.task
    def work(n: int) -> None: ...

    return work


class TestWrongTransactions:
    def test_connection_without_a_transaction_is_rejected(self, app: Headway) -> None:
        task = _task(app)
        app.sync_sync()
        connection = sqlite3.connect(app.settings.store.removeprefix("sqlite:///"), isolation_level=None)
        with pytest.raises(InvalidTask, match="no open transaction"):
            task.options(tx=connection).enqueue_sync(1)
        connection.close()
        assert ids(app) == set()

    def test_connection_to_another_kind_of_store_is_rejected(self) -> None:
        elsewhere = Headway("postgresql://127.0.0.1:1/x", name="elsewhere")
        with pytest.raises(InvalidConfig, match="is a connection to sqlite"):
            _task(elsewhere).options(tx=sqlite3.connect(":memory:")).enqueue_sync(1)
        with pytest.raises(InvalidConfig, match="tx must be a connection"):
            _task(Headway("sqlite://", name="b")).options(tx=object()).enqueue_sync(1)

    @pytest.mark.postgres
    def test_missing_schema_names_the_fix(self, postgres_url: str) -> None:
        app = Headway(postgres_url, name="fresh")
        with pytest.raises(SchemaMismatch, match="headway migrate"):
            _task(app).enqueue_sync(1)
        asyncio.run(_migrate(postgres_url))
        assert _task(Headway(postgres_url, name="again")).enqueue_sync(1).status is Status.PENDING
