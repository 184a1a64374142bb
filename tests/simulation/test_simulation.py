"""Run some seeds with every test run, and prove that the checkers detect broken copies."""

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

import headway.store.ledger
from headway.coordination.elector import Elector
from headway.core import lifecycle
from headway.core.errors import StoreUnavailable
from headway.core.lifecycle import Attempt, AttemptOutcome, LeaseExpired, Released, Settlement
from headway.core.limits import Lane, Rules, kind_of
from headway.core.nodes import Lease
from headway.core.ports import Fence
from headway.store import housekeeping, lanes
from headway.store.limits import StoreLimits
from headway.store.transaction import Transaction
from headway.worker import prefetch as prefetch
from headway.worker import settler, stopper
from headway.worker.claimer import Claimer
from headway.worker.leases import LeaseWatchdog
from headway.worker.settler import Settler
from tests.simulation.campaign import MUST_SEE, missing
from tests.simulation.scenario import Mishaps, Scenario
from tests.simulation.simulation import Result, Sabotage, simulate
from tests.support import evidence
from tests.support.waiting import DEADLINE_S

ROOT: Final = Path(__file__).parents[2]
FIXED: Final = range(16)
FRESH_S_MAX: Final = 6.0  # Of new seeds, as many as the machine can run in this time.
CAUGHT_WITHIN: Final = 12  # The number of seeds within which a sabotage must be detected.
OFTEN_FROZEN: Final = Mishaps(before=0.0, after=0.0, freeze=0.01, crash=0.0)
OFTEN_UNHEARD: Final = Mishaps(before=0.0, after=0.05, freeze=0.003, crash=0.0)
OFTEN_KILLED: Final = Mishaps(before=0.0, after=0.0, freeze=0.0, crash=0.01)
OFTEN_UNREACHABLE: Final = Mishaps(before=0.06, after=0.02, freeze=0.0, crash=0.0)


def explain(result: Result) -> str:
    """Describe a failure and how to replay it."""
    return f"seed {result.seed}: {result.problem}\nreplay: make sim SEED={result.seed}"


@pytest.mark.slow
def test_fixed_seeds_keep_every_promise() -> None:
    seen: Counter[str] = Counter()
    for seed in FIXED:
        result = simulate(seed)
        assert result.problem is None, explain(result)
        seen.update(result.seen)
    rare = {
        "another node decided first",
        "stale attempt refused",
        "pruned",
        "term lost: the store refused its token",
        "handed back for a worker that lives",
    }
    assert not set(missing(seen)) - rare, f"{len(FIXED)} seeds never saw {missing(seen)}"


@pytest.mark.slow
def test_fresh_seeds_keep_every_promise() -> None:
    first = time.time_ns() // 1_000_000 % 1_000_000_000
    evidence.note("first seed", first)
    until = time.monotonic() + FRESH_S_MAX
    for seed in range(first, first + 50):
        result = simulate(seed)
        assert result.problem is None, explain(result)
        if time.monotonic() > until:
            break


def test_seed_determines_the_history() -> None:
    first, second = simulate(7), simulate(7, verbose=True)
    assert first.digest == second.digest
    assert first.seen == second.seen
    assert second.log
    assert simulate(8).digest != first.digest


def test_seed_determines_the_history_in_every_process() -> None:
    code = "from tests.simulation.simulation import simulate; print(simulate(7).digest)"
    environ = {**os.environ, "PYTHONHASHSEED": "12345"}
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert said.stdout.strip() == simulate(7).digest


def test_campaign_that_saw_too_little_fails() -> None:
    assert missing(Counter()) == list(MUST_SEE)
    assert missing(Counter(dict.fromkeys(MUST_SEE[1:], 1))) == [MUST_SEE[0]]


# The broken copies. Each lacks one safeguard; the checkers must detect the effects.


@pytest.mark.parametrize("mishaps", [OFTEN_FROZEN, OFTEN_UNHEARD, OFTEN_UNREACHABLE])
def test_intact_copy_keeps_every_promise_with_the_seeds_of_the_broken_ones(mishaps: Mishaps) -> None:
    for seed in range(3):
        result = simulate(seed, mishaps=mishaps)
        assert result.problem is None, result.problem


def caught(
    sabotage: Sabotage | None = None,
    mishaps: Mishaps = OFTEN_FROZEN,
    *,
    first: int = 0,
    within: int = CAUGHT_WITHIN,
) -> Iterator[str]:
    """Yield what the checkers find in a broken copy, seed by seed."""
    for seed in range(first, first + within):
        problem = simulate(seed, sabotage=sabotage, mishaps=mishaps).problem
        if problem is not None:
            yield problem


def test_missing_unique_key_is_caught() -> None:
    broken = Sabotage(
        schema={
            "job_id     text,\n  primary key (schedule, instant)\n": "job_id     text\n",
        },
        statements={"advance": (" and headway_schedules.version = r.seen_version", "")},
    )
    problem = next(caught(broken), "")
    assert "S1: decided twice" in problem or "version" in problem, problem


def test_missing_fence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fence(fence: Fence) -> Transaction[None]:
        return
        yield

    monkeypatch.setattr(headway.store.ledger, "_check_fence", no_fence)
    # The version of the schedule still rejects most of it: this is the safeguard behind the fence.
    problem = next(caught(), "")
    assert "fencing" in problem, problem


def test_endless_trust_in_leases_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(self: Elector) -> dict[str, Lease]:
        return {role: term.lease for role, term in self._terms.items()}

    monkeypatch.setattr(Elector, "held", held)
    problem = next(caught(), "")
    assert "nobody trusts a lease that is not held" in problem, problem


def test_early_decision_is_caught() -> None:
    broken = Sabotage(statements={"due": ("headway_now()", "(headway_now() + 2000000)")})
    problem = next(caught(broken), "")
    assert "S11" in problem, problem


def test_decision_without_its_job_is_caught() -> None:
    broken = Sabotage(statements={"enqueue": ("where true", "where r.occurrence_at is null")})
    problem = next(caught(broken), "")
    assert "S1: fired without a job" in problem, problem


def test_second_live_job_is_caught() -> None:
    broken = Sabotage(
        schema={"create unique index headway_jobs_exclusive": "create index headway_jobs_exclusive"},
        statements={"live_jobs": ("j.finished_at is null", "j.finished_at is null and j.status <> 'RUNNING'")},
    )
    problem = next(caught(broken), "")
    assert "S7" in problem, problem


FENCE: Final = "and headway_jobs.attempt = r.job_attempt and headway_jobs.status || '' = 'RUNNING'"


def test_unfenced_settlement_is_caught() -> None:
    broken = Sabotage(
        schema={"error      text,\n  primary key (job_id, attempt)\n": "error      text\n"},
        statements={"settle": (FENCE, "")},
    )
    problem = next(caught(broken, OFTEN_UNHEARD), "")
    assert "S3" in problem or "S4" in problem or "S12" in problem, problem


def test_unfenced_completion_is_caught() -> None:
    broken = Sabotage(statements={"settle_completed": (FENCE, "")})
    problem = next(caught(broken, OFTEN_UNHEARD), "")
    assert "S3" in problem or "S4" in problem, problem


def test_unfenced_report_is_caught() -> None:
    broken = Sabotage(statements={"report": (FENCE, "")})
    problem = next(caught(broken, within=3 * CAUGHT_WITHIN), "")
    assert "S3" in problem or "S4" in problem, problem


def test_unfenced_steps_and_children_are_caught() -> None:
    broken = Sabotage(statements={"hold_attempt": ("and attempt = :attempt and status = 'RUNNING'", "")})
    problem = next(caught(broken), "")
    assert "S3: said by a stale attempt" in problem or "S3: enqueued by" in problem, problem


def test_endless_trust_in_job_leases_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(self: LeaseWatchdog) -> float:
        return 0.2

    monkeypatch.setattr(LeaseWatchdog, "tick", watch)
    # A store outage longer than a lease that ends in time for another worker is rare.
    problem = next(caught(mishaps=OFTEN_UNREACHABLE, within=3 * CAUGHT_WITHIN), "")
    assert "S3: the code of" in problem, problem


def test_start_after_the_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claimer, "_trusted", lambda self, jobs: list(jobs))
    problem = next(caught(), "")
    assert "S3: the code of a stale attempt begins" in problem, problem


def test_outcome_lost_with_its_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Settler.tick

    async def forgetful(self: Settler) -> float:
        try:
            return await settle(self)
        except StoreUnavailable:
            self._settling = []
            raise

    monkeypatch.setattr(Settler, "tick", forgetful)
    assert any("L3: nobody runs it" in problem for problem in caught(mishaps=OFTEN_UNREACHABLE))


def test_rescue_by_age_is_caught() -> None:
    broken = Sabotage(
        statements={
            "any_expired": ("lease_until < headway_now()", "started_at < headway_now() - 6000000"),
            "expired": ("lease_until < headway_now()", "started_at < headway_now() - 6000000"),
        }
    )
    problem = next(caught(broken), "")
    assert "L3: a live job was rescued" in problem, problem


def test_missing_rescue_is_caught() -> None:
    broken = Sabotage(statements={"any_expired": ("lease_until < headway_now()", "false")})
    problem = next(caught(broken), "")
    assert "L3: not" in problem, problem


def test_release_that_counts_as_a_failure_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(attempt: Attempt, outcome: AttemptOutcome, spread: float) -> Settlement:
        settlement = lifecycle.settle(attempt, outcome, spread)
        if isinstance(outcome, Released):
            settlement = msgspec.structs.replace(settlement, failures=settlement.failures + 1)
        return settlement

    monkeypatch.setattr(settler, "settle", settle)
    problem = next(caught(), "")
    assert "L7: what counts as a failure" in problem, problem


def test_stop_that_loses_a_claim_in_flight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(self: Claimer) -> float:
        if not self._held.child_pool.tasks or self._held.draining is not None:
            return 1.0
        return await self._claim(self._held.child_pool)

    monkeypatch.setattr(Claimer, "tick", claim)
    problem = next(caught(mishaps=OFTEN_UNHEARD), "")
    assert "L7: a clean stop left jobs behind" in problem, problem


def test_hoarding_worker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prefetch.PrefetchEstimator, "fits", lambda self, tasks, width, load: 1_000_000
    )  # All jobs are claimed,
    monkeypatch.setattr(prefetch.PrefetchEstimator, "prefetch_for", lambda self, width: 1_000)
    monkeypatch.setattr(stopper, "WAIT_S_MAX", 1_000.0)  # and waiting ones are not released.
    crowded = [seed for seed in range(500) if Scenario.of(seed).workers > 2]  # A worker dies in the quiet phase.
    problem = next(filter(None, (simulate(seed).problem for seed in crowded[:CAUGHT_WITHIN])), "")
    assert "L2: it has not begun although there is a free slot" in problem, problem


def test_repeated_step_is_caught() -> None:
    broken = Sabotage(statements={"steps": ("where job_id in", "where 1 = 0 and job_id in")})
    problem = next(caught(broken), "")
    assert "a finished step is repeated" in problem, problem


def test_lost_instant_is_caught() -> None:
    broken = Sabotage(statements={"record": ("where true", "where r.outcome <> 'coalesced'")})
    problem = next(caught(broken), "")
    assert "S1: passed over" in problem or "S1: not the next instant" in problem, problem


def test_charging_jobs_beside_the_culprit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(attempt: Attempt, outcome: AttemptOutcome, spread: float) -> Settlement:
        if isinstance(outcome, LeaseExpired):
            outcome = msgspec.structs.replace(outcome, beside=0)
        return lifecycle.settle(attempt, outcome, spread)

    monkeypatch.setattr(housekeeping, "settle", settle)
    problems = caught(mishaps=OFTEN_KILLED, within=12 * CAUGHT_WITHIN)
    assert any("L6: given up, though others ran beside it" in problem for problem in problems)


def test_too_many_concurrent_suspects_are_caught() -> None:
    broken = Sabotage(statements={"claim": ("and company is null", "")})
    problem = next(caught(broken, within=3 * CAUGHT_WITHIN), "")
    assert "L6: " in problem, problem


def test_claim_lost_with_its_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: Claimer) -> None:
        """Wait for the lease to expire."""

    monkeypatch.setattr(Claimer, "hand_back_unknown", forget)
    problems = {problem.partition(":")[2][:30] for problem in caught(within=CAUGHT_WITHIN)}
    assert any("L3: nobody runs it" in problem or "L7: a clean stop" in problem for problem in problems), problems


# Limits. A claim that counts before it locks is not visible here: SQLite has one writer at a time.


def caught_under_limits(
    sabotage: Sabotage | None = None, mishaps: Mishaps | None = None, *, within: int = CAUGHT_WITHIN
) -> Iterator[str]:
    """Yield what the checkers find in a broken copy, in worlds that have limits."""
    limited = (seed for seed in range(500) if Scenario.of(seed).has_limits)
    for seed in itertools.islice(limited, within):
        problem = simulate(seed, sabotage=sabotage, mishaps=mishaps).problem
        if problem is not None:
            yield problem


@pytest.mark.parametrize("kind", ["queue", "task", "tenant", "key"])
def test_claim_that_ignores_a_gate_is_caught(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    gates = Rules.gates

    def some(self: Rules, queue: str, lane: Lane) -> tuple[str, ...]:
        return tuple(name for name in gates(self, queue, lane) if kind_of(name) != kind)

    monkeypatch.setattr(Rules, "gates", some)
    problem = next(caught_under_limits(), "")
    assert "S8: more run than allowed" in problem or "S8: more started" in problem or "not in force" in problem, problem


def test_attempt_that_is_not_counted_is_caught() -> None:
    broken = Sabotage(statements={"mark_running": ("lease_until is not null", "1 = 0")})
    problem = next(caught_under_limits(broken), "")
    assert "S8: an attempt under a limit is not counted" in problem, problem


def test_count_that_forgets_attempts_is_caught() -> None:
    broken = Sabotage(statements={"count_running": ("(j.held & 4) = 4", "j.started_at > headway_now() - 2000000")})
    problem = next(caught_under_limits(broken), "")
    assert "S8: more run than allowed tenant:" in problem, problem


def test_forgotten_starts_are_caught() -> None:
    broken = Sabotage(statements={"mark_gates": ("r.to_state", "''")})
    problem = next(caught_under_limits(broken), "")
    assert "S8: more started than allowed" in problem, problem


def test_limit_in_force_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    read = lanes.read_limit
    monkeypatch.setattr(lanes, "read_limit", lambda row: msgspec.structs.replace(read(row), in_force=True))
    problem = next(caught_under_limits(mishaps=OFTEN_UNREACHABLE), "")
    assert "S8: started under a limit that is not in force" in problem, problem


def test_lane_that_is_never_reopened_is_caught() -> None:
    broken = Sabotage(statements={"reopen_lanes": ("held_by is not null", "1 = 0")})
    problem = next(caught_under_limits(broken), "")
    assert "L2: a lane waits at" in problem or "L2: it has not begun" in problem, problem


def test_missing_sweep_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep_going(self: StoreLimits) -> bool:
        return False

    monkeypatch.setattr(StoreLimits, "keep_going", keep_going)
    assert any("L2: " in problem for problem in caught_under_limits(mishaps=OFTEN_UNREACHABLE))


def test_lost_ring_is_caught() -> None:
    broken = Sabotage(statements={"take_rings": ("where queue = :queue", "where queue = :queue and tenant = 'acme'")})
    problem = next(caught_under_limits(broken), "")
    assert "L2: " in problem, problem
