"""Log lines from events: one subscriber, one formatter, three formats.

    on a terminal   22:03:09 decided      schedule=daily-report instant=2026-11-15T06:00:00Z outcome=fired
    in a pipe       2026-11-15T22:03:09.120Z info decided schedule=daily-report instant=2026-11-15T06:00:00Z …
    with --json     {"at": "2026-11-15T22:03:09.120Z", "level": "info", "event": "decided", …}

A thread of its own writes the lines (`log_writer`), so a blocked log blocks no loop. A line is always one line: data is
escaped. Only a traceback has more lines, each of them escaped; in a pipe each begins with the time and the job, with
--json it is a field. Rate limits keep the log readable and bounded at any load: a tick that decides many instants is
one line, and a store that stays down is logged every few seconds.
"""

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Final, assert_never

from headway.cli.log_writer import LibraryLogHandler, LogWriter
from headway.cli.output import STYLES, to_json
from headway.cli.text import clean, span
from headway.core.clock import wall_now
from headway.core.events import (
    AccessRefused,
    AttemptsLost,
    ChildEnded,
    ChildStarted,
    ClockStepped,
    DecisionRefused,
    Draining,
    EngineEvent,
    EngineLost,
    EngineReturned,
    JobLogged,
    JobsPromoted,
    JobsSettled,
    LeasesExpired,
    LocksLost,
    Pruned,
    ReportsRefused,
    RequestFailed,
    ScheduleHeld,
    SchedulesDecided,
    StoreWentBack,
    TermLost,
    TermWon,
    TickFailed,
    Timed,
    WakeModeChanged,
)
from headway.core.instants import MILLISECOND, Instant, isoformat, to_datetime
from headway.core.job_details import read_json
from headway.core.job_logs import read_stream
from headway.core.lifecycle import Settlement
from headway.core.occurrences import Plan, PlannedDecision

DECISIONS_TOLD_MAX: Final = 5
FAILURES_EVERY_S: Final = 5.0
SETTLED_TOLD_MAX: Final = 5
COMPLETED_EVERY_S: Final = 1.0
TRACEBACK_LENGTH_MAX: Final = 4_000
TRACEBACKS_MAX: Final = 5  # Per second.
JOB_LINES_MAX: Final = 200  # Per second.
CLOSE_S_MAX: Final = 1.0  # A worker must exit within two seconds after its grace period.

Line = tuple[str, str, dict[str, object]]
LEVEL_STYLES: Final = {"info": "name", "warning": "warn", "error": "bad"}


class EventLog:
    """Write events as lines; an instance is a subscriber."""

    def __init__(self, write: Callable[[str], None], *, look: str, wall: Callable[[], Instant] = wall_now) -> None:
        self._write = write
        self._format = _LOOKS[look]
        self._wall = wall
        self._failure_told_at = float("-inf")
        self._failures = 0
        self._completed_told_at = float("-inf")
        self._completed = 0
        self._wake_ups_told: tuple[str, str] | None = None
        self._tracebacks_since = float("-inf")
        self._tracebacks = 0
        self._job_lines_since = float("-inf")
        self._job_lines = 0

    @classmethod
    def on_stderr(cls, *, as_json: bool) -> "EventLog":
        """Write to stderr in a thread of its own, in the suitable format; include the logs of libraries."""
        look = "json" if as_json else "terminal" if sys.stderr.isatty() else "plain"
        writer = LogWriter(sys.stderr, lambda lines: log.format("log lines dropped", level="warning", lines=lines))
        log = cls(writer, look=look)
        handler = LibraryLogHandler(lambda level, name, text: log.write("log", level=level, logger=name, message=text))
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)
        _opened.append((writer, handler))
        return log

    def __call__(self, event: EngineEvent) -> None:
        """Log an event."""
        for level, text, fields in self._lines(event):
            self.write(text, level=level, **fields)

    def write(self, event: str, *, level: str = "info", **fields: object) -> None:
        """Write one line."""
        self._write(self.format(event, level=level, **fields))

    def format(self, event: str, *, level: str = "info", **fields: object) -> str:
        """Format an event as a line."""
        now = self._wall() // MILLISECOND * MILLISECOND
        return self._format(now, level, event, fields)

    def _lines(self, event: EngineEvent) -> Iterator[Line]:
        if isinstance(event, Timed):  # For metrics only, and frequent.
            return
        if isinstance(event, TickFailed):
            yield from self._failure(event)
        elif isinstance(event, JobsSettled):
            yield from self._settled(event)
        elif isinstance(event, JobLogged):
            yield from self._logged(event)
        elif isinstance(event, WakeModeChanged):
            yield from self._wake_mode(event)
        else:
            yield from describe(event)

    def _failure(self, event: TickFailed) -> Iterator[Line]:
        """Log the first failure of an outage, then count: six retrying loops would fill the log."""
        self._failures += 1
        if time.monotonic() - self._failure_told_at < FAILURES_EVERY_S:
            return
        self._failure_told_at = time.monotonic()
        fields = {"loop": event.loop, "error": event.error, "failures": self._failures}
        self._failures = 0
        yield "warning", "store unavailable", fields

    def _wake_mode(self, event: WakeModeChanged) -> Iterator[Line]:
        """Log the change once: the loops of a process and its API listen separately and learn the same."""
        told, self._wake_ups_told = self._wake_ups_told, (event.mode, event.reason)
        if told != self._wake_ups_told:
            yield from describe(event)

    def _settled(self, event: JobsSettled) -> Iterator[Line]:
        """Log each of a few failures; count successes and log the total at most once a second."""
        for level, words, fields in describe(event):
            if fields.get("traceback") and not self._may_tell_traceback():
                fields["traceback"] = None
            yield level, words, fields
        self._completed += event.completed
        if self._completed and time.monotonic() - self._completed_told_at >= COMPLETED_EVERY_S:
            self._completed_told_at = time.monotonic()
            yield "info", "completed", {"jobs": self._completed}
            self._completed = 0

    def _logged(self, event: JobLogged) -> Iterator[Line]:
        """Log a limited number of job lines per second, and how many more there were; the jobs' logs have all."""
        now = time.monotonic()
        if now - self._job_lines_since >= 1.0:
            if self._job_lines > JOB_LINES_MAX:
                yield "info", "job log left out", {"lines": self._job_lines - JOB_LINES_MAX, "see": "headway jobs logs"}
            self._job_lines_since, self._job_lines = now, 0
        yield from islice(describe(event), max(0, JOB_LINES_MAX - self._job_lines))
        self._job_lines += len(event.lines)

    def _may_tell_traceback(self) -> bool:
        """Allow a few tracebacks per second: when everything fails, the first ones say why."""
        now = time.monotonic()
        if now - self._tracebacks_since >= 1.0:
            self._tracebacks_since, self._tracebacks = now, 0
        self._tracebacks += 1
        return self._tracebacks <= TRACEBACKS_MAX


_opened: list[tuple[LogWriter, LibraryLogHandler]] = []


def close_logs() -> bool:
    """Flush the logs of this process, as far as they are read; return whether everything was written."""
    is_written = True
    while _opened:
        writer, handler = _opened.pop()
        logging.getLogger().removeHandler(handler)
        logging.captureWarnings(False)
        is_written &= writer.close(CLOSE_S_MAX)
    return is_written


def describe(event: EngineEvent) -> Iterator[Line]:
    """Describe an event: level, message, fields."""
    match event:
        case TermWon(role=role, token=token):
            yield "info", "leading", {"role": role, "token": token}
        case TermLost(role=role, token=token, reason=reason):
            level = "info" if reason == "released" else "warning"
            yield level, "no longer leading", {"role": role, "token": token, "reason": reason}
        case SchedulesDecided(plans=plans):
            yield from _decided(plans)
        case DecisionRefused(schedules=names, reason=reason):
            few = {"schedule": names[0]} if len(names) == 1 else {"schedules": len(names)}
            yield "info", "decision refused", {**few, "reason": reason}
        case StoreWentBack(seen=seen):
            cure = "a backup was restored, or a fail-over lost data: stop all nodes, run `headway doctor --restored`"
            yield "error", "the store has lost what it acknowledged", {"seen": isoformat(seen), "cure": cure}
        case LocksLost(schedules=names):
            few = {"schedule": names[0]} if len(names) == 1 else {"schedules": len(names)}
            yield "info", "left to another node", {**few, "reason": "it has the lock of the instant"}
        case ScheduleHeld(schedule=name, reason=reason):
            yield "error", "schedule held", {"schedule": name, "reason": reason}
        case JobsPromoted(count=count):
            yield "info", "promoted", {"jobs": count}
        case LeasesExpired(job_ids=ids):
            yield "warning", "attempts expired", {"jobs": len(ids), "first": ids[0] if ids else None}
        case ChildStarted(pid=pid, kind=kind):
            yield "info", "child ready", {"pid": pid, "kind": kind}
        case ChildEnded(pid=pid, kind=kind, reason=reason):
            yield "warning", "child ended", {"pid": pid, "kind": kind, "reason": reason}
        case JobsSettled(others=others, tasks=tasks):
            for settlement, task in list(zip_longest(others, tasks))[:SETTLED_TOLD_MAX]:
                level = _SETTLED_LEVELS.get(settlement.outcome, "warning")
                yield level, settlement.outcome.replace("_", " "), _settled_fields(settlement, task)
            if len(others) > SETTLED_TOLD_MAX:
                yield "warning", "not completed", {"jobs": len(others)}
        case JobLogged(job_id=job_id, task=task, lines=lines):
            for stream, line in lines:
                yield _logged(job_id, task, stream, line)
        case AttemptsLost(job_ids=ids, reason=reason):
            yield "warning", "attempts lost", {"jobs": len(ids), "first": ids[0] if ids else None, "reason": reason}
        case ReportsRefused(job_ids=ids):
            yield "warning", "reports refused", {"jobs": len(ids), "first": ids[0] if ids else None}
        case Timed():
            return
        case Draining(running=running, reason=reason):
            yield "info", "draining", {"running": running, "reason": reason}
        case Pruned(rows=rows):
            yield "info", "pruned", {"rows": rows}
        case TickFailed(loop=loop, error=error):
            yield "warning", "store unavailable", {"loop": loop, "error": error}
        case ClockStepped(by_s=by_s):
            yield "warning", "clock stepped", {"by": f"{by_s:+.3f}s"}
        case WakeModeChanged(mode=mode, reason=reason):
            level = "warning" if mode == "poll" else "info"
            yield level, "wake-ups", {"mode": mode, "reason": reason}
        case EngineLost(engine=engine, error=error, falls_back=falls_back):
            instead = "the store does its part" if falls_back else "its part waits"
            yield "warning", "engine unavailable", {"engine": engine, "error": error, "meanwhile": instead}
        case EngineReturned(engine=engine):
            yield "info", "engine returned", {"engine": engine}
        case AccessRefused(client=client, reason=reason, is_limited=is_limited):
            limited = {"limited": True} if is_limited else {}
            yield "warning", "access refused", {"client": client, "reason": reason, **limited}
        case RequestFailed(request_id=request_id, error=error):
            where = "".join(traceback.format_exception(error))[-TRACEBACK_LENGTH_MAX:]
            what = f"{type(error).__name__}: {error}"
            yield "error", "request failed", {"request": request_id, "error": what, "where": where}
        case _:
            assert_never(event)


def _decided(plans: tuple[Plan, ...]) -> Iterator[Line]:
    if sum(len(plan.decisions) for plan in plans) <= DECISIONS_TOLD_MAX:
        for plan in plans:
            for decision in plan.decisions:
                yield "info", "decided", _decision_fields(plan, decision)
        return
    counts: Counter[str] = Counter()
    for plan in plans:
        for decision in plan.decisions:
            counts[str(decision.outcome)] += decision.count
    yield "info", "decided", {"schedules": len(plans), **counts}


def _settled_fields(settlement: Settlement, task: str | None) -> dict[str, object]:
    error = read_json(settlement.error) if settlement.error else None
    told = error if isinstance(error, dict) else {}
    trace = str(told.get("traceback") or "").rstrip()
    return {
        "task": task,
        "job": settlement.job_id,
        "attempt": settlement.attempt,
        "status": str(settlement.status),
        "reason": settlement.reason or None,
        "error": f"{told.get('type')}: {told.get('message')}" if told else None,
        "traceback": trace[-TRACEBACK_LENGTH_MAX:] or None,
    }


def _logged(job_id: str, task: str, stream: str, line: str) -> Line:
    """Describe a line of a job's log."""
    kind, level, logger = read_stream(stream)
    source = {"logger": logger, "stream": kind if kind not in ("log", "stdout") else None}
    shown = {"debug": "info", "critical": "error"}.get(level, level)
    return shown, "job log", {"task": task, "job": job_id, **source, "line": line}


_SETTLED_LEVELS: Final = {"released": "info", "cancelled": "info"}


def _decision_fields(plan: Plan, decision: PlannedDecision) -> dict[str, object]:
    run = {} if decision.until is None else {"until": isoformat(decision.until), "count": decision.count}
    return {
        "schedule": plan.schedule.label,
        "instant": isoformat(decision.instant),
        **run,
        "outcome": str(decision.outcome),
        "reason": decision.reason or None,
        "after": span(max(0, plan.now - (decision.until or decision.instant))),
    }


def _plain(at: Instant, level: str, event: str, fields: dict[str, object]) -> str:
    shown = "".join(f" {name}={_quoted(value)}" for name, value in _in_line(fields))
    begin = f"{_stamp(at)} {level}"
    traces = [f"{begin} traceback job={_quoted(fields.get('job'))} {line}" for line in _traceback(fields)]
    return "\n".join([f"{begin} {event.replace(' ', '_')}{shown}", *traces])


def _in_line(fields: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the fields of a text line: all that are set, except the traceback."""
    return ((name, value) for name, value in fields.items() if value is not None and name != "traceback")


def _traceback(fields: dict[str, object]) -> list[str]:
    """Return the lines of a traceback, each escaped."""
    return [clean(line) for line in str(fields.get("traceback") or "").splitlines()]


def _quoted(value: object) -> str:
    text = clean(value)
    return f'"{text.replace(chr(34), chr(39))}"' if not text or set(text) & set(' "=') else text


def _json(at: Instant, level: str, event: str, fields: dict[str, object]) -> str:
    return to_json({"at": _stamp(at), "level": level, "event": event, **fields})


def _terminal(at: Instant, level: str, event: str, fields: dict[str, object]) -> str:
    from rich.console import Console
    from rich.text import Text

    line = Text(to_datetime(at).strftime("%H:%M:%S "), style="dim")
    line.append(event.ljust(12), style=STYLES[LEVEL_STYLES[level]])
    for name, value in _in_line(fields):
        line.append(f" {name}=", style="dim").append(_quoted(value))
    for trace in _traceback(fields):
        line.append(f"\n{' ' * 9}{trace}", style="dim")
    console = Console(stderr=True, highlight=False, width=10_000)
    with console.capture() as captured:
        console.print(line, soft_wrap=True, end="")
    return captured.get()


def _stamp(at: Instant) -> str:
    return to_datetime(at).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at // MILLISECOND % 1000:03d}Z"


_LOOKS: Final[dict[str, Callable[[Instant, str, str, dict[str, object]], str]]] = {
    "plain": _plain,
    "json": _json,
    "terminal": _terminal,
}
