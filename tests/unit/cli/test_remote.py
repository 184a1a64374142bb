"""What an API writes is read back as what it was written from."""

import json
from typing import Any

import msgspec
import pytest

from headway.cli.remote import _set_right, job_of
from headway.core.clock import Clock
from headway.core.instants import HOUR, MINUTE, SECOND, parse_instant
from headway.core.job_details import eta_seconds, read_detail
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.wire import jobs


def job_shape(job: Job, now: int) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(jobs.job_of(job, now))
    return shown


NOW = parse_instant("2027-01-31T06:00:00.123456Z")
DETAIL = {
    "step": "b",
    "done": 3.0,
    "total": 4.0,
    "rate": 2.5,
    "eta": 600.0,
    "steps": [["a", "done", 1.5], ["b", "running", None]],
}


def job(status: Status) -> Job:
    return Job(
        id="job_1",
        task="report",
        status=status,
        tenant="acme",
        queue="media",
        priority=5,
        args='{"n":1180591620717411303424}',
        created_at=NOW - HOUR,
        run_at=NOW - MINUTE,
        max_attempts=3,
        attempt=2,
        failures=1,
        version=17,
        key="k",
        tags=("a", "b"),
        schedule="daily",
        occurrence_at=NOW - HOUR,
        blocked_by="job_0",
        node="node_1",
        ready_at=NOW - 50 * SECOND,
        started_at=NOW - 40 * SECOND,
        finished_at=NOW if status.is_final else None,
        updated_at=NOW - 20 * SECOND,
        cancel_requested_at=NOW - 10 * SECOND,
        progress=75,
        reason="failed, retrying",
        result='{"url":"https://…"}',
        error='{"type":"ValueError","message":"bad"}',
        timeout=5 * MINUTE,
        metadata='{"input":"v.mp4"}',
        detail=json.dumps(DETAIL),
        parent="job_p",
        rerun_of="job_r",
        parked="arguments" if status is Status.BLOCKED else None,
        expires_at=NOW + HOUR,
        reviewed_at=NOW,
    )


@pytest.mark.parametrize("status", Status)
def test_a_job_is_read_back(status: Status) -> None:
    before = job(status)
    shape = job_shape(before, NOW)
    after = job_of(shape, NOW)
    assert job_shape(after, NOW) == shape
    assert read_detail(after).steps == read_detail(before).steps
    assert eta_seconds(after, NOW + SECOND) == eta_seconds(before, NOW + SECOND)
    assert (after.ready_at, after.cancel_requested_at, after.reviewed_at) == (
        before.ready_at,
        before.cancel_requested_at,
        before.reviewed_at,
    )


@pytest.mark.parametrize(
    ("wall", "expected"),
    [
        (NOW, NOW),  # It may be right.
        (NOW - 900_000, NOW - 123_456),  # Too early by a part of a second: what the server has told is not to come.
        (NOW - HOUR, NOW - 123_456),
        (NOW + HOUR, NOW - 123_456 + SECOND),
    ],
)
def test_a_wrong_clock_is_set_right_no_further_than_needed(wall: int, expected: int) -> None:
    clock = Clock(wall=lambda: wall)
    told = NOW - 123_456  # In whole seconds.
    _set_right(clock, told, told + SECOND)
    assert clock.now() == expected
