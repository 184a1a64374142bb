"""`headway status`: leaders, workers, pending jobs, late schedules, and what needs an operator."""

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Final

from headway.cli.output import Column, Output
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count, span
from headway.core.instants import SECOND, parse_instant
from headway.core.schedule_names import schedule_label
from headway.core.settings import mask_url
from headway.operations.engine_state import engines_of
from headway.operations.overview import DEAD_COUNTED_MAX, DEAD_SHOWN, LATE, SCHEDULER
from headway.operations.queues import PENDING
from headway.wire.limits import Limit
from headway.wire.nodes import Node, Worker
from headway.wire.overview import FullLimits, Shard, Stats, StoreState

LATE_SHOWN: Final = 3
FAILING_SHOWN: Final = 3
MISSED_SHOWN: Final = 3
FULL_SHOWN: Final = 3
HELD_MAX: Final = 1_000  # The server counts no further.
HOLDERS_SHOWN: Final = 5
ENGINE_PARTS: Final = {"coordination": "leases by", "live": "live by", "transport": "hints by"}
OUTCOMES: Final = ("fired", "skipped", "missed", "coalesced", "paused")


async def status(session: Session) -> None:
    """Show the leader, the workers, pending jobs, late schedules and faults."""
    async with session.operations() as operations:
        stats = await operations.monitoring.stats()
    if session.as_json:
        session.out.json(located(session, stats))
    else:
        tell(session.out, stats)


def located(session: Session, stats: Stats) -> Stats:
    """Add the address of the store if the statistics come from a local store."""
    if stats.store and session.server is None:
        stats.store.url = mask_url(session.settings().store)
    return stats


def attention(stats: Stats) -> Iterator[tuple[str, str]]:
    """Yield what needs an operator, each with the command to run next."""
    if stats.dead.tasks:
        many = stats.dead.total
        named = [f"{dead.task}: {dead.error}" if dead.error else dead.task for dead in stats.dead.tasks]
        more = "" if len(named) <= DEAD_SHOWN else f"; and {len(named) - DEAD_SHOWN} more tasks"
        at_least = "at least " if many >= DEAD_COUNTED_MAX else ""
        letters = count(many, "dead letter")
        yield f"{at_least}{letters} ({'; '.join(named[:DEAD_SHOWN])}{more})", "headway dead list"
    for failing in stats.failing[:FAILING_SHOWN]:
        label = schedule_label(failing.tenant, failing.schedule)
        words = f"schedule {label}: its last {failing.failed_in_a_row} jobs failed"
        yield words, f"headway jobs list --schedule {shlex.quote(label)}"
    if len(stats.failing) > FAILING_SHOWN:
        yield f"{len(stats.failing) - FAILING_SHOWN} more schedules fail in a row", "headway schedules list"
    for missed in stats.missed[:MISSED_SHOWN]:
        label = schedule_label(missed.tenant, missed.schedule)
        words = f"schedule {label}: {count(missed.instants, 'instant')} missed in the last day"
        yield words, f"headway schedules history {shlex.quote(label)}"
    if len(stats.missed) > MISSED_SHOWN:
        yield f"{len(stats.missed) - MISSED_SHOWN} more schedules missed instants", "headway schedules list"
    for late in stats.tenants.items[:LATE_SHOWN]:
        words = f"tenant {late.name} waits for {span(round(late.waited_seconds) * SECOND)}, {late.wait_slo} allowed"
        yield words, f"headway tenants show {shlex.quote(late.name)}"
    if (others := stats.tenants.total - LATE_SHOWN) > 0:
        words = "more tenant waits" if others == 1 else "more tenants wait"
        yield f"{others:,} {words} longer than allowed", "headway tenants list"


def tell(out: Output, stats: Stats) -> None:
    """Print the statistics for people: a few lines and the alerts; fewer for a token of one tenant."""
    rows = list((_system_facts(stats) | _work_facts(stats) | _late_facts(stats)).items())
    needs = [f"{text}  →  {command}" for text, command in attention(stats)]
    rows += [("attention" if index == 0 else "", need) for index, need in enumerate(needs)]
    out.table((Column("", "quiet"), Column("", wraps=True)), rows)
    for fault in stats.degraded:
        out.say(f"! {clean(fault)}", "warn")


def _system_facts(stats: Stats) -> dict[str, str]:
    if not stats.store:
        return {}
    return {
        "store": _store_text(stats.store, nodes_of(stats)),
        "leader": _leader_text(stats),
        **_engine_facts(nodes_of(stats)),
        "workers": workers_text(stats.workers or []),
    }


def _work_facts(stats: Stats) -> dict[str, str]:
    return {
        "jobs": _jobs_text(stats),
        **_limit_facts(stats.limits),
        "schedules": _schedules_text(stats),
        "last 24 h": _outcomes_text(stats),
    }


def _limit_facts(limits: FullLimits) -> dict[str, str]:
    """Name the limits for which most jobs wait."""
    texts = [clean(full_text(limit)) for limit in limits.items[:FULL_SHOWN]]
    if (more := limits.total - FULL_SHOWN) > 0:
        texts.append(f"and {more:,} more")
    return {"full limits": " · ".join(texts)} if texts else {}


def full_text(limit: Limit) -> str:
    """Describe a limit for which jobs wait: `queue:media 40 of 40, 3 lanes wait`."""
    rate = f" at {limit.rate}" if limit.concurrency is None else ""
    return f"{limit.name} {used_text(limit)}{rate}, {waiting_text(limit)}"


def used_text(limit: Limit) -> str:
    """Describe how many jobs run of those that a limit allows."""
    if limit.name.endswith("*"):
        return "each name"
    running = f"{limit.running or 0:,}"
    return running if limit.concurrency is None else f"{running} of {limit.concurrency:,}"


def waiting_text(limit: Limit) -> str:
    """Describe how many lanes wait for a limit."""
    if not limit.held:
        return "none waits"
    at_least = "at least " if limit.held >= HELD_MAX else ""
    return f"{at_least}{count(limit.held, 'lane')} {'waits' if limit.held == 1 else 'wait'}"


def nodes_of(stats: Stats) -> list[Node]:
    """Return the live nodes, as far as the caller may see them."""
    return stats.nodes or []


def schedulers_of(stats: Stats) -> list[Node]:
    """Return the nodes that decide schedules."""
    return [node for node in nodes_of(stats) if SCHEDULER in node.roles]


def _late_facts(stats: Stats) -> dict[str, str]:
    """Name the schedules that are furthest behind, and how far each is decided."""
    late = [coming for coming in stats.schedules.coming if coming.undecided_seconds > LATE / SECOND]
    texts = [
        f"{clean(schedule_label(coming.tenant, coming.name))}"
        f" undecided for {span(round(coming.undecided_seconds * SECOND))}"
        f" (decided through {coming.decided_through})"
        for coming in late[:LATE_SHOWN]
    ]
    return {"late": "; ".join(texts)} if texts else {}


def _store_text(store: StoreState, nodes: list[Node]) -> str:
    modes = sorted({str(node.state.get("wake_ups", "?")) for node in nodes})
    words = {"notify": "LISTEN/NOTIFY", "watch": "watching the file", "poll": "polling"}
    wake_ups = ", ".join(words.get(mode, mode) for mode in modes) or "nobody listens"
    return f"{store.kind} {store.version}  ok ({store.latency_ms:.1f} ms)  wake-ups: {wake_ups}"


def _leader_text(stats: Stats) -> str:
    schedulers, shards = schedulers_of(stats), stats.shards or []
    alive = f"{count(len(schedulers), 'scheduler')} alive"
    if {node.state.get("mode") for node in schedulers} == {"lock"}:
        return f"none: lock mode, all decide  ({alive})"
    if not stats.leader:
        return f"none  ({alive})"
    if len(shards) > 1:
        return f"{_shards_text(shards)}  ({alive})"
    leader = stats.leader
    since = span(parse_instant(stats.at) - parse_instant(leader.since))
    return f"{leader.name}  term {leader.token}  since {since}  ({alive})"


def _shards_text(shards: list[Shard]) -> str:
    """Describe how the shards are spread; name the nodes if they are few."""
    held = Counter(shard.name for shard in shards)
    if len(held) > HOLDERS_SHOWN:
        return f"{len(shards)} shards led by {len(held)} nodes, {min(held.values())} to {max(held.values())} each"
    return f"{len(shards)} shards: " + " · ".join(f"{clean(name)} {number}" for name, number in sorted(held.items()))


def _engine_facts(nodes: list[Node]) -> dict[str, str]:
    """Describe the servers beside the store."""
    texts: dict[str, list[str]] = {}
    for engine in engines_of(nodes):
        state = "ok" if not engine.troubles else clean(engine.words)
        text = f"{clean(engine.name)}  {state}  ({count(engine.nodes, 'node')})"
        texts.setdefault(ENGINE_PARTS[engine.part], []).append(text)
    return {part: "; ".join(found) for part, found in texts.items()}


def workers_text(workers: list[Worker]) -> str:
    """Describe how many workers there are and how busy they are."""
    if not workers:
        return "none alive"
    draining = sum(worker.draining for worker in workers)
    slots, running = sum(worker.slots for worker in workers), sum(worker.running for worker in workers)
    parts = [f"{len(workers) - draining:,} alive"]
    if draining:
        parts.append(f"{draining:,} draining")
    return " · ".join([*parts, f"{running:,} of {count(slots, 'slot')} busy"])


def _jobs_text(stats: Stats) -> str:
    pending = stats.jobs.get(PENDING, 0)
    age = f" (oldest {span(round(stats.oldest_pending_seconds) * SECOND)})" if pending else ""
    words = {"RUNNING": "running", "SCHEDULED": "scheduled", "RETRYING": "retrying", "BLOCKED": "blocked"}
    others = [f"{number:,} {word}" for status, word in words.items() if (number := stats.jobs.get(status, 0))]
    return " · ".join([f"{pending:,} waiting{age}", *others])


def _schedules_text(stats: Stats) -> str:
    figures, now = stats.schedules, parse_instant(stats.at)
    on = figures.total - figures.paused
    held = f" · {figures.attention:,} held" if figures.attention else ""
    next_at = None if figures.next_at is None else parse_instant(figures.next_at)
    coming = f" · next in {span(next_at - now)}" if next_at and next_at > now else ""
    return f"{on:,} on · {figures.paused:,} paused · {figures.late:,} late{held}{coming}"


def _outcomes_text(stats: Stats) -> str:
    return " · ".join(f"{stats.schedules.last_day.get(outcome, 0):,} {outcome}" for outcome in OUTCOMES)


app = new_command(status)
