"""Leases and nodes in the store.

A lease runs on the store's clock: the statements that take, extend and steal it read the time in the database, so the
clock of a process does not matter. Its token comes from a counter that outlives the row, so it only ever grows, also
across release and deletion.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import NodesTooOld, StoreError
from headway.core.events import StoreWentBack, emit
from headway.core.instants import SECOND, Duration, Instant
from headway.core.json_values import JsonObject
from headway.core.nodes import Lease, Node
from headway.store.migrations import steps_for
from headway.store.restore_detection import HeartbeatMemory, StoreRestoreDetection
from headway.store.transaction import Driver, Row, StatementCall, Transaction, as_json, call

NODES_MAX: Final = 1_000
KEEP_EVERY_S: Final = 10.0
TALLY_PREFIX: Final = "tally|"
TALLY_MAX: Final = 2**53
HEARD_WITHIN: Final = 30 * SECOND  # A node that was silent for longer counts as dead when its release matters.
OLD_NAMED: Final = 5
_SCHEMA: Final = "schema"  # In the state of a node.
_PARTS: Final = frozenset({"loops", "holds", "worker", "tally"})
_LAST: Final = "\U0010ffff"  # Sorts after every other character, in both databases.


def _acquire(names: Sequence[str], holder: str, holder_name: str, duration: Duration) -> Transaction[list[Lease]]:
    taken = {row["name"] for row in (yield call("held_by_others", names=as_json(names), holder=holder))}
    names = sorted(set(names) - taken)  # In one order, so that two processes cannot deadlock.
    if not names:
        return []
    highest = (yield call("next_tokens", count=len(names)))[0]["value"]
    tokens = range(highest - len(names) + 1, highest + 1)
    leases = [{"name": name, "token": token} for name, token in zip(names, tokens, strict=True)]
    rows = yield call("acquire", leases=as_json(leases), holder=holder, holder_name=holder_name, duration=duration)
    return [_lease(row, holder, holder_name) for row in rows]


def _adopt(tokens: Mapping[str, int], holder: str, holder_name: str, duration: Duration) -> Transaction[list[Lease]]:
    names = sorted(tokens)  # In one order, so that two processes cannot deadlock.
    highest = (yield call("next_tokens_above", count=len(names), above=max(tokens.values())))[0]["value"]
    adopted = range(highest - len(names) + 1, highest + 1)
    leases = [{"name": name, "token": token} for name, token in zip(names, adopted, strict=True)]
    rows = yield call("adopt", leases=as_json(leases), holder=holder, holder_name=holder_name, duration=duration)
    return [_lease(row, holder, holder_name) for row in rows]


def _lease(row: Row, holder: str, holder_name: str) -> Lease:
    return Lease(
        name=row["name"],
        holder=holder,
        holder_name=holder_name,
        token=row["token"],
        until=row["until"],
        since=row["since"],
    )


def _lease_rows(leases: Sequence[Lease]) -> str:
    ordered = sorted(leases, key=lambda lease: lease.name)
    return as_json([{"lease_name": lease.name, "lease_token": lease.token} for lease in ordered])


def _beat(node: Node, *, seen: Instant, schema: int) -> StatementCall:
    return call(
        "beat",
        id=node.id,
        name=node.name,
        roles=",".join(node.roles),
        version=node.version,
        state=msgspec.json.encode({**node.state, _SCHEMA: schema}).decode(),
        seen=seen,
    )


def _leave(node_id: str) -> Transaction[None]:
    yield from keep_tallies((yield call("leave", id=node_id)))


def keep_tallies(rows: Sequence[Row]) -> Transaction[None]:
    """Add the counters of nodes that are gone to the totals, so that sums over all nodes never fall."""
    cells: Counter[str] = Counter()
    for row in rows:
        cells.update(tally_in(row["state"]))
    if cells:  # In one order, so that two processes cannot deadlock.
        added = [{"name": TALLY_PREFIX + cell, "number": number} for cell, number in sorted(cells.items())]
        yield call("keep_tally", cells=as_json(added))


def tally_in(state: str) -> dict[str, int]:
    """Read the counters out of a node's state; ignore anything that is not a positive integer."""
    cells = read_state(state).get("tally", {})
    return {cell: number for cell, number in cells.items() if type(number) is int and 0 < number < TALLY_MAX}


def read_state(text: str) -> JsonObject:
    """Decode the state of a node; parts that cannot be decoded are left out."""
    try:
        state = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, TypeError):
        return {}
    return {part: said for part, said in state.items() if part not in _PARTS or isinstance(said, dict)}


def prefixed(prefix: str) -> dict[str, str]:
    """Return the bounds of all names with this prefix."""
    return {"low": prefix, "high": prefix + _LAST}


def held_in(rows: Sequence[Row]) -> list[tuple[Lease, bool]]:
    """Read leases, each with whether it is still valid."""
    return [(_lease(row, row["holder"], row["holder_name"]), row["until"] > row["now"]) for row in rows]


def nodes_in(rows: Sequence[Row]) -> list[Node]:
    """Read nodes."""
    return [_node(row) for row in rows]


def _node(row: Row) -> Node:
    state = read_state(row["state"])
    schema = state.pop(_SCHEMA, 0)
    return Node(
        id=row["id"],
        name=row["name"],
        roles=tuple(row["roles"].split(",")) if row["roles"] else (),
        version=row["version"],
        started_at=row["started_at"],
        beat_at=row["beat_at"],
        state=state,
        asked=row["asked"],
        schema=schema if type(schema) is int else 0,
    )


def require_schema(schema: int, what: str) -> Transaction[None]:
    """Raise `NodesTooOld` while a node runs whose release was written for an older schema."""
    nodes = nodes_in((yield call("nodes", age=HEARD_WITHIN, limit=NODES_MAX)))
    old = [f"{node.name or node.id} ({', '.join(node.roles)})" for node in nodes if node.schema < schema]
    if old:
        more = f" and {len(old) - OLD_NAMED:,} more" if len(old) > OLD_NAMED else ""
        raise NodesTooOld(
            f"{what} while nodes of an older release run, which would ignore it: {', '.join(old[:OLD_NAMED])}{more};"
            f" upgrade or stop them, and try again. A node that was killed counts for {HEARD_WITHIN // SECOND} s"
        )


class StoreLeases:
    """Implement the port `AdoptingLeases` on one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def acquire(self, names: Sequence[str], *, holder: str, holder_name: str, duration: Duration) -> list[Lease]:
        """Take the leases that are free, expired, or the holder's own."""
        # Check outside of a transaction first, so that a process that waits for a lease neither locks nor writes.
        taken = await self._driver.fetch(call("held_by_others", names=as_json(names), holder=holder))
        if len(taken) == len(names):
            return []
        return await self._driver.run(lambda: _acquire(names, holder, holder_name, duration))

    async def adopt(
        self, tokens: Mapping[str, int], *, holder: str, holder_name: str, duration: Duration
    ) -> list[Lease]:
        """Take leases from any holder, each with a token above all earlier ones and above the given one."""
        return await self._driver.run(lambda: _adopt(tokens, holder, holder_name, duration))

    async def renew(self, leases: Sequence[Lease], *, duration: Duration) -> list[Lease]:
        """Extend the leases that are still held."""
        if not leases:
            return []
        rows = await self._driver.fetch(
            call("renew", leases=_lease_rows(leases), holder=leases[0].holder, duration=duration)
        )
        return [_lease(row, leases[0].holder, leases[0].holder_name) for row in rows]

    async def release(self, leases: Sequence[Lease]) -> None:
        """Release leases at once."""
        if leases:
            await self._driver.fetch(call("release", leases=_lease_rows(leases), holder=leases[0].holder))

    async def held(self, prefix: str, limit: int = 1_000) -> list[tuple[Lease, bool]]:
        """Read the leases with this prefix, each with whether it is still valid."""
        return held_in(await self._driver.fetch(call("leases", **prefixed(prefix), limit=limit)))


class StoreNodes:
    """Implement the port `Nodes` on one store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._restore_detection = StoreRestoreDetection(driver)
        self._memory = HeartbeatMemory()
        self._keep_at = float("-inf")
        self._schema = steps_for(driver)[-1].version

    async def beat(self, node: Node) -> str | None:
        """Record a heartbeat, read the store's time, and return what an operator asked of this node."""
        sent = self._clock.monotonic()
        rows = await self._driver.fetch(_beat(node, seen=self._memory.seen_by(node.id), schema=self._schema))
        is_lost = not rows  # The store has an older heartbeat than it acknowledged: it was restored.
        if is_lost:
            rows = await self._driver.fetch(_beat(node, seen=0, schema=self._schema))
        now, started = rows[0]["now"], rows[0]["started_at"]
        self._clock.observe(now, sent=sent)
        if is_lost or self._memory.is_lost(node.id, started, now):
            emit(StoreWentBack(node=node.id, seen=self._memory.seen))
            await self._restore_detection.note_lost()
        self._memory.note(node.id, started, now)
        await self._keep_marks()
        asked: str | None = rows[0]["asked"]
        return asked

    async def _keep_marks(self) -> None:
        if self._clock.monotonic() >= self._keep_at:
            self._keep_at = self._clock.monotonic() + KEEP_EVERY_S
            with suppress(StoreError):  # The next heartbeat tries again.
                await self._restore_detection.keep()

    async def ask(self, node_id: str, what: str) -> bool:
        """Ask a node for something; return False when it does not exist."""
        return bool(await self._driver.fetch(call("ask_node", id=node_id, asked=what)))

    async def alive(self, within: Duration) -> list[Node]:
        """Return the nodes with a recent heartbeat."""
        return nodes_in(await self._driver.fetch(call("nodes", age=within, limit=NODES_MAX)))

    async def leave(self, node_id: str) -> None:
        """Remove the node, but keep its counters in the totals."""
        self._memory.forget(node_id)
        await self._driver.run(lambda: _leave(node_id))
