"""The reporter writes progress, metadata and logs: at most twice a second per job, and only the latest value.

Where live progress is configured (the port `Live`), the store gets a checkpoint every few seconds only.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import StoreError, StoreFull, StoreUnavailable
from headway.core.events import JobLogged, ReportsRefused, emit
from headway.core.instants import Instant
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_OVERHEAD
from headway.core.jobs import Report
from headway.core.json_values import JsonObject
from headway.core.ports import Latest, Live, ProgressReports
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.worker.held import QUIET_S, HeldAttempt, HeldAttempts

REPORT_EVERY_S: Final = 0.5
CHECKPOINT_EVERY_S: Final = 5.0  # While live progress works.
LINES_EVERY_S: Final = 2.0  # At most this many seconds of a log are lost with a worker.
REPORTS_MAX: Final = 1_000
LINES_MAX: Final = 2_000  # Per write: leases are extended between two writes.


class Reporter:
    """Write the reports of running attempts."""

    def __init__(
        self,
        work: ProgressReports,
        held: HeldAttempts,
        *,
        clock: Clock,
        wake: Callable[[], None],
        live: Live | None = None,
    ) -> None:
        self._work = work
        self._held = held
        self._clock = clock
        self._live = live
        self._wake = wake
        self._reporting: dict[str, HeldAttempt] = {}
        self._flushing = asyncio.Lock()
        held.on_removed = self._forget

    async def tick(self) -> float:
        """Write new reports, at most twice a second for each attempt."""
        now = self._clock.monotonic()
        due = [held for held in self._reporting.values() if now - held.reported_at >= self._every_s(held) - 0.01]
        await self._flush(due[:REPORTS_MAX])
        if len(due) > REPORTS_MAX:
            return 0.0
        if not self._reporting:
            return QUIET_S
        earliest = min(held.reported_at + self._every_s(held) for held in self._reporting.values())
        return max(0.01, min(REPORT_EVERY_S, earliest - self._clock.monotonic()))

    def _every_s(self, held: HeldAttempt) -> float:
        """Return the interval between writes for an attempt; it is longer while live progress works."""
        if self._live is None or self._live.trouble is not None:
            return REPORT_EVERY_S
        return LINES_EVERY_S if held.report is not None and held.report.lines else CHECKPOINT_EVERY_S

    def reported(self, reports: Sequence[Report]) -> None:
        """Queue reports of attempts: the latest value replaces earlier ones, log lines are all kept."""
        is_new = self._live is None
        for report in reports:
            held = self._held.find_trusted(report.job_id, report.attempt)
            if held is None:
                continue
            after, bounded = held.line_at, self._bounded(held, report)
            if bounded.lines:
                lines = tuple([(stream, line) for _, stream, line in bounded.lines])
                emit(JobLogged(node=self._clock.node, job_id=report.job_id, task=held.claimed.task, lines=lines))
            held.report = _merge(held.report, bounded)
            is_new |= report.job_id not in self._reporting
            self._reporting[report.job_id] = held
            if self._live is not None:
                held.said = _said(held.said, bounded, after, self._clock.now())
                self._live.tell(held.said)
        if self._reporting and is_new:
            self._wake()

    def _bounded(self, held: HeldAttempt, report: Report) -> Report:
        """Truncate a job's log at its limit, mark where it was cut, and give each line a time."""
        if not report.lines:
            return report
        now = self._clock.now()
        kept: list[tuple[Instant | None, str, str]] = []
        for at, stream, line in report.lines:
            if held.logged > LOG_BYTES_MAX:
                break
            held.logged += len(line) + LOG_LINE_OVERHEAD
            is_full = held.logged > LOG_BYTES_MAX
            if self._live is not None:  # Live, lines are identified by their time.
                held.line_at = at = max(at or now, held.line_at + 1)
            text = (stream, line) if not is_full else ("log", "… the log is full: 1 MiB is kept")
            kept.append((at or now, *text))
        return msgspec.structs.replace(report, lines=tuple(kept))

    # --- live

    def live_state(self) -> JsonObject | None:
        """Describe the live progress channel; None when there is only the store."""
        return None if self._live is None else {"name": self._live.name, "trouble": self._live.trouble}

    def begin_live(self) -> None:
        """Start to publish live progress, only of attempts whose leases are trusted."""
        if self._live is not None:
            self._live.begin(self._may_tell, self._wake)

    async def close(self) -> None:
        """Stop publishing live progress."""
        if self._live is not None:
            await self._live.close()

    def _may_tell(self, job_id: str, attempt: int) -> bool:
        return self._held.find_trusted(job_id, attempt) is not None

    def _forget(self, held: HeldAttempt) -> None:
        """Discard the reports of an attempt that is over."""
        self._reporting.pop(held.claimed.job_id, None)
        if self._live is not None and held.said is not None:
            self._live.forget(held.claimed.job_id)

    # --- writing

    async def flush_all(self, ending: Sequence[HeldAttempt]) -> None:
        """Write every pending report of these attempts."""
        while spoke := [held for held in ending if held.report is not None or held.is_flushing]:
            await self._flush(spoke)

    async def _flush(self, held_ones: Sequence[HeldAttempt]) -> None:
        """Write reports, one batch at a time: an attempt's outcome must not overtake its reports.

        A batch takes a bounded number of log lines. The rest stays for the next batch.
        """
        if not held_ones:
            return
        async with self._flushing:
            reports = self._next_reports(held_ones)
            if not reports:
                return
            try:
                refused = await self._work.report(reports)
            except (StoreUnavailable, StoreFull):
                self._put_back(held_ones, reports)
                raise
            except StoreError:
                await self._report_singly(held_ones, reports)
            else:
                if refused:
                    emit(ReportsRefused(node=self._clock.node, job_ids=tuple(sorted(refused))))
            finally:
                for held in held_ones:
                    held.is_flushing = False

    def _next_reports(self, held_ones: Sequence[HeldAttempt]) -> list[Report]:
        """Take the reports for one write, with no more lines than fit; the rest goes to the end of the queue."""
        now, room, reports = self._clock.monotonic(), LINES_MAX, []
        for held in held_ones:
            report = held.report
            if report is None or (report.lines and not room):
                continue
            rest = report.lines[room:]
            reports.append(_numbered(msgspec.structs.replace(report, lines=report.lines[:room]), held.said))
            room = max(0, room - len(report.lines))
            held.report, held.reported_at, held.is_flushing = None, now, True
            self._reporting.pop(held.claimed.job_id, None)
            if rest:
                held.report = Report(job_id=report.job_id, attempt=report.attempt, lines=rest)
                self._reporting[held.claimed.job_id] = held
        return reports

    def _put_back(self, held_ones: Sequence[HeldAttempt], reports: Sequence[Report]) -> None:
        by_job = {report.job_id: report for report in reports}
        for held in held_ones:
            earlier = by_job.get(held.claimed.job_id)
            if earlier is not None and self._held.is_held(held):
                held.report = earlier if held.report is None else _merge(earlier, held.report)
                self._reporting[held.claimed.job_id] = held

    async def _report_singly(self, held_ones: Sequence[HeldAttempt], reports: Sequence[Report]) -> None:
        for at, report in enumerate(reports):
            try:
                await self._report_one(report)
            except (StoreUnavailable, StoreFull):
                self._put_back(held_ones, reports[at:])
                raise

    async def _report_one(self, report: Report) -> None:
        try:
            await self._work.report([report])
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError as error:  # This report cannot be stored; store a note instead.
            note = storable(f"a report could not be stored: {error}", REASON_LENGTH_MAX)
            lines = ((None, "log", note),)
            await self._work.report([Report(job_id=report.job_id, attempt=report.attempt, lines=lines)])


def _merge(earlier: Report | None, later: Report) -> Report:
    if earlier is None:
        return later
    return Report(
        job_id=later.job_id,
        attempt=later.attempt,
        progress=earlier.progress if later.progress is None else later.progress,
        detail=earlier.detail if later.detail is None else later.detail,
        metadata=earlier.metadata if later.metadata is None else later.metadata,
        lines=earlier.lines + later.lines,
    )


def _said(before: Latest | None, report: Report, after: Instant, now: Instant) -> Latest:
    """Merge a report into the live state of an attempt. Its serial number goes into the detail, for the store too."""
    serial = 1 if before is None else before.serial + 1
    detail = report.detail if report.detail is not None or before is None else before.detail
    try:
        fields = {} if detail is None else msgspec.json.decode(detail, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # Not written by Headway.
        fields = {}
    return Latest(
        job_id=report.job_id,
        attempt=report.attempt,
        serial=serial,
        at=now,
        progress=report.progress if report.progress is not None or before is None else before.progress,
        detail=msgspec.json.encode({**fields, "serial": serial}).decode(),
        metadata=report.metadata if report.metadata is not None or before is None else before.metadata,
        after=after,
        lines=tuple((at or now, stream, line) for at, stream, line in report.lines),
    )


def _numbered(report: Report, said: Latest | None) -> Report:
    """Copy the serial number of the live state into a report, so that the store knows the latest."""
    return report if said is None else msgspec.structs.replace(report, detail=said.detail)
