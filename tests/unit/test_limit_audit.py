"""The audit of limits finds every start beyond a limit, and nothing else."""

from headway.core.instants import SECOND
from headway.core.limit_audit import AttemptSpan, LimitRevision, audit_limits
from headway.core.limits import Limit


def span(number: int, start: float, end: float | None, **where: str) -> AttemptSpan:
    """Return an attempt that ran from one second to another."""
    at = {"queue": "default", "task": "work", "tenant": "default", "limit_key": "", **where}
    started, ended = round(start * SECOND), None if end is None else round(end * SECOND)
    return AttemptSpan(f"job_{number}", 1, at["queue"], at["task"], at["tenant"], at["limit_key"], started, ended)


def put(at: float, name: str, **limit: object) -> LimitRevision:
    """Return a definition from a second on."""
    return LimitRevision(name, round(at * SECOND), Limit.build(name, **limit))  # type: ignore[arg-type]


def test_overlaps_are_counted_by_gate() -> None:
    revisions = [put(0, "account-*", concurrency=1)]
    spans = [span(1, 1, 5, limit_key="account-1"), span(2, 2, 4, limit_key="account-2")]
    assert audit_limits(spans, revisions) == []
    [found] = audit_limits([*spans, span(3, 4.5, 6, limit_key="account-1")], revisions)
    assert (found.gate, found.kind, found.allowed, found.found, found.job_id) == (
        *("account-1", "concurrency"),
        *(1, 2, "job_3"),
    )
    assert audit_limits([*spans, span(3, 5, 6, limit_key="account-1")], revisions) == []


def test_attempts_that_still_run_count() -> None:
    revisions = [put(0, "queue:default", concurrency=1)]
    assert len(audit_limits([span(1, 1, None), span(2, 100, None)], revisions)) == 1


def test_a_limit_counts_from_its_definition_to_its_removal() -> None:
    spans = [span(1, 1, 9), span(2, 2, 9), span(3, 3, 9)]
    assert len(audit_limits(spans, [put(0, "task:work", concurrency=1)])) == 2
    assert len(audit_limits(spans, [put(2.5, "task:work", concurrency=1)])) == 1
    assert audit_limits(spans, [put(4, "task:work", concurrency=1)]) == []
    removed = LimitRevision("task:work", round(1.5 * SECOND), None)
    assert audit_limits(spans, [put(0, "task:work", concurrency=1), removed]) == []
    raised = put(2.5, "task:work", concurrency=3)
    assert len(audit_limits(spans, [put(0, "task:work", concurrency=1), raised])) == 1


def test_rates_are_counted_in_every_window() -> None:
    revisions = [put(0, "tenant:*", rate="2/10s")]
    spans = [span(number, number, number + 0.1, tenant="acme") for number in (1, 2)]
    assert audit_limits([*spans, span(3, 11.5, 12, tenant="acme")], revisions) == []
    [found] = audit_limits([*spans, span(3, 10.5, 11, tenant="acme")], revisions)
    assert (found.kind, found.gate, found.allowed, found.found) == ("rate", "tenant:acme", 2, 3)
    assert audit_limits([*spans, span(3, 10.5, 11, tenant="globex")], revisions) == []
