"""Limits: how many jobs run at a time, and how many start in a period."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from headway.core import limits as core
from headway.core.errors import InvalidLimit, NotFound
from headway.core.instants import isoformat
from headway.operations.limit_state import describe, limits_of
from headway.operations.verbs import OperationGroup, sliced, verb
from headway.store.audit_log import AuditEntry
from headway.wire import limits as wire
from headway.wire.base import PAGE_DEFAULT, Cursor, Page
from headway.wire.base import Limit as PageSize
from headway.wire.limits import LimitDetails, LimitHolder, RemovedLimit, definition_of_limit

HOLDERS_SHOWN: Final = 20

Concurrency = Annotated[int, msgspec.Meta(description="how many jobs may run at a time", examples=[5])]
StartRate = Annotated[str, msgspec.Meta(description="how many may start in which time", examples=["10/s"])]
Burst = Annotated[int, msgspec.Meta(description="size of a token bucket, for the rate", examples=[20])]


class Limits(OperationGroup):
    """Limits: how many jobs run at a time, and how many start in a period."""

    @verb("GET /api/limits", id="list_limits", role="viewer")
    async def list(self, *, limit: PageSize = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[wire.Limit]:
        """List limits, each with the number of running jobs that it counts.

        A token of one tenant sees the limits that hold for its tenant or its jobs, and counts only those jobs.
        """
        if self.caller.tenant is not None:
            own = await limits_of(self.caller.store, self.caller.tenant)
            return sliced([*own.values()], limit, cursor, lambda one: one.name)
        rules = await self.caller.store.limit_reads.rules()
        page = sliced([*rules.limits.values()], limit, cursor, lambda one: one.name)
        return Page(await describe(self.caller.store, page.items, rules, self.caller.now), page.next_cursor)

    @verb("GET /api/limits/{name:path}", id="get_limit", role="viewer", errors=(NotFound, InvalidLimit))
    async def show(self, name: str) -> LimitDetails:
        """Show a limit with the jobs that hold its places, and how much waits for it.

        A token of one tenant sees the jobs of that tenant only.
        """
        store, tenant = self.caller.store, self.caller.tenant
        rules = await store.limit_reads.rules()
        if tenant is not None:
            shown = (await limits_of(store, tenant)).get(name)
        else:
            found = await describe(store, [rules.limits[name]] if name in rules.limits else [], rules, self.caller.now)
            shown = found[0] if found else None
        if shown is None or name not in rules.limits:
            raise self._missing(name, rules)
        holders = await store.limit_reads.holders(rules.limits[name], rules, tenant=tenant, most=HOLDERS_SHOWN)
        return LimitDetails(
            **msgspec.structs.asdict(shown),
            holders=[LimitHolder(one.job_id, one.task, one.tenant, isoformat(one.since), one.gate) for one in holders],
        )

    @verb("PUT /api/limits/{name:path}", id="put_limit", role="operator", errors=(InvalidLimit,))
    async def put(
        self,
        name: str,
        *,
        concurrency: Concurrency | None = None,
        rate: StartRate | None = None,
        burst: Burst | None = None,
    ) -> wire.Limit:
        """Create or change a limit; it is in force when this returns.

        Running jobs are not stopped. A limit that an app declares belongs to operators from then on. Needs a token for
        all tenants.
        """
        self.caller.require_all_tenants()
        limit = core.Limit.build(name, concurrency=concurrency, rate=rate, burst=burst)
        old = await self._stored(limit.name)
        if old != limit:
            what = {"before": None if old is None else definition_of_limit(old), "after": definition_of_limit(limit)}
            entry = AuditEntry("limit.put", limit.name, None, what, _written)
            await self.caller.acting(entry).limits.put(limit, author=self.caller.name)
        rules = await self.caller.store.limit_reads.rules()
        [shown] = await describe(self.caller.store, [limit], rules, self.caller.now)
        return msgspec.structs.replace(shown, changed=old != limit)

    @verb("DELETE /api/limits/{name:path}", id="remove_limit", role="operator", errors=(NotFound, InvalidLimit))
    async def remove(self, name: str) -> RemovedLimit:
        """Remove a limit: jobs that wait for it may start.

        An app that declares it puts it again when it starts. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        if (old := await self._stored(core.check_limit_name(name))) is None:
            raise self._missing(name, await self.caller.store.limit_reads.rules())
        entry = AuditEntry("limit.remove", name, None, {"before": definition_of_limit(old)}, _removed)
        if not await self.caller.acting(entry).limits.remove(name, author=self.caller.name):
            raise self._missing(name, core.Rules())
        return RemovedLimit(name)

    async def _stored(self, name: str) -> core.Limit | None:
        return (await self.caller.store.limit_reads.rules()).limits.get(name)

    def _missing(self, name: str, rules: core.Rules) -> NotFound:
        holds = rules.find(name) if self.caller.tenant is None else None
        hint = "see `headway limits list`" if holds is None else f"{holds.name!r} holds for it"
        return NotFound(f"no limit is named {name[:60]!r}; {hint}")


# `put` and `remove` run several transactions. The first one, which writes the definition, returns a number or a truth
# value; those that put it in force and reopen lanes return other things, and leave no entry.


def _written(result: Any) -> Mapping[str, Any] | None:
    return {} if isinstance(result, int) else None


def _removed(result: Any) -> Mapping[str, Any] | None:
    return {} if result is True else None
