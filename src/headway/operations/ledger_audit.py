"""The audit: compare the expected instants of schedules with the recorded ones."""

import asyncio
from typing import Annotated, Final
from urllib.parse import quote, unquote

import msgspec

from headway.core.errors import DefinitionError, RequestTooLarge, ScheduleNotFound
from headway.core.instants import DAY, INSTANT_MIN, Instant, isoformat, parse_instant
from headway.core.limit_audit import Excess, audit_limits
from headway.core.schedule_names import schedule_name
from headway.core.tenants import DEFAULT_TENANT
from headway.operations.schedule_definitions import tenant_of
from headway.operations.verbs import OperationGroup, verb
from headway.scheduling.audit import AuditReport, audit
from headway.store import Store
from headway.wire.base import PAGE_DEFAULT, PAGE_MAX, Cursor, Time
from headway.wire.ledger_audit import LedgerAudit
from headway.wire.limit_audit import LimitAudit, LimitExcess

WINDOW: Final = DAY
WINDOW_MAX: Final = 366 * DAY
PAGE_S_MAX: Final = 20.0  # A page of the audit ends after this time, however far it got.
SCHEDULE_S_MAX: Final = 30.0
SPAN_BYTES: Final = 200

Schedules = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX, description="maximum number of schedules", examples=[50])]
Since = Annotated[
    Time | None, msgspec.Meta(description="only instants after this time", examples=["2027-01-30T06:00:00Z"])
]
Until = Annotated[Time | None, msgspec.Meta(description="only instants up to this time")]


class Ledger(OperationGroup):
    """The ledger: which instants of schedules were decided."""

    @verb("GET /api/audit", id="get_audit", role="viewer", errors=(ScheduleNotFound,))
    async def audit(
        self,
        *,
        schedule: Annotated[
            str | None, msgspec.Meta(description="only this schedule", examples=["daily-report"])
        ] = None,
        tenant: Annotated[
            str | None, msgspec.Meta(description="only schedules of this tenant", examples=["acme"])
        ] = None,
        since: Since = None,
        until: Until = None,
        limit: Schedules = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> LedgerAudit:
        """Audit the schedules: compare the expected instants with the recorded ones.

        The expected instants are computed anew, by code that is independent of the scheduler. Each response covers a
        page of schedules, and the last day unless `since` and `until` are given; continue with `cursor` until it is
        null.
        """
        first, last = self._window(since, until)
        keys = await self._keys(schedule, tenant_of(self.caller, tenant), limit, cursor)
        report, done = AuditReport(), 0
        started = self.caller.clock.monotonic()
        for key in keys:
            if done and self.caller.clock.monotonic() - started > PAGE_S_MAX:
                break
            report.merge(await self._audit_one(key, first, last))
            done += 1
        is_complete = schedule is not None or (done == len(keys) and len(keys) < limit)
        return _written(
            report,
            since=None if first is None else isoformat(first),
            until=None if last is None else isoformat(last),
            next_cursor=None if is_complete else quote(keys[done - 1], safe=""),  # A key is not printable.
        )

    @verb("GET /api/audit/limits", id="get_limit_audit", role="viewer")
    async def limits(self, *, since: Since = None) -> LimitAudit:
        """Audit the limits: recompute from attempts whether more ran at a time, or started in a period, than allowed.

        It covers the last day unless `since` is given, and at most 200,000 attempts. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        first = self.caller.now - WINDOW if since is None else parse_instant(since, what="since")
        reads = self.caller.store.limit_reads
        spans, is_complete = await reads.spans(first)
        revisions, knows_all = await reads.revisions()
        size = len(spans) * SPAN_BYTES
        found = await self.caller.convert(size, audit_limits, spans, revisions)
        return LimitAudit(
            limits=len(revisions),
            attempts=len(spans),
            excesses=[_excess(one) for one in found],
            ok=not found,
            complete=is_complete and knows_all,
            since=isoformat(first),
        )

    def _window(self, since: str | None, until: str | None) -> tuple[Instant | None, Instant | None]:
        """Return the start and end of the period; over HTTP its length is limited."""
        first = None if since is None else parse_instant(since, what="since")
        last = None if until is None else parse_instant(until, what="until")
        if self.caller.is_bounded:
            last = self.caller.now if last is None else last
            first = max(INSTANT_MIN, last - WINDOW) if first is None else first
        if first is not None and last is not None:
            if first > last:
                raise DefinitionError(f"since: {isoformat(first)} must not be later than until, {isoformat(last)}")
            if self.caller.is_bounded and last - first > WINDOW_MAX:
                raise DefinitionError("since: at most 366 days can be audited at once; choose a shorter period")
        return first, last

    async def _keys(self, name: str | None, tenant: str | None, limit: int, cursor: str | None) -> list[str]:
        """Return the keys of the schedules to audit, including removed ones."""
        store = self.caller.store
        if name is None:
            return [found.key for found in await store.ledger.keys(unquote(cursor or ""), limit, tenant=tenant)]
        try:
            whose = tenant or DEFAULT_TENANT
            return [(await store.schedules.show(name, tenant=whose, also_removed=True)).key]
        except ScheduleNotFound:
            raise ScheduleNotFound(f"no schedule is named {name!r}, and none ever was") from None

    async def _audit_one(self, key: str, since: Instant | None, until: Instant | None) -> AuditReport:
        try:
            async with asyncio.timeout(SCHEDULE_S_MAX if self.caller.is_bounded else None):
                return await audit(self.caller.store.ledger, key=key, since=since, until=until)
        except TimeoutError:
            raise RequestTooLarge(
                f"since: schedule {schedule_name(key)!r} has too many instants in this period"
            ) from None


def _excess(found: Excess) -> LimitExcess:
    return LimitExcess(
        found.limit, found.gate, found.kind, isoformat(found.at), found.allowed, found.found, found.job_id
    )


async def audit_all(store: Store, *, since: Instant | None = None) -> LedgerAudit:
    """Audit all schedules of a store at once."""
    return _written(await audit(store.ledger, since=since))


def _written(report: AuditReport, **window: str | None) -> LedgerAudit:
    return msgspec.convert({**report.to_dict(), **window}, LedgerAudit)
