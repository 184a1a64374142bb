"""What needs somebody: every fault of the machinery and every piece of work that stays undone, with words and a cure.

Pure: it looks at a `Situation` that was read before. `faults` are about the machinery, `alerts` are those and what
became of the work, the gravest first.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headway.core.instants import SECOND, span
from headway.core.nodes import Node
from headway.operations.engine_state import PARTS, engines_of
from headway.operations.overview import LATE, NAMES_SHOWN, Situation
from headway.operations.store_trouble import AWAY, FULL, OK, READ_ONLY, SHARD_PREFIX
from headway.store.metrics import OpenTransaction
from headway.wire.shapes import Shape

STANDSTILL_S: Final = 30.0
TRANSACTION_S_MAX: Final = 120.0
SKEW_S_MAX: Final = 1.0
SETTLED_AFTER: Final = 5 * SECOND  # A node says first that it lives, and begins to listen then.


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that needs somebody: a code for programs, words that stand alone, and the command that leads on."""

    code: str
    words: str
    cure: str
    target: str | None = None
    tenant: str | None = None  # Whose the target is, where it is a schedule.

    def to_dict(self) -> Shape:
        """Write the JSON form."""
        whose = {} if self.tenant is None else {"tenant": self.tenant}
        return {"code": self.code, "target": self.target, **whose, "message": self.words, "cure": self.cure}


_TROUBLES: Final = {
    READ_ONLY: Alert(
        code="store_read_only",
        words="the store is read-only: nothing is decided, started or recorded until it takes writes again",
        cure="connect to the primary, or end its read-only phase; everything goes on by itself then",
    ),
    FULL: Alert(
        code="store_full",
        words="the store has no room left: nothing is decided, started or recorded until it takes writes again",
        cure="free space on the disk of the store; everything goes on by itself then",
    ),
    AWAY: Alert(
        code="store_stuck",
        words="the store answers, but takes no writes: a lock on a table, or a standby that confirms no commits",
        cure="end the transaction that holds the lock, or see to the standby",
    ),
}


def alerts(situation: Situation) -> Iterator[Alert]:
    """Say everything that needs somebody now, the gravest first."""
    for fault in faults(situation):
        if fault.code != "schedules_held":  # Each of them is named below.
            yield fault
    for ref, reason in situation.held:
        yield Alert(
            code="schedule_held",
            words=f"schedule {ref} cannot be planned: {reason}",
            cure=f"headway schedules show {shlex.quote(str(ref))}",
            target=ref.name,
            tenant=ref.tenant,
        )
    for ref, number in situation.failing:
        yield Alert(
            code="schedule_failing",
            words=f"schedule {ref}: its last {number} jobs failed",
            cure=f"headway jobs list --schedule {shlex.quote(str(ref))}",
            target=ref.name,
            tenant=ref.tenant,
        )
    for missed in situation.missed:
        yield Alert(
            code="schedule_missed",
            words=f"schedule {missed.label}: {_count(missed.instants, 'instant')} missed in the last day",
            cure=f"headway schedules history {shlex.quote(missed.label)}",
            target=missed.schedule,
            tenant=missed.tenant,
        )
    for row in situation.dead:
        error = f": {row['error']}" if row.get("error") else ""
        yield Alert(
            code="dead_letters",
            words=f"{_count(row['letters'], 'dead letter')} of {row['task']}{error}",
            cure=f"headway dead list --task {shlex.quote(row['task'])}",
            target=row["task"],
        )
    yield from _undelivered(situation.undelivered)


def _undelivered(number: int) -> Iterator[Alert]:
    if number:
        words = f"{_count(number, 'webhook')} could not be delivered in the last day"
        yield Alert(code="undelivered", words=words, cure="headway webhooks deliveries --status FAILED")


def faults(situation: Situation) -> Iterator[Alert]:
    """Say what is not as it should be with the machinery, each in a sentence that stands alone."""
    if situation.trouble != OK:  # Nobody can write that it lives, so nobody knows who does.
        yield _TROUBLES[situation.trouble]
    elif not situation.schedulers:
        yield Alert(code="no_scheduler", words="no scheduler is alive", cure="headway scheduler")
    elif not situation.leases and any(node.state.get("mode") == "leader" for node in situation.schedulers):
        yield Alert(code="no_leader", words="schedulers are alive, but none of them leads", cure="headway doctor")
    else:
        yield from _shard_faults(situation)
    undecided = situation.schedules["oldest_undecided_seconds"]
    if undecided > LATE / SECOND:
        words = f"the oldest undecided instant is {span(round(undecided) * SECOND)} old"
        yield Alert(code="undecided", words=words, cure="headway status")
    if held := situation.schedules["attention"]:
        words = f"{_count(held, 'schedule')} cannot be planned"
        yield Alert(code="schedules_held", words=words, cure="headway schedules list")
    if situation.trouble == OK:
        yield from _queue_faults(situation)
    if situation.tenant is None:
        yield from _restored(situation)
        yield from _store_faults(situation.transaction)
        yield from _engine_faults(situation.nodes)
        yield from _lost_nodes(situation) if situation.trouble == OK else ()
        for node in situation.nodes:
            yield from _node_faults(node, situation.facts.kind)
        for words in dict.fromkeys(str(text) for node in situation.nodes for text in node.state.get("attention", ())):
            cure = "give one of the two another name, or remove the other, and restart"
            yield Alert(code="schedule_skipped", words=words, cure=cure)


def _shard_faults(situation: Situation) -> Iterator[Alert]:
    """A shard that nobody leads is a part of the schedules that nobody decides."""
    leaders = [node.state for node in situation.schedulers if node.state.get("mode") == "leader"]
    numbers = sorted({state["shards"] for state in leaders if "shards" in state})
    if len(numbers) > 1:
        words = f"schedulers do not agree on the number of shards: {', '.join(map(str, numbers))}"
        yield Alert(code="shards_differ", words=words, cure="set HEADWAY_SCHEDULER_SHARDS to one number on all nodes")
    led = {lease.name for lease in situation.leases}
    idle = [shard for shard in range(max(numbers, default=0)) if f"{SHARD_PREFIX}{shard}" not in led]
    if idle:
        words = f"{len(idle)} of {max(numbers)} shards of the schedules have no leader"
        yield Alert(code="shards_without_leader", words=words, cure="headway doctor")


def _queue_faults(situation: Situation) -> Iterator[Alert]:
    pending, workers = situation.pending, [worker for worker in situation.workers if not worker.draining]
    if pending and not workers:
        absent = "all workers are draining" if situation.workers else "no worker is alive"
        yield Alert(
            code="no_worker", words=f"{absent}, and {_jobs_wait(pending)}", cure="headway worker --app MODULE:APP"
        )
    for queue in situation.queues:
        name, waiting = queue["name"], queue["pending"]
        if queue["paused"] and waiting:
            yield Alert(
                code="queue_paused",
                words=f"queue {name} is paused, and {_jobs_wait(waiting)} in it",
                cure=f"headway queues resume {shlex.quote(name)}",
                target=name,
            )
        elif waiting and workers and not any(worker.takes(name) for worker in workers):
            yield Alert(
                code="queue_without_worker",
                words=f"no live worker takes from queue {name}, and {_jobs_wait(waiting)} in it",
                cure=f"headway worker --app MODULE:APP --queues {shlex.quote(name)}",
                target=name,
            )


def _restored(situation: Situation) -> Iterator[Alert]:
    if situation.restored:
        is_sure = any(sign.is_sure for sign in situation.restored)
        what = "the store was restored from a backup, or has lost data" if is_sure else "perhaps a backup was restored"
        words = f"{what}: {'; '.join(sign.words for sign in situation.restored)}"
        cure = "stop all nodes, run `headway doctor --restored`, start them again"
        yield Alert(code="restored", words=words, cure=cure)


def _store_faults(transaction: OpenTransaction | None) -> Iterator[Alert]:
    if transaction is not None and transaction.age_s >= TRANSACTION_S_MAX:
        age = span(round(transaction.age_s) * SECOND)
        yield Alert(
            code="long_transaction",
            words=f"a transaction has been open for {age} ({transaction.who}): dead rows pile up, and claims slow down",
            cure="end it, or set idle_in_transaction_session_timeout",
        )


def _engine_faults(nodes: list[Node]) -> Iterator[Alert]:
    for engine in engines_of(nodes):
        if engine.troubles:
            names = ", ".join(name for name, _ in engine.troubles[:NAMES_SHOWN])
            more = len(engine.troubles) - NAMES_SHOWN
            some = names if more <= 0 else f"{names} and {more} more"
            what = f"{engine.name} {PARTS[engine.part][0]}does not answer"
            words = f"{what} {some} ({engine.troubles[0][1]}); {engine.meanwhile}"
            yield Alert(code="engine_away", words=words, cure="headway doctor", target=engine.name)


def _lost_nodes(situation: Situation) -> Iterator[Alert]:
    """Name the processes that ended without a word, unless another one has taken their name and place since."""
    for node in situation.lost[:NAMES_SHOWN]:
        ago = span(max(0, situation.now - node.beat_at))
        roles = ", ".join(node.roles)
        words = f"{node.name} ({roles}) was last heard of {ago} ago and did not say goodbye"
        cure = "start it again if it should run; what it had is taken over by others"
        yield Alert(code="node_lost", words=words, cure=cure, target=node.name)
    if (more := len(situation.lost) - NAMES_SHOWN) > 0:
        words = f"{_count(more, 'more node')} ended without a word in the last hour"
        yield Alert(code="node_lost", words=words, cure="headway workers list")


def _node_faults(node: Node, kind: str) -> Iterator[Alert]:
    skew_s = node.state.get("skew_s", 0.0)
    if isinstance(skew_s, int | float) and abs(skew_s) > SKEW_S_MAX:
        side = "ahead of" if skew_s > 0 else "behind"
        by = span(round(abs(skew_s)) * SECOND)
        words = f"the clock of {node.name} is {by} {side} the store's: its log lines are off, decisions are not"
        yield Alert(code="clock_off", words=words, cure="run a time service (NTP) on that machine", target=node.name)
    is_settled = node.beat_at - node.started_at >= SETTLED_AFTER
    if kind == "postgresql" and is_settled and node.state.get("wake_ups") == "poll":
        words = f"{node.name} polls: notifications do not reach it"
        yield Alert(code="polling", words=words, cure="headway doctor", target=node.name)
    for loop, idle_s in node.state.get("loops", {}).items():
        if idle_s > STANDSTILL_S:
            words = f"the loop {loop} of {node.name} has stood still for {span(round(idle_s) * SECOND)}"
            yield Alert(code="standstill", words=words, cure="headway doctor", target=node.name)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _jobs_wait(number: int) -> str:
    return f"{_count(number, 'job')} {'waits' if number == 1 else 'wait'}"
