"""Define schedules: build a definition from a request, compare it with the stored one, write it.

`put` writes one schedule, and may be guarded by the revision that the client has read. `apply` writes many in one
transaction. Both check everything that the store would refuse before they write anything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headway.core.errors import (
    DefinitionError,
    Denied,
    InvalidSchedule,
    ScheduleChanged,
    ScheduleOwned,
    TaskNotFound,
)
from headway.core.instants import Instant
from headway.core.job_details import read_json
from headway.core.needs import read_amounts
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import trigger_to_dict
from headway.core.validation import check_name
from headway.operations import audit_log
from headway.operations.caller import Caller
from headway.operations.job_context import alive
from headway.operations.schedule_instants import previews, require_instants
from headway.operations.worker_state import unserved
from headway.store.schedule_definitions import REFUSED
from headway.tasks.definitions import inherited, take_trigger
from headway.tasks.options import Options
from headway.wire.masking import unmasked
from headway.wire.schedule_requests import NamedSchedule, ScheduleBody
from headway.wire.schedules import Outcome, PlannedInstants, ScheduleChange, SchedulePlan, definition_of

Served: TypeAlias = tuple[str, str, str]  # A task, its queue, and what its jobs need.
PLAN_SHOWN: Final = 3
WARNED_OF: Final = 100
_ETAG: Final = re.compile(r'(?:W/)?"([0-9]{1,9})(?:-[0-9a-f]{1,32})?"')
_ACTIONS: Final[Mapping[Outcome, Literal["create", "change", "nothing"]]] = {
    "created": "create",
    "changed": "change",
    "unchanged": "nothing",
}


# The request ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """A definition as sent, the schedule that it is for, and the options of its task, if that is known."""

    ref: ScheduleRef
    body: ScheduleBody
    task: Options | None

    def spec(self, old: Schedule | None) -> ScheduleSpec:
        """Build the definition; defaults of the task replace missing fields."""
        given = msgspec.structs.asdict(self.body)
        options = {name: value for name, value in given.items() if value is not None and name != "name"}
        trigger, task = take_trigger(options), options.pop("task")
        options.pop("tenant", None)  # It is part of the reference.
        if old is not None and "args" in options:
            options["args"] = unmasked(options["args"], read_json(old.spec.args))
        if old is not None and (known := old.spec.callback_url) is not None:
            sent = self.body.callback_url
            options["callback_url"] = known if sent == mask_url(known) else sent
        defaults = {} if self.task is None else inherited(self.task, options)
        defaults["tenant"] = self.ref.tenant
        return ScheduleSpec.build(task=task, trigger=trigger, **(defaults | options))


async def draft(caller: Caller, name: str, body: ScheduleBody, tenant: str | None) -> Draft:
    """Return which schedule a definition is for; `tenant` comes from the query."""
    check_name(name, "schedule name")
    known = await _options_of(caller, check_name(body.task, "task"), body.args or {})
    whose = tenant_of(caller, tenant)
    if caller.tenant is not None and body.tenant not in (None, caller.tenant):
        raise Denied("tenant: the tenant comes from the token; leave it out")
    if caller.tenant is not None:
        _require_needs_of_task(body, known or Options())
    if "*" in (body.tenant, tenant):
        raise DefinitionError("tenant: * stands for all tenants; a schedule belongs to one")
    if None not in (body.tenant, tenant) and body.tenant != tenant:
        raise DefinitionError("tenant: the body and the query name different tenants")
    default = DEFAULT_TENANT if known is None else known.tenant
    return Draft(ScheduleRef(whose or body.tenant or default, name), body, known)


def _require_needs_of_task(body: ScheduleBody, known: Options) -> None:
    """Raise an error if a tenant chooses workers, which others share."""
    needs = known.needs if body.needs is None else read_amounts(body.needs, "needs")
    labels = known.labels if body.labels is None else body.labels
    if (needs, labels, body.version) != (known.needs, known.labels, None):
        raise Denied("needs, labels, version: a token of one tenant cannot choose them; set them on the task")


def tenant_of(caller: Caller, tenant: str | None) -> str | None:
    """Return the tenant: the caller's own, or the given one if the caller sees all tenants."""
    if caller.tenant is not None and tenant not in (None, caller.tenant):
        raise Denied("tenant: this token sees one tenant only; leave it out")
    return caller.tenant or tenant


async def _options_of(caller: Caller, task: str, args: dict[str, Any]) -> Options | None:
    """Return the options of a task; None for a task that is unknown here, but may be known to another worker."""
    try:
        return (await caller.options_of(task, args))[0]
    except TaskNotFound:
        return None


def expected_revision(
    ref: ScheduleRef, old: Schedule | None, if_match: str | None, if_none_match: str | None = None
) -> int | None:
    """Return the revision that must be stored, 0 for none; raise an error if another one is stored now."""
    name = ref.name
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise DefinitionError("If-None-Match: PUT accepts only *, which creates and never changes")
        if old is not None:
            raise ScheduleChanged(f"schedule {name!r} exists")
        return 0
    if if_match is None:
        return None
    if old is None:
        raise ScheduleChanged(f"schedule {name!r} does not exist")
    if if_match.strip() != "*" and old.revision not in _revisions(if_match):
        raise ScheduleChanged(f"schedule {name!r} has revision {old.revision}; read it again")
    return old.revision


def _revisions(header: str) -> set[int]:
    """Extract the revisions from ETags."""
    found = [_ETAG.fullmatch(part.strip()) for part in header.split(",")]
    if not all(found):
        raise DefinitionError('If-Match: must be the ETag of the schedule, such as "3-5f2c"')
    return {int(match[1]) for match in found if match is not None}


# The change -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A definition and the stored one."""

    ref: ScheduleRef
    old: Schedule | None
    spec: ScheduleSpec
    owner: str

    @property
    def outcome(self) -> Outcome:
        """The action that the store will take."""
        if self.old is None:
            return "created"
        return "unchanged" if (self.old.spec, self.old.owner) == (self.spec, self.owner) else "changed"

    def check(self, now: Instant, *, take_over: bool) -> None:
        """Raise the errors that the store would raise, before anything is written."""
        if self.old is not None and self.old.owner != self.owner and not take_over:
            whose = self.old.owner or "no app or file (it was put by hand)"
            raise ScheduleOwned(f"schedule {str(self.ref)!r} belongs to {whose}; take_over=1 takes it over")
        if self.outcome != "unchanged":
            require_instants(self.ref.name, self.spec, now)

    def plan(self, now: Instant, warnings: list[str]) -> SchedulePlan:
        """Return the plan of a PUT."""
        before = [] if self.old is None else previews(self.old.spec, now, PLAN_SHOWN)
        return SchedulePlan(
            name=self.ref.name,
            tenant=self.ref.tenant,
            action=_ACTIONS[self.outcome],
            next=PlannedInstants(before, previews(self.spec, now, PLAN_SHOWN)),
            definition=definition_of(self.spec),
            dry_run=True,
            warnings=warnings,
        )

    def report(self, now: Instant, outcome: Outcome, warnings: list[str]) -> ScheduleChange:
        """Return the outcome, or the planned outcome, for the schedule."""
        return ScheduleChange(
            name=self.ref.name,
            tenant=self.ref.tenant,
            outcome=outcome,
            before=None if self.old is None else previews(self.old.spec, now, PLAN_SHOWN),
            after=previews(self.spec, now, PLAN_SHOWN),
            trigger=trigger_to_dict(self.spec.trigger),
            previous_trigger=None if self.old is None else trigger_to_dict(self.old.spec.trigger),
            warnings=warnings,
        )


def served(spec: ScheduleSpec) -> Served:
    """Return what a worker must have to run the jobs of a definition."""
    return spec.task, spec.queue, spec.needs_text


async def warnings_of(caller: Caller, specs: Iterable[ScheduleSpec]) -> dict[Served, list[str]]:
    """Return, by what they need, what keeps the jobs of definitions from running now; for a bounded number of them."""
    nodes, found = await alive(caller.store), dict[Served, list[str]]()
    for spec in specs:
        key = served(spec)
        if key in found or len(found) >= WARNED_OF:
            continue
        warnings = found[key] = unserved(spec.task, spec.queue, nodes, spec.needs_text)
        try:
            await caller.options_of(spec.task, read_json(spec.args))
        except TaskNotFound as error:
            if not any(repr(spec.task) in warning for warning in warnings):
                warnings.append(str(error))
    return found


async def drafted_changes(
    caller: Caller, named: Sequence[NamedSchedule], *, tenant: str | None, owner: str, take_over: bool
) -> list[DefinitionChange]:
    """Compare many definitions with the stored ones, and raise the errors that the store would raise."""
    drafts: dict[ScheduleRef, Draft] = {}
    for body in named:
        made = await _named_draft(caller, body, tenant)
        if made.ref in drafts:
            raise InvalidSchedule(f"schedule {str(made.ref)!r} is defined twice")
        drafts[made.ref] = made
        await caller.clock.yield_to_loop()
    found, changes = await caller.store.schedules.find(drafts), []
    for ref, made in drafts.items():
        change = DefinitionChange(ref, found.get(ref), _named_spec(made, found.get(ref)), owner)
        change.check(caller.now, take_over=take_over)
        changes.append(change)
        await caller.clock.yield_to_loop()
    return changes


async def _named_draft(caller: Caller, body: NamedSchedule, tenant: str | None) -> Draft:
    try:
        return await draft(caller, body.name, body, tenant)
    except DefinitionError as error:
        raise InvalidSchedule(f"schedule {body.name[:60]!r}: {error}") from None


def _named_spec(made: Draft, old: Schedule | None) -> ScheduleSpec:
    try:
        return made.spec(old)
    except DefinitionError as error:
        raise InvalidSchedule(f"schedule {made.ref.name[:60]!r}: {error}") from None


async def write_change(
    caller: Caller, change: DefinitionChange, *, expected: int | None = None, take_over: bool = False
) -> str:
    """Write one definition, if requested only over the expected revision; return the outcome."""
    await caller.admit_schedules(1 if change.old is None else 0)
    entry = audit_log.put_schedule(change.ref.name, None if change.old is None else change.old.spec, change.spec)
    return await caller.acting(entry).schedules.put(
        change.ref.name,
        change.spec,
        owner=change.owner,
        author=caller.name,
        expected_revision=expected,
        take_over=take_over,
    )


async def put_unowned(caller: Caller, name: str, spec: ScheduleSpec) -> Schedule:
    """Create or change a schedule that no app owns; return it as it is stored."""
    ref = ScheduleRef(spec.tenant, name)
    old = (await caller.store.schedules.find([ref])).get(ref)
    await write_change(caller, DefinitionChange(ref, old, spec, owner=""))
    return await caller.store.schedules.get(name, tenant=spec.tenant)


async def write_changes(
    caller: Caller, changes: Sequence[DefinitionChange], *, owner: str, take_over: bool
) -> dict[ScheduleRef, Outcome]:
    """Write the changed definitions in one transaction; return the outcome for each schedule."""
    outcomes = {change.ref: change.outcome for change in changes}
    written = [change for change in changes if change.outcome != "unchanged"]
    if not written:
        return outcomes
    await caller.admit_schedules(sum(change.old is None for change in written))
    entries = [
        audit_log.put_schedule(change.ref.name, None if change.old is None else change.old.spec, change.spec).nth(
            number
        )
        for number, change in enumerate(written)
    ]
    specs = {change.ref: change.spec for change in written}
    acting = caller.acting(entries).schedules
    done = await acting.put_many(specs, owner=owner, author=caller.name, take_over=take_over)
    for ref, outcome in zip(specs, done, strict=True):
        if outcome.startswith(REFUSED):  # It was created between the comparison and the write.
            raise ScheduleOwned(outcome.removeprefix(REFUSED))
        outcomes[ref] = msgspec.convert(outcome, Outcome)
    return outcomes
