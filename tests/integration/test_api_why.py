"""Explanations of waiting jobs reveal nothing about other tenants."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from headway import Headway
from headway.core.clock import Clock
from headway.core.jobs import NewJob
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.store import Store
from headway.wiring.api import new_api

SECRET = "4f9ac2d07b16e8354f9a-why"
WORKER = Node(
    id="node_x",
    name="web-1",
    roles=("worker",),
    state={"worker": {"tasks": ["acme.report", "globex.merger"], "queues": ["default"], "slots": 4, "running": 4}},
)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Store, httpx.AsyncClient]]:
    settings = Settings(store=f"sqlite:///{folder}/headway.db", token=SECRET)
    app = Headway(settings=settings)
    api = new_api(app.store, settings, Clock())
    transport = httpx.ASGITransport(app=api)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield await app.store(), client
    finally:
        await api.close()


async def test_explanation_reveals_nothing_about_other_tenants(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, client):
        root = {"Authorization": f"Bearer {SECRET}"}
        made = await client.post("/api/tokens", json={"name": "a", "tenant": "acme", "role": "operator"}, headers=root)
        acme = {"Authorization": f"Bearer {made.json()['token']}"}

        async def enqueue(tenant: str, task: str) -> str:
            job = NewJob(id=Clock().new_id("job"), task=task, tenant=tenant)
            return (await store.queue.enqueue([job]))[0].id

        async def explanations(headers: dict[str, str]) -> list[Any]:
            """Read everything that explains the status, and the state of the queue."""
            answers = [await client.get(path, headers=headers) for path in paths]
            assert [answer.status_code for answer in answers] == [200] * len(paths)
            return [answer.json() for answer in answers]

        own = await enqueue("acme", "acme.report")
        mine = await enqueue("acme", "acme.report")
        paths = [f"/api/jobs/{mine}", f"/api/jobs/{mine}/why", f"/api/jobs/{own}/why", "/api/queues", "/api/stats"]
        await store.nodes.beat(WORKER)

        def without_time(found: list[Any]) -> str:
            """Return the explanations of the jobs without relative times."""
            return re.sub(r"ready for [^,]+|'ready_seconds': [^,]+", "", str(found[:3]))

        alone = await explanations(acme)
        assert alone[1]["evidence"]["ahead"] == 1
        for _ in range(7):
            await enqueue("globex", "globex.merger")
        high = NewJob(id=Clock().new_id("job"), task="globex.merger", tenant="globex", priority=100)
        await store.queue.enqueue([high])
        together = await explanations(acme)
        assert together[1]["evidence"]["ahead"] == 1  # Its own job.
        assert without_time(together) == without_time(alone)
        assert (await explanations(root))[1]["evidence"]["ahead"] > 1
        assert "globex" not in str(together)

        await store.queue.pause("default", author="ada", reason="globex has not paid")
        paused = await explanations(acme)
        assert "has been paused" in paused[0]["why"]
        [queue] = [queue for queue in paused[3]["items"] if queue["name"] == "default"]
        assert queue["paused"]
        for secret in ("ada", "globex", "has not paid"):
            assert secret not in str(paused).replace("metadata", ""), secret
        assert "globex has not paid" in (await explanations(root))[0]["why"]
