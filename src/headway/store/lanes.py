"""The claim where tenants share a queue, or limits hold: fair between tenants, within all limits, in one transaction.

The steps, each a statement, because a statement that waited for a lock still sees what was committed before it began:

    read the revision of the limits, which nobody can change until the claim is committed
    take the rings of lanes that got jobs; if there is only one such lane, claim from it, and that is all (`only_lane`)
    open these lanes, and those whose gate got a free place
    take the tenants that have used least of the queue, and their lanes
    lock their gates; count what runs under them
    decide (`core/fairness.py`), claim, and write down who was served and who waits at which gate

A lane waits at one gate. Lanes that would wait at the gate of their queue stay open instead, so that its next free
place goes to the tenant that has used least; only the lane `USUAL` says that the queue waits there.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headway.core.fairness import COST_DEFAULT, ClaimPlan, Share, plan_claim
from headway.core.instants import MILLISECOND, Duration, Instant
from headway.core.jobs import Claimed
from headway.core.lifecycle import APART_MAX
from headway.core.limits import (
    BITS,
    Lane,
    Limit,
    Rules,
    is_ahead_of_clock,
    kind_of,
    rate_after,
    rate_allows,
    rate_counts_until,
    value_of,
)
from headway.core.ports import LaneClaim
from headway.core.tenants import DEFAULT_TENANT
from headway.store.claim_request import ClaimRequest, lane_columns, lane_of
from headway.store.job_rows import count_in, read_claimed
from headway.store.only_lane import claim_only, only_lane
from headway.store.transaction import Row, Rows, StatementCall, Transaction, as_json, call

RINGS_MAX: Final = 1_000
SHARES_MAX: Final = 64
LANES_MAX: Final = 16  # Of a tenant in one claim. More lanes make a claim slower than it takes more jobs.
ROUNDS_MAX: Final = 3
RELABEL_MAX: Final = 100  # Jobs that a claim puts into the lane of their task.
AHEAD_MAX: Final = 20  # Of the first jobs of a lane, those that a claim looks at for this.
FORCE_LOOK: Final = 500 * MILLISECOND  # How soon to look again at a limit that is not in force, if its author died.
_TENANT: Final = 6  # The place of the tenant among the columns of a claimed job.


class ClaimedInVain(Exception):
    """A claim that took no jobs and would write nothing new, so it is rolled back.

    Every commit wakes the workers that watch a SQLite file, also the one that made it: they would never stop claiming.
    """

    def __init__(self, claim: LaneClaim) -> None:
        super().__init__("nothing may start now")
        self.claim = claim


@dataclass(slots=True)
class _Gate:
    """A gate that this claim has locked."""

    limit: Limit
    state: str
    running: int = 0
    started: int = 0
    next_at: Instant | None = None  # When its rate allows the next start.

    def free(self, now: Instant, wanted: int) -> int:
        """Return how many more may start."""
        if not self.limit.in_force:
            self.next_at = now + FORCE_LOOK
            return 0
        free = wanted
        if self.limit.concurrency is not None:
            free = min(free, self.limit.concurrency - self.running - self.started)
        if self.limit.rate is not None:
            allowed = rate_allows(self.limit, rate_after(self.limit, self.state, now, self.started), now, max(0, free))
            free, self.next_at = allowed.granted, allowed.next_at
        return max(0, free)


class LaneClaims:
    """Claim by lanes. Keeps the limits as they were last read; the store tells when they have changed."""

    def __init__(self) -> None:
        self._rules = Rules(revision=-1)

    def claim(self, request: ClaimRequest) -> Transaction[LaneClaim]:
        """Claim jobs of a queue, those of the tenant that has used least first; raise `ClaimedInVain` to roll back."""
        row = (yield call("limits_revision", queue=request.queue, needs=request.needs))[0]
        if row["is_paused"]:
            return LaneClaim()
        rules = yield from self.rules(row["revision"])
        is_gated = rules.find(f"queue:{request.queue}") is not None
        rings = yield call("take_rings", queue=request.queue, limit=RINGS_MAX)
        lane = None if request.needs else only_lane(rings, row, request, rules)
        if lane is not None:
            jobs, is_left = yield from claim_only(lane, request, held=rules.bits)
            if is_left:
                yield from open_rung(request, rings, has_usual=False, opens_usual=False)
            return LaneClaim(jobs=jobs, has_lanes=is_left, has_more=is_left)
        has_usual = row["has_usual"] == 1 and not request.needs
        opened = yield from open_rung(request, rings, has_usual=has_usual, opens_usual=is_gated)
        claim = _Claim(request, rules, now=row["now"], opened=opened)
        claim.classes = frozenset(ring["needs"] for ring in rings if ring["needs"] not in ("", request.needs))
        claim.has_moved, claim.has_more = bool(rings), len(rings) == RINGS_MAX
        return (yield from claim.run())

    def claim_apart(self, job_id: str, *, node: str, lease: Duration) -> Transaction[tuple[Claimed, Duration] | None]:
        """Claim a suspect, within all limits; return it and for how long it runs apart."""
        found = yield call("suspect", id=job_id)
        if not found:
            return None
        queue, needs = found[0]["queue"], found[0]["needs"]
        row = (yield call("limits_revision", queue=queue, needs=needs))[0]
        rules = yield from self.rules(row["revision"])
        lane = _lane_of_suspect(found[0], rules)
        gates, now = yield from _lock_gates(rules.gates(queue, lane), rules)
        if row["is_paused"] or not all(gate.free(now, 1) for gate in gates.values()):
            return None
        rows = yield call("claim_apart", id=job_id, node=node, lease=lease, held=rules.bits)
        if not rows:
            return None
        for gate in gates.values():
            gate.started = 1
        *columns, _, apart_for, started_at = rows[0]
        yield from _write_rates(gates, max(now, started_at))
        is_charged = needs or lane != USUAL or not rules.limited_queues().isdisjoint({queue, "*"})
        share = lane.tenant if is_charged else None
        claimed = read_claimed(columns, gates=_counting(gates), share=share)
        if needs:
            claimed = msgspec.structs.replace(claimed, needs=needs)
        return claimed, count_in(apart_for, APART_MAX)

    def startable(self, suspects: Rows) -> Transaction[Rows]:
        """Return the suspects that limits let start now, so that no worker makes room for another one."""
        rules = Rules(map(read_limit, (yield call("limits"))))
        gates_of = {row["id"]: rules.gates(row["queue"], _lane_of_suspect(row, rules)) for row in suspects}
        names = sorted({name for names in gates_of.values() for name in names})
        if not names:
            return suspects
        states = {
            row["name"]: row["state"]
            for row in (yield call("gate_states", gates=as_json([{"gate": name} for name in names])))
        }
        counts = yield _count_running(names)
        free = {row["gate"] for row in counts if _gate(row, rules, states.get(row["gate"], "")).free(row["now"], 1)}
        return [row for row in suspects if free.issuperset(gates_of[row["id"]])]

    def rules(self, revision: int) -> Transaction[Rules]:
        """Return the limits, read again if they have changed."""
        if self._rules.revision != revision:
            self._rules = Rules(map(read_limit, (yield call("limits"))), revision)
        return self._rules


def read_limit(row: Row) -> Limit:
    """Read a limit from a row."""
    return Limit(
        name=row["name"],
        concurrency=row["concurrency"],
        rate=row["rate"],
        per=row["per"],
        burst=row["burst"],
        owner=row["owner"],
        in_force=row["in_force"] == 1,
    )


def _lane_of_suspect(row: Row, rules: Rules) -> Lane:
    """Return the lane of a suspect, also if its job was enqueued before there was a limit of its task."""
    is_limited = rules.find(f"task:{row['task']}") is not None
    return Lane(row["tenant"], row["limit_key"], row["task"] if is_limited else "")


def _lock_gates(names: Collection[str], rules: Rules) -> Transaction[tuple[dict[str, _Gate], Instant]]:
    """Lock gates, then count what runs under them in a new statement, which sees what others committed meanwhile."""
    if not names:
        return {}, 0
    rows = yield call("lock_gates", gates=as_json([{"gate": name} for name in sorted(names)]))
    states = {row["name"]: row["state"] for row in rows}
    counts = yield _count_running(sorted(names))
    return {row["gate"]: _gate(row, rules, states[row["gate"]]) for row in counts}, counts[0]["now"]


def _count_running(names: Sequence[str]) -> StatementCall:
    gates = [{"gate": name, "kind": kind_of(name), "value": value_of(name)} for name in names]
    return call("count_running", gates=as_json(gates))


def _gate(row: Row, rules: Rules, state: str) -> _Gate:
    limit = rules.find(row["gate"])
    assert limit is not None
    return _Gate(limit, state, row["running"])


def _counting(gates: Mapping[str, _Gate]) -> tuple[str, ...]:
    """Return the gates that count attempts while they run; a rate only counts their starts."""
    return tuple(name for name, gate in gates.items() if gate.limit.concurrency is not None)


def _new_rates(gates: Mapping[str, _Gate], now: Instant) -> list[dict[str, object]]:
    rows = []
    for name, gate in gates.items():
        if gate.limit.rate is not None and (gate.started or is_ahead_of_clock(gate.limit, gate.state, now)):
            state = rate_after(gate.limit, gate.state, now, gate.started)
            rows.append({"gate": name, "to_state": state, "counts_until": rate_counts_until(gate.limit, state, now)})
    return rows


def _write_rates(gates: Mapping[str, _Gate], now: Instant) -> Transaction[None]:
    starts = _new_rates(gates, now)
    if starts:
        yield call("mark_gates", gates=as_json(starts))


def open_rung(request: ClaimRequest, rings: Rows, *, has_usual: bool, opens_usual: bool) -> Transaction[set[Lane]]:
    """Open the lanes of a queue that got jobs; return those with these needs that were closed.

    Jobs of the lane `USUAL` without needs do not ring, so every claim looks for them.
    """
    rung = {(request.queue, ring["needs"], ring["tenant"], ring["limit_key"], ring["limited_task"]) for ring in rings}
    if has_usual or opens_usual:
        rung.add((request.queue, request.needs, DEFAULT_TENANT, "", ""))
    opened = yield from _open(rung, [], has_usual=has_usual)
    return {lane_of(row) for row in opened if row["needs"] == request.needs}


def reopen(lanes: Collection[tuple[str, ...]]) -> Transaction[frozenset[str]]:
    """Open lanes that wait at gates; return their queues."""
    return frozenset(row["queue"] for row in (yield from _open([], lanes)))


def _open(
    rung: Collection[tuple[str, ...]], held: Collection[tuple[str, ...]], *, has_usual: bool = True
) -> Transaction[Rows]:
    """Lock the shares in their order, then open their lanes; return those that were closed or waited at a gate."""
    shares = sorted({key[:3] for key in (*rung, *held)})
    if not shares:
        return []
    rows = as_json([_named(_SHARE, key) for key in shares])
    yield call("open_shares", shares=rows, cost=COST_DEFAULT, has_usual=int(has_usual))
    opened: list[Row] = []
    if rung:
        opened += yield call("open_lanes", lanes=as_json([_named(_LANE, key) for key in sorted(rung)]))
    if held:
        opened += yield call("reopen_lanes", lanes=as_json([_named(_HELD_LANE, key) for key in sorted(held)]))
    return opened


_SHARE: Final = ("queue", "needs", "tenant")
_LANE: Final = ("queue", "needs", "tenant", "limit_key", "limited_task")
_HELD_LANE: Final = ("in_queue", "for_needs", "of_tenant", "of_key", "of_task")


def _named(columns: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    return dict(zip(columns, values, strict=True))


USUAL: Final = Lane(DEFAULT_TENANT)


@dataclass(slots=True)
class _Claim:
    """One claim: what it has read and locked, and what it has taken."""

    request: ClaimRequest
    rules: Rules
    gates: dict[str, _Gate] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    taken: Counter[Lane] = field(default_factory=Counter)
    jobs: list[Claimed] = field(default_factory=list)
    held: dict[Lane, str] = field(default_factory=dict)
    known: dict[Lane, tuple[str, ...]] = field(default_factory=dict)  # The gates of each lane.
    short: set[Lane] = field(default_factory=set)  # Lanes that gave less than was asked.
    left: set[Lane] = field(default_factory=set)  # Those of them that have jobs nevertheless,
    in_vain: set[str] = field(default_factory=set)  # and the tenants of those with jobs that this worker cannot take.
    opened: set[Lane] = field(default_factory=set)  # Lanes that were closed before this claim.
    waited: dict[Lane, tuple[str | None, Instant | None]] = field(default_factory=dict)  # As they are written.
    now: Instant = 0
    classes: frozenset[str] = frozenset()
    waited_for: Duration | None = None
    has_more: bool = False
    has_moved: bool = False  # Whether rings were taken, or jobs put into other lanes.

    def run(self) -> Transaction[LaneClaim]:
        yield from self._read_shares()
        names = {name for share in self.shares.values() for lane in share.lanes for name in self._gates_of(lane)}
        self.gates, locked_at = yield from _lock_gates(names, self.rules)
        self.now = max(self.now, locked_at)
        is_look = self.request.room == 0
        for _ in range(ROUNDS_MAX):
            room = int(self.waited_for is None) if is_look else self.request.room - len(self.jobs)
            plan = plan_claim(self._servable(), room, self._gates_of, self._free(room)) if room > 0 else None
            if plan is None:
                break
            self.held = plan.held
            if not plan.most:
                break
            yield from self._look(plan) if is_look else self._take(plan)
        return (yield from self._finish())

    def _servable(self) -> list[Share]:
        """Return the shares with the lanes that can still give jobs, and with what they were charged so far."""
        found = []
        for share in self.shares.values():
            lanes = deque(lane for lane in share.lanes if lane not in self.short)
            charged = sum(self.taken[lane] for lane in share.lanes) * share.charge
            found.append(Share(share.tenant, share.vtime + charged, share.weight, share.cost, lanes))
        return found

    def _gates_of(self, lane: Lane) -> tuple[str, ...]:
        if lane not in self.known:
            self.known[lane] = self.rules.gates(self.request.queue, lane) if self.rules.bits else ()
        return self.known[lane]

    def _free(self, room: int) -> dict[str, int]:
        return {name: gate.free(self.now, room) for name, gate in self.gates.items()}

    def _read_shares(self) -> Transaction[None]:
        request = self.request
        where = {"queue": request.queue, "needs": request.needs}
        past = as_json(sorted(request.past))
        rows = yield call("next_shares", **where, past=past, limit=SHARES_MAX)
        if not rows and (yield call("await_share", **where, past=past)):
            rows = yield call("next_shares", **where, past=past, limit=SHARES_MAX)
        for row in rows:
            self.shares[row["tenant"]] = Share(row["tenant"], row["vtime"], row["weight"], row["cost"])
            self.has_more |= len(rows) < row["open_shares"]  # There are more, or others have locked some for a moment.
        if self.shares:
            tenants = as_json([{"of_tenant": tenant} for tenant in self.shares])
            for row in (yield call("next_lanes", **where, tenants=tenants, limit=LANES_MAX)):
                lane = lane_of(row)
                self.shares[lane.tenant].lanes.append(lane)
                self.waited[lane] = row["held_by"], row["look_at"]

    def _rings(self, lane: Lane) -> bool:
        """Return whether jobs of a lane ring; for others, every claim looks."""
        return lane != USUAL or self.request.needs != ""

    def _look(self, plan: ClaimPlan) -> Transaction[None]:
        """Read how long the next job waits, without taking it."""
        request = self.request
        lanes, skip = as_json([lane_columns(lane) for lane in plan.most]), as_json(sorted(request.skip))
        for row in (yield call("lane_heads", queue=request.queue, needs=request.needs, skip=skip, lanes=lanes)):
            if row["ready_at"] is None:
                self.short.add(lane_of(row))
            else:
                self.waited_for = max(0, row["now"] - row["ready_at"])

    def _take(self, plan: ClaimPlan) -> Transaction[None]:
        request = self.request
        rows = yield request.take(plan.most, held=self.rules.bits)
        got: Counter[Lane] = Counter()
        counting = {lane: _counting({name: self.gates[name] for name in self._gates_of(lane)}) for lane in plan.most}
        for row in rows:
            *columns, limit_key, limited_task, started_at = row
            self.now = max(self.now, started_at)  # A rate counts from then on, however long ago it was looked at.
            lane = Lane(columns[_TENANT], limit_key, limited_task)
            got[lane] += 1
            share = self.shares[lane.tenant]
            reserved = share.charge * share.weight
            self.jobs.append(request.read(columns, gates=counting[lane], share=lane.tenant, reserved=reserved))
        self.taken += got
        self.short |= {lane for lane, most in plan.most.items() if got[lane] < most}
        for lane, count in got.items():
            for name in self._gates_of(lane):
                self.gates[name].started += count

    def _finish(self) -> Transaction[LaneClaim]:
        """Write who was served and who waits; say what a worker needs to know for its next claim."""
        self.held = {lane: gate for lane, gate in self.held.items() if lane not in self.short}
        # The last plan may have given places to lanes that turned out to have no jobs: then nobody waits at the gate.
        full = {name for name in self.held.values() if not self.gates[name].free(self.now, 1)}
        self.held = {lane: gate for lane, gate in self.held.items() if gate in full}
        yield from self._look_at_short_lanes()
        yield from self._look_ahead()
        marks = self._marks()
        empty = {share.tenant for share in self.shares.values() if not share.lanes}
        if empty <= {DEFAULT_TENANT} and self._is_in_vain(marks):  # Every claim opens that one for a moment.
            raise ClaimedInVain(self._answer())
        where = {"queue": self.request.queue, "needs": self.request.needs}
        if marks:
            rows = [{**lane_columns(lane), **mark} for lane, mark in marks.items()]
            yield call("mark_lanes", **where, lanes=as_json(rows))
        changed = sorted(self.shares.keys() & {*(lane.tenant for lane in marks), *empty})
        if changed:
            charges = [{"of_tenant": tenant, "charge": self._charge(tenant)} for tenant in changed]
            yield call("mark_shares", **where, shares=as_json(charges))
        yield from _write_rates(self.gates, self.now)
        return self._answer()

    def _is_in_vain(self, marks: Mapping[Lane, Mapping[str, object]]) -> bool:
        """Return whether no job was taken, and all lanes would be written as they were before this claim."""
        if self.taken or self.has_moved or not self.opened <= marks.keys() or _new_rates(self.gates, self.now):
            return False
        return all(
            lane in self.waited
            and mark["to_open"] == int(lane not in self.opened)
            and (mark["to_held_by"], mark["to_look_at"]) == self.waited[lane]
            for lane, mark in marks.items()
        )

    def _marks(self) -> dict[Lane, dict[str, object]]:
        """Return what to write of each lane: whether it stays open, or the gate at which it waits."""
        own_gate = f"queue:{self.request.queue}"
        held = {lane: gate for lane, gate in self.held.items() if gate != own_gate}
        marks: dict[Lane, dict[str, object]] = {}
        for lane in {**self.taken, **held, **dict.fromkeys(sorted(self.short, key=msgspec.structs.astuple))}:
            is_open = lane not in held and (lane not in self.short or lane in self.left)
            marks[lane] = self._mark(len(marks), is_open=is_open, gate=held.get(lane))
        if own_gate in self.held.values() and USUAL not in held:
            is_open = USUAL not in self.short
            marks[USUAL] = self._mark(len(marks), is_open=is_open, gate=own_gate)
        return marks

    def _mark(self, number: int, *, is_open: bool, gate: str | None) -> dict[str, object]:
        look_at = None if gate is None else self.gates[gate].next_at
        return {"to_open": int(is_open), "to_held_by": gate, "to_look_at": look_at, "to_turn": self.now + number}

    def _look_at_short_lanes(self) -> Transaction[None]:
        """Look which lanes that gave less than was asked still have jobs: this worker may be unable to take them.

        Jobs of a limited task that were enqueued by a transaction older than the limit get into its lane here.
        """
        has_tasks = bool(self.rules.bits & BITS["task"])
        short = [{**lane_columns(lane), "most": RELABEL_MAX} for lane in self.short if has_tasks or self._rings(lane)]
        if not short:
            return
        where = {"queue": self.request.queue, "needs": self.request.needs, "lanes": as_json(short)}
        rows = yield call("lanes_left", **where, skip=as_json(sorted(self.request.skip)), has_tasks=int(has_tasks))
        for row in rows:
            lane = lane_of(row)
            if row["is_left"]:
                self.left.add(lane)
            if row["is_left"] and not row["is_ready"] and self._rings(lane):
                self.in_vain.add(lane.tenant)
        if any(row["is_unlabelled"] for row in rows):
            yield call("relabel_lanes", **where, most=RELABEL_MAX)
            self.has_more = self.has_moved = True

    def _look_ahead(self) -> Transaction[None]:
        """Find unlabelled jobs also in lanes that always have other jobs: claims read past them.

        Transactions that are older than the limit write such jobs, and processes of an older release.
        """
        lanes = [lane for lane in self.taken if not lane.limited_task and lane not in self.short]
        if not lanes or not self.rules.bits & BITS["task"]:
            return
        rows = as_json([{"of_tenant": lane.tenant, "of_key": lane.limit_key} for lane in lanes])
        where = {"queue": self.request.queue, "needs": self.request.needs, "lanes": rows}
        found = yield call("unlabelled_ahead", **where, limit=AHEAD_MAX)
        if found:
            yield call("relabel_ahead", ids=as_json(sorted(row["id"] for row in found)))
            self.has_more = True

    def _charge(self, tenant: str) -> int:
        """Return what a tenant is charged for the jobs that were started."""
        share = self.shares[tenant]
        return sum(self.taken[lane] for lane in share.lanes) * share.charge

    def _answer(self) -> LaneClaim:
        looks = [gate.next_at for name, gate in self.gates.items() if gate.next_at and name in self.held.values()]
        lanes = [lane for share in self.shares.values() for lane in share.lanes if self._rings(lane)]
        is_limited = not self.rules.limited_queues().isdisjoint({self.request.queue, "*"})
        is_spare = bool(self.short) or len(self.jobs) < self.request.room
        is_spare &= self.request.room > 0
        unused = {name for name, gate in self.gates.items() if is_spare and gate.free(self.now, 1)}
        has_open = any(lane not in self.held and (lane not in self.short or lane in self.left) for lane in lanes)
        has_more = self.has_more or any(lane not in self.held and lane not in self.short for lane in lanes)
        is_full = f"queue:{self.request.queue}" in self.held.values()
        self.jobs.sort(key=lambda job: (-job.priority, job.run_at, job.job_id))
        return LaneClaim(
            jobs=tuple(self.jobs),
            in_vain=frozenset(self.in_vain),
            full=frozenset(self.held.values()),
            unused=frozenset(unused),
            look_in=max(0, min(looks) - self.now) if looks else None,
            has_lanes=is_limited or self.has_more or has_open,
            has_more=has_more and not is_full,
            has_closed=any(lane not in self.left and lane not in self.opened for lane in self.short),
            classes=self.classes,
            waited=self.waited_for,
        )
