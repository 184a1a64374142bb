"""Subprocesses of children are found and ended with few scans of the process table, none on the event loop."""

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from headway.core.process_tree import MARK, ProcessTable
from headway.worker.sweeper import Sweeper
from tests.support.waiting import DEADLINE_S, async_wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass(frozen=True)
class ProcessTree:
    """Processes that carry one marker."""

    pid: int
    mark: str


def _start(mark: str) -> "subprocess.Popen[bytes]":
    env = {**os.environ, MARK: mark}
    return subprocess.Popen(["sh", "-c", "setsid sleep 613 & wait"], env=env, start_new_session=True)


async def test_many_children_share_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[threading.Thread] = []
    take = ProcessTable.take

    def counted() -> ProcessTable:
        looks.append(threading.current_thread())
        return take()

    monkeypatch.setattr(ProcessTable, "take", counted)
    marks = [f"sweeper-{os.getpid()}-{number}" for number in range(4)]
    heads = [_start(mark) for mark in marks]
    families = [ProcessTree(head.pid, f"{MARK}={mark}") for head, mark in zip(heads, marks, strict=True)]

    def left() -> list[int]:
        census = take()
        return [pid for family in families for pid in census.descendants_of(family.pid, family.mark)]

    sweeper, done = Sweeper(), asyncio.Event()
    try:
        await async_wait_until(lambda: len(left()) == len(families), "their subprocesses")
        swept: list[int] = []

        def note(pid: int) -> None:
            swept.append(pid)
            if len(swept) == len(families) * 2:
                done.set()

        for family in families:
            sweeper.sweep(family, lambda pid=family.pid: note(pid), with_head=False)  # type: ignore[misc]
        await async_wait_until(lambda: len(swept) == len(families), "the first sweep")
        await async_wait_until(lambda: not left(), "the end of their subprocesses")
        for family in families:
            sweeper.sweep(family, lambda pid=family.pid: note(pid), with_head=True)  # type: ignore[misc]
        await asyncio.wait_for(done.wait(), DEADLINE_S)
        for head in heads:
            await asyncio.to_thread(head.wait, DEADLINE_S)
    finally:
        sweeper.close()
        for head in heads:
            head.kill()
            head.wait()
    assert len(looks) <= 4, "two sweeps of many children"
    assert threading.current_thread() not in looks
