"""Find the lanes that wait at gates, to open them when places come free."""

from collections.abc import Mapping
from typing import Final

from headway.core.instants import DURATION_MAX, Duration
from headway.core.limits import Limit, Rules, longest_wait
from headway.store.lanes import FORCE_LOOK
from headway.store.transaction import Row, StatementCall, as_json, call

REOPEN_MAX: Final = 100  # Lanes of one gate that are opened at once.


def held_lanes(gates: Mapping[str, int], most: int = REOPEN_MAX, *, rules: Rules | None = None) -> StatementCall:
    """Find as many lanes that wait at these gates as places came free.

    With the rules, find also those that wait for a rate for longer than it asks for, since the clock was set back.
    """
    reach = {gate: DURATION_MAX if rules is None else _reach(rules.find(gate)) for gate in sorted(gates)}
    rows = [{"gate": gate, "reach": longest} for gate, longest in reach.items()]
    return call("held_lanes", gates=as_json(rows), limit=min(most, max(gates.values())))


def _reach(limit: Limit | None) -> Duration:
    """Return the longest time for which a lane may have to wait for its next start."""
    return FORCE_LOOK if limit is None else max(FORCE_LOOK, longest_wait(limit))


def lane_key(row: Row) -> tuple[str, ...]:
    """Return the key of a lane from its row."""
    return row["queue"], row["needs"], row["tenant"], row["limit_key"], row["limited_task"]
