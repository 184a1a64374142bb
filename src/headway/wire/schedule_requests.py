"""Definitions of schedules as clients send them."""

from typing import Annotated, Any, ClassVar, Final

import msgspec

APPLIED_MAX: Final = 500  # Schedules in one request: all of them are written in one transaction.
NEXT_SHOWN: Final = 5
PREVIEW_MAX: Final = 1_000

_TEXT_LENGTH_MAX: Final = 512
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=_TEXT_LENGTH_MAX)]
_Duration = Annotated[str, msgspec.Meta(min_length=1, max_length=64, examples=["30m"])] | float | int
TimeText = Annotated[str, msgspec.Meta(min_length=1, max_length=64, examples=["2027-01-31T06:00:00Z"])]


class When(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When: one of trigger, cron, every, after and at."""

    trigger: dict[str, Any] | None = None
    cron: Annotated[_Text, msgspec.Meta(examples=["0 6 * * *"])] | None = None
    every: _Duration | None = None
    after: _Duration | None = None
    at: TimeText | None = None
    tz: Annotated[_Text, msgspec.Meta(examples=["Europe/Berlin"])] | None = None
    dst: _Text | None = None
    seconds: _Text | None = None


class ScheduleBody(When, forbid_unknown_fields=True, kw_only=True):
    """What runs, when, and the policies. Missing or null fields have the default."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "task": "report",
        "cron": "0 6 * * *",
        "tz": "Europe/Berlin",
        "args": {"day": "yesterday"},
        "missed": "latest",
        "deadline": "4h",
    }

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
    start: TimeText | None = None
    end: TimeText | None = None
    expect: _Duration | None = None
    callback_url: _Text | None = None
    expires: _Duration | None = None
    limit: _Text | None = None
    needs: dict[str, float | str] | None = None
    labels: dict[str, _Text] | None = None
    version: _Text | None = None


class NamedSchedule(ScheduleBody, forbid_unknown_fields=True, kw_only=True):
    """A definition with the name of its schedule."""

    name: _Text


class SchedulesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Definitions of many schedules."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"schedules": [{"name": "daily-report", **ScheduleBody.EXAMPLE}]}

    schedules: Annotated[list[NamedSchedule], msgspec.Meta(min_length=1, max_length=APPLIED_MAX)]


class PreviewBody(When, forbid_unknown_fields=True, kw_only=True, rename={"since": "from"}):
    """A trigger that is not stored, and how many instants to show."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "cron": "30 2 * * *",
        "tz": "Europe/Berlin",
        "from": "2027-03-27T00:00:00",
        "n": 3,
    }

    start: TimeText | None = None
    end: TimeText | None = None
    since: TimeText | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=PREVIEW_MAX)] = NEXT_SHOWN
