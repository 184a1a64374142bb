"""A restored backup is detected by what was not restored with it, and made safe to use."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headway.core.clock import Clock
from headway.core.events import EngineEvent, StoreWentBack, subscribed
from headway.core.instants import DAY, HOUR, SECOND
from headway.core.nodes import Node
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.restore_detection import ATTEMPTS_RAISED, COPIED, LOST, SEEN, TIMELINE, HeartbeatMemory, signs
from tests.conformance.arrange import claim_one, enqueue
from tests.conformance.backend import Backend
from tests.support.postgres import PostgresServer

NODE = Node(id="node_1", name="web-1", roles=("worker",))
MINE = {"origin|system": 7, "origin|database": 8, "origin|tables": 9, TIMELINE: 1}


def words(marks: dict[str, int], present: dict[str, int], outside: int | None = None) -> list[str]:
    return [sign.words for sign in signs(marks, present, outside)]


def test_signs_of_a_restored_database() -> None:
    assert words(MINE, MINE) == []
    assert words({}, MINE, 5) == [], "a database without marks is new"
    assert words({SEEN: 5}, {}, 5) == words({SEEN: 6}, {}, 5) == []
    assert words({SEEN: 5 * SECOND}, {}, HOUR) == [
        "nodes wrote to it until 1970-01-01T01:00:00Z, and it knows of nothing after 1970-01-01T00:00:05Z"
    ]
    for name in COPIED:
        assert words(MINE, MINE | {name: 99, TIMELINE: 4}) == [
            "its tables were copied from another database, or restored from a dump"
        ]
    [promoted] = signs(MINE, MINE | {TIMELINE: 2}, None)
    assert promoted.words == "its server was promoted or restored (timeline 2, was 1) while no node ran"
    assert not promoted.is_sure
    assert "had forgotten what it acknowledged" in words({LOST: HOUR}, {})[0]


def test_node_remembers_acknowledged_heartbeats() -> None:
    memory = HeartbeatMemory()
    assert not memory.is_lost("a", 10, 10)
    memory.note("a", 10, 20)
    assert (memory.seen_by("a"), memory.seen_by("b")) == (20, 0)
    assert not memory.is_lost("a", 10, 30)
    assert memory.is_lost("a", 30, 30), "its row was gone"
    assert not memory.is_lost("a", DAY, DAY), "a silent node is pruned"
    memory.forget("b")
    assert memory.is_lost("a", 30, 30)
    memory.forget("a")
    assert not memory.is_lost("a", 30, 30)


@pytest.mark.parametrize("lost", ["update headway_nodes set beat_at = beat_at - 1", "delete from headway_nodes"])
async def test_live_node_detects_lost_heartbeats(backend: Backend, lost: str) -> None:
    store, heard = backend.store, list[EngineEvent]()
    await store.nodes.beat(NODE)
    assert await store.restore_detection.signs() == []
    with subscribed(heard.append):
        await store.nodes.beat(NODE)
        await store.nodes.leave("somebody else")
        await store.nodes.beat(NODE)
        assert [event for event in heard if isinstance(event, StoreWentBack)] == []
        [row] = await store.nodes.alive(HOUR)
        await backend.sql(lost)
        assert await store.nodes.beat(NODE) is None
    [event] = [event for event in heard if isinstance(event, StoreWentBack)]
    assert event.seen == row.beat_at
    assert [sign.is_sure for sign in await store.restore_detection.signs()] == [True]
    await store.nodes.beat(NODE)
    await store.restore_detection.recover()
    assert await store.restore_detection.signs() == []
    await store.nodes.leave(NODE.id)
    await store.nodes.beat(NODE)
    assert await store.restore_detection.signs() == [], "a node that has left is not missed"


async def test_tokens_and_attempts_are_not_reused(store: Store) -> None:
    [before] = await store.leases.acquire(["a"], holder="n", holder_name="n", duration=SECOND)
    await enqueue(store)
    running = await claim_one(store)
    done = await store.restore_detection.recover()
    assert done.token > before.token
    assert done.jobs == 1
    [after] = await store.leases.acquire(["b"], holder="n", holder_name="n", duration=SECOND)
    assert after.token > done.token > Clock().now() - DAY, "above all tokens issued since the backup"
    job = await store.jobs.get(running.job_id)
    assert job.attempt == running.attempt + ATTEMPTS_RAISED
    again = await store.restore_detection.recover()
    assert again.token > after.token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headway.db"


def back_up(file: Path, copy: Path) -> None:
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def put_back(file: Path, copy: Path) -> None:
    """Restore as people do: copy the backup file, and keep nothing of the current one."""
    remove(file)
    shutil.copy(copy, file)


def remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def mode_of(file: str) -> int:
    return Path(file).stat().st_mode & 0o777


async def live(file: Path) -> None:
    """Let a node start, beat and leave."""
    store = await Store.open(f"sqlite:///{file}", Clock(node="n"))
    await store.nodes.beat(NODE)
    await store.nodes.leave(NODE.id)
    await store.close()


async def found(file: Path) -> list[str]:
    store = await Store.open(f"sqlite:///{file}", Clock(node="n"))
    try:
        return [sign.words for sign in await store.restore_detection.signs()]
    finally:
        await store.close()


async def test_restored_file_is_detected(file: Path, tmp_path: Path) -> None:
    await live(file)
    copy = tmp_path / "copy.db"
    back_up(file, copy)
    await live(file)
    assert await found(file) == []
    put_back(file, copy)
    assert "and it knows of nothing after" in (await found(file))[0]
    await live(file)
    assert "had forgotten what it acknowledged" in (await found(file))[0], "also if nodes have run since"
    store = await Store.open(f"sqlite:///{file}", Clock(node="n"))
    await store.restore_detection.recover()
    await store.close()
    assert await found(file) == []
    await live(file)
    assert await found(file) == []
    assert mode_of(f"{file}-seen") == 0o600
    remove(file)
    await live(file)
    assert await found(file) == [], "a new database is not a restored one"


@pytest.mark.postgres
async def test_tables_restored_from_a_dump_are_detected(postgres_server: PostgresServer, postgres_url: str) -> None:
    store = await Store.open(postgres_url, Clock(node="n"), checked=False)
    await migrate(store.driver)
    await store.nodes.beat(NODE)
    assert await store.restore_detection.signs() == []
    with psycopg.connect(postgres_url, autocommit=True) as operator:  # As restoring a dump does.
        operator.execute("create table copied (like headway_counters including all)")
        operator.execute("insert into copied select * from headway_counters")
        operator.execute("drop table headway_counters")
        operator.execute("alter table copied rename to headway_counters")
    assert ["copied from another database" in sign.words for sign in await store.restore_detection.signs()] == [True]
    await store.restore_detection.recover()
    assert await store.restore_detection.signs() == []
    await store.close()
