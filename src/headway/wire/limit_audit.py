"""The audit of limits as JSON."""

from typing import Annotated

import msgspec

from headway.wire.base import Count, Resource, Time, example


class LimitExcess(Resource):
    """A start that a limit did not allow."""

    limit: str
    gate: Annotated[str, msgspec.Meta(description="the name under which it counted, such as account-42")]
    kind: Annotated[str, msgspec.Meta(description="concurrency or rate")]
    at: Time
    allowed: Count
    found: Annotated[int, msgspec.Meta(description="how many ran, or started in the period, with this one")]
    job: str


@example(
    {"limits": 3, "attempts": 12840, "excesses": [], "ok": True, "complete": True, "since": "2027-01-30T06:00:00Z"},
    known_by=frozenset({"excesses", "attempts"}),
)
class LimitAudit(Resource):
    """The result of an audit of limits: every start beyond a limit that was in force, recomputed from attempts."""

    limits: Annotated[int, msgspec.Meta(description="definitions of limits, former ones included")]
    attempts: Count
    excesses: list[LimitExcess]
    ok: bool
    complete: Annotated[bool, msgspec.Meta(description="false: there are more than 200,000 attempts since that time")]
    since: Time
