"""Every declared operation on a store and through a server: the same results, audit entries, errors and races.

`SCENARIOS` has an entry for each operation, so a new one fails here until it is added. Both sides begin with the same
records; what differs between two equal histories (ids, times) is ignored.
"""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from headway.client import AsyncClient
from headway.client.remote_operations import RemoteOperations
from headway.core.clock import Clock
from headway.core.errors import HeadwayError
from headway.core.instants import DAY
from headway.core.jobs import NewJob as Enqueued
from headway.core.lifecycle import Raised, Status
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.operations.caller import Caller, Principal
from headway.operations.everything import LocalOperations, Operations
from headway.operations.verbs import OperationGroup, Verb, verbs_of
from headway.store import Store
from headway.wire.batches import NewBatch
from headway.wire.dead_letters import FailureFilter, LetterFilter, ManyLetters
from headway.wire.job_requests import JobFilter, ManyJobs, NewJobs
from headway.wire.jobs import NewJob
from headway.wire.schedule_requests import NamedSchedule, PreviewBody, ScheduleBody, SchedulesBody
from headway.wiring.webhooks import OneOffSender
from tests.conformance.arrange import run_one
from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S

ROOT, VIEWER, ACME = "root", "viewer", "acme"
PRINCIPALS = {
    ROOT: Principal(ROOT, "*", "admin"),
    VIEWER: Principal(VIEWER, "*", "viewer"),
    ACME: Principal(ACME, "acme", "operator"),
}
IDS = re.compile(r"\b(job|batch|node|tok|wh|msg|auto|req)_[0-9a-z]{26,34}\b")
SPANS = re.compile(
    r"(?<=ready for ).*|(?<![\w.])\d+(\.\d+)?(ms|s|m|h)\b( \d+(\.\d+)?(s|m)\b)?( ago)?|\bjust now\b|\bnow\b"
)
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)")
PASSING = {
    "oldest_age_seconds",
    "ready_seconds",
    "eta_seconds",
    "seq",
    "beat_at",
    "latency_ms",
    "took_ms",
    "url",
    "secret",
    "token",
    "token_id",
}
IDS_OF_JOBS = Clock()
HOOK = "http://127.0.0.1:1/hook"  # Nothing listens there.

Call = Callable[[Operations], Awaitable[Any]]


def put(name: str, **more: Any) -> Call:
    """Return a call that puts a schedule."""
    body = ScheduleBody(task="report", cron="0 6 * * *", args={"day": 1, "password": "secret"}, **more)
    return lambda on: on.schedules.put(name, body)


def many(*names: str, **options: Any) -> Call:
    """Return a call that applies schedules."""
    found = [NamedSchedule(name=name, task="report", every="1h", tenant="globex") for name in names]
    return lambda on: on.schedules.apply(SchedulesBody(schedules=found), **options)


MONTH: dict[str, Any] = {"since": "2024-03-01T00:00:00Z", "until": "2024-04-01T00:00:00Z"}
SPELL: dict[str, Any] = {"first": "2024-03-01", "last": "2024-03-04"}


@dataclass(frozen=True)
class Scenario:
    """The call of an operation, with preparing calls; if `raced`, it is also called twice concurrently."""

    call: Call
    before: Sequence[Call] = ()
    raced: bool = True


async def hook(on: Operations, note: str) -> str:
    """Return the id of the webhook with this note."""
    return next((webhook.id for webhook in (await on.webhooks.list()).items if webhook.note == note), "wh_nobody")


def with_hook(note: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on a webhook that was added before."""

    async def on_it(on: Operations) -> Any:
        return await call(on, await hook(on, note))

    return Scenario(on_it, [lambda on: on.webhooks.add(HOOK, note=note)])


def with_message(note: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on a test message that was sent before."""

    async def send(on: Operations) -> None:
        await on.webhooks.add(HOOK, note=note)
        await on.webhooks.test(await hook(on, note))

    async def on_it(on: Operations) -> Any:
        sent = await on.deliveries.list(endpoint=await hook(on, note))
        return await call(on, sent.items[0].id)

    return Scenario(on_it, [send])


async def replay(on: Operations, message_id: str) -> object:
    """Replay a message; ignore its tries, because a server starts the next one at once."""
    again = await on.deliveries.replay(message_id)
    return again.id, again.endpoint, again.event, again.status


async def newest(on: Operations, queue: str) -> str:
    """Return the id of the newest job of a queue."""
    found = await on.jobs.list(JobFilter(queue=queue))
    return found.items[0].id if found.items else "job_nobody"


def with_job(queue: str, call: Callable[[Operations, str], Awaitable[Any]], *before: Call) -> Scenario:
    """Call an operation on a job that was enqueued before."""

    async def enqueue(on: Operations) -> None:
        new = NewJob(type="report", args={"n": 1, "token": "secret"}, queue=queue, tenant="acme")
        await on.jobs.enqueue(new, idempotency_key=queue)  # Without one, remote callers generate one.

    async def on_it(on: Operations) -> Any:
        return await call(on, await newest(on, queue))

    return Scenario(on_it, [enqueue, *before])


def with_cancelled_job(queue: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on a job that was cancelled before."""

    async def cancel(on: Operations) -> None:
        await on.jobs.cancel(await newest(on, queue), reason="wrong month")

    return with_job(queue, call, cancel)


def with_batch(name: str, call: Callable[[Operations, str], Awaitable[Any]], *before: Call) -> Scenario:
    """Call an operation on a batch of one tenant that was created before."""
    new = NewBatch(name=name, tenant="acme")  # A callback would run on the server only.
    return Scenario(lambda on: call(on, name), [lambda on: on.batches.create(new), *before])


def of_queue(queue: str, **what: Any) -> ManyJobs:
    return ManyJobs(filter=JobFilter(queue=queue), reason="all of them", **what)


async def _figures(on: Operations) -> Any:
    """Return the statistics that do not depend on the time."""
    stats = await on.monitoring.stats()
    counts = stats.schedules.total, stats.schedules.paused
    return [stats.queues, stats.jobs, counts, stats.dead, stats.failing, stats.leader, stats.workers, stats.tenant]


async def _first_alert(on: Operations) -> Any:
    """Return the most severe alert; a server that retries webhooks may have more."""
    return (await on.monitoring.alerts(limit=1)).items


async def _revoke_newest(on: Operations) -> Any:
    [newest, *_] = (await on.tokens.list(tenant="globex", limit=1)).items
    return await on.tokens.revoke(newest.id)


# Each scenario has its own queue with dead letters.
LETTERS = ("failing", "rerun", "rerun-one", "dropped", "dropped-one")


def with_letter(queue: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on the oldest job of a queue with dead letters."""

    async def on_it(on: Operations) -> Any:
        found = (await on.jobs.list(JobFilter(queue=queue))).items
        return await call(on, found[-1].id if found else "job_nobody")

    return Scenario(on_it)


SCENARIOS: dict[str, Scenario] = {
    "enqueue": Scenario(
        lambda on: on.jobs.enqueue(
            NewJob(type="report", args={"to": "ada"}, delay="1h", tenant="acme", tags=["x"]), idempotency_key="mail-1"
        )
    ),
    "enqueue_many": Scenario(
        lambda on: on.jobs.enqueue_many(
            NewJobs([NewJob(type="report", queue="bulk", key=f"b{n}", tenant="acme") for n in range(3)])
        )
    ),
    "list_jobs": with_job("listed", lambda on, _: on.jobs.list(JobFilter(type="report", queue="listed"), limit=1)),
    "count_jobs": with_job("counted", lambda on, _: on.jobs.count(JobFilter(queue="counted"))),
    "latest_job": with_job("latest", lambda on, _: on.jobs.latest("report", status=Status.PENDING)),
    "get_job": with_job("shown", lambda on, id: on.jobs.show(id, wait="10ms")),
    "attempts_of_job": with_job("tried", lambda on, id: on.jobs.attempts(id)),
    "log_of_job": with_job("logged", lambda on, id: on.jobs.log(id, order="desc")),
    "history_of_job": with_cancelled_job("past", lambda on, id: on.jobs.history(id)),
    "why_of_job": with_cancelled_job("asked", lambda on, id: on.jobs.why(id)),
    "cancel_job": with_job("unwanted", lambda on, id: on.jobs.cancel(id, reason="wrong month")),
    "retry_job": with_cancelled_job("again", lambda on, id: on.jobs.retry(id, args={"n": 2, "token": "***"})),
    "retry_many": with_cancelled_job("once-more", lambda on, _: on.jobs.retry_many(of_queue("once-more"))),
    "cancel_many": with_job("all", lambda on, _: on.jobs.cancel_many(of_queue("all", limit=2))),
    "list_queues": Scenario(lambda on: on.queues.list(), [lambda on: on.queues.pause("seen", reason="why")]),
    "scale_queue": Scenario(lambda on: on.queues.scale("wide", wait="10s")),
    "pause_queue": Scenario(lambda on: on.queues.pause("media", reason="the disk is full")),
    "resume_queue": Scenario(lambda on: on.queues.resume("tap"), [lambda on: on.queues.pause("tap")]),
    "create_batch": Scenario(lambda on: on.batches.create(NewBatch(name="a/b", tenant="acme", on_failure="report"))),
    "list_batches": with_batch("listed", lambda on, _: on.batches.list(state="unfinished", tenant="acme", limit=1)),
    "get_batch": with_batch("shown/now", lambda on, name: on.batches.show(name, tenant="acme")),
    "close_batch": with_batch("closed", lambda on, name: on.batches.close(name, tenant="acme")),
    "cancel_batch": with_batch("unwanted", lambda on, name: on.batches.cancel(name, tenant="acme", reason="wrong day")),
    "retry_batch": with_batch("tried", lambda on, name: on.batches.retry(name, tenant="acme")),
    "list_limits": Scenario(
        lambda on: on.limits.list(limit=2),
        [
            lambda on: on.limits.put("queue:listed-limit", concurrency=3),
            lambda on: on.limits.put("tenant:*", rate="9/m"),
        ],
    ),
    "get_limit": Scenario(
        lambda on: on.limits.show("queue:shown/limit"), [lambda on: on.limits.put("queue:shown/limit", concurrency=3)]
    ),
    "put_limit": Scenario(lambda on: on.limits.put("account-*", concurrency=1, rate="10/s", burst=20)),
    "remove_limit": Scenario(
        lambda on: on.limits.remove("task:removed"), [lambda on: on.limits.put("task:removed", concurrency=3)]
    ),
    "list_tenants": Scenario(lambda on: on.tenants.list(limit=2), [lambda on: on.tenants.put("listed", weight=2)]),
    "get_tenant": Scenario(
        lambda on: on.tenants.show("shown"), [lambda on: on.tenants.put("shown", weight=2, wait_slo="5s")]
    ),
    "put_tenant": Scenario(lambda on: on.tenants.put("weighed", weight=4, wait_slo="5s")),
    "list_workers": Scenario(lambda on: on.workers.list()),
    "drain_worker": Scenario(lambda on: on.workers.drain("web-1")),
    "list_nodes": Scenario(lambda on: on.nodes.list(gone=True)),
    "list_webhooks": with_hook("listed", lambda on, _: on.webhooks.list()),
    "add_webhook": Scenario(lambda on: on.webhooks.add(HOOK, events=["job.failed"], note="added", tenant="acme")),
    "get_webhook": with_hook("shown", lambda on, id: on.webhooks.get(id)),
    "change_webhook": with_hook("changed", lambda on, id: on.webhooks.change(id, events=["*"], enabled=False)),
    "remove_webhook": with_hook("removed", lambda on, id: on.webhooks.remove(id)),
    "rotate_secret": with_hook("rotated", lambda on, id: on.webhooks.rotate(id, keep="1h")),
    "test_webhook": with_hook("tested", lambda on, id: on.webhooks.test(id)),
    "list_deliveries": with_message("sent", lambda on, _: on.deliveries.list(status="FAILED", limit=1)),
    "get_delivery": with_message("seen", lambda on, id: on.deliveries.get(id)),
    "replay_delivery": with_message("replayed", replay),
    "list_schedules": Scenario(lambda on: on.schedules.list(q="listed", recent=3, limit=1), [put("listed/1")]),
    "get_schedule": Scenario(lambda on: on.schedules.get("got", tenant="default"), [put("got", overlap="queue")]),
    "put_schedule": Scenario(put("defined", missed="all", catch_up_rate="10/m")),
    "apply_schedules": Scenario(many("applied-1", "applied/2", owner="file:a.toml")),
    "remove_schedule": Scenario(lambda on: on.schedules.remove("gone"), [put("gone")]),
    "pause_schedule": Scenario(lambda on: on.schedules.pause("held", reason="why"), [put("held")]),
    "resume_schedule": Scenario(
        lambda on: on.schedules.resume("freed"), [put("freed"), lambda on: on.schedules.pause("freed", until="9h")]
    ),
    "trigger_schedule": Scenario(lambda on: on.schedules.trigger("once", args={"n": 1}, key="k"), [put("once")]),
    "backfill_schedule": Scenario(lambda on: on.schedules.backfill("filled", **SPELL), [put("filled")]),
    "preview_schedule": Scenario(lambda on: on.schedules.preview("seen", since="2027-03-27", n=2), [put("seen")]),
    "preview_rule": Scenario(lambda on: on.schedules.preview_rule(PreviewBody(cron="0 6 * * *", since="2027-03-27"))),
    "list_occurrences": Scenario(lambda on: on.schedules.occurrences("decided", since="2024-01-01"), [put("decided")]),
    "list_runs": Scenario(
        lambda on: on.schedules.runs("ran"),
        [
            put("ran"),
            lambda on: on.schedules.trigger("ran", key="ran"),
            lambda on: on.schedules.backfill("ran", **SPELL),
        ],
    ),
    "get_calendar": Scenario(lambda on: on.schedules.calendar("dated", year=2027), [put("dated")]),
    "get_audit": Scenario(lambda on: on.ledger.audit(schedule="proved", **MONTH), [put("proved")]),
    "get_limit_audit": Scenario(lambda on: on.ledger.limits(since="2127-01-01T00:00:00Z")),
    "get_stats": Scenario(_figures, [lambda on: on.queues.pause("figures", reason="why")]),
    "list_alerts": Scenario(_first_alert),
    "get_series": Scenario(lambda on: on.monitoring.series(window="6h", task="report")),
    "who_am_i": Scenario(lambda on: on.identity.show()),
    "list_tokens": Scenario(
        lambda on: on.tokens.list(tenant="acme", limit=2),
        [lambda on: on.tokens.create(name="listed", role="viewer", tenant="acme") for _ in range(2)],
    ),
    "create_token": Scenario(
        lambda on: on.tokens.create(name="ci", role="operator", tenant="globex", expires_in="90d"), raced=False
    ),
    "revoke_token": Scenario(
        _revoke_newest, [lambda on: on.tokens.create(name="revoked", role="viewer", tenant="globex")]
    ),
    "read_audit_log": Scenario(
        lambda on: on.audit_log.list(action="queue.pause", target="logged", limit=5),
        [lambda on: on.queues.pause("logged", reason="why")],
    ),
    "list_failures": Scenario(lambda on: on.failures.list(FailureFilter(queue="failing"))),
    "list_dead": Scenario(lambda on: on.dead_letters.list(LetterFilter(queue="failing", error="OSError"), limit=1)),
    "retry_dead_group": Scenario(
        lambda on: on.dead_letters.retry_many(ManyLetters(queue="rerun", limit=1)),
        [lambda on: on.dead_letters.retry_many(ManyLetters(queue="rerun", limit=10_000, dry_run=True))],
    ),
    "drop_dead_group": Scenario(lambda on: on.dead_letters.drop_many(ManyLetters(queue="dropped", error="OSError"))),
    "retry_dead": with_letter("rerun-one", lambda on, id: on.dead_letters.retry(id)),
    "drop_dead": with_letter("dropped-one", lambda on, id: on.dead_letters.drop(id)),
}


def groups() -> dict[str, type[OperationGroup]]:
    """Return the groups of operations by their names on `Operations`."""
    kinds = Operations.__annotations__.items()
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, OperationGroup)}


VERBS: dict[str, Verb] = {verb.id: verb for group in groups().values() for verb in verbs_of(group)}


def test_every_operation_is_compared() -> None:
    assert SCENARIOS.keys() == VERBS.keys()


@dataclass
class Side:
    """One way to call the operations, with its own store."""

    store: Store
    ways: dict[str, Operations] = field(default_factory=dict)

    async def outcome(self, who: str, call: Call) -> Any:
        """Call an operation; return its result, or the type and message of its error."""
        try:
            return normal(msgspec.to_builtins(await call(self.ways[who])))
        except HeadwayError as error:
            return type(error).__name__, normal(str(error))

    async def newest(self) -> int:
        """Return the number of the newest entry in the audit log."""
        found = await self.store.audit_log.page(limit=1)
        return found[0].seq if found else 0

    async def entries(self, after: int) -> list[Any]:
        """Return the newer entries of the audit log, oldest first, without the origin."""
        found = [entry for entry in await self.store.audit_log.page(limit=200) if entry.seq > after]
        return [normal([entry.actor, entry.tenant, entry.action, entry.target, entry.detail]) for entry in found[::-1]]


def normal(value: Any, name: str = "") -> Any:
    """Remove what differs between two equal histories."""
    if isinstance(value, dict):
        return {key: normal(inner, key) for key, inner in value.items() if key not in PASSING}
    if isinstance(value, list | tuple):
        return [normal(inner) for inner in value if not (isinstance(inner, dict) and inner.get("roles") == ["api"])]
    return SPANS.sub("S", TIMES.sub("T", IDS.sub(r"\1", value))) if isinstance(value, str) else value


@dataclass(frozen=True)
class Places:
    """A store, and another one behind a server."""

    here: Path
    there: Path
    server: str


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("operations")
    with api_process(f"sqlite:///{folder}/there.db") as api:
        found = Places(folder / "here.db", folder / "there.db", api.url)
        for path in (found.here, found.there):
            asyncio.run(_populate(path))
        yield found


async def _populate(path: Path) -> None:
    """Create dead letters, and a worker that stays alive during these tests."""
    async with _opened(path) as store:
        state = {"worker": {"tasks": ["report"], "queues": ["*"], "slots": 4, "running": 1, "children": 1}}
        for number, queue in enumerate((*LETTERS, *LETTERS)):
            await store.queue.enqueue([Enqueued(id=IDS_OF_JOBS.new_id("job"), task="report", queue=queue)])
            error = f'{{"type": "OSError", "message": "disk {number} is full"}}'
            await run_one(store, Raised(error, retryable=False), queue)
        await store.nodes.beat(Node(id="node_1", name="web-1", roles=("worker",), version="1", state=state))
    with contextlib.closing(sqlite3.connect(path, timeout=DEADLINE_S)) as connection, connection:
        connection.execute("update headway_nodes set beat_at = beat_at + ? where name = 'web-1'", [DAY])


@asynccontextmanager
async def sides(places: Places) -> AsyncIterator[tuple[Side, Side]]:
    """Open both, with the same credentials."""
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(_opened(path)) for path in (places.here, places.there)]
        local, remote = Side(here), Side(there)
        for name, principal in PRINCIPALS.items():
            clock = Clock(node="here")
            sender = OneOffSender(here, Settings(), clock)
            local.ways[name] = LocalOperations(Caller(principal, "127.0.0.1", here, clock, sender=sender))
            _, token = await there.tokens.create(
                name=name, tenant=principal.tenant, role=principal.role, lifetime=None, actor="test", origin=""
            )
            client = await stack.enter_async_context(AsyncClient(places.server, token))
            remote.ways[name] = RemoteOperations(client, Clock(node="there"))
        yield local, remote


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite:///{path}", Clock(node="test"), synchronous="normal")
    yield store
    await store.close()


REFUSALS: dict[str, Call] = {
    "missing schedule": lambda on: on.schedules.get("nobody"),
    "missing limit": lambda on: on.limits.show("nobody"),
    "removal of a missing limit": lambda on: on.limits.remove("nobody"),
    "limit of nothing": lambda on: on.limits.put("nothing"),
    "limit of 0": lambda on: on.limits.put("none", concurrency=0),
    "limit too large": lambda on: on.limits.put("all", concurrency=10**9),
    "rate without a time": lambda on: on.limits.put("fast", rate="10"),
    "burst without a rate": lambda on: on.limits.put("bursts", concurrency=1, burst=2),
    "star within a name": lambda on: on.limits.put("a*b", concurrency=1),
    "weight of 0": lambda on: on.tenants.put("light", weight=0),
    "tenant with nothing": lambda on: on.tenants.put("empty"),
    "all tenants": lambda on: on.tenants.put("*", weight=2),
    "job under no limit": lambda on: on.jobs.enqueue(NewJob(type="report", limit="nobody-42"), idempotency_key="k"),
    "limit without its argument": lambda on: on.jobs.enqueue(
        NewJob(type="report", limit="account-{id}"), idempotency_key="k"
    ),
    "schedule of a file": lambda on: on.schedules.put("owned", ScheduleBody(task="x", every="1h")),
    "stale revision": lambda on: on.schedules.put("owned", ScheduleBody(task="x", every="1h"), if_match='"9"'),
    "existing schedule": lambda on: on.schedules.put("owned", ScheduleBody(task="x", every="1h"), if_none_match="*"),
    "no future instant": lambda on: on.schedules.put("over", ScheduleBody(task="x", at="2020-01-01")),
    "two triggers": lambda on: on.schedules.put("both", ScheduleBody(task="x", every="1h", cron="@daily")),
    "one invalid of many": lambda on: on.schedules.apply(
        SchedulesBody(
            schedules=[
                NamedSchedule(name="fine", task="x", every="1h"),
                NamedSchedule(name="wrong", task="x", cron="61 * * * *"),
            ]
        )
    ),
    "duplicate name": lambda on: on.schedules.apply(
        SchedulesBody(schedules=[NamedSchedule(name="twin", task="x", every="1h") for _ in range(2)])
    ),
    "pause in the past": lambda on: on.schedules.pause("owned", until="2020-01-01T00:00:00Z"),
    "control characters in a reason": lambda on: on.schedules.pause("owned", reason="a\nb"),
    "key with other arguments": lambda on: on.schedules.trigger("owned", key="used", args={"n": 2}),
    "reversed backfill": lambda on: on.schedules.backfill("owned", first="2024-03-04", last="2024-03-01"),
    "backfill too large": lambda on: on.schedules.backfill("owned", **SPELL, limit=1),
    "cursor of another list": lambda on: on.schedules.runs("owned", cursor="x"),
    "audit of a missing schedule": lambda on: on.ledger.audit(schedule="nobody"),
    "reversed audit": lambda on: on.ledger.audit(since="2027-01-02T00:00:00Z", until="2027-01-01T00:00:00Z"),
    "window without a key": lambda on: on.jobs.enqueue(NewJob(type="report", debounce="30s")),
    "two windows": lambda on: on.jobs.enqueue(NewJob(type="report", key="w", unique="30s", throttle="1m")),
    "window with an idempotency key": lambda on: on.jobs.enqueue(
        NewJob(type="report", key="w", unique="1h"), idempotency_key="w"
    ),
    "window of another kind": lambda on: on.jobs.enqueue_many(
        NewJobs([NewJob(type="report", key="w", unique="1h"), NewJob(type="report", key="w", throttle="1h")])
    ),
}


async def test_merged_jobs_are_the_same_locally_and_remotely(places: Places) -> None:
    async with sides(places) as (local, remote):
        seen = []
        for side in (local, remote):
            on = side.ways[ROOT].jobs
            calls = [NewJob("report", {"n": n, "password": "secret"}, key="merged", debounce="1h") for n in range(4)]
            first, second = [await on.enqueue(call) for call in calls[:2]]
            assert (first.merged_into, second.merged_into, second.args["n"]) == (UNSET, first.id, 1)
            many = await on.enqueue_many(NewJobs(calls[2:]))
            assert (many.created, many.existing, many.merged) == (0, 0, 2)
            assert [item.merged_into for item in many.items] == [first.id, first.id]
            history = (await on.history(first.id)).items
            assert [entry.event for entry in history] == ["enqueued", "merged", "merged", "merged"]
            assert history[1].data == {"number": 1, "args": {"n": 1, "password": "***"}}
            seen.append([normal(msgspec.to_builtins(found)) for found in (first, second, many)])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("name", REFUSALS)
async def test_errors_are_the_same_locally_and_remotely(name: str, places: Places) -> None:
    async with sides(places) as (local, remote):
        seen = []
        for side in (local, remote):
            await many("owned", owner="file:b.toml")(side.ways[ROOT])
            body = [NamedSchedule(name="owned", task="report", every="1h", overlap="allow")]
            on = side.ways[ROOT].schedules
            await on.apply(SchedulesBody(schedules=body), owner="file:b.toml")
            await on.trigger("owned", key="used", args={"n": 1})
            before = await side.newest()
            refused = await side.outcome(ROOT, REFUSALS[name])
            assert isinstance(refused, tuple), refused
            seen.append((refused, await side.entries(before)))
        assert seen[0] == seen[1]
        assert seen[0][1] == []


async def test_apply_is_all_or_nothing(places: Places) -> None:
    """A dry run writes nothing; one invalid definition prevents all writes."""
    async with sides(places) as (local, remote):
        for side in (local, remote):
            on = side.ways[ROOT].schedules
            planned = await many("planned-1", "planned-2", dry_run=True)(side.ways[ROOT])
            assert ([change.outcome for change in planned.items], planned.dry_run) == (["created"] * 2, True)
            assert (await on.list(q="planned", tenant="globex")).items == []
            await side.outcome(ROOT, REFUSALS["one invalid of many"])
            assert "fine" not in {schedule.name for schedule in (await on.list(q="fine")).items}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_results_are_the_same_locally_and_remotely(name: str, places: Places) -> None:
    scenario, verb = SCENARIOS[name], VERBS[name]
    async with sides(places) as (local, remote):
        seen = []
        for side in (local, remote):
            before = await side.newest()
            for call in scenario.before:
                await call(side.ways[ROOT])
            refused = [await side.outcome(who, scenario.call) for who in (VIEWER, ACME)] if verb.method != "GET" else []
            done = [await side.outcome(ROOT, scenario.call) for _ in range(2)]
            raced: list[Any] = []
            if scenario.raced:
                raced = await asyncio.gather(*(side.outcome(ROOT, scenario.call) for _ in range(2)))
            seen.append(
                {
                    "refused": refused,
                    "done": done,
                    "raced": sorted(raced, key=repr),
                    "entries": await side.entries(before),
                }
            )
        assert seen[0] == seen[1]
