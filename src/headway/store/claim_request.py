"""What a worker asks for when it claims by lanes."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.core.instants import Duration
from headway.core.jobs import Claimed
from headway.core.limits import Lane
from headway.store.job_rows import read_claimed
from headway.store.transaction import Row, StatementCall, as_json, call


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a worker can take of a queue."""

    queue: str
    node: str
    lease: Duration
    room: int
    needs: str = ""
    skip: Collection[str] = ()
    past: Collection[str] = ()  # Tenants of whose jobs it can take none at the moment.

    def read(
        self, columns: Iterable[Any], *, share: str, gates: tuple[str, ...] = (), reserved: Duration = 0
    ) -> Claimed:
        """Read a job that was claimed."""
        claimed = read_claimed(columns, gates=gates, share=share, reserved=reserved)
        return msgspec.structs.replace(claimed, needs=self.needs) if self.needs else claimed

    def take(self, most: Mapping[Lane, int], *, held: int) -> StatementCall:
        """Take so many jobs of each lane; `held` has the kinds of limits that count them."""
        return call(
            "claim_lanes",
            queue=self.queue,
            needs=self.needs,
            node=self.node,
            lease=self.lease,
            held=held,
            skip=as_json(sorted(self.skip)),
            lanes=as_json([{**lane_columns(lane), "most": count} for lane, count in most.items()]),
            most=max(most.values()),
        )


def lane_columns(lane: Lane) -> dict[str, object]:
    """Return the parameters that name a lane."""
    return {"of_tenant": lane.tenant, "of_key": lane.limit_key, "of_task": lane.limited_task}


def lane_of(row: Row) -> Lane:
    """Read a lane from a row."""
    return Lane(row["tenant"], row["limit_key"], row["limited_task"])
