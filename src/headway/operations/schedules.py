"""Schedules: define them, read their decisions, pause, trigger, backfill and remove them.

Names are unique per tenant. A name refers to the schedule of the caller's tenant. Callers that see all tenants choose
one with `tenant`, by default the tenant `default`. Schedules of other tenants are reported as not found.

A definition is guarded by its revision. The ETag of a schedule is its revision and a digest of the rest:
`If-None-Match` compares all of it, `If-Match` only the revision, so that the passing of time is not a change.
"""

import re
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import (
    Conflict,
    DefinitionError,
    DuplicateKey,
    InvalidSchedule,
    ScheduleNotFound,
    ScheduleOwned,
)
from headway.core.instants import Instant, isoformat, parse_instant
from headway.core.job_details import read_json
from headway.core.json_values import encode_args
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Schedule as StoredSchedule
from headway.core.schedules import ScheduleSpec
from headway.core.tenants import DEFAULT_TENANT
from headway.core.validation import KEY_LENGTH_MAX, check_name
from headway.operations import audit_log
from headway.operations.calendar import calendar, year_of
from headway.operations.caller import require_printable
from headway.operations.job_reads import explained_job
from headway.operations.runs import runs
from headway.operations.schedule_definitions import (
    DefinitionChange,
    draft,
    drafted_changes,
    expected_revision,
    served,
    tenant_of,
    warnings_of,
    write_change,
    write_changes,
)
from headway.operations.schedule_instants import preview_spec, previews, zone_of
from headway.operations.schedule_parameters import (
    Args,
    Before,
    DryRun,
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    Key,
    Number,
    Owner,
    Recents,
    Since,
    State,
    TakeOver,
    Whose,
    Year,
)
from headway.operations.times import read_future, read_past
from headway.operations.verbs import Named, OperationGroup, Reason, verb
from headway.store.ledger import FOREVER
from headway.store.schedule_definitions import absent
from headway.store.schedules import BACKFILL_MAX
from headway.tasks.definitions import take_trigger
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.jobs import job_of
from headway.wire.masking import unmasked
from headway.wire.schedule_requests import (
    NEXT_SHOWN,
    PreviewBody,
    ScheduleBody,
    SchedulesBody,
    TimeText,
)
from headway.wire.schedules import (
    AppliedSchedules,
    Backfill,
    Calendar,
    Occurrence,
    Previews,
    RemovedSchedule,
    Schedule,
    SchedulePlan,
    TriggeredJob,
    etag_of_schedule,
    listed_schedule,
    occurrence_of,
    read_schedule_cursor,
    recent_of,
    schedule_cursor,
    schedule_of,
)

BACKFILL_DEFAULT: Final = 1_000
_INSTANT: Final = re.compile(r"-?[0-9]{1,18}")
_MISSING: Final = (ScheduleNotFound, InvalidSchedule)


def _is_repeatable(given: Any) -> bool:
    """Return whether a backfill is idempotent."""
    return bool(given.get("dry_run")) or not given.get("again")


class Schedules(OperationGroup):
    """Schedules: when tasks run, and the decision about each instant."""

    # --- all schedules

    @verb("GET /api/schedules", id="list_schedules", role="viewer")
    async def list(
        self,
        *,
        owner: Owner = None,
        tenant: Annotated[str | None, msgspec.Meta(description="only of this tenant")] = None,
        q: Annotated[str | None, msgspec.Meta(description="only with this text in name or task")] = None,
        state: State = None,
        recent: Recents = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[Schedule]:
        """List schedules by name.

        With `recent` each has its newest decisions, the newest last, and the statuses of their jobs.
        """
        tenant, store = tenant_of(self.caller, tenant), self.caller.store
        after = None if cursor is None else read_schedule_cursor(cursor, tenant)
        found = await store.schedules.page(owner=owner, tenant=tenant, words=q, state=state, after=after, limit=limit)
        items = [listed_schedule(schedule, self.caller.now) for schedule in found]
        if items and recent is not None:
            decisions = await store.ledger.recent([schedule.key for schedule in found], recent)
            for schedule, item in zip(found, items, strict=True):
                item.recent = [recent_of(decision) for decision in decisions.get(schedule.key, ())]
        last = ScheduleRef(found[-1].tenant, found[-1].name) if len(found) == limit else None
        return Page(items, None if last is None else schedule_cursor(last))

    @verb(
        "PUT /api/schedules",
        id="apply_schedules",
        role="operator",
        is_bulk=True,
        errors=(ScheduleOwned, InvalidSchedule),
    )
    async def apply(
        self,
        body: SchedulesBody,
        *,
        tenant: Whose = None,
        dry_run: DryRun = False,
        owner: Owner = None,
        take_over: TakeOver = False,
    ) -> AppliedSchedules:
        """Create or change many schedules in one transaction.

        Schedules that are not named are not changed. It is idempotent. With `dry_run=1` nothing is written, and the
        response has the planned outcome for each.
        """
        owner = check_name(owner, "owner") if owner else ""
        changes = await drafted_changes(self.caller, body.schedules, tenant=tenant, owner=owner, take_over=take_over)
        warnings = await warnings_of(self.caller, (change.spec for change in changes))
        outcomes = {change.ref: change.outcome for change in changes}
        now = self.caller.now
        if not dry_run:
            outcomes = await write_changes(self.caller, changes, owner=owner, take_over=take_over)
        applied = AppliedSchedules([], dry_run)
        for change in changes:
            warned = warnings.get(served(change.spec), [])
            applied.items.append(change.report(now, outcomes[change.ref], warned))
            await self.caller.clock.yield_to_loop()
        return applied

    @verb("POST /api/schedules/preview", id="preview_rule", role="viewer", is_repeatable=True, errors=_MISSING)
    async def preview_rule(self, rule: PreviewBody) -> Previews:
        """Preview the next instants of a trigger that is not stored.

        Each has its local time and a note if daylight saving affects it.
        """
        options = {name: value for name, value in msgspec.structs.asdict(rule).items() if value is not None}
        number, since = options.pop("n"), options.pop("since", None)
        spec = ScheduleSpec.build(task="preview", trigger=take_trigger(options), **options)
        return preview_spec(spec, self.caller.now, since=since, number=number)

    # --- past and future instants of one schedule

    @verb("GET /api/schedules/{name:path}/occurrences", id="list_occurrences", role="viewer", errors=_MISSING)
    async def occurrences(
        self,
        name: str,
        *,
        tenant: Whose = None,
        since: Since = None,
        before: Before = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[Occurrence]:
        """List the decisions of a schedule and their reasons, newest first.

        This also works for a removed schedule.
        """
        first, end = _window(since, before, cursor)
        schedule = await self._stored(name, tenant, also_removed=True)
        found = await self.caller.store.ledger.occurrences(schedule.key, since=first, before=end, limit=limit)
        return Page([*map(occurrence_of, found)], str(found[-1].instant) if len(found) == limit else None)

    @verb("GET /api/schedules/{name:path}/runs", id="list_runs", role="viewer", errors=_MISSING)
    async def runs(
        self,
        name: str,
        *,
        tenant: Whose = None,
        since: Since = None,
        before: Before = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[Occurrence]:
        """List the decisions and the manual runs of a schedule, newest first.

        The decisions of `/occurrences`, merged by time with manual runs: `triggered` (one job) and `backfilled`
        (`count` jobs, for past instants). Manual runs are not instants of the schedule and have no occurrence. A page
        may be a little longer than `limit` if several have the same time.
        """
        first, end = _window(since, before, cursor)
        schedule = await self._stored(name, tenant, also_removed=True)
        found = await runs(self.caller.store, schedule, since=first, before=end, limit=limit)
        return Page([*map(occurrence_of, found)], str(found[-1].instant) if len(found) >= limit else None)

    @verb("GET /api/schedules/{name:path}/calendar", id="get_calendar", role="viewer", errors=_MISSING)
    async def calendar(
        self,
        name: str,
        *,
        tenant: Whose = None,
        year: Year = None,
    ) -> Calendar:
        """Count the decisions of a year and the outcomes of their jobs, by day.

        Days are days in the schedule's time zone; days without decisions are left out. Runs of equal decisions are
        spread evenly over their days. If there are more than 100,000 decisions, only the newest are counted and
        `truncated` is true.
        """
        schedule = await self._stored(name, tenant, also_removed=True)
        tz = zone_of(schedule.spec.trigger).key
        return await calendar(self.caller.store.ledger, schedule.key, year or year_of(self.caller.now, tz), tz)

    @verb("GET /api/schedules/{name:path}/preview", id="preview_schedule", role="viewer", errors=_MISSING)
    async def preview(
        self,
        name: str,
        *,
        tenant: Whose = None,
        n: Number = NEXT_SHOWN,
        since: Annotated[
            str | None,
            msgspec.Meta(
                description="start at this time, or this long from now; default now", examples=["2027-03-27T00:00:00"]
            ),
            Named("from"),
        ] = None,
        tz: Annotated[
            str | None, msgspec.Meta(description="show local times of this zone", examples=["Europe/Berlin"])
        ] = None,
    ) -> Previews:
        """Preview the next instants of a schedule."""
        schedule = await self._stored(name, tenant)
        found = preview_spec(schedule.spec, self.caller.now, since=since, number=n, tz=tz)
        return msgspec.structs.replace(found, name=schedule.name, tenant=schedule.tenant)

    # --- pause, resume, trigger, backfill

    @verb(
        "POST /api/schedules/{name:path}/pause",
        id="pause_schedule",
        role="operator",
        errors=_MISSING,
        etag=etag_of_schedule,
    )
    async def pause(
        self,
        name: str,
        *,
        until: Annotated[TimeText | None, msgspec.Meta(examples=["2h"])] = None,
        reason: Reason = "",
        tenant: Whose = None,
    ) -> Schedule:
        """Pause a schedule.

        Its instants are recorded as paused. `until` is a time or a duration.
        """
        old = await self._stored(name, tenant)
        zone = zone_of(old.spec.trigger).key
        end = None if until is None else read_future(until, self.caller.now, "until", zone)
        entry = audit_log.pause_schedule(old, require_printable(reason, "reason"), end)
        changed = await self.caller.acting(entry).schedules.pause(
            old.name, tenant=old.tenant, author=self.caller.name, reason=reason, until=end
        )
        if not changed and end is not None:
            raise Conflict(f"schedule {old.label!r} is already paused; to pause it until another time, resume it first")
        return await self._changed(old, changed)

    @verb(
        "POST /api/schedules/{name:path}/resume",
        id="resume_schedule",
        role="operator",
        errors=_MISSING,
        etag=etag_of_schedule,
    )
    async def resume(self, name: str, *, tenant: Whose = None) -> Schedule:
        """Resume a paused schedule, starting now."""
        old = await self._stored(name, tenant)
        acting = self.caller.acting(audit_log.resume_schedule(old, self.caller.now))
        changed = await acting.schedules.resume(old.name, tenant=old.tenant, author=self.caller.name)
        return await self._changed(old, changed)

    @verb(
        "POST /api/schedules/{name:path}/trigger",
        id="trigger_schedule",
        role="operator",
        idempotent_by="key",
        errors=(*_MISSING, DuplicateKey),
        created=lambda job: job.outcome == "started",
        location=lambda job: f"/api/jobs/{job.id}",
    )
    async def trigger(
        self,
        name: str,
        *,
        args: Args = None,
        key: Key | None = None,
        tenant: Whose = None,
        idempotency_key: IdempotencyKey = None,
    ) -> TriggeredJob:
        """Enqueue a job of the schedule now.

        Its instants do not change. 201 for a new job. The overlap rule applies: with `skip` no job is created while
        another one of the schedule is live; with `queue` the job waits, up to `queue_limit` of them; `replace` stops
        the live one first; `allow` starts at once. If no job is created, the response is 200 with the live job, and
        `message` says why. The key is an idempotency key: 200 for the same job.
        """
        if idempotency_key is not None and key not in (None, idempotency_key):
            raise DefinitionError("key: the body and the header Idempotency-Key differ; send one of them")
        key = key if idempotency_key is None else idempotency_key
        if key is not None:
            check_name(key, "key", KEY_LENGTH_MAX)
        old = await self._stored(name, tenant)
        text = None if args is None else encode_args(unmasked(args, read_json(old.spec.args)))
        await self.caller.admit_jobs(1)
        acting = self.caller.acting(audit_log.trigger_schedule(old))
        made = await acting.schedules.trigger_once(old.name, key, tenant=old.tenant, author=self.caller.name, args=text)
        job = await self.caller.store.jobs.get(made.job_id)
        reason = await explained_job(self.caller, job)
        fields = msgspec.structs.asdict(job_of(job, self.caller.now, why=reason.why))
        return TriggeredJob(**fields, outcome="started" if made.is_new else "not started", message=made.why)

    @verb(
        "POST /api/schedules/{name:path}/backfill",
        id="backfill_schedule",
        role="operator",
        is_repeatable=_is_repeatable,
        errors=_MISSING,
    )
    async def backfill(
        self,
        name: str,
        *,
        first: Annotated[TimeText, Named("from"), msgspec.Meta(examples=["2027-01-01"])],
        last: Annotated[TimeText, Named("to"), msgspec.Meta(examples=["2027-01-07"])],
        again: bool = False,
        dry_run: bool = False,
        limit: Annotated[int, msgspec.Meta(ge=1, le=BACKFILL_MAX)] = BACKFILL_DEFAULT,
        tenant: Whose = None,
        is_planned: Annotated[DryRun, Named("dry_run")] = False,
    ) -> Backfill:
        """Enqueue a job for each past instant that has not fired.

        It is idempotent. More than `limit` jobs are refused; `dry_run` returns how many there would be.
        """
        dry_run = dry_run or is_planned
        old = await self._stored(name, tenant)
        since, until = self._past(old, first, last)
        options: dict[str, Any] = {"again": again, "limit": limit, "tenant": old.tenant, "author": self.caller.name}
        schedules = self.caller.store.schedules
        if self.caller.tenant is not None and not dry_run:
            planned = await schedules.backfill(old.name, since, until, dry_run=True, **options)
            await self.caller.admit_jobs(len(planned))
        if not dry_run:
            schedules = self.caller.acting(audit_log.backfill_schedule(old, since, until)).schedules
        instants = await schedules.backfill(old.name, since, until, dry_run=dry_run, **options)
        return Backfill(old.name, old.tenant, len(instants), [*map(isoformat, instants)], dry_run)

    def _past(self, schedule: StoredSchedule, first: str, last: str) -> tuple[Instant, Instant]:
        now, tz = self.caller.now, zone_of(schedule.spec.trigger).key
        since, until = read_past(first, now, "from", tz), read_past(last, now, "to", tz)
        if since > until:
            raise DefinitionError(f"from: {isoformat(since)} must not be later than to, {isoformat(until)}")
        return since, until

    # --- one schedule

    @verb("GET /api/schedules/{name:path}", id="get_schedule", role="viewer", errors=_MISSING, etag=etag_of_schedule)
    async def get(self, name: str, *, tenant: Whose = None) -> Schedule:
        """Read one schedule with its policies and its next instants."""
        return self._shown(await self._stored(name, tenant))

    @verb(
        "PUT /api/schedules/{name:path}",
        id="put_schedule",
        role="operator",
        errors=(ScheduleOwned, InvalidSchedule),
        created=lambda result: isinstance(result, Schedule) and result.outcome == "created",
        etag=lambda result: etag_of_schedule(result) if isinstance(result, Schedule) else None,
    )
    async def put(
        self,
        name: str,
        definition: ScheduleBody,
        *,
        tenant: Whose = None,
        dry_run: DryRun = False,
        owner: Owner = None,
        take_over: TakeOver = False,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Schedule | SchedulePlan:
        """Create or change a schedule.

        201 created, 200 changed or unchanged. `If-Match` with the ETag that was read fails with 412 if the schedule has
        changed since; `If-None-Match: *` creates only, and fails with 412 if it exists. With `dry_run=1` nothing is
        written and the response is the plan: `action` (create, change, nothing) and the next instants before and after.
        Names are unique per tenant. The tenant is that of the token; only a token for all tenants may name another one,
        in `tenant` of the query or the body.
        """
        caller, owner = self.caller, check_name(owner, "owner") if owner else ""
        made = await draft(caller, name, definition, tenant)
        old = (await caller.store.schedules.find([made.ref])).get(made.ref)
        expected = expected_revision(made.ref, old, if_match, if_none_match)
        change = DefinitionChange(made.ref, old, made.spec(old), owner)
        change.check(caller.now, take_over=take_over)
        [warnings] = (await warnings_of(caller, [change.spec])).values()
        if dry_run:
            return change.plan(caller.now, warnings)
        outcome: Any = await write_change(caller, change, expected=expected, take_over=take_over)
        shown = self._shown(await caller.store.schedules.show(name, tenant=made.ref.tenant))
        return msgspec.structs.replace(shown, outcome=outcome, warnings=warnings)

    @verb("DELETE /api/schedules/{name:path}", id="remove_schedule", role="operator", errors=_MISSING)
    async def remove(
        self, name: str, *, tenant: Whose = None, owner: Owner = None, if_match: IfMatch = None
    ) -> RemovedSchedule:
        """Remove a schedule.

        Its decisions stay in the ledger.
        """
        ref = self._ref(name, tenant)
        old = (await self.caller.store.schedules.find([ref])).get(ref)
        expected = expected_revision(ref, old, if_match)
        removed = old is not None and await self.caller.acting(audit_log.remove_schedule(old)).schedules.remove(
            name, tenant=ref.tenant, author=self.caller.name, owner=owner, expected_revision=expected
        )
        if not removed:
            raise absent(ref)
        return RemovedSchedule(name, ref.tenant, removed=True)

    # --- shared helpers

    def _ref(self, name: str, tenant: str | None) -> ScheduleRef:
        return ScheduleRef(tenant_of(self.caller, tenant) or DEFAULT_TENANT, name)

    async def _stored(self, name: str, tenant: str | None, *, also_removed: bool = False) -> StoredSchedule:
        ref = self._ref(name, tenant)
        return await self.caller.store.schedules.show(ref.name, tenant=ref.tenant, also_removed=also_removed)

    def _shown(self, schedule: StoredSchedule, now: Instant | None = None) -> Schedule:
        now = self.caller.now if now is None else now
        after = max(now, schedule.decided_through)
        return msgspec.structs.replace(schedule_of(schedule, now), next=previews(schedule.spec, after, NEXT_SHOWN))

    async def _changed(self, old: StoredSchedule, changed: bool) -> Schedule:
        stored = await self.caller.store.schedules.show(old.name, tenant=old.tenant)
        now = await self.caller.store.now()  # Not earlier than the change just made.
        return msgspec.structs.replace(self._shown(stored, now), changed=changed)


def _window(since: str | None, before: str | None, cursor: str | None) -> tuple[Instant, Instant]:
    """Return the requested part of a list: from the first time on, before the second."""
    if cursor is not None and not _INSTANT.fullmatch(cursor):
        raise DefinitionError("cursor must be the `next_cursor` of the previous page of this list")
    ends = [int(cursor)] if cursor is not None else []
    ends += [parse_instant(before, what="before")] if before is not None else []
    return 0 if since is None else parse_instant(since, what="since"), min(ends, default=FOREVER)
