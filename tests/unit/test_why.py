"""The explanation of every state of a job: one sentence, with machine-readable evidence."""

import json
from typing import Any

import pytest

from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Instant, parse_instant
from headway.core.job_details import (
    error_line,
    eta_at,
    eta_seconds,
    left_words,
    read_detail,
    read_error,
    read_json,
    read_metadata,
)
from headway.core.job_summary import glance
from headway.core.jobs import Job
from headway.core.lifecycle import Backoff, Status
from headway.core.nodes import Node
from headway.operations.why import Around, QueuePause, explain
from headway.operations.worker_state import workers_of

NOW: Instant = parse_instant("2027-01-01T12:00:00Z")
REFUSED = '{"type": "ConnectionError", "message": "refused\\nby peer", "traceback": "secret"}'
SCHEDULER = Node(id="node_s", name="sched", roles=("scheduler",))


def job(status: Status, **more: Any) -> Job:
    values: dict[str, Any] = {
        "id": "job_1",
        "task": "report",
        "status": status,
        "tenant": "default",
        "queue": "default",
        "priority": 0,
        "args": "{}",
        "created_at": NOW - MINUTE,
        "run_at": NOW - MINUTE,
        "ready_at": NOW - MINUTE,
        "updated_at": NOW - SECOND,
        "max_attempts": 3,
    }
    return Job(**(values | more))


def worker(name: str = "web-1", **state: Any) -> Node:
    known: dict[str, Any] = {"tasks": ["report", "mail"], "queues": ["*"], "slots": 4, "running": 1}
    return Node(id=f"node_{name}", name=name, roles=("worker",), state={"worker": known | state})


def around(*nodes: Node, **more: Any) -> Around:
    return Around(now=NOW, nodes=nodes, **more)


RUNNING = {
    "node": "node_web-1",
    "attempt": 1,
    "started_at": NOW - 3 * MINUTE,
    "lease_until": NOW + 20 * SECOND,
}
BUSY: dict[str, Any] = {
    "slots": 10,
    "running": 2,
    "places": {
        "process": {"slots": 2, "free": 0, "tasks": ["report"]},
        "loop": {"slots": 8, "free": 8, "tasks": ["mail"]},
    },
}
PAUSE = QueuePause(since=NOW - 5 * MINUTE, author="ada", reason="smtp is down")

CASES: dict[str, tuple[Job, Around, str, dict[str, Any]]] = {
    "scheduled": (
        job(Status.SCHEDULED, run_at=NOW + 30 * MINUTE),
        around(),
        "due in 30m, at 2027-01-01T12:30:00Z",
        {"run_at": "2027-01-01T12:30:00Z"},
    ),
    "scheduled, due, no worker": (
        job(Status.SCHEDULED, run_at=NOW - 12 * SECOND),
        around(),
        "was due 12s ago, at 2027-01-01T11:59:48Z; no scheduler or worker is alive to make it ready",
        {"nodes": 0},
    ),
    "scheduled, due": (
        job(Status.SCHEDULED, run_at=NOW - SECOND // 2),
        around(SCHEDULER),
        "was due 0.5s ago; it becomes ready any moment",
        {"nodes": 1},
    ),
    "scheduled, expires": (
        job(Status.SCHEDULED, run_at=NOW + MINUTE, expires_at=NOW + 2 * MINUTE),
        around(),
        "due in 1m, at 2027-01-01T12:01:00Z; expires in 2m unless it has started",
        {"expires_at": "2027-01-01T12:02:00Z"},
    ),
    "retrying": (
        job(
            Status.RETRYING,
            reason="raised, failure 1 of 3, retrying",
            error=REFUSED,
            run_at=NOW + 12 * SECOND,
            attempt=1,
            failures=1,
            backoff=Backoff(first=5 * SECOND, most=MINUTE),
        ),
        around(SCHEDULER),
        "raised, failure 1 of 3: ConnectionError: refused by peer; next attempt in 12s, at 2027-01-01T12:00:12Z",
        {"failures": 1, "backoff": "5s..1m", "error": {"type": "ConnectionError", "message": "refused\nby peer"}},
    ),
    "retrying, due": (
        job(Status.RETRYING, reason="worker lost, failure 1 of 3, retrying", run_at=NOW - SECOND, failures=1),
        around(),
        "worker lost, failure 1 of 3; the next attempt is due; no scheduler or worker is alive to make it ready",
        {"nodes": 0},
    ),
    "parked, unknown task": (
        job(Status.BLOCKED, parked="unknown task", reason="no worker here knows the task 'report'"),
        around(worker()),
        (
            "parked (unknown task): no worker here knows the task 'report'; start a worker whose app has the task; the"
            " job then continues by itself"
        ),
        {"parked": "unknown task"},
    ),
    "parked, arguments": (
        job(Status.BLOCKED, parked="arguments", reason="missing 'day'"),
        around(worker()),
        (
            "parked (arguments): missing 'day'; cancel it and enqueue it with arguments that fit; or change the task,"
            " then `headway jobs retry job_1`"
        ),
        {"parked": "arguments"},
    ),
    "parked, another cause": (
        job(Status.BLOCKED, parked="novel", reason=""),
        around(),
        "parked (novel): no worker can run it; try again with `headway jobs retry job_1`",
        {"parked": "novel"},
    ),
    "blocked": (
        job(Status.BLOCKED, blocked_by="job_0", schedule="nightly", exclusive=True),
        around(worker(), predecessor=job(Status.RUNNING, **RUNNING, id="job_0")),
        "waits for job_0 to end, as schedule nightly runs one at a time; that is RUNNING: running on web-1 for 3m",
        {"blocked_by": "job_0", "blocked_by_status": "RUNNING"},
    ),
    "blocked, its turn": (
        job(Status.BLOCKED, blocked_by="job_0"),
        around(SCHEDULER, predecessor=job(Status.FAILED, id="job_0")),
        "job_0 has ended as FAILED, so this job is next; it becomes ready any moment",
        {"blocked_by_status": "FAILED"},
    ),
    "blocked by a deleted job, not due": (
        job(Status.BLOCKED, blocked_by="job_0", run_at=NOW + MINUTE),
        around(SCHEDULER),
        "job_0 is gone; due in 1m, at 2027-01-01T12:01:00Z",
        {"blocked_by": "job_0"},
    ),
    "blocked by another live job": (
        job(Status.BLOCKED, blocked_by="job_0", schedule="nightly", exclusive=True),
        around(SCHEDULER, predecessor=job(Status.COMPLETED, id="job_0"), rivals=(job(Status.PENDING, id="job_5"),)),
        "job_0 has ended as COMPLETED, but job_5 of schedule nightly must end first",
        {"live": ["job_5"]},
    ),
    "pending, paused": (
        job(Status.PENDING, queue="mail"),
        around(pause=PAUSE),
        "queue 'mail' has been paused for 5m by ada: smtp is down",
        {"paused_by": "ada", "paused_at": "2027-01-01T11:55:00Z", "cure": "headway queues resume mail"},
    ),
    "pending, no worker": (
        job(Status.PENDING),
        around(SCHEDULER),
        "no worker is alive",
        {"workers": 0, "cure": "headway worker --app MODULE:APP", "ready_seconds": 60.0},
    ),
    "pending, unknown": (
        job(Status.PENDING, task="zzz"),
        around(worker()),
        "no live worker knows the task 'zzz'; known: mail, report",
        {"workers": 1, "workers_that_know_it": 0, "tasks": ["mail", "report"]},
    ),
    "pending, another queue": (
        job(Status.PENDING, queue="bulk"),
        around(worker(queues=["default", "mail"])),
        "workers that know the task do not take from queue 'bulk', only from default, mail",
        {"workers_that_know_it": 1, "workers_that_take_it": 0, "queues": ["default", "mail"]},
    ),
    "pending, draining": (
        job(Status.PENDING),
        around(worker(draining=True), worker("web-2", tasks=[])),
        "all workers that could take it are draining (web-1)",
        {"workers": 2, "workers_that_take_it": 0},
    ),
    "pending, busy": (
        job(Status.PENDING),
        around(worker(running=4), worker("web-2", running=4), ahead=38),
        "all 8 slots of 2 workers are busy; 38 jobs ahead of it",
        {"slots": 8, "free": 0, "ahead": 38},
    ),
    "pending, busy, next": (
        job(Status.PENDING),
        around(worker(running=4)),
        "all 4 slots of 1 worker are busy; it is next",
        {"ahead": 0},
    ),
    "pending, only slots of another kind are free": (
        job(Status.PENDING),
        around(worker(**BUSY)),
        "all 2 process slots of 1 worker are busy; it is next",
        {"slots": 2, "free": 0, "isolation": "process"},
    ),
    "pending, slots of its own kind are free": (
        job(Status.PENDING, task="mail", ready_at=NOW - 12 * SECOND),
        around(worker(**BUSY)),
        "ready for 12s, with 8 of 8 loop slots free; it is next",
        {"slots": 8, "free": 8, "isolation": "loop"},
    ),
    "pending, free slots only on workers without its queue or task": (
        job(Status.PENDING),
        around(
            worker("full", slots=1, running=1),
            worker("elsewhere", queues=["media"], slots=50, running=0),
            worker("other", tasks=["mail"], slots=50, running=0),
            worker("leaving", draining=True, slots=50, running=0),
        ),
        "the only slot is busy; it is next",
        {"slots": 1, "free": 0, "workers_that_take_it": 1},
    ),
    "pending, the task has different kinds of slots": (
        job(Status.PENDING, ready_at=NOW - 12 * SECOND),
        around(worker("old", slots=4, running=4), worker("new", **BUSY)),
        "all 6 slots of 2 workers are busy; it is next",
        {"slots": 6, "free": 0, "isolation": None},
    ),
    "pending, the only slot": (
        job(Status.PENDING),
        around(worker(slots=1, running=1), ahead=1),
        "the only slot is busy; 1 job ahead of it",
        {"slots": 1},
    ),
    "pending, a moment ago": (
        job(Status.PENDING, ready_at=NOW - SECOND // 5),
        around(worker()),
        "ready for 0.2s; a worker takes it any moment",
        {"free": 3},
    ),
    "pending for an unknown reason": (
        job(Status.PENDING, ready_at=NOW - 12 * SECOND),
        around(worker(), ahead=1),
        "ready for 12s, with 3 of 4 slots free; 1 job ahead of it",
        {"free": 3, "ahead": 1},
    ),
    "pending, expired": (
        job(Status.PENDING, expires_at=NOW - SECOND),
        around(worker()),
        "its time to start expired 1s ago; it is about to be cancelled",
        {"expires_at": "2027-01-01T11:59:59Z"},
    ),
    "running": (
        job(Status.RUNNING, **RUNNING, progress=65, detail='{"step": "720p", "eta": 71.0}'),
        around(worker()),
        "running on web-1 for 3m, 65% (720p), about 1m 10s left",
        {
            "node_name": "web-1",
            "node_alive": True,
            "eta_seconds": 70,
            "lease_seconds": 20.0,
            "attempts": 1,
            "failures": 0,
        },
    ),
    "running, cancel requested": (
        job(Status.RUNNING, **RUNNING, cancel_requested_at=NOW - 3 * SECOND, reason="cancelled by cli: enough"),
        around(worker()),
        "asked to stop 3s ago (cancelled by cli: enough), running on web-1 for 3m",
        {"cancel_requested_at": "2027-01-01T11:59:57Z"},
    ),
    "running, silent worker": (
        job(Status.RUNNING, **RUNNING),
        around(SCHEDULER),
        (
            "running on node_web-1 for 3m; node_web-1 has sent no heartbeat recently; unless it comes back, the job is"
            " rescued in 20s"
        ),
        {"node_alive": False},
    ),
    "running, lease expired": (
        job(Status.RUNNING, **(RUNNING | {"lease_until": NOW - 5 * SECOND})),
        around(SCHEDULER, names={"node_web-1": "web-1"}),
        "its worker web-1 is lost: the lease ran out 5s ago; it is being rescued",
        {"lease_seconds": -5.0, "nodes": 1},
    ),
    "running, lease expired, no worker": (
        job(Status.RUNNING, **(RUNNING | {"lease_until": NOW - 5 * SECOND})),
        around(),
        "its worker node_web-1 is lost: the lease ran out 5s ago; no scheduler or worker is alive to rescue it",
        {"nodes": 0},
    ),
    "completed": (
        job(Status.COMPLETED, started_at=NOW - 3 * MINUTE, finished_at=NOW - MINUTE),
        around(),
        "completed 1m ago, took 2m",
        {"finished_at": "2027-01-01T11:59:00Z"},
    ),
    "failed": (
        job(Status.FAILED, reason="raised, failure 3 of 3", error=REFUSED, finished_at=NOW - MINUTE, failures=3),
        around(),
        (
            "raised, failure 3 of 3: ConnectionError: refused by peer; ended 1m ago; in the dead-letter queue; "
            "retry with `headway jobs retry job_1`"
        ),
        {"cure": "headway jobs retry job_1", "failures": 3},
    ),
    "failed, retried": (
        job(Status.FAILED, reason="raised", finished_at=NOW - MINUTE, reviewed_at=NOW, rerun_of="job_0"),
        around(reruns=("job_2", "job_3")),
        "raised; ended 1m ago; run again as job_2, job_3",
        {"reruns": ["job_2", "job_3"], "rerun_of": "job_0"},
    ),
    "failed, dropped": (
        job(Status.FAILED, reason="not retryable", finished_at=NOW - MINUTE, reviewed_at=NOW - SECOND),
        around(),
        "not retryable; ended 1m ago; reviewed 1s ago",
        {"reviewed_at": "2027-01-01T11:59:59Z"},
    ),
    "timed out": (
        job(Status.TIMED_OUT, reason="", finished_at=NOW - MINUTE),
        around(reruns=("job_2",)),
        "out of time; failed; ended 1m ago; run again as job_2",
        {"reruns": ["job_2"]},
    ),
    "cancelled": (
        job(Status.CANCELLED, reason="cancelled by cli: enough", finished_at=NOW),
        around(),
        "cancelled by cli: enough",
        {"reason": "cancelled by cli: enough"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sentence_and_evidence(case: tuple[Job, Around, str, dict[str, Any]]) -> None:
    asked, surroundings, sentence, evidence = case
    answer = explain(asked, surroundings)
    assert (answer.status, answer.why) == (str(asked.status), sentence)
    assert {name: answer.evidence.get(name) for name in evidence} == evidence
    assert (answer.evidence["job"], answer.evidence["task"]) == (asked.id, asked.task)
    json.dumps(answer.evidence)
    assert "secret" not in json.dumps(answer.evidence)


def test_every_status_has_a_case() -> None:
    assert {asked.status for asked, *_ in CASES.values()} == set(Status)


@pytest.mark.parametrize("status", Status)
def test_glance_needs_only_the_job(status: Status) -> None:
    assert glance(job(status, node="node_1", started_at=NOW, blocked_by="job_0"), NOW)


def test_running_job_names_its_worker_and_attempt() -> None:
    again = job(Status.RUNNING, **(RUNNING | {"attempt": 2}), failures=1)
    assert glance(again, NOW, "web-1") == "running on web-1 for 3m, attempt 2/3"
    assert glance(again, NOW).startswith("running on node_web-1 ")


def test_long_lists_of_names_are_truncated() -> None:
    many = worker(tasks=[f"task-{number:03}" for number in range(500)])
    answer = explain(job(Status.PENDING, task="zzz"), around(many))
    assert answer.why.endswith("task-019 and 480 more")
    assert len(answer.evidence["tasks"]) == 20


# --- what jobs report about themselves

GARBAGE = ["", "{", "[1]", "null", '"x"', "5", "[" * 100_000, '{"steps": 5}', '{"steps": [["a"]]}', '{"eta": "soon"}']


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: text[:12])
def test_garbage_in_columns_raises_nothing(text: str) -> None:
    odd = job(Status.RUNNING, **RUNNING, detail=text, metadata=text, error=text, args=text)
    read_detail(odd)
    assert eta_seconds(odd, NOW) is None
    assert isinstance(read_metadata(odd), dict)
    assert len(str(read_json(text))) <= 5_000
    error = read_error(text)
    assert error is None or {"type", "message"} <= error.keys()
    error_line(text)
    explain(odd, around())


def test_metadata_includes_the_current_step() -> None:
    detail = {
        "step": "720p",
        "steps": [["Download", "done", 2.5], ["720p", "running", None], ["Upload", "waiting", None]],
    }
    at_work = job(Status.RUNNING, **RUNNING, metadata='{"input": "v.mp4"}', detail=json.dumps(detail))
    assert read_metadata(at_work) == {
        "input": "v.mp4",
        "current_step": "720p",
        "steps_completed": 1,
        "steps_total": 3,
    }
    assert read_metadata(job(Status.PENDING)) == {}


def test_eta_counts_down_without_reports_and_then_is_unknown() -> None:
    at_work = job(Status.RUNNING, **RUNNING, detail='{"eta": 10}', updated_at=NOW - 4 * SECOND)
    assert eta_seconds(at_work, NOW) == 6
    assert (left_words(at_work, NOW), eta_at(at_work)) == ("6s left", NOW + 6 * SECOND)
    assert "about 6s left" in glance(at_work, NOW)
    assert eta_seconds(at_work, NOW + 6 * SECOND - 1) == 1
    for late in (0, SECOND, MINUTE, 7 * DAY):
        assert eta_seconds(at_work, NOW + 6 * SECOND + late) is None
        assert left_words(at_work, NOW + 6 * SECOND + late) == ""
        assert "left" not in glance(at_work, NOW + 6 * SECOND + late)
    assert eta_seconds(at_work, NOW - HOUR) == 10  # A clock that is behind adds no time.
    assert eta_seconds(job(Status.COMPLETED, detail='{"eta": 10}'), NOW) is None


def test_error_is_one_line() -> None:
    assert error_line(REFUSED) == "ConnectionError: refused by peer"
    assert error_line('{"type": "KeyError"}') == "KeyError"
    assert error_line(json.dumps({"type": "E", "message": "x" * 10_000})).endswith("…")
    assert error_line(None) == ""


def test_worker_state_is_read_and_a_requested_drain_is_shown() -> None:
    odd = Node(id="n", name="n", roles=("worker",), state={"worker": {"tasks": 5}})
    silent = Node(id="m", name="m", roles=("worker",))
    assert [found.slots for found in workers_of([worker(), SCHEDULER, odd, silent])] == [4, 0, 0]
    asked = Node(id="n", name="n", roles=("worker", "scheduler"), asked="drain", state={"worker": {"slots": 3}})
    [draining] = workers_of([asked])
    assert (draining.draining, draining.free) == (True, 0)
