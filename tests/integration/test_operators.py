"""Actions of operators: the same effect, error and audit entry, whichever interface they use.

The interfaces are the command line on the store, the command line through an API, HTTP itself, and Python.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headway.cli.dead
from headway import Headway
from headway.cli.root import run
from headway.core.clock import Clock
from headway.core.errors import AlreadyFinal
from headway.core.instants import DAY
from headway.core.jobs import NewJob
from headway.core.lifecycle import Raised
from headway.core.schedules import ScheduleSpec
from headway.core.settings import Settings
from headway.core.triggers import Every
from tests.conformance.arrange import run_one
from tests.support.command_line import Cli
from tests.support.house import SECRET, House

IDS = Clock()
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def enqueue(home: House, queue: str, **options: Any) -> str:
    job = NewJob(id=IDS.new_id("job"), task="report", queue=queue, **options)
    home.on_store(lambda store: store.queue.enqueue([job]))
    return job.id


def fail(home: House, queue: str) -> str:
    """Create a dead letter."""
    job_id = enqueue(home, queue)
    home.on_store(lambda store: run_one(store, Raised('{"type": "IOError"}', retryable=False), queue))
    return job_id


def ways(home: House) -> dict[str, tuple[str, ...]]:
    """Return the options for the command line on the store, and through the API."""
    return {"store": ("--store", home.url), "server": ("--server", home.api.url, "--token", SECRET)}


@pytest.mark.parametrize("way", ["store", "server"])
def test_concurrent_retries_run_a_dead_letter_once(
    home: House, cli: Cli, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    letters = [fail(home, f"raced-{way}") for _ in range(3)]
    both_have_listed = threading.Barrier(2)
    monkeypatch.setattr(headway.cli.dead, "confirm", lambda *_, **__: both_have_listed.wait(90))
    command = ["dead", "retry", "--queue", f"raced-{way}", *ways(home)[way]]
    with ThreadPoolExecutor(2) as operators:
        codes = list(operators.map(lambda _: run(command), range(2)))
    jobs = home.on_store(lambda store: store.jobs.page(queue=f"raced-{way}"))
    assert sorted(job.rerun_of for job in jobs if job.rerun_of is not None) == letters
    assert set(codes) <= {0, 1}
    assert 1 in codes  # The second operator gets an error code.


def test_concurrent_drops_of_dead_letters_both_succeed(home: House, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [fail(home, "dropped") for _ in range(3)]

    def meanwhile(*_: object, **__: object) -> None:
        home.root.post(f"/api/dead/{letters[1]}/drop").raise_for_status()

    monkeypatch.setattr(headway.cli.dead, "confirm", meanwhile)
    result = cli("dead", "drop", "--queue", "dropped", "--json", *ways(home)["server"])
    assert (result.json["count"], result.json["dropped"]) == (2, [letters[0], letters[2]])


Do = Callable[[str], object]


def entries(home: House, targets: Sequence[str], known: int) -> list[tuple[str, str, Any]]:
    """Return the new entries of the audit log: action, target and detail, without what differs from call to call."""
    found = home.on_store(lambda store: store.audit_log.page(limit=200))
    new = [action for action in reversed(found) if action.seq > known]

    def plain(value: object) -> str:
        text = json.dumps(value)
        for target in targets:
            text = text.replace(target, "TARGET")
        return TIMES.sub("T", re.sub(r"(job|tok|wh)_[0-9a-z]{26}", r"\1", text))

    return [(action.action, plain(action.target), plain(action.detail)) for action in new]


def newest(home: House) -> int:
    found = home.on_store(lambda store: store.audit_log.page(limit=1))
    return found[0].seq if found else 0


def by_cli(cli: Cli, options: tuple[str, ...], *args: str) -> Do:
    def do(target: str) -> int:
        return cli(*(target if arg == "TARGET" else arg for arg in args), *options).code

    return do


def by_http(home: House, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Do:
    def do(target: str) -> int:
        filled = json.loads(json.dumps(body).replace("TARGET", target))
        return home.root.request(method, path.replace("TARGET", target), json=filled).status_code

    return do


SPEC = ScheduleSpec(task="report", trigger=Every("1h"))
SPELL = ("--from", "2024-03-01T00:00:00Z", "--to", "2024-03-01T03:00:00Z")
VERBS: dict[str, tuple[tuple[str, ...], str, dict[str, Any] | None]] = {
    "job.cancel": (("jobs", "cancel", "TARGET", "--reason", "old"), "/api/jobs/TARGET/cancel", {"reason": "old"}),
    "job.retry": (("jobs", "retry", "TARGET"), "/api/jobs/TARGET/retry", None),
    "dead.retry": (("dead", "retry", "TARGET"), "/api/dead/TARGET/retry", None),
    "dead.drop": (("dead", "drop", "--queue", "TARGET", "--yes"), "/api/dead/drop", {"queue": "TARGET"}),
    "queue.pause": (("queues", "pause", "TARGET", "--reason", "full"), "/api/queues/TARGET/pause", {"reason": "full"}),
    "queue.resume": (("queues", "resume", "TARGET"), "/api/queues/TARGET/resume", None),
    "schedule.put": (
        ("schedules", "put", "TARGET", "--task", "report", "--every", "1h", "-a", "token=secret", "--jitter", "2m"),
        "/api/schedules/TARGET",
        {"task": "report", "every": "1h", "args": {"token": "secret"}, "jitter": "2m"},
    ),
    "schedule.pause": (
        ("schedules", "pause", "TARGET", "--reason", "full"),
        "/api/schedules/TARGET/pause",
        {"reason": "full"},
    ),
    "schedule.resume": (("schedules", "resume", "TARGET"), "/api/schedules/TARGET/resume", None),
    "schedule.trigger": (("schedules", "trigger", "TARGET"), "/api/schedules/TARGET/trigger", None),
    "schedule.backfill": (
        ("schedules", "backfill", "TARGET", *SPELL, "--yes"),
        "/api/schedules/TARGET/backfill",
        {"from": SPELL[1], "to": SPELL[3]},
    ),
    "schedule.remove": (("schedules", "remove", "TARGET", "--yes"), "/api/schedules/TARGET", None),
    "tokens.create": (
        ("tokens", "create", "TARGET", "--role", "viewer", "--tenant", "acme"),
        "/api/tokens",
        {"name": "TARGET", "role": "viewer", "tenant": "acme"},
    ),
    "tokens.revoke": (("tokens", "revoke", "TARGET"), "/api/tokens/TARGET", None),
    "webhooks.change": (("webhooks", "disable", "TARGET"), "/api/webhooks/TARGET", {"enabled": False}),
    "webhooks.rotate": (
        ("webhooks", "rotate", "TARGET", "--keep", "1h"),
        "/api/webhooks/TARGET/rotate",
        {"keep": "1h"},
    ),
    "webhooks.test": (("webhooks", "test", "TARGET"), "/api/webhooks/TARGET/test", None),
    "webhooks.remove": (("webhooks", "remove", "TARGET"), "/api/webhooks/TARGET", None),
    "deliveries.replay": (("webhooks", "replay", "TARGET"), "/api/deliveries/TARGET/replay", None),
}
METHODS = {
    "schedule.put": "PUT",
    **dict.fromkeys(("schedule.remove", "tokens.revoke", "webhooks.remove"), "DELETE"),
    "webhooks.change": "PUT",
}
HOOK = "http://127.0.0.1:1/hook"  # Nothing listens there.


def _token(home: House) -> str:
    given: dict[str, Any] = {
        "name": "ci",
        "tenant": "acme",
        "role": "viewer",
        "lifetime": None,
        "actor": "test",
        "origin": "test",
    }
    token, _ = home.on_store(lambda store: store.tokens.create(**given))
    return token.id


def prepare(home: House, verb: str, way: str) -> str:
    """Create an object for the verb; return its name."""
    kind = verb.partition(".")[0]
    name = f"{verb}-{way}".replace(".", "-")
    if kind in ("webhooks", "deliveries"):
        webhook = home.on_store(lambda store: store.webhooks.add(tenant="*", url=HOOK, author="test"))
        if kind == "webhooks":
            return webhook.id
        return home.on_store(lambda store: store.webhooks.add_test(webhook, HOOK, DAY)).id
    if kind == "queue" or verb == "dead.drop":
        if verb == "queue.resume":
            home.on_store(lambda store: store.queue.pause(name, author="test"))
        if verb == "dead.drop":
            fail(home, name)
        return name
    if kind == "tokens":
        return name if verb == "tokens.create" else _token(home)
    if verb == "schedule.put":
        return name
    if kind == "schedule":
        home.on_store(lambda store: store.schedules.put(name, SPEC, author="test"))
        if verb == "schedule.resume":
            home.on_store(lambda store: store.schedules.pause(name, author="test"))
        return name
    return enqueue(home, name) if verb == "job.cancel" else fail(home, name)


@pytest.mark.parametrize("verb", VERBS)
def test_audit_entry_is_the_same_for_all_interfaces(home: House, cli: Cli, verb: str) -> None:
    words, path, body = VERBS[verb]
    does = {name: by_cli(cli, options, *words) for name, options in ways(home).items()}
    does["http"] = by_http(home, path, body, METHODS.get(verb, "POST"))
    found_entries = {}
    for way, do in does.items():
        target, known = prepare(home, verb, way), newest(home)
        assert do(target) in ((1, 200) if verb == "webhooks.test" else (0, 200, 201, 202, 204))
        found_entries[way] = entries(home, [target], known)
    assert [entry[0] for entry in found_entries["http"]] == [verb]
    assert found_entries["store"] == found_entries["server"] == found_entries["http"]


def test_errors_are_the_same_and_leave_no_entry(home: House, cli: Cli) -> None:
    dead, waiting = fail(home, "refused"), enqueue(home, "refused")
    home.on_store(lambda store: store.queue.drop_dead([dead], author="test"))
    known = newest(home)
    for words, path, code, status in (
        (("jobs", "cancel", dead), f"/api/jobs/{dead}/cancel", 2, 409),
        (("jobs", "retry", waiting), f"/api/jobs/{waiting}/retry", 2, 409),
        (("dead", "retry", dead), f"/api/dead/{dead}/retry", 3, 404),
        (("dead", "retry", waiting), f"/api/dead/{waiting}/retry", 2, 409),
        (("dead", "drop", dead, "--yes"), f"/api/dead/{dead}/drop", 3, 404),
        (("schedules", "pause", "nobody"), "/api/schedules/nobody/pause", 3, 404),
        (("webhooks", "rotate", "wh_nobody"), "/api/webhooks/wh_nobody/rotate", 3, 404),
        (("webhooks", "test", "wh_nobody"), "/api/webhooks/wh_nobody/test", 3, 404),
        (("webhooks", "replay", "msg_nobody"), "/api/deliveries/msg_nobody/replay", 3, 404),
    ):
        answers = [cli(*words, *options, "--json") for options in ways(home).values()]
        codes = {answer.code for answer in answers}
        assert len(codes) == 1, [answer.err for answer in answers]
        assert home.root.post(path).status_code == status
        assert codes == {code} or status == 409, (words, codes)
    assert entries(home, [], known) == []


async def test_actions_of_a_program_are_in_the_audit_log(home: House) -> None:
    app = Headway(settings=Settings(store=home.url), name="shop")
    waiting, dead = enqueue(home, "python"), fail(home, "python-dead")
    known = newest(home)
    async with app:
        assert (await app.cancel(waiting, "x" * 5_000)).job.reason.startswith("cancelled by app:shop: xxx")
        with pytest.raises(AlreadyFinal):
            await app.cancel(waiting)
        again = await app.retry(dead)
        for every in ("1h", "1h", "2h"):  # The second one changes nothing.
            await app.put_schedule("from-python", task="report", trigger=Every(every))
        assert await app.remove_schedule("from-python") is True
        assert await app.remove_schedule("from-python") is False
    found = home.on_store(lambda store: store.audit_log.page(actor="app:shop"))
    found_entries = [(action.action, action.target) for action in reversed(found) if action.seq > known]
    assert found_entries == [
        ("job.cancel", waiting),
        ("job.retry", dead),
        ("schedule.put", "from-python"),
        ("schedule.put", "from-python"),
        ("schedule.remove", "from-python"),
    ]
    retried = next(action for action in found if action.action == "job.retry")
    assert retried.detail == {"new": again.id}
    assert "@" in retried.origin


def test_sync_calls_are_in_the_audit_log(home: House) -> None:
    app = Headway(settings=Settings(store=home.url), name="blocking-shop")
    waiting = enqueue(home, "python")
    app.job_sync(waiting).cancel_sync("no more")
    found = home.on_store(lambda store: store.audit_log.page(actor="app:blocking-shop"))
    assert [(action.action, action.detail["reason"]) for action in found] == [("job.cancel", "no more")]
