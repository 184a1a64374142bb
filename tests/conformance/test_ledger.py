"""Schedules and their ledger, on every database: one record per instant, whatever people and processes do."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from headway.core.clock import Clock
from headway.core.errors import InvalidSchedule, LeaseLost, ScheduleChanged, ScheduleNotFound, ScheduleOwned
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, isoformat
from headway.core.lifecycle import LOSSES_MAX, Raised, Released, Status, Succeeded
from headway.core.occurrences import Decided, LiveJobs, Occurrence
from headway.core.ports import Fence, Shards
from headway.core.schedule_names import ScheduleRef, schedule_key
from headway.core.schedules import Overlap, ScheduleSpec
from headway.core.triggers import At, Cron, Every
from headway.store import Store
from headway.store.ledger import _fire
from headway.store.schedule_definitions import REFUSED
from headway.store.schedules import BACKFILL_MAX, in_pieces
from headway.store.transaction import ConstraintViolated
from tests.conformance.arrange import (
    EVERYTHING,
    LEASE,
    after,
    claim_one,
    decide,
    due_plans,
    end,
    enqueue,
    lose,
    plan_at,
    run_one,
    spec,
)
from tests.conformance.backend import Backend, Interrupted, columns

SOON = 10 * SECOND  # Longer than any of these tests takes.
EXCLUSIVE = [Overlap.SKIP, Overlap.QUEUE, Overlap.REPLACE]


async def _ledger(store: Store, name: str) -> list[Occurrence]:
    """Read a schedule's whole ledger, oldest first."""
    return [occurrence for occurrence, _ in await store.ledger.ledger(name, 0, 2**62, 10_000)]


async def _instants(store: Store, name: str) -> list[tuple[str, int, int]]:
    return [(entry.outcome, entry.instant, entry.count) for entry in await _ledger(store, name)]


async def _audit(backend: Backend, name: str, definition: ScheduleSpec, since: int) -> None:
    """Compare the ledger with the instants of the trigger, computed independently of the planner."""
    trigger = definition.trigger
    assert isinstance(trigger, Every)
    decided_through = (await backend.schedule(name))["decided_through"]
    expected = [
        n * trigger.interval for n in range(since // trigger.interval + 1, decided_through // trigger.interval + 1)
    ]
    recorded: list[int] = []
    for entry in await _ledger(backend.store, name):
        run = [entry.instant + n * trigger.interval for n in range(entry.count)]
        assert run[-1] == (entry.until or entry.instant)
        recorded += run
    assert recorded == expected


async def _live(backend: Backend, name: str) -> list[str]:
    rows = await backend.sql(
        f"select status from headway_jobs where schedule = '{name}' and finished_at is null order by status"
    )
    return [row["status"] for row in rows]


# Create, edit, remove, add again


async def test_new_schedule_starts_now(backend: Backend) -> None:
    before = await backend.now()
    assert await backend.store.schedules.put("s", spec("1h"), owner="app", author="ada") == "created"
    schedule = await backend.store.schedules.get("s")
    assert before <= schedule.created_at == schedule.decided_through <= await backend.now()
    assert schedule.next_at == (schedule.decided_through // HOUR + 1) * HOUR
    assert (schedule.revision, schedule.version, schedule.owner, schedule.pauses) == (1, 1, "app", ())
    assert schedule.spec == spec("1h")
    [revision] = await backend.store.ledger.revisions("s")
    assert (revision.revision, revision.effective_at, revision.spec, revision.author) == (
        1,
        schedule.created_at,
        spec("1h"),
        "ada",
    )
    assert await _ledger(backend.store, "s") == []


async def test_edit_decides_the_past_with_the_old_definition(backend: Backend) -> None:
    """Instants due at the time of the edit are decided in the same transaction, by the old definition."""
    store = backend.store
    old, new = spec("1m", overlap="allow", args={"n": 1}), spec("7s", overlap="allow", args={"n": 2})
    await store.schedules.put("s", old)
    created = (await store.schedules.get("s")).created_at
    await backend.advance(10 * MINUTE)
    assert await store.schedules.put("s", new, author="ada") == "changed"
    first, second = await store.ledger.revisions("s")
    entries = await _ledger(store, "s")
    assert sum(entry.count for entry in entries) == second.effective_at // MINUTE - created // MINUTE
    assert {entry.revision for entry in entries} == {1}
    assert all(first.effective_at < entry.instant <= second.effective_at for entry in entries)
    jobs = await store.jobs.page(schedule="s")
    assert {job.args for job in jobs} == {'{"n":1}'}
    schedule = await store.schedules.get("s")
    assert (schedule.decided_through, schedule.revision) == (second.effective_at, 2)
    assert schedule.next_at == (second.effective_at // (7 * SECOND) + 1) * 7 * SECOND
    await backend.advance(MINUTE)
    await decide(store)
    later = [entry for entry in await _ledger(store, "s") if entry.revision == 2]
    assert later
    assert all(entry.instant > second.effective_at for entry in later)


async def test_unchanged_definition_changes_nothing(backend: Backend) -> None:
    await backend.store.schedules.put("s", spec("1m"))
    before = await backend.schedule("s")
    await backend.advance(HOUR)
    assert await backend.store.schedules.put("s", spec("60s")) == "unchanged"
    assert await backend.schedule("s") == before
    assert len(await backend.store.ledger.revisions("s")) == 1


async def test_removing_and_adding_again_repeats_no_instant(backend: Backend) -> None:
    store = backend.store
    definition = spec("1s", overlap="allow")
    await store.schedules.put("s", definition)
    seen: list[int] = []
    for _ in range(4):
        await backend.advance(5 * SECOND)
        await decide(store)
        await backend.advance(2 * SECOND)
        assert await store.schedules.remove("s", author="ada")
        assert (await backend.schedule("s"))["next_at"] is None
        with pytest.raises(ScheduleNotFound):
            await store.schedules.get("s")
        assert await store.schedules.remove("s") is False
        assert await store.schedules.put("s", definition) == "created"
    for entry in await _ledger(store, "s"):
        seen += [entry.instant + n * SECOND for n in range(entry.count)]
    assert seen == sorted(set(seen))
    revisions = await store.ledger.revisions("s")
    assert [revision.revision for revision in revisions] == list(range(1, 10))
    assert [revision.spec is None for revision in revisions] == [False, *[True, False] * 4]
    for old, new in itertools.pairwise(revisions):
        assert old.effective_at <= new.effective_at
        covered = [instant for instant in seen if old.effective_at < instant <= new.effective_at]
        if old.spec is None:
            assert covered == []
        else:
            assert len(covered) == new.effective_at // SECOND - old.effective_at // SECOND


async def test_back_and_forth_edits_keep_the_ledger_complete(backend: Backend) -> None:
    """Switch between definitions: instants of the active one are decided once, the others not at all."""
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    since = (await store.schedules.get("s")).created_at
    for number in range(6):
        await backend.advance(3 * SECOND)
        if number % 2:
            await decide(store)
        await store.schedules.put("s", spec("1s", priority=number))
    await _audit(backend, "s", spec("1s"), since)


async def test_owners(backend: Backend) -> None:
    schedules = backend.store.schedules
    await schedules.put("s", spec("1m"), owner="billing")
    with pytest.raises(ScheduleOwned, match="billing"):
        await schedules.put("s", spec("2m"), owner="reports")
    with pytest.raises(ScheduleOwned):
        await schedules.put("s", spec("2m"))
    assert await schedules.remove("s", owner="reports") is False
    assert (await schedules.get("s")).spec == spec("1m")
    assert await schedules.put("s", spec("2m"), owner="reports", take_over=True) == "changed"
    assert (await schedules.get("s")).owner == "reports"
    assert [schedule.name for schedule in await schedules.page(owner="billing")] == []
    assert await schedules.remove("s", owner="reports")
    assert await schedules.put("s", spec("2m"), owner="billing") == "created"  # Removed: free for any owner.


async def test_expected_revisions(backend: Backend) -> None:
    schedules = backend.store.schedules
    with pytest.raises(ScheduleChanged):
        await schedules.put("s", spec("1m"), expected_revision=1)
    await schedules.put("s", spec("1m"), expected_revision=0)
    with pytest.raises(ScheduleChanged):
        await schedules.put("s", spec("2m"), expected_revision=0)
    await schedules.put("s", spec("2m"), expected_revision=1)
    with pytest.raises(ScheduleChanged, match="revision 2"):
        await schedules.put("s", spec("3m"), expected_revision=1)
    assert (await schedules.get("s")).spec == spec("2m")
    await schedules.remove("s")
    with pytest.raises(ScheduleChanged):  # Read before another client removed it.
        await schedules.put("s", spec("3m"), expected_revision=2)
    assert await schedules.put("s", spec("3m"), expected_revision=0) == "created"


async def test_schedule_without_instants_is_rejected(backend: Backend) -> None:
    schedules = backend.store.schedules
    past = spec(At("2020-01-01T00:00:00Z"))
    with pytest.raises(InvalidSchedule, match="no instant"):
        await schedules.put("s", past)
    assert await backend.count("headway_schedules") == 0
    assert await schedules.put("s", past, may_be_over=True) == "created"
    assert (await schedules.get("s")).next_at is None


async def test_racing_creators_create_one_schedule(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    answers = await asyncio.gather(*(stores[n % 3].schedules.put("s", spec("1m")) for n in range(9)))
    assert sorted(answers) == ["created"] + ["unchanged"] * 8
    assert len(await shared.store.ledger.revisions("s")) == 1


async def test_racing_editors_each_create_a_revision(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    await shared.store.schedules.put("s", spec("1s"))
    since = (await shared.store.schedules.get("s")).created_at
    await shared.advance(MINUTE)
    answers = await asyncio.gather(
        *(stores[n % 3].schedules.put("s", spec("1s", priority=n)) for n in range(1, 10)), due_plans(shared.store)
    )
    assert answers[:-1] == ["changed"] * 9
    revisions = await shared.store.ledger.revisions("s")
    assert [revision.revision for revision in revisions] == list(range(1, 11))
    assert [revision.effective_at for revision in revisions] == sorted(revision.effective_at for revision in revisions)
    await decide(shared.store)
    await _audit(shared, "s", spec("1s"), since)


async def test_one_of_racing_editors_with_an_expected_revision_wins(shared: Backend) -> None:
    other = await shared.another()
    await shared.store.schedules.put("s", spec("1m"))
    answers = await asyncio.gather(
        *(
            store.schedules.put("s", spec("1m", priority=number), expected_revision=1)
            for number, store in enumerate((shared.store, other) * 4, 1)
        ),
        return_exceptions=True,
    )
    assert sum(answer == "changed" for answer in answers) == 1
    assert sum(isinstance(answer, ScheduleChanged) for answer in answers) == 7


async def test_putting_many_keeps_schedules_of_other_owners(backend: Backend) -> None:
    schedules = backend.store.schedules
    await schedules.put("s-1", spec("1m"), owner="other")
    pieces = list(in_pieces({ScheduleRef("default", f"s-{number}"): spec("5m") for number in range(1_000)}))
    first = Counter([done for piece in pieces for done in await schedules.put_many(piece, owner="app", author="ada")])
    assert first.pop("created") == 999
    assert [done.startswith(REFUSED) for done in first.elements()] == [True]
    assert (await schedules.get("s-1")).spec == spec("1m")
    again = Counter([done for piece in pieces for done in await schedules.put_many(piece, owner="app")])
    assert again["unchanged"] == 999
    assert await backend.count("headway_revisions") == 1_000
    names = [schedule.name for schedule in await schedules.page(owner="app", limit=10)]
    assert names == sorted(f"s-{number}" for number in range(1_000) if number != 1)[:10]
    assert [s.name for s in await schedules.page(after=ScheduleRef("default", names[-1]), limit=1)] == ["s-108"]


# Pause, resume


async def test_pause_is_a_window_of_time(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="allow"))
    since = (await store.schedules.get("s")).created_at
    await backend.advance(5 * SECOND)
    assert await store.schedules.pause("s", author="ada", reason="moving house")
    assert await store.schedules.pause("s") is False
    await backend.advance(5 * SECOND)
    await decide(store)
    assert await backend.sql("select paused from headway_schedules_v where name = 's'") in (
        [{"paused": 1}],
        [{"paused": True}],
    )
    await backend.advance(5 * SECOND)
    assert await store.schedules.resume("s", author="ada")
    assert await store.schedules.resume("s") is False
    await backend.advance(5 * SECOND)
    await decide(store)
    entries = await _ledger(store, "s")
    outcomes = [entry.outcome for entry in entries for _ in range(entry.count)]
    assert [outcome for outcome, _ in itertools.groupby(outcomes)] == [Decided.FIRED, Decided.PAUSED, Decided.FIRED]
    assert 10 <= outcomes.count(Decided.PAUSED) <= 20  # As many seconds as begin in a bit more than ten seconds.
    [reason] = {entry.reason for entry in entries if entry.outcome is Decided.PAUSED}
    assert reason == "paused by ada: moving house"
    await _audit(backend, "s", spec("1s"), since)
    assert (await store.schedules.get("s")).pauses == ()  # Decided windows are only in the ledger.
    events = await backend.sql("select event from headway_events where schedule = 's' order by seq")
    assert columns(events, "event") == [("paused",), ("resumed",)]


async def test_pause_with_an_end(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="allow"))
    now = await backend.now()
    with pytest.raises(InvalidSchedule, match="future"):
        await store.schedules.pause("s", until=now - SECOND)
    until = now + 10 * SECOND
    assert await store.schedules.pause("s", until=until)
    [pause] = (await store.schedules.get("s")).pauses
    await backend.advance(20 * SECOND)
    await decide(store)
    paused = [entry for entry in await _ledger(store, "s") if entry.outcome is Decided.PAUSED]
    fired = [entry for entry in await _ledger(store, "s") if entry.outcome is Decided.FIRED]
    assert all(entry.instant <= until for entry in paused)
    assert all(not pause.covers(entry.instant) for entry in fired)
    assert any(entry.instant > until for entry in fired)
    assert paused
    assert fired
    assert await store.schedules.resume("s") is False


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger", "backfill"])
async def test_verbs_on_unknown_schedules(backend: Backend, verb: str) -> None:
    schedules = backend.store.schedules
    await schedules.put("removed", spec("1m"))
    await schedules.remove("removed")
    for name in ("removed", "never"):
        with pytest.raises(ScheduleNotFound, match=name):
            await getattr(schedules, verb)(name, *((0, 1) if verb == "backfill" else ()))
    assert await schedules.remove("never") is False


# Trigger, backfill and the one live job of an exclusive schedule


@pytest.mark.parametrize("overlap", Overlap)
async def test_trigger(backend: Backend, overlap: Overlap) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d", overlap=overlap, args={"n": 1}, queue="q"))
    first = await store.schedules.trigger("s", author="ada")
    job = await claim_one(store, "q")
    assert (job.id, job.args, job.schedule, job.occurrence_at) == (first, '{"n":1}', "s", None)
    second = await store.schedules.trigger_once("s", None, args='{"n":2}')
    third = await store.schedules.trigger_once("s", None)
    ids = [first, second.job_id, third.job_id]
    rows = [await backend.job(job_id) for job_id in ids]
    statuses = [row["status"] for row in rows]
    asked = rows[0]["cancel_requested_at"] is not None
    new = [is_new for _, is_new, _ in (second, third)]
    match overlap:
        case Overlap.ALLOW:
            assert (statuses, asked, new) == (["RUNNING", "PENDING", "PENDING"], False, [True, True])
        case Overlap.SKIP:  # A second click returns the existing job.
            assert (ids, new) == ([first, first, first], [False, False])
            assert f"{first} of this schedule is RUNNING, and overlap=skip" in str(second.why)
        case Overlap.QUEUE:
            assert (statuses, asked, new) == (["RUNNING", "BLOCKED", "BLOCKED"], False, [True, False])
            assert rows[1]["blocked_by"] == first
            assert (third.job_id, third.why) == (ids[1], "1 job waits in line, and queue_limit=1 allows no more")
        case Overlap.REPLACE:
            assert (statuses, asked, new) == (["RUNNING", "CANCELLED", "BLOCKED"], True, [True, True])
            assert rows[2]["blocked_by"] == first
    if second.is_new:
        assert rows[1]["args"] == '{"n":2}'
    events = await backend.sql("select data from headway_events where event = 'triggered' order by seq")
    told = [msgspec.json.decode(event["data"])["job_id"] for event in events]
    assert told == [first, *(made.job_id for made in (second, third) if made.is_new)]
    await end(store, job, Succeeded())
    assert (await store.schedules.trigger_once("s", None)).is_new


async def test_jobs_of_a_schedule_expire(backend: Backend) -> None:
    """`expires` counts from the earliest start, whatever creates the job."""
    store = backend.store
    await store.schedules.put("s", spec("1h", expires="10m", overlap="allow"))
    await store.schedules.put("patient", spec("1h", overlap="allow"))
    for name in ("s", "patient"):
        await store.schedules.trigger(name)
    await backend.advance(HOUR)
    await decide(store)
    since = (await store.schedules.get("s")).created_at
    await store.schedules.backfill("s", since - HOUR, since)
    jobs = [job for job in await store.jobs.page(schedule="s") if job.expires_at is not None]
    assert [job.expires_at - job.run_at for job in jobs if job.expires_at] == [10 * MINUTE] * 3
    assert {job.expires_at for job in await store.jobs.page(schedule="patient")} == {None}
    await backend.advance(11 * MINUTE)
    await store.housekeeping.end_overdue(10)
    assert {str(job.status) for job in await store.jobs.page(schedule="s")} == {"CANCELLED"}
    assert "CANCELLED" not in {str(job.status) for job in await store.jobs.page(schedule="patient")}


async def test_concurrent_triggers_create_one_job(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    await shared.store.schedules.put("s", spec("1d", overlap="skip"))
    made = await asyncio.gather(*(store.schedules.trigger_once("s", None) for store in stores * 3))
    assert len({job_id for job_id, _, _ in made}) == 1
    assert [is_new for _, is_new, _ in made].count(True) == 1
    assert await shared.count("headway_jobs") == 1


@pytest.mark.parametrize("overlap", Overlap)
async def test_racing_triggers_and_decisions_keep_one_live_job(shared: Backend, overlap: Overlap) -> None:
    """S7: people, schedulers and workers at once; never two live jobs of an exclusive schedule."""
    stores = [shared.store, await shared.another(), await shared.another()]
    await shared.store.schedules.put("s", spec("1s", overlap=overlap, queue_limit=3))
    since = (await shared.store.schedules.get("s")).created_at

    async def fire(store: Store) -> None:
        plans = await due_plans(store)
        if plans:
            await store.ledger.fire(plans, None)

    async def work(store: Store) -> None:
        for job in await store.work.claim("default", node="n", lease=LEASE, limit=1):
            await end(store, job, Raised("{}") if shared.name == "none" else Succeeded())

    for _ in range(4):
        await shared.advance(2 * SECOND)
        await asyncio.gather(
            *(store.schedules.trigger("s") for store in stores),
            *(fire(store) for store in stores),
            *(work(store) for store in stores),
            *(store.housekeeping.promote(10) for store in stores),
        )
        live = await _live(shared, "s")
        if overlap is not Overlap.ALLOW:
            assert sum(status != "BLOCKED" for status in live) <= 1, live
    for _ in range(60):  # Every started job ends: nothing is stuck behind a job that is gone.
        await shared.store.housekeeping.promote(10)
        await work(shared.store)
    assert await _live(shared, "s") == []
    await decide(shared.store)
    await _audit(shared, "s", spec("1s"), since)


async def test_database_rejects_a_second_live_job(backend: Backend) -> None:
    await enqueue(backend.store, schedule="s", exclusive=True)
    with pytest.raises(ConstraintViolated):
        await enqueue(backend.store, schedule="s", exclusive=True)
    await enqueue(backend.store, schedule="s", exclusive=True, blocked_by="job_other")  # A queued job is not live.
    await enqueue(backend.store, schedule="s", exclusive=False)
    await enqueue(backend.store, schedule="t", exclusive=True)
    with pytest.raises(Exception, match=r"(?i)unique"):
        await backend.sql("update headway_jobs set status = 'PENDING' where status = 'BLOCKED'")


async def test_edit_from_allow_to_queue_waits_for_all_running_jobs(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d", overlap="allow"))
    for _ in range(3):
        await store.schedules.trigger("s")
    running = await store.work.claim("default", node="n", lease=LEASE, limit=3)
    await store.schedules.put("s", spec("1d", overlap="queue"))
    waiting = await store.schedules.trigger("s")
    for job in reversed(running):
        assert (await backend.job(waiting))["status"] == "BLOCKED"
        assert not await end(store, job, Succeeded())
        await store.housekeeping.promote(10)
    assert (await backend.job(waiting))["status"] == "PENDING"


async def test_edit_to_allow_leaves_no_job_waiting_for_later_ones(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d", overlap="queue"))
    await store.schedules.trigger("s")
    first = await claim_one(store)
    in_line = await store.schedules.trigger("s")
    await store.schedules.put("s", spec("1d", overlap="allow"))
    await store.schedules.trigger("s")
    later = await claim_one(store)
    assert (await backend.job(in_line))["status"] == "BLOCKED"
    assert not await end(store, first, Succeeded())
    assert (await backend.job(in_line))["status"] == "PENDING"
    assert not await end(store, later, Succeeded())


async def test_removed_schedule_that_is_added_again_is_not_paused(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await store.schedules.pause("s")
    await store.schedules.remove("s")
    await backend.advance(2 * SECOND)
    assert await store.schedules.put("s", spec("1s")) == "created"
    assert (await store.schedules.get("s")).pauses == ()
    await backend.advance(2 * SECOND)
    await decide(store)
    assert {entry.outcome for entry in await _ledger(store, "s")} & {Decided.FIRED}


async def test_dry_run_of_a_backfill_writes_nothing(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    before = await store.schedules.get("s")
    await backend.advance(5 * SECOND)
    now = await backend.now()
    assert await store.schedules.backfill("s", now - 3 * SECOND, now, dry_run=True)
    assert await store.schedules.get("s") == before
    assert (await _ledger(store, "s"), await backend.count("headway_jobs")) == ([], 0)


@pytest.mark.parametrize("overlap", Overlap)
async def test_backfill(backend: Backend, overlap: Overlap) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1h", overlap=overlap))
    now = await backend.now()
    since, until = (now // HOUR - 5) * HOUR, (now // HOUR - 2) * HOUR
    expected = [since, since + HOUR, since + 2 * HOUR, until]
    assert await store.schedules.backfill("s", since, until, dry_run=True) == expected
    assert await backend.count("headway_jobs") == 0
    assert await store.schedules.backfill("s", since, until, author="ada") == expected
    assert await store.schedules.backfill("s", since, until) == []
    live = await _live(backend, "s")
    assert live == ["PENDING"] * 4 if overlap is Overlap.ALLOW else ["BLOCKED"] * 3 + ["PENDING"]
    done = []
    for _ in range(4):
        await store.housekeeping.promote(10)
        done.append((await run_one(store)).occurrence_at)
    assert done == expected
    assert await _ledger(store, "s") == []  # A backfill creates jobs; the decisions of that time stay.


async def test_backfill_skips_fired_instants_and_is_bounded(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="allow", grace="1h"))
    since = (await store.schedules.get("s")).created_at
    await backend.advance(5 * SECOND)
    await decide(store)
    fired = [entry.instant for entry in await _ledger(store, "s")]
    assert await store.schedules.backfill("s", since, await backend.now()) == []
    before = fired[0] - SECOND
    assert await store.schedules.backfill("s", before, fired[-1]) == [before]
    await store.schedules.put("f", spec("1s", overlap="allow"))
    with pytest.raises(InvalidSchedule, match=str(BACKFILL_MAX)):
        await store.schedules.backfill("f", since - (BACKFILL_MAX + 1) * SECOND, since)
    await store.schedules.put("a", after("10s"))
    with pytest.raises(InvalidSchedule, match="fixed delay"):
        await store.schedules.backfill("a", since - HOUR, since)
    future = await backend.now() + HOUR
    assert await store.schedules.backfill("f", future, future + MINUTE) == []


# Fixed delay


async def _run_after(backend: Backend, name: str = "a") -> int:
    """Decide and run one job of a fixed-delay schedule; return when it ended."""
    await decide(backend.store)
    await run_one(backend.store)
    ended: int = (await backend.sql(f"select max(finished_at) as at from headway_jobs where schedule = '{name}'"))[0][
        "at"
    ]
    return ended


@pytest.mark.parametrize("how", ["settle", "fail", "cancel", "expire"])
async def test_fixed_delay_counts_from_the_end_of_the_job(backend: Backend, how: str) -> None:
    store = backend.store
    await store.schedules.put("a", after("10m"))
    await decide(store)
    assert (await store.schedules.get("a")).next_at is None  # Its end is not known yet.
    assert await store.ledger.next_due(EVERYTHING) is None
    if how == "cancel":
        [job] = await store.jobs.page(schedule="a")
        await store.queue.cancel(job.id, author="ada")
    else:
        claimed = await claim_one(store)
        assert (await store.schedules.get("a")).next_at is None
        if how == "expire":
            await lose(backend, times=LOSSES_MAX)
        else:
            await end(store, claimed, Succeeded() if how == "settle" else Raised("{}", retryable=False))
    [job] = await store.jobs.page(schedule="a")
    row = await backend.job(job.id)
    next_at = (await store.schedules.get("a")).next_at
    assert next_at is not None
    assert 0 <= next_at - row["finished_at"] - 10 * MINUTE <= SOON
    assert await due_plans(store) == []
    await backend.advance(10 * MINUTE)
    await decide(store)
    assert [entry.instant for entry in await _ledger(store, "a")][1:] == [next_at]


async def test_retrying_job_has_not_ended(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("a", after("10m", max_attempts=3))
    await decide(store)
    for outcome in (Raised("{}", retry_in=0), Released()):
        await end(store, await claim_one(store), outcome)
        assert (await store.schedules.get("a")).next_at is None
        await backend.advance(SECOND)
        await store.housekeeping.promote(10)
    await end(store, await claim_one(store), Succeeded())
    assert (await store.schedules.get("a")).next_at is not None


async def test_stranded_schedule_is_revived(backend: Backend) -> None:
    """Its job disappeared without a recorded end: it was deleted, or two ends missed each other."""
    store = backend.store
    names = ["a-1", "a-2", "a-3"]
    for name in names:
        await store.schedules.put(name, after("10m"))
    await decide(store)
    await backend.sql("delete from headway_jobs where schedule in ('a-1', 'a-2')")
    assert await store.ledger.revive_stranded(1) == 1
    assert await store.ledger.revive_stranded(10) == 1
    assert await store.ledger.revive_stranded(10) == 0
    next_ats = [(await store.schedules.get(name)).next_at for name in names]
    assert [next_at is None for next_at in next_ats] == [False, False, True]  # The third schedule still has its job.


async def test_ended_schedule_is_not_revived(backend: Backend) -> None:
    """Removed, paused, or past its end: reviving one of these would repeat forever."""
    store = backend.store
    now = await backend.now()
    await store.schedules.put("removed", after("1s"))
    await store.schedules.put("paused", after("1s"))
    await store.schedules.put("over", after("1s", end=isoformat(now + MINUTE)))
    await decide(store)
    for _ in range(3):
        await run_one(store)
    await store.schedules.remove("removed")
    await store.schedules.pause("paused")
    await backend.advance(HOUR)
    await decide(store)
    await run_one(store)  # The last one, an hour late. Its end asks for an instant after the end of the schedule.
    await backend.advance(2 * SECOND)
    await decide(store)
    before = await backend.sql("select name, version, next_at from headway_schedules order by name")
    assert columns(before, "next_at") == [(None,)] * 3
    assert await store.ledger.revive_stranded(10) == 0
    assert await backend.sql("select name, version, next_at from headway_schedules order by name") == before
    assert await store.schedules.resume("paused")
    await backend.advance(SECOND)
    await decide(store)
    assert (await store.jobs.page(schedule="paused"))[0].status is Status.PENDING


async def test_concurrent_ends_strand_no_schedule(shared: Backend) -> None:
    """The last two jobs of one schedule end concurrently, and neither sees the other's end."""
    other = await shared.another()
    await shared.store.schedules.put("a", after("10m", overlap="allow"))
    for _ in range(5):
        await shared.store.schedules.trigger("a")
        await shared.store.schedules.trigger("a")
        jobs = await shared.store.work.claim("default", node="n", lease=LEASE, limit=9)
        await asyncio.gather(
            *(end(store, job, Succeeded()) for store, job in zip((shared.store, other) * 5, jobs, strict=False))
        )
        await shared.store.ledger.revive_stranded(10)
        assert (await shared.store.schedules.get("a")).next_at is not None


async def test_manual_job_moves_a_fixed_delay(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("a", after("10m"))
    ended = await _run_after(backend)
    first = (await store.schedules.get("a")).next_at
    await backend.advance(MINUTE)
    await store.schedules.trigger("a")
    await run_one(store)
    second = (await store.schedules.get("a")).next_at
    assert first is not None
    assert second is not None
    assert second - first >= MINUTE
    assert first - ended >= 10 * MINUTE


# Due and shards


async def test_due_is_oldest_first_and_bounded(backend: Backend) -> None:
    store = backend.store
    for name, every in (("c", "10s"), ("a", "30s"), ("b", "20s"), ("z", "1d")):
        await store.schedules.put(name, spec(every))
    now = (await backend.now() // (60 * SECOND)) * 60 * SECOND
    for name, seconds in (("c", 30), ("a", 20), ("b", 20), ("z", -60)):
        await backend.sql(f"update headway_schedules set next_at = {now - seconds * SECOND} where name = '{name}'")
    await backend.sql(f"update headway_schedules set next_at = {now + DAY} where name = 'z'")
    due = await store.ledger.due(EVERYTHING, 2)
    assert [schedule.name for schedule, _ in due.schedules] == ["c", "a"]
    due = await store.ledger.due(EVERYTHING, 10)
    assert [schedule.name for schedule, _ in due.schedules] == ["c", "a", "b"]
    assert abs(due.now - await backend.now()) < SOON
    assert await store.ledger.next_due(EVERYTHING) == now - 30 * SECOND
    await decide(store)
    assert (await store.ledger.due(EVERYTHING, 10)).schedules == ()


async def test_due_includes_the_live_jobs(backend: Backend) -> None:
    store = backend.store
    for name in ("one", "two"):
        await store.schedules.put(name, spec("1d", overlap="queue"))
    job = await store.schedules.trigger("one")
    waiting = await store.schedules.trigger("one")
    await backend.advance(DAY)
    due = await store.ledger.due(EVERYTHING, 10)
    live = {schedule.name: jobs for schedule, jobs in due.schedules}
    assert live == {"one": LiveJobs(running=(job,), waiting=(waiting,)), "two": LiveJobs()}


@pytest.mark.parametrize("count", [1, 2, 7, 256])
async def test_shards_partition_all_schedules(backend: Backend, count: int) -> None:
    store = backend.store
    names = [f"schedule-{number}-ü" for number in range(300)]
    await store.schedules.put_many({ScheduleRef("default", name): spec("1s") for name in names})
    await backend.advance(2 * SECOND)
    found: list[str] = []
    for shard in range(count):
        due = await store.ledger.due(Shards(of=count, held=frozenset({shard})), 1_000)
        found += [schedule.name for schedule, _ in due.schedules]
        next_due = await store.ledger.next_due(Shards(of=count, held=frozenset({shard})))
        assert (next_due is None) == (not due.schedules)
    assert sorted(found) == sorted(names)
    if count > 1:
        half = frozenset(range(0, count, 2))
        due = await store.ledger.due(Shards(of=count, held=half), 1_000)
        assert 0 < len(due.schedules) < 300


# Fire


async def _fence(store: Store, *names: str, holder: str = "node-1") -> Fence:
    leases = await store.leases.acquire(list(names), holder=holder, holder_name="", duration=LEASE)
    assert len(leases) == len(names)
    return Fence(holder=holder, tokens={lease.name: lease.token for lease in leases})


async def test_fire_writes_everything_in_one_transaction(backend: Backend) -> None:
    store = backend.store
    fence = await _fence(store, "scheduler/0")
    await store.schedules.put("s", spec("1s", overlap="allow", priority=4, tags=["t"], max_attempts=2))
    await backend.advance(3 * SECOND)
    [made] = await due_plans(store)
    assert await store.ledger.fire([made], fence) == frozenset()
    schedule = await store.schedules.get("s")
    assert (schedule.decided_through, schedule.next_at) == (made.decided_through, made.next_at)
    assert schedule.version == made.schedule.version + 1
    entries = await _ledger(store, "s")
    assert [entry.instant for entry in entries] == [decision.instant for decision in made.decisions]
    assert {entry.token for entry in entries} == set(fence.tokens.values())
    for entry in entries:
        job = await store.jobs.get(entry.job_id or "")
        assert (job.schedule, job.occurrence_at, job.priority, job.tags, job.max_attempts) == (
            "s",
            entry.instant,
            4,
            ("t",),
            2,
        )
    [node] = {row["node"] for row in await backend.sql("select node from headway_occurrences")}
    assert node == "node-1"


async def test_fire_is_fenced(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await backend.advance(2 * SECOND)
    plans = await due_plans(store)
    good = await _fence(store, "scheduler/0", "scheduler/1")
    before = await backend.schedule("s")
    bad = [
        replace(good, holder="somebody-else"),
        replace(good, tokens={**good.tokens, "scheduler/1": good.tokens["scheduler/1"] - 1}),
        replace(good, tokens={**good.tokens, "scheduler/1": good.tokens["scheduler/1"] + 1}),
        replace(good, tokens={**good.tokens, "never-taken": 1}),
    ]
    for fence in bad:
        with pytest.raises(LeaseLost):
            await store.ledger.fire(plans, fence)
    assert await backend.schedule("s") == before
    assert await backend.count("headway_occurrences") == await backend.count("headway_jobs") == 0
    assert await store.ledger.fire(plans, good) == frozenset()


@pytest.mark.parametrize("how", ["stolen", "expired", "released", "deleted"])
async def test_expired_lease_writes_nothing(backend: Backend, how: str) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    leases = await store.leases.acquire(["scheduler/0"], holder="old", holder_name="", duration=LEASE)
    fence = Fence(holder="old", tokens={"scheduler/0": leases[0].token})
    await backend.advance(2 * SECOND)
    plans = await due_plans(store)
    if how == "released":
        await store.leases.release(leases)
    elif how == "deleted":
        await backend.sql("delete from headway_leases")
    else:
        await backend.advance(LEASE + SECOND)
    if how == "stolen":
        await _fence(store, "scheduler/0", holder="new")
    with pytest.raises(LeaseLost):
        await store.ledger.fire(plans, fence)
    assert await backend.count("headway_occurrences") == await backend.count("headway_jobs") == 0


async def test_lease_cannot_be_taken_over_while_its_holder_writes(shared: Backend) -> None:
    """The other node waits for the holder's commit: decisions with the old token are visible before the new token."""
    store, other = shared.store, await shared.another()
    await store.schedules.put("s", spec("1s", overlap="skip"))
    [lease] = await store.leases.acquire(["scheduler/0"], holder="node-1", holder_name="", duration=LEASE)
    await shared.advance(2 * SECOND)
    plans = await due_plans(store)
    fence = Fence(holder="node-1", tokens={lease.name: lease.token})
    seen: list[int] = []

    async def steal() -> None:
        assert await other.leases.acquire(["scheduler/0"], holder="thief", holder_name="", duration=LEASE)
        seen.append(await shared.count("headway_jobs"))

    async with Interrupted(shared, lambda: _fire(plans, fence, Clock(node="node-1")), after="fence") as in_between:
        await shared.advance(LEASE + SECOND)
        await in_between.act(steal())
        assert seen == []
    assert seen == [1]


async def test_stale_plan_is_skipped_and_the_others_are_kept(backend: Backend) -> None:
    store = backend.store
    for name in ("a", "b", "c"):
        await store.schedules.put(name, spec("1s"))
    await backend.advance(2 * SECOND)
    plans = await due_plans(store)
    await store.schedules.put("b", spec("1s", priority=1))
    assert await store.ledger.fire(plans, None) == {"b"}
    for name in ("a", "b", "c"):
        revisions = {entry.revision for entry in await _ledger(store, name)}
        assert revisions == {1}
    assert await store.ledger.fire(plans, None) == {"a", "b", "c"}


@pytest.mark.parametrize("change", ["put", "remove", "pause", "trigger", "fire", "hold"])
async def test_every_change_makes_older_plans_stale(backend: Backend, change: str) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await backend.advance(2 * SECOND)
    plans = await due_plans(store)
    match change:
        case "put":
            await store.schedules.put("s", spec("2s"))
        case "remove":
            await store.schedules.remove("s")
        case "pause":
            await store.schedules.pause("s")
        case "trigger":
            await store.schedules.trigger("s")
        case "fire":
            await store.ledger.fire(await due_plans(store), None)
        case "hold":
            await store.ledger.hold("s", plans[0].schedule.version, "test")
    records = await _instants(store, "s")
    assert await store.ledger.fire(plans, None) == {"s"}
    assert await _instants(store, "s") == records


async def test_manual_job_makes_plans_stale_even_if_nothing_is_due(backend: Backend) -> None:
    """The store's clock went back, so there is no past to decide; the live job is new nevertheless."""
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    now = await backend.now()
    assert not await store.ledger.fire([plan_at(await store.schedules.get("s"), now + HOUR)], None)
    await backend.sql("update headway_jobs set status = 'CANCELLED', finished_at = 0")
    unaware = plan_at(await store.schedules.get("s"), now + 2 * HOUR)
    records = await _instants(store, "s")
    await store.schedules.trigger("s")
    assert await store.ledger.fire([unaware], None) == {"s"}
    assert await _instants(store, "s") == records
    assert (await store.schedules.get("s")).attention is None


async def test_racing_schedulers_decide_each_instant_once(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    definitions = {ScheduleRef("default", f"s-{number}"): spec("1s", overlap="allow") for number in range(20)}
    await shared.store.schedules.put_many(definitions)
    since = (await shared.store.schedules.get("s-0")).created_at

    async def scheduler(store: Store) -> None:
        plans = await due_plans(store)
        if plans:
            await store.ledger.fire(plans, None)

    for _ in range(4):
        await shared.advance(SECOND)
        await asyncio.gather(*(scheduler(store) for store in stores * 2))
    for (_, name), definition in definitions.items():
        await _audit(shared, name, definition, since)
    fired = await shared.count("headway_occurrences", "outcome = 'fired'")
    assert await shared.count("headway_jobs") == fired


async def test_primary_key_rejects_a_second_record(backend: Backend) -> None:
    """Even if the cursor is moved back by hand: the instant does not fire again, and other schedules continue."""
    store = backend.store
    for name in ("a", "b"):
        await store.schedules.put(name, spec("1s", overlap="allow"))
    before = await backend.schedule("a")
    await backend.advance(2 * SECOND)
    await decide(store)
    jobs = await backend.count("headway_jobs", "schedule = 'a'")
    records = await _instants(store, "a")
    await backend.advance(2 * SECOND)
    await backend.sql(
        f"update headway_schedules set decided_through = {before['decided_through']}, next_at = {before['next_at']}"
        " where name = 'a'"
    )
    assert await store.ledger.fire(await due_plans(store), None) == {"a"}
    assert await _instants(store, "a") == records
    assert await backend.count("headway_jobs", "schedule = 'a'") == jobs
    assert (await backend.schedule("b"))["decided_through"] > before["decided_through"] + 3 * SECOND


async def test_plan_that_the_store_rejects_is_set_aside(backend: Backend) -> None:
    """It would be due and rejected forever: people are informed instead."""
    store = backend.store
    await store.schedules.put("a", spec("1s", overlap="allow"))
    before = await backend.schedule("a")
    await backend.advance(2 * SECOND)
    await decide(store)
    await backend.sql(
        f"update headway_schedules set decided_through = {before['decided_through']}, next_at = {before['next_at']}"
    )
    assert await store.ledger.fire(await due_plans(store), None) == {"a"}
    assert await due_plans(store) == []
    assert "constraint" in ((await store.schedules.get("a")).attention or "").lower()


async def test_job_that_cannot_be_written_rolls_its_decision_back(backend: Backend) -> None:
    """Occurrence, job and cursor are one transaction: if the job cannot be written, nothing is."""
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await store.schedules.put("t", spec("1s"))
    await backend.advance(2 * SECOND)
    plans = await due_plans(store)  # Planned before another job appears, and unaware of it.
    await backend.sql(
        "insert into headway_jobs (id, tenant, task, queue, priority, status, run_at, attempt, failures, max_attempts,"
        " exclusive, version, schedule, args, created_at, updated_at, progress, reason) values"
        " ('job_x', 't', 't', 'q', 0, 'PENDING', 0, 0, 0, 1, 1, 1, 's', '{}', 0, 0, 0, '')"
    )
    before = await backend.schedule("s")
    assert await store.ledger.fire(plans, None) == {"s"}
    assert await _ledger(store, "s") == []
    after_ = await backend.schedule("s")
    assert (after_["decided_through"], after_["removed_at"]) == (before["decided_through"], None)
    assert (await _ledger(store, "t"))[0].outcome is Decided.FIRED


async def test_overlap_rules_in_the_ledger(backend: Backend) -> None:
    store = backend.store
    for overlap in Overlap:
        await store.schedules.put(overlap.value, spec("1s", overlap=overlap, queue=overlap.value))
    await backend.advance(SECOND)
    await decide(store)
    for overlap in Overlap:
        await claim_one(store, overlap.value)
    for _ in range(2):
        await backend.advance(SECOND)
        await decide(store)
    statuses = {overlap.value: await _live(backend, overlap.value) for overlap in Overlap}
    assert statuses["skip"] == ["RUNNING"]
    assert statuses["queue"] == ["BLOCKED", "RUNNING"]
    assert len(statuses["allow"]) >= 3
    assert "BLOCKED" not in statuses["allow"]
    assert statuses["replace"] == ["BLOCKED", "RUNNING"]
    assert await backend.count("headway_jobs", "schedule = 'replace' and cancel_requested_at is not null") == 1
    assert await backend.count("headway_jobs", "schedule = 'replace' and status = 'CANCELLED'") >= 1
    assert Decided.SKIPPED in {entry.outcome for entry in await _ledger(store, "skip")}
    assert Decided.SKIPPED in {entry.outcome for entry in await _ledger(store, "queue")}


async def test_long_outage_costs_few_records(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", missed="skip"))
    await backend.advance(300 * DAY)
    await decide(store)
    entries = await _ledger(store, "s")
    assert len(entries) < 10
    assert sum(entry.count for entry in entries) >= 300 * 86_400


# Unreadable and unplannable schedules


async def test_hold(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await backend.advance(2 * SECOND)
    [made] = await due_plans(store)
    version = made.schedule.version
    await store.ledger.hold("s", version - 1, "stale")
    assert (await store.schedules.get("s")).attention is None
    await store.ledger.hold("s", version, "it is broken " + "x" * 5_000)
    schedule = await store.schedules.get("s")
    assert (schedule.attention or "").startswith("it is broken")
    assert len(schedule.attention or "") <= 500
    assert await due_plans(store) == []
    assert (await store.ledger.summary())["attention"] == 1
    assert (await store.ledger.summary())["oldest_undecided_seconds"] > 1  # Held is not decided.
    await backend.advance(61 * SECOND)
    await decide(store)  # Planned again, this time successfully: the problem is gone.
    assert (await store.schedules.get("s")).attention is None
    await _audit(backend, "s", spec("1s"), made.schedule.decided_through)


GARBAGE = {
    "not json": "definition = 'garbage'",
    "another shape": "definition = '[1, 2]'",
    "a scalar": "definition = '7'",
    "no trigger": """definition = '{"task": "t"}'""",
    "an unknown trigger": """definition = '{"task": "t", "trigger": {"kind": "moon"}}'""",
    "an unknown option": """definition = '{"task": "t", "trigger": {"kind": "every", "interval": "1s"}, "x": 1}'""",
    "a wrong option": """definition = '{"task": "t", "trigger": {"kind": "every", "interval": "1s"}, "tags": 5}'""",
    "an unknown zone": """definition = '{"task": "t", "trigger": {"kind": "cron", "expr": "* * * * *", "tz": "X"}}'""",
    "deep": f"definition = '{'[' * 50_000}'",
    "pauses that are not json": "pauses = 'garbage'",
    "pauses of another shape": "pauses = '{}'",
    "a pause without times": """pauses = '[{"reason": "x"}]'""",
    "a pause with a text for a time": """pauses = '[{"since": "x"}]'""",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_blocks_no_other_schedule(backend: Backend, what: str) -> None:
    store = backend.store
    for name in ("bad", "good"):
        await store.schedules.put(name, spec("1s"))
    await backend.sql(f"update headway_schedules set {GARBAGE[what]} where name = 'bad'")
    await backend.advance(2 * SECOND)
    due = await store.ledger.due(EVERYTHING, 10)
    assert [schedule.name for schedule, _ in due.schedules] == ["good"]
    assert {schedule.name for schedule in await store.schedules.page()} == {"bad", "good"}
    [(name, version, reason)] = due.unreadable
    assert (name, bool(reason)) == ("bad", True)
    await store.ledger.hold(name, version, reason)
    assert (await store.ledger.due(EVERYTHING, 10)).unreadable == ()
    with pytest.raises(InvalidSchedule):
        await store.schedules.get("bad")
    with pytest.raises(InvalidSchedule):
        await store.schedules.remove("bad")
    with pytest.raises(InvalidSchedule):
        await store.schedules.trigger("bad")
    assert await store.schedules.put("bad", spec("2s")) == "changed"
    assert (await store.schedules.get("bad")).attention is None
    await backend.advance(2 * SECOND)
    await decide(store)
    assert await store.schedules.remove("bad")


async def test_names_with_any_characters(backend: Backend) -> None:
    store = backend.store
    names = ["'; drop table headway_jobs; --", 'a "quoted" name', "ünïcödé 🚂", "%", "_", "\\", "a/b", "~"]
    for name in names:
        await store.schedules.put(name, spec(Cron("* * * * *"), args={"name": name}, tenant=name, queue=name))
        await store.schedules.trigger(name, tenant=name)
    assert sorted(names, key=str.encode) == [schedule.name for schedule in await store.schedules.page()]
    for name in names:
        job = await claim_one(store, name)
        assert job.schedule == (await store.schedules.get(name, tenant=name)).key == schedule_key(name, name)
        assert (msgspec.json.decode(job.args), job.tenant) == ({"name": name}, name)
        assert not await end(store, job, Succeeded())


async def test_prune_deletes_old_decisions_and_records_the_horizon(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="allow"))
    await backend.advance(3 * SECOND)
    await decide(store)
    old = await _ledger(store, "s")
    await backend.advance(2 * DAY)
    await decide(store)
    assert await store.ledger.pruned_through() == 0
    while await store.housekeeping.prune(DAY, 2):
        pass
    left = await _ledger(store, "s")
    assert {entry.instant for entry in left}.isdisjoint(entry.instant for entry in old)
    assert left
    assert await store.ledger.pruned_through() == max(entry.decided_at for entry in old)
    assert await backend.count("headway_jobs", "status = 'PENDING'") > 0  # Live jobs are kept at any age.


async def test_prune_deletes_old_events_leases_and_nodes(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    await store.schedules.pause("s")
    running = await store.leases.acquire(["occurrence/ü/1", "job"], holder="n", holder_name="", duration=3 * DAY)
    await store.leases.acquire(["occurrence/ü/2", "occurrence/~"], holder="n", holder_name="", duration=SECOND)
    await backend.sql(
        "insert into headway_events (job_id, schedule, event, at, data)"
        " values ('job_gone', null, 'settle_refused', 1, '{}')"
    )
    await backend.advance(2 * DAY)
    await store.schedules.resume("s")
    while await store.housekeeping.prune(DAY, 1):
        pass
    assert {lease.name for lease, _ in await store.leases.held("")} == {lease.name for lease in running}
    events = await backend.sql("select event from headway_events")
    assert columns(events, "event") == [("resumed",)]


async def test_summary(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="allow", grace="1h"))
    await store.schedules.put("p", spec("1d"))
    await store.schedules.pause("p")
    await backend.advance(MINUTE)
    summary = await store.ledger.summary()
    assert (summary["total"], summary["paused"], summary["attention"]) == (2, 1, 0)
    assert 55 <= summary["oldest_undecided_seconds"] <= 90
    await decide(store)
    summary = await store.ledger.summary()
    assert summary["oldest_undecided_seconds"] < 20
    assert summary["last_day"]["fired"] >= 59


async def test_plan_for_the_future_is_recorded_once(backend: Backend) -> None:
    """A fast clock may plan for later than now; the instant is still recorded once."""
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    schedule = await store.schedules.get("s")
    ahead = plan_at(schedule, await backend.now() + 5 * SECOND)
    assert await store.ledger.fire([ahead], None) == frozenset()
    records = await _instants(store, "s")
    assert await store.schedules.put("s", spec("1s", priority=1)) == "changed"
    await backend.advance(3 * SECOND)
    await decide(store)
    assert await _instants(store, "s") == records
    await _audit(backend, "s", spec("1s"), schedule.created_at)
