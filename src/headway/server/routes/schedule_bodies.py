"""What is sent to the routes of schedules."""

from typing import Annotated, Any, Final

import msgspec

from headway.core.validation import KEY_LENGTH_MAX
from headway.server.web import TEXT_LENGTH_MAX, require_printable
from headway.store.schedules import BACKFILL_MAX

NEXT_SHOWN: Final = 5
PREVIEW_MAX: Final = 1_000
BACKFILL_DEFAULT: Final = 1_000

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]
_Duration = Annotated[str, msgspec.Meta(min_length=1, max_length=64, examples=["30m"])] | float | int
_Time = Annotated[str, msgspec.Meta(min_length=1, max_length=64, examples=["2027-01-31T06:00:00Z"])]
_Reason = Annotated[str, msgspec.Meta(max_length=300)]


class When(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When: one of trigger, cron, every, after and at."""

    trigger: dict[str, Any] | None = None
    cron: Annotated[_Text, msgspec.Meta(examples=["0 6 * * *"])] | None = None
    every: _Duration | None = None
    after: _Duration | None = None
    at: _Time | None = None
    tz: Annotated[_Text, msgspec.Meta(examples=["Europe/Berlin"])] | None = None
    dst: _Text | None = None
    seconds: _Text | None = None


class ScheduleBody(When, forbid_unknown_fields=True, kw_only=True):
    """What runs, when, and what to do when it cannot. What is left out, or null, is the default."""

    task: _Text
    args: dict[str, Any] | None = None
    tenant: _Text | None = None
    queue: _Text | None = None
    priority: int | None = None
    max_attempts: int | None = None
    backoff: _Text | None = None
    tags: list[_Text] | None = None
    overlap: _Text | None = None
    queue_limit: int | None = None
    missed: _Text | None = None
    deadline: _Duration | None = None
    grace: _Duration | None = None
    catch_up_limit: int | None = None
    catch_up_rate: _Text | None = None
    jitter: _Duration | None = None
    start: _Time | None = None
    end: _Time | None = None
    expect: _Duration | None = None
    callback_url: _Text | None = None
    expires: _Duration | None = None


class PreviewBody(When, forbid_unknown_fields=True, kw_only=True, rename={"since": "from"}):
    """A rule that is not stored, and how much of it to show."""

    start: _Time | None = None
    end: _Time | None = None
    since: _Time | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=PREVIEW_MAX)] = NEXT_SHOWN


class PauseBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """For how long, and why."""

    until: _Time | None = None
    reason: _Reason = ""

    def __post_init__(self) -> None:
        require_printable(self.reason, "reason")


class TriggerBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Other arguments than the schedule's, for this once."""

    args: dict[str, Any] | None = None
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_LENGTH_MAX)] | None = None


class BackfillBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Which instants: from the first to the last, by the clock of the schedule."""

    first: _Time
    last: _Time
    again: bool = False
    dry_run: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=BACKFILL_MAX)] = BACKFILL_DEFAULT
