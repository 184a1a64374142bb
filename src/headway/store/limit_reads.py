"""Read what limits count: the attempts that hold their places, and the lanes that wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.core.instants import SECOND, Duration, Instant
from headway.core.limit_audit import AttemptSpan, LimitRevision
from headway.core.limits import BITS, Lane, Limit, Rules, kind_of, rate_allows, value_of
from headway.store.lanes import read_limit
from headway.store.transaction import Driver, Row, as_json, call

READ_MAX: Final = 10_000
WAITING_MAX: Final = 100_000
SPANS_MAX: Final = 200_000
REVISIONS_MAX: Final = 5_000
HELD_MAX: Final = 1_000  # Lanes that are counted at one limit.
QUEUES_MAX: Final = 1_000
_LAST: Final = "\U0010ffff"  # After every character of a name.


@dataclass(frozen=True, slots=True)
class Holder:
    """An attempt that holds a place of a limit."""

    job_id: str
    task: str
    tenant: str
    since: Instant
    gate: str


@dataclass(frozen=True, slots=True)
class Hold:
    """What a ready job waits for: a limit without a free place, or a rate that is used up."""

    gate: str
    limit: Limit
    running: int
    holder: Holder | None  # The one that has run longest, of those that the caller may see.
    look_at: Instant | None
    defined_as: str  # The name of the limit: account-* for the gate account-42.


@dataclass(frozen=True, slots=True)
class UsedShare:
    """What a tenant has used of a queue, and how many other tenants with jobs have used less."""

    used: Duration
    weight: int
    others: int


class StoreLimitReads:
    """What limits count, for operators and tenants."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def rules(self) -> Rules:
        """Return all limits, to find those of a name."""
        return Rules(map(read_limit, await self._driver.fetch(call("limits"))))

    async def running(self, names: list[str]) -> dict[str, int]:
        """Count the attempts under limits without a `*`."""
        if not names:
            return {}
        gates = as_json([{"gate": name, "kind": kind_of(name), "value": value_of(name)} for name in names])
        return {row["gate"]: row["running"] for row in await self._driver.fetch(call("count_running", gates=gates))}

    async def running_of(self, tenant: str, rules: Rules) -> dict[str, int]:
        """Count the attempts of one tenant by the limits that hold for them."""
        counts: dict[str, int] = {}
        for row in await self._driver.fetch(call("running_of_tenant", tenant=tenant, limit=READ_MAX)):
            for kind, name in _gates_of(row, tenant).items():
                limit = rules.find(name) if name and row["held"] & BITS[kind] else None
                if limit is not None:
                    counts[limit.name] = counts.get(limit.name, 0) + row["running"]
        return counts

    async def holders(self, limit: Limit, rules: Rules, *, tenant: str | None, most: int) -> list[Holder]:
        """Return attempts that hold places of a limit, those that have run longest first."""
        if not limit.is_pattern:
            return await self._holders_at(limit.name, tenant=tenant, most=most)
        rows = await self._driver.fetch(
            call(
                "limit_holders",
                kind=limit.kind,
                bit=BITS[limit.kind],
                stem=limit.stem,
                tenant=tenant,
                limit=READ_MAX,
            )
        )
        found = [_holder(row, limit.kind) for row in rows]
        return [holder for holder in found if _is_under(limit, rules, holder.gate)][:most]

    async def _holders_at(self, gate: str, *, tenant: str | None, most: int) -> list[Holder]:
        kind = kind_of(gate)
        asked = {"kind": kind, "value": value_of(gate), "tenant": tenant, "limit": most}
        return [_holder(row, kind) for row in await self._driver.fetch(call("gate_holders", **asked))]

    async def hold(self, job_id: str, *, tenant: str | None) -> Hold | None:
        """Return the limit that a ready job waits for, with a holder that the tenant may see; None if there is none."""
        rows = await self._driver.fetch(call("job_hold", id=job_id))
        if not rows:
            return None
        gate, rules = rows[0]["gate"], await self.rules()
        limit = rules.find(gate)
        if limit is None:
            return None
        one = Limit(name=gate, concurrency=limit.concurrency, rate=limit.rate, per=limit.per, burst=limit.burst)
        holders = await self._holders_at(gate, tenant=tenant, most=1)
        running = (await self.running([gate]))[gate] if tenant is None else len(holders)
        return Hold(gate, one, running, holders[0] if holders else None, rows[0]["look_at"], limit.name)

    async def share(self, job_id: str) -> UsedShare | None:
        """Return what the tenant of a ready job has used of its queue; None if it never shared it."""
        rows = await self._driver.fetch(call("job_share", id=job_id, limit=READ_MAX))
        return UsedShare(rows[0]["used"], rows[0]["weight"], rows[0]["others"]) if rows else None

    async def waiting(self, queue: str) -> dict[Lane, int]:
        """Count the ready jobs of a queue by lane, at most 100,000."""
        rows = await self._driver.fetch(call("waiting_lanes", queue=queue, limit=WAITING_MAX))
        return {Lane(row["tenant"], row["limit_key"], row["limited_task"]): row["jobs"] for row in rows}

    async def usual_seconds(self, queue: str) -> float | None:
        """Return how long the newest jobs of a queue took on average; None if none has ended lately."""
        mean = (await self._driver.fetch(call("usual_duration", queue=queue, limit=READ_MAX)))[0]["mean"]
        return None if mean is None else float(mean) / SECOND

    async def spans(self, since: Instant) -> tuple[list[AttemptSpan], bool]:
        """Return the attempts that ran after a time, by their start, and whether these are all."""
        rows = await self._driver.fetch(call("attempt_spans", since=since, limit=SPANS_MAX))
        return [AttemptSpan(*row) for row in rows], len(rows) < SPANS_MAX

    async def revisions(self) -> tuple[list[LimitRevision], bool]:
        """Return how limits were defined over time, oldest first, and whether these are all that are kept."""
        rows = await self._driver.fetch(call("limit_revisions", limit=REVISIONS_MAX))
        revisions = [
            LimitRevision(
                row["name"],
                row["at"],
                None
                if row["removed"]
                else Limit(
                    name=row["name"],
                    concurrency=row["concurrency"],
                    rate=row["rate"],
                    per=row["per"],
                    burst=row["burst"],
                ),
            )
            for row in reversed(rows)
        ]
        return revisions, len(rows) < REVISIONS_MAX

    async def held(self, limits: Iterable[Limit], rules: Rules) -> dict[str, int]:
        """Count the lanes that wait for a place of each limit, up to 1,000; without limits for which none waits."""
        ranges = as_json([_range_of(limit) for limit in limits])
        rows = await self._driver.fetch(call("held_lanes_of_limits", limits=ranges, most=HELD_MAX))
        rows = [row for row in rows if _is_under(rules.limits[row["limit_name"]], rules, row["gate"])]
        of_queues = await self._lanes_of_queues({row["gate"] for row in rows if kind_of(row["gate"]) == "queue"})
        counts: dict[str, int] = {}
        for row in rows:
            name, gate = row["limit_name"], row["gate"]
            lanes = of_queues.get(gate, 0) if kind_of(gate) == "queue" else row["lanes"]
            counts[name] = min(HELD_MAX, counts.get(name, 0) + lanes)
        return {name: lanes for name, lanes in counts.items() if lanes}

    async def _lanes_of_queues(self, gates: set[str]) -> dict[str, int]:
        """Count the lanes that wait at gates of queues: they stay open, and one lane says that the gate is full."""
        if not gates:
            return {}
        queues = as_json([{"in_queue": value_of(gate)} for gate in sorted(gates)])
        rows = await self._driver.fetch(call("open_lanes_of_queues", queues=queues, most=HELD_MAX))
        return {f"queue:{row['queue']}": row["lanes"] for row in rows}

    async def held_of(self, tenant: str, rules: Rules) -> dict[str, int]:
        """Count the lanes of one tenant that wait, by limit; reads nothing of other tenants."""
        queues = as_json(await sharing_queues(self._driver))
        rows = await self._driver.fetch(call("held_lanes_of_tenant", queues=queues, tenant=tenant, most=HELD_MAX))
        counts: dict[str, int] = {}
        for row in rows:
            limit = rules.find(row["gate"])
            if limit is not None:
                counts[limit.name] = min(HELD_MAX, counts.get(limit.name, 0) + row["lanes"])
        return counts

    async def next_starts(self, limits: Iterable[Limit], now: Instant) -> dict[str, Instant]:
        """Return when rates that are used up allow the next start; of limits without a `*`."""
        rates = {limit.name: limit for limit in limits if limit.rate is not None and not limit.is_pattern}
        if not rates:
            return {}
        gates = as_json([{"gate": name} for name in sorted(rates)])
        rows = await self._driver.fetch(call("gate_states", gates=gates))
        found = {row["name"]: rate_allows(rates[row["name"]], row["state"], now, 1).next_at for row in rows}
        return {name: next_at for name, next_at in found.items() if next_at is not None}


async def sharing_queues(driver: Driver) -> list[dict[str, str]]:
    """Return the queues that tenants have shared, as statements take them."""
    return places_in(await driver.fetch(call("sharing_queues", limit=QUEUES_MAX)))


def places_in(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return queues as statements take them."""
    return [{"in_queue": row["in_queue"], "for_needs": row["for_needs"]} for row in rows]


def _range_of(limit: Limit) -> dict[str, str]:
    """Return the names of the gates that a limit may have; names sort by their bytes."""
    stem = limit.name.removesuffix("*")
    return {"limit_name": limit.name, "low": stem, "high": stem + _LAST if limit.is_pattern else stem}


def _holder(row: Row, kind: str) -> Holder:
    gate = _gates_of(row, row["tenant"])[kind]
    return Holder(row["id"], row["task"], row["tenant"], row["started_at"], gate)


def _is_under(limit: Limit, rules: Rules, name: str) -> bool:
    found = rules.find(name)
    return found is not None and found.name == limit.name


def _gates_of(row: Row, tenant: str) -> dict[str, Any]:
    """Return the names under which limits count a job, by kind."""
    return {
        "queue": f"queue:{row['queue']}",
        "task": f"task:{row['task']}",
        "tenant": f"tenant:{tenant}",
        "key": row["limit_key"],
    }
