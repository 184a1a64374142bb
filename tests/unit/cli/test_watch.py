"""The drawing of one job, and which changes are printed as a line."""

import json
from typing import Any

import pytest

from headway.cli.watch import LINE_EVERY, Sight, bar, frame, is_news, news, painted, rate_text
from headway.core.instants import MINUTE, SECOND, Instant, parse_instant
from headway.core.job_summary import tries
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.wire.jobs import job_of

NOW: Instant = parse_instant("2027-01-01T12:00:00Z")
STEPS = [
    ["Download", "done", 12.1],
    ["Transcode 1080p", "done", 108.0],
    ["720p", "running", None],
    ["Up", "waiting", None],
]


def sight(
    status: Status = Status.RUNNING, why: str = "", worker: str = "web-2", trouble: str = "", **more: Any
) -> Sight:
    detail = more.pop("detail", None)
    values: dict[str, Any] = {
        "id": "job_1",
        "task": "video.transcode",
        "status": status,
        "tenant": "default",
        "queue": "default",
        "priority": 0,
        "args": "{}",
        "created_at": NOW - 3 * MINUTE,
        "run_at": NOW - 3 * MINUTE,
        "started_at": NOW - 151 * SECOND,
        "updated_at": NOW,
        "max_attempts": 3,
        "attempt": 1,
        "detail": None if detail is None else json.dumps(detail),
    }
    return Sight(job=job_of(Job(**(values | more)), NOW), now=NOW, why=why, worker=worker, trouble=trouble)


def drawn(seen: Sight, width: int = 100, height: int = 40) -> list[str]:
    return ["".join(piece for piece, _ in line).rstrip() for line in frame(seen, width, height)]


def test_steps_with_marks_bars_counts_rate_and_time_left() -> None:
    detail = {"step": "720p", "done": 1310, "total": 2016, "rate": 42.0, "eta": 80.0, "steps": STEPS}
    assert drawn(sight(progress=62, detail=detail)) == [
        "job_1  video.transcode  attempt 1/3  worker web-2",
        "  ✓ Download              12s",
        "  ✓ Transcode 1080p    1m 48s",
        "  ▸ 720p             ━━━━━━━━━━━━━━━━━━━━━━━━━━──────────────   64%  1,310/2,016 · 42/s · 17s left",
        "    Up",
        "  ━━━━━━━━━━━━━━━━━━━━━━━━━───────────────   62%  about 1m 20s left",
        "elapsed 2m 31s · Ctrl-C stops watching, not the job",
    ]


def test_job_without_steps_is_one_bar() -> None:
    detail = {"step": "Greeting", "done": 9, "total": 20, "rate": 5.0, "eta": 2.2}
    lines = drawn(sight(progress=45, detail=detail), width=80)
    assert lines[1] == "  ▸ Greeting  ━━━━━━━━━━━━━╸────────────────   45%  9/20 · 5.0/s · about 2s left"
    assert drawn(sight())[1] == "  ▸ running"
    assert "asked to stop: enough" in drawn(sight(cancel_requested_at=NOW, reason="enough"))[2]


def test_waiting_job_says_why() -> None:
    waiting = drawn(sight(Status.PENDING, why="no worker is alive", attempt=0))
    assert waiting == [
        "job_1  video.transcode",
        "  PENDING  no worker is alive",
        "waiting for 3m · Ctrl-C stops watching, not the job",
    ]
    assert "the store does not answer" in drawn(sight(trouble="refused"))[-1]


def test_end_shows_result_or_error() -> None:
    done = drawn(sight(Status.COMPLETED, finished_at=NOW, result='{"url":"x"}', detail={"steps": STEPS[:2]}))
    assert done[-2:] == ["✓ COMPLETED in 2m 31s", 'result {"url":"x"}']
    assert done[1] == "  ✓ Download              12s"
    failed = drawn(sight(Status.FAILED, finished_at=NOW, error='{"type":"E","message":"x"}', detail={"steps": STEPS}))
    assert failed[3:6] == ["  ✗ 720p", "    Up", "✗ FAILED  E: x"]
    assert "headway jobs retry job_1" in failed[-1]
    assert drawn(sight(Status.CANCELLED, why="cancelled by cli"))[-1] == "— CANCELLED  cancelled by cli"


@pytest.mark.parametrize("at", [0, 1, 60, 118, 119])
def test_many_steps_are_folded_around_the_running_one(at: int) -> None:
    states = ["done"] * at + ["running"] + ["waiting"] * (119 - at)
    steps = [[f"step {number}", state, None] for number, state in enumerate(states)]
    lines = drawn(sight(detail={"steps": steps}), height=20)
    assert len(lines) <= 20
    assert any(line.startswith(f"  ▸ step {at}") for line in lines)
    shown = sum("step " in line for line in lines)
    hidden = sum(int(line.split(" more")[0].split()[-1]) for line in lines if " more" in line)
    assert shown + hidden == 120


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_hostile_text_is_escaped_and_lines_are_bounded(width: int) -> None:
    evil = "\x1b[2J\u202e" + "x" * 500
    detail = {"step": evil, "done": 1e300, "total": -5, "rate": 1e-9, "eta": 1e12, "steps": [[evil, "running", None]]}
    for seen in (sight(detail=detail, task=evil), sight(Status.FAILED, why=evil, error=evil, detail=detail)):
        text = painted(frame(seen, width, 24)).plain
        assert all(line.isprintable() for line in text.split("\n"))
        news(seen)


def test_terminal_without_unicode_gets_ascii() -> None:
    text = painted(frame(sight(progress=50, detail={"step": "x", "steps": STEPS})), "ascii").plain
    assert text.isascii()


@pytest.mark.parametrize(("share", "full"), [(0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10), (-1.0, 0)])
def test_bar_has_a_fixed_width(share: float, full: int) -> None:
    (done, _), (rest, _) = bar(share, 10)
    assert (len(done) + len(rest), done.count("━")) == (10, full)


def test_rates_are_rounded_by_magnitude() -> None:
    assert [rate_text(rate) for rate in (1234.5, 42.3, 3.25, 0.5, 0.001)] == [
        "1,234/s",
        "42/s",
        "3.2/s",
        "30/min",
        "3.6/h",
    ]


def test_uncharged_attempts_do_not_count_against_max_attempts() -> None:
    assert tries(2, 1, 3) == "attempt 2/3"
    assert tries(5, 1, 3) == "attempt 5 (1 of 3 failed)"
    assert tries(3, 0, 3) == "attempt 3 (0 of 3 failed)"


def test_lines_are_printed_only_for_changes() -> None:
    first = sight(progress=10, detail={"step": "a"})
    same = sight(progress=12, detail={"step": "a"})
    assert not is_news(first, same)
    for other in (
        sight(progress=20, detail={"step": "a"}),
        sight(progress=10, detail={"step": "b"}),
        sight(progress=10, detail={"step": "a"}, attempt=2),
        sight(progress=10, detail={"step": "a"}, cancel_requested_at=NOW),
        sight(Status.COMPLETED, progress=10, detail={"step": "a"}),
        sight(progress=10, detail={"step": "a"}, trouble="away"),
    ):
        assert is_news(first, other)
    later = Sight(job=same.job, now=NOW + LINE_EVERY, why="")
    assert is_news(first, later)
    assert not is_news(later, Sight(job=same.job, now=NOW + 3 * LINE_EVERY, why=""))


def test_line_has_every_field() -> None:
    line = news(sight(progress=65, detail={"step": "720p", "done": 5, "total": 8, "rate": 2.0, "eta": 60}))
    assert line == "2027-01-01 12:00:00Z  job_1  RUNNING  65%  720p  5/8 · 2.0/s · 2s left  attempt 1/3 on web-2"
    assert news(sight(Status.COMPLETED, finished_at=NOW, result="5")).endswith("COMPLETED  in 2m 31s  result 5")
    assert news(sight(Status.PENDING, why="no worker is alive")).endswith("PENDING  no worker is alive")
