"""Webhooks to real servers that answer well, badly or not at all, from deliverers that come and go."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.core.clock import Clock, Loop
from headway.core.errors import StoreUnavailable
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.lifecycle import Raised
from headway.core.settings import Settings
from headway.core.webhooks import Delivery, Endpoint
from headway.server import webhook_sender as deliverer
from headway.server.outbound import SEND_S_MAX, Sender
from headway.server.webhook_sender import BACKOFF_FIRST, CONCURRENCY, LEASE, TARGET_SHARE, Deliverer, _target
from headway.store import Store
from headway.store.webhooks import StoreWebhooks
from tests.conformance.arrange import enqueue, run_one
from tests.conformance.backend import SqliteBackend
from tests.support import evidence
from tests.support.api import ApiProcess, api_process
from tests.support.command_line import Cli
from tests.support.server import free_port
from tests.support.targets import Endless, Rude, Silent, Target
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

LOCAL = ("127.0.0.0/8",)
FAILED = Raised('{"type": "ValueError", "message": "no", "traceback": "File secret.py"}', retryable=False)


@dataclass(frozen=True)
class Message:
    """A message that a target received."""

    id: str
    timestamp: int
    signatures: list[str]
    body: bytes

    @classmethod
    def read(cls, request: bytes) -> "Message":
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        named = {name.lower(): value for name, value in headers.items()}
        return cls(named["webhook-id"], int(named["webhook-timestamp"]), named["webhook-signature"].split(" "), body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Verify the signature as a receiver would, independently of our code."""
        content = b"%s.%d.%s" % (self.id.encode(), self.timestamp, self.body)
        digest = hmac.new(base64.b64decode(secret.split("_", 1)[1]), content, hashlib.sha256).digest()
        return "v1," + base64.b64encode(digest).decode() in self.signatures


def answering(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(str(tmp_path / "headway.db"))
    await backend.start()
    yield backend
    await backend.close()


class ManualDeliverer:
    """A deliverer that ticks on request."""

    def __init__(self, store: Store, *, seconds_max: float = DEADLINE_S) -> None:
        self.clock = Clock()
        sender = Sender(self.clock, LOCAL, seconds_max=seconds_max)
        self.woken = asyncio.Event()
        self.deliverer = Deliverer(
            store.webhooks, store.feed, Settings(), self.clock, sender=sender, wake=self.woken.set
        )

    async def send(self) -> None:
        """Send due messages, and wait until all attempts have ended."""
        await self.deliverer.tick()
        await async_wait_until(lambda: self.deliverer.counts.in_flight == 0, "all attempts to end")


@asynccontextmanager
async def delivering(store: Store, **options: Any) -> AsyncIterator[ManualDeliverer]:
    mine = ManualDeliverer(store, **options)
    try:
        yield mine
    finally:
        await mine.deliverer.close()


async def add(store: Store, target: Target, *events: str) -> Endpoint:
    return await store.webhooks.add(
        tenant="default", url=f"http://127.0.0.1:{target.port}/hook", events=events or ("*",), author="ada"
    )


async def finish(store: Store, outcome: Any = None, **options: Any) -> str:
    job_id = await enqueue(store, **options)
    await run_one(store, outcome)
    return job_id


async def only(store: Store) -> Delivery:
    [delivery] = await store.webhooks.deliveries()
    return delivery


async def test_end_of_a_job_is_sent_and_signed(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target().listening() as target, delivering(store) as mine:
        endpoint = await add(store, target)
        begin = int(time.time())
        job_id = await finish(store, FAILED, max_attempts=1, args='{"user": "ada", "password": "sesame"}')
        await mine.send()
    [message] = map(Message.read, target.requests)
    delivery = await only(store)
    assert (delivery.id, delivery.status, delivery.tries) == (message.id, "DELIVERED", 1)
    assert delivery.outcomes[0].code == 204
    assert message.is_signed_with(endpoint.secrets[0].value)
    assert not message.is_signed_with("whsec_" + base64.b64encode(b"x" * 32).decode())
    assert begin <= message.timestamp <= time.time()
    said = message.json
    assert (said["type"], said["data"]["id"], said["data"]["status"]) == ("job.failed", job_id, "FAILED")
    assert said["timestamp"] == said["data"]["finished_at"]
    assert said["data"]["error"] == {"type": "ValueError", "message": "no"}
    assert said["data"]["args"] == {"user": "ada", "password": "***"}
    assert b"sesame" not in message.body


async def test_both_secrets_sign_during_a_rotation(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target().listening() as target, delivering(store) as mine:
        endpoint = await add(store, target)
        rotated = await store.webhooks.rotate(endpoint.id)
        await finish(store)
        await mine.send()
        await backend.advance(DAY + MINUTE)
        await finish(store)
        await mine.send()
    first, second = map(Message.read, target.requests)
    old, new = endpoint.secrets[0].value, rotated.secrets[0].value
    assert (first.is_signed_with(new), first.is_signed_with(old)) == (True, True)
    assert (second.is_signed_with(new), second.is_signed_with(old)) == (True, False)


async def test_callbacks_are_sent_to_the_url_of_each_job(backend: SqliteBackend) -> None:
    store = backend.store
    await store.webhooks.ensure_callbacks("default")
    async with Target().listening() as one, Target().listening() as two, delivering(store) as mine:
        for target in (one, two):
            await finish(store, callback=f"http://127.0.0.1:{target.port}/done?x=1")
        await finish(store, callback="http://169.254.169.254/latest/meta-data/")
        await finish(store, callback="gopher://127.0.0.1/")
        await mine.send()
    assert [len(one.requests), len(two.requests)] == [1, 1]
    assert one.requests[0].startswith(b"POST /done?x=1 HTTP/1.1\r\n")
    told = {delivery.url[:10]: delivery for delivery in await store.webhooks.deliveries(status="FAILED")}
    assert "link-local" in str(told["http://169"].outcomes[0].error)
    assert told["gopher://1"].outcomes[0].error == "the URL cannot be used"


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        (Target(answering("500 Oops")), 500, None),
        (Target(answering("404 Nowhere")), 404, None),
        (Target(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), 302, None),
        (Rude(), None, "connection"),
        (Silent(b""), None, "no answer within 1 s"),
        (Silent(b"HTTP/1.1 200 OK\r\nX-"), None, "no answer within 1 s"),
        (Target(b"no HTTP at all\r\n\r\n"), None, "not valid HTTP"),
    ],
    ids=["500", "404", "redirect", "reset", "silent", "half", "nonsense"],
)
async def test_failed_delivery_is_retried(
    backend: SqliteBackend, target: Target, code: int | None, words: str | None
) -> None:
    store = backend.store
    target.requests.clear()
    seconds_max = 1.0 if isinstance(target, Silent) else DEADLINE_S
    async with target.listening(), delivering(store, seconds_max=seconds_max) as mine:
        endpoint = await add(store, target)
        await finish(store)
        begin = await backend.now()
        await mine.send()
        end = await backend.now()
        failed = await only(store)
        assert (failed.status, failed.tries, failed.outcomes[0].code) == ("WAITING", 1, code)
        assert words is None or words in str(failed.outcomes[0].error)
        assert mine.deliverer.counts.retried == 1
        assert failed.next_at is not None
        assert failed.next_at - begin >= BACKOFF_FIRST * 3 // 4
        assert failed.next_at - end <= BACKOFF_FIRST * 5 // 4
    async with Target().listening() as better, delivering(store) as mine:
        await store.webhooks.change(endpoint.id, url=f"http://127.0.0.1:{better.port}/")
        await backend.sql(f"update headway_deliveries set next_at = next_at + {HOUR}")  # However slow the test is.
        await mine.send()
        assert better.requests == []  # Not before it is due.
        await backend.advance(HOUR + 10 * SECOND)
        await mine.send()
    [message] = map(Message.read, better.requests)
    done = await only(store)
    assert (message.id, done.status, done.tries, len(done.outcomes)) == (failed.id, "DELIVERED", 2, 2)


async def test_endless_response_counts_as_delivered(backend: SqliteBackend) -> None:
    async with Endless().listening() as target, delivering(backend.store) as mine:
        await add(backend.store, target)
        await finish(backend.store)
        await mine.send()
    assert (await only(backend.store)).status == "DELIVERED"


async def test_delivery_is_retried_for_a_day(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target(answering("503 Busy")).listening() as target:
        await add(store, target)
        await finish(store)
        began = (await only(store)).created_at
        for _ in range(40):
            async with delivering(store) as mine:  # A new process each time: no state is kept in memory.
                await mine.send()
            delivery = await only(store)
            if delivery.next_at is None:
                break
            await backend.advance(max(0, delivery.next_at - await backend.now()))
    assert (delivery.status, delivery.tries) == ("FAILED", len(target.requests))
    assert 12 <= delivery.tries <= 22
    assert delivery.ended_at is not None
    assert DAY <= delivery.ended_at - began < DAY + MINUTE
    assert len({Message.read(request).id for request in target.requests}) == 1
    target.answer = answering("200 OK")
    async with target.listening(), delivering(store) as mine:
        url = f"http://127.0.0.1:{target.port}/"
        await store.webhooks.change(delivery.endpoint, url=url)
        await store.webhooks.replay(delivery.id)
        await mine.send()
    assert (await only(store)).status == "DELIVERED"
    assert Message.read(target.requests[-1]).id == delivery.id


async def test_hanging_target_does_not_delay_others(backend: SqliteBackend) -> None:
    store = backend.store
    async with Silent(b"").listening() as slow, Target().listening() as fast, delivering(store) as mine:
        await add(store, slow)
        for _ in range(3 * CONCURRENCY):  # More than the concurrency limit, and all due before the rest.
            await enqueue(store)
        while await store.work.claim("default", node="w", lease=MINUTE, limit=100):
            pass
        ids = [job.id for job in await store.jobs.page(limit=200)]
        await backend.sql(
            "update headway_jobs set status = 'COMPLETED', finished_at = updated_at, version = version + 1"
        )
        assert await backend.count("headway_deliveries") == len(ids) == 3 * CONCURRENCY
        await add(store, fast)
        for _ in range(20):
            await finish(store)
        loop = Loop("deliverer", mine.deliverer.tick, clock=mine.clock, rest_s_max=0.1, woken=mine.woken)
        running = asyncio.create_task(loop.run())
        under_way: set[int] = set()
        slow_url = f"http://127.0.0.1:{slow.port}/"

        def all_received() -> bool:
            under_way.add(sum(_target(one) == slow_url for one in mine.deliverer._under_way.values()))
            return len(fast.requests) >= 20

        evidence.attach("counts", lambda: f"{len(fast.requests)} of 20, {mine.deliverer.counts}")
        await async_wait_until(all_received, "the messages for the other target", every_s=0.01)
        loop.stop()
        await running
    assert 0 < max(under_way) <= TARGET_SHARE


async def test_delivery_of_a_lost_deliverer_is_repeated(backend: SqliteBackend) -> None:
    """A message without an outcome is sent again by another deliverer, with the same id."""
    store = backend.store

    class Slow(Silent):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            await super().serve(reader, writer)

    async with Slow(b"").listening() as target:
        endpoint = await add(store, target)
        await finish(store)
        async with delivering(store) as lost:
            await lost.deliverer.tick()
            await async_wait_until(lambda: len(target.requests) == 1, "the message")
    other = await backend.another()
    async with Target().listening() as better, delivering(other) as mine:
        await store.webhooks.change(endpoint.id, url=f"http://127.0.0.1:{better.port}/")
        await mine.send()
        assert better.requests == []  # It could still be in progress.
        await backend.advance(LEASE + SECOND)
        await mine.send()
    assert Message.read(better.requests[0]).id == Message.read(target.requests[0] + b"\r\n\r\n").id
    assert ((await only(store)).status, (await only(store)).tries) == ("DELIVERED", 1)


async def test_stopping_deliverer_finishes_its_attempts(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer, "GOODBYE_S_MAX", DEADLINE_S)
    was_asked, may_answer = asyncio.Event(), asyncio.Event()

    class Slow(Target):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            was_asked.set()
            await may_answer.wait()
            await super().serve(reader, writer)

    async with Slow().listening() as target, delivering(backend.store) as mine:
        await add(backend.store, target)
        await finish(backend.store)
        await mine.deliverer.tick()
        await was_asked.wait()
        asyncio.get_running_loop().call_later(0.1, may_answer.set)  # After the stop has begun.
    assert (await only(backend.store)).status == "DELIVERED"


async def test_outcome_is_recorded_after_a_short_store_outage(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivered message is not sent again because its outcome could not be stored at once."""
    monkeypatch.setattr(deliverer, "WRITE_REST_S", 0.01)

    class Flaky(StoreWebhooks):
        failures = 2

        async def record(self, *arguments: Any, **options: Any) -> Delivery | None:
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable
            return await super().record(*arguments, **options)

    store = replace(backend.store, webhooks=Flaky(backend.store.driver, Clock()))
    async with Target().listening() as target, delivering(store) as mine:
        await add(store, target)
        await finish(store)
        await mine.send()
    assert ((await only(store)).status, len(target.requests)) == ("DELIVERED", 1)


async def test_concurrent_deliverers_send_everything_once(backend: SqliteBackend) -> None:
    store, other = backend.store, await backend.another()
    async with Target().listening() as target, delivering(store) as one, delivering(other) as two:
        await add(store, target)
        for _ in range(30):
            await finish(store)
        for _ in range(20):
            await asyncio.gather(one.send(), two.send())
            if await backend.count("headway_deliveries", "status = 'DELIVERED'") == 30:
                break
    ids = [Message.read(request).id for request in target.requests]
    assert len(ids) == len(set(ids)) == 30
    assert one.deliverer.counts.delivered + two.deliverer.counts.delivered == 30


async def test_410_gone_disables_the_webhook(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target(answering("410 Gone")).listening() as target, delivering(store) as mine:
        endpoint = await add(store, target)
        await finish(store)
        await mine.send()
        await finish(store)
    assert ((await only(store)).status, mine.deliverer.counts.failed) == ("FAILED", 1)
    assert (await store.webhooks.get(endpoint.id)).disabled_at is not None


async def test_410_gone_of_a_removed_webhook_is_ignored(backend: SqliteBackend) -> None:
    """It was removed during the request, so there is nothing to disable."""
    store = backend.store

    class Removed(Target):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await store.webhooks.remove(endpoint.id)
            await super().serve(reader, writer)

    async with Removed(answering("410 Gone")).listening() as target, delivering(store) as mine:
        endpoint = await add(store, target)
        await finish(store)
        await mine.send()
        await mine.send()  # It keeps working.
        assert mine.deliverer.counts.failed == 1


async def test_removed_and_disabled_webhooks_and_deleted_jobs(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target().listening() as target, delivering(store) as mine:
        removed, paused, kept = [await add(store, target) for _ in range(3)]
        job_id = await finish(store)
        await store.webhooks.remove(removed.id)
        await store.webhooks.change(paused.id, is_on=False)
        await backend.sql(f"delete from headway_jobs where id = '{job_id}'")
        await mine.send()
        found = {delivery.endpoint: delivery for delivery in await store.webhooks.deliveries()}
        assert found[removed.id].outcomes[0].error == "the webhook was removed"
        assert found[kept.id].outcomes[0].error == "the job was deleted"
        assert {found[removed.id].status, found[kept.id].status} == {"FAILED"}
        assert (found[paused.id].status, found[paused.id].tries) == ("WAITING", 0)
        await backend.advance(DAY)
        await mine.send()
        assert (await store.webhooks.delivery(found[paused.id].id))[0].status == "FAILED"
        assert target.requests == []


async def test_old_deliveries_are_pruned(backend: SqliteBackend) -> None:
    store = backend.store
    async with Target().listening() as target, delivering(store) as mine:
        await add(store, target)
        await finish(store)
        await mine.send()
    await backend.advance(31 * DAY)
    async with delivering(store) as mine:
        await mine.send()
    assert await store.webhooks.deliveries() == []


# --- over HTTP, with a real process


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("api")
    with api_process(f"sqlite:///{folder}/headway.db", env={"HEADWAY_WEBHOOK_ALLOW": ",".join(LOCAL)}) as api:
        yield api


@pytest.fixture(scope="module")
def tokens(api: ApiProcess) -> dict[str, str]:
    """Tokens of all tenants and of two, created while anonymous access is on."""
    made: dict[str, str] = {}
    for name, tenant, role in (
        ("root", "*", "admin"),
        ("a", "a", "admin"),
        ("b", "b", "admin"),
        ("viewer", "a", "viewer"),
        ("operator", "a", "operator"),
    ):
        with api.client(made.get("root")) as client:
            answer = client.post("/api/tokens", json={"name": name, "tenant": tenant, "role": role})
        assert answer.status_code == 201, answer.text
        made[name] = answer.json()["token"]
    return made


# After a stall longer than the timeout of the server, the message is sent again.
TOO_SLOW = {f"no answer within {SEND_S_MAX:g} s"}


async def delivered(http: httpx.AsyncClient, job_id: str) -> list[dict[str, Any]] | None:
    """Return the deliveries of a job once all have been delivered."""
    found: list[dict[str, Any]] = (await http.get("/api/deliveries", params={"job": job_id})).json()["items"]
    return found if all(delivery["status"] == "DELIVERED" for delivery in found) else None


async def is_taken(http: httpx.AsyncClient, path: str, **body: str) -> bool:
    """Send a test message; return whether it was delivered, unless the test was too slow."""
    tested = await http.post(f"{path}/test", json=body)
    assert tested.status_code == 200, tested.text
    assert tested.json()["status"] == "DELIVERED" or tested.json()["outcomes"][0]["error"] in TOO_SLOW, tested.text
    return bool(tested.json()["status"] == "DELIVERED")


async def test_lifecycle_of_a_webhook(api: ApiProcess, tokens: dict[str, str]) -> None:
    async with Target().listening() as target, api.async_client(tokens["a"]) as http:
        url = f"http://127.0.0.1:{target.port}/hook?token=sesame&x=1"
        made = await http.post("/api/webhooks", json={"url": url, "events": ["job.cancelled"], "note": "n"})
        assert made.status_code == 201, made.text
        webhook = made.json()
        path = f"/api/webhooks/{webhook['id']}"
        assert made.headers["location"] == path
        assert (webhook["tenant"], webhook["events"], webhook["enabled"]) == ("a", ["job.cancelled"], True)
        assert webhook["url"] == f"http://127.0.0.1:{target.port}/hook?token=***&x=1"
        shown = (await http.get(path)).json()
        assert webhook.pop("secret").startswith("whsec_")
        assert shown == webhook
        assert shown in (await http.get("/api/webhooks")).json()["items"]

        job = (await http.post("/api/jobs", json={"type": "t"})).json()
        assert (await http.post(f"/api/jobs/{job['id']}/cancel")).status_code == 200
        [delivery] = await async_wait_until(lambda: delivered(http, job["id"]), "the delivery")
        assert target.requests[0].startswith(b"POST /hook?token=sesame&x=1 ")
        assert delivery["endpoint"] == webhook["id"]
        assert (delivery["outcomes"][-1]["code"], delivery["tries"]) == (204, len(delivery["outcomes"]))
        assert {outcome["error"] for outcome in delivery["outcomes"][:-1]} <= TOO_SLOW
        assert "sesame" not in json.dumps(delivery)

        sent = len(target.requests)
        again = await http.post(f"/api/deliveries/{delivery['id']}/replay")
        assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, delivery["id"], "WAITING")
        await async_wait_until(lambda: len(target.requests) > sent, "the replay")
        assert len({(message.id, message.body) for message in map(Message.read, target.requests)}) == 1

        rotated = (await http.post(f"{path}/rotate", json={"keep": "1h"})).json()
        assert rotated["secrets"] == 2
        await async_wait_until(lambda: is_taken(http, path), "a delivered test message")
        trial = Message.read(target.requests[-1])
        assert (trial.json["type"], trial.is_signed_with(rotated["secret"])) == ("webhook.test", True)

        changed = await http.put(path, json={"enabled": False, "events": ["*"], "note": "off"})
        assert (changed.json()["enabled"], changed.json()["events"], changed.json()["note"]) == (False, ["*"], "off")
        assert changed.json()["url"] == webhook["url"]
        assert (await http.delete(path)).status_code == 204
        for gone in (http.get(path), http.delete(path), http.put(path, json={}), http.post(f"{path}/rotate")):
            assert (await gone).status_code == 404
    with api.client(tokens["root"]) as root:
        actions = [line["action"] for line in root.get("/api/trail", params={"limit": "100"}).json()["items"]]
    for action in ("add", "change", "remove", "rotate", "test"):
        assert f"webhooks.{action}" in actions
    assert "deliveries.replay" in actions
    assert "sesame" not in "".join(api.log)


async def test_callbacks_over_http(api: ApiProcess, tokens: dict[str, str]) -> None:
    async with Target().listening() as target, api.async_client(tokens["b"]) as http:
        secret = (await http.post("/api/webhooks/callbacks:b/rotate")).json()["secret"]
        body = {"type": "t", "callback_url": f"http://127.0.0.1:{target.port}/cb"}
        job = (await http.post("/api/jobs", json=body)).json()
        await http.post(f"/api/jobs/{job['id']}/cancel")
        await async_wait_until(lambda: target.requests, "the message")
        message = Message.read(target.requests[0])
        assert (message.json["data"]["id"], message.is_signed_with(secret)) == (job["id"], True)
        assert (await http.delete("/api/webhooks/callbacks:b")).status_code == 409
        url = f"http://127.0.0.1:{target.port}/other"
        await async_wait_until(lambda: is_taken(http, "/api/webhooks/callbacks:b", url=url), "a delivered test message")
        for bad in ("ftp://x/", "http://u:p@x/", "nonsense", "http://x/\u0000"):
            refused = await http.post("/api/jobs", json={**body, "callback_url": bad})
            assert refused.status_code == 422, refused.text


async def test_test_message_reports_why_it_failed(api: ApiProcess, tokens: dict[str, str]) -> None:
    async with api.async_client(tokens["a"]) as http:
        webhook = (await http.post("/api/webhooks", json={"url": "http://10.0.0.1:5432/"})).json()
        tested = (await http.post(f"/api/webhooks/{webhook['id']}/test")).json()
        assert (tested["status"], tested["next_at"]) == ("FAILED", None)
        assert "private" in tested["outcomes"][0]["error"]
        await http.delete(f"/api/webhooks/{webhook['id']}")


def test_tenants_are_isolated(api: ApiProcess, tokens: dict[str, str]) -> None:
    with api.client(tokens["root"]) as root, api.client(tokens["a"]) as a, api.client(tokens["b"]) as b:
        ids = {
            "a": a.post("/api/webhooks", json={"url": "http://127.0.0.1:1/a"}).json()["id"],
            "*": root.post("/api/webhooks", json={"url": "http://127.0.0.1:1/all"}).json()["id"],
        }
        job = a.post("/api/jobs", json={"type": "t"}).json()["id"]
        a.post(f"/api/jobs/{job}/cancel")
        told = {
            item["endpoint"]: item["id"] for item in root.get("/api/deliveries", params={"job": job}).json()["items"]
        }
        assert told.keys() == set(ids.values())
        absent = b.get("/api/webhooks/wh_absent")
        foreign = [(b, ids["a"], told[ids["a"]]), (b, ids["*"], told[ids["*"]]), (a, ids["*"], told[ids["*"]])]
        for client, webhook, delivery in foreign:
            probes = [
                client.get(f"/api/webhooks/{webhook}"),
                client.put(f"/api/webhooks/{webhook}", json={"note": "mine"}),
                client.delete(f"/api/webhooks/{webhook}"),
                client.post(f"/api/webhooks/{webhook}/rotate"),
                client.post(f"/api/webhooks/{webhook}/test"),
                client.get(f"/api/deliveries/{delivery}"),
                client.post(f"/api/deliveries/{delivery}/replay"),
            ]
            assert [probe.status_code for probe in probes] == [404] * len(probes)
            assert probes[0].json()["error"] == absent.json()["error"]
            assert webhook not in client.get("/api/webhooks").text
            assert webhook not in client.get("/api/deliveries", params={"job": job}).text
            assert client.get("/api/deliveries", params={"endpoint": webhook}).json()["items"] == []
        assert b.post("/api/webhooks/callbacks:a/rotate").status_code == 404
        assert b.post("/api/webhooks", json={"url": "http://x/", "tenant": "a"}).status_code == 403
        assert b.post("/api/webhooks", json={"url": "http://x/", "tenant": "*"}).status_code == 403
        assert root.get(f"/api/webhooks/{ids['a']}").json()["tenant"] == "a"
        for webhook in ids.values():
            assert root.delete(f"/api/webhooks/{webhook}").status_code == 204


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_webhooks_need_an_admin(api: ApiProcess, tokens: dict[str, str], role: str) -> None:
    with api.client(tokens[role]) as client:
        for answer in (
            client.get("/api/webhooks"),
            client.post("/api/webhooks", json={"url": "http://127.0.0.1:1/"}),
            client.get("/api/deliveries"),
            client.post("/api/webhooks/callbacks:a/rotate"),
        ):
            assert answer.status_code == 403


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "url"),
        ({"url": 5}, "url"),
        ({"url": ""}, "url"),
        ({"url": "x" * 3_000}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "http://127.0.0.1:1/", "events": []}, "events"),
        ({"url": "http://127.0.0.1:1/", "events": ["job.nonsense"]}, "events"),
        ({"url": "http://127.0.0.1:1/", "events": "job.failed"}, "events"),
        ({"url": "http://127.0.0.1:1/", "note": "x" * 600}, "note"),
        ({"url": "http://127.0.0.1:1/", "secret": "whsec_mine"}, "secret"),
    ],
)
def test_invalid_input_names_the_field(api: ApiProcess, tokens: dict[str, str], body: Any, field: str) -> None:
    with api.client(tokens["a"]) as client:
        answer = client.post("/api/webhooks", json=body)
    assert answer.status_code == 422
    assert field in answer.json()["error"]["message"]


async def test_killed_process_repeats_its_delivery(tmp_path: Path) -> None:
    """The message was sent but its outcome not stored: the next process sends it again, with the same id."""
    store = f"sqlite:///{tmp_path}/headway.db"
    env = {"HEADWAY_WEBHOOK_ALLOW": ",".join(LOCAL)}

    class Stuck(Target):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.requests.append(await reader.readuntil(b"\r\n\r\n") + b"{}")
            await asyncio.Event().wait()

    async with Stuck().listening() as target:
        url = f"http://127.0.0.1:{target.port}/"
        with api_process(store, env=env) as api:
            async with api.async_client() as http:
                body = {"type": "t", "callback_url": url}
                job = (await http.post("/api/jobs", json=body)).json()
                await http.post(f"/api/jobs/{job['id']}/cancel")
            await async_wait_until(lambda: target.requests, "the message")
            await asyncio.to_thread(api.kill)
        sent = len(target.requests)
        backend = SqliteBackend(f"{tmp_path}/headway.db")
        with api_process(store, env=env):
            await backend.start()
            await backend.sql("update headway_deliveries set next_at = 1")  # As if a minute had passed.
            await async_wait_until(lambda: len(target.requests) > sent, "the message of the next process")
        await backend.close()
    assert len({Message.read(request).id for request in target.requests}) == 1


def receiver_of_the_docs() -> str:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    found = re.search(r"<!-- file: receiver\.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def test_receiver_in_the_documentation(api: ApiProcess, tokens: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "receiver.py").write_text(receiver_of_the_docs())
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with api.client(tokens["a"]) as http, evidence.log_file("receiver.py").open("a+") as said:
        webhook = http.post("/api/webhooks", json={"url": url}).json()
        receiver = subprocess.Popen(
            [sys.executable, "receiver.py"],
            cwd=tmp_path,
            env={**os.environ, "WEBHOOK_SECRET": webhook["secret"], "PORT": str(port)},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            test = f"/api/webhooks/{webhook['id']}/test"
            wait_until(lambda: http.post(test).json()["status"] == "DELIVERED", "a delivered test message")
            job = http.post("/api/jobs", json={"type": "t"}).json()["id"]
            http.post(f"/api/jobs/{job}/cancel")
            told = re.compile(rf"^msg_\w+ job\.cancelled {job}\n", re.MULTILINE)
            wait_until(lambda: told.search(Path(said.name).read_text()), "the output of the receiver")
            forged = {
                "webhook-id": "msg_1",
                "webhook-timestamp": str(int(time.time())),
                "webhook-signature": "v1,AAAA v2,x",
            }
            assert http.post(url, content=b"{}", headers=forged).status_code == 401
        finally:
            receiver.kill()
            receiver.wait()
        http.delete(f"/api/webhooks/{webhook['id']}")


# --- the command line


def test_command_line(cli: Cli) -> None:
    cli("migrate")
    assert cli("webhooks", "list").out == "no webhooks; add one with `headway webhooks add URL`\n"
    made = cli("webhooks", "add", "http://127.0.0.1:9/a?token=sesame", "--event", "job.failed", "--json").json
    assert made["secret"].startswith("whsec_")
    assert (made["tenant"], made["events"]) == ("*", ["job.failed"])
    listed = cli("webhooks", "list", "--json").json
    assert listed == [{name: value for name, value in made.items() if name != "secret"}]
    assert "sesame" not in cli("webhooks", "list").out
    rotated = cli("webhooks", "rotate", made["id"])
    assert rotated.out.startswith("whsec_")
    assert len(rotated.out.split()) == 1
    assert cli("webhooks", "disable", made["id"], "--json").json["enabled"] is False
    assert cli("webhooks", "enable", made["id"]).out == f"{made['id']} is on\n"
    tested = cli("webhooks", "test", made["id"])
    assert (tested.code, "loopback" in tested.out) == (1, True)
    [delivery] = cli("webhooks", "deliveries", "--json").json
    assert (delivery["status"], delivery["event"]) == ("FAILED", "webhook.test")
    assert cli("webhooks", "deliveries", "--status", "waiting", "--json").json == []
    assert cli("webhooks", "deliveries", "--status", "nonsense").code == 2
    again = cli("webhooks", "replay", delivery["id"])
    assert again.out == f"{delivery['id']} will be sent to http://127.0.0.1:9/a?token=*** again\n"
    assert cli("webhooks", "deliveries", "--webhook", made["id"], "--status", "WAITING", "--json").json[0]["tries"] == 0
    assert cli("webhooks", "remove", made["id"]).code == 0
    assert cli("webhooks", "remove", made["id"]).code == 3
    assert cli("webhooks", "replay", "msg_x").code == 3
    assert cli("webhooks", "add", "ftp://x/").code == 2
    assert cli("webhooks", "rotate", "callbacks:default", "--json").json["url"] is None
    assert cli("webhooks", "remove", "callbacks:default").code == 2
    assert cli("webhooks", "test", "callbacks:default").code == 2
    actions = [row[0] for row in cli.sql("select action from headway_actions order by seq")]
    assert actions == [
        *("webhooks.add", "webhooks.rotate", "webhooks.change", "webhooks.change", "webhooks.test"),
        *("deliveries.replay", "webhooks.remove", "webhooks.rotate"),
    ]
    assert cli.sql("select count(*) from headway_actions where detail like '%sesame%'") == [(0,)]


async def test_command_line_sends_test_messages(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_WEBHOOK_ALLOW", ",".join(LOCAL))
    async with Target().listening() as target:

        def call() -> Any:
            cli("migrate")
            made = cli("webhooks", "add", f"http://127.0.0.1:{target.port}/", "--json").json
            while (tested := cli("webhooks", "test", made["id"], "--json")).code:
                assert tested.json["outcomes"][0]["error"] in TOO_SLOW, tested
            return made, tested

        made, tested = await asyncio.to_thread(call)
    assert (tested.code, tested.json["status"]) == (0, "DELIVERED")
    assert Message.read(target.requests[-1]).is_signed_with(made["secret"])
