"""Alerts on the overview: lost nodes, wrong clocks, missed instants, useless workers."""

import asyncio
from typing import Any

import pytest

from headway.cli.status import attention
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, isoformat
from headway.core.nodes import Node
from headway.operations.attention import alerts, faults
from headway.operations.overview import lost_among, read_overview
from headway.operations.store_trouble import AWAY, FULL, READ_ONLY
from headway.operations.worker_state import unserved, workers_of
from headway.store.facts import Facts
from headway.store.metrics import MissedInstants
from headway.wire.overview import MissedSchedule
from tests.simulation.stage import Stage
from tests.simulation.virtual_loop import virtual
from tests.unit.cli.test_top import NOW, figures, overview, queue


def node(name: str = "web-1", *, age: int = 0, started: int = 2 * HOUR, roles: str = "worker", **state: Any) -> Node:
    return Node(
        id=f"node_{name}_{started}",
        name=name,
        roles=tuple(roles.split(",")),
        started_at=NOW - started,
        beat_at=NOW - age,
        state=state,
    )


def said(code: str, **values: Any) -> list[str]:
    return [alert.message for alert in alerts(overview(**values)) if alert.code == code]


def test_one_worker_lost_of_two() -> None:
    lost = lost_among([node("web-1"), node("web-2", age=40 * SECOND)], [node("web-1")])
    assert said("node_lost", lost=lost) == [
        "web-2 (worker) sent its last heartbeat 40s ago and did not shut down cleanly"
    ]


def test_successor_replaces_exactly_one_lost_node() -> None:
    gone = [node("web-2", age=MINUTE), node("pod-7f", age=2 * MINUTE), node("sched", age=MINUTE, roles="scheduler")]
    assert lost_among(gone, [node("web-1")]) == [gone[0], gone[2], gone[1]], (
        "a node that was already running is no successor"
    )
    again, other = node("web-2", started=30 * SECOND), node("pod-9c", started=10 * SECOND)
    assert lost_among(gone, [again, other]) == [gone[2]]
    assert lost_among(gone, [node("all", started=SECOND, roles="scheduler,worker,api")]) == [gone[2], gone[1]]


def test_many_lost_nodes_are_counted() -> None:
    words = said("node_lost", lost=[node(f"web-{number}", age=MINUTE) for number in range(8)])
    assert words[-1] == "3 more nodes ended without a clean shutdown in the last hour"
    assert len(words) == 6


@pytest.mark.parametrize(
    ("skew_s", "words"),
    [
        (3600.2, ["the clock of web-1 is 1h ahead of the store's: times in its log are wrong, decisions are not"]),
        (-7200.0, ["the clock of web-1 is 2h behind the store's: times in its log are wrong, decisions are not"]),
        (0.4, []),
        (-0.9, []),
        ("an hour", []),
    ],
)
def test_clock_skew(skew_s: object, words: list[str]) -> None:
    assert said("clock_off", nodes=[node(skew_s=skew_s)]) == words


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (READ_ONLY, "store_read_only", "the store is read-only: "),
        (FULL, "store_full", "the store is full: "),
        (AWAY, "store_stuck", "the store answers, but takes no writes: "),
    ],
)
def test_read_only_store_does_not_report_lost_nodes(trouble: str, code: str, words: str) -> None:
    waiting = [queue("default", 3)]
    [first, *others] = faults(overview(trouble=trouble, nodes=[], lost=[node(age=MINUTE)], queues=waiting))
    assert (first.code, first.message.startswith(words)) == (code, True)
    assert first.cure
    assert not others, "no node can write its heartbeat"
    assert "no_scheduler" in {fault.code for fault in faults(overview(nodes=[], queues=waiting))}


def test_missed_instants_are_reported_with_the_command_that_lists_them() -> None:
    missed = [MissedInstants(schedule="daily report", instants=3, latest=NOW)]
    [alert] = [alert for alert in alerts(overview(missed=missed)) if alert.code == "schedule_missed"]
    assert alert.message == "schedule daily report: 3 instants missed in the last day"
    assert (alert.cure, alert.target) == ("headway schedules history 'daily report'", "daily report")
    [(words, command)] = attention(figures(missed=missed))
    assert (words, command) == (alert.message, alert.cure)
    assert figures(missed=missed).missed == [MissedSchedule("daily report", "default", 3, isoformat(NOW))]


def test_draining_workers_take_no_jobs() -> None:
    leaving = node(worker={"tasks": ["report"], "slots": 4, "draining": True})
    assert said("no_worker", nodes=[leaving], queues=[queue("default", 3)]) == [
        "all workers are draining, and 3 jobs wait"
    ]
    mail = node("web-2", worker={"tasks": ["report"], "slots": 4, "queues": ["mail"]})
    assert [
        fault.message
        for fault in faults(overview(nodes=[leaving, mail], queues=[queue("default", 3)]))
        if fault.code == "queue_without_worker"
    ] == ["no live worker takes from queue default, and 3 jobs wait in it"]


def test_task_needs_a_worker_that_registers_it_and_serves_its_queue() -> None:
    knows = node("a", worker={"tasks": ["report"], "queues": ["mail"]})
    takes = node("b", worker={"tasks": ["mail"], "queues": ["*"]})
    assert unserved("report", "mail", [knows, takes]) == []
    assert unserved("report", "default", [knows, takes]) == [
        "no live worker that knows the task 'report' takes from the queue 'default'"
    ]


def test_worker_with_malformed_state_has_no_slots() -> None:
    odd = node(worker={"places": {"process": {"slots": "many"}}, "slots": 4})
    [worker] = workers_of([odd])
    assert (worker.slots, worker.places, worker.slots_for("report")) == (0, {}, 0)


@virtual
async def test_missed_instants_are_reported_for_a_day() -> None:
    async with Stage() as stage:
        store = stage.seat().store
        insert = (
            "insert into headway_occurrences (schedule, instant, until, count, outcome, reason, decided_at, revision,"
            " token, node) values (?, ?, ?, ?, ?, '', ?, 1, 1, 'n')"
        )
        now = stage.now()
        for name, instant, until, count, outcome, decided in (
            ("a", now - 9, None, 1, "missed", now),
            ("a", now - 8, now - 5, 4, "missed", now - HOUR),
            ("b", now - 7, None, 1, "fired", now),
            ("c", now - 6, None, 1, "missed", now - 2 * DAY),
        ):
            stage.sql(insert, name, instant, until, count, outcome, decided)
        assert await store.metrics.missed(DAY) == [MissedInstants(schedule="a", instants=5, latest=now - 5)]


@virtual
async def test_lost_node_and_clock_skew_are_found_in_the_store() -> None:
    async with Stage() as stage:
        seat = stage.seat()

        async def told() -> list[str]:
            seen = await read_overview(seat.store, now=stage.now(), facts=Facts(kind="sqlite", version="3"))
            return [alert.message for alert in alerts(seen) if alert.code in ("node_lost", "clock_off")]

        lost = Node(id="node_1", name="web-1", roles=("worker",))
        lives = Node(id="node_2", name="web-2", roles=("worker",), state={"skew_s": 3600.0})
        await seat.store.nodes.beat(lost)
        await asyncio.sleep(40.0)
        await stage.seat("node_2").store.nodes.beat(lives)
        assert [words.partition(" is ")[0] for words in await told()] == ["the clock of web-2"], (
            "another node replaced it"
        )
        stage.sql("update headway_nodes set started_at = started_at - ? where id = 'node_2'", HOUR)
        assert await told() == [
            "web-1 (worker) sent its last heartbeat 40s ago and did not shut down cleanly",
            "the clock of web-2 is 1h ahead of the store's: times in its log are wrong, decisions are not",
        ]
        await seat.store.nodes.leave(lost.id)
        assert len(await told()) == 1, "a node that stopped cleanly is not missed"
