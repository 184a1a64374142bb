"""The audit of the ledger as JSON: expected instants against recorded ones."""

from typing import Annotated

import msgspec
from msgspec import UNSET

from headway.wire.base import Absent, Count, Resource, Time, example


class AuditFinding(Resource, kw_only=True):
    """A gap, duplicate or phantom at one instant, or in a run of them; or a schedule that cannot be read."""

    schedule: str
    tenant: str
    instant: str
    until: str | Absent = UNSET
    count: Count
    reason: str


@example(
    {
        "schedules": 40,
        "expected": 961,
        "recorded": 960,
        "gaps": [
            {
                "schedule": "daily-report",
                "tenant": "default",
                "instant": "2027-01-31T05:00:00Z",
                "count": 1,
                "reason": "no record",
            }
        ],
        "duplicates": [],
        "phantoms": [],
        "unreadable": [],
        "totals": {"gaps": 1, "duplicates": 0, "phantoms": 0, "unreadable": 0},
        "ok": False,
        "since": "2027-01-30T06:00:00Z",
        "until": "2027-01-31T06:00:00Z",
        "next_cursor": None,
    },
    known_by=frozenset({"expected", "recorded", "ok"}),
)
class LedgerAudit(Resource):
    """The result of an audit: expected instants against recorded ones, of a page of schedules or of all."""

    schedules: Count
    expected: Count
    recorded: Count
    gaps: list[AuditFinding]
    duplicates: list[AuditFinding]
    phantoms: list[AuditFinding]
    unreadable: list[AuditFinding]
    totals: Annotated[dict[str, int], msgspec.Meta(description="the total number of findings of each kind")]
    ok: bool
    since: Time | None = None
    until: Time | None = None
    next_cursor: str | None = None
