"""Every change of a row, as the database itself reports it.

Temporary triggers pass the old and the new values of each row to the recorder; a rollback discards them, a commit
publishes them. No statement can change a row without the checkers seeing it.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from headway.store.sqlite import SqliteConnection
from headway.store.transaction import Begin, Rows, StatementCall

T = TypeVar("T")


class ScheduleRow(NamedTuple):
    """The columns of a schedule that the checkers use."""

    name: str
    slot: int
    revision: int
    version: int
    delay: int | None
    next_at: int | None
    decided_through: int
    pauses: str
    attention: str | None
    removed_at: int | None


class RevisionRow(NamedTuple):
    """One definition and the time from which it applies."""

    schedule: str
    revision: int
    effective_at: int
    definition: str | None


class OccurrenceRow(NamedTuple):
    """One decision."""

    schedule: str
    instant: int
    until: int | None
    count: int  # type: ignore[assignment]  # The name of the column; `tuple.count` is not used here.
    outcome: str
    decided_at: int
    revision: int
    token: int
    node: str
    job_id: str | None

    @property
    def end(self) -> int:
        """Return the last instant of the record."""
        return self.instant if self.until is None else self.until


class JobRow(NamedTuple):
    """The columns of a job that the checkers use."""

    id: str
    tenant: str
    task: str
    queue: str
    status: str
    run_at: int
    attempt: int
    failures: int
    max_attempts: int
    exclusive: int
    lease_until: int | None
    key: str | None
    schedule: str | None
    occurrence_at: int | None
    blocked_by: str | None
    finished_at: int | None
    result: str | None
    node: str | None
    progress: int
    detail: str | None
    log_bytes: int
    cancel_requested_at: int | None
    parked: str | None
    parent: str | None
    rerun_of: str | None
    args: str
    company: int | None
    apart_for: int | None
    started_at: int | None
    limit_key: str = ""
    limited_task: str = ""
    held: int = 0


class LogRow(NamedTuple):
    """A line that an attempt logged."""

    seq: int
    job_id: str
    attempt: int
    line: str


class StepRow(NamedTuple):
    """The result of a step that an attempt finished."""

    job_id: str
    name: str
    attempt: int
    result: str


class AttemptRow(NamedTuple):
    """One ended attempt."""

    job_id: str
    attempt: int
    outcome: str


class LeaseRow(NamedTuple):
    """A lease."""

    name: str
    holder: str
    token: int
    since: int
    until: int


class EventRow(NamedTuple):
    """An event that nothing else would show."""

    seq: int
    job_id: str | None
    schedule: str | None
    event: str


class LimitRow(NamedTuple):
    """The definition of a limit."""

    name: str
    concurrency: int | None
    rate: int | None
    per: int | None
    burst: int | None
    revision: int
    in_force: int


class LaneRow(NamedTuple):
    """Jobs under the same limits, and the gate at which they wait."""

    queue: str
    needs: str
    tenant: str
    limit_key: str
    limited_task: str
    open: int
    held_by: str | None
    look_at: int | None


class CounterRow(NamedTuple):
    """A counter."""

    name: str
    value: int


Row = (
    ScheduleRow
    | RevisionRow
    | OccurrenceRow
    | JobRow
    | AttemptRow
    | LeaseRow
    | EventRow
    | CounterRow
    | LogRow
    | StepRow
    | LimitRow
    | LaneRow
)

_TABLES: Final[dict[str, type[Row]]] = {
    "schedules": ScheduleRow,
    "revisions": RevisionRow,
    "occurrences": OccurrenceRow,
    "jobs": JobRow,
    "attempts": AttemptRow,
    "leases": LeaseRow,
    "events": EventRow,
    "counters": CounterRow,
    "log": LogRow,
    "steps": StepRow,
    "limits": LimitRow,
    "lanes": LaneRow,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One row before and after; None where it does not exist."""

    old: Row | None
    new: Row | None


class Recorder:
    """Runs transactions on one connection and records every changed row."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self._changes: list[Change] = []
        for table, kind in _TABLES.items():
            self._listen(connection.raw, table, kind)

    def run(self, begin: Begin[T]) -> tuple[T, list[Change]]:
        """Run a transaction; return its result and its changes."""
        self._changes = []
        result = self._connection.run(begin)
        return result, self._changes

    def fetch(self, statement: StatementCall) -> tuple[Rows, list[Change]]:
        """Run one call in its own transaction; return its rows and its changes."""
        self._changes = []
        rows = self._connection.fetch(statement)
        return rows, self._changes

    def _listen(self, raw: sqlite3.Connection, table: str, kind: type[Row]) -> None:
        width = len(kind._fields)
        insert, update, delete = self._hears(kind, width)
        old = ", ".join(f"old.{name}" for name in kind._fields)
        new = ", ".join(f"new.{name}" for name in kind._fields)
        for verb, hear, values in (
            ("insert", insert, new),
            ("update", update, f"{old}, {new}"),
            ("delete", delete, old),
        ):
            raw.create_function(f"sim_{verb}_{table}", -1, hear)
            raw.execute(
                f"create temp trigger sim_{verb}_{table} after {verb} on main.headway_{table} "
                f"begin select sim_{verb}_{table}({values}); end"
            )

    def _hears(self, kind: type[Row], width: int) -> tuple[Callable[..., None], ...]:
        make = kind._make

        def insert(*values: object) -> None:
            self._changes.append(Change(None, make(values)))

        def update(*values: object) -> None:
            self._changes.append(Change(make(values[:width]), make(values[width:])))

        def delete(*values: object) -> None:
            self._changes.append(Change(make(values), None))

        return insert, update, delete
