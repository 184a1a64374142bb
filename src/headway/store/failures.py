"""Group failed jobs by error, and find dead letters by error.

Errors that differ only in numbers and ids are one error: `row 17 is bad` and `row 18 is bad` are both `row … is bad`.
The command line, the API and the dashboard group and filter with `error_kind`, so that all select the same jobs.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headway.core.instants import Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.store.job_filter import tenant_of
from headway.store.job_rows import ANY_SIZE, read_listed_job
from headway.store.transaction import Driver, Row, as_json, call

COUNTED_MAX: Final = 10_000
PAGE: Final = 1_000
SCANNED_MAX: Final = 100_000  # Dead letters read to find those with one error.
HEAD: Final = 640  # Characters read of a stored error; its type and its message come first.
TYPE_LENGTH_MAX: Final = 100
MESSAGE_LENGTH_MAX: Final = 200
ERROR_TEXT_MAX: Final = 1_000  # Of an error to search for.

_NO_MESSAGE: Final = "(no message)"
_LAST_ID: Final = "~"  # Sorts after every id.
# A truncated error: the message may end in the middle of an escape.
_CUT: Final = re.compile(r'\{"type": ?"((?:[^"\\]|\\.)*)", ?"message": ?"((?:[^"\\]|\\.)*)', re.DOTALL)
_HALF_ESCAPE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u[0-9a-fA-F]{0,3}$")
_WITHOUT: Final = r"\1"
_SAME: Final = (
    re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE),
    re.compile(r"\b[a-z]{2,5}_[0-9a-z]{20,}\b"),
    re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE),
    re.compile(r"[0-9]+(?:\.[0-9]+)*"),
)


def error_text(error: str | None, *, status: str, reason: str | None) -> str:
    """Return a stored error, or its beginning, as one line: `OSError: row 17 is bad`."""
    if error is None:
        return _one_line(f"{status}: {reason or 'no error was recorded'}")
    kind, message = _read(error)
    return _one_line(f"{kind}: {message.strip().splitlines()[0] if message.strip() else _NO_MESSAGE}")


def error_kind(text: str) -> str:
    """Return an error without numbers and ids: `OSError: row … is bad`. The kind of a kind is itself."""
    kind, _, message = _one_line(text).partition(": ")
    while (simpler := _simplified(message)) != message:
        message = simpler
    return f"{_clipped(kind, TYPE_LENGTH_MAX)}: {message or _NO_MESSAGE}"


def is_meant(kind: str, wanted: str) -> bool:
    """Return whether a kind of error matches: it is equal, or `wanted` is only its type."""
    if ": " in wanted:
        return kind == error_kind(wanted)
    return kind.startswith(f"{_clipped(_one_line(wanted), TYPE_LENGTH_MAX)}: ")


def _read(error: str) -> tuple[str, str]:
    """Read type and message of a stored error; any other text is a message without a type."""
    try:
        found = msgspec.json.decode(error)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        cut = _CUT.match(error)
        if cut is None:
            return "Error", error
        return _unescaped(cut[1]), _unescaped(cut[2])
    if not isinstance(found, dict):
        return "Error", str(found)
    return str(found.get("type") or "Error"), str(found.get("message") or "")


def _unescaped(text: str) -> str:
    """Unescape the inside of a JSON string; drop an incomplete escape at its end."""
    try:
        return msgspec.json.decode(f'"{_HALF_ESCAPE.sub(_WITHOUT, text)}"', type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _simplified(message: str) -> str:
    for pattern in _SAME:
        message = pattern.sub("…", message)
    return _clipped(message, MESSAGE_LENGTH_MAX)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter, or a job that was one, without its arguments and result."""

    id: str
    tenant: str
    task: str
    status: Status
    finished_at: Instant | None
    error: str
    is_dead: bool = True

    @property
    def kind(self) -> str:
        """The kind of its error."""
        return error_kind(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Jobs of one task with the same kind of error; `example` is the error of the newest."""

    task: str
    error: str
    jobs: int
    newest: str
    example: str
    newest_at: Instant
    oldest_at: Instant


def _letter(row: Row) -> DeadLetter:
    status = Status(row["status"])
    return DeadLetter(
        id=row["id"],
        tenant=row["tenant"],
        task=row["task"],
        status=status,
        finished_at=row["finished_at"],
        error=error_text(row["error"], status=status, reason=row["reason"]),
        is_dead=status in (Status.FAILED, Status.TIMED_OUT) and row["reviewed_at"] is None,
    )


def dead_letter_of(job: Job) -> DeadLetter:
    """Return a job as a dead letter."""
    error = error_text(job.error and job.error[:HEAD], status=job.status, reason=job.reason)
    is_dead = job.status in (Status.FAILED, Status.TIMED_OUT) and job.reviewed_at is None
    return DeadLetter(
        id=job.id,
        tenant=job.tenant,
        task=job.task,
        status=job.status,
        finished_at=job.finished_at,
        error=error,
        is_dead=is_dead,
    )


def grouped(rows: Iterable[Row]) -> list[ErrorGroup]:
    """Group dead letters by task and kind of error, largest group first, then newest."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for row in rows:
        text = error_text(row["error"], status=row["status"], reason=row["reason"])
        kind = error_kind(text)
        known = found.get((row["task"], kind))
        is_newest = known is None or row["newest"] > known.newest
        found[row["task"], kind] = ErrorGroup(
            task=row["task"],
            error=kind,
            jobs=row["jobs"] + (known.jobs if known else 0),
            newest=row["newest"] if known is None else max(row["newest"], known.newest),
            example=text if known is None or is_newest else known.example,
            newest_at=max(row["newest_at"] or 0, known.newest_at if known else 0),
            oldest_at=min(row["oldest_at"] or 0, known.oldest_at) if known else row["oldest_at"] or 0,
        )
    newest_first = sorted(found.values(), key=lambda group: group.newest, reverse=True)
    return sorted(newest_first, key=lambda group: -group.jobs)


class StoreFailures:
    """Failed jobs of one store, by error."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def groups(
        self,
        *,
        since: Instant | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        limit: int = COUNTED_MAX,
    ) -> list[ErrorGroup]:
        """Count the newest dead letters by task and error, or with `since` all jobs that failed since then."""
        whose = tenant_of(tenant, schedule)
        filters: dict[str, Any] = {"task": task, "queue": queue, "tenant": whose, "schedule": schedule}
        filters |= {"limit": max(1, min(limit, COUNTED_MAX)), "head": HEAD}
        if since is None:
            return grouped(await self._driver.fetch(call("dead_errors", **filters)))
        return grouped(await self._driver.fetch(call("failed_errors", **filters, since=since)))

    async def letters(
        self,
        *,
        error: str | None = None,
        before: str | None = None,
        limit: int = PAGE,
        **filters: str | None,
    ) -> tuple[list[DeadLetter], str | None]:
        """Find dead letters, newest first; return the next `before` when there may be more."""
        found: list[DeadLetter] = []
        wanted = {name: filters.get(name) for name in ("task", "queue", "tenant", "schedule")}
        wanted["tenant"] = tenant_of(wanted["tenant"], wanted["schedule"])
        for _ in range(SCANNED_MAX // PAGE):
            rows = await self._driver.fetch(
                call("dead_letters_page", **wanted, before=before or _LAST_ID, limit=PAGE, head=HEAD)
            )
            for letter in map(_letter, rows):
                if error is None or is_meant(letter.kind, error):
                    if len(found) == limit:
                        return found, found[-1].id
                    found.append(letter)
            if len(rows) < PAGE:
                return found, None
            before = rows[-1]["id"]
        return found, before

    async def among(self, job_ids: Sequence[str]) -> dict[str, DeadLetter]:
        """Read jobs by their ids; missing ones are left out."""
        rows = await self._driver.fetch(call("dead_letters_among", ids=as_json(sorted(set(job_ids))), head=HEAD))
        return {row["id"]: _letter(row) for row in rows}

    async def jobs(self, job_ids: Sequence[str], *, largest: int = ANY_SIZE) -> list[Job]:
        """Read jobs by their ids, newest first; leave out texts of more than `largest` bytes."""
        rows = await self._driver.fetch(call("failed_jobs", ids=as_json(sorted(set(job_ids))), largest=largest))
        return [read_listed_job(row) for row in rows]
