"""A few nodes, each scheduler, worker and API in one process, with their own links to the store and the engine."""

import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg

from headway.core.errors import StoreError
from tests.chaos.arena import environment
from tests.chaos.plan import FLAP_S, LEASE_S, Fault
from tests.chaos.rigs import Rig
from tests.chaos.worker_arena import ROOT, Worker, WorkerArena, _die_with_parent
from tests.support import evidence
from tests.support.processes import marked
from tests.support.proxy import BLACK_HOLE, CLEAR, DEAF, LOST_ANSWERS, MUTE, REFUSED, Link, Proxies, slow
from tests.support.server import ServerMissing, free_port
from tests.support.waiting import DEADLINE_S

APP = "tests.chaos.witness:app"
WORKER_LEASE_S = 3.0
GRACE_S = 1.0
LEAVE_S_MAX = GRACE_S + 2.0 + 10.0  # The promised time, and what a busy machine may add.
ORPHANS_S_MAX = 20.0
STOP_S_MAX = DEADLINE_S
CLIENT_REST_S = 0.25
RIGHT = "+0 x1"  # libfaketime keeps the last speed if none is named.
WEATHERS = {
    "refuse": REFUSED,
    "black hole": BLACK_HOLE,
    "mute": MUTE,
    "deaf": DEAF,
    "lose answers": LOST_ANSWERS,
}


@dataclass(slots=True)
class Node:
    """One node: its link to the store, its links to the engine, its clock and its process."""

    number: int
    port: int
    store_link: Link
    engine_links: list[Link]
    clock: Path
    worker: Worker | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return f"node-{self.number}"

    @property
    def url(self) -> str:
        """Return the URL of its API."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(slots=True)
class Cluster:
    """All nodes, the client that keeps them busy, and their faults.

    A machine of unknown speed gets `slack_s` more than the promised time.
    """

    arena: WorkerArena
    rig: Rig
    settings: Mapping[str, str]
    nodes: list[Node]
    client_link: Link
    slack_s: float = 0.0
    complaints: list[str] = field(default_factory=list)
    absurd: list[str] = field(default_factory=list)
    _client: subprocess.Popen[bytes] | None = None

    @classmethod
    def build(
        cls,
        arena: WorkerArena,
        rig: Rig,
        proxies: Proxies,
        *,
        count: int,
        settings: Mapping[str, str],
        slack_s: float = 0.0,
    ) -> "Cluster":
        """Open the links without starting anything. The settings apply to all nodes."""
        database = _port_of(arena.store)
        nodes = []
        for number in range(1, count + 1):
            clock = arena.folder / f"clock-{number}"
            set_clock(clock, RIGHT)
            links = [proxies.to(port) for port in rig.ports()]
            nodes.append(Node(number, free_port(), proxies.to(database), links, clock))
        return cls(arena, rig, settings, nodes, proxies.to(database), slack_s)

    def start(self) -> None:
        """Start all nodes and the client."""
        for node in self.nodes:
            self.start_node(node)
        urls = [node.url for node in self.nodes]
        evidence.watch("client", self._client_log)
        with self.receipts_file.open("wb") as out, self._client_log.open("wb") as log:
            self._client = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.torture_client", str(CLIENT_REST_S), *urls],
                cwd=ROOT,
                env=environment(_through(self.arena.store, self.client_link)),
                stdout=out,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def start_node(self, node: Node) -> None:
        """Start a node, or restart it under its name."""
        node.worker = self.arena.start(
            *("--processes", "2", "--port", str(node.port), "--node", node.name),
            role="serve",
            is_ready=False,
            is_piped=True,
            HEADWAY_STORE=_through(self.arena.store, node.store_link),
            HEADWAY_LEADER_LEASE=f"{LEASE_S:g}s",
            HEADWAY_WORKER_LEASE=f"{WORKER_LEASE_S:g}s",
            HEADWAY_GRACE=f"{GRACE_S:g}s",
            HEADWAY_POLL="0.5s",
            HEADWAY_DEBUG="1",  # If one of them exits by itself, its traceback says where.
            **(_faked(node.clock) if self.rig.has_clocks else {}),
            **self.settings,
            **self.rig.settings([link.port for link in node.engine_links]),
        )

    # --- faults

    def strike_process(self, fault: Fault) -> None:
        """Apply a fault to the process of a node, and undo it after its time."""
        node = self.nodes[fault.place - 1]
        assert node.worker is not None
        if node.worker.process.poll() is not None:
            self._complain(f"{node.name} ended by itself with {node.worker.process.returncode}", node.worker)
            self.start_node(node)
            return
        _PROCESS_STRIKES[fault.kind](self, node, node.worker, fault)

    def _kill(self, node: Node, worker: Worker, fault: Fault) -> None:
        worker.process.kill()
        worker.wait(STOP_S_MAX)
        time.sleep(fault.lasts_s)
        self.start_node(node)

    def _kill_child(self, node: Node, worker: Worker, fault: Fault) -> None:
        self.arena.wait_ready(worker)  # The first child describes the app; without it there is no node yet.
        for pid in sorted(worker.family())[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _freeze(self, node: Node, worker: Worker, fault: Fault) -> None:
        frozen = [worker.pid, *([] if fault.kind == "freeze supervisor" else worker.family())]
        try:
            for pid in frozen:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(fault.lasts_s)
        finally:
            for pid in frozen:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _pause_child(self, node: Node, worker: Worker, fault: Fault) -> None:
        """Pause one child; the orphan reaper and the supervisor continue."""
        for pid in sorted(worker.family())[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(fault.lasts_s)
                os.kill(pid, signal.SIGCONT)

    def _clog_log(self, node: Node, worker: Worker, fault: Fault) -> None:
        assert worker.pipe is not None
        worker.pipe.flows.clear()
        time.sleep(fault.lasts_s)
        worker.pipe.flows.set()

    def _terminate(self, node: Node, worker: Worker, fault: Fault) -> None:
        self.arena.wait_ready(worker)  # While Python starts, a signal ends it like any program.
        self._leave(node)
        time.sleep(fault.lasts_s)
        self.start_node(node)

    def _shift_clock(self, node: Node, worker: Worker, fault: Fault) -> None:
        set_clock(node.clock, fault.detail)
        time.sleep(fault.lasts_s)
        set_clock(node.clock, RIGHT)

    def links(self, fault: Fault) -> list[Link]:
        """Return the links that a fault applies to."""
        if fault.place == 0:
            return [self.client_link]
        node = self.nodes[fault.place - 1]
        return [node.store_link] if fault.lane == "store links" else node.engine_links

    def write_absurd_row(self, columns: str) -> None:
        """Write nonsense into the row of a ready job. Do nothing if the database is unavailable."""
        with suppress(psycopg.Error, StoreError):
            job_id = self.arena.app.enqueue_sync("idle", {}, delay="1h").id
            self.absurd.append(job_id)
            self.arena.write(f"update headway_jobs set {columns}, status = 'PENDING' where id = '{job_id}'")

    def remove_absurd_rows(self) -> None:
        """Remove such rows, so that the verdict does not see them."""
        listed = ", ".join(f"'{job_id}'" for job_id in self.absurd)
        for table, column in (("jobs", "id"), ("attempts", "job_id"), ("events", "job_id")):
            if listed:
                self.arena.write(f"delete from headway_{table} where {column} in ({listed})")

    def strike_links(self, fault: Fault) -> None:
        """Make a link bad, and restore it after its time."""
        links = self.links(fault)
        if fault.kind == "cut":
            for link in links:
                link.cut()
            return
        if fault.kind == "flap":
            end = time.monotonic() + fault.lasts_s
            while time.monotonic() < end:
                for link in links:
                    link.set(REFUSED if link.weather == CLEAR else CLEAR)
                time.sleep(FLAP_S)
        else:
            weather = slow(float(fault.detail.split()[0])) if fault.kind == "slow" else WEATHERS[fault.kind]
            for link in links:
                link.set(weather)
            time.sleep(fault.lasts_s)
        for link in links:
            link.set(CLEAR)

    # --- the end

    def heal(self) -> None:
        """Undo what a fault may have left, and make every node run."""
        for node in self.nodes:
            set_clock(node.clock, RIGHT)
            assert node.worker is not None
            if node.worker.process.poll() is not None:
                self._complain(f"{node.name} ended by itself with {node.worker.process.returncode}", node.worker)
                self.start_node(node)

    def stop_client(self) -> None:
        """Stop the client, which must have run until now."""
        assert self._client is not None
        if self._client.poll() is not None:
            self.complaints.append(f"the client gave up: {self._client_log.read_text()[-2_000:]}")
        self._client.kill()
        self._client.wait(STOP_S_MAX)

    def leave(self) -> None:
        """Stop all nodes, one after the other."""
        for node in self.nodes:
            self._leave(node)

    def end(self) -> None:
        """Kill whatever still runs."""
        if self._client is not None and self._client.poll() is None:
            self._client.kill()
            self._client.wait(STOP_S_MAX)
        self.arena.stop()
        for worker in self.arena.workers:  # Shared memory of libfaketime, which killed processes leave behind.
            for shared in ("faketime_shm_", "sem.faketime_sem_"):
                Path(f"/dev/shm/{shared}{worker.pid}").unlink(missing_ok=True)

    def orphans(self) -> list[str]:
        """Wait until no process of a dead or stopped node is left; return those that are."""
        living = {node.worker.mark for node in self.nodes if node.worker and node.worker.process.poll() is None}
        # short: tests give slack, `make torture` does not.
        deadline = time.monotonic() + ORPHANS_S_MAX + self.slack_s
        while True:
            gone = [worker.mark for worker in self.arena.workers if worker.mark not in living]
            left = {mark: pids for mark in gone if (pids := marked(f"ARENA={mark}"))}
            if not left or time.monotonic() > deadline:
                return [f"L7: processes {sorted(pids)} outlive their node" for pids in left.values()]
            time.sleep(0.2)

    @property
    def _client_log(self) -> Path:
        return self.arena.folder / "client.log"

    @property
    def receipts_file(self) -> Path:
        """Return the file of the acknowledgements that the client received."""
        return self.arena.folder / "receipts"

    def receipts(self) -> dict[str, str]:
        """Return the ids of acknowledged jobs by their keys; incomplete lines do not count."""
        lines = self.receipts_file.read_text().rpartition("\n")[0].splitlines()
        return dict(line.split() for line in lines)

    def unready(self) -> list[str]:
        """Return the health of the nodes that are not healthy, as their APIs report it."""
        found = []
        for node in self.nodes:
            try:
                # short: the caller retries.
                answer = httpx.get(f"{node.url}/readyz", timeout=5, trust_env=False).json()
            except (httpx.HTTPError, ValueError) as error:
                found.append(f"the API of {node.name} does not answer: {type(error).__name__}")
                continue
            if answer["status"] != "ready":
                found.append(f"{node.name} is not ready: {answer}")
        return found

    def _leave(self, node: Node) -> None:
        assert node.worker is not None
        worker, began, limit_s = node.worker, time.monotonic(), LEAVE_S_MAX + self.slack_s
        worker.signal(signal.SIGTERM)
        try:
            code = worker.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._complain(f"L7: {node.name} is still there {limit_s:g} s after SIGTERM", worker)
            worker.process.kill()
            worker.wait(STOP_S_MAX)
            return
        if code != 0:
            took_s = time.monotonic() - began
            self._complain(f"L7: {node.name} ended with {code}, {took_s:.1f} s after SIGTERM", worker)

    def _complain(self, what: str, worker: Worker) -> None:
        self.complaints.append(f"{what}\n{worker.log.read_text()[-2_000:]}")


_PROCESS_STRIKES: Mapping[str, Callable[[Cluster, Node, Worker, Fault], None]] = {
    "kill": Cluster._kill,
    "kill child": Cluster._kill_child,
    "freeze": Cluster._freeze,
    "freeze supervisor": Cluster._freeze,
    "terminate": Cluster._terminate,
    "pause child": Cluster._pause_child,
    "clog log": Cluster._clog_log,
    "clock": Cluster._shift_clock,
}


def libfaketime() -> str:
    """Find the library that fakes the clock of a process."""
    found: Sequence[str] = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not found:
        raise ServerMissing("libfaketime")
    return found[0]


def set_clock(file: Path, text: str) -> None:
    """Set the fake time in a file, atomically: readers never see half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _faked(clock: Path) -> dict[str, str]:
    """Return the environment that reads the fake time from a file, once a second."""
    return {
        "LD_PRELOAD": libfaketime(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(Path(__file__).with_name("faketime")),  # Without it no process could sleep.
    }


def _port_of(store: str) -> int:
    return int(store.rpartition(":")[2].partition("/")[0])


def _through(store: str, link: Link) -> str:
    return store.replace(f":{_port_of(store)}/", f":{link.port}/")
