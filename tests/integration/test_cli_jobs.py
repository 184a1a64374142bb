"""The commands for jobs, on a SQLite file; the tests do the work of a worker by hand."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from headway.core.clock import Clock
from headway.core.instants import HOUR
from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import AttemptOutcome, Cancelled, Parked, Raised, Succeeded, TimedOut, settle
from headway.core.nodes import Node
from headway.store import Store
from tests.support.claiming import claim
from tests.support.command_line import Cli
from tests.support.waiting import DEADLINE_S, wait_until

T = TypeVar("T")

REFUSED = '{"type": "ConnectionError", "message": "refused", "traceback": "Traceback:\\n  boom\\nConnectionError"}'
STATE = {"tasks": ["report"], "queues": ["*"], "slots": 4, "running": 1, "children": 2, "draining": False}


NEVER_DUE = ("--every", "1d", "--start", "2090-01-01")  # At any time of day.


class JobFactory:
    """Do the work of a worker on a store, step by step."""

    def __init__(self, url: str) -> None:
        self._url = url

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Open the store for one action."""

        async def run() -> T:
            store = await Store.open(self._url, Clock(node="hand"))
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def live(self, name: str = "web-1", **state: Any) -> None:
        """Record one heartbeat of a worker."""
        node = Node(id=f"node_{name}", name=name, roles=("worker",), version="1", state={"worker": STATE | state})
        self.do(lambda store: store.nodes.beat(node))

    def claim(self, queue: str = "default", lease: int = HOUR) -> Claimed:
        """Claim the next job."""
        [claimed] = self.do(lambda store: claim(store, queue, node="node_web-1", lease=lease, limit=1))
        return claimed

    def report(self, claimed: Claimed, **more: Any) -> None:
        """Report progress."""
        said = Report(job_id=claimed.job_id, attempt=claimed.attempt, **more)
        self.do(lambda store: store.work.report([said]))

    def end(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """Settle an attempt."""
        self.do(lambda store: store.work.settle([settle(claimed, outcome, 0.5)]))

    def fail(self, cli: Cli, task: str = "report", *options: str, error: str = "ConnectionError: refused") -> str:
        """Create a dead letter."""
        job_id = new(cli, task, *options)
        kind, _, message = error.partition(": ")
        self.end(self.claim(), Raised(REFUSED.replace("ConnectionError", kind).replace("refused", message)))
        return job_id

    @contextmanager
    def in_background(self, *actions: Callable[[], object]) -> Iterator[None]:
        """Run actions in another thread while a command watches."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(lambda: [action() for action in actions])
            yield
            done.result(DEADLINE_S)


@pytest.fixture
def factory(cli: Cli) -> JobFactory:
    return JobFactory(f"sqlite:///{cli.folder / 'headway.db'}")


def new(cli: Cli, task: str = "report", *options: str) -> str:
    return str(cli("enqueue", task, *options, "--json").json["id"])


# --- show, why, events, logs


def test_show_has_progress_steps_metadata_attempts_and_links(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli, "report", "--max-attempts", "2", "-a", "day=1", "--job-timeout", "5m", "--expires", "1h")
    factory.live()
    factory.end(factory.claim(), Raised(REFUSED, retry_in=0))
    factory.do(lambda store: store.housekeeping.promote(10))
    detail = {
        "step": "b",
        "done": 3,
        "total": 4,
        "rate": 2.0,
        "eta": 3600,
        "steps": [["a", "done", 1.5], ["b", "running", None]],
    }
    factory.report(factory.claim(), progress=75, detail=json.dumps(detail), metadata='{"input": "v.mp4"}')
    shape = cli("jobs", "show", job_id, "--json").json
    assert (shape["status"], shape["progress"], shape["attempts"], shape["failures"]) == ("RUNNING", 75, 2, 1)
    assert shape["metadata"] == {"input": "v.mp4", "current_step": "b", "steps_completed": 1, "steps_total": 2}
    assert shape["detail"]["steps"][0] == {"name": "a", "state": "done", "seconds": 1.5}
    assert (shape["detail"]["done"], shape["detail"]["total"]) == (3, 4)
    assert 3_000 <= shape["eta_seconds"] <= 3_600  # Minus the time since the report.
    assert (shape["timeout"], shape["expires_at"] is not None) == ("5m", True)
    assert shape["why"].startswith("running on web-1 for ")
    [first] = shape["history"]
    assert (first["attempt"], first["outcome"], first["error"]["message"]) == (1, "failed", "refused")
    assert (shape["parent"], shape["rerun_of"], shape["reruns"]) == (None, None, [])
    text = cli("jobs", "show", job_id).out
    assert "progress    75%, about " in text
    assert "  ✓  a  1.5s\n  ▸  b\n" in text
    assert "failed  web-1  raised, failure 1 of 2, retrying: ConnectionError: refused\n" in text
    assert "(1 failed, 2 allowed)" in text


def test_show_of_a_failure_has_traceback_and_reruns(cli: Cli, factory: JobFactory) -> None:
    job_id = factory.fail(cli)
    text = cli("jobs", "show", job_id).out
    assert text.endswith("error\n  ConnectionError: refused\n  Traceback:\n    boom\n  ConnectionError\n")
    rerun = cli("jobs", "retry", job_id, "--json").json
    assert (rerun["rerun_of"], rerun["status"], rerun["attempts"]) == (job_id, "PENDING", 0)
    assert cli("jobs", "show", job_id, "--json").json["reruns"] == [rerun["id"]]
    assert f"rerun_of    {job_id}" in cli("jobs", "show", rerun["id"]).out


GARBAGE = ("{", "[1]", "5", '"\\ud800"', "[" * 5_000, "\x1b[2J\u202e", '{"a": ' * 900 + "1" + "}" * 900)


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: ascii(text[:10]))
def test_invalid_data_in_a_job_breaks_no_command(cli: Cli, text: str) -> None:
    job_id = new(cli)
    columns = ("args", "metadata", "detail", "result", "error", "tags", "options", "reason", "parked", "blocked_by")
    for status in ("PENDING", "RUNNING", "BLOCKED", "FAILED"):
        sets = ", ".join(f"{column} = ?" for column in columns)
        cli.sql(
            f"update headway_jobs set status = ?, attempt = 1, node = 'n', started_at = created_at, {sets}",
            *(status, *[text] * len(columns)),
        )
        for command in ("show", "why", "events", "logs"):
            for option in ((), ("--json",)):
                result = cli("jobs", command, job_id, *option)
                assert result.code == 0, result.err
                assert all(line.isprintable() for line in (result.out + result.err).split("\n"))
        for args in (("jobs", "list"), ("dead", "list"), ("top",), ("status",)):
            assert cli(*args).code == cli(*args, "--json").code == 0


def test_why_is_a_sentence_with_evidence(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli)
    answer = cli("jobs", "why", job_id, "--json").json
    assert set(answer) == {"status", "why", "evidence"}
    assert (answer["status"], answer["why"], answer["evidence"]["workers"]) == ("PENDING", "no worker is alive", 0)
    factory.live(tasks=["mail"])
    assert cli("jobs", "why", job_id, "--json").json["why"] == "no live worker knows the task 'report'; known: mail"
    factory.live(queues=["mail"])
    assert "do not take from queue 'default', only from mail" in cli("jobs", "why", job_id).out
    before = new(cli, "report", "--priority", "5")
    factory.live(running=4)
    assert cli("jobs", "why", job_id, "--json").json["why"] == "all 4 slots of 1 worker are busy; 1 job ahead of it"
    assert cli("jobs", "why", before, "--json").json["why"] == "all 4 slots of 1 worker are busy; it is next"
    cli("queues", "pause", "default", "--reason", "release")
    paused = cli("jobs", "why", job_id, "--json").json
    assert paused["why"].startswith("queue 'default' has been paused for ")
    assert paused["why"].endswith(" by cli: release")
    text = cli("jobs", "why", job_id).out
    assert text.startswith(f"{job_id} report is PENDING (")
    assert "\ncure " in text
    assert cli("jobs", "why", "job_zzz").code == 3


def test_why_explains_predecessors_and_parked_jobs(cli: Cli, factory: JobFactory) -> None:
    cli("schedules", "put", "daily", "--task", "report", "--overlap", "queue", *NEVER_DUE)
    first = cli("schedules", "trigger", "daily", "--json").json["id"]
    second = cli("schedules", "trigger", "daily", "--json").json["id"]
    factory.live()
    claimed = factory.claim()
    blocked = cli("jobs", "why", second, "--json").json
    assert blocked["why"].startswith(
        f"waits for {first} to end, as schedule daily runs one at a time; that is RUNNING: "
    )
    assert blocked["evidence"]["blocked_by_why"].startswith("running on web-1 for ")
    factory.end(claimed, Parked("no worker here knows the task 'report'"))
    parked = cli("jobs", "why", first, "--json").json
    assert (parked["status"], parked["evidence"]["parked"]) == ("BLOCKED", "unknown task")
    assert "start a worker whose app has the task" in parked["why"]
    assert cli("jobs", "retry", first).out == f"{first} is tried again\n"
    assert cli("jobs", "show", first, "--json").json["id"] == first


def test_events_are_complete(cli: Cli, factory: JobFactory) -> None:
    job_id = factory.fail(cli)
    new_id = cli("jobs", "retry", job_id, "--json").json["id"]
    events = cli("jobs", "events", job_id, "--json").json
    assert [event["event"] for event in events] == ["enqueued", "claimed", "settled", "reviewed", "retried"]
    assert events[1]["data"] == {"attempt": 1, "node": "node_web-1"}
    assert events[-1]["data"]["job_id"] == new_id
    assert all(event["at"].endswith("Z") for event in events)
    assert "outcome failed  reason raised, failure 1 of 1" in cli("jobs", "events", job_id).out


def test_logs_are_in_order(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli, "report", "--max-attempts", "2")
    assert cli("jobs", "logs", job_id).err == "nothing was logged yet\n"
    claimed = factory.claim()
    factory.report(claimed, lines=((None, "log", "one"), (None, "stderr", "two \x1b[2J")))
    factory.end(claimed, Raised(REFUSED, retry_in=0))
    factory.do(lambda store: store.housekeeping.promote(10))
    factory.report(factory.claim(), lines=((None, "log", "three"),))
    lines = cli("jobs", "logs", job_id, "--json").json
    assert [(line["attempt"], line["stream"], line["line"]) for line in lines] == [
        (1, "log", "one"),
        (1, "stderr", "two \x1b[2J"),
        (2, "log", "three"),
    ]
    text = cli("jobs", "logs", job_id).out.splitlines()
    assert [line.partition("  ")[2] or line for line in text] == ["one", "stderr: two \\x1b[2J", "— attempt 2", "three"]
    assert [line["line"] for line in cli("jobs", "logs", job_id, "-n", "1", "--json").json] == ["three"]
    assert cli("jobs", "logs", job_id, "-n", "0").out == ""


def test_logs_follow_until_the_end(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli)
    claimed = factory.claim()
    factory.report(claimed, lines=((None, "log", "one"),))
    late = lambda: factory.report(claimed, lines=((None, "log", "two"),))  # noqa: E731
    with factory.in_background(late, lambda: factory.end(claimed, Succeeded("1"))):
        followed = cli("jobs", "logs", job_id, "--follow", "--json")
    assert [json.loads(line)["line"] for line in followed.out.splitlines()] == ["one", "two"]


# --- watch, wait


def test_watch_prints_changes_and_ends_with_the_job(cli: Cli, factory: JobFactory) -> None:
    factory.live()
    job_id = new(cli)
    claimed = factory.claim()
    with factory.in_background(
        lambda: cli.await_words("RUNNING"),
        lambda: factory.report(claimed, progress=50, detail='{"step": "Writing", "done": 1, "total": 2}'),
        lambda: factory.end(claimed, Succeeded('"done"')),
    ):
        watched = cli("jobs", "watch", job_id)
    assert watched.code == 0
    lines = watched.out.splitlines()
    assert "RUNNING" in lines[0]
    assert " on web-1" in lines[0]
    assert lines[-1].endswith('result "done"')
    assert f"{job_id}  COMPLETED  in " in lines[-1]
    again = cli("jobs", "watch", job_id)
    assert (again.code, len(again.out.splitlines())) == (0, 1)


def test_watch_as_json_is_one_object_per_change(cli: Cli, factory: JobFactory) -> None:
    job_id = factory.fail(cli)
    watched = cli("jobs", "watch", job_id, "--json")
    assert watched.code == 1
    [last] = [json.loads(line) for line in watched.out.splitlines()]
    assert (last["id"], last["status"]) == (job_id, "FAILED")


@pytest.mark.parametrize(
    ("outcome", "code", "status"),
    [
        (Succeeded("1"), 0, "COMPLETED"),
        (Raised(REFUSED), 1, "FAILED"),
        (TimedOut(REFUSED), 1, "TIMED_OUT"),
        (Cancelled(), 1, "CANCELLED"),
    ],
)
def test_wait_is_silent_and_exits_with_the_outcome(
    cli: Cli, factory: JobFactory, outcome: AttemptOutcome, code: int, status: str
) -> None:
    cli("migrate")

    def work() -> None:
        wait_until(lambda: factory.do(lambda store: store.work.ready_queues()), "the job to exist")
        factory.end(factory.claim(), outcome)

    with factory.in_background(work):
        waited = cli("enqueue", "report", "--wait", "--json")
    assert (waited.code, waited.json["status"]) == (code, status)


def test_wait_times_out(cli: Cli) -> None:
    late = cli("enqueue", "report", "--wait", "--timeout", "300ms", "--json")
    assert late.code == 6
    job = json.loads(late.out)
    assert job["status"] == "PENDING"
    error = json.loads(late.err)["error"]
    assert (error["code"], job["id"] in error["message"]) == ("timed_out", True)
    for timeout in ("300ms", "3s", "30s"):  # On a slow machine the shortest may end before the first read.
        watched = cli("jobs", "watch", job["id"], "--timeout", timeout)
        assert watched.code == 6
        if watched.out:
            break
    assert "PENDING  no worker is alive" in watched.out
    assert cli("jobs", "show", job["id"], "--json").json["status"] == "PENDING"


@pytest.mark.parametrize(
    "options",
    [
        ("--watch", "--wait"),
        ("--timeout", "5s"),
        ("--wait", "--timeout", "soon"),
        ("--expires", "0s"),
        ("--expires", "never"),
        ("--job-timeout", "x"),
    ],
    ids=" ".join,
)
def test_invalid_options_are_rejected(cli: Cli, options: tuple[str, ...]) -> None:
    result = cli("enqueue", "report", *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_cancel_waits_until_the_job_has_stopped(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli)
    claimed = factory.claim()

    def stop() -> None:
        wait_until(lambda: factory.do(lambda store: store.work.asked_to_stop("node_web-1")), "the request to stop")
        factory.end(claimed, Cancelled("stopped"))

    with factory.in_background(stop):
        cancelled = cli("jobs", "cancel", job_id, "--wait", "--reason", "enough", "--json")
    assert (cancelled.code, cancelled.json["status"]) == (0, "CANCELLED")
    other = new(cli)
    factory.claim()
    assert cli("jobs", "cancel", other, "--wait", "--timeout", "200ms").code == 6
    asked = cli("jobs", "cancel", other, "--json").json
    assert (asked["status"], asked["why"].startswith("asked to stop ")) == ("RUNNING", True)
    assert cli("jobs", "cancel", new(cli), "--wait", "--json").json["status"] == "CANCELLED"


def test_retry_rejects_unfinished_jobs(cli: Cli) -> None:
    refused = cli("jobs", "retry", new(cli), "--json")
    assert (refused.code, refused.error["code"]) == (2, "not_final")


# --- module:task


JOBS = """
from headway import Headway
app = Headway("sqlite:///shop.db")

@app.task
def hello(n: int = 1) -> None: ...

@app.task(name="video.transcode", queue="media")
def transcode(input: str) -> None: ...
"""


def test_task_can_be_named_with_its_module(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "shop.py").write_text(JOBS)
    assert cli("enqueue", "shop:hello", "--json").json["type"] == "hello"
    job = cli("enqueue", "shop:transcode", "-a", "input=x", "--json").json
    assert (job["type"], job["queue"]) == ("video.transcode", "media")
    assert cli("enqueue", "shop:video.transcode", "-a", "input=x", "--json").json["type"] == "video.transcode"
    assert cli("enqueue", "shop:nothing", "--json").error["code"] == "task_not_found"
    assert cli("enqueue", "absent:hello", "--json").error["code"] == "invalid_config"
    assert not (cli.folder / "headway.db").exists()
    monkeypatch.setenv("HEADWAY_APP", "shop:app")
    assert cli("enqueue", "shop:hello", "--json").json["type"] == "hello"
    assert cli("enqueue", "hello", "--json").json["type"] == "hello"


# --- dead letters


def test_dead_letters_are_listed_retried_and_dropped(cli: Cli, factory: JobFactory) -> None:
    assert cli("migrate").code == 0
    assert cli("dead", "list").out == "no dead letters\n"
    first = factory.fail(cli, "report", "--tenant", "acme")
    second = factory.fail(cli, "mail", "--tenant", "acme")
    third = factory.fail(cli, "report")
    listed = [job["id"] for job in cli("dead", "list", "--json").json]
    assert listed == [third, second, first]
    assert [job["id"] for job in cli("dead", "list", "--task", "mail", "--json").json] == [second]
    assert cli("dead", "list", "--schedule", "none").out == "no dead letter matches\n"
    assert "ConnectionError: refused" in cli("dead", "list").out
    page = cli("dead", "list", "-n", "1", "--json")
    assert (len(page.json), page.err) == (1, f"there are more: --before {third}\n")

    for before in (third, third[4:]):
        assert [job["id"] for job in cli("dead", "list", "--before", before, "--json").json] == [second, first]
    assert cli("dead", "list", "--before", "job_0", "--json").json == []

    done = cli("dead", "retry", third, "--json").json
    assert (done["count"], done["retried"][0]["id"]) == (1, third)
    assert cli("jobs", "show", done["retried"][0]["rerun"], "--json").json["rerun_of"] == third
    assert cli("dead", "retry", third).code == 3

    asked = cli("dead", "retry", "--tenant", "acme")
    assert (asked.code, "This runs 2 dead letters again." in asked.err, "--yes" in asked.err) == (2, True, True)
    assert cli("dead", "drop", second).code == 2
    assert cli("dead", "drop", second, "--yes").out == "1 dead letter dropped\n"
    assert cli("dead", "retry", "--all", "--yes").out == "1 job enqueued\n"
    assert cli("dead", "list", "--json").json == []
    assert cli("dead", "drop", "--all", "--yes").out == "no dead letter matches\n"
    assert cli("jobs", "show", second, "--json").json["status"] == "FAILED"


def test_dead_letters_are_selected_by_error(cli: Cli, factory: JobFactory) -> None:
    full = [factory.fail(cli, error=f"OSError: disk {number} is full") for number in range(3)]
    other = factory.fail(cli)
    assert [job["id"] for job in cli("dead", "list", "--error", "OSError", "--json").json] == full[::-1]
    groups = cli("dead", "list", "--by-error", "--json").json
    assert [(group["error"], group["count"]) for group in groups] == [
        ("OSError: disk … is full", 3),
        ("ConnectionError: refused", 1),
    ]
    told = [line.split() for line in cli("dead", "list", "--by-error").out.splitlines()]
    assert (told[1][:2], " ".join(told[1]).endswith("OSError: disk … is full")) == (["3", "report"], True)
    assert cli("dead", "list", "--by-error", "--error", "OSError").code == 2
    same = ("--task", "report", "--error", groups[0]["error"])
    for verb, words in (("drop", "be dropped"), ("retry", "run again")):
        assert cli("dead", verb, *same, "--dry-run", "--json").json == {
            "count": 3,
            "ids": full,
            "more": False,
            "dry_run": True,
        }
        # A dry run asks for no confirmation and changes nothing.
        plan = cli("dead", verb, "--all", "--dry-run").out.splitlines()
        assert plan[0] == f"4 dead letters would {words}"
        assert [line.split() for line in plan[1:]] == [
            "3 report OSError: disk … is full".split(),
            "1 report ConnectionError: refused".split(),
        ]
    assert cli("dead", "drop", *same, "--yes", "--json").json["ids"] == full
    assert [job["id"] for job in cli("dead", "list", "--json").json] == [other]
    assert cli("dead", "drop", "--error", "OSError", "--yes").out == "no dead letter matches\n"
    assert cli("dead", "drop", "--error", "", "--yes").code == 2


def test_dead_letters_need_an_explicit_selection(cli: Cli, factory: JobFactory) -> None:
    job_id = factory.fail(cli)
    for command in ("retry", "drop"):
        assert "give ids" in cli("dead", command, "--yes").err
        assert "give either ids" in cli("dead", command, job_id, "--all", "--yes").err
        assert cli("dead", command, "job_zzz", "--yes").code == 3
        assert cli("dead", command, new(cli), "--yes").code == 2
    assert len(cli("dead", "list", "--json").json) == 1


# --- workers and queues


def test_workers_are_listed_and_asked_to_drain(cli: Cli, factory: JobFactory) -> None:
    cli("migrate")
    assert cli("workers", "list").out.startswith("no worker is alive; ")
    factory.live("web-1")
    factory.live("web-2", queues=["mail"], tasks=[f"t{n}" for n in range(9)])
    shapes = cli("workers", "list", "--json").json
    assert [(shape["name"], shape["slots"], shape["draining"]) for shape in shapes] == [
        ("web-1", 4, False),
        ("web-2", 4, False),
    ]
    text = cli("workers", "list").out
    assert "web-1  alive      1/4  all     report" in text
    assert "t0, t1, t2, t3, t4 and 4 more" in text
    assert cli("workers", "drain", "web-1").out == "web-1 takes no more jobs and leaves when done\n"
    assert "web-1  draining" in cli("workers", "list").out
    assert cli("workers", "drain", "node_web-2", "--json").json["name"] == "web-2"
    assert cli("workers", "drain", "web-2", "--wait", "--timeout", "200ms").code == 6
    factory.live("web-3")

    def leave() -> None:
        wait_until(
            lambda: any(
                node.name == "web-3" and node.asked for node in factory.do(lambda store: store.nodes.alive(HOUR))
            ),
            "web-3 to be asked to drain",
        )
        factory.do(lambda store: store.nodes.leave("node_web-3"))

    with factory.in_background(leave):
        assert cli("workers", "drain", "web-3", "--wait").out == "web-3 has gone\n"
    assert cli("workers", "drain", "web-3").code == 3
    factory.do(lambda store: store.nodes.beat(Node(id="node_x", name="web-1", roles=("worker",), state={})))
    assert "several workers" in cli("workers", "drain", "web-1").err
    factory.do(lambda store: store.nodes.beat(Node(id="node_s", name="sched", roles=("scheduler",), state={})))
    assert cli("workers", "drain", "sched").code == 3


def test_queues_are_listed_paused_and_resumed(cli: Cli, factory: JobFactory) -> None:
    cli("migrate")
    assert cli("queues", "list").out == "no pending or running jobs\n"
    new(cli)
    new(cli, "report", "--queue", "mail")
    factory.claim("mail")
    paused = cli("queues", "pause", "empty", "--reason", "later").out
    assert re.fullmatch(r"empty is paused for [\d.]+m?s by cli: later\n", paused)
    assert cli("queues", "pause", "empty").out.startswith("empty is already paused for ")
    shapes = {shape["name"]: shape for shape in cli("queues", "list", "--json").json}
    assert {name: (shape["pending"], shape["running"], shape["paused"]) for name, shape in shapes.items()} == {
        "default": (1, 0, False),
        "empty": (0, 0, True),
        "mail": (0, 1, False),
    }
    assert (shapes["empty"]["paused_by"], shapes["empty"]["reason"]) == ("cli", "later")
    assert "empty          0       —        0  paused for " in cli("queues", "list").out
    assert cli("queues", "resume", "empty").out == "empty is on\n"
    assert cli("queues", "resume", "empty").out == "empty is already on\n"
    assert cli("queues", "pause", "a\x1bb").code == 2


# --- status and top


def test_status_shows_workers_dead_letters_and_failing_schedules(cli: Cli, factory: JobFactory) -> None:
    cli("schedules", "put", "daily", "--task", "report", *NEVER_DUE)
    factory.live()
    factory.live("web-2", draining=True)
    for _ in range(3):
        cli("schedules", "trigger", "daily")
        factory.end(factory.claim(), Raised(REFUSED))
    status = cli("status", "--json").json
    assert [worker["name"] for worker in status["workers"]] == ["web-1", "web-2"]
    assert status["dead"]["total"] == 3
    assert status["dead"]["tasks"][0]["error"] == "ConnectionError: refused"
    assert status["failing"] == [{"schedule": "daily", "tenant": "default", "failed_in_a_row": 3}]
    text = cli("status").out
    assert "workers    1 alive · 1 draining · 2 of 8 slots busy\n" in text
    assert "attention  3 dead letters (report: ConnectionError: refused)  →  headway dead list\n" in text
    assert "           schedule daily: its last 3 jobs failed  →  headway jobs list --schedule daily\n" in text
    assert "failing: its last 3 jobs failed" in cli("schedules", "list").out
    assert cli("schedules", "show", "daily", "--json").json["failing"] == 3


def test_top_prints_one_frame_into_a_pipe(cli: Cli, factory: JobFactory) -> None:
    cli("schedules", "put", "daily", "--task", "report", *NEVER_DUE)
    factory.fail(cli)
    factory.live()
    job_id = new(cli)
    factory.report(factory.claim(), progress=40, detail='{"step": "Writing", "eta": 60}')
    for option in ((), ("--once",)):
        text = cli("top", *option).out
        assert text.startswith("! The schedule is on time · 1 running · 0 waiting · 1 needs you")
        assert f"  {job_id}  report " in text
        assert " 40% " in text
        assert "\x1b" not in text
        assert "daily" in text
        assert text.endswith("→  headway dead list\n")
    picture = cli("top", "--json").json
    assert picture["running"][0]["id"] == job_id
    assert picture["health"].startswith("The schedule is on time")
    assert {"store", "workers", "queues", "dead", "schedules"} <= set(picture)


# --- on PostgreSQL


@pytest.mark.postgres
def test_same_commands_on_postgresql(cli: Cli, migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STORE", migrated_url)
    factory = JobFactory(migrated_url)
    factory.live()
    cli("schedules", "put", "daily", "--task", "report", "--overlap", "queue", *NEVER_DUE)
    dead = factory.fail(cli)
    cli("schedules", "trigger", "daily")
    blocked = cli("schedules", "trigger", "daily", "--json").json["id"]
    claimed = factory.claim()
    factory.report(claimed, progress=5, detail='{"step": "x"}', lines=((None, "log", "one"),))
    assert cli("jobs", "why", blocked, "--json").json["why"].startswith(f"waits for {claimed.job_id} to end")
    for job_id in (dead, blocked, claimed.job_id):
        for command in ("show", "why", "events", "logs"):
            assert cli("jobs", command, job_id).code == 0
    assert [line["line"] for line in cli("jobs", "logs", claimed.job_id, "--json").json] == ["one"]
    assert cli("queues", "pause", "default").code == 0
    for args in (("status",), ("top",), ("queues", "list"), ("workers", "list"), ("dead", "list")):
        assert (cli(*args).code, cli(*args, "--json").code) == (0, 0)
    with factory.in_background(lambda: factory.end(claimed, Succeeded("1"))):
        assert cli("jobs", "watch", claimed.job_id).code == 0
    assert cli("dead", "retry", "--all", "--yes").out == "1 job enqueued\n"
    assert cli("workers", "drain", "web-1").code == 0


def test_commands_are_in_the_audit_log(cli: Cli) -> None:
    (cli.folder / "plans.toml").write_text('[schedules.weekly]\ntask = "report"\ncron = "0 6 * * 1"\n')
    first, second = (cli("enqueue", "report", "--json").json["id"] for _ in range(2))
    for command in (
        ("jobs", "cancel", first, "--reason", "not needed"),
        ("jobs", "retry", first),
        ("queues", "pause", "default", "--reason", "maintenance"),
        ("queues", "pause", "default"),  # Already paused: nothing changes.
        ("queues", "resume", "default"),
        ("schedules", "put", "daily", "--task", "report", "--cron", "0 6 * * *"),
        ("schedules", "put", "daily", "--task", "report", "--cron", "0 6 * * *"),
        ("schedules", "apply", "--file", "plans.toml"),
        ("schedules", "pause", "daily", "--reason", "holidays"),
        ("schedules", "resume", "daily"),
        ("schedules", "trigger", "daily"),
        ("schedules", "backfill", "daily", "--from", "49h", "--to", "1s", "--yes"),
        ("schedules", "remove", "daily", "--yes"),
    ):
        assert cli(*command).code == 0, command
    cli.sql("update headway_jobs set status = 'FAILED', finished_at = 1 where id = ?", second)
    assert cli("dead", "retry", second).code == 0
    trail = cli("trail", "--json").json[::-1]
    assert [(line["action"], line["target"]) for line in trail] == [
        ("job.cancel", first),
        ("job.retry", first),
        ("queue.pause", "default"),
        ("queue.resume", "default"),
        ("schedule.put", "daily"),
        ("schedule.put", "weekly"),
        ("schedule.pause", "daily"),
        ("schedule.resume", "daily"),
        ("schedule.trigger", "daily"),
        ("schedule.backfill", "daily"),
        ("schedule.remove", "daily"),
        ("dead.retry", second),
    ]
    assert {(line["actor"], "@" in line["origin"]) for line in trail} == {("cli", True)}
    assert (trail[0]["detail"], trail[6]["detail"]["reason"]) == (
        {"before": "PENDING", "reason": "not needed"},
        "holidays",
    )
    assert trail[9]["detail"]["jobs"] >= 1


def test_purge_erases_finished_jobs_and_reports_the_rest(cli: Cli) -> None:
    first, second = (
        cli("enqueue", "report", "--tenant", "acme", "--arg", "who=Ada", "--json").json["id"] for _ in range(2)
    )
    cli("jobs", "cancel", first)
    found = {"tenant": "acme", "unfinished": 1}
    assert cli("purge", "--tenant", "acme", "--dry-run", "--json").json == {**found, "jobs": 1, "dry_run": True}
    assert cli("jobs", "show", first, "--json").json["args"] == {"who": "Ada"}
    refused = cli("purge", "--tenant", "acme")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    done = cli("purge", "--tenant", "acme", "--yes")
    assert (done.out, "1 job not ended yet" in done.err) == ("1 job of acme erased\n", True)
    assert cli("jobs", "show", first, "--json").json["args"] == {}
    assert cli("jobs", "show", second, "--json").json["args"] == {"who": "Ada"}
    [line] = cli("trail", "--action", "purge", "--json").json
    assert (line["tenant"], line["detail"]) == ("acme", {"of_one_job": False, "jobs": 1})
    assert cli("audit").code == 0


def test_purge_by_key_covers_unfinished_reruns_later(cli: Cli) -> None:
    hook = "https://example.org/ada"
    given = ("--arg", "who=Ada", "--key", "ada", "--callback-url", hook)
    first = cli("enqueue", "report", *given, "--json").json["id"]
    cli("jobs", "cancel", first)
    again = cli("jobs", "retry", first, "--json").json["id"]
    done = cli("purge", "--tenant", "default", "--key", "ada", "--yes")
    assert (done.out, "1 job not ended yet" in done.err) == ("1 job of default erased\n", True)
    assert cli("jobs", "show", first, "--json").json["args"] == {}
    assert cli("webhooks", "deliveries", "--json").json[0]["url"] != hook
    cli("jobs", "cancel", again)
    assert cli("purge", "--tenant", "default", "--key", "ada", "--yes", "--json").json["unfinished"] == 0
    shown = cli("jobs", "show", again, "--json").json
    assert (shown["args"], shown["rerun_of"]) == ({}, first)
    assert cli("purge", "--tenant", "default", "--key", "ada", "--yes", "--json").json["jobs"] == 0
    assert hook not in str(cli.sql("select * from headway_deliveries") + cli.sql("select * from headway_jobs"))
