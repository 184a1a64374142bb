"""Write what ended attempts make of their jobs.

`lifecycle.settle` decides; this module writes the decision together with the record of the attempt. Every write is
guarded by (id, attempt, RUNNING): an attempt that lost its job matches no row and changes nothing.
"""

from collections.abc import Sequence

import msgspec

from headway.core.lifecycle import FINAL, Settlement, Status
from headway.store.queue import cancel, end, record_events
from headway.store.transaction import Row, StatementCall, Transaction, as_json, call


def settle_attempts(settlements: Sequence[Settlement]) -> Transaction[frozenset[str]]:
    """Write what ended attempts make of their jobs; return the ids of stale ones.

    A job that was asked to stop does not run again, whatever ended its attempt.
    """
    by_attempt = {(settlement.job_id, settlement.attempt): settlement for settlement in settlements}
    written = yield from _settle_completed([s for s in by_attempt.values() if s.status is Status.COMPLETED])
    written |= yield from _settle_others([s for s in by_attempt.values() if s.status is not Status.COMPLETED])
    yield from count_failures([s for attempt, s in by_attempt.items() if attempt in written and s.schedule])
    if len(written) == len(by_attempt):
        return frozenset()
    absent = [settlement for attempt, settlement in by_attempt.items() if attempt not in written]
    return (yield from refuse(absent))


def _settle_completed(settlements: Sequence[Settlement]) -> Transaction[set[tuple[str, int]]]:
    if not settlements:
        return set()
    rows = yield completed(settlements)
    in_line = [row for row in rows if row["schedule"] is not None]
    yield from end([row["id"] for row in in_line], (row["schedule"] for row in in_line))
    return {(row["id"], row["attempt"]) for row in rows}


class _CompletedRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A success as a row of the statement `settle_completed`; most have no result."""

    job_id: str
    job_attempt: int
    to_result: str | None = None


def completed(settlements: Sequence[Settlement]) -> StatementCall:
    """Settle successful attempts in one statement."""
    rows = [_CompletedRow(settlement.job_id, settlement.attempt, settlement.result) for settlement in settlements]
    return call("settle_completed", attempts=as_json(rows))


def _settle_others(settlements: Sequence[Settlement]) -> Transaction[set[tuple[str, int]]]:
    if not settlements:
        return set()
    by_attempt = {(settlement.job_id, settlement.attempt): settlement for settlement in settlements}
    rows = yield call("settle", settlements=as_json([_settlement_row(s) for s in settlements]))
    written = {(row["id"], row["attempt"]): row for row in rows}
    if written:
        traces = [_attempt_row(row, by_attempt[attempt]) for attempt, row in written.items()]
        yield call("record_attempts", attempts=as_json(traces))
    ended = [row for row in rows if row["finished_at"] is not None]
    yield from end([row["id"] for row in ended], (row["schedule"] for row in ended))
    asked = [row["id"] for row in rows if row["finished_at"] is None and row["cancel_requested_at"] is not None]
    if asked:
        yield from cancel(asked, "stopped as asked")
    return set(written)


def count_failures(settlements: Sequence[Settlement]) -> Transaction[None]:
    """Update the consecutive failures of schedules."""
    failed: dict[str, int] = {}
    succeeded: set[str] = set()
    for settlement in settlements:
        name = settlement.schedule
        if name is None or settlement.status not in FINAL or settlement.status is Status.CANCELLED:
            continue
        if settlement.status is Status.COMPLETED:
            failed[name] = 0
            succeeded.add(name)
        else:
            failed[name] = failed.get(name, 0) + 1
    if failed:
        rows = [{"schedule": name, "failed": failed[name], "succeeded": int(name in succeeded)} for name in failed]
        yield call("count_failures", ends=as_json(rows))


def refuse(settlements: Sequence[Settlement]) -> Transaction[frozenset[str]]:
    """Return stale settlements and record them; a settlement that was committed before is not stale."""
    asked = [{"job_id": s.job_id, "attempt": s.attempt, "outcome": s.outcome} for s in settlements]
    rows = yield call("settled_already", attempts=as_json(asked))
    known = {(row["job_id"], row["attempt"]) for row in rows}
    stale = [settlement for settlement in settlements if (settlement.job_id, settlement.attempt) not in known]
    yield from record_events(
        [(s.job_id, "settle_refused", {"attempt": s.attempt, "outcome": s.outcome}) for s in stale]
    )
    return frozenset(settlement.job_id for settlement in stale)


def _settlement_row(settlement: Settlement) -> dict[str, object]:
    return {
        "job_id": settlement.job_id,
        "job_attempt": settlement.attempt,
        "to_status": settlement.status,
        "final": int(settlement.status in FINAL),
        "to_failures": settlement.failures,
        "to_reason": settlement.reason,
        "to_error": settlement.error,
        "to_parked": settlement.parked,
        "retry_in": settlement.retry_in,
        "to_company": settlement.company,
        "to_apart_for": settlement.apart_for,
    }


def _attempt_row(row: Row, settlement: Settlement) -> dict[str, object]:
    return {
        "job_id": row["id"],
        "attempt": row["attempt"],
        "node": row["node"],
        "ready_at": row["ready_at"],
        "started_at": row["started_at"],
        "ended_at": row["updated_at"],
        "outcome": settlement.outcome,
        "reason": settlement.reason,
        "error": settlement.error,
    }
