"""Claim from the only lane of a queue that has jobs, without shares and gates.

This is the usual claim on a system without a backlog: one tenant got jobs, and no limit applies. There is nobody to be
fair to, so nothing has to be read, locked or written but the jobs. Their tenant is charged when they end.
"""

from typing import Final

from headway.core.jobs import Claimed
from headway.core.limits import BITS, Lane, Rules
from headway.store.claim_request import ClaimRequest, lane_columns, lane_of
from headway.store.transaction import Row, Rows, Transaction, as_json, call

_JOB_COLUMNS: Final = -3  # Without the columns of the lane and the time of the start, which follow those of the job.


def only_lane(rings: Rows, row: Row, request: ClaimRequest, rules: Rules) -> Lane | None:
    """Return the lane of all rings, if no other one of the queue may have jobs and no limit applies to it."""
    lanes = {lane_of(ring) for ring in rings if ring["needs"] == request.needs}
    has_others = bool(row["has_usual"]) or bool(row["has_open"])
    if request.room <= 0 or has_others or len(lanes) != 1 or any(ring["needs"] != request.needs for ring in rings):
        return None
    [lane] = lanes
    is_limited = bool(rules.gates(request.queue, lane)) or bool(rules.bits & BITS["task"])
    return None if is_limited or lane.tenant in request.past else lane


def claim_only(lane: Lane, request: ClaimRequest, *, held: int) -> Transaction[tuple[tuple[Claimed, ...], bool]]:
    """Claim from the lane; return the jobs, and whether more are left, perhaps some that this worker cannot take."""
    rows = yield request.take({lane: request.room}, held=held)
    jobs = [request.read(list(row)[:_JOB_COLUMNS], share=lane.tenant) for row in rows]
    jobs.sort(key=lambda job: (-job.priority, job.run_at, job.job_id))
    lanes = as_json([lane_columns(lane)])
    where = {"queue": request.queue, "needs": request.needs}
    left = yield call("lanes_left", **where, lanes=lanes, skip=as_json(sorted(request.skip)), has_tasks=0)
    return tuple(jobs), bool(left[0]["is_left"])
