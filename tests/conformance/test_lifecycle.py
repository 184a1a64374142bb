"""Every status × every verb × every database: transitions in `TRANSITIONS` happen, all others change nothing."""

import re
from collections.abc import Awaitable, Callable

import pytest

from headway.core.errors import AlreadyFinal
from headway.core.instants import HOUR
from headway.core.lifecycle import (
    FINAL,
    TRANSITIONS,
    Attempt,
    AttemptOutcome,
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
from headway.store.statements import POSTGRES, SQLITE, Dialect, catalogue, migrations
from tests.conformance.arrange import LEASE, bring_to
from tests.conformance.backend import Backend, changed

OUTCOMES: tuple[AttemptOutcome, ...] = (
    Succeeded('{"n":2}'),
    Raised('{"type":"E"}'),
    Raised('{"type":"E"}', retryable=False),
    Crashed('{"type":"C"}'),
    TimedOut('{"type":"T"}'),
    TimedOut('{"type":"T"}', retryable=False),
    Cancelled(),
    Released(),
    Parked("nobody knows it"),
    LeaseExpired(),
)

Verb = Callable[[Backend, str], Awaitable[bool]]


async def _promote(backend: Backend, job_id: str) -> bool:
    before = (await backend.job(job_id))["blocked_by"]
    if before is not None:
        await backend.store.queue.cancel(before, author="test")
    await backend.advance(2 * HOUR)
    return await backend.store.housekeeping.promote(100) == 1


async def _claim(backend: Backend, job_id: str) -> bool:
    queue = (await backend.job(job_id))["queue"]
    return [job.id for job in await backend.store.work.claim(queue, node="n", lease=LEASE, limit=9)] == [job_id]


async def _cancel(backend: Backend, job_id: str) -> bool:
    try:
        job = await backend.store.queue.cancel(job_id, author="test")
    except AlreadyFinal:
        return False
    return job.status is Status.CANCELLED


def _settle_with(outcome: AttemptOutcome, max_attempts: int) -> Verb:
    async def verb(backend: Backend, job_id: str) -> bool:
        row = await backend.job(job_id)
        attempt = Attempt(
            job_id=job_id, attempt=max(row["attempt"], 1), failures=row["failures"], max_attempts=max_attempts
        )
        stale = await backend.store.work.settle([settle(attempt, outcome, 0.5)])
        assert stale in (frozenset(), frozenset({job_id}))
        return not stale and changed(row, await backend.job(job_id)) != {}  # The same outcome again is accepted.

    return verb


VERBS: dict[str, list[Verb]] = {
    "promote": [_promote],
    "claim": [_claim],
    "cancel": [_cancel],
    "settle": [_settle_with(outcome, attempts) for outcome in OUTCOMES for attempts in (1, 5)],
}


def test_every_verb_is_tried() -> None:
    assert VERBS.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize("verb", TRANSITIONS)
@pytest.mark.parametrize("status", Status)
async def test_every_verb_on_every_status(backend: Backend, status: Status, verb: str) -> None:
    sources, targets = TRANSITIONS[verb]
    reached = set()
    for act in VERBS[verb]:
        job_id = await bring_to(backend.store, status)
        before = await backend.job(job_id)
        assert before["status"] == status
        moved = await act(backend, job_id)
        after = await backend.job(job_id)
        assert moved == (status in sources)
        if moved:
            reached.add(Status(after["status"]))
            assert after["version"] > before["version"]
            assert (after["finished_at"] is not None) == (after["status"] in FINAL)
            assert (after["lease_until"] is not None) == (after["status"] == Status.RUNNING)
        elif (status, verb) == (Status.RUNNING, "cancel"):  # Only requested: the code has not stopped yet.
            assert after["status"] == Status.RUNNING
            assert after["cancel_requested_at"] is not None
        else:
            assert changed(before, after) == {}
    assert reached == (targets if status in sources else set())


@pytest.mark.parametrize("status", sorted(FINAL))
async def test_final_states_never_change(backend: Backend, status: Status) -> None:
    """Apply all verbs in a row, advance the clock, expire leases: the row does not change."""
    job_id = await bring_to(backend.store, status)
    before = await backend.job(job_id)
    for verbs in VERBS.values():
        for verb in verbs:
            await verb(backend, job_id)
    await backend.store.housekeeping.expire(100)
    await backend.store.work.extend([(job_id, before["attempt"])], lease=LEASE)
    assert changed(before, await backend.job(job_id)) == {}


def _header(text: str) -> tuple[frozenset[Status], frozenset[Status]]:
    sources, targets = (frozenset(map(Status, side.split(", "))) for side in text.split(" -> "))
    return sources, targets


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)
def test_headers_of_statements_match_the_transitions(dialect: Dialect) -> None:
    """The headers of all statements that write a status add up to `TRANSITIONS`, and their bodies enforce them."""
    found: dict[str, tuple[frozenset[Status], frozenset[Status]]] = {}
    for statement in catalogue(dialect).values():
        writes = re.search(r"update headway_jobs\s+set status\b", statement.text) is not None
        assert writes == (statement.transition is not None), statement.name
        if statement.transition is None:
            continue
        sources, targets = _header(statement.transition)
        guard = statement.text.rpartition("\nwhere ")[2] if statement.name.startswith("settle") else statement.text
        named = set(re.findall(r"'([A-Z_]+)'", guard)) & set(Status)
        assert sources <= named, f"{statement.name} does not guard its sources"
        verb = statement.name.partition("_")[0]
        known = found.get(verb, (frozenset[Status](), frozenset[Status]()))
        found[verb] = (known[0] | sources, known[1] | targets)
    assert found == TRANSITIONS


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)
def test_check_constraint_lists_exactly_the_statuses(dialect: Dialect) -> None:
    script = "\n".join(text for step in migrations(dialect) for text in step.statements)
    jobs = next(text for text in script.split("create table ") if text.startswith("headway_jobs"))
    [listed] = re.findall(r"check \(status in \(([^)]*)\)", jobs)
    assert re.findall(r"'(\w+)'", listed) == list(Status)


async def test_database_rejects_an_unknown_status(backend: Backend) -> None:
    job_id = await bring_to(backend.store, Status.PENDING)
    with pytest.raises(Exception, match=r"(?i)check constraint"):
        await backend.sql(f"update headway_jobs set status = 'LOST' where id = '{job_id}'")
    assert (await backend.job(job_id))["status"] == Status.PENDING
