"""Real workers, real jobs, and questions about both that are answered by the database and by /proc."""

import contextlib
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headway import Headway
from headway.settings import Settings
from tests.chaos.arena import environment, headway
from tests.chaos.ledger import query

ROOT = Path(__file__).parents[2]
APP = "tests.chaos.worker_tasks:app"
PATIENCE_S = 30.0
START_S_MAX = 40.0
STOP_S_MAX = 15.0
FREEZE_TRIES_MAX = 50
FULL = bool(os.environ.get("HEADWAY_CHAOS_FULL"))  # Longer torments, for whoever has the time.
FINAL = ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED")
PR_SET_PDEATHSIG = 1

T = TypeVar("T")


@dataclass(slots=True)
class Worker:
    """One worker process; its children and everything they start carry its mark."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self.process.pid

    def family(self) -> set[int]:
        """Return every process that the worker has started, directly or not, the supervisor left out."""
        return {pid for pid in marked(self.mark) if pid != self.pid}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor alone."""
        self.process.send_signal(number)

    def wait(self, within_s: float) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(within_s)


@dataclass(slots=True)
class WorkerArena:
    """Workers on one store."""

    store: str
    folder: Path
    tasks: str = APP
    workers: list[Worker] = field(default_factory=list)
    _app: Headway | None = None

    @classmethod
    def on(cls, store: str, folder: Path, tasks: str = APP) -> "WorkerArena":
        """Prepare a store and a folder for what happens there; `tasks` is the app that the workers run."""
        folder.mkdir(parents=True, exist_ok=True)
        assert headway("migrate", store=store).returncode == 0
        return cls(store, folder, tasks)

    @property
    def app(self) -> Headway:
        """An app that enqueues, in this process; it knows no task."""
        if self._app is None:
            self._app = Headway(settings=Settings(store=self.store), name="client")
        return self._app

    @property
    def trace_file(self) -> Path:
        """Where tasks note what they do."""
        return self.folder / "trace"

    def start(self, *flags: str, role: str = "worker", is_ready: bool = True, **more: str) -> Worker:
        """Start a worker and wait until it can take jobs."""
        number = len(self.workers) + 1
        log = self.folder / f"{role}-{number}.log"
        mark = f"{self.folder}:{number}"
        env = environment(self.store, TRACE=str(self.trace_file), ARENA=mark, PYTHONUNBUFFERED="1", **more)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "headway", "--app", self.tasks, role, *flags],
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        worker = Worker(process, log, mark)
        self.workers.append(worker)
        if is_ready:
            self.wait_ready(worker)
        return worker

    def wait_ready(self, worker: Worker) -> None:
        """Wait until the worker has said which tasks it knows."""
        deadline = time.monotonic() + START_S_MAX
        while b"starting" not in worker.log.read_bytes():
            assert worker.process.poll() is None, worker.log.read_text()
            assert time.monotonic() < deadline, worker.log.read_text()
            time.sleep(0.02)

    def freeze(self, worker: Worker) -> None:
        """Stop a worker between two writes: in the middle of one it would keep a SQLite file locked for everybody."""
        for _ in range(FREEZE_TRIES_MAX):
            worker.signal(signal.SIGSTOP)
            if not self.store.startswith("sqlite") or _can_be_written(self.store.removeprefix("sqlite:///")):
                return
            worker.signal(signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError("the worker writes without a pause")

    def stop(self) -> None:
        """End every worker and whatever is left of it."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
        for worker in self.workers:
            worker.process.wait(STOP_S_MAX)
            for pid in worker.family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # --- jobs

    def enqueue(self, task: str, args: dict[str, Any] | None = None, **options: Any) -> str:
        """Enqueue one job; return its id."""
        return self.app.enqueue_sync(task, args, **options).id

    def enqueue_many(self, task: str, arguments: Sequence[dict[str, Any]], **options: Any) -> list[str]:
        """Enqueue jobs in one call; return their ids."""
        jobs = [self.app._job_by_name(task, args, options)[0] for args in arguments]
        return [handle.id for handle in self.app.enqueue_jobs_sync(jobs)]

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Read the database as anybody could."""
        return query(self.store, text)

    def write(self, text: str) -> None:
        """Change the database behind everybody's back."""
        if self.store.startswith("sqlite"):
            connection = sqlite3.connect(self.store.removeprefix("sqlite:///"), timeout=20)
            with connection:
                connection.execute(text)
            connection.close()
        else:
            query(self.store, text)

    def job(self, job_id: str, *columns: str) -> Any:
        """Read columns of a job: one value, or a tuple of several."""
        [row] = self.sql(f"select {', '.join(columns)} from headway_jobs where id = '{job_id}'")
        return row if len(columns) > 1 else row[0]

    def attempts(self, job_id: str) -> list[tuple[int, str]]:
        """Return the ended attempts of a job with their outcomes."""
        ended = f"select attempt, outcome from headway_all_attempts where job_id = '{job_id}' order by attempt"
        return [(attempt, outcome) for attempt, outcome in self.sql(ended)]

    def outcomes(self, job_id: str) -> list[str]:
        """Return how the attempts ended that count; a job may have been handed back before its turn came."""
        return [outcome for _, outcome in self.attempts(job_id) if outcome != "released"]

    def statuses(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Count jobs by their status."""
        ids = ", ".join(f"'{job_id}'" for job_id in job_ids)
        found = self.sql(f"select status, count(*) from headway_jobs where id in ({ids}) group by status")
        return dict(sorted(found))

    def wait_status(self, job_id: str, *wanted: str, within_s: float = PATIENCE_S) -> str:
        """Wait until a job has one of these statuses."""

        def is_there() -> str | None:
            status: str = self.job(job_id, "status")
            return status if status in wanted else None

        return wait_for(is_there, f"{job_id} to be {' or '.join(wanted)}", within_s, self.describe)

    def wait_final(self, job_ids: Sequence[str], within_s: float = PATIENCE_S) -> dict[str, int]:
        """Wait until all these jobs have ended; return how."""

        def all_ended() -> dict[str, int] | None:
            found = self.statuses(job_ids)
            assert sum(found.values()) == len(set(job_ids)), found
            return found if found.keys() <= set(FINAL) else None

        return wait_for(all_ended, f"{len(job_ids)} jobs to end", within_s, self.describe)

    def check_ended_once(self, job_ids: Iterable[str]) -> None:
        """Check that each of these jobs has one end, and that its attempts tell the same story."""
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
        """Return the lines that tasks left, of one kind: job id, attempt, process id, and more."""
        text = self.trace_file.read_text() if self.trace_file.exists() else ""
        lines = [line.split() for line in text.splitlines()]
        return [line[1:] for line in lines if line[0] == word and (job_id is None or line[1] == job_id)]

    def wait_trace(self, word: str, job_id: str, count: int = 1, within_s: float = PATIENCE_S) -> list[list[str]]:
        """Wait until a task has left so many lines."""

        def enough() -> list[list[str]] | None:
            found = self.trace(word, job_id)
            return found if len(found) >= count else None

        return wait_for(enough, f"{count} lines {word!r} of {job_id}", within_s, self.describe)

    def describe(self) -> str:
        """Say what is going on, for whoever reads a failure."""
        jobs = self.sql(
            "select id, task, status, attempt, failures, reason from headway_jobs "
            "where finished_at is null order by id limit 20"
        )
        tails = [f"--- {worker.log.name}\n{worker.log.read_text()[-3000:]}" for worker in self.workers[-4:]]
        return "\n".join([*map(str, jobs), *tails])


def wait_for(look: Callable[[], T | None], what: str, within_s: float, describe: Callable[[], str] = str) -> T:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s for {what}\n{describe()}")
        time.sleep(0.05)


def is_alive(pid: int | str) -> bool:
    """Say whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def marked(mark: str) -> set[int]:
    """Return the living processes that were started with this mark in their environment."""
    needle, found = f"ARENA={mark}".encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if needle in (entry / "environ").read_bytes().split(b"\0") and is_alive(entry.name):
                found.add(int(entry.name))
    return found


def everywhere(scenario: Callable[[WorkerArena], None], stores: dict[str, str], folder: Path) -> None:
    """Play a scenario on all databases at the same time: it is mostly waiting."""

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


def _can_be_written(file: str) -> bool:
    """Say whether nobody keeps a SQLite file locked for longer than a write takes."""
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
    """Have the kernel end the worker should the tests be killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
