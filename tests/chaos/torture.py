"""The torture test: real nodes, real servers, a bad network, and a seeded plan of faults.

    python -m tests.chaos.torture --engine redis --seed 7 --minutes 3      # one engine; writes docs/torture-report.md
    python -m tests.chaos.torture --engine all --minutes 3                 # each in turn
    python -m tests.chaos.torture --engine etcd --seed 7 --plan            # print the plan only

Each node is scheduler, worker and API in one process, with its own links to PostgreSQL and to the servers of the
engine. A client enqueues all the time. After the plan all faults are undone, and everything must be healthy within half
a minute. Then the nodes are stopped, and the verdict reads the database and what the tasks wrote. The plan can be
repeated by its seed; the timing cannot.
"""

import argparse
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from headway.core.instants import SECOND
from tests.chaos import torture_report
from tests.chaos.cluster import APP, Cluster
from tests.chaos.ledger import CURSORS, put_schedules
from tests.chaos.limits import change_limits, put_limits
from tests.chaos.plan import Fault, Plan, draw
from tests.chaos.rigs import RIGS, Rig
from tests.chaos.verdict import Evidence, Figures, Quiet, judge, measure, undone
from tests.chaos.worker_arena import WorkerArena
from tests.support import evidence
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxies
from tests.support.waiting import DEADLINE_S, wait_until

NODES = 3
RECOVERY_S_MAX = 30.0
GIVE_UP_S = 60.0
PREPARE_S_MAX = 240.0
LOOK_S = 0.2
HOUSEKEEPING = "housekeeping"
LOSES_LEASES = ("kill", "freeze", "freeze supervisor")  # Faults after which a leader is no longer leader.

ALIVE = "select id, name, state from headway_nodes where beat_at > {now} - 4000000"
LEASES = "select name, holder, holder_name, token, since, until from headway_leases where name not like 'occurrence/%'"


@dataclass(frozen=True, slots=True)
class Term:
    """A lease as observed: its holder, and since when."""

    name: str
    holder: str
    token: int
    since: int


@dataclass(slots=True)
class Outcome:
    """The result of a torture test."""

    engine: str
    seed: int
    seconds: float
    nodes: int
    shards: int
    mode: str
    fallback: str
    faults: dict[str, int]
    figures: Figures
    fail_overs_s: list[float]
    slowest: list[str]  # The active faults during the slowest of them.
    recovery_s: float
    violations: list[str]


@dataclass(slots=True)
class Observer:
    """Polls the leases, without a proxy, and records their holders."""

    store: str
    terms: dict[tuple[str, int], Term] = field(default_factory=dict)
    strikes: list[tuple[int, str]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Poll until stopped; retry while the database is unavailable."""
        while not self._over.is_set():
            try:
                # short: both are retried.
                with psycopg.connect(self.store, autocommit=True, connect_timeout=5) as connection:
                    while not self._over.wait(LOOK_S):  # short: the polling interval.
                        for name, _, holder, token, since, _ in connection.execute(LEASES).fetchall():
                            self.terms.setdefault((name, token), Term(name, holder, token, since))
            except psycopg.Error:
                self._over.wait(LOOK_S)  # short: the polling interval.

    def struck(self, node: str) -> None:
        """Record that a node was just hit by a fault that no leader survives."""
        self.strikes.append((time.time_ns() // 1_000, node))

    def stop(self) -> None:
        """Stop polling."""
        self._over.set()

    def fail_overs(self) -> list[tuple[int, int]]:
        """Return the intervals without a leader: from the end of a scheduler to the term of the next one."""
        found = []
        for at, node in self.strikes:
            for name in sorted({term.name for term in self.terms.values() if term.name.startswith("scheduler/")}):
                terms = sorted((term for term in self.terms.values() if term.name == name), key=lambda term: term.token)
                before = [term for term in terms if term.since <= at]
                after = [term for term in terms if term.since > at]
                if before and before[-1].holder == node and after:
                    found.append((at, after[0].since))
        return found


class Torture:
    """One run of one plan.

    A machine of unknown speed gets `slack_s` more than the promised time. The client continues until each of the
    `awaited` queries has a result.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        nodes: int = NODES,
        mode: str = "leader",
        fallback: str = "store",
        slack_s: float = 0.0,
        awaited: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self.mode = mode
        self.fallback = fallback
        self.faults: Counter[str] = Counter()
        self.history: list[tuple[int, int, Fault]] = []  # From when to when.
        self.violations: list[str] = []
        self._folder = folder
        self._count = nodes
        self._slack_s = slack_s
        self._awaited = awaited
        self._missed: list[str] = []
        self._seen_well: set[tuple[str, str]] = set()
        evidence.attach("what the nodes missed", lambda: "\n".join(self._missed))
        self._over = threading.Event()
        self._calm = threading.Event()  # Set when no more faults come.

    def __enter__(self) -> "Torture":
        """Run it; the database exists until the end of the block."""
        with ExitStack() as stack:
            # Entered first, so that it exits last: nodes end with the thread that started them.
            pool = stack.enter_context(ThreadPoolExecutor(8))
            preparing: Future[Rig] = pool.submit(RIGS[self.plan.engine], stack.enter_context(ExitStack()))
            self.server = stack.enter_context(PostgresServer(options={"max_connections": "300"}))
            proxies = stack.enter_context(Proxies())
            arena = WorkerArena.on(self.server.create_database(), self._folder, APP)
            put_schedules(arena.store)
            put_limits(arena.store)
            self._rig = preparing.result(timeout=PREPARE_S_MAX)
            self._observer = Observer(arena.store)
            coordination = {
                "HEADWAY_SCHEDULER_SHARDS": str(self.plan.shards),
                "HEADWAY_COORDINATION_MODE": self.mode,
                "HEADWAY_COORDINATION_FALLBACK": self.fallback,
            }
            self._cluster = Cluster.build(
                arena, self._rig, proxies, count=self._count, settings=coordination, slack_s=self._slack_s
            )
            stack.callback(self._cluster.end)
            stack.callback(self._observer.stop)
            stack.callback(self._over.set)
            stack.callback(self._calm.set)
            watching = pool.submit(self._observer.watch)
            self.outcome = self._play(arena, proxies, pool, watching)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _play(
        self, arena: WorkerArena, proxies: Proxies, pool: ThreadPoolExecutor, watching: "Future[None]"
    ) -> Outcome:
        cluster = self._cluster
        cluster.start()
        self._seen_well.clear()
        wait_until(self._is_well, "all nodes to start", every_s=LOOK_S)
        began = time.monotonic()
        changing = pool.submit(change_limits, arena.store, self._calm)
        lanes = [pool.submit(self._torment, faults, began) for faults in self.plan.lanes().values()]
        for lane in lanes:
            lane.result(timeout=self.plan.seconds * 2 + PREPARE_S_MAX)
        self._calm.set()
        proxies.clear()
        self._rig.heal()
        cluster.heal()
        self.faults["limits: changed"] = changing.result(timeout=DEADLINE_S)
        healed, struck_s = time.time_ns() // 1_000, time.monotonic() - began
        quiet, recovery_s = self._recover(cluster, healed)
        cluster.leave()
        cluster.remove_absurd_rows()
        self._observer.stop()
        watching.result(timeout=DEADLINE_S)
        self.violations += [*cluster.complaints, *cluster.orphans()]
        shards = 0 if self.mode == "lock" else self.plan.shards
        self.evidence = Evidence(arena, cluster.receipts(), quiet, shards=shards, seconds=struck_s)
        self.violations += judge(self.evidence)
        fail_overs = self._observer.fail_overs()
        slowest = max(fail_overs, key=lambda span: span[1] - span[0], default=(0, 0))
        return Outcome(
            engine=self.plan.engine,
            seed=self.plan.seed,
            seconds=round(struck_s, 1),
            nodes=self._count,
            shards=self.plan.shards,
            mode=self.mode,
            fallback=self.fallback,
            faults=dict(sorted(self.faults.items())),
            figures=measure(self.evidence),
            fail_overs_s=[(until - since) / SECOND for since, until in fail_overs],
            slowest=[fault.words for since, until, fault in self.history if since < slowest[1] and until > slowest[0]],
            recovery_s=round(recovery_s, 1),
            violations=self.violations,
        )

    # --- the faults

    def _torment(self, faults: Sequence[Fault], began: float) -> None:
        """Inject the faults of one lane; late ones begin at once."""
        for fault in faults:
            late_s = time.monotonic() - began - fault.at_s
            if late_s < 0 and self._over.wait(-late_s):
                return
            since = time.time_ns() // 1_000
            self._strike(fault)
            self.history.append((since, time.time_ns() // 1_000, fault))
            self.faults[f"{fault.lane}: {fault.kind}"] += 1

    def _strike(self, fault: Fault) -> None:
        if fault.lane == "processes":
            if fault.kind in LOSES_LEASES:
                self._observer.struck(self._cluster.nodes[fault.place - 1].name)
            self._cluster.strike_process(fault)
        elif fault.lane == "rows":
            self._cluster.write_absurd_row(fault.detail)
        elif fault.lane == "servers":
            if fault.kind == "postgresql crash":
                self.server.kill()
                time.sleep(fault.lasts_s)
                self.server.start()
            else:
                self._rig.strike(fault.kind, fault.lasts_s)
        else:
            self._cluster.strike_links(fault)

    # --- afterwards

    def _recover(self, cluster: Cluster, healed: int) -> tuple[Quiet, float]:
        """Wait until the client succeeds and everything is healthy again; return the state, and how long it took."""
        began, receipts = time.monotonic(), len(cluster.receipts())
        limits = [RECOVERY_S_MAX + self._slack_s, GIVE_UP_S + self._slack_s]  # The second: any recovery?

        def is_over(missing: list[str]) -> bool:
            if missing and limits and time.monotonic() - began > limits[0]:
                late_s = limits.pop(0)
                self.violations.append(f"L5: {late_s:g} s after the last fault: {'; '.join(missing)}"[:2_000])
            return not missing or not limits

        while not is_over(self._unheard(cluster, receipts)):
            time.sleep(LOOK_S)
        cluster.stop_client()
        self._seen_well.clear()
        while True:
            missing, quiet = self._missing(healed), self._look_around(healed)
            if is_over(missing or undone(cluster.arena, quiet)):
                return quiet, time.monotonic() - began
            time.sleep(LOOK_S)

    def _unheard(self, cluster: Cluster, receipts: int) -> list[str]:
        """Return what the client, which still runs, has not achieved yet."""
        missing = [] if len(cluster.receipts()) > receipts else ["nothing is acknowledged to the client"]
        return missing + [f"no answer to {question}" for question in self._awaited if not cluster.arena.sql(question)]

    def _is_well(self) -> bool:
        return not self._missing(0)

    def _missing(self, since: int) -> list[str]:
        """Return what is not healthy yet; with a time, also what was due or enqueued before it and is not done.

        Leases are short here. On a starved machine they expire without a fault, so the parts need not be healthy at the
        same time: each has to be healthy once.
        """
        arena, names = self._cluster.arena, {node.name for node in self._cluster.nodes}
        now = time.time_ns() // 1_000
        alive = {node_id: (name, json.loads(state)) for node_id, name, state in arena.sql(ALIVE.format(now=now))}
        troubles = {("beat", name): f"{name} does not beat" for name in names - {name for name, _ in alive.values()}}
        for name, state in alive.values():
            for part in ("coordination", "transport", "live"):
                if trouble := state.get(part, {}).get("trouble"):
                    troubles[part, name] = f"{name} misses its {part}: {trouble}"
        held = {name for name, holder, _, _, _, until in arena.sql(LEASES) if until > now and holder in alive}
        troubles |= {("lease", role): f"nobody holds {role}" for role in self._roles() if role not in held}
        living = {name for name, _ in alive.values()}
        asked = {(part, name) for part in ("beat", "coordination", "transport", "live") for name in living}
        self._seen_well |= (asked | {("lease", role) for role in self._roles()}) - troubles.keys()
        missing = [words for part, words in sorted(troubles.items()) if part not in self._seen_well]
        if since:
            behind = sum(through < since for _, through, _ in arena.sql(CURSORS))
            unfinished = _unfinished(arena, self._cluster.receipts().values())
            missing += [f"{behind} schedules are behind"] if behind else []
            missing += [f"acknowledged jobs have not ended: {unfinished}"] if unfinished else []
        self._missed = missing or self._cluster.unready()
        return self._missed

    def _roles(self) -> tuple[str, ...]:
        shards = () if self.mode == "lock" else tuple(f"scheduler/{shard}" for shard in range(self.plan.shards))
        return (*shards, HOUSEKEEPING)

    def _look_around(self, healed: int) -> Quiet:
        arena, now = self._cluster.arena, time.time_ns() // 1_000
        states = {node_id: json.loads(state) for node_id, _, state in arena.sql(ALIVE.format(now=now))}
        return Quiet(at=healed, holds={node: state["holds"] for node, state in states.items()}, roles=self._roles())


def _unfinished(arena: WorkerArena, job_ids: Iterable[str]) -> str:
    """Count the jobs that have not ended by what they wait for."""
    ids = ", ".join(f"'{job_id}'" for job_id in job_ids)
    if not ids:
        return ""
    found = arena.sql(
        f"""select j.status, j.task, j.limit_key, l.held_by, count(*) from headway_jobs j
          left join headway_lanes l on l.queue = j.queue and l.tenant = j.tenant and l.limit_key = j.limit_key
            and l.limited_task = j.limited_task
          where j.finished_at is null and j.id in ({ids}) group by 1, 2, 3, 4 order by 5 desc limit 8"""
    )
    waits = (
        f"{count} {status} {task} {key}" + (f" at {gate}" if gate else "") for status, task, key, gate, count in found
    )
    return ", ".join(waits)


def plan_for(engine: str, seed: int, seconds: float, nodes: int = NODES) -> Plan:
    """Draw the plan of a seed for an engine."""
    rig = RIGS[engine]
    return draw(seed, engine, seconds, nodes=nodes, engine_faults=rig.faults, has_clocks=rig.has_clocks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=[*RIGS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=None, help="the plan to repeat (default: a new one)")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--mode", choices=["leader", "lock"], default="leader")
    parser.add_argument("--fallback", choices=["store", "stop"], default="store")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    parser.add_argument("--no-report", action="store_true", help="leave docs/torture-report.md as it is")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    broken = False
    for engine in RIGS if options.engine == "all" else [options.engine]:
        plan = plan_for(engine, seed, options.minutes * 60, options.nodes)
        if options.plan:
            print(f"{engine}, seed {seed}, {plan.shards} shards", *plan.faults, sep="\n")
            continue
        folder = Path(tempfile.mkdtemp(prefix="headway-torture-"))
        print(f"{engine}: seed {seed}, {options.minutes:g} minutes, logs in {folder} meanwhile", flush=True)
        with Torture(plan, folder, nodes=options.nodes, mode=options.mode, fallback=options.fallback) as run:
            outcome = dataclasses.asdict(run.outcome)
        if not options.no_report:
            torture_report.update(outcome)
        print(*torture_report.lines_of(outcome), sep="\n", flush=True)
        if outcome["violations"]:
            broken = True
        else:
            shutil.rmtree(folder)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
