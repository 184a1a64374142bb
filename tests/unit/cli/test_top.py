"""`headway top` as a pure function: what it shows, and that it fits any terminal."""

import re
from typing import Any

import pytest

from headway.cli.top import Picture, frame, health
from headway.cli.watch import painted
from headway.core.instants import HOUR, MINUTE, SECOND, Instant, parse_instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.nodes import Node
from headway.core.schedule_names import ScheduleRef
from headway.operations.monitoring import LISTED, stats_of
from headway.operations.overview import Overview
from headway.store.facts import Facts
from headway.store.tenants import Objective
from headway.wire.jobs import Job as WireJob
from headway.wire.jobs import job_of
from headway.wire.limits import Limit
from headway.wire.overview import DeadTask, Stats
from headway.wire.queues import Queue

NOW: Instant = parse_instant("2027-01-01T12:00:00Z")
WORKER = Node(id="node_1", name="web-1", roles=("worker",), beat_at=NOW, state={"worker": {"slots": 8, "running": 2}})
SCHEDULER = Node(id="node_2", name="sched", roles=("scheduler",), beat_at=NOW, state={"mode": "lock"})


def queue(name: str, pending: int = 0, **more: Any) -> Queue:
    values: dict[str, Any] = {"oldest_age_seconds": 4.0, "running": 1, "paused": False, "reason": None}
    return Queue(name=name, pending=pending, **values | {"paused_at": None, "paused_by": None} | more)


def overview(**more: Any) -> Overview:
    coming = [
        {"name": f"schedule-{n}", "tenant": "default", "decided_through": NOW, "next_at": NOW + n * MINUTE}
        for n in range(30)
    ]
    values: dict[str, Any] = {
        "now": NOW,
        "facts": Facts(kind="sqlite", version="3.40"),
        "latency_s": 0.001,
        "leases": [],
        "nodes": [SCHEDULER, WORKER],
        "queues": [queue("default", 3), queue("mail")],
        "waiting": {"RUNNING": 2},
        "schedules": {
            "total": 30,
            "paused": 0,
            "late": 0,
            "attention": 0,
            "oldest_undecided_seconds": 0.0,
            "coming": coming,
            "next_at": NOW,
            "last_day": {},
        },
        "dead": [],
        "failing": [],
    }
    return Overview(**(values | more))


def figures(**more: Any) -> Stats:
    return stats_of(overview(**more), {}, HOUR)


def running(number: int = 0, **more: Any) -> WireJob:
    values: dict[str, Any] = {
        "id": f"job_01m7gxtfzz0x2k0xvkn46xq{number:03}",
        "task": "video.transcode",
        "status": Status.RUNNING,
        "tenant": "default",
        "queue": "default",
        "priority": 0,
        "args": "{}",
        "created_at": NOW - MINUTE,
        "run_at": NOW - MINUTE,
        "started_at": NOW - MINUTE,
        "updated_at": NOW,
        "lease_until": NOW + MINUTE,
        "max_attempts": 1,
        "attempt": 1,
        "node": "node_1",
        "progress": 68,
        "detail": '{"step": "720p", "eta": 239}',
    }
    return job_of(Job(**(values | more)), NOW)


def drawn(picture: Picture, width: int = 120, height: int = 40) -> list[str]:
    return painted(frame(picture, width, height)).plain.split("\n")


DEAD = [DeadTask("invoice", 2, "job_9", [], "ConnectionError: refused " + "x" * 200)]


def test_frame_shows_every_section() -> None:
    lines = drawn(
        Picture(stats=figures(dead=DEAD, failing=[(ScheduleRef("default", "nightly"), 4)]), running=[running()])
    )
    assert lines[0].startswith("! All 30 schedules on time · 2 running · 3 waiting · 3 need you ")
    assert lines[0].endswith("12:00:00Z")
    assert lines[1].startswith("  sqlite 3.40 · 1 scheduler · 1 worker · 2/8 slots ")
    assert lines[1].endswith("q quits")
    text = "\n".join(lines)
    assert "  default             3        4s          1\n  mail                0         —          1" in text
    assert "job_01m7gxtfzz0x2k0xvkn46xq000  video.transcode  " in text
    assert " 68%    3m 59s left  web-1  720p" in text
    assert ["schedule-3", "in", "3m", "2027-01-01", "12:03:00Z"] in [line.split() for line in lines]
    assert lines[-2].endswith("→  headway dead list")
    assert lines[-1] == "  schedule nightly: its last 4 jobs failed  →  headway jobs list --schedule nightly"


@pytest.mark.parametrize("size", [(40, 8), (60, 14), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("jobs", [0, 1, 50])
def test_frame_fits_any_terminal_and_keeps_alerts(size: tuple[int, int], jobs: int) -> None:
    width, height = size
    many = figures(dead=DEAD, queues=[queue(f"queue-{n}", n) for n in range(40)])
    lines = frame(Picture(stats=many, running=[running(n) for n in range(jobs)]), width, height)
    assert len(lines) <= height
    text = ["".join(piece for piece, _ in line) for line in lines]
    if height >= 14:
        assert "needs you" in text
        assert text[-1].endswith("→  headway dead list")
        assert len(text[-1]) <= width
    if height >= 24:
        assert {"next"} <= set(text)
        assert any(line.startswith("running") for line in text)


def test_problems_are_shown() -> None:
    lines = drawn(Picture(stats=figures(nodes=[]), running=[]))
    assert "  ! no scheduler is alive" in lines
    assert "  ! no worker is alive, and 3 jobs wait" in lines
    away = drawn(Picture(stats=figures(), running=[], trouble="the store does not answer"))
    assert away[2] == "  ! the store does not answer"
    late = overview().schedules | {
        "coming": [{"name": "x", "tenant": "acme", "decided_through": 0, "next_at": NOW - MINUTE}]
    }
    assert "      1m late" in "\n".join(drawn(Picture(stats=figures(schedules=late), running=[])))


def test_full_limits_and_late_tenants_are_shown() -> None:
    def limit(name: str, **more: Any) -> Limit:
        values: dict[str, Any] = {"concurrency": 5, "rate": None, "burst": None, "running": 5, "held": 3}
        return Limit(name=name, owner="", in_force=True, **values | more)

    limits = [limit("queue:media"), limit("account-*", running=None, held=1_000)]
    limits += [limit("crm\x1b", concurrency=None, rate="10/s", held=1), *(limit(f"more-{n}") for n in range(20))]
    late = [Objective(f"tenant-{n}", wait_slo=5 * SECOND, waited=20 * SECOND) for n in range(5)]
    stats = figures(limits=limits, late_tenants=late)
    assert (stats.limits.total, len(stats.limits.items), stats.tenants.total) == (23, LISTED, 5)
    lines = drawn(Picture(stats=stats, running=[]), height=60)
    text = "\n".join(lines)
    for words in (r"queue:media +5 of 5 +3 lanes wait", r"account-\* +each name +at least 1,000 lanes wait"):
        assert re.search(words, text), words
    assert re.search(r"crm\\x1b +5 +10/s  1 lane waits", text)
    assert "  … 13 more" in lines
    assert any(
        line.startswith("  tenant tenant-0 waits for 20s, 5s allowed  →  headway tenants show") for line in lines
    )
    assert any("2 more tenants wait longer than allowed" in line for line in lines)
    assert "full limits" not in "\n".join(drawn(Picture(stats=figures(), running=[])))


def test_job_shows_a_pending_cancel_or_a_lost_worker() -> None:
    asked = drawn(Picture(stats=figures(), running=[running(cancel_requested_at=NOW)]), width=80)
    assert any(line.endswith("  asked to stop") for line in asked)
    lost = drawn(Picture(stats=figures(), running=[running(node="node_gone")]), width=80)
    assert any(line.endswith("  worker lost") for line in lost)
    silent = drawn(Picture(stats=figures(), running=[running(detail=None, progress=0)]))
    assert any("for 1m  web-1" in line for line in silent)


def test_control_characters_in_data_are_escaped() -> None:
    evil = "\x1b[2J\u202e\n"
    odd = figures(dead=[DeadTask(evil, 1, "", [], evil)], queues=[queue(evil, 1)])
    lines = drawn(Picture(stats=odd, running=[running(task=evil, node=evil, detail='{"step": "\\u001b[2J"}')]))
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("schedules", "sentence"),
    [
        ({"total": 0}, "No schedules · 2 running · 3 waiting"),
        ({"total": 1}, "The schedule is on time · 2 running · 3 waiting"),
        ({"total": 9, "paused": 2, "late": 3}, "3 of 7 schedules late · 2 running · 3 waiting"),
    ],
)
def test_health_is_one_sentence(schedules: dict[str, int], sentence: str) -> None:
    assert health(figures(schedules=overview().schedules | schedules)) == sentence
