"""SQLite with other processes, a full disk and a slow thread."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headway.core.clock import Clock
from headway.core.errors import InvalidConfig, SchemaMismatch, StoreError, StoreFull, StoreUnavailable
from headway.store import Store, sqlite
from headway.store.file_access import exposures
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection, SqliteDriver, path_of
from headway.store.transaction import Transaction, call
from tests.conformance.arrange import enqueue, new_job
from tests.support.waiting import DEADLINE_S, async_wait_until


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "headway.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite:///{path}", Clock())
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite://", ":memory:"),
        ("sqlite:///", ":memory:"),
        ("sqlite:///headway.db", "headway.db"),
        ("sqlite:////var/lib/headway.db", "/var/lib/headway.db"),
        ("sqlite:///a b/ü.db", "a b/ü.db"),
    ],
)
def test_path_of_a_url(url: str, expected: str) -> None:
    assert path_of(url) == expected


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_new_files_are_private_to_their_owner(path: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = await Store.open(f"sqlite:///{path}", Clock())
    finally:
        os.umask(before)
    try:
        await store.queue.enqueue([new_job()])
        watch = await store.watch(lambda _: None)
        await watch.close()
        files = sorted(Path(path).parent.iterdir())
        assert [file.name for file in files] == ["headway.db", "headway.db-shm", "headway.db-wal"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert list(exposures(path)) == []
    finally:
        await store.close()


async def test_existing_readable_files_are_not_changed_but_reported(store: Store, path: str) -> None:
    os.chmod(path, 0o644)
    [words] = exposures(path)
    assert words == f"other users of this machine can read or write {path}; run `chmod 600 {path}`"
    again = await Store.open(f"sqlite:///{path}", Clock())
    await again.close()
    assert os.stat(path).st_mode & 0o777 == 0o644
    os.chmod(f"{path}-wal", 0o666)
    os.chmod(os.path.dirname(path), 0o777)
    files, folder = exposures(path)
    assert f"`chmod 600 {path} {path}-wal`" in files
    assert f"`chmod go-w {Path(path).parent}`" in folder
    assert list(exposures(":memory:")) == []


async def test_settings_of_the_file(store: Store, path: str) -> None:
    with sqlite3.connect(path) as raw:
        assert raw.execute("pragma journal_mode").fetchone() == ("wal",)
    raw.close()
    assert isinstance(store.driver, SqliteDriver)
    assert store.driver._connection.raw.execute("pragma synchronous").fetchone()[0] == 2  # FULL
    normal = SqliteConnection(path, synchronous="normal")
    assert normal.raw.execute("pragma synchronous").fetchone()[0] == 1
    normal.raw.close()


async def test_locked_file_times_out_and_then_works(path: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S_MAX", 0.3)
    other = Store.on(SqliteDriver(path), Clock())
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="locked"):
        await enqueue(other)
    with pytest.raises(StoreUnavailable, match="locked"):
        await other.queue.enqueue([new_job(), new_job()])
    assert await other.jobs.page() == []  # Readers do not wait for writers.
    waiting = asyncio.create_task(enqueue(store))  # This one has a longer timeout.
    await asyncio.wait([waiting], timeout=0.2)  # short: on a slow machine this only checks less.
    assert not waiting.done()
    writer.execute("rollback")
    await waiting
    await enqueue(other)
    assert len(await store.jobs.page()) == 2
    writer.close()
    await other.close()


async def test_full_disk_raises_store_full_and_writes_nothing(path: str, store: Store) -> None:
    assert isinstance(store.driver, SqliteDriver)
    raw = store.driver._connection.raw
    [pages] = raw.execute("pragma page_count").fetchone()
    raw.execute(f"pragma max_page_count = {pages}")
    big = [new_job(args='{"x":"' + "y" * 5_000 + '"}') for _ in range(50)]
    with pytest.raises(StoreFull, match="full"):
        await store.queue.enqueue(big)
    assert await store.jobs.page() == []
    raw.execute(f"pragma max_page_count = {pages + 1_000}")
    await store.queue.enqueue(big)
    assert len(await store.jobs.page()) == 50


async def test_slow_thread_times_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "STATEMENT_S_MAX", 0.2)
    hold = threading.Event()

    def begin() -> Transaction[None]:
        yield call("time")
        hold.wait(DEADLINE_S)

    with pytest.raises(StoreUnavailable, match="did not answer"):
        await store.driver.run(begin)
    with pytest.raises(StoreUnavailable):  # Calls queued behind it time out as well.
        await store.jobs.page()
    hold.set()
    monkeypatch.setattr(sqlite, "STATEMENT_S_MAX", DEADLINE_S)
    assert await store.jobs.page() == []


async def test_closed_store_raises_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "STATEMENT_S_MAX", 10 * DEADLINE_S)
    store = await Store.open(f"sqlite:///{path}", Clock())
    await store.close()
    await store.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(StoreUnavailable):
            await store.jobs.page()


async def test_pending_calls_finish_before_close(path: str) -> None:
    store = await Store.open(f"sqlite:///{path}", Clock())
    work = [asyncio.create_task(enqueue(store)) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*work)
    again = await Store.open(f"sqlite:///{path}", Clock())
    assert len(await again.jobs.page()) == 20
    await again.close()


async def test_unusable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"the folder of .*/missing/headway\.db does not exist; create it"):
        await Store.open(f"sqlite:///{tmp_path}/missing/headway.db", Clock())
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database, " * 500)
    with pytest.raises(StoreError, match=r"the store .*/garbage\.db is not a database of SQLite; move the file away"):
        await Store.open(f"sqlite:///{garbage}", Clock())
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(InvalidConfig, match=r"the store .*/folder\.db is a folder; name a file in it: HEADWAY_STORE="):
        await Store.open(f"sqlite:///{tmp_path}/folder.db", Clock())


OPEN_EACH = """
import sys
from headway.store.sqlite import SqliteConnection
for path in sys.argv[1:]:
    try:
        SqliteConnection(path)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(os.getuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_read_only_file_error_has_the_cure(tmp_path: Path) -> None:
    closed, read_only = tmp_path / "closed", tmp_path / "read_only.db"
    closed.mkdir(mode=0o500)
    read_only.touch(mode=0o400)
    mortal = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*mortal, sys.executable, "-c", OPEN_EACH, str(closed / "new.db"), str(read_only)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    [new, old] = done.stdout.splitlines()
    assert new.startswith(f"InvalidConfig: the store {closed}/new.db cannot be opened: the user ")
    assert f"may not read and write {closed}; change its owner" in new
    assert f"may not read and write {read_only}; change its owner" in old


def test_statements_need_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_has_temporary_folder", lambda: False)
    connection = SqliteConnection(f"{tmp_path}/headway.db")
    assert connection.raw.execute("pragma temp_store").fetchone()[0] == 2  # In memory.


async def test_commits_of_other_processes_are_noticed(path: str, store: Store) -> None:
    topics: list[str] = []
    watch = await store.watch(topics.append)
    assert watch.mode == "watch"
    await watch.check()
    other = await Store.open(f"sqlite:///{path}", Clock())
    await enqueue(other)
    await async_wait_until(lambda: topics, "a commit to be noticed")
    assert set(topics) == {"anything"}
    await watch.close()
    topics.clear()
    later: list[str] = []
    watch = await store.watch(later.append)
    await enqueue(other)
    await async_wait_until(lambda: later, "a commit to reach the new listener")
    assert topics == []
    await watch.close()
    await other.close()


async def test_file_that_cannot_be_watched_is_unavailable(path: str, store: Store, tmp_path: Path) -> None:
    assert isinstance(store.driver, SqliteDriver)
    store.driver.path = str(tmp_path / "missing" / "headway.db")
    with pytest.raises(StoreUnavailable):
        await store.watch(lambda topic: None)


async def test_memory_is_polled() -> None:
    store = await Store.open("sqlite://", Clock())
    watch = await store.watch(lambda topic: None)
    assert watch.mode == "poll"
    await watch.close()
    await store.close()


async def test_inline_driver_needs_no_thread() -> None:
    connection = SqliteConnection(":memory:", now=lambda: 5_000_000)
    store = Store.on(InlineSqliteDriver(connection), Clock())
    with pytest.raises(SchemaMismatch):
        await store.jobs.page()
    await migrate(store.driver)
    job = await enqueue(store)
    assert (await store.jobs.get(job)).created_at == 5_000_000
    assert (await store.watch(lambda topic: None)).mode == "poll"
    connection.raw.close()


async def test_peek_sees_the_latest_commit(store: Store) -> None:
    job_id = await enqueue(store)
    [row] = await store.driver.peek(call("stamps", ids=f'["{job_id}"]'))
    assert row["version"] == 1
    await store.queue.cancel(job_id, author="me")
    [row] = await store.driver.peek(call("stamps", ids=f'["{job_id}"]'))
    assert row["version"] == 2


async def test_peek_does_not_wait_for_a_writer(store: Store, path: str) -> None:
    job_id = await enqueue(store)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("begin immediate")
        async with asyncio.timeout(DEADLINE_S):
            [row] = await store.driver.peek(call("stamps", ids=f'["{job_id}"]'))
        assert row["version"] == 1
        other.execute("rollback")
    other.close()
