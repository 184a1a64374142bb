"""Run every command and every GET route in each supported configuration: store × engine × transport × Redis.

Commands and routes are discovered, so new ones are included. A command that needs arguments gets them from `READS` or
`WRITES`.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from headway.cli.root import _root
from headway.core.clock import Clock
from headway.core.groups import NewGroup
from headway.core.instants import HOUR
from headway.core.jobs import NewJob, Report
from headway.core.lifecycle import AttemptOutcome, Raised, Succeeded, settle
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.server.api import ROUTES, Api
from headway.store import Store, open_driver
from headway.store.migrations import migrate
from headway.wiring.roles import api_of, scheduler_node
from tests.engines.conftest import EngineServer
from tests.support.command_line import Cli, be_patient
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.transports import TransportServer
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.postgres

STORES = ("sqlite", "postgresql")
ENGINES = ("store", "redis", "etcd", "zookeeper", "consul")
TRANSPORTS = ("store", "redis", "amqp")
REDIS = ("live", "no-live")
CONFIGURATIONS = [*itertools.product(STORES, ENGINES, TRANSPORTS, REDIS)]
NUMBERS = itertools.count(1)

SERVERS = {"demo", "dev", "serve", "scheduler", "worker", "api"}  # They run until stopped.
READS: dict[str, list[str]] = {
    "schedules show": ["daily"],
    "schedules preview": ["0 6 * * *"],
    "schedules history": ["daily"],
    **{f"jobs {verb}": ["RUNNING"] for verb in ("show", "why", "logs", "events")},
    "jobs watch": ["ENDED"],
    "limits show": ["queue:media"],
    "tenants show": ["acme"],
    "queues scale": ["media"],
    "batches show": ["night"],
    "batches watch": ["night"],
}
# In the order of execution.
WRITES: dict[str, list[str]] = {
    "migrate": [],
    "enqueue": ["report", "-a", "n=1", "--key", "once"],
    "jobs retry": ["ENDED"],
    "jobs cancel": ["WAITING"],
    "dead retry": ["DEAD"],
    "dead drop": ["--all", "--yes"],
    "queues pause": ["media"],
    "queues resume": ["media"],
    "queues limit": ["media", "4"],
    "limits put": ["account-*", "--concurrency", "1", "--rate", "10/s"],
    "limits remove": ["account-*"],
    "tenants set": ["acme", "--weight", "3"],
    "batches close": ["day"],
    "batches cancel": ["week"],
    "batches retry": ["night"],
    "schedules put": ["hourly", "--task", "report", "--every", "1h"],
    "schedules apply": ["--file", "schedules.json"],
    "schedules pause": ["daily"],
    "schedules resume": ["daily"],
    "schedules trigger": ["daily"],
    "schedules backfill": ["daily", "--from", "2024-03-01", "--to", "2024-03-02", "--yes"],
    "schedules remove": ["hourly", "--yes"],
    "webhooks test": ["WEBHOOK"],
    "webhooks replay": ["DELIVERY"],
    "webhooks rotate": ["WEBHOOK"],
    "webhooks disable": ["WEBHOOK"],
    "webhooks enable": ["WEBHOOK"],
    "webhooks remove": ["WEBHOOK"],
    "webhooks add": ["https://example.org/again"],
    "workers drain": ["web-1"],
    "purge": ["--tenant", "acme", "--yes"],
    "lock": ["nightly", "--", "true"],
    "tokens create": ["ci"],
    "tokens revoke": ["TOKEN"],
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all commands."""
    group = group or _root()
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


class Running:
    """A node with its API, on an event loop in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._api: Api | None = None
        self.ids: dict[str, str] = {}
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)

    async def _run(self) -> None:
        clock = Clock(node="node_matrix")
        store = await Store.open(self._settings.store, clock, synchronous="normal")
        node = scheduler_node(store, self._settings, clock)
        self._api = api_of(store, self._settings, clock, {}, node)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(node.run())
                self.ids = await _populate(store)
                self._started.set()
                await self._stop.wait()
                await self._api.close()
                node.stop()
        finally:
            self._started.set()
            await store.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """Request a path from the API; of a stream, read the beginning.

        On a slow machine a node may answer 503 at first, because it is not ready yet or seems stuck.
        """
        answers = [(503, b"")]

        def is_ready() -> bool:
            assert self._api is not None
            asked = asyncio.run_coroutine_threadsafe(_get(self._api, path), self._loop)
            answers.append(asked.result(DEADLINE_S))
            return answers[-1][0] != 503

        wait_until(is_ready, f"{path} to answer")
        return answers[-1]

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        assert self.ids, "the node did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._loop.close()


async def _populate(store: Store) -> dict[str, str]:
    """Create jobs in several states, a worker, and a webhook with a delivery; return their ids."""
    webhook = await store.webhooks.add(tenant="*", url="http://127.0.0.1:9/hook", author="test")
    state = {"worker": {"tasks": ["report"], "queues": ["*"], "slots": 4, "running": 1, "children": 1}}
    await store.nodes.beat(Node(id="node_web-1", name="web-1", roles=("worker",), version="1", state=state))
    for name in ("night", "day", "week"):
        group, _ = await store.groups.open(NewGroup(id=f"batch_{name}", name=name, tenant="default"))
        if name == "night":
            await store.groups.close(group.id)
    ids = {}
    outcomes: dict[str, AttemptOutcome] = {
        "DEAD": Raised('{"type": "IOError"}', retryable=False),
        "ENDED": Succeeded("{}"),
    }
    for name, outcome in outcomes.items():
        ids[name] = await _enqueue(store, "worked")
        [claimed] = await store.work.claim("worked", node="node_web-1", lease=HOUR, limit=1)
        await store.work.settle([settle(claimed, outcome, 0.5)])
    ids["RUNNING"] = await _enqueue(store, "worked")
    [claimed] = await store.work.claim("worked", node="node_web-1", lease=HOUR, limit=1)
    lines = ((None, "log", "first"),)
    said = Report(job_id=claimed.job_id, attempt=1, progress=40, detail='{"step": "a"}', metadata="{}", lines=lines)
    await store.work.report([said])
    ids["WAITING"] = await _enqueue(store, "media")
    ids["WEBHOOK"] = webhook.id
    ids["DELIVERY"] = (await store.webhooks.deliveries(limit=1))[0].id
    return ids


async def _enqueue(store: Store, queue: str) -> str:
    job = NewJob(id=Clock().new_id("job"), task="report", queue=queue)
    return (await store.queue.enqueue([job]))[0].id


async def _get(api: Api, path: str) -> tuple[int, bytes]:
    """Run the ASGI app for a client that disconnects after the first part of the response."""
    plain, _, query = path.partition("?")
    status, body, heard, asked = 0, b"", asyncio.Event(), [{"type": "http.request", "body": b""}]

    async def receive() -> Any:
        if asked:
            return asked.pop()
        await heard.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")
        if message["type"] == "http.response.body":
            heard.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8480")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8480),
    }
    await api(scope, receive, send)
    return status, body


@contextmanager
def database(kind: str, folder: Path, server: PostgresServer) -> Iterator[str]:
    """Create an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/headway.db"
        return
    url = server.create_database()

    async def prepare() -> None:
        driver = open_driver(url)
        await migrate(driver)
        await driver.close()

    asyncio.run(prepare())
    yield url
    server.drop(url)


@pytest.mark.parametrize(("store", "engine", "transport", "live"), CONFIGURATIONS)
def test_every_command_and_every_route_works(
    store: str,
    engine: str,
    transport: str,
    live: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: PostgresServer,
    server_of: Callable[[str], EngineServer],
    transport_server: Callable[[str], TransportServer],
    shared_redis: RedisServer,
) -> None:
    prefix = f"matrix-{next(NUMBERS)}/"
    monkeypatch.chdir(tmp_path)
    be_patient(monkeypatch)
    chosen = {"HEADWAY_SQLITE_SYNCHRONOUS": "normal"}
    if engine != "store":
        chosen["HEADWAY_COORDINATION"] = server_of(engine).url(prefix=prefix)
    if transport != "store":
        kind = "redis" if transport == "redis" else "classic"
        chosen["HEADWAY_TRANSPORT"] = transport_server(kind).url(prefix=prefix)
    if live == "live":
        shared_redis.mend()
        chosen["HEADWAY_REDIS"] = shared_redis.url(prefix=prefix)
    with database(store, tmp_path, postgres_server) as url:
        for name in ("HEADWAY_SERVER", "HEADWAY_TOKEN", "HEADWAY_APP"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"HEADWAY_STORE": url, **chosen}.items():
            monkeypatch.setenv(name, value)
        with Running(Settings.load()) as running:
            cli = Cli(capsys, tmp_path)
            assert cli("schedules", "put", "daily", "--task", "report", "--cron", "0 6 * * *").code == 0
            assert cli("limits", "put", "queue:media", "--concurrency", "5").code == 0
            assert cli("tenants", "set", "acme", "--weight", "2").code == 0
            _get_every_route(running)
            _run_every_command(cli, running.ids, as_json=live == "live")


def _get_every_route(running: Running) -> None:
    by_place = {
        "/api/jobs/": running.ids["RUNNING"],
        "/api/webhooks/": running.ids["WEBHOOK"],
        "/api/deliveries/": running.ids["DELIVERY"],
        "/api/schedules/": "daily",
        "/api/limits/": "queue:media",
        "/api/tenants/": "acme",
        "/api/batches/": "night",
    }
    for route in ROUTES:
        if route.method != "GET":
            continue
        named = next((name for place, name in by_place.items() if route.path.startswith(place)), "x")
        parts = [named if part.startswith("{") else part for part in route.path.split("/")]
        wanted = "&".join(f"{param.name}={param.example}" for param in route.query if param.is_required)
        path = "/".join(parts) + (f"?{wanted}" if wanted else "")
        status, body = running.get(path)
        assert 200 <= status < 400, (path, status, body[:500])


def _run_every_command(cli: Cli, ids: dict[str, str], *, as_json: bool) -> None:
    """Run each command once: commands that read print JSON with Redis, and text without."""
    found = [command for command in commands() if command not in SERVERS]
    assert WRITES.keys() | READS.keys() <= {*found}
    for command in [command for command in found if command not in WRITES]:
        given = [ids.get(arg, arg) for arg in READS.get(command, [])]
        _run(cli, command, given, ["--json"] if as_json else [])
    (cli.folder / "schedules.json").write_text(
        '{"schedules": {"applied": {"task": "report", "trigger": {"kind": "every", "interval": "1h"}}}}'
    )
    for command, given in WRITES.items():
        if command == "tokens revoke":
            ids["TOKEN"] = cli("tokens", "list", "--json").json[0]["id"]
        _run(cli, command, [ids.get(arg, arg) for arg in given], [])


def _run(cli: Cli, command: str, given: list[str], more: list[str]) -> None:
    line = [*command.split(), *more, *given]
    result = cli(*line)
    # Exit code 1 reports a finding: a fault, a gap, a message that could not be sent.
    assert result.code in (0, 1), f"headway {' '.join(line)}: exit code {result.code}\n{result.out}\n{result.err}"
