"""The child processes of one worker: start, greet, replace and end them.

`child_pool.py` decides what runs in them. Each kind has as many children as it needs. A child that dies is replaced,
with a growing back-off while children die before their first job. While the worker drains, no child is started.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from headway.core.clock import Clock
from headway.core.events import ChildEnded, ChildStarted, emit
from headway.core.process_tree import MARK, start_orphan_reaper
from headway.worker.children import LEAVING_MAX, ChildRecord, KindPool, suspect_group_size
from headway.worker.handover import Handover
from headway.worker.ipc import Finish, Hello, TaskInfo
from headway.worker.process import ChildProcess

START_S_MAX: Final = 60.0
RESPAWN_S: Final = 0.5
RESPAWN_S_MAX: Final = 15.0
SOLO_MAX: Final = 10
ORPHAN_REAPER_S_MAX: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPoolPlan:
    """How many children of which kind to run, and when to replace them."""

    command: tuple[str, ...]
    processes: int
    concurrency: int
    threads: int
    max_jobs: int = 0
    max_memory: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)


class ChildObserver(Protocol):
    """Receive the events of children."""

    def on_readable(self, pool: KindPool, child: ChildRecord) -> None:
        """Handle messages that arrived from a child."""
        ...

    def on_exit(self, pool: KindPool, child: ChildRecord) -> None:
        """Handle a child that may have died."""
        ...


class ChildProcesses:
    """Start, greet, replace and end the children of a worker. Used by one event loop."""

    def __init__(
        self,
        plan: ChildPoolPlan,
        clock: Clock,
        observer: ChildObserver,
        start: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._observer = observer
        self._start = start
        self._numbers = 0
        self._orphan_reaper: subprocess.Popen[bytes] | None = None
        self.is_closing = False  # No more children are started.
        self.pools = {
            "process": KindPool("process", plan.processes, 1, plan.max_jobs),
            "loop": KindPool("loop", 1, plan.concurrency, plan.max_jobs),
            "thread": KindPool("thread", 1, plan.threads, plan.max_jobs),
        }
        self.hello: Hello | None = None
        self.greeted = asyncio.Event()
        self.tasks: Mapping[str, TaskInfo] = {}
        self.kinds: dict[str, frozenset[str]] = {}  # The tasks by the kind of child that runs them.

    @property
    def _name(self) -> str:
        return self._clock.node or str(os.getpid())

    def __iter__(self) -> Iterator[tuple[KindPool, ChildRecord]]:
        for pool in self.pools.values():
            for child in list(pool.children):
                yield pool, child

    def count(self) -> int:
        """Return the number of children."""
        return sum(len(pool.children) for pool in self.pools.values())

    def open(self) -> None:
        """Start the first child; it reports which tasks there are."""
        self._orphan_reaper = start_orphan_reaper(f"{MARK}={self._name}-")
        self.spawn(self.pools["process"])

    def keep(self, pool: KindPool) -> None:
        """Start a child where one is missing."""
        if self.is_closing or (self.hello is None and pool.kind != "process"):
            return
        wanted = pool.children_max if self.hello is None or pool.kind in self.kinds else 0
        wanted = min(wanted, 1) if self.hello is None else wanted
        processes = [child for child in pool.children if not child.is_leaving and not child.is_solo]
        leaving = sum(child.is_leaving and child.load > 0 for child in pool.children)
        if len(processes) < wanted and self._clock.monotonic() >= pool.spawn_at and leaving < wanted + LEAVING_MAX:
            self.spawn(pool)
        if self.hello is not None and wanted == 0:
            for child in processes:
                self.retire(child)

    def spawn(self, pool: KindPool, *, solo_width: int = 0) -> ChildRecord:
        """Start a child, with a width of its own when it is for suspects."""
        self._numbers += 1
        width = solo_width or pool.width
        mark = f"{self._name}-{self._numbers}"
        process = self._start(self._plan.command, pool.kind, width, mark, self._plan.environ)
        handover = Handover(process.counters, width)
        child = ChildRecord(pool.kind, width, process, handover, self._clock.monotonic(), is_solo=solo_width > 0)
        pool.children.append(child)
        process.watch(
            lambda: self._observer.on_readable(pool, child),
            lambda: self._observer.on_exit(pool, child),
        )
        return child

    def solos(self, pool: KindPool) -> list[ChildRecord]:
        """Return the children for suspects; start more where suspects would have to wait."""
        solos = [child for child in pool.children if child.is_solo and not child.is_leaving]
        coming = sum(child.width for child in solos if not child.is_ready)
        free = 0 if self.is_closing else SOLO_MAX - len(solos)
        while coming < len(pool.suspects) and free > 0:
            width = suspect_group_size(pool.suspects[coming])
            solos.append(self.spawn(pool, solo_width=width))
            coming, free = coming + width, free - 1
        return solos

    def is_late(self, child: ChildRecord) -> bool:
        """Return whether a child has not started in time."""
        return not child.is_ready and self._clock.monotonic() - child.born > START_S_MAX

    def is_spent(self, pool: KindPool, child: ChildRecord) -> bool:
        """Return whether a child is due for replacement, or has no suspects left that it could run."""
        plan = self._plan
        if plan.max_jobs and child.handover.last >= plan.max_jobs:
            return True
        if child.is_solo and child.is_ready and not child.load:
            return not any(child.width <= suspect_group_size(suspect) for suspect in pool.suspects)
        return bool(plan.max_memory) and child.is_ready and child.process.resident_bytes() > plan.max_memory

    def retire(self, child: ChildRecord) -> None:
        """Let a child finish its jobs and exit; another takes its place at once."""
        if not child.is_leaving:
            child.is_leaving = True
            child.process.send(Finish())

    def greet(self, pool: KindPool, child: ChildRecord, hello: Hello) -> None:
        """Handle the hello of a child: it has imported the app, or failed to."""
        if hello.error is not None:
            pool.failures += 1
            emit(ChildEnded(node=self._clock.node, pid=child.process.pid, kind=child.kind, reason=hello.error))
            if self.hello is None:
                self._meet(hello)
            return
        child.is_ready = True
        pool.failures = 0
        emit(ChildStarted(node=self._clock.node, pid=child.process.pid, kind=child.kind))
        if self.hello is None or self.hello.error is not None:
            self._meet(hello)
            for each in self.pools.values():
                self.keep(each)

    def _meet(self, hello: Hello) -> None:
        self.hello = hello
        self.tasks = {info.name: info for info in hello.tasks}
        isolations = {info.isolation for info in hello.tasks}
        self.kinds = {
            kind: frozenset(info.name for info in hello.tasks if info.isolation == kind) for kind in sorted(isolations)
        }
        self.greeted.set()

    def bury(self, pool: KindPool, child: ChildRecord) -> None:
        """Remove a dead child and start another, with a back-off when it died before its first job."""
        child.is_gone = True
        pool.children.remove(child)
        reason = child.killed_because or "it was replaced"
        if child.killed_because is None and not child.is_leaving:
            pool.failures += 1 if not child.handover.last else 0
            wait_s = min(RESPAWN_S * 2.0**pool.failures, RESPAWN_S_MAX) if pool.failures else 0.0
            pool.spawn_at = self._clock.monotonic() + wait_s
            reason = child.process.ending
        if not self.is_closing:
            emit(ChildEnded(node=self._clock.node, pid=child.process.pid, kind=child.kind, reason=reason))
        if self.hello is None and not child.is_ready:
            error = f"the child process {reason} before it was ready"
            self._meet(Hello(child.process.pid, "", "", [], {}, error=error))
        self.keep(pool)

    async def stop_orphan_reaper(self) -> None:
        """End the process that would have killed what a killed worker leaves behind."""
        if self._orphan_reaper is None:
            return
        assert self._orphan_reaper.stdin is not None
        self._orphan_reaper.stdin.close()
        until = self._clock.monotonic() + ORPHAN_REAPER_S_MAX
        # It looks once more before it ends.
        while self._orphan_reaper.poll() is None and self._clock.monotonic() < until:
            await self._clock.rest(0.02, asyncio.Event())
