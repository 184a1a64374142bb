"""The state machine: the effect of every outcome of an attempt, and the invariants of all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import DefinitionError
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.lifecycle import (
    APART_MAX,
    APART_MIN,
    FINAL,
    LOSS_WAIT_MAX,
    LOSSES_MAX,
    TRANSITIONS,
    Attempt,
    AttemptOutcome,
    Backoff,
    Cancelled,
    Crashed,
    LeaseExpired,
    Parked,
    Raised,
    Released,
    Status,
    Succeeded,
    TimedOut,
    settle,
)

ERROR = '{"type":"ValueError","message":"no"}'


def attempt(failures: int = 0, max_attempts: int = 3, backoff: Backoff = Backoff()) -> Attempt:  # noqa: B008
    return Attempt(
        job_id="job_1", attempt=7, failures=failures, max_attempts=max_attempts, schedule="s", backoff=backoff
    )


@pytest.mark.parametrize(
    ("outcome", "failures", "status", "name", "failures_then"),
    [
        (Succeeded("1"), 0, Status.COMPLETED, "completed", 0),
        (Succeeded(), 2, Status.COMPLETED, "completed", 2),
        (Cancelled(), 1, Status.CANCELLED, "cancelled", 1),
        (Released(), 2, Status.PENDING, "released", 2),
        (Raised(ERROR), 0, Status.RETRYING, "failed", 1),
        (Raised(ERROR), 1, Status.RETRYING, "failed", 2),
        (Raised(ERROR), 2, Status.FAILED, "failed", 3),
        (Raised(ERROR, retryable=False), 0, Status.FAILED, "failed", 1),
        (Crashed(ERROR), 1, Status.RETRYING, "crashed", 2),
        (Crashed(ERROR), 2, Status.FAILED, "crashed", 3),
        (Parked("who?"), 2, Status.BLOCKED, "parked", 2),
        (TimedOut(ERROR, retryable=False), 0, Status.TIMED_OUT, "timed_out", 1),
        (TimedOut(ERROR), 1, Status.RETRYING, "timed_out", 2),
        (TimedOut(ERROR), 2, Status.TIMED_OUT, "timed_out", 3),
        (LeaseExpired(), 2, Status.RETRYING, "expired", 2),
        (LeaseExpired(losses=3), 1, Status.FAILED, "expired", 1),
    ],
)
def test_outcome_of_an_attempt_determines_the_status(
    outcome: AttemptOutcome, failures: int, status: Status, name: str, failures_then: int
) -> None:
    settled = settle(attempt(failures), outcome, 0.5)
    assert (settled.status, settled.outcome, settled.failures) == (status, name, failures_then)
    assert (settled.job_id, settled.attempt, settled.schedule) == ("job_1", 7, "s")


def test_results_errors_and_reasons_are_kept() -> None:
    assert settle(attempt(), Succeeded("[1]"), 0).result == "[1]"
    assert settle(attempt(), Succeeded("[1]"), 0).error is None
    assert settle(attempt(), Raised(ERROR), 0).error == ERROR
    assert settle(attempt(), TimedOut(ERROR), 0).error == ERROR
    assert "LeaseExpired" in (settle(attempt(), LeaseExpired(), 0).error or "")
    assert settle(attempt(), Cancelled("by ann"), 0).reason == "by ann"
    assert settle(attempt(), Released("draining"), 0).reason == "draining"
    assert settle(attempt(2), Raised(ERROR), 0).reason == "raised, failure 3 of 3"
    assert settle(attempt(1), Raised(ERROR), 0).reason == "raised, failure 2 of 3, retrying"
    assert settle(attempt(), Raised(ERROR, retryable=False), 0).reason == "not retryable"
    assert settle(attempt(), Crashed(ERROR), 0).reason == "crashed, failure 1 of 3, retrying"
    parked = settle(attempt(), Parked("nobody knows it", "unknown task"), 0)
    assert (parked.reason, parked.parked, parked.error) == ("nobody knows it", "unknown task", None)


def test_lost_worker_is_not_charged_to_its_job() -> None:
    """Even with one allowed attempt, the job restarts soon and is charged no failure."""
    patient = Backoff(first=DAY, most=DAY)
    lost = [settle(attempt(0, 1, patient), LeaseExpired(losses=losses), 0.5) for losses in (1, 2, LOSSES_MAX)]
    assert [settled.status for settled in lost] == [Status.RETRYING, Status.RETRYING, Status.FAILED]
    assert [settled.retry_in for settled in lost] == [0, LOSS_WAIT_MAX, 0]
    assert [settled.failures for settled in lost] == [0, 0, 0]
    assert lost[-1].reason == "worker lost 3 times, the last time with no other job on it"
    assert settle(attempt(0, 9), LeaseExpired(losses=8), 0.5).status is Status.RETRYING  # 9 are allowed.
    hasty = Backoff(first=SECOND, most=SECOND)
    assert settle(attempt(0, 1, hasty), LeaseExpired(losses=2), 0.0).retry_in == SECOND // 2
    # An older version counted losses as failures, which would give "failure 2 of 1".
    failed = settle(attempt(1, 1), Raised(ERROR), 0.5)
    assert (failed.status, failed.reason) == (Status.FAILED, "raised, failure 2")


def test_job_lost_beside_others_is_isolated_and_not_failed() -> None:
    def company(**lost: int) -> int | None:
        settled = settle(attempt(0, 1), LeaseExpired(**lost), 0.5)  # type: ignore[arg-type]
        assert settled.status is Status.RETRYING
        return settled.company

    assert company(losses=1, beside=99) is None, "the first loss costs nothing"
    assert company(losses=2, beside=99) == 12
    assert company(losses=2, beside=7) == 1
    assert company(losses=2) == 0, "it ran alone"
    assert company(losses=3, beside=30, suspects=11, was_suspect=True) == 1
    assert company(losses=3, beside=30, suspects=0, was_suspect=True) == 0, "after that it runs alone"
    assert company(losses=50, beside=1, suspects=0, was_suspect=True) == 0, "it stays alone after any number of losses"
    windows = [
        settle(attempt(), LeaseExpired(losses=losses, beside=1, longest=longest), 0.5).apart_for
        for losses, longest in ((2, SECOND), (2, MINUTE), (2, HOUR), (5, HOUR), (5, 40 * DAY), (40, 40 * DAY))
    ]
    assert windows == [APART_MIN, 2 * MINUTE, 4 * MINUTE, 32 * MINUTE, 32 * MINUTE, APART_MAX]


def test_task_may_set_its_retry_delay() -> None:
    assert settle(attempt(), Raised(ERROR, retry_in=DAY), 0.9).retry_in == DAY
    assert settle(attempt(), Raised(ERROR, retry_in=0), 0.9).retry_in == 0
    assert settle(attempt(2), Raised(ERROR, retry_in=DAY), 0.9).status is Status.FAILED


spreads = st.floats(0, 1, exclude_max=True)
texts = st.text(max_size=10)
outcomes: st.SearchStrategy[AttemptOutcome] = st.one_of(
    st.builds(Succeeded, st.none() | texts),
    st.builds(Raised, texts, st.booleans(), st.none() | st.integers(0, DAY)),
    st.builds(TimedOut, texts, st.booleans()),
    st.builds(Crashed, texts),
    st.builds(Parked, texts, texts),
    st.builds(Cancelled, texts),
    st.builds(Released, texts),
    st.builds(LeaseExpired, st.integers(1, 2_000), st.integers(0, 5), st.integers(0, 5), st.booleans()),
)
backoffs = st.tuples(st.integers(0, DAY), st.integers(0, DAY)).map(
    lambda pair: Backoff(first=min(pair), most=max(pair))
)
attempts = st.builds(
    lambda failures, more, backoff: attempt(failures, failures + more, backoff),
    st.integers(0, 999),
    st.integers(1, 1_000),
    backoffs,
)


@given(attempts, outcomes, spreads)
@settings(deadline=None)
def test_invariants_of_every_outcome(tried: Attempt, outcome: AttemptOutcome, spread: float) -> None:
    settled = settle(tried, outcome, spread)
    assert settled.status in TRANSITIONS["settle"][1]
    assert (settled.job_id, settled.attempt) == (tried.job_id, tried.attempt)  # The fence never changes.
    assert settled.failures == tried.failures + isinstance(outcome, Raised | Crashed | TimedOut)
    assert settled.failures <= tried.max_attempts
    given_up = settled.failures >= tried.max_attempts or (
        isinstance(outcome, Raised | TimedOut) and not outcome.retryable
    )
    if isinstance(outcome, LeaseExpired):
        given_up = not outcome.beside and outcome.losses >= max(tried.max_attempts, LOSSES_MAX)
    match outcome:
        case Succeeded() | Cancelled():
            assert settled.status in (Status.COMPLETED, Status.CANCELLED)
        case Released():
            assert settled.status is Status.PENDING
        case Parked(_, cause):
            assert (settled.status, settled.parked) == (Status.BLOCKED, cause)
        case _:
            assert settled.status.is_final == given_up
            assert (settled.status is Status.RETRYING) != given_up
            assert (settled.status is Status.TIMED_OUT) == (given_up and isinstance(outcome, TimedOut))
    assert settled.retry_in >= 0
    assert settled.retry_in == 0 or settled.status is Status.RETRYING
    assert (settled.error is not None) == isinstance(outcome, Raised | Crashed | TimedOut | LeaseExpired)
    assert settled.result is None or isinstance(outcome, Succeeded)


@given(backoffs, st.integers(1, 1_000), spreads, spreads)
@settings(deadline=None)
def test_backoff_stays_within_its_bounds(backoff: Backoff, failures: int, spread: float, other: float) -> None:
    wait = backoff.wait(failures, spread)
    nominal = min(backoff.first * 2 ** (failures - 1), backoff.most)
    assert nominal // 2 <= wait <= nominal + 1
    assert 0 <= wait <= backoff.most + 1
    assert backoff.wait(failures + 1, spread) >= wait
    assert (backoff.wait(failures, other) >= wait) or other < spread


def test_backoff_doubles() -> None:
    backoff = Backoff(first=4 * SECOND, most=MINUTE)
    assert [backoff.wait(failures, 0) // SECOND for failures in range(1, 8)] == [2, 4, 8, 16, 30, 30, 30]
    assert backoff.wait(1, 0.5) == 3 * SECOND
    assert Backoff(first=1, most=DAY).wait(10**9, 0.5) <= DAY


@pytest.mark.parametrize(
    ("text", "first", "most"),
    [("5s..5m", 5 * SECOND, 5 * MINUTE), ("10s", 10 * SECOND, 10 * SECOND), ("0s..0s", 0, 0), (30, 30 * SECOND, None)],
)
def test_backoff_is_parsed(text: str | int, first: int, most: int | None) -> None:
    backoff = Backoff.parse(text)
    assert (backoff.first, backoff.most) == (first, first if most is None else most)
    assert Backoff.parse(str(backoff)) == backoff


@pytest.mark.parametrize(
    "text", ["", "..", "5s..", "..5m", "5m..5s", "5s...5m", "x", "5s..5m..6m", "9" * 10**6, None, 1e99]
)
def test_invalid_backoffs_are_rejected(text: object) -> None:
    with pytest.raises(DefinitionError, match=r"^backoff must ") as refused:
        Backoff.parse(text)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 160


def test_final_states_have_no_transitions() -> None:
    assert {status for status in Status if status.is_final} == FINAL
    for sources, targets in TRANSITIONS.values():
        assert not sources & FINAL
        assert targets
    reached = {status for _, targets in TRANSITIONS.values() for status in targets}
    assert reached >= FINAL
    assert {status for sources, _ in TRANSITIONS.values() for status in sources} == set(Status) - FINAL
