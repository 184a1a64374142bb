"""Followers are bounded and told once: whoever does not read is dropped, and leaves nothing behind."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.clock import Clock
from headway.instants import SECOND
from headway.model import NewJob, Report
from headway.settings import Settings
from headway.status import follow
from headway.status.hub import BYTES_MAX, EVENTS_MAX, Event, Follower, Hub
from headway.status.quotas import Quotas
from headway.status.web import Principal
from headway.store import Store


def test_a_follower_that_does_not_read_is_dropped() -> None:
    for event, most in ((Event("progress", {}), EVENTS_MAX), (Event("log", {"line": "x" * 100_000}), 12)):
        follower = Follower("job_1")
        for _ in range(2 * EVENTS_MAX):
            follower.push(event)
        assert follower.is_dropped
        kept = follower.take()
        assert len(kept) <= most
        assert sum(len(event.sse) for event in kept) <= BYTES_MAX + len(event.sse)


async def test_a_stream_that_nobody_reads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SEND_S_MAX", 0.2)
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock)
    hub = Hub(store, clock)
    quotas = Quotas(store, Settings(), clock)
    services = SimpleNamespace(hub=hub, gate=None, quotas=quotas, is_closing=False)
    everybody = Principal("root", "*", "admin")
    call: Any = SimpleNamespace(services=services, clock=clock, store=store, principal=everybody, query={})
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("the other end says nothing")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # The buffers are full, and nobody reads.

    try:
        [row] = await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="work")])
        stream = follow.Stream(call, lambda: follow.follow_job(hub, call, row.id, None))
        async with asyncio.timeout(10):
            await stream({"type": "http"}, receive, send)
        assert sent == ["http.response.start", "http.response.body"]
        assert hub.count() == 0
    finally:
        await store.close()


async def test_lines_of_versions_that_are_read_together_are_told_once(tmp_path: Path) -> None:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock)
    hub = Hub(store, clock)
    try:
        [row] = await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="work")])
        follower = await hub.follow_job(row.id)
        await store.queue.claim("default", node="test", lease=60 * SECOND, limit=1)
        for number in range(3):
            line = (None, "log", str(number))
            await store.queue.report([Report(job_id=row.id, attempt=1, progress=number, lines=(line,))])
        await hub.tick()
        told = [event.sse.decode() for event in follower.take() if event.kind == "log"]
        assert [text.count('"line":') for text in told] == [1, 1, 1], told
    finally:
        await store.close()
