"""`headway demo crash`: two workers, one job, and kill -9 for the one that runs it, half way.

The workers are processes like those of `headway worker`. Neither of them is notified of the kill. The job runs again
because its lease is no longer extended and expires.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headway.cli import samples, subprocesses
from headway.cli.log import EventLog
from headway.cli.output import Column, Output, console
from headway.cli.session import Session
from headway.cli.text import clean, count, span
from headway.cli.watch import FAILED, Line, Sight, frame, painted, sights
from headway.core.instants import SECOND, parse_instant
from headway.core.lifecycle import Status
from headway.core.settings import Settings
from headway.operations.everything import Operations
from headway.wiring.local_operations import OpenStore, open_local
from headway.wiring.processes import run_worker, stopped_by_signals

NAMES: Final = ("one", "two")
WORKER_LEASE: Final = 3 * SECOND
LEADER_LEASE: Final = 2 * SECOND
KILL_AT: Final = 68  # Percent: in the middle of the third step.
TASK: Final = "transcode"


@dataclass(slots=True)
class _Scene:
    """What has happened so far."""

    out: Output
    operations: Operations
    began: float
    workers: dict[str, asyncio.subprocess.Process]
    is_live: bool
    story: list[tuple[float, str, str]] = field(default_factory=list)
    victim: str = ""
    seen: tuple[Status, int] = (Status.PENDING, 0)

    @property
    def elapsed(self) -> float:
        return self.operations.clock.monotonic() - self.began

    def say(self, text: str, style: str = "") -> None:
        """Add a line to the story; print it when nothing is drawn."""
        self.story.append((self.elapsed, text, style))
        if not self.is_live and not self.out.as_json:
            self.out.say(clean(f"{self.elapsed:5.1f}s  {text}"))

    def watch(self, sight: Sight) -> None:
        """Record what is new, and kill the worker at the right moment."""
        job = sight.job
        state, before = (job.status, job.attempts), self.seen
        if job.status is Status.RUNNING and not self.victim and job.progress >= KILL_AT:
            self._kill(sight)
        if state == before:
            return
        self.seen = state
        if job.status is Status.RUNNING and not self.victim:
            self.say(f"worker {sight.worker} runs {TASK}; it keeps a lease of {span(WORKER_LEASE)} and extends it")
        elif job.status is Status.RUNNING:
            self.say(f"the lease expired: worker {sight.worker} runs attempt {job.attempts} of the same job", "good")
            self.say("steps that were done are not repeated: ctx.once keeps their results", "good")
        elif job.status is Status.COMPLETED:
            self.say(f"completed: one job, {count(job.attempts, 'attempt')}, one result", "good")

    def _kill(self, sight: Sight) -> None:
        self.victim = sight.worker
        process = self.workers[sight.worker]
        process.kill()
        self.say(f"kill -9 {process.pid}: worker {sight.worker} is gone, with the process that ran the job", "bad")
        lease_until = sight.evidence.get("lease_until")
        left = 0 if lease_until is None else max(0, parse_instant(lease_until) - sight.now)
        self.say(f"the store was not notified: it waits until the lease expires, in {span(left)}", "warn")


async def play(session: Session, url: str, seconds: float | None) -> int:
    """Run the demo; return the exit code."""
    workers: dict[str, asyncio.subprocess.Process] = {}
    async with open_local(replace(Settings(), store=url)) as opened:
        try:
            job = samples.app.new_job(TASK, {}, samples.transcode.defaults)
            job_id = (await opened.store.queue.enqueue([job]))[0].id
            for name in NAMES:
                workers[name] = await subprocesses.start("headway.cli.crash:run_node", {"store": url, "name": name})
            is_live = session.out.on_terminal and not session.as_json
            scene = _Scene(session.out, opened.operations, opened.clock.monotonic(), workers, is_live)
            scene.say(f"two workers on one store: {' and '.join(f'{name} ({workers[name].pid})' for name in workers)}")
            await _follow(scene, job_id, seconds)
            await _tell_end(session, opened, job_id)
            return 0 if scene.seen[0] is Status.COMPLETED else FAILED
        finally:
            await asyncio.gather(*(subprocesses.stop(worker) for worker in workers.values()))


async def _follow(scene: _Scene, job_id: str, seconds: float | None) -> None:
    stopping, quiet = asyncio.Event(), EventLog(lambda _: None, look="plain")
    with stopped_by_signals(stopping, quiet):
        if not scene.is_live:
            await _watch(scene, job_id, seconds, stopping, lambda _: None)
            return
        from rich.live import Live

        screen = console()
        with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:

            def draw(sight: Sight) -> None:
                size = screen.size
                lines = picture(scene.story, scene.workers, scene.victim, sight, scene.elapsed, size.width, size.height)
                live.update(painted(lines, screen.encoding), refresh=True)

            await _watch(scene, job_id, seconds, stopping, draw)


async def _watch(scene: _Scene, job_id: str, seconds: float | None, stopping: asyncio.Event, draw: Any) -> None:
    async for sight in sights(scene.operations, job_id):
        scene.watch(sight)
        draw(sight)
        if stopping.is_set() or (seconds is not None and scene.elapsed >= seconds):
            return


def picture(
    story: Sequence[tuple[float, str, str]],
    workers: dict[str, asyncio.subprocess.Process],
    victim: str,
    sight: Sight,
    elapsed: float,
    width: int,
    height: int,
) -> list[Line]:
    """Draw the workers, the job and what has happened."""
    right = f"{elapsed:.0f}s · Ctrl-C ends"
    title = "headway demo crash"
    lines: list[Line] = [[(title, "name"), (" " * max(2, width - len(title) - len(right)) + right, "quiet")], []]
    for name, process in workers.items():
        runs = sight.job.status is Status.RUNNING and sight.worker == name and name != victim
        state, style = ("killed", "bad") if name == victim else ("runs the job", "good") if runs else ("waits", "quiet")
        mark = "✗" if name == victim else "▸" if runs else "·"
        lines.append([(f"  {mark} worker {name:<4}", style), (f" {process.pid:>8}  ", "quiet"), (state, style)])
    drawn = frame(sight, width, height - len(lines) - len(story) - 3)
    lines += [[], *(drawn if sight.job.status.is_final else drawn[:-1]), []]
    lines += [[(f"{at:5.1f}s  ", "quiet"), (text, style)] for at, text, style in story]
    return lines[: height - 1]


async def _tell_end(session: Session, opened: OpenStore, job_id: str) -> None:
    store = opened.store
    out, names = session.out, {node.id: node.name for node in await store.nodes.alive(3600 * SECOND)}
    job, attempts = await store.jobs.get(job_id), await store.jobs.attempts(job_id)
    if session.as_json:
        rows = [{key: row[key] for key in ("attempt", "outcome", "reason")} for row in attempts]
        out.json({"job": job.id, "status": str(job.status), "attempts": rows})
        return
    out.say()
    columns = (
        Column("attempt"),
        Column("worker", "name"),
        Column("outcome"),
        Column("ran for"),
        Column("", wraps=True),
    )
    out.table(
        columns,
        [
            (
                row["attempt"],
                names.get(row["node"], row["node"]),
                row["outcome"],
                span(max(0, row["ended_at"] - row["started_at"])),
                row["reason"],
            )
            for row in attempts
        ],
    )


def run_node() -> None:
    """Run as one of the workers."""
    subprocesses.run_as_child(_serve)


async def _serve(options: dict[str, Any], stopping: asyncio.Event) -> None:
    settings = replace(
        Settings(),
        store=options["store"],
        app="headway.cli.samples:app",
        node=options["name"],
        grace=0,
        processes=1,
        worker_lease=WORKER_LEASE,
        leader_lease=LEADER_LEASE,
        poll=SECOND // 4,
    )
    quiet = EventLog(lambda _: None, look="plain")
    await run_worker(settings, quiet, store=options["store"], schedules=False, stopping=stopping)
