"""Schedules with one name in several tenants are independent."""

from dataclasses import replace

import pytest

from headway.core.errors import ScheduleNotFound, ScheduleOwned
from headway.core.instants import HOUR, MINUTE, SECOND
from headway.core.lifecycle import Succeeded
from headway.core.occurrences import Decided
from headway.core.ports import slot_of
from headway.core.schedule_names import ScheduleRef, schedule_key
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After, Every
from headway.operations.runs import runs
from headway.operations.schedule_sync import SKIPPED, sync_schedules
from headway.scheduling.audit import audit
from headway.scheduling.planner import jittered
from headway.store import Store
from headway.store.schedules import in_pieces
from tests.conformance.arrange import claim_one, decide, end, spec
from tests.conformance.backend import Backend

TENANTS = ("default", "acme", "globex")


async def _put_all(store: Store, **options: object) -> None:
    for tenant in TENANTS:
        assert await store.schedules.put("report", spec("1m", tenant=tenant, queue=tenant, **options)) == "created"


async def test_same_name_in_three_tenants(backend: Backend) -> None:
    store, schedules = backend.store, backend.store.schedules
    await _put_all(store, overlap="allow")
    found = await schedules.page()
    assert [(schedule.tenant, schedule.name) for schedule in found] == [(t, "report") for t in sorted(TENANTS)]
    assert [schedule.label for schedule in found] == ["acme/report", "report", "globex/report"]
    pages = [await schedules.page(after=after and ScheduleRef(*after), limit=1) for after in (None, ("acme", "report"))]
    assert [page[0].tenant for page in pages] == ["acme", "default"]
    assert [schedule.tenant for schedule in await schedules.page(tenant="acme", words="REP")] == ["acme"]
    assert await schedules.page(words="acm") == []  # It is not part of the name.
    since = found[0].created_at

    # A change applies to one of them.
    assert await schedules.pause("report", tenant="acme", author="ada")
    await backend.advance(3 * MINUTE)
    await decide(store)
    outcomes = {}
    for tenant in TENANTS:
        entries = await store.ledger.occurrences(await schedules.key("report", tenant=tenant))
        assert {(entry.schedule, entry.tenant) for entry in entries} == {("report", tenant)}
        outcomes[tenant] = {entry.outcome for entry in entries}
    assert outcomes["acme"] == {Decided.PAUSED}
    assert Decided.FIRED in outcomes["default"]
    assert await schedules.resume("report", tenant="acme")
    assert await schedules.put("report", spec("2m", tenant="acme", queue="acme", overlap="allow")) == "changed"
    revisions = {tenant: (await schedules.get("report", tenant=tenant)).revision for tenant in TENANTS}
    assert revisions == {"default": 1, "acme": 2, "globex": 1}

    # Manual and backfilled jobs, by name and tenant.
    by_hand = {tenant: await schedules.trigger("report", tenant=tenant, author=tenant) for tenant in TENANTS}
    for tenant, job_id in by_hand.items():
        jobs = await store.jobs.page(schedule="report", tenant=tenant)
        assert job_id in [job.id for job in jobs]
        assert {(job.tenant, job.schedule_name) for job in jobs} == {(tenant, "report")}
    default_jobs = await store.jobs.page(schedule="report")
    assert {job.tenant for job in default_jobs} == {"default"}
    past = (since - HOUR, since - 30 * MINUTE)
    filled = [await schedules.backfill("report", *past, tenant=tenant) for tenant in ("acme", "globex")]
    assert all(filled)
    assert await schedules.backfill("report", *past, tenant="acme") == []

    # The runs of each include its manual jobs, and none of another tenant.
    for tenant in TENANTS:
        schedule = await schedules.get("report", tenant=tenant)
        found_runs = await runs(store, schedule, limit=100)
        instants = [run.instant for run in found_runs]
        assert instants == sorted(instants, reverse=True)
        by_outcome = {str(run.outcome): run for run in found_runs if run.outcome in ("triggered", "backfilled")}
        assert by_outcome["triggered"].job_id == by_hand[tenant]
        assert by_outcome["triggered"].reason == f"by {tenant}"
        assert ("backfilled" in by_outcome) is (tenant != "default")
        paged: list[object] = []
        before = 2**62
        while page := await runs(store, schedule, before=before, limit=2):
            paged += page
            before = page[-1].instant
        assert paged == found_runs
    assert (await audit(store.ledger)).ok
    one = await audit(store.ledger, key=await schedules.key("report", tenant="globex"))
    assert (one.schedules, one.ok) == (1, True)

    # Removing one keeps the others, and its history stays in its tenant.
    assert await schedules.remove("report", tenant="acme")
    with pytest.raises(ScheduleNotFound, match="acme/report"):
        await schedules.get("report", tenant="acme")
    assert [schedule.tenant for schedule in await schedules.page()] == ["default", "globex"]
    assert (await schedules.show("report", tenant="acme", also_removed=True)).removed_at is not None


async def test_audit_findings_name_the_tenant(backend: Backend) -> None:
    store = backend.store
    await _put_all(store, overlap="allow")
    await backend.advance(MINUTE + SECOND)
    await decide(store)
    key = await store.schedules.key("report", tenant="acme")
    await backend.sql(f"delete from headway_occurrences where schedule = '{key}'")
    [gap] = (await audit(store.ledger)).to_dict()["gaps"]
    assert (gap["schedule"], gap["tenant"]) == ("report", "acme")


async def test_live_job_of_one_tenant_blocks_no_other(backend: Backend) -> None:
    store = backend.store
    await _put_all(store, overlap="skip")
    first = await store.schedules.trigger("report", tenant="acme")
    running = await claim_one(store, "acme")
    await backend.advance(2 * MINUTE)
    await decide(store)
    last = {}
    for tenant in TENANTS:
        entries = await store.ledger.occurrences(await store.schedules.key("report", tenant=tenant))
        last[tenant] = entries[0].outcome
    assert last == {"acme": Decided.SKIPPED, "default": Decided.FIRED, "globex": Decided.FIRED}
    assert (await store.schedules.trigger_once("report", None, tenant="acme")).job_id == first
    assert not await end(store, running, Succeeded())
    assert (await store.schedules.trigger_once("report", None, tenant="acme")).is_new


async def test_fixed_delay_follows_the_jobs_of_its_own_tenant(backend: Backend) -> None:
    store = backend.store
    for tenant in TENANTS[:2]:
        await store.schedules.put("poll", spec(After("1m"), tenant=tenant, queue=tenant))
    await backend.advance(SECOND)
    await decide(store)
    assert not await end(store, await claim_one(store, "acme"), Succeeded())
    acme, default = [await store.schedules.get("poll", tenant=tenant) for tenant in ("acme", "default")]
    assert (acme.next_at is None, default.next_at is None) == (False, True)


async def test_jitter_and_shard_depend_on_the_key(backend: Backend) -> None:
    """So those of the default tenant are unchanged, and schedules with the same name are spread."""
    await _put_all(backend.store)
    found = {schedule.tenant: schedule for schedule in await backend.store.schedules.page()}
    assert found["default"].key == "report"
    starts = {jittered(schedule.key, 0, HOUR) for schedule in found.values()}
    assert len(starts) == 3
    slots = {row["tenant"]: row["slot"] for row in await backend.sql("select tenant, slot from headway_schedules")}
    assert slots == {tenant: slot_of(schedule_key(tenant, "report")) for tenant in TENANTS}


# Bulk changes -----------------------------------------------------------------------------------------------


async def test_many_schedules_are_put_in_one_transaction(backend: Backend) -> None:
    store, schedules = backend.store, backend.store.schedules
    await schedules.put("mine", spec("1m"), owner="app")
    await schedules.put("theirs", spec("1m"), owner="other")
    await schedules.put("gone", spec("1m"), owner="other")
    await schedules.remove("gone")
    await schedules.put("due", spec("1s", overlap="allow", missed="all"), owner="app")
    await schedules.put("waits", spec(After("1m")), owner="app")
    await backend.advance(3 * SECOND)
    wanted = {
        ScheduleRef("default", "mine"): spec("1m"),
        ScheduleRef("default", "theirs"): spec("5m"),
        ScheduleRef("default", "gone"): spec("5m"),
        ScheduleRef("default", "due"): spec("7s", overlap="allow"),
        ScheduleRef("default", "waits"): spec(After("5m")),
        ScheduleRef("default", "new"): spec("5m"),
        ScheduleRef("acme", "theirs"): spec("5m", tenant="acme"),
    }
    done = await schedules.put_many(wanted, owner="app", author="ada")
    assert done[:1] + done[2:] == ["unchanged", "created", "changed", "changed", "created", "created"]
    assert "belongs to the app 'other'" in done[1]
    assert (await schedules.get("theirs")).spec == spec("1m")
    assert await schedules.put_many(wanted, owner="app") == [*["unchanged"], done[1], *["unchanged"] * 5]
    # Instants due before the change are decided by the old definition.
    entries = await store.ledger.occurrences("due")
    assert {entry.revision for entry in entries} == {1}
    assert len(entries) >= 3
    assert (await audit(store.ledger)).ok
    authors = await backend.sql("select author from headway_revisions where schedule = 'new'")
    assert [row["author"] for row in authors] == ["ada"]


async def test_batches_are_bounded() -> None:
    specs = {ScheduleRef("default", f"s-{number}"): spec("1m") for number in range(1_201)}
    pieces = list(in_pieces(specs))
    assert [len(piece) for piece in pieces] == [500, 500, 201]
    assert {ref for piece in pieces for ref in piece} == specs.keys()


async def test_declared_schedule_of_another_owner_is_skipped(backend: Backend) -> None:
    schedules = backend.store.schedules
    for tenant in ("default", "acme"):
        await schedules.put("nightly", spec("1h", tenant=tenant), author="an operator")
    declared = {
        "nightly": spec("1m"),
        "hourly": spec("1h"),
        schedule_key("globex", "nightly"): spec("1m", tenant="globex"),
    }
    done = await sync_schedules(backend.store, "shop", declared)
    assert done["nightly"] == (
        f"{SKIPPED}schedule 'nightly' belongs to no app or file (it was put by hand);"
        " choose another name, or remove it first"
    )
    assert (done["hourly"], done["globex/nightly"]) == ("created", "created")
    assert (await schedules.get("nightly")).spec == spec("1h")
    with pytest.raises(ScheduleOwned, match="put by hand"):
        await schedules.put("nightly", spec("1m"), owner="shop")
    # Schedules that an app no longer declares are removed, in its own tenant only.
    done = await sync_schedules(backend.store, "shop", {"hourly": spec("1h")})
    assert done == {"hourly": "unchanged", "globex/nightly": "removed"}
    assert {schedule.label for schedule in await schedules.page()} == {"acme/nightly", "hourly", "nightly"}


async def test_task_of_a_tenant_runs_as_that_tenant(backend: Backend) -> None:
    definition: ScheduleSpec = replace(spec("1m"), tenant="acme")
    await backend.store.schedules.put("report", definition)
    await backend.store.schedules.trigger("report", tenant="acme")
    job = await claim_one(backend.store)
    assert (job.tenant, job.schedule) == ("acme", schedule_key("acme", "report"))
    views = await backend.sql("select tenant, schedule from headway_jobs_v")
    assert [(row["tenant"], row["schedule"]) for row in views] == [("acme", "report")]
    assert isinstance(definition.trigger, Every)
