"""The change feed: the source of events for followers of jobs."""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from headway.core.instants import Duration
from headway.core.jobs import Job

EVERYTHING: Final = "*"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a job: the job as far as the feed has it, and its number in the feed."""

    seq: int
    job: Job
    log_bytes: int


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log, and the version of the job that it came with."""

    seq: int
    attempt: int
    at: int
    stream: str
    line: str
    version: int


class ChangeFeed(Protocol):
    """Every change of the followed jobs, in commit order."""

    async def follow(self, scopes: Iterable[str], duration: Duration) -> dict[str, int]:
        """Feed changes of these jobs for a while; return since when each is fed without a break."""
        ...

    async def position(self) -> str:
        """Return where the feed is now."""
        ...

    async def read(self, position: str) -> tuple[list[Change], str, bool]:
        """Read what was committed since a position; return it, the position after it, and whether there may be more."""
        ...

    async def again(self, low: int) -> list[Change] | None:
        """Read everything that may have been committed since; None when that is too much."""
        ...

    async def versions(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Read the versions that jobs have now; a job that is gone has none."""
        ...

    async def jobs(self, job_ids: Iterable[str], *, largest: int = ...) -> list[Job]:
        """Read these jobs; longer texts are left out and named in `omitted`."""
        ...

    async def of_job(self, job_id: str, after: int) -> list[Change]:
        """Read the versions of one job after this one, as far as they were fed."""
        ...

    async def last_line(self, job_id: str, version: int) -> tuple[int, int]:
        """Return attempt and time of the last line that a job had logged by one of its versions; zeroes for none."""
        ...

    async def log_between(self, job_id: str, after: int, until: int) -> list[Line]:
        """Read the lines that a job logged after one of its versions, up to another."""
        ...

    async def prune(self) -> int:
        """Forget old changes, and followers that are gone; return how many changes went."""
        ...


def low_of(position: str) -> int:
    """Return the number from which everything may be new that is not in this position."""
    return int(position.partition("/")[0].partition(":")[0])


def all_before(position: str) -> int:
    """Return the number below which everything that had begun at this position is over; for PostgreSQL."""
    parts = position.partition("/")[0].split(":")
    return int(parts[1]) if len(parts) > 1 else 0
