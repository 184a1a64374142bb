"""The audit log: who did what to what, from where. Entries are added and pruned by age, never changed.

`Store.auditing` writes an entry in the transaction of the change that it describes. So no change is without its entry
and no entry without its change, also when the process dies between two statements.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from headway.core.access import AuditRecord
from headway.core.instants import Duration, Instant
from headway.core.tenants import ALL_TENANTS
from headway.core.validation import storable
from headway.store.transaction import Driver, Row, StatementCall, as_json, call

PAGE_MAX: Final = 200
_DETAIL_LENGTH_MAX: Final = 16_384
_TEXT_LENGTH_MAX: Final = 512
_LAST_SEQ: Final = 2**63 - 1


def if_changed(result: Any) -> Mapping[str, Any] | None:
    """Treat an empty or false result as: nothing changed, so there is nothing to record."""
    return {} if result else None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, from where, and of which tenant."""

    name: str
    origin: str
    tenant: str = ALL_TENANTS


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry for a change that is about to be made. Without a tenant, it has the tenant of the actor.

    Target and tenant may depend on the result of the transaction. `detail_from` returns further detail from that
    result, or None when nothing changed.
    """

    action: str
    target: str | Callable[[Any], str]
    tenant: str | Callable[[Any], str] | None
    detail: Mapping[str, Any] = field(default_factory=dict)
    detail_from: Callable[[Any], Mapping[str, Any] | None] = if_changed

    def nth(self, number: int) -> "AuditEntry":
        """Return the entry for result `number` of a transaction that returns several results."""
        return replace(self, detail_from=lambda results: self.detail_from(results[number]))

    def row(self, actor: Actor, result: Any) -> dict[str, str] | None:
        """Return the row to insert; None when nothing changed."""
        more = self.detail_from(result)
        if more is None:
            return None
        target = self.target(result) if callable(self.target) else self.target
        tenant = self.tenant(result) if callable(self.tenant) else self.tenant
        detail = msgspec.json.encode({**self.detail, **more}).decode()
        return _row(actor.name, tenant or actor.tenant, actor.origin, self.action, target, detail)


def add_entries(actor: Actor, entries: Iterable[AuditEntry], result: Any) -> Iterator[StatementCall]:
    """Insert the entries that the result calls for, in one statement; none when nothing changed."""
    rows = [row for entry in entries if (row := entry.row(actor, result)) is not None]
    if rows:
        yield _insert(rows)


def add_entry(actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> StatementCall:
    """Insert one entry; the detail is JSON."""
    return _insert([_row(actor, tenant, origin, action, target, detail)])


class StoreAuditLog:
    """The audit log of one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def record(self, *, actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> None:
        """Add an entry; the detail is JSON."""
        await self._driver.fetch(add_entry(actor, tenant, origin, action, target, detail))

    async def page(
        self,
        *,
        tenant: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        before: int | None = None,
        limit: int = PAGE_MAX,
    ) -> list[AuditRecord]:
        """Read entries with a number below `before`, newest first."""
        rows = await self._driver.fetch(
            call(
                "audit_entries",
                tenant=tenant,
                actor=actor,
                action=action,
                target=target,
                since=since,
                until=until,
                before=_LAST_SEQ if before is None else before,
                limit=limit,
            )
        )
        return [_read_entry(row) for row in rows]

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete entries older than the retention, oldest first; return how many."""
        return len(await self._driver.fetch(call("prune_audit_entries", age=retention, limit=limit)))


def _insert(rows: Sequence[Mapping[str, str]]) -> StatementCall:
    return call("add_audit_entries", lines=as_json(rows))


def _row(actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> dict[str, str]:
    if len(detail) > _DETAIL_LENGTH_MAX:
        detail = '{"omitted":"too long"}'
    return {
        "actor": storable(actor, _TEXT_LENGTH_MAX),
        "tenant": storable(tenant, _TEXT_LENGTH_MAX),
        "origin": storable(origin, _TEXT_LENGTH_MAX),
        "action": storable(action, _TEXT_LENGTH_MAX),
        "target": storable(target, _TEXT_LENGTH_MAX),
        "detail": storable(detail, _DETAIL_LENGTH_MAX),
    }


def _read_entry(row: Row) -> AuditRecord:
    return AuditRecord(
        seq=row["seq"],
        at=row["at"],
        actor=row["actor"],
        tenant=row["tenant"],
        origin=row["origin"],
        action=row["action"],
        target=row["target"],
        detail=msgspec.json.decode(row["detail"]),
    )
