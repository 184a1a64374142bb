"""The routes of schedules: define, look at, pause, run by hand, fill up, remove.

Names are unique per tenant. A name in a path means the schedule of the caller's own tenant; who sees all tenants says
which with `tenant`, and means the default one where it is left out. What another tenant has, nobody learns.

A definition is guarded by its revision. The ETag of a schedule is its revision and a digest of the rest:
`If-None-Match` compares all of it, `If-Match` only the revision, so that the passing of time is not taken for
somebody's change.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from headway.core.errors import Conflict, DefinitionError, ScheduleChanged, ScheduleOwned, TaskNotFound
from headway.core.instants import Instant
from headway.core.job_details import read_json
from headway.core.json_values import encode_args
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import After, describe
from headway.core.validation import KEY_LENGTH_MAX, check_name
from headway.core.zones import zone
from headway.operations import audit_log as deeds
from headway.operations.calendar import calendar, year_of
from headway.operations.job_context import alive
from headway.operations.overview import unserved
from headway.operations.runs import runs
from headway.operations.times import read_future, read_past
from headway.server.refusals import Refused
from headway.server.routes.schedule_bodies import (
    NEXT_SHOWN,
    BackfillBody,
    PauseBody,
    PreviewBody,
    ScheduleBody,
    TriggerBody,
)
from headway.server.routes.streams import job_answer
from headway.server.web import Answer, Call, answer_json
from headway.store.ledger import FOREVER
from headway.store.schedule_definitions import absent
from headway.tasks.definitions import inherited, take_trigger
from headway.wire.masking import unmasked
from headway.wire.shapes import (
    Shape,
    definition_shape,
    listed_schedule,
    occurrence_shape,
    previews,
    require_instants,
    schedule_shape,
    spec_shape,
    stamp,
    zone_of,
)

PLAN_SHOWN: Final = 3
RECENT_MAX: Final = 20
_ETAG: Final = re.compile(r'(?:W/)?"([0-9]{1,9})(?:-[0-9a-f]{1,32})?"')
_INSTANT: Final = re.compile(r"-?[0-9]{1,18}")


def _ref(call: Call) -> ScheduleRef:
    """Return which schedule a path means."""
    asked = call.query.get("tenant")
    if call.tenant is not None and asked not in (None, call.tenant):
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    return ScheduleRef(call.tenant or asked or DEFAULT_TENANT, call.path("name"))


async def _show(call: Call, *, also_removed: bool = False) -> Schedule:
    """Read the schedule that a path means."""
    ref = _ref(call)
    return await call.store.schedules.show(ref.name, tenant=ref.tenant, also_removed=also_removed)


# Define -----------------------------------------------------------------------------------------------------


async def put_schedule(call: Call) -> Answer:
    """Create or change a schedule, or say what that would do."""
    check_name(call.path("name"), "schedule name")
    body, query = await call.body(ScheduleBody), call.query
    owner = check_name(query["owner"], "owner") if query.get("owner") else ""
    defaults = await _defaults(call, check_name(body.task, "task"), body.args or {})
    ref = _put_ref(call, body, str(defaults.get("tenant", DEFAULT_TENANT)))
    old = (await call.store.schedules.find([ref])).get(ref)
    expected = _expected_revision(call, ref, old)
    spec = _spec(body, old, {**defaults, "tenant": ref.tenant})
    change = _Change(ref, old, spec, owner)
    change.check(call, take_over=query.get("take_over", False))
    warnings = await _warnings(call, spec)
    if query.get("dry_run"):
        return Answer({**change.plan(call.clock.now()), "warnings": warnings})
    if old is None:
        await call.caller.admit_schedules(1)
    acting = call.acting(deeds.put_schedule(ref.name, None if old is None else old.spec, spec))
    outcome = await acting.schedules.put(
        ref.name,
        spec,
        owner=owner,
        author=call.principal.name,
        expected_revision=expected,
        take_over=query.get("take_over", False),
    )
    schedule = await call.store.schedules.show(ref.name, tenant=ref.tenant)
    answer = _schedule_answer(call, schedule, 201 if outcome == "created" else 200)
    return Answer({**answer.body, "outcome": outcome, "warnings": warnings}, answer.status, answer.headers)


def _put_ref(call: Call, body: ScheduleBody, default: str) -> ScheduleRef:
    """Return which schedule is put: of the caller's tenant, or of the one that is said, or of the task's."""
    ref, asked = _ref(call), call.query.get("tenant")
    if body.tenant is not None and call.tenant is not None and body.tenant != call.tenant:
        raise Refused(403, "forbidden", "tenant: the tenant comes from the token; leave it out")
    if "*" in (body.tenant, asked):
        raise Refused(422, "invalid", "tenant: * stands for all tenants; a schedule belongs to one")
    if body.tenant is not None and asked not in (None, body.tenant):
        raise Refused(422, "invalid", "tenant: the body and the query say different tenants")
    return ScheduleRef(call.tenant or asked or body.tenant or default, ref.name)


async def _warnings(call: Call, spec: ScheduleSpec) -> list[str]:
    """Say what keeps jobs of a definition from running as things are."""
    warnings = unserved(spec.task, spec.queue, await alive(call.store))
    try:
        await call.caller.options_of(spec.task, read_json(spec.args))
    except TaskNotFound as error:
        if not any(repr(spec.task) in warning for warning in warnings):
            warnings.append(str(error))
    return warnings


def _definition(schedule: Schedule | None) -> Shape | None:
    return None if schedule is None else definition_shape(schedule.spec)


class _Change:
    """A definition beside the one that the store has."""

    def __init__(self, ref: ScheduleRef, old: Schedule | None, spec: ScheduleSpec, owner: str) -> None:
        self.ref = ref
        self.old = old
        self.spec = spec
        self.owner = owner

    @property
    def action(self) -> str:
        """What the store will make of it."""
        if self.old is None:
            return "create"
        return "nothing" if (self.old.spec, self.old.owner) == (self.spec, self.owner) else "change"

    def check(self, call: Call, *, take_over: bool) -> None:
        """Refuse what the store would refuse, before anything is written."""
        if self.old is not None and self.old.owner != self.owner and not take_over:
            whose = self.old.owner or "whoever put it by hand"
            raise ScheduleOwned(f"schedule {self.ref.name!r} belongs to {whose}; take_over=1 takes it over")
        if self.action != "nothing":
            require_instants(self.ref.name, self.spec, call.clock.now())

    def plan(self, now: Instant) -> Shape:
        """Write what would happen."""
        return {
            "name": self.ref.name,
            "tenant": self.ref.tenant,
            "action": self.action,
            "next": {
                "before": [] if self.old is None else previews(self.old.spec, now, PLAN_SHOWN),
                "after": previews(self.spec, now, PLAN_SHOWN),
            },
            "definition": spec_shape(self.spec),
            "dry_run": True,
        }


def _expected_revision(call: Call, ref: ScheduleRef, old: Schedule | None) -> int | None:
    """Return the revision that must be there, 0 for none; refuse at once when it is not."""
    name, headers = ref.name, call.request.headers
    if (absent := headers.get("if-none-match")) is not None:
        if absent.strip() != "*":
            raise Refused(422, "invalid", "If-None-Match: with PUT only * is known, which creates and never changes")
        if old is not None:
            raise ScheduleChanged(f"schedule {name!r} exists")
        return 0
    if (present := headers.get("if-match")) is None:
        return None
    if old is None:
        raise ScheduleChanged(f"schedule {name!r} does not exist")
    if present.strip() != "*" and old.revision not in _revisions(present):
        raise ScheduleChanged(f"schedule {name!r} has revision {old.revision}; read it again")
    return old.revision


def _revisions(header: str) -> set[int]:
    """Read the revisions out of ETags."""
    found = [_ETAG.fullmatch(part.strip()) for part in header.split(",")]
    if not all(found):
        raise Refused(422, "invalid", 'If-Match: must be the ETag of the schedule, such as "3-5f2c"')
    return {int(match[1]) for match in found if match is not None}


def _spec(body: ScheduleBody, old: Schedule | None, defaults: dict[str, Any]) -> ScheduleSpec:
    """Make a definition of a body; what the task says of its jobs counts where nothing is given."""
    options = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    trigger, task = take_trigger(options), options.pop("task")
    options.pop("tenant", None)  # It is in the defaults, from wherever it was said.
    if old is not None and "args" in options:
        options["args"] = unmasked(options["args"], read_json(old.spec.args))
    if old is not None and old.spec.callback_url is not None:
        known = old.spec.callback_url
        options["callback_url"] = known if body.callback_url == mask_url(known) else body.callback_url
    return ScheduleSpec.build(task=task, trigger=trigger, **(defaults | options))


async def _defaults(call: Call, task: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return what a task says of its jobs; a task that nobody here knows may be known to a worker elsewhere."""
    try:
        said, _ = await call.caller.options_of(task, args)
    except TaskNotFound:
        return {}
    return inherited(said)


# Look -------------------------------------------------------------------------------------------------------


async def list_schedules(call: Call) -> Answer:
    """Read a page of schedules by name."""
    limit, after = call.page()
    tenant = call.query.get("tenant")
    if call.tenant is not None and tenant not in (None, call.tenant):
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    tenant = call.tenant or tenant
    found = await call.store.schedules.page(
        owner=call.query.get("owner"),
        tenant=tenant,
        words=call.query.get("q"),
        state=call.query.get("state"),
        after=_read_cursor(after, tenant),
        limit=limit,
    )
    now = call.clock.now()
    items = [listed_schedule(schedule, now) for schedule in found]
    if items and "recent" in call.query:
        recent = await call.store.ledger.recent([schedule.key for schedule in found], call.query["recent"])
        for schedule, item in zip(found, items, strict=True):
            item["recent"] = [_recent_shape(decision) for decision in recent.get(schedule.key, ())]
    return Answer({"items": items, "next_cursor": _cursor(found[-1], tenant) if len(found) == limit else None})


def _cursor(last: Schedule, tenant: str | None) -> str:
    """Write where a page ends: a name, and in a list of all tenants whose."""
    return last.name if tenant is not None else f"{quote(last.tenant, safe='')}/{quote(last.name, safe='')}"


def _read_cursor(cursor: str | None, tenant: str | None) -> ScheduleRef | None:
    if cursor is None:
        return None
    if tenant is not None:
        return ScheduleRef(tenant, cursor)
    whose, slash, name = cursor.partition("/")
    return ScheduleRef(unquote(whose), unquote(name)) if slash else ScheduleRef(DEFAULT_TENANT, cursor)


def _recent_shape(decision: Mapping[str, Any]) -> Shape:
    return {
        "at": stamp(decision["instant"]),
        "count": decision["count"],
        "outcome": decision["outcome"],
        "reason": decision["reason"],
        "job_status": decision["job_status"],
        "job_id": decision["job_id"],
    }


async def get_schedule(call: Call) -> Answer:
    """Read one schedule with what comes next."""
    return _schedule_answer(call, await _show(call))


def _schedule_answer(call: Call, schedule: Schedule, status: int = 200) -> Answer:
    now = call.clock.now()
    after = max(now, schedule.decided_through)
    shape = {**schedule_shape(schedule, now), "next": previews(schedule.spec, after, NEXT_SHOWN)}
    digest = hashlib.blake2b(answer_json(shape), digest_size=8).hexdigest()
    etag = f'"{schedule.revision}-{digest}"'
    return Answer(shape, status, {"ETag": etag}, etag=etag)


async def list_occurrences(call: Call) -> Answer:
    """Read what was decided for a schedule, newest first; also for one that was removed."""
    limit, cursor = call.page()
    if cursor is not None and not _INSTANT.fullmatch(cursor):
        raise Refused(422, "invalid", "cursor: not one of this list")
    schedule = await _show(call, also_removed=True)
    window = {"before": call.query["before"]} if "before" in call.query else {}
    if cursor is not None:
        window["before"] = min(int(cursor), window.get("before", int(cursor)))
    found = await call.store.ledger.occurrences(schedule.key, since=call.query.get("since", 0), limit=limit, **window)
    items = [occurrence_shape(occurrence) for occurrence in found]
    return Answer({"items": items, "next_cursor": str(found[-1].instant) if len(found) == limit else None})


async def list_runs(call: Call) -> Answer:
    """Read what was decided for a schedule and what was started by hand, newest first; also of one that was removed."""
    limit, cursor = call.page()
    if cursor is not None and not _INSTANT.fullmatch(cursor):
        raise Refused(422, "invalid", "cursor: not one of this list")
    schedule = await _show(call, also_removed=True)
    before = min(int(cursor) if cursor else FOREVER, call.query.get("before", FOREVER))
    found = await runs(call.store, schedule, since=call.query.get("since", 0), before=before, limit=limit)
    items = [occurrence_shape(run) for run in found]
    return Answer({"items": items, "next_cursor": str(found[-1].instant) if len(found) >= limit else None})


async def get_calendar(call: Call) -> Answer:
    """Count what was decided for a schedule in a year, by days of its zone; also for one that was removed."""
    schedule = await _show(call, also_removed=True)
    tz = zone_of(schedule.spec.trigger).key
    year = call.query.get("year") or year_of(call.clock.now(), tz)
    return Answer(await calendar(call.store.ledger, schedule.key, year, tz))


async def preview_schedule(call: Call) -> Answer:
    """Read the next instants of a schedule."""
    schedule = await _show(call)
    tz = call.query.get("tz")
    shape = _preview(call, schedule.spec, call.query.get("from"), call.query.get("n", NEXT_SHOWN), tz)
    return Answer({"name": schedule.name, "tenant": schedule.tenant, **shape})


async def preview_rule(call: Call) -> Answer:
    """Read the next instants of a rule; nothing is stored."""
    body = await call.body(PreviewBody)
    options = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    number, since = options.pop("n"), options.pop("since", None)
    spec = ScheduleSpec.build(task="preview", trigger=take_trigger(options), **options)
    return Answer(_preview(call, spec, since, number))


def _preview(call: Call, spec: ScheduleSpec, since: str | None, number: int, tz: str | None = None) -> Shape:
    clock, now = zone(tz) if tz else zone_of(spec.trigger), call.clock.now()
    after = now if since is None else read_future(since, now, "from", clock.key) - 1
    note = "its instants follow from when its jobs end" if isinstance(spec.trigger, After) else None
    return {
        "rule": describe(spec.trigger),
        "tz": clock.key,
        "note": note,
        "items": previews(spec, after, number, clock),
    }


# Steer ------------------------------------------------------------------------------------------------------


async def pause_schedule(call: Call) -> Answer:
    """Stop a schedule; its instants are recorded as paused."""
    body = await call.body(PauseBody)
    old = await _show(call)
    tz = zone_of(old.spec.trigger).key
    until = None if body.until is None else read_future(body.until, call.clock.now(), "until", tz)
    acting = call.acting(deeds.pause_schedule(old, body.reason, until))
    is_new = await acting.schedules.pause(
        old.name, author=call.principal.name, reason=body.reason, until=until, tenant=old.tenant
    )
    if not is_new and until is not None:
        raise Conflict(f"schedule {old.name!r} is paused already; resume it first to pause it until another time")
    return _schedule_answer(call, await call.store.schedules.show(old.name, tenant=old.tenant))


async def resume_schedule(call: Call) -> Answer:
    """Let a paused schedule run again, from now on."""
    old = await _show(call)
    acting = call.acting(deeds.resume_schedule(old, call.clock.now()))
    await acting.schedules.resume(old.name, author=call.principal.name, tenant=old.tenant)
    return _schedule_answer(call, await call.store.schedules.show(old.name, tenant=old.tenant))


async def trigger_schedule(call: Call) -> Answer:
    """Enqueue a job of the schedule now, under its overlap rule."""
    body, header = await call.body(TriggerBody), call.request.headers.get("idempotency-key")
    if header is not None and body.key not in (None, header):
        raise Refused(422, "invalid", "key: the body and the header Idempotency-Key say different things")
    key = header if header is not None else body.key
    if key is not None:
        check_name(key, "key", KEY_LENGTH_MAX)
    old = await _show(call)
    args = None if body.args is None else encode_args(unmasked(body.args, read_json(old.spec.args)))
    await call.caller.admit_jobs(1)
    acting = call.acting(deeds.trigger_schedule(old))
    made = await acting.schedules.trigger_once(old.name, key, author=call.principal.name, args=args, tenant=old.tenant)
    job = await call.store.jobs.get(made.job_id)
    page = msgspec.json.decode((await job_answer(call, job)).body)
    answer = {**page, "outcome": "started" if made.is_new else "not started", "message": made.why}
    return Answer(answer, 201 if made.is_new else 200, {"Location": f"/api/jobs/{job.id}"})


async def backfill_schedule(call: Call) -> Answer:
    """Enqueue a job for each past instant that has not fired; repeating it adds nothing."""
    body = await call.body(BackfillBody)
    dry_run = body.dry_run or call.query.get("dry_run", False)
    old = await _show(call)
    now, tz = call.clock.now(), zone_of(old.spec.trigger).key
    first, last = read_past(body.first, now, "from", tz), read_past(body.last, now, "to", tz)
    if first > last:
        raise DefinitionError(f"from: {stamp(first)} must not be later than to, {stamp(last)}")
    if call.tenant is not None and not dry_run:
        planned = await call.store.schedules.backfill(
            old.name, first, last, again=body.again, dry_run=True, limit=body.limit, tenant=call.tenant
        )
        await call.caller.admit_jobs(len(planned))
    acting = call.store if dry_run else call.acting(deeds.backfill_schedule(old, first, last))
    instants = await acting.schedules.backfill(
        old.name,
        first,
        last,
        again=body.again,
        dry_run=dry_run,
        author=call.principal.name,
        limit=body.limit,
        tenant=old.tenant,
    )
    return Answer(
        {
            "schedule": old.name,
            "tenant": old.tenant,
            "count": len(instants),
            "instants": [stamp(instant) for instant in instants],
            "dry_run": dry_run,
        }
    )


async def remove_schedule(call: Call) -> Answer:
    """Remove a schedule; what was decided stays in the ledger."""
    ref = _ref(call)
    old = (await call.store.schedules.find([ref])).get(ref)
    expected = _expected_revision(call, ref, old) if "if-match" in call.request.headers else None
    removed = old is not None and await call.acting(deeds.remove_schedule(old)).schedules.remove(
        ref.name,
        author=call.principal.name,
        owner=call.query.get("owner"),
        expected_revision=expected,
        tenant=ref.tenant,
    )
    if not removed:
        raise absent(ref)
    return Answer({"schedule": ref.name, "tenant": ref.tenant, "removed": True})
