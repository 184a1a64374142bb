"""`headway status`: who leads, who works, what waits, what is late, and what needs somebody."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from headway.cli.output import Column, Output
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count, span
from headway.core.instants import SECOND
from headway.core.nodes import Lease
from headway.core.schedule_names import schedule_label
from headway.operations.engine_state import engines_of
from headway.operations.overview import DEAD_COUNTED_MAX, DEAD_SHOWN, LATE, Situation
from headway.operations.worker_state import Worker
from headway.wire.shapes import stamp

LATE_SHOWN: Final = 3
FAILING_SHOWN: Final = 3
MISSED_SHOWN: Final = 3
HOLDERS_SHOWN: Final = 5
ENGINE_PARTS: Final = {"coordination": "leases by", "live": "live by", "transport": "hints by"}
OUTCOMES: Final = ("fired", "skipped", "missed", "coalesced", "paused")


async def status(session: Session) -> None:
    """Show who leads, what waits, what is late, and what is not as it should be."""
    async with session.open() as desk:
        situation = await desk.situation()
    if session.as_json:
        session.out.json(desk.situation_shape(situation))
    else:
        tell(session.out, situation, desk.degraded(situation))


def attention(situation: Situation) -> Iterator[tuple[str, str]]:
    """Say what needs somebody, each with the command that leads on."""
    if situation.dead:
        many = situation.dead_letters
        named = [f"{row['task']}: {row['error']}" if row.get("error") else row["task"] for row in situation.dead]
        more = "" if len(named) <= DEAD_SHOWN else f"; and {len(named) - DEAD_SHOWN} more tasks"
        at_least = "at least " if many >= DEAD_COUNTED_MAX else ""
        letters = count(many, "dead letter")
        yield f"{at_least}{letters} ({'; '.join(named[:DEAD_SHOWN])}{more})", "headway dead list"
    for ref, number in situation.failing[:FAILING_SHOWN]:
        yield f"schedule {ref}: its last {number} jobs failed", f"headway jobs list --schedule {shlex.quote(str(ref))}"
    if len(situation.failing) > FAILING_SHOWN:
        yield f"{len(situation.failing) - FAILING_SHOWN} more schedules fail in a row", "headway schedules list"
    for missed in situation.missed[:MISSED_SHOWN]:
        words = f"schedule {missed.label}: {count(missed.instants, 'instant')} missed in the last day"
        yield words, f"headway schedules history {shlex.quote(missed.label)}"
    if len(situation.missed) > MISSED_SHOWN:
        yield f"{len(situation.missed) - MISSED_SHOWN} more schedules missed instants", "headway schedules list"


def tell(out: Output, situation: Situation, degraded: Iterable[str]) -> None:
    """Write the situation for people: a few lines and what needs them; half of it for who sees one tenant only."""
    machinery = {
        "store": _store_text(situation),
        "leader": _leader_text(situation),
        **_engine_facts(situation),
        "workers": workers_text(situation.workers),
    }
    left = (machinery if situation.tenant is None else {}) | {
        "jobs": _jobs_text(situation),
        "schedules": _schedules_text(situation),
        "last 24 h": _outcomes_text(situation),
    }
    rows = list((left | _late_facts(situation)).items())
    needs = [f"{text}  →  {command}" for text, command in attention(situation)]
    rows += [("attention" if index == 0 else "", need) for index, need in enumerate(needs)]
    out.table((Column("", "quiet"), Column("", wraps=True)), rows)
    for fault in degraded:
        out.say(f"! {clean(fault)}", "warn")


def _late_facts(situation: Situation) -> dict[str, str]:
    """Name the schedules that are furthest behind, and how far each is decided."""
    late = [coming for coming in situation.schedules["coming"] if situation.now - coming["next_at"] > LATE]
    texts = [
        f"{clean(schedule_label(coming['tenant'], coming['name']))}"
        f" undecided for {span(situation.now - coming['next_at'])}"
        f" (decided through {stamp(coming['decided_through'])})"
        for coming in late[:LATE_SHOWN]
    ]
    return {"late": "; ".join(texts)} if texts else {}


def _store_text(situation: Situation) -> str:
    modes = sorted({str(node.state.get("wake_ups", "?")) for node in situation.nodes})
    words = {"notify": "LISTEN/NOTIFY", "watch": "watching the file", "poll": "polling"}
    wake_ups = ", ".join(words.get(mode, mode) for mode in modes) or "nobody listens"
    latency = f"{situation.latency_s * 1000:.1f} ms"
    return f"{situation.facts.kind} {situation.facts.version}  ok ({latency})  wake-ups: {wake_ups}"


def _leader_text(situation: Situation) -> str:
    alive = f"{count(len(situation.schedulers), 'scheduler')} alive"
    modes = {node.state.get("mode") for node in situation.schedulers}
    if modes == {"lock"}:
        return f"none: lock mode, all decide  ({alive})"
    if situation.leader is None:
        return f"none  ({alive})"
    if len(situation.leases) > 1:
        return f"{_shards_text(situation.leases)}  ({alive})"
    lease = situation.leader
    return f"{lease.holder_name}  term {lease.token}  since {span(situation.now - lease.since)}  ({alive})"


def _shards_text(leases: list[Lease]) -> str:
    """Say how the shards are spread, by the names of the nodes as long as these are few."""
    held = Counter(lease.holder_name for lease in leases)
    if len(held) > HOLDERS_SHOWN:
        return f"{len(leases)} shards led by {len(held)} nodes, {min(held.values())} to {max(held.values())} each"
    return f"{len(leases)} shards: " + " · ".join(f"{clean(name)} {number}" for name, number in sorted(held.items()))


def _engine_facts(situation: Situation) -> dict[str, str]:
    """Name the servers beside the store, and what they do."""
    texts: dict[str, list[str]] = {}
    for engine in engines_of(situation.nodes):
        state = "ok" if not engine.troubles else clean(engine.words)
        text = f"{clean(engine.name)}  {state}  ({count(engine.nodes, 'node')})"
        texts.setdefault(ENGINE_PARTS[engine.part], []).append(text)
    return {part: "; ".join(found) for part, found in texts.items()}


def workers_text(workers: list[Worker]) -> str:
    """Say how many workers there are and how busy they are."""
    if not workers:
        return "none alive"
    draining = sum(worker.draining for worker in workers)
    slots, running = sum(worker.slots for worker in workers), sum(worker.running for worker in workers)
    parts = [f"{len(workers) - draining:,} alive"]
    if draining:
        parts.append(f"{draining:,} draining")
    return " · ".join([*parts, f"{running:,} of {count(slots, 'slot')} busy"])


def _jobs_text(situation: Situation) -> str:
    pending = sum(queue["pending"] for queue in situation.queues)
    oldest = max((queue["oldest_age_seconds"] for queue in situation.queues), default=0.0)
    age = f" (oldest {span(round(oldest) * SECOND)})" if pending else ""
    words = {"RUNNING": "running", "SCHEDULED": "scheduled", "RETRYING": "retrying", "BLOCKED": "blocked"}
    others = [f"{number:,} {word}" for status, word in words.items() if (number := situation.waiting.get(status, 0))]
    return " · ".join([f"{pending:,} waiting{age}", *others])


def _schedules_text(situation: Situation) -> str:
    numbers = situation.schedules
    on = numbers["total"] - numbers["paused"]
    held = f" · {numbers['attention']:,} held" if numbers["attention"] else ""
    next_at = numbers["next_at"]
    coming = f" · next in {span(next_at - situation.now)}" if next_at and next_at > situation.now else ""
    return f"{on:,} on · {numbers['paused']:,} paused · {numbers['late']:,} late{held}{coming}"


def _outcomes_text(situation: Situation) -> str:
    numbers = situation.schedules["last_day"]
    return " · ".join(f"{numbers.get(outcome, 0):,} {outcome}" for outcome in OUTCOMES)


app = new_command(status)
