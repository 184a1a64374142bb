"""`headway demo`: the first minute of a newcomer. A scheduler and a worker on a store in a temporary folder, live.

Nothing has to be set up and nothing stays behind. On a terminal a live view shows what runs, what has ended and what
comes next; in a pipe everything that happens is a line. One of the sample jobs kills its own process, and recovers. At
the end the audit checks that each instant got exactly one decision, as it can for any store at any time.

`headway demo crash` kills a whole worker instead, see `crash`.
"""

import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.cli import crash, samples
from headway.cli.audit import FOUND, fields_of, verdict
from headway.cli.demo_board import QUIET_TASKS, DemoView, frame
from headway.cli.log import EventLog
from headway.cli.output import Column, Output, console, stop_writing
from headway.cli.serve import PortOption
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count, span, utc
from headway.cli.watch import painted
from headway.core.errors import DefinitionError, InvalidConfig
from headway.core.events import EngineEvent, JobsSettled, SchedulesDecided, subscribed
from headway.core.instants import SECOND, Instant
from headway.core.job_details import error_line
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.schedules import ScheduleSpec
from headway.core.settings import HOST_DEFAULT, PORT_DEFAULT, Settings
from headway.operations.ledger_audit import audit_all
from headway.operations.schedule_instants import instants_after
from headway.wire.ledger_audit import LedgerAudit
from headway.wiring.local_operations import OpenStore, open_local, read_time
from headway.wiring.processes import free_port, run_worker

FRAME_S: Final = 0.25
JOBS_READ: Final = 100
PROCESSES: Final = 3
SCENES: Final = ("crash",)
NEXT_COMMANDS: Final = (
    ("headway demo", "schedules and jobs, live"),
    ("headway demo crash", "kill a worker in the middle of a job"),
    ("headway dev jobs:app", "run the app in your jobs.py while you write it"),
    ("headway enqueue hello --watch", "in another terminal: its job, with a live bar"),
    ("headway audit", "check that nothing was missed or done twice"),
)


@dataclass(slots=True)
class DemoState:
    """What the demo has seen so far."""

    out: Output
    opened: OpenStore
    began: float
    decided: dict[str, Counter[str]] = field(default_factory=dict)
    told: dict[str, tuple[Status, int]] = field(default_factory=dict)
    completed: int = 0
    hero_id: str = ""
    note: str = ""
    port: int = PORT_DEFAULT

    @property
    def url(self) -> str:
        """The address of the dashboard."""
        return f"http://{HOST_DEFAULT}:{self.port}/"

    def hear(self, event: EngineEvent) -> None:
        """Record decisions and outcomes; in a pipe, print decisions."""
        if isinstance(event, JobsSettled):
            self.completed += event.completed
        if not isinstance(event, SchedulesDecided):
            return
        for plan in event.plans:
            for decision in plan.decisions:
                name = plan.schedule.name
                self.decided.setdefault(name, Counter())[str(decision.outcome)] += decision.count
                if not self.out.on_terminal and not self.out.as_json:
                    self.say(decision.instant, name, str(decision.outcome), decision.reason)

    async def look(self) -> DemoView:
        """Read the content of one frame."""
        await read_time(self.opened.store, self.opened.clock)
        schedules = {schedule.name: schedule for schedule in await self.opened.store.schedules.page()}
        jobs = {job.id: job for job in await self.opened.store.jobs.page(limit=JOBS_READ)}
        if self.hero_id and self.hero_id not in jobs:  # No longer on the page, but the frame still needs it.
            jobs[self.hero_id] = await self.opened.store.jobs.get(self.hero_id)
        return DemoView(
            now=self.opened.clock.now(),
            elapsed=round((self.opened.clock.monotonic() - self.began) * SECOND),
            jobs=list(jobs.values()),
            schedules=[schedules[name] for name in samples.app.declared if name in schedules],
            decided=self.decided,
            note=self.note,
            hero=jobs.get(self.hero_id),
            completed=self.completed,
            url=self.url,
        )

    def tell(self, view: DemoView) -> None:
        """Print a line for every job that has begun or ended since the last look."""
        for job in sorted(view.jobs, key=lambda job: job.updated_at):
            state = (job.status, job.attempt)
            if job.task in QUIET_TASKS or self.told.get(job.id, (Status.PENDING, 0)) == state:
                continue
            self.told[job.id] = state
            self.say(view.now, job.task, *_news(job, view.now))

    def say(self, at: Instant, who: str, what: str, words: str) -> None:
        """Print one line."""
        stamp = utc(at // SECOND * SECOND, fine=True)
        self.out.say(clean(f"{stamp}  {who:<13}  {what:<9}  {words}").rstrip())


def _news(job: Job, now: Instant) -> tuple[str, str]:
    if job.status is Status.RUNNING:
        again = "; the batches that are done are not repeated" if job.task == "import_orders" else ""
        return "started", f"attempt {job.attempt}" + (again if job.failures else "")
    if job.status is Status.COMPLETED:
        recovered = f"recovered in attempt {job.attempt}  " if job.failures else ""
        took = span(max(0, (job.finished_at or now) - (job.started_at or now)))
        return "completed", f"{recovered}in {took}  {job.result or ''}"
    return str(job.status).lower(), error_line(job.error) or job.reason


async def demo(
    session: Session,
    scene: Annotated[
        str | None, typer.Argument(metavar="[crash]", help="crash: kill a worker in the middle of a job.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=1, max=86_400, help="Stop after this long (default: at Ctrl-C)."),
    ] = None,
    port: PortOption = None,
) -> int:
    """Watch schedules being decided and jobs run, in a minute, with nothing to set up.

    A scheduler and a worker on a store in a temporary folder, which is removed at the end. One job kills its own
    process and recovers. `headway demo crash` kills a whole worker. The dashboard is at --port or HEADWAY_PORT; without
    either, at the usual port or another free one.
    """
    if scene is not None and scene not in SCENES:
        raise DefinitionError(f"unknown demo {scene[:40]!r}; use `headway demo` or `headway demo crash`")
    asked = _asked_port(port)
    code = 0
    try:
        temporary = tempfile.TemporaryDirectory(prefix="headway-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InvalidConfig(f"a demo needs a folder for its store: {error}; set TMPDIR to one") from None
    with temporary as folder:
        url = f"sqlite:///{Path(folder) / 'headway.db'}"
        try:
            code = await (_play(session, url, seconds, asked) if scene is None else crash.play(session, url, seconds))
        except* BrokenPipeError:
            stop_writing()
    if not session.as_json:
        _say_next(session.out, scene)
    return code


async def _play(session: Session, url: str, seconds: float | None, port: int | None) -> int:
    out, free = session.out, _free_port(port)
    async with open_local(replace(Settings(), store=url)) as opened:
        clock = opened.clock
        show = DemoState(out, opened, clock.monotonic(), note=_night_without(clock.now()), port=free)
        if not out.as_json and not out.on_terminal:
            out.say("A scheduler and a worker on a SQLite file. import_orders will kill its own process half way.")
        if not out.as_json:
            out.say(f"Dashboard: {show.url}")
        await _run(show, url, seconds, api="may" if port is None else "must")
        report = await audit_all(opened.store)
        hero = await opened.store.jobs.get(show.hero_id)
    if session.as_json:
        out.json(fields_of(report))
    else:
        _say_goodbye(out, report, hero, show.completed)
    return 0 if report.ok else FOUND


async def _run(show: DemoState, url: str, seconds: float | None, *, api: str) -> None:
    settings = replace(
        Settings(), store=url, app="headway.cli.samples:app", node="demo", grace=0, processes=PROCESSES, port=show.port
    )
    first = [("import_orders", {}), *samples.AFTERWARDS]
    jobs = [samples.app.new_job(task, args, samples.app.tasks[task].defaults) for task, args in first]
    show.hero_id = (await show.opened.store.queue.enqueue(jobs))[0].id
    stopping, quiet = asyncio.Event(), EventLog(lambda _: None, look="plain")
    with subscribed(show.hear):
        async with asyncio.TaskGroup() as group:
            working = group.create_task(
                run_worker(settings, quiet, store=url, schedules=True, api=api, stopping=stopping)
            )
            working.add_done_callback(lambda _: stopping.set())
            await _present(show, stopping, seconds)
            stopping.set()


async def _present(show: DemoState, stopping: asyncio.Event, seconds: float | None) -> None:
    with ExitStack() as stack:
        is_live = show.out.on_terminal and not show.out.as_json
        if is_live:
            from rich.live import Live

            screen = console()
            live = stack.enter_context(Live(console=screen, auto_refresh=False, vertical_overflow="crop"))
        while not stopping.is_set() and (seconds is None or show.opened.clock.monotonic() - show.began < seconds):
            view = await show.look()
            if is_live:
                size = screen.size
                live.update(painted(frame(view, size.width, size.height - 1), screen.encoding), refresh=True)
            elif not show.out.as_json:
                show.tell(view)
            await show.opened.clock.rest(FRAME_S, stopping)


def _asked_port(flag: str | None) -> int | None:
    """Return the configured port; the demo ignores all other settings."""
    environ = {name: os.environ[name] for name in ("HEADWAY_PORT",) if os.environ.get(name)}
    if flag is None and not environ:
        return None
    return Settings.load({"port": flag}, environ=environ, file=Path(os.devnull)).port


def _free_port(asked: int | None) -> int:
    """Return the configured port, or fail when it is taken; by default the usual port, or any free one."""
    if asked is not None:
        return free_port(HOST_DEFAULT, asked)
    for port in (PORT_DEFAULT, 0):
        with contextlib.suppress(InvalidConfig):
            return free_port(HOST_DEFAULT, port)
    return PORT_DEFAULT


def _night_without(now: Instant) -> str:
    """Describe what the nightly report does in the next night with a DST change."""
    spec = ScheduleSpec(task="report", trigger=samples.BERLIN)
    for instant in instants_after(spec, now, 400):
        if note := samples.BERLIN.note(instant):
            return note
    return ""


def _say_goodbye(out: Output, report: LedgerAudit, hero: Job, completed: int) -> None:
    out.say()
    if hero.status is Status.COMPLETED:
        fate, style = "import_orders after its process was killed", "good"
    else:
        fate, style = f"import_orders is left at {hero.progress}%, attempt {hero.attempt}: stopped too early", ""
    out.say(f"jobs   {count(completed, 'job')} completed, {fate}", style)
    out.say(f"audit  {verdict(report)}", "good" if report.ok else "bad")


def _say_next(out: Output, scene: str | None) -> None:
    out.say()
    out.say("Next:")
    played = "headway demo" if scene is None else f"headway demo {scene}"
    commands = [(command, words) for command, words in NEXT_COMMANDS if command != played]
    out.table((Column("", "name"), Column("", wraps=True)), commands, indent=2)


app = new_command(demo)
