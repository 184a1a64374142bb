"""Send calls through windows: merge them into the jobs of open windows, or let them begin new jobs.

`core.windows` decides. The decision is safe against concurrent calls and against the promoter: it locks the window,
then the scheduled job, and reads the job in a statement after both locks. Under READ COMMITTED, a statement that waited
for a lock still has the snapshot from before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from headway.core.errors import DuplicateKey, JobNotFound, StoreUnavailable
from headway.core.instants import Instant
from headway.core.jobs import EnqueuedRow, Job, NewJob
from headway.core.windows import (
    MERGES_RECORDED_MAX,
    OpenedWindow,
    Window,
    check_same,
    debounced_start,
    is_open,
    merged_event,
)
from headway.store.job_rows import ANY_SIZE, read_listed_job
from headway.store.transaction import Row, StatementCall, Transaction, as_json, call

LOCK_STEP: Final = 1_000  # Windows per statement; databases limit its memory.
READ_STEP: Final = 100  # Jobs read at once, with their arguments.

_Name: TypeAlias = tuple[str, str]  # Tenant and key.
JobEvent: TypeAlias = tuple[str, str, dict[str, Any]]


@dataclass(slots=True)
class _HeldWindow:
    """A locked window, and what the calls of this transaction make of it. `new` is the job that one of them begins."""

    name: _Name
    opened: OpenedWindow
    job: Job | None = None
    now: Instant = 0
    new: NewJob | None = None
    is_written: bool = True  # Whether the stored row is as it should be.
    is_moved: bool = False

    def enter(self, call: NewJob, window: Window) -> int | None:
        """Merge a call and return its number, or begin a new job and return None."""
        if self.new is None and not is_open(self.opened, None if self.job is None else self.job.status, self.now):
            self._begin(call, window)
            return None
        check_same(window, call.task, self.opened)
        if window.kind == "debounce":
            self._debounce(call, window)
        self.opened = msgspec.structs.replace(self.opened, merged=self.opened.merged + 1)
        self.is_written = False
        return self.opened.merged

    def _begin(self, call: NewJob, window: Window) -> None:
        self.is_written = self.opened.job_id == call.id  # `open_windows` has inserted it for this call.
        self.new = call
        self.opened = OpenedWindow(window.kind, call.task, call.id, self.opened.until)

    def _debounce(self, call: NewJob, window: Window) -> None:
        if self.new is not None:
            self.new = msgspec.structs.replace(self.new, args=call.args, delay=call.delay, window=window)
            return
        assert self.job is not None
        run_at = debounced_start(window, self.job.created_at, self.now)
        expires_at = None if self.job.expires_at is None else run_at + self.job.expires_at - self.job.run_at
        self.job = msgspec.structs.replace(
            self.job,
            args=call.args,
            run_at=run_at,
            expires_at=expires_at,
            omitted=tuple(name for name in self.job.omitted if name != "args"),
        )
        self.opened = msgspec.structs.replace(self.opened, until=run_at)
        self.is_moved = True

    def row(self) -> dict[str, object]:
        """Return the window as a row of the statement `set_windows`."""
        new_window = None if self.new is None else self.new.window
        tenant, key = self.name
        return {
            "of_tenant": tenant,
            "of_key": key,
            "to_kind": self.opened.kind,
            "to_task": self.opened.task,
            "to_job": self.opened.job_id,
            "to_merged": self.opened.merged,
            "to_until": self.opened.until if new_window is None else None,
            "span": 0 if new_window is None else new_window.span,
        }

    def job_in(self, inserted: dict[str, EnqueuedRow]) -> Job:
        """Return the job of the window after this transaction."""
        job = self.job if self.new is None else inserted[self.new.id].job_of(self.new)
        assert job is not None
        return job


@dataclass(slots=True)
class Entered:
    """What became of the calls of one transaction: jobs to insert, events to record, and merged calls."""

    new: list[NewJob] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    _into: dict[str, _HeldWindow] = field(default_factory=dict)

    def note(self, call: NewJob, held: _HeldWindow, number: int) -> None:
        """Note a merged call."""
        self._into[call.id] = held
        if number <= MERGES_RECORDED_MAX:
            self.events.append((held.opened.job_id, "merged", merged_event(call.args, number)))

    def answers(self, inserted: dict[str, EnqueuedRow]) -> dict[str, EnqueuedRow]:
        """Return the answers to merged calls, by the ids that their jobs would have had, and to those merged into."""
        found: dict[str, EnqueuedRow] = {}
        for job_id, held in self._into.items():
            job = held.job_in(inserted)
            found[job_id] = EnqueuedRow(job.id, job.status, job.created_at, job.run_at, False, job, is_merged=True)
            if job.id in inserted:
                found[job.id] = EnqueuedRow(job.id, job.status, job.created_at, job.run_at, True, job)
        return found


def enter_windows(jobs: Sequence[NewJob], largest: int = ANY_SIZE) -> Transaction[Entered]:
    """Send jobs through their windows. Merge into existing jobs; return which jobs are to be inserted.

    Texts of existing jobs are left out if they have more than `largest` bytes.
    """
    windows = yield from _hold([job for job in jobs if job.window is not None], largest)
    entered, order = Entered(), dict[str, NewJob | _HeldWindow]()
    for number, job in enumerate(jobs):
        if job.window is None:
            order[job.id] = job
            continue
        held = windows[job.tenant, job.window.key]
        try:
            merged = held.enter(job, job.window)
        except DuplicateKey as error:
            raise (error if len(jobs) == 1 else DuplicateKey(f"jobs[{number}]: {error}")) from None
        if merged is None:
            order[job.id] = held
        else:
            entered.note(job, held, merged)
    # A later call may have given a new job other arguments.
    entered.new = [one if isinstance(one, NewJob) else _new_of(one) for one in order.values()]
    yield from _write([*windows.values()])
    return entered


def _new_of(held: _HeldWindow) -> NewJob:
    assert held.new is not None
    return held.new


def _hold(jobs: Sequence[NewJob], largest: int) -> Transaction[dict[_Name, _HeldWindow]]:
    """Lock the windows of jobs, ordered by name so that two calls cannot block each other, and read their jobs."""
    calls: dict[_Name, NewJob] = {}
    for job in jobs:
        if job.window is not None:
            calls.setdefault((job.tenant, job.window.key), job)
    held: dict[_Name, _HeldWindow] = {}
    for names in _steps(sorted(calls), LOCK_STEP):
        for row in (yield _opening([calls[name] for name in names])):
            name = row["tenant"], row["key"]
            held[name] = _HeldWindow(name, _read_window(row))
    existing = [one for one in held.values() if one.opened.job_id != calls[one.name].id]
    debounced = sorted(one.opened.job_id for one in existing if one.opened.kind == "debounce")
    for ids in _steps(debounced, LOCK_STEP):
        yield call("lock_scheduled", ids=as_json(ids))
    by_job = {one.opened.job_id: one for one in existing}
    for ids in _steps([*by_job], READ_STEP):
        for row in (yield call("window_jobs", ids=as_json(ids), largest=largest)):
            by_job[row["id"]].job = read_listed_job(row)
            by_job[row["id"]].now = row["now"]
    return held


def _opening(jobs: Sequence[NewJob]) -> StatementCall:
    rows = [
        {
            "tenant": job.tenant,
            "key": job.window.key,
            "kind": job.window.kind,
            "task": job.task,
            "job_id": job.id,
            "span": job.window.span,
        }
        for job in jobs
        if job.window is not None
    ]
    return call("open_windows", windows=as_json(rows))


def _read_window(row: Row) -> OpenedWindow:
    return OpenedWindow(row["kind"], row["task"], row["job_id"], row["until"], row["merged"])


def _write(windows: Sequence[_HeldWindow]) -> Transaction[None]:
    """Write jobs that were debounced, and windows that have changed."""
    for moved in _steps([held for held in windows if held.is_moved], READ_STEP):
        yield from _move(moved)
    for changed in _steps([held for held in windows if not held.is_written], LOCK_STEP):
        yield call("set_windows", windows=as_json([held.row() for held in changed]))


def _move(windows: Sequence[_HeldWindow]) -> Transaction[None]:
    jobs = [held.job for held in windows if held.job is not None]
    moves = [{"job_id": job.id, "to_args": job.args, "to_run_at": job.run_at} for job in jobs]
    written = {row["id"]: row for row in (yield call("debounce", jobs=as_json(moves)))}
    if len(written) < len(moves):  # Impossible while they are locked; a call must not get lost in any case.
        raise StoreUnavailable("a debounced job was promoted at this moment; try again")
    for held, job in zip(windows, jobs, strict=True):
        row = written[job.id]
        held.job = msgspec.structs.replace(job, version=row["version"], updated_at=row["updated_at"])


def find_merged(jobs: Sequence[NewJob]) -> Transaction[dict[str, EnqueuedRow]]:
    """Find the jobs that an earlier call with these jobs was merged into."""
    names = {job.id: (job.tenant, job.window.key) for job in jobs if job.window is not None}
    found: dict[str, EnqueuedRow] = {}
    if not names:
        return found
    keys = [{"tenant": tenant, "key": key} for tenant, key in sorted({*names.values()})]
    windows = {(row["tenant"], row["key"]): row["job_id"] for row in (yield call("windows", keys=as_json(keys)))}
    rows = yield call("jobs_by_id", ids=as_json(sorted(windows.values())), largest=0)
    by_id = {row["id"]: read_listed_job(row) for row in rows}
    for job_id, name in names.items():
        job = by_id.get(windows.get(name, ""))
        if job is None:
            raise JobNotFound(f"the job that a call with the key {name[1]!r} was merged into is gone")
        found[job_id] = EnqueuedRow(job.id, job.status, job.created_at, job.run_at, False, job, is_merged=True)
    return found


def _steps(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
