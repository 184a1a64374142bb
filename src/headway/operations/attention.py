"""Derive the alerts from an overview. Pure.

`faults` concern the system. `alerts` are the faults plus work that failed or was missed, the most severe first.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from headway.core.instants import SECOND, format_duration, span
from headway.core.nodes import Node
from headway.operations.engine_state import PARTS, engines_of
from headway.operations.overview import LATE, Overview
from headway.operations.store_trouble import AWAY, FULL, OK, READ_ONLY, SHARD_PREFIX
from headway.store.metrics import OpenTransaction
from headway.store.tenants import Objective
from headway.wire.overview import Alert

NAMES_SHOWN: Final = 5
STANDSTILL_S: Final = 30.0
TRANSACTION_S_MAX: Final = 120.0
SKEW_S_MAX: Final = 1.0
SETTLED_AFTER: Final = 5 * SECOND  # A node registers first and starts to listen after that.


_TROUBLES: Final = {
    READ_ONLY: Alert(
        code="store_read_only",
        message="the store is read-only: nothing is decided, started or recorded until it accepts writes again",
        cure="connect to the primary, or end its read-only mode; Headway then resumes by itself",
    ),
    FULL: Alert(
        code="store_full",
        message="the store is full: nothing is decided, started or recorded until it accepts writes again",
        cure="free space on the disk of the store; Headway then resumes by itself",
    ),
    AWAY: Alert(
        code="store_stuck",
        message="the store answers, but takes no writes: a table is locked, or a standby confirms no commits",
        cure="end the transaction that holds the lock, or repair the standby",
    ),
}


def alerts(overview: Overview) -> Iterator[Alert]:
    """Yield everything that needs an operator now, the most severe first."""
    for fault in faults(overview):
        if fault.code != "schedules_held":  # Each of these schedules is named below.
            yield fault
    for ref, reason in overview.held:
        yield Alert(
            code="schedule_held",
            message=f"schedule {ref} cannot be planned: {reason}",
            cure=f"headway schedules show {shlex.quote(str(ref))}",
            target=ref.name,
            tenant=ref.tenant,
        )
    for ref, number in overview.failing:
        yield Alert(
            code="schedule_failing",
            message=f"schedule {ref}: its last {number} jobs failed",
            cure=f"headway jobs list --schedule {shlex.quote(str(ref))}",
            target=ref.name,
            tenant=ref.tenant,
        )
    for missed in overview.missed:
        yield Alert(
            code="schedule_missed",
            message=f"schedule {missed.label}: {_count(missed.instants, 'instant')} missed in the last day",
            cure=f"headway schedules history {shlex.quote(missed.label)}",
            target=missed.schedule,
            tenant=missed.tenant,
        )
    for task in overview.dead:
        error = f": {task.error}" if task.error else ""
        yield Alert(
            code="dead_letters",
            message=f"{_count(task.letters, 'dead letter')} of {task.task}{error}",
            cure=f"headway dead list --task {shlex.quote(task.task)}",
            target=task.task,
        )
    yield from _late_tenants(overview.late_tenants)
    yield from _undelivered(overview.undelivered)


def _late_tenants(tenants: Sequence[Objective]) -> Iterator[Alert]:
    for one in tenants[:NAMES_SHOWN]:
        yield Alert(
            code="tenant_waits",
            message=f"tenant {one.tenant} waits longer than its wait_slo: a job has been ready for"
            f" {span(one.waited // SECOND * SECOND)}, {format_duration(one.wait_slo)} allowed",
            cure=f"headway tenants show {shlex.quote(one.tenant)}",
            target=one.tenant,
        )
    if (more := len(tenants) - NAMES_SHOWN) > 0:
        words = "more tenant waits" if more == 1 else "more tenants wait"
        yield Alert(
            code="tenant_waits", message=f"{more:,} {words} longer than their wait_slo", cure="headway tenants list"
        )


def _undelivered(number: int) -> Iterator[Alert]:
    if number:
        words = f"{_count(number, 'webhook')} could not be delivered in the last day"
        yield Alert(code="undelivered", message=words, cure="headway webhooks deliveries --status FAILED")


def faults(overview: Overview) -> Iterator[Alert]:
    """Yield the faults of the system, each with a message that stands alone."""
    if overview.trouble != OK:  # No node can write a heartbeat, so it is unknown which nodes are alive.
        yield _TROUBLES[overview.trouble]
    elif not overview.schedulers:
        yield Alert(code="no_scheduler", message="no scheduler is alive", cure="headway scheduler")
    elif not overview.leases and any(node.state.get("mode") == "leader" for node in overview.schedulers):
        yield Alert(code="no_leader", message="schedulers are alive, but none of them leads", cure="headway doctor")
    else:
        yield from _shard_faults(overview)
    undecided = overview.schedules["oldest_undecided_seconds"]
    if undecided > LATE / SECOND:
        words = f"the oldest undecided instant is {span(round(undecided) * SECOND)} old"
        yield Alert(code="undecided", message=words, cure="headway status")
    if held := overview.schedules["attention"]:
        words = f"{_count(held, 'schedule')} cannot be planned"
        yield Alert(code="schedules_held", message=words, cure="headway schedules list")
    if overview.trouble == OK:
        yield from _queue_faults(overview)
    if overview.tenant is None:
        yield from _restored(overview)
        yield from _store_faults(overview.transaction)
        yield from _engine_faults(overview.nodes)
        yield from _lost_nodes(overview) if overview.trouble == OK else ()
        for node in overview.nodes:
            yield from _node_faults(node, overview.facts.kind)
        for words in dict.fromkeys(str(text) for node in overview.nodes for text in node.state.get("attention", ())):
            cure = "give one of the two another name, or remove the other, and restart"
            yield Alert(code="schedule_skipped", message=words, cure=cure)


def _shard_faults(overview: Overview) -> Iterator[Alert]:
    """Report shards without a leader: no scheduler decides their schedules."""
    leaders = [node.state for node in overview.schedulers if node.state.get("mode") == "leader"]
    numbers = sorted({state["shards"] for state in leaders if "shards" in state})
    if len(numbers) > 1:
        words = f"schedulers do not agree on the number of shards: {', '.join(map(str, numbers))}"
        yield Alert(code="shards_differ", message=words, cure="set HEADWAY_SCHEDULER_SHARDS to one number on all nodes")
    led = {lease.name for lease in overview.leases}
    idle = [shard for shard in range(max(numbers, default=0)) if f"{SHARD_PREFIX}{shard}" not in led]
    if idle:
        words = f"{len(idle)} of {max(numbers)} shards of the schedules have no leader"
        yield Alert(code="shards_without_leader", message=words, cure="headway doctor")


def _queue_faults(overview: Overview) -> Iterator[Alert]:
    pending, workers = overview.pending, [worker for worker in overview.workers if not worker.draining]
    if pending and not workers:
        absent = "all workers are draining" if overview.workers else "no worker is alive"
        yield Alert(
            code="no_worker", message=f"{absent}, and {_jobs_wait(pending)}", cure="headway worker --app MODULE:APP"
        )
    for queue in overview.queues:
        name, waiting = queue.name, queue.pending
        if queue.paused and waiting:
            yield Alert(
                code="queue_paused",
                message=f"queue {name} is paused, and {_jobs_wait(waiting)} in it",
                cure=f"headway queues resume {shlex.quote(name)}",
                target=name,
            )
        elif waiting and workers and not any(worker.takes(name) for worker in workers):
            yield Alert(
                code="queue_without_worker",
                message=f"no live worker takes from queue {name}, and {_jobs_wait(waiting)} in it",
                cure=f"headway worker --app MODULE:APP --queues {shlex.quote(name)}",
                target=name,
            )


def _restored(overview: Overview) -> Iterator[Alert]:
    if overview.restored:
        is_sure = any(sign.is_sure for sign in overview.restored)
        what = "the store was restored from a backup, or has lost data" if is_sure else "perhaps a backup was restored"
        words = f"{what}: {'; '.join(sign.words for sign in overview.restored)}"
        cure = "stop all nodes, run `headway doctor --restored`, start them again"
        yield Alert(code="restored", message=words, cure=cure)


def _store_faults(transaction: OpenTransaction | None) -> Iterator[Alert]:
    if transaction is not None and transaction.age_s >= TRANSACTION_S_MAX:
        age = span(round(transaction.age_s) * SECOND)
        words = f"a transaction has been open for {age} ({transaction.who}): dead rows pile up, and claims slow down"
        cure = "end that transaction, or set idle_in_transaction_session_timeout"
        yield Alert(code="long_transaction", message=words, cure=cure)


def _engine_faults(nodes: list[Node]) -> Iterator[Alert]:
    for engine in engines_of(nodes):
        if engine.troubles:
            names = ", ".join(name for name, _ in engine.troubles[:NAMES_SHOWN])
            more = len(engine.troubles) - NAMES_SHOWN
            some = names if more <= 0 else f"{names} and {more} more"
            what = f"{engine.name} {PARTS[engine.part][0]}does not answer"
            words = f"{what} {some} ({engine.troubles[0][1]}); {engine.meanwhile}"
            yield Alert(code="engine_away", message=words, cure="headway doctor", target=engine.name)


def _lost_nodes(overview: Overview) -> Iterator[Alert]:
    """Name the processes that ended without signing off, unless another one has replaced them since."""
    for node in overview.lost[:NAMES_SHOWN]:
        ago = span(max(0, overview.now - node.beat_at))
        roles = ", ".join(node.roles)
        words = f"{node.name} ({roles}) sent its last heartbeat {ago} ago and did not shut down cleanly"
        cure = "start it again if it should run; other nodes have taken over its work"
        yield Alert(code="node_lost", message=words, cure=cure, target=node.name)
    if (more := len(overview.lost) - NAMES_SHOWN) > 0:
        words = f"{_count(more, 'more node')} ended without a clean shutdown in the last hour"
        yield Alert(code="node_lost", message=words, cure="headway workers list")


def _node_faults(node: Node, kind: str) -> Iterator[Alert]:
    skew_s = node.state.get("skew_s", 0.0)
    if isinstance(skew_s, int | float) and abs(skew_s) > SKEW_S_MAX:
        side = "ahead of" if skew_s > 0 else "behind"
        by = span(round(abs(skew_s)) * SECOND)
        words = f"the clock of {node.name} is {by} {side} the store's: times in its log are wrong, decisions are not"
        yield Alert(code="clock_off", message=words, cure="run a time service (NTP) on that machine", target=node.name)
    is_settled = node.beat_at - node.started_at >= SETTLED_AFTER
    if kind == "postgresql" and is_settled and node.state.get("wake_ups") == "poll":
        words = f"{node.name} polls, because notifications do not reach it"
        yield Alert(code="polling", message=words, cure="headway doctor", target=node.name)
    for loop, idle_s in node.state.get("loops", {}).items():
        if idle_s > STANDSTILL_S:
            words = f"the loop {loop} of {node.name} has been stuck for {span(round(idle_s) * SECOND)}"
            yield Alert(code="standstill", message=words, cure="headway doctor", target=node.name)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _jobs_wait(number: int) -> str:
    return f"{_count(number, 'job')} {'waits' if number == 1 else 'wait'}"
