"""Real workers, real jobs, and queries about both that the database and /proc answer."""

import asyncio
import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from headway import Headway
from headway.core.errors import AlreadyFinal, StoreUnavailable
from headway.core.jobs import NewJob
from headway.core.settings import Settings
from headway.store import open_driver
from headway.store.migrations import migrate
from headway.store.transaction import ConstraintViolated
from tests.chaos.arena import environment
from tests.chaos.ledger import query
from tests.support import evidence
from tests.support.processes import marked
from tests.support.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
APP = "tests.chaos.worker_tasks:app"
STOP_S_MAX = DEADLINE_S
MANY_S_MAX = 2 * DEADLINE_S  # The timeout for hundreds of jobs.
LOOK_EVERY_S = 0.05
FULL = bool(os.environ.get("HEADWAY_CHAOS_FULL"))  # Whether to run longer tests.
FINAL = ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED")
PR_SET_PDEATHSIG = 1

# A worker that ends waits a second for its last writes. On a slow machine that is not enough, and the leases have
# to expire. A test that needs the writes, and not the second, starts its workers with this program.
UNHURRIED = """
import headway.wiring.node
from headway.cli import main

headway.wiring.node.HAND_BACK_S_MAX = headway.wiring.node.WORKER_GOODBYE_S_MAX = 60.0
main()
"""

T = TypeVar("T")


class LogPipe:
    """The output of a worker: a small pipe that is copied to a file, unless it is blocked."""

    def __init__(self, log: Path) -> None:
        ours, self.writable = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._copy, args=(ours, log), daemon=True).start()

    def _copy(self, ours: int, log: Path) -> None:
        with log.open("ab", buffering=0) as file:
            while data := os.read(ours, 4096):
                file.write(data)
                self.flows.wait()
        os.close(ours)


@dataclass(slots=True)
class Worker:
    """One worker process; its children and their subprocesses carry its marker."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str
    pipe: LogPipe | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the supervisor."""
        return self.process.pid

    def family(self) -> set[int]:
        """Return every direct and indirect subprocess of the worker, without the supervisor."""
        return {pid for pid in marked(f"ARENA={self.mark}") if pid != self.pid}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor only."""
        self.process.send_signal(number)

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(within_s)

    def said(self, words: str) -> bool:
        """Return whether these words are in its log."""
        return words.encode() in self.log.read_bytes()

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self.process.poll() is None


@dataclass(slots=True)
class WorkerArena:
    """Workers on one store."""

    store: str
    folder: Path
    tasks: str = APP
    shared: bool = False  # Whether several tests use it, one after the other.
    is_unhurried: bool = False  # Whether its workers take their time when they end, see `UNHURRIED`.
    workers: list[Worker] = field(default_factory=list)
    _app: Headway | None = None
    _connection: "psycopg.Connection[tuple[Any, ...]] | None" = None
    _logs: list[evidence.Source] = field(default_factory=list)

    @classmethod
    def on(cls, store: str, folder: Path, tasks: str = APP, *, shared: bool = False) -> "WorkerArena":
        """Prepare a store and a folder; `tasks` is the app that the workers run."""
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(_migrate(store))
        return cls(store, folder, tasks, shared)

    @property
    def app(self) -> Headway:
        """Return an app that enqueues in this process; it registers no task."""
        if self._app is None:
            self._app = Headway(settings=Settings(store=self.store), name="client")
        return self._app

    @property
    def trace_file(self) -> Path:
        """Return the file to which tasks write what they do."""
        return self.folder / "trace"

    def start(
        self, *flags: str, role: str = "worker", is_ready: bool = True, is_piped: bool = False, **more: str
    ) -> Worker:
        """Start a worker and wait until it can claim jobs."""
        number = len(self.workers) + 1
        log = self.folder / f"{role}-{number}.log"
        mark = f"{self.folder}:{number}"
        env = environment(self.store, TRACE=str(self.trace_file), ARENA=mark, PYTHONUNBUFFERED="1", **more)
        program = ("-c", UNHURRIED) if self.is_unhurried else ("-m", "headway")
        pipe = LogPipe(log) if is_piped else None
        with log.open("wb") if pipe is None else os.fdopen(pipe.writable, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, *program, "--app", self.tasks, role, *flags],
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._logs.append(evidence.watch(f"{role} {number} on {self.store}", log, shared=self.shared))
        worker = Worker(process, log, mark, pipe)
        self.workers.append(worker)
        if is_ready:
            self.wait_ready(worker)
        return worker

    def wait_ready(self, worker: Worker) -> None:
        """Wait until the worker has registered its tasks."""
        wait_until(lambda: worker.said("starting") or not worker.is_running(), f"{worker.log.name} to be ready")
        assert worker.said("starting"), worker.log.read_text()  # A job may have killed it since.

    def freeze(self, worker: Worker) -> None:
        """Freeze a worker between two writes: within one it would keep a SQLite file locked."""

        def is_still() -> bool:
            worker.signal(signal.SIGSTOP)
            if not self.store.startswith("sqlite") or _can_be_written(self.store.removeprefix("sqlite:///")):
                return True
            worker.signal(signal.SIGCONT)
            return False

        wait_until(is_still, "the worker to pause between two writes", every_s=LOOK_EVERY_S)

    def stop(self) -> None:
        """End every worker and its subprocesses."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
        for worker in self.workers:
            worker.process.wait(STOP_S_MAX)
            for pid in worker.family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.shared:
            for log in self._logs:
                log.close()
        self._disconnect()

    # --- jobs

    def enqueue(self, task: str, args: dict[str, Any] | None = None, **options: Any) -> str:
        """Enqueue one job; return its id."""
        return self.hand_in([self.app._job_by_name(task, args, options)[0]])[0]

    def enqueue_many(self, task: str, arguments: Sequence[dict[str, Any]], **options: Any) -> list[str]:
        """Enqueue jobs in one call; return their ids."""
        return self.hand_in([self.app._job_by_name(task, args, options)[0] for args in arguments])

    def hand_in(self, jobs: list[NewJob]) -> list[str]:
        """Enqueue jobs in one call; return their ids. Retry if the store is too slow."""
        tries = itertools.count()

        def handed_in() -> list[str]:
            is_again = next(tries) > 0
            try:
                return [handle.id for handle in self.app.enqueue_jobs_sync(jobs)]
            except StoreUnavailable:
                return []
            except ConstraintViolated:  # The first call was committed, but its response was lost.
                if not is_again:
                    raise
                return [job.id for job in jobs]

        return wait_for(handed_in, "the store to accept jobs")

    def cancel(self, job_id: str, reason: str = "") -> None:
        """Cancel a job. Retry if the store is too slow."""
        tries = itertools.count()

        def cancelled() -> bool:
            is_again = next(tries) > 0
            try:
                self.app.cancel_sync(job_id, reason)
            except StoreUnavailable:
                return False
            except AlreadyFinal:  # The first call was committed, but its response was lost.
                if not is_again:
                    raise
            return True

        wait_for(cancelled, "the store to accept a cancel")

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Read the database with plain SQL."""
        return query(self.store, text) if self.store.startswith("sqlite") else self._execute(text)

    def write(self, text: str) -> None:
        """Change the database directly, without Headway."""
        if self.store.startswith("sqlite"):
            connection = sqlite3.connect(self.store.removeprefix("sqlite:///"), timeout=DEADLINE_S)
            with connection:
                connection.execute(text)
            connection.close()
        else:
            self._execute(text)

    def run_out(self, *job_ids: str) -> None:
        """Expire the leases of these jobs now, and that of the housekeeping role."""
        self.write("update headway_leases set until = 1")
        self.write(
            f"update headway_jobs set lease_until = 1 where lease_until is not null and id in {_listed(job_ids)}"
        )

    def _execute(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement on PostgreSQL, on the last connection unless the server was restarted."""
        try:
            if self._connection is not None:
                return _rows(self._connection, text)
        except psycopg.OperationalError:
            self._disconnect()
        self._connection = psycopg.connect(self.store, autocommit=True)
        return _rows(self._connection, text)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def job(self, job_id: str, *columns: str) -> Any:
        """Read columns of a job: one value, or a tuple of several."""
        [row] = self.sql(f"select {', '.join(columns)} from headway_jobs where id = '{job_id}'")
        return row if len(columns) > 1 else row[0]

    def attempts(self, job_id: str) -> list[tuple[int, str]]:
        """Return the ended attempts of a job with their outcomes."""
        ended = f"select attempt, outcome from headway_all_attempts where job_id = '{job_id}' order by attempt"
        return [(attempt, outcome) for attempt, outcome in self.sql(ended)]

    def outcomes(self, job_id: str) -> list[str]:
        """Return the outcomes of the attempts that count; a job may have been released before it began."""
        return [outcome for _, outcome in self.attempts(job_id) if outcome != "released"]

    def statuses(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Count jobs by their status."""
        found = self.sql(f"select status, count(*) from headway_jobs where id in {_listed(job_ids)} group by status")
        return dict(sorted(found))

    def wait_status(self, job_id: str, *wanted: str, within_s: float = DEADLINE_S) -> str:
        """Wait until a job has one of these statuses."""

        def is_there() -> str | None:
            status: str = self.job(job_id, "status")
            return status if status in wanted else None

        return wait_for(is_there, f"{job_id} to be {' or '.join(wanted)}", within_s, self.describe)

    def wait_final(self, job_ids: Sequence[str], within_s: float = DEADLINE_S) -> dict[str, int]:
        """Wait until all these jobs have ended; return their final states."""

        def all_ended() -> dict[str, int] | None:
            found = self.statuses(job_ids)
            assert sum(found.values()) == len(set(job_ids)), found
            return found if found.keys() <= set(FINAL) else None

        return wait_for(all_ended, f"{len(job_ids)} jobs to end", within_s, self.describe)

    def check_ended_once(self, job_ids: Iterable[str]) -> None:
        """Check that each of these jobs has one end, and that its attempts are consistent with it."""
        wanted = set(job_ids)
        jobs = {
            job_id: (status, attempt, finished_at)
            for job_id, status, attempt, finished_at in self.sql(
                "select id, status, attempt, finished_at from headway_jobs"
            )
            if job_id in wanted
        }
        assert jobs.keys() == wanted
        for job_id, (status, _, finished_at) in jobs.items():
            assert status in FINAL, (job_id, status)
            assert finished_at is not None
        ends: dict[str, list[tuple[int, str]]] = {}
        for job_id, attempt, outcome in self.sql(
            "select job_id, attempt, outcome from headway_all_attempts order by job_id, attempt"
        ):
            ends.setdefault(job_id, []).append((attempt, outcome))
        for job_id, (status, attempt, _) in jobs.items():
            numbers = [number for number, _ in ends.get(job_id, [])]
            assert numbers == list(range(1, attempt + 1)), (job_id, status, ends.get(job_id))
            outcomes = [outcome for _, outcome in ends.get(job_id, [])]
            assert outcomes.count("completed") == (status == "COMPLETED"), (job_id, status, outcomes)
            assert "completed" not in outcomes[:-1], (job_id, outcomes)

    # --- what really ran

    def trace(self, word: str, job_id: str | None = None) -> list[list[str]]:
        """Return the lines that tasks wrote, of one kind: job id, attempt, process id, and more."""
        return [line[1:] for line in self.lines(job_id) if line[0] == word]

    def lines(self, job_id: str | None = None) -> list[list[str]]:
        """Return the lines that tasks wrote, of all kinds: the kind comes first."""
        text = self.trace_file.read_text() if self.trace_file.exists() else ""
        lines = [line.split() for line in text.splitlines()]
        return [line for line in lines if job_id is None or line[1] == job_id]

    def wait_trace(self, word: str, job_id: str, count: int = 1, within_s: float = DEADLINE_S) -> list[list[str]]:
        """Wait until a task has written some lines."""

        def enough() -> list[list[str]] | None:
            found = self.trace(word, job_id)
            return found if len(found) >= count else None

        return wait_for(enough, f"{count} lines {word!r} of {job_id}", within_s, self.describe)

    def describe(self) -> str:
        """Return the jobs that have not ended, for the report of a failure. It also shows the logs of the workers."""
        try:
            jobs = self.sql(
                "select id, task, status, attempt, failures, reason from headway_jobs "
                "where finished_at is null order by id limit 20"
            )
        except (psycopg.Error, sqlite3.Error) as error:
            return f"the jobs cannot be read: {error}"
        return "\n".join(["the first jobs that have not ended:", *map(str, jobs)])


def wait_for(
    look: Callable[[], T | None], what: str, within_s: float = DEADLINE_S, describe: Callable[[], str] = str
) -> T:
    """Poll until the condition is true, and describe the state on a timeout."""
    try:
        found = wait_until(look, what, within_s=within_s, every_s=LOOK_EVERY_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{describe()}") from None
    assert found is not None
    return found


def everywhere(scenario: Callable[[WorkerArena], None], stores: dict[str, str], folder: Path) -> None:
    """Run a scenario on all databases at the same time: it mostly waits."""

    def play(name: str, store: str) -> None:
        arena = WorkerArena.on(store, folder / name)
        try:
            scenario(arena)
        except BaseException as error:
            error.add_note(f"on {name}")
            raise
        finally:
            arena.stop()

    with ThreadPoolExecutor(len(stores)) as pool:
        plays = [pool.submit(play, name, store) for name, store in stores.items()]
    errors = [error for one in plays if (error := one.exception()) is not None]
    if errors:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup("on several databases", errors)


async def _migrate(store: str) -> None:
    driver = open_driver(store, node="test")
    try:
        await migrate(driver)
    finally:
        await driver.close()


def _rows(connection: "psycopg.Connection[tuple[Any, ...]]", text: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(text.encode())
    return cursor.fetchall() if cursor.description else []


def _listed(job_ids: Iterable[str]) -> str:
    """Return ids as SQL for an `in` list."""
    return "(" + ", ".join(f"'{job_id}'" for job_id in job_ids) + ")"


def _can_be_written(file: str) -> bool:
    """Return whether a SQLite file is not locked for longer than a write takes."""
    # short: the caller retries.
    connection = sqlite3.connect(file, timeout=2, isolation_level=None)
    try:
        connection.execute("begin immediate")
        connection.execute("rollback")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def _die_with_parent() -> None:
    """Let the kernel end the worker if the tests are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
