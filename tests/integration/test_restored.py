"""After a restored backup, `doctor` and `status` report it, and `doctor --restored` makes the store safe to use."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.jobs import NewJob
from headway.core.nodes import Node
from headway.operations import job_context as around
from headway.store import Store
from tests.support.command_line import Cli

NODE = Node(id="node_1", name="web-1", roles=("worker",))
STORE = "sqlite:///headway.db"


async def work(*, leave: bool) -> int:
    """Act as a node: enqueue a job and acquire a lease; return its token."""
    store = await Store.open(STORE, Clock(node="node_1"))
    await store.nodes.beat(NODE)
    await store.queue.enqueue([NewJob(id=Clock().new_id("job"), task="report")])
    [lease] = await store.leases.acquire(["role"], holder="node_1", holder_name="web-1", duration=SECOND)
    if leave:
        await store.nodes.leave(NODE.id)
    await store.close()
    return lease.token


def restored(cli: Cli) -> list[str]:
    return [check["text"] for check in cli("doctor", "--json").json["checks"] if check["check"] == "restored"]


def degraded(cli: Cli) -> list[str]:
    return [words for words in cli("status", "--json").json["degraded"] if "backup" in words]


def test_restored_backup_is_detected_and_repaired(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around, "ALIVE_WITHIN", 10 * SECOND)
    file, copy = cli.folder / "headway.db", cli.folder / "backup.db"
    asyncio.run(work(leave=True))
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    token = asyncio.run(work(leave=True))
    assert (restored(cli), degraded(cli)) == ([], [])
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    shutil.copy(copy, file)
    [words] = restored(cli)
    assert "nodes wrote to it until" in words
    assert "stop all nodes and run `headway doctor --restored`" in words
    assert cli("doctor").code == 1
    assert len(degraded(cli)) == 1
    asyncio.run(work(leave=False))  # A node is started all the same.
    refused = cli("doctor", "--restored", "--json")
    assert "1 node ran here a moment ago (web-1)" in refused.error["message"]
    asyncio.run(leave())
    done = cli("doctor", "--restored", "--json").json
    assert done["token"] > token
    assert (done["jobs_raised"], done["jobs"]["PENDING"]) == (2, 2)
    assert (restored(cli), degraded(cli)) == ([], [])
    assert asyncio.run(work(leave=True)) > done["token"]
    text = cli("doctor", "--restored").out
    assert "3 unfinished jobs may have run or ended since the backup: `headway jobs list`" in text
    assert [line["action"] for line in cli("trail", "--json").json][:2] == ["store.restored"] * 2


async def leave() -> None:
    store = await Store.open(STORE, Clock(node="node_1"))
    await store.nodes.leave(NODE.id)
    await store.close()
