"""The command line through an API: the same commands, output and exit codes as on the store."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.core.instants import DAY, HOUR, Instant
from headway.core.lifecycle import Raised, Succeeded
from tests.integration.test_cli_jobs import REFUSED, JobFactory
from tests.support.api import api_process
from tests.support.command_line import Cli, Result
from tests.support.waiting import DEADLINE_S

# Fields that change between two reads, and the author.
PASSING = {"latency_ms", "oldest_age_seconds", "ready_seconds", "eta_seconds", "beat_at", "loops", "lease_seconds"}
PASSING |= {"undecided_seconds", "oldest_undecided_seconds", "oldest_pending_seconds", "url", "paused_by", "author"}
SPAN = re.compile(r"\bnow\b|(?<![\w.])\d+(\.\d+)?(ms|s|m|h|d)\b( \d+(s|m|h))?( ago)?")
STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?")
SPELL = ("--from", "2024-03-01", "--to", "2024-03-04")  # Independent of the time of day.
TRIES = 20
JOB_ID = re.compile(r"job_[0-9a-z]{26}")


def normal(value: Any, name: str = "") -> Any:
    """Remove the fields of a response that change as time passes."""
    if isinstance(value, dict):
        passing = PASSING | {"at"} if "last_hour" in value else PASSING
        return {key: normal(inner, key) for key, inner in value.items() if key not in passing}
    if isinstance(value, list):
        return [normal(inner) for inner in value]
    return SPAN.sub("…", value) if isinstance(value, str) and name in ("why", "blocked_by_why") else value


def without_identity(value: Any) -> Any:
    """Also remove what differs between two objects that were created one after the other."""
    text = STAMP.sub("T", JOB_ID.sub("job", json.dumps(normal(value))))
    return json.loads(re.sub(r'"auto_[0-9a-z]{26}"', "null", text))


@dataclass
class Both:
    """A store and an API on it."""

    cli: Cli
    store: str
    server: str

    def on_store(self, *args: str) -> Result:
        return self.cli(*args, "--store", self.store)

    def through_api(self, *args: str) -> Result:
        return self.cli(*args, "--server", self.server)

    def check_same_output(self, view: Callable[[Result], Any], *args: str) -> None:
        """Compare both outputs. If they differ, the data may have changed in between; then compare again."""
        stored = view(self.on_store(*args))
        for _ in range(TRIES):
            if (received := view(self.through_api(*args))) == stored:
                return
            again = view(self.on_store(*args))
            if again == stored:
                break
            stored = again
        assert received == stored


@dataclass(frozen=True)
class Place:
    store: str
    server: str
    ids: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store with jobs in many states, and an API on it."""
    folder: Path = tmp_path_factory.mktemp("remote")
    store = f"sqlite:///{folder / 'headway.db'}"
    with api_process(store) as api:
        yield Place(store, api.url, {})


@pytest.fixture
def both(cli: Cli, place: Place, monkeypatch: pytest.MonkeyPatch) -> Both:
    for name in ("HEADWAY_SERVER", "HEADWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    both = Both(cli, place.store, place.server)
    if not place.ids:
        place.ids.update(_populate(both, JobFactory(place.store)))
    return both


def _populate(both: Both, factory: JobFactory) -> dict[str, str]:
    def new(task: str, *options: str) -> str:
        return str(both.on_store("enqueue", task, *options, "--json").json["id"])

    factory.live(tasks=["report", "other", "many", "steered", "t"])
    _beat(both.store, time.time_ns() // 1_000 + DAY)  # It stays alive during these tests.
    ids = {"dead": new("report", "--tag", "a", "-a", "password=secret")}
    factory.end(factory.claim(), Raised(REFUSED))
    ids["done"] = new("report")
    claimed = factory.claim()
    factory.report(claimed, lines=((None, "log", "first"), (None, "stderr", "second \x1b[31m")))
    factory.end(claimed, Succeeded('{"download_url":"https://…","n":1}'))
    ids["running"] = new("report", "--max-attempts", "3", "--job-timeout", "5m")
    detail = {
        "step": "b",
        "done": 3,
        "total": 4,
        "rate": 2.0,
        "eta": 600,
        "steps": [["a", "done", 1.5], ["b", "running", None]],
    }
    factory.report(
        factory.claim(), progress=75, detail=json.dumps(detail), metadata='{"input": "v.mp4", "api_key": "x"}'
    )
    ids["waiting"] = new("other", "--queue", "media", "--priority", "5", "--key", "k-1")
    ids["later"] = new("report", "--delay", "30m", "--expires", "2h")
    for _ in range(3):
        new("many", "--queue", "bulk")
    both.on_store("queues", "pause", "media", "--reason", "disk full")
    for name, rule in {"daily": ("--cron", "0 6 * * *", "--tz", "Europe/Berlin"), "poll": ("--after", "10m")}.items():
        both.on_store("schedules", "put", name, "--task", "report", *rule, "-a", "token=secret", "--jitter", "2m")
    both.on_store("schedules", "pause", "poll", "--reason", "why not")
    both.on_store("schedules", "backfill", "daily", "--from", "3d", "--to", "1h", "--yes")
    return ids


def _beat(store: str, at: Instant) -> None:
    with sqlite3.connect(store.removeprefix("sqlite:///"), timeout=DEADLINE_S) as connection:
        connection.execute("update headway_nodes set beat_at = ? where name = 'web-1'", [at])
    connection.close()


LOOKS = [
    "jobs list",
    "jobs list --limit 2",
    "jobs list --status failed",
    "jobs list --task many --queue bulk --limit 1",
    "jobs list --tenant nobody",
    "jobs list --schedule daily",
    *(f"jobs show {{{name}}}" for name in ("dead", "done", "running", "waiting", "later")),
    *(f"jobs why {{{name}}}" for name in ("dead", "done", "running", "waiting", "later")),
    "jobs events {dead}",
    "jobs events {running}",
    "jobs logs {done}",
    "jobs logs {done} -n 1",
    "jobs logs {dead}",
    "jobs watch {done}",
    "jobs watch {dead}",
    "dead list",
    "dead list --task nobody",
    "dead list --by-error",
    "dead list --error ConnectionError",
    "dead drop --all --dry-run",
    "queues list",
    "workers list",
    "schedules list",
    "schedules list --limit 1",
    "schedules list --owner nobody",
    "schedules show daily",
    "schedules show poll",
    "schedules preview daily -n 3 --from 2027-03-27",
    "schedules history daily",
    "schedules history daily -n 2",
    "schedules backfill daily --from 9d --to 8d --dry-run",
    "schedules put daily --task report --cron '0_7_*_*_*' --dry-run",
    "schedules put new --task report --every 1h --dry-run",
    "audit",
    "audit --schedule daily",
    "status",
    "tokens list --all",
]


def _words(command: str, place: Place) -> list[str]:
    return [word.strip("'").replace("_", " ") if "'" in word else word for word in command.format(**place.ids).split()]


@pytest.mark.parametrize("command", LOOKS)
def test_json_output_is_the_same(both: Both, place: Place, command: str) -> None:
    def view(said: Result) -> Any:
        return said.code, said.err, said.out.count("\n"), [normal(json.loads(line)) for line in said.out.splitlines()]

    both.check_same_output(view, *_words(command, place), "--json")


@pytest.mark.parametrize("command", [command for command in LOOKS if command != "status"] + ["top --once"])
def test_text_output_is_the_same(both: Both, place: Place, command: str) -> None:
    both.check_same_output(_read, *_words(command, place))


def _read(said: Result) -> Any:
    return said.code, SPAN.sub("…", said.err), [*map(_line, said.out.splitlines())]


def _line(text: str) -> list[str]:
    text = re.sub(r"\d\d:\d\d:\d\dZ", "T", SPAN.sub("…", text.replace(" by anonymous", " by cli")))
    return re.sub(r"(eta seconds +|seconds +(?=\d+\.))[\d.]+$", r"\1…", text).split()


def test_status_output_is_the_same(both: Both) -> None:
    both.check_same_output(lambda said: [line.split()[0] for line in said.out.splitlines()], "status")
    assert both.through_api("status").out.startswith("store      sqlite")


MISTAKES = [
    ("jobs show job_01m7h07rq30wjd03gjnmt8r3pz", 3),
    ("jobs show nothing", 3),
    ("jobs retry {running}", 2),
    ("jobs cancel {done}", 2),
    ("dead retry {running}", 2),
    ("dead drop {done} --yes", 3),
    ("schedules show nobody", 3),
    ("schedules history nobody", 3),
    ("schedules pause nobody", 3),
    ("schedules pause poll --until 1h", 2),
    ("schedules remove nobody --yes", 3),
    ("schedules put x --task t --cron '61_*_*_*_*'", 2),
    ("schedules backfill daily --from 1d --to 2d", 2),
    ("audit --schedule nobody", 3),
    ("workers drain nobody", 3),
    ("enqueue t --delay soon", 2),
    ("enqueue t --priority 100000", 2),
    ("enqueue t --debounce 30s", 2),
    ("enqueue t --key w --debounce 30s --delay 1m", 2),
    ("enqueue t --key w --max-wait 30s", 2),
    ("enqueue other --key k-1 -a n=2 --queue media", 2),
    ("tokens revoke tok_nobody", 3),
]


@pytest.mark.parametrize(("command", "code"), MISTAKES)
def test_errors_are_the_same(both: Both, place: Place, command: str, code: int) -> None:
    words = _words(command, place)
    stored, remote = both.on_store(*words, "--json"), both.through_api(*words, "--json")
    assert (stored.code, remote.code) == (code, code), remote.err
    assert remote.error["code"] == stored.error["code"]
    assert STAMP.sub("T", remote.error["message"]) == STAMP.sub("T", stored.error["message"])


def test_enqueued_jobs_are_the_same(both: Both) -> None:
    options = "--delay 30m --queue media --priority 5 --tag x --tag y --max-attempts 3 --expires 2h --job-timeout 1m"
    words = ["enqueue", "report", "-a", "n=1", "--args", '{"deep": [1, {"x": null}]}', *options.split(), "--json"]
    stored, remote = both.on_store(*words), both.through_api(*words)
    assert without_identity(remote.json) == without_identity(stored.json)
    assert remote.json["key"].startswith("auto_")
    assert remote.json["id"] != stored.json["id"]


def test_merged_jobs_are_the_same(both: Both) -> None:
    for key, run in (("stored", both.on_store), ("remote", both.through_api)):
        words = ["enqueue", "report", "--key", key, "--throttle", "1h"]
        first = run(*words, "-a", "n=1", "--json").json
        again = run(*words, "-a", "n=2", "--json").json
        assert ("merged_into" in first, again["merged_into"], again["args"]) == (False, first["id"], {"n": 1})
        assert run(*words, "-a", "n=3").out.startswith(f"merged into {first['id']} PENDING: ")


def test_actions_on_one_job_are_the_same(both: Both) -> None:
    results = []
    for run in (both.on_store, both.through_api):
        job_id = run("enqueue", "steered", "--json").json["id"]
        said = run("jobs", "cancel", job_id[4:], "--reason", "not needed", "--json").json
        again = run("jobs", "retry", job_id, "--json").json
        text = run("jobs", "cancel", again["id"]).out
        results.append(
            [
                without_identity(said),
                without_identity(again),
                JOB_ID.sub("job", SPAN.sub("…", text.replace("anonymous", "cli"))),
            ]
        )
        assert again["rerun_of"] == job_id
        assert run("jobs", "show", job_id, "--json").json["reruns"] == [again["id"]]
    assert json.loads(json.dumps(results[1]).replace("anonymous", "cli")) == results[0]


def test_actions_on_many_jobs_are_the_same(both: Both, place: Place) -> None:
    factory, results = JobFactory(place.store), []
    for herd, run in (("herd-1", both.on_store), ("herd-2", both.through_api)):
        ids = [run("enqueue", "report", "-a", "n=1", "--queue", herd, "--json").json["id"] for _ in range(4)]
        for _ in range(3):
            factory.end(factory.claim(herd), Raised(REFUSED))
        chosen = ("--queue", herd, "--created-after", "1h", "--text", ids[0][:8])
        steps = [
            run("jobs", "list", *chosen, "--status", "failed", "--json"),
            run("jobs", "retry", *chosen),
            run("jobs", "retry", *chosen, "--dry-run"),
            run("jobs", "retry", *chosen, "--dry-run", "--json"),
            run("jobs", "retry", ids[0], ids[3], "--json"),
            run("jobs", "retry", *chosen, "--reason", "fixed", "--yes"),
            run("jobs", "retry", *chosen, "--yes"),
            run("jobs", "retry", ids[0], "--args", '{"n": 2}', "--json"),
            run("jobs", "list", "--rerun-of", ids[0][4:], "--json"),
            run("jobs", "cancel", *chosen, "--dry-run"),
            run("jobs", "cancel", ids[3], ids[0]),
            run("jobs", "cancel", *chosen, "--yes", "--json"),
            run("jobs", "retry"),
            run("jobs", "cancel", ids[0], "--queue", herd),
            run("jobs", "retry", "--status", "gone"),
            run("jobs", "retry", *ids[:2], "--watch"),
            run("jobs", "cancel", *chosen, "--wait"),
        ]
        texts = [
            f"{step.code} {step.out} {step.err}".replace("anonymous", "cli").replace(herd, "herd") for step in steps
        ]
        texts = [re.sub(r'"why": "[^"]*"', "", re.sub(r'"auto_[0-9a-z]{26}"', "null", text)) for text in texts]
        results.append([STAMP.sub("T", JOB_ID.sub("job", SPAN.sub("…", text))) for text in texts])
    for stored, remote in zip(*results, strict=True):
        assert remote == stored
    codes = [text[0] for text in results[0]]
    assert codes == [*"020010000010", *"22222"]
    assert "This runs 3 jobs again. Without a terminal, confirm with --yes" in results[0][1]
    assert results[0][2] == "0 3 jobs would be run again\n "
    assert results[0][5] == "0 2 jobs enqueued\n "
    assert results[0][6] == "0 no job matches that could be run again\n "


def test_tenant_prefixes_of_schedules_are_the_same(both: Both) -> None:
    rule = ("--task", "report", "--cron", "0 6 * * *")
    results = []
    for name, run in (("by-store", both.on_store), ("over-api", both.through_api)):
        steps = [
            run("schedules", "put", name, *rule, "--json"),
            run("schedules", "put", f"acme/{name}", *rule, "--json"),
            run("schedules", "put", name, "--tenant", "globex", *rule),
            run("schedules", "list", "--tenant", "acme"),
            run("schedules", "show", f"acme/{name}", "--json"),
            run("schedules", "pause", f"acme/{name}"),
            run("schedules", "resume", f"acme/{name}", "--json"),
            run("schedules", "trigger", f"acme/{name}", "--json"),
            run("schedules", "trigger", f"acme/{name}"),
            run("schedules", "history", f"acme/{name}", "--json"),
            run("jobs", "list", "--schedule", f"acme/{name}", "--json"),
            run("schedules", "backfill", f"acme/{name}", *SPELL, "--yes", "--json"),
            run("audit", "--schedule", f"globex/{name}", "--since", "1h"),
            run("schedules", "remove", f"globex/{name}", "--yes"),
            run("schedules", "show", f"globex/{name}"),
            run("schedules", "remove", f"acme/{name}", "--yes"),
            run("schedules", "remove", name, "--yes"),
        ]
        texts = [
            STAMP.sub("T", JOB_ID.sub("job", f"{step.code} {step.out} {step.err}".replace(name, "NAME")))
            for step in steps
        ]
        texts = [SPAN.sub("…", text).replace("anonymous", "cli") for text in texts]
        results.append([re.sub(r'"auto_[0-9a-z]{26}"|"revision": \d+', "null", text) for text in texts])
    assert results[0] == results[1]
    codes = [text.split()[0] for text in results[0]]
    assert codes == ["0"] * 14 + ["3", "0", "0"]


def test_actions_on_schedules_and_queues_are_the_same(both: Both, tmp_path: Path) -> None:
    file = tmp_path / "schedules.toml"
    file.write_text('[schedules.NAME]\ntask = "report"\nevery = "1h"\nargs = { day = 1 }\n')
    results = []
    for name, run in (("from-store", both.on_store), ("from-api", both.through_api)):
        (tmp_path / "mine.toml").write_text(file.read_text().replace("NAME", f"{name}-2"))
        steps = [
            run("schedules", "put", name, "--task", "report", "--cron", "0 6 * * *", "--overlap", "queue", "--json"),
            run("schedules", "put", name, "--task", "report", "--cron", "0 6 * * *", "--overlap", "queue"),
            run("schedules", "put", name, "--task", "report", "--cron", "0 7 * * *", "--json"),
            run("schedules", "pause", name, "--reason", "x", "--json"),
            run("schedules", "pause", name),
            run("schedules", "resume", name, "--json"),
            run("schedules", "resume", name),
            run("schedules", "trigger", name, "-a", "n=2", "--json"),
            run("schedules", "backfill", name, *SPELL, "--yes", "--json"),
            run("schedules", "backfill", name, *SPELL, "--yes"),
            run("schedules", "apply", "-f", str(tmp_path / "mine.toml"), "--json"),
            run("schedules", "apply", "-f", str(tmp_path / "mine.toml"), "--prune", "--dry-run"),
            run("schedules", "put", f"{name}-2", "--task", "x", "--every", "1h"),
            run("schedules", "put", f"{name}-2", "--task", "x", "--every", "1h", "--force", "--json"),
            run("schedules", "remove", name, "--yes", "--json"),
            run("queues", "pause", name, "--reason", "x", "--json"),
            run("queues", "pause", name),
            run("queues", "resume", name, "--json"),
            run("queues", "resume", name),
        ]
        texts = [f"{step.code} {step.out} {step.err}".replace(name, "NAME") for step in steps]
        texts = [STAMP.sub("T", JOB_ID.sub("job", SPAN.sub("…", text))) for text in texts]
        texts = [text.replace("anonymous", "cli").replace("take_over=1", "--force") for text in texts]
        results.append([re.sub(r'"auto_[0-9a-z]{26}"', "null", text) for text in texts])
    for stored, remote in zip(*results, strict=True):
        if stored[2] == "{":
            assert normal(json.loads(remote[2:])) == normal(json.loads(stored[2:]))
        else:
            assert remote == stored


def test_large_schedule_files_are_applied_the_same(both: Both, tmp_path: Path) -> None:
    """More schedules than one request takes, and more than are shown with their instants."""
    results = []
    for name, run in (("many-store", both.on_store), ("many-server", both.through_api)):
        file = tmp_path / f"{name}.toml"
        table = '[schedules.{0}-{1:03}]\ntask = "report"\nevery = "1h"\nargs = {{ n = {1} }}\n'
        file.write_text("".join(table.format(name, number) for number in range(520)))
        apply = ("schedules", "apply", "-f", str(file))
        steps = [run(*apply, "--dry-run"), run(*apply, "--json"), run(*apply)]
        file.write_text(file.read_text().replace("1h", "2h", 3).partition(f"[schedules.{name}-519]")[0])
        steps += [run(*apply), run(*apply, "--prune", "--dry-run"), run(*apply, "--prune", "--yes")]
        steps += [run("schedules", "list", "--owner", f"file:{name}.toml", "--json")]
        file.write_text(file.read_text() + "[schedules.wrong]\ntask = 'x'\nat = '2020-01-01'\n")
        steps += [run(*apply), run("schedules", "apply", "-f", str(file), "--owner", "other", "--json")]
        texts = [f"{step.code} {step.out} {step.err}".replace(name, "NAME") for step in steps]
        results.append([STAMP.sub("T", SPAN.sub("…", text)) for text in texts])
    for stored, remote in zip(*results, strict=True):
        assert remote == stored
    assert [text[0] for text in results[0]] == [*"000000024"]
    assert results[0][3].count(" changed: ") == 3
    assert "NAME-519 would be removed" in results[0][4]
    assert results[0][6].count('"name"') == 519


def test_actions_on_dead_letters_are_the_same(both: Both, place: Place) -> None:
    factory, results = JobFactory(place.store), []
    for run in (both.on_store, both.through_api):
        ids = []
        for _ in range(4):
            ids.append(run("enqueue", "report", "--queue", "dying", "--json").json["id"])
            factory.end(factory.claim("dying"), Raised(REFUSED))
        steps = [
            run("dead", "retry", ids[0], "--json"),
            run("dead", "retry", ids[0], "--json"),
            run("dead", "drop", ids[1][4:], "--yes", "--json"),
            run("dead", "list", "--queue", "dying", "--error", "OSError", "--json"),
            run("dead", "drop", "--queue", "dying", "--error", "ConnectionError: refused", "--dry-run", "--json"),
            run("dead", "drop", "--queue", "dying", "--error", "OSError", "--dry-run"),
            run("dead", "retry", "--queue", "dying", "--yes", "--json"),
            run("dead", "list", "--queue", "dying", "--json"),
            run("dead", "list", "--queue", "dying", "--by-error", "--json"),
        ]
        results.append([JOB_ID.sub("job", f"{step.code} {step.out} {step.err}") for step in steps])
        both.on_store("queues", "pause", "dying")
        for rerun in both.on_store("jobs", "list", "--queue", "dying", "--status", "PENDING", "--json").json:
            both.on_store("jobs", "cancel", rerun["id"])
        both.on_store("queues", "resume", "dying")
    assert results[1] == results[0]


def test_actions_on_webhooks_are_the_same(both: Both) -> None:
    results = []
    for run in (both.on_store, both.through_api):
        made_hook = run("webhooks", "add", "https://example.org/hook", "--event", "job.failed", "--note", "x", "--json")
        webhook = made_hook.json["id"]
        assert len(made_hook.json["secret"]) > 20
        steps = [
            made_hook,
            run("webhooks", "list", "--json"),
            run("webhooks", "list"),
            run("webhooks", "disable", webhook, "--json"),
            run("webhooks", "enable", webhook),
            run("webhooks", "rotate", webhook, "--keep", "1h", "--json"),
            run("webhooks", "rotate", webhook, "--keep", "8d"),
            run("webhooks", "test", webhook, "--url", "https://example.org/other"),
            run("webhooks", "list", "--tenant", "nobody"),
            run("webhooks", "deliveries", "--status", "nonsense"),
            run("webhooks", "deliveries", "--webhook", webhook, "--json"),
            run("webhooks", "deliveries"),
            run("webhooks", "replay", "msg_nobody"),
            run("webhooks", "remove", webhook),
            run("webhooks", "remove", webhook),
            run("webhooks", "add", "ftp://example.org"),
        ]
        texts = [STAMP.sub("T", f"{step.code} {step.out} {step.err}".replace(webhook, "wh")) for step in steps]
        texts = [re.sub(r"whsec_[^\"\s]+", "secret", text.replace("anonymous", "cli")) for text in texts]
        results.append([" ".join(text.split()) for text in texts])
    assert results[1] == results[0]


def test_test_message_is_sent_by_the_server(both: Both) -> None:
    webhook = both.through_api("webhooks", "add", "http://127.0.0.1:1/hook", "--json").json["id"]
    tried = both.through_api("webhooks", "test", webhook, "--json")
    assert (tried.code, tried.json["status"], tried.json["endpoint"]) == (1, "FAILED", webhook)
    received = both.through_api("webhooks", "deliveries", "--webhook", webhook, "--json").json
    assert received == both.on_store("webhooks", "deliveries", "--webhook", webhook, "--json").json
    assert len(received) == 1
    both.through_api("webhooks", "remove", webhook)


def test_watch_follows_a_job_to_its_end(both: Both, place: Place) -> None:
    factory = JobFactory(place.store)
    job_id = both.through_api("enqueue", "report", "--queue", "watched", "--json").json["id"]
    claimed = factory.claim("watched")

    def work() -> None:
        factory.report(claimed, progress=40, detail='{"step": "half"}')
        factory.end(claimed, Succeeded('"fine"'))

    with factory.in_background(work):
        seen = both.through_api("jobs", "watch", job_id, "--json", "--timeout", "5m")
    assert seen.code == 0
    states = [json.loads(line) for line in seen.out.splitlines()]
    assert (states[-1]["status"], states[-1]["result"]) == ("COMPLETED", "fine")
    failed = both.through_api("enqueue", "report", "--queue", "watched", "--json").json["id"]
    claimed = factory.claim("watched")
    with factory.in_background(lambda: factory.end(claimed, Raised(REFUSED))):
        assert both.through_api("jobs", "watch", failed, "--timeout", "5m").code == 1
    late = both.through_api("enqueue", "report", "--queue", "watched", "--wait", "--timeout", "1s")
    assert late.code == 6


# --- tokens, addresses, errors


@dataclass(frozen=True)
class Guarded:
    """A store with tokens, and an API on it."""

    store: str
    server: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    store = f"sqlite:///{tmp_path_factory.mktemp('guarded') / 'headway.db'}"
    factory, tokens = JobFactory(store), {}
    for role, tenant in (("viewer", "acme"), ("admin", "*")):
        given = {"name": role, "role": role, "tenant": tenant, "actor": "cli", "origin": ""}
        _, tokens[role] = factory.do(lambda store: store.tokens.create(**given, lifetime=None))  # noqa: B023
    with api_process(store) as api:
        yield Guarded(store, api.url, tokens)


def test_missing_rights_are_reported(cli: Cli, guarded: Guarded) -> None:
    there = ("--server", guarded.server)
    denied = cli("jobs", "list", *there, "--json")
    assert (denied.code, denied.error["code"]) == (4, "denied")
    token = ("--token", guarded.tokens["viewer"])
    assert cli("jobs", "list", *there, *token).code == 0
    assert cli("status", *there, *token).out.startswith("jobs ")
    assert set(cli("status", *there, *token, "--json").json) >= {"jobs", "queues", "degraded"}
    for command in ("enqueue report", "top --once", "workers list", "queues pause x", "tokens list"):
        refused = cli(*command.split(), *there, *token)
        assert (refused.code, refused.out) == (4, ""), command
        assert guarded.tokens["viewer"] not in refused.err
    wrong = cli("jobs", "list", *there, "--token", "hw_wrong-but-secret")
    assert wrong.code == 4
    assert "hw_wrong-but-secret" not in wrong.err


def test_tokens_and_audit_log_through_the_server(cli: Cli, guarded: Guarded) -> None:
    there, here = ("--server", guarded.server, "--token", guarded.tokens["admin"]), ("--store", guarded.store)
    made_there = cli("tokens", "create", "ci", "--role", "viewer", "--expires", "1d", *there, "--json").json
    made_here = cli("tokens", "create", "ci", "--role", "viewer", "--expires", "1d", *here, "--json").json
    assert made_there.keys() == made_here.keys()
    assert cli("jobs", "list", "--server", guarded.server, "--token", made_there["token"]).code == 0
    assert cli("tokens", "list", *there, "--json").json == cli("tokens", "list", *here, "--json").json
    assert cli("tokens", "revoke", made_there["id"], *there).out == f"{made_there['id']} (ci) is revoked\n"
    assert cli("tokens", "create", "x", "--role", "king", *there).code == 2
    entries = cli("audit-log", *there, "--json").json
    assert entries == cli("audit-log", *here, "--json").json == cli("trail", *here, "--json").json
    assert [entry["action"] for entry in entries][:2] == ["tokens.revoke", "tokens.create"]
    assert cli("audit-log", "--limit", "1", *there, "--json").json == entries[:1]
    assert cli("audit-log", "--actor", "nobody", *there).out == "no entries yet\n"
    for option in (("--tenant", "*"), ("--tenant", "acme"), ("--since", "1h"), ("--action", "tokens.revoke")):
        assert cli("audit-log", *option, *there, "--json").json == cli("audit-log", *option, *here, "--json").json
    for chosen in (["--tenant", "acme"], ["--all"]):
        outputs = [cli("tokens", "list", *chosen, *place).out for place in (there, here)]
        assert [*map(_line, outputs[0].splitlines())] == [*map(_line, outputs[1].splitlines())]


def test_server_is_read_from_the_environment(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SERVER", both.server)
    there = both.cli("jobs", "list", "--json", "--server", both.server).json
    assert normal(both.cli("jobs", "list", "--json").json) == normal(there)
    assert both.cli("doctor", "--store", both.store).out.startswith("✓")
    monkeypatch.setenv("HEADWAY_SERVER", "http://127.0.0.1:1")
    assert both.cli("jobs", "list", "--store", both.store).code == 0  # The option takes precedence.
    assert both.cli("jobs", "list", "--server", both.server).code == 0


@pytest.mark.parametrize("command", ["doctor", "migrate", "scheduler", "worker", "serve", "api", "dev", "demo"])
def test_commands_that_need_the_store_reject_a_server(both: Both, command: str) -> None:
    refused = both.through_api(command)
    assert (refused.code, refused.out) == (2, "")
    assert "works on the store itself" in refused.err


def test_server_and_store_together_are_rejected(both: Both) -> None:
    refused = both.cli("jobs", "list", "--server", both.server, "--store", both.store)
    assert (refused.code, "not both" in refused.err) == (2, True)
    assert both.cli("jobs", "list", "--token", "hw_x", "--store", both.store).code == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nowhere.invalid"])
def test_unreachable_server_is_reported(both: Both, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.remote.RETRY_FOR", "500ms")
    gone = both.cli("jobs", "list", "--server", url, "--token", "hw_secret")
    assert gone.code == 5
    assert url in gone.err
    assert "hw_secret" not in gone.err


def test_name_of_a_dead_worker_is_still_shown(both: Both, place: Place) -> None:
    now = time.time_ns() // 1_000
    _beat(place.store, now - 2 * HOUR)
    for command in ("jobs show {done}", "jobs events {dead}"):
        words = _words(command, place)
        received = both.through_api(*words).out
        assert "web-1" in received
        assert "node_web-1" not in received
        both.check_same_output(_read, *words)
    _beat(place.store, now + DAY)
