"""Watch one job until it has ended: its steps, a progress bar, the speed and the time left.

`sights` reads the job a few times a second, also before it has started, and survives an outage of the store. On a
terminal the job is drawn, in a pipe notable changes are printed as lines, and with --json every change is an object.
Stopping the watch does not affect the job.

`frame` is pure: it turns a sight and the size of the terminal into lines of styled pieces.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from headway.cli.output import STYLES, console, to_json
from headway.cli.session import Session
from headway.cli.text import clean, span, utc
from headway.core.errors import Denied, StoreUnavailable
from headway.core.instants import DURATION_MAX, MILLISECOND, SECOND, Duration, Instant, parse_instant
from headway.core.job_details import error_words, seconds_left
from headway.core.job_summary import tries
from headway.core.lifecycle import Status
from headway.operations.everything import Operations
from headway.operations.verbs import pages
from headway.wire.jobs import Detail, Job, Step

if TYPE_CHECKING:
    from rich.text import Text

INTERRUPTED: Final = 130
FAILED: Final = 1

LOOK_S: Final = 0.25
CHANGE_WITHIN: Final = "500ms"  # How long a read waits for a change.
AROUND_EVERY: Final = SECOND  # The explanation of a waiting job takes several statements.
STORE_AWAY_S_MAX: Final = 120.0
LINE_EVERY: Final = 10 * SECOND
LINE_POINTS: Final = 10
NAME_WIDTH_MAX: Final = 40
BAR_WIDTH_MIN: Final = 8
BAR_WIDTH_MAX: Final = 40
RESULT_LENGTH_MAX: Final = 2_000
LEAVE: Final = "Ctrl-C stops watching, not the job"

Line = list[tuple[str, str]]
_NOTHING_SAID: Final = Detail()

# For terminals with ASCII only.
_ASCII: Final = str.maketrans(
    {"━": "#", "╸": ">", "─": "-", "✓": "+", "✗": "x", "▸": ">", "·": "-", "…": "~", "—": "-"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A snapshot of a job."""

    job: Job
    now: Instant
    why: str
    worker: str = ""
    trouble: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


class _Looker:
    """Reads one job, and its explanation only when the job changes."""

    def __init__(self, operations: Operations, job_id: str) -> None:
        self._operations = operations
        self._job_id = job_id
        self._job: Job | None = None
        self._names: dict[str, str] = {}
        self._why = ""
        self._evidence: Mapping[str, Any] = {}
        self._seen: tuple[Status, int] | None = None
        self._looked_at: Instant = 0

    async def look(self) -> Sight:
        """Return the current job; from the second call on, as soon as it has changed."""
        job = self._job = await self._read()
        now = self._operations.now
        if job.status is Status.RUNNING and job.node is not None and job.node not in self._names:
            self._names |= await node_names(self._operations)
            self._names.setdefault(job.node, job.node)
        if self._seen != (job.status, job.attempts) or now - self._looked_at >= AROUND_EVERY:
            found = await self._operations.jobs.why(job.id)
            self._why, self._evidence = found.why, found.evidence
            self._seen, self._looked_at = (job.status, job.attempts), now
        worker = self._names.get(job.node or "", job.node or "")
        return Sight(job=job, now=now, why=self._why, worker=worker, evidence=self._evidence)

    async def _read(self) -> Job:
        known = self._job
        if known is None:
            return await self._operations.jobs.show(self._job_id)
        return await self._operations.jobs.show(
            known.id, wait=CHANGE_WITHIN, since=known.version, live=known.live or None
        )


async def node_names(operations: Operations) -> dict[str, str]:
    """Return the names of the known nodes; callers of one tenant do not see them."""
    with suppress(Denied):
        return {node.id: node.name async for node in pages(operations.nodes.list, gone=True)}
    return {}


async def sights(operations: Operations, job_id: str) -> AsyncIterator[Sight]:
    """Yield snapshots of a job until it has ended; the last one is of its end."""
    looker, clock = _Looker(operations, job_id), operations.clock
    sight: Sight | None = None
    away_since: float | None = None
    while True:
        try:
            sight, away_since = await looker.look(), None
        except StoreUnavailable as error:
            away_since = clock.monotonic() if away_since is None else away_since
            if sight is None or clock.monotonic() - away_since > STORE_AWAY_S_MAX:
                raise
            sight = replace(sight, now=operations.now, trouble=str(error))
        yield sight
        if sight.job.status.is_final:
            return
        if sight.trouble:
            await clock.rest(LOOK_S, asyncio.Event())


async def wait(operations: Operations, job_id: str) -> Job:
    """Wait for the end of a job silently."""
    async for sight in sights(operations, job_id):
        last = sight.job
    return last


def code_of(job: Job) -> int:
    """Return the exit code for the status of a finished job."""
    return 0 if job.status is Status.COMPLETED else FAILED


async def watch(session: Session, operations: Operations, job_id: str, *, timeout_s: float | None = None) -> int:
    """Show a job until it has ended and return the exit code; raise `TimeoutError` if that takes too long."""
    show = _show_json if session.as_json else _show_live if session.out.on_terminal else _show_lines
    last: list[Sight] = []
    try:
        async with asyncio.timeout(timeout_s):
            await show(session, _noted(sights(operations, job_id), last))
    except TimeoutError:
        raise TimeoutError(_late(job_id, last)) from None
    except asyncio.CancelledError:  # Ctrl-C: end the command cleanly.
        session.out.note(clean(f"stopped watching; {goes_on(last[0].job) if last else job_id}"))
        return INTERRUPTED
    return code_of(last[0].job)


async def stay(session: Session, operations: Operations, job_id: str, *, draws: bool, timeout_s: float | None) -> int:
    """Watch a job until it has ended, or wait silently and print its end. Return the exit code."""
    if draws:
        return await watch(session, operations, job_id, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            job = await wait(operations, job_id)
    except TimeoutError:
        await tell(session, await operations.jobs.show(job_id), operations)
        raise TimeoutError(f"{job_id} has not ended in this time; it goes on") from None
    except asyncio.CancelledError:  # Ctrl-C.
        session.out.note(clean(f"stopped waiting; {goes_on(await operations.jobs.show(job_id))}"))
        return INTERRUPTED
    await tell(session, job, operations)
    return code_of(job)


async def tell(session: Session, job: Job, operations: Operations) -> None:
    """Print one job in one line, or as JSON."""
    why = (await operations.jobs.why(job.id)).why
    if session.as_json:
        session.out.json(msgspec.structs.replace(job, why=why))
    else:
        merged = "merged into " if job.merged_into else ""
        session.out.say(clean(f"{merged}{job.id} {job.status}: {why}"))


async def _noted(seen: AsyncIterator[Sight], last: list[Sight]) -> AsyncIterator[Sight]:
    async for sight in seen:
        last[:] = [sight]
        yield sight


def _late(job_id: str, last: Sequence[Sight]) -> str:
    return f"{job_id} has not ended in this time; it goes on" + (f" ({last[0].job.status})" if last else "")


def goes_on(job: Job) -> str:
    """Return the message that only the watching has stopped."""
    return f"{job.id} goes on ({job.status}, {job.progress}%); see it again: headway jobs watch {job.id}"


# --- as JSON, as lines, on a terminal


async def _show_json(session: Session, seen: AsyncIterator[Sight]) -> None:
    told: tuple[object, ...] | None = None
    async for sight in seen:
        version = (sight.job.version, sight.job.progress, sight.job.detail, sight.job.metadata)
        if version != told:
            told = version
            print(to_json(msgspec.structs.replace(sight.job, why=sight.why)), flush=True)


async def _show_lines(session: Session, seen: AsyncIterator[Sight]) -> None:
    told: Sight | None = None
    async for sight in seen:
        if told is None or is_news(told, sight):
            told = sight
            session.out.say(clean(news(sight)))


def _detail(job: Job) -> Detail:
    return job.detail or _NOTHING_SAID


def _tries(job: Job) -> str:
    return tries(job.attempts, job.failures, job.max_attempts)


def is_news(told: Sight, sight: Sight) -> bool:
    """Return whether a sight is worth a line after the last one printed."""
    before, job = told.job, sight.job
    if (before.status, before.attempts, told.trouble) != (job.status, job.attempts, sight.trouble):
        return True
    if _detail(before).step != _detail(job).step or job.progress - before.progress >= LINE_POINTS:
        return True
    if before.cancel_requested_at != job.cancel_requested_at:
        return True
    return sight.now - told.now >= LINE_EVERY and (before.progress, told.why) != (job.progress, sight.why)


def news(sight: Sight) -> str:
    """Format a sight in one line."""
    job, detail = sight.job, _detail(sight.job)
    at = utc(sight.now // MILLISECOND // 1_000 * SECOND, fine=True)
    head = f"{at}  {job.id}  {job.status}"
    if sight.trouble:
        return f"{head}  the store does not answer: {sight.trouble}"
    if job.status is Status.RUNNING:
        place = [f"{job.progress}%", detail.step or "", _counts(sight)]
        on = f"{_tries(job)} on {sight.worker}"
        asked = "asked to stop" if job.cancel_requested_at is not None else ""
        return "  ".join(part for part in (head, *place, asked, on) if part)
    if job.status is Status.COMPLETED:
        return f"{head}  {_took(job)}" + (f"  result {_short(job.result)}" if job.result is not None else "")
    return f"{head}  {sight.why}"


async def _show_live(session: Session, seen: AsyncIterator[Sight]) -> None:
    from rich.live import Live

    screen = console()
    with Live(console=screen, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        async for sight in seen:
            size = screen.size
            live.update(painted(frame(sight, size.width, size.height), screen.encoding), refresh=True)


def painted(lines: Sequence[Line], encoding: str = "utf-8") -> "Text":
    """Convert lines of pieces for rich; long ones are truncated, since a live view must not wrap."""
    from rich.text import Text

    table = {} if encoding.lower().startswith("utf") else _ASCII
    text = Text(no_wrap=True, overflow="ellipsis")
    for index, line in enumerate(lines):
        for piece, style in line:
            text.append(clean(piece).translate(table), style=STYLES.get(style, style))
        if index < len(lines) - 1:
            text.append("\n")
    return text


# --- drawing


def frame(sight: Sight, width: int = 100, height: int = 40) -> list[Line]:
    """Draw a job: its identity, its current step and its times."""
    job = sight.job
    lines = [_head(sight), *_body(sight, width, height)]
    if job.status.is_final:
        return [*lines, *_end(sight)]
    since = job.started_at or job.created_at if job.status is Status.RUNNING else job.created_at
    waited = sight.now - parse_instant(since)
    words = [f"{'elapsed' if job.status is Status.RUNNING else 'waiting for'} {span(_whole(waited))}"]
    if sight.trouble:
        words.append("the store does not answer, trying again")
    return [*lines, [(" · ".join([*words, LEAVE]), "warn" if sight.trouble else "quiet")]]


def _whole(duration: Duration) -> Duration:
    """Drop fractions of a second, which only flicker."""
    return max(0, duration) // SECOND * SECOND


def _head(sight: Sight) -> Line:
    job = sight.job
    head: Line = [(job.id, "quiet"), ("  ", ""), (job.type, "name")]
    if job.attempts:
        head.append((f"  {_tries(job)}", ""))
    if job.status is Status.RUNNING and sight.worker:
        head.append((f"  worker {sight.worker}", ""))
    return head


def _body(sight: Sight, width: int, height: int) -> list[Line]:
    job, detail = sight.job, _detail(sight.job)
    if job.status is Status.RUNNING:
        asked = job.cancel_requested_at is not None
        stop: list[Line] = (
            [[(f"  asked to stop: {job.reason}" if job.reason else "  asked to stop", "warn")]] if asked else []
        )
        if detail.steps:
            lines = [
                _step_line(step, sight, width, _name_width(detail)) for step in _folded(detail.steps or (), height - 6)
            ]
            return [*lines, _whole_line(sight, width), *stop]
        return [_single_line(sight, detail, width), *stop]
    if job.status.is_final:
        return [
            _step_line(step, sight, width, _name_width(detail), ended=True)
            for step in _folded(detail.steps or (), height - 6)
        ]
    return [[("  ", ""), (str(job.status), _STATUS_STYLES.get(job.status, "")), (f"  {sight.why}", "")]]


_STATUS_STYLES: Final = {Status.RETRYING: "warn", Status.BLOCKED: "warn", Status.SCHEDULED: "time"}


def _name_width(detail: Detail) -> int:
    return min(NAME_WIDTH_MAX, max((len(clean(step.name)) for step in detail.steps or ()), default=0))


def _folded(steps: Sequence[Step], room: int) -> list[Step]:
    """Keep the steps that fit around the running one, and count the others."""
    room = max(room, 5)
    if len(steps) <= room:
        return list(steps)
    at = next((index for index, step in enumerate(steps) if step.state == "running"), 0)
    at = at or sum(step.state == "done" for step in steps)
    first = max(0, min(at - (room - 2) // 2, len(steps) - (room - 2)))
    kept = list(steps[first : first + room - 2])
    before, after = steps[:first], steps[first + room - 2 :]
    if before:
        kept.insert(0, _rest_of(before))
    if after:
        kept.append(_rest_of(after))
    return kept


def _rest_of(steps: Sequence[Step]) -> Step:
    return Step(f"{len(steps)} more", "done" if all(step.state == "done" for step in steps) else "waiting", None)


def _step_line(step: Step, sight: Sight, width: int, name_width: int, *, ended: bool = False) -> Line:
    detail = _detail(sight.job)
    name = _fitted(clean(step.name), name_width)
    if step.state == "done":
        took = "" if step.seconds is None else span(round(step.seconds * 1_000) * MILLISECOND)
        return [("  ✓ ", "good"), (name, ""), (f"  {took:>8}" if took else "", "quiet")]
    if step.state == "running" and ended:
        return [("  ✗ ", "bad"), (name, "")]
    if step.state == "running":
        line: Line = [("  ▸ ", "time"), (name, "name")]
        counts = _counts(sight)
        if detail.total and detail.done is not UNSET:
            share = detail.done / detail.total
            bar_width = _bar_width(width - name_width - 14 - len(counts))
            line += [("  ", ""), *bar(share, bar_width), (f"  {_percent(share):>3}%", "name")]
        return [*line, (f"  {counts}" if counts else "", "quiet")]
    return [("    ", ""), (name, "quiet")]


def _whole_line(sight: Sight, width: int) -> Line:
    """Draw the progress of the whole job."""
    left = _left(sight)
    return [
        ("  ", ""),
        *bar(sight.job.progress / 100, _bar_width(width - 12 - len(left))),
        (f"  {sight.job.progress:>3}%", "name"),
        (f"  {left}" if left else "", ""),
    ]


def _single_line(sight: Sight, detail: Detail, width: int) -> Line:
    """Draw a job that has no named steps."""
    name = _fitted(clean(detail.step or "running"), min(NAME_WIDTH_MAX, len(clean(detail.step or "running"))))
    words = " · ".join(part for part in (_counts(sight, eta=False), _left(sight)) if part)
    if not sight.job.progress and detail.step is UNSET and detail.done is UNSET:
        return [("  ▸ ", "time"), (name, "name")]
    return [
        ("  ▸ ", "time"),
        (name, "name"),
        ("  ", ""),
        *bar(sight.job.progress / 100, _bar_width(width - len(name) - 14 - len(words))),
        (f"  {sight.job.progress:>3}%", "name"),
        (f"  {words}" if words else "", "quiet"),
    ]


def _left(sight: Sight) -> str:
    left = _seconds_left(sight)
    return "" if left is None else f"about {span(left * SECOND)} left"


def _seconds_left(sight: Sight) -> int | None:
    job = sight.job
    at = None if job.eta_at is None else parse_instant(job.eta_at)
    return seconds_left(at, parse_instant(job.updated_at), sight.now)


def _counts(sight: Sight, *, eta: bool = True) -> str:
    """Format `1,310/2,016 · 42/s · 17s left`; the last part only while the estimate is in the future."""
    detail = _detail(sight.job)
    if detail.done is UNSET:
        return ""
    parts = [f"{detail.done:,.0f}" + (f"/{detail.total:,.0f}" if detail.total is not UNSET else "")]
    if detail.rate:
        parts.append(rate_text(detail.rate))
        left_s = (detail.total - detail.done) / detail.rate if detail.total else 0.0
        left_s -= max(0, sight.now - parse_instant(sight.job.updated_at)) / SECOND
        if eta and 0.5 < left_s < DURATION_MAX / SECOND and _seconds_left(sight) is not None:
            parts.append(f"{span(round(left_s) * SECOND)} left")
    return " · ".join(parts)


def rate_text(per_second: float) -> str:
    """Format the rate, in the unit that has digits before the point: `42/s`, `3/min`."""
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    if per_second >= 1:
        return f"{per_second:.1f}/s"
    return f"{per_second * 60:.0f}/min" if per_second * 60 >= 1 else f"{per_second * 3600:.1f}/h"


def _percent(share: float) -> int:
    return max(0, min(100, int(share * 100)))


def _bar_width(room: int) -> int:
    return max(BAR_WIDTH_MIN, min(BAR_WIDTH_MAX, room))


def bar(share: float, width: int) -> Line:
    """Draw a bar; full and empty differ in shape, not only in colour."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    full, half = divmod(halves, 2)
    return [("━" * full + "╸" * half, "good"), ("─" * (width - full - half), "quiet")]


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def _end(sight: Sight) -> list[Line]:
    job = sight.job
    if job.status is Status.COMPLETED:
        lines: list[Line] = [[("✓ COMPLETED", "good"), (f" {_took(job)}", "")]]
        return [*lines, [("result ", "quiet"), (_short(job.result), "")]] if job.result is not None else lines
    if job.status is Status.CANCELLED:
        return [[("— CANCELLED", "quiet"), (f"  {sight.why}", "")]]
    error = None if job.error is None else error_words(job.error.type, job.error.message)
    lines = [[(f"✗ {job.status}", "bad"), (f"  {error or sight.why}", "")]]
    return [*lines, [(f"details: headway jobs show {job.id} · run it again: headway jobs retry {job.id}", "quiet")]]


def _took(job: Job) -> str:
    begin, end = job.started_at, job.finished_at
    return "" if begin is None or end is None else f"in {span(max(0, parse_instant(end) - parse_instant(begin)))}"


def _short(result: object) -> str:
    shown = msgspec.json.encode(result).decode()
    return shown if len(shown) <= RESULT_LENGTH_MAX else shown[: RESULT_LENGTH_MAX - 1] + "…"
