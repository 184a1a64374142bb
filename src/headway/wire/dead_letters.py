"""Dead letters and failed jobs by error as JSON."""

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import UNSET

from headway.core import failures
from headway.core.failures import ERROR_TEXT_MAX
from headway.core.instants import isoformat
from headway.wire.base import Absent, Count, Resource, Time, example

LETTERS_AT_ONCE: Final = 1_000
LETTERS_DEFAULT: Final = 100
LETTERS_PLANNED_MAX: Final = 10_000
_JOB_ID: Final = "job_01m7h07rq30wjd03gjnmt8r3pz"

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Error = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=ERROR_TEXT_MAX,
        description="only with this error; numbers and ids in it may differ. A type alone matches all its errors",
        examples=["OSError"],
    ),
]
_Type = Annotated[_Name, msgspec.Meta(description="only of this task", examples=["report"])]
_Queue = Annotated[_Name, msgspec.Meta(description="only from this queue")]
_Schedule = Annotated[_Name, msgspec.Meta(description="only of this schedule")]
_Tenant = Annotated[_Name, msgspec.Meta(description="only of this tenant")]


class FailureFilter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Filters of failed jobs; all must match."""

    type: _Type | None = None
    queue: _Queue | None = None
    schedule: _Schedule | None = None
    tenant: _Tenant | None = None

    def given(self) -> dict[str, str]:
        """Return the filters that are set."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class LetterFilter(FailureFilter, kw_only=True, forbid_unknown_fields=True):
    """Filters of dead letters; all must match."""

    error: _Error | None = None


class ManyLetters(LetterFilter, kw_only=True, forbid_unknown_fields=True):
    """Many dead letters: those with these ids, those that match filters, or all."""

    ids: (
        Annotated[
            list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]],
            msgspec.Meta(min_length=1, max_length=LETTERS_AT_ONCE),
        ]
        | None
    ) = None
    all: bool = False
    chosen_by: (
        Annotated[LetterFilter, msgspec.Meta(description="how `ids` were chosen; recorded in the audit log")] | None
    ) = None
    dry_run: bool = False
    limit: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=LETTERS_PLANNED_MAX,
            description=f"maximum number of letters; without `dry_run` at most {LETTERS_AT_ONCE:,}",
        ),
    ] = LETTERS_DEFAULT

    EXAMPLE: ClassVar = {"type": "report", "error": "OSError: disk … is full", "limit": LETTERS_DEFAULT}

    def filters(self) -> LetterFilter:
        """Return the filters alone."""
        return LetterFilter(
            type=self.type, queue=self.queue, schedule=self.schedule, tenant=self.tenant, error=self.error
        )


@example(
    {
        "type": "report",
        "error": "OSError: disk … is full",
        "count": 1,
        "newest": _JOB_ID,
        "example": "OSError: disk 7 is full",
        "newest_at": "2027-01-31T06:00:05.250Z",
        "oldest_at": "2027-01-31T06:00:05.250Z",
    },
    known_by=frozenset({"type", "error", "newest"}),
)
class ErrorGroup(Resource):
    """Failed jobs of one task with the same error. Errors that differ only in numbers and ids are the same."""

    type: str
    error: Annotated[str, msgspec.Meta(description="the error, with … for numbers and ids")]
    count: Count
    newest: Annotated[str, msgspec.Meta(description="the id of the newest job")]
    example: Annotated[str, msgspec.Meta(description="the error of the newest job")]
    newest_at: Time
    oldest_at: Time


@example(
    {
        "items": [
            {
                "type": "report",
                "error": "OSError: disk … is full",
                "count": 1,
                "newest": _JOB_ID,
                "example": "OSError: disk 7 is full",
                "newest_at": "2027-01-31T06:00:05.250Z",
                "oldest_at": "2027-01-31T06:00:05.250Z",
            }
        ],
        "groups": 1,
        "total": 1,
        "is_exact": True,
    },
    known_by=frozenset({"items", "groups", "total"}),
)
class Failures(Resource):
    """Failed jobs by task and error, most first."""

    items: list[ErrorGroup]
    groups: Annotated[int, msgspec.Meta(ge=0, description="the number of groups, including those not listed")]
    total: Annotated[int, msgspec.Meta(ge=0, description="the number of jobs counted")]
    is_exact: Annotated[bool, msgspec.Meta(description="false if there are more than were counted")]


class RetriedLetter(Resource):
    """A dead letter and the job that repeats it."""

    id: str
    rerun: str


class RefusedLetter(Resource):
    """A dead letter that was left unchanged, and why."""

    id: str
    error: str


class LetterCount(Resource):
    """The number of selected letters with the same task and error."""

    type: str
    error: str
    count: Count


Errors = Annotated[list[LetterCount], msgspec.Meta(description="for a dry run: the letters by task and error")]


@example(
    {
        "count": 1,
        "ids": [_JOB_ID],
        "retried": [{"id": _JOB_ID, "rerun": "job_01m7h1rq30wjd03gjnmt8r3pz"}],
        "refused": [],
        "more": False,
        "dry_run": False,
    },
    known_by=frozenset({"ids", "retried", "refused"}),
)
class RetriedLetters(Resource):
    """The dead letters that were retried; for a dry run, those that would be."""

    count: Count
    ids: list[str]
    retried: list[RetriedLetter]
    refused: list[RefusedLetter]
    more: bool
    dry_run: bool
    errors: Errors | Absent = UNSET


@example(
    {"count": 1, "ids": [_JOB_ID], "dropped": [_JOB_ID], "refused": [], "more": False, "dry_run": False},
    known_by=frozenset({"ids", "dropped", "refused"}),
)
class DroppedLetters(Resource):
    """The dead letters that were dropped; for a dry run, those that would be."""

    count: Count
    ids: list[str]
    dropped: list[str]
    refused: list[RefusedLetter]
    more: bool
    dry_run: bool
    errors: Errors | Absent = UNSET


@example({"id": _JOB_ID, "dropped": True}, known_by=frozenset({"id", "dropped"}))
class DroppedLetter(Resource):
    """A dead letter that was dropped."""

    id: str
    dropped: bool


def group_of(group: failures.ErrorGroup) -> ErrorGroup:
    """Convert a group of failed jobs with the same error."""
    return ErrorGroup(
        type=group.task,
        error=group.error,
        count=group.jobs,
        newest=group.newest,
        example=group.example,
        newest_at=isoformat(group.newest_at),
        oldest_at=isoformat(group.oldest_at),
    )
