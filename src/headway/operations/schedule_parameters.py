"""The parameters that operations on schedules share."""

from typing import Annotated, Any, Final, Literal

import msgspec

from headway.core.validation import KEY_LENGTH_MAX
from headway.operations.calendar import YEAR_MAX, YEAR_MIN
from headway.operations.verbs import IN_QUERY, InHeader
from headway.wire.base import Time
from headway.wire.schedule_requests import PREVIEW_MAX

RECENT_MAX: Final = 20

State = Annotated[
    Literal["active", "paused", "late", "attention", "failing", "ended"] | None,
    msgspec.Meta(description="only schedules in this state", examples=["late"]),
]
Whose = Annotated[
    str | None,
    msgspec.Meta(description="the tenant, for tokens for all tenants; default `default`", examples=["acme"]),
    IN_QUERY,
]
Owner = Annotated[
    str | None, msgspec.Meta(description="the owner of the schedules, an app or a file", examples=["shop"]), IN_QUERY
]
DryRun = Annotated[
    bool, msgspec.Meta(description="1 writes nothing and returns what would happen", examples=["1"]), IN_QUERY
]
TakeOver = Annotated[bool, msgspec.Meta(description="1 takes over schedules that belong to an app or a file"), IN_QUERY]
IfMatch = Annotated[str | None, InHeader("If-Match")]
IfNoneMatch = Annotated[str | None, InHeader("If-None-Match")]
Since = Annotated[Time | None, msgspec.Meta(description="only from this time on", examples=["2027-01-01T00:00:00Z"])]
Before = Annotated[Time | None, msgspec.Meta(description="only before this time")]
Args = Annotated[dict[str, Any] | None, msgspec.Meta(examples=[{"day": "2027-01-30"}])]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
IdempotencyKey = Annotated[str | None, InHeader("Idempotency-Key")]
Recents = Annotated[
    int | None,
    msgspec.Meta(ge=1, le=RECENT_MAX, description="this many of the newest decisions of each", examples=[5]),
]
Year = Annotated[
    int | None, msgspec.Meta(ge=YEAR_MIN, le=YEAR_MAX, description="the year; default the current one", examples=[2027])
]
Number = Annotated[int, msgspec.Meta(ge=1, le=PREVIEW_MAX, description="how many", examples=[5])]
