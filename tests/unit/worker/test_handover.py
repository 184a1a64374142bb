"""The hand-over of jobs, in every interleaving: each job ends or is returned exactly once, and no side waits forever.

Both sides are the real ones. A step is a single read or write of the shared page. Everything else (messages in flight,
a pause of the child, a cancellation, the death of either side) is a choice of the explorer.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from headway.core.jobs import Claimed
from headway.core.lifecycle import Cancelled
from headway.worker.handover import AssignedJob, Handover, Inbox
from tests.unit.worker.test_ipc import claimed


@dataclass
class Memory:
    """The shared page."""

    begun: int = 0
    ended: int = 0
    withdrawn: int = 0

    def fence(self) -> None:
        """Do nothing: the steps are sequential anyway."""


JOBS = ("job_1", "job_2")
FAULTS = frozenset({"pause", "withdraw", "cancel", "die"})


@dataclass
class World:
    """The state of both sides between two steps.

    The child's begin and the supervisor's withdrawal are split at the page.
    """

    width: int
    counters: Memory = field(default_factory=Memory)
    to_child: list[tuple[int, list[Claimed]]] = field(default_factory=list)
    to_supervisor: list[tuple[str, int, int]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)  # The jobs that were begun,
    told: list[tuple[str, str]] = field(default_factory=list)  # and the outcome of each job.
    checked: int = 0  # The child has read that this job may begin,
    beginning: int = 0  # and has written that it begins, but has not checked again.
    running: list[int] = field(default_factory=list)
    withdrawing: bool = False  # The supervisor has written its number, but has not read the child's position yet.
    faults: frozenset[str] = FAULTS
    is_paused: bool = False
    is_dead: bool = False
    is_given: bool = False

    def __post_init__(self) -> None:
        self.handover = Handover(self.counters, self.width)
        self.inbox: Inbox[Claimed] = Inbox(self.counters)

    # The possible next steps.

    def choices(self) -> Iterator[str]:
        if not self.is_given:
            yield "give"
            return
        if not self.is_dead and not self.is_paused:
            if self.to_child:
                yield "arrive"
            if self.beginning:
                yield "begin: look"
            elif self.checked:
                yield "begin: write"
            elif len(self.inbox) and len(self.running) < self.width:
                yield "begin: check"
            for number in self.running:
                yield f"end {number}"
        if self.to_supervisor and not self.withdrawing:
            yield "hear"
        if self.withdrawing:
            yield "withdraw: look"
        if self.is_dead and not self.withdrawing and not self.to_supervisor and self.handover.jobs:
            yield "bury"
        if self.is_paused and not self.is_dead:
            yield "resume"
        for fault in sorted(self.faults):
            if not self.is_dead and not self.withdrawing:
                yield fault

    def step(self, choice: str) -> None:
        name, _, argument = choice.partition(" ")
        match name:
            case "give":
                jobs = [claimed(job_id=job_id) for job_id in JOBS]
                self.to_child.append((self.handover.give(jobs, 0.0), jobs))
                self.is_given = True
            case "arrive":
                self.inbox.put(*self.to_child.pop(0))
            case "end":
                self.running.remove(int(argument))
                self.counters.ended = int(argument)
                self.to_supervisor.append(("done", int(argument), 0))
            case "hear":
                self._hear(*self.to_supervisor.pop(0))
            case "bury":
                for assigned in [each for part in self.handover.bury(0.0) for each in part]:
                    self._tell(assigned, "settled")
            case "resume":
                self.is_paused = False
            case "pause":
                self.is_paused = True
            case "die":
                self.is_dead = True
            case "cancel":
                self.handover.jobs.get("job_2", _unknown_job()).stop_as = Cancelled("enough")
            case _:
                self._step_at_page(choice)
        self.faults -= {name} if choice != "withdraw: look" else set()

    def _step_at_page(self, choice: str) -> None:
        match choice:
            case "begin: check":  # `Inbox.begin`, split in three.
                number, _ = self.inbox._jobs[0]
                if number <= self.counters.withdrawn:
                    self._skip()
                else:
                    self.checked = number
            case "begin: write":
                self.counters.begun = self.beginning = self.checked
                self.checked = 0
            case "begin: look":
                self.beginning = 0
                begun = self.inbox.begin()
                if begun is None:
                    self._skip()
                else:
                    self.running.append(begun[0])
                    self.ran.append(begun[1].job_id)
            case "withdraw":  # `Handover.withdraw`, split in two.
                self.counters.withdrawn = self.handover.last
                self.withdrawing = True
            case "withdraw: look":
                self.withdrawing = False
                for assigned in self.handover.withdraw(0.0):
                    self._tell(assigned, "returned")
            case _:
                raise AssertionError(choice)

    def _skip(self) -> None:
        skipped = self.inbox.skip()
        if skipped:
            self.to_supervisor.append(("left out", skipped[0][0], skipped[-1][0]))

    def _hear(self, what: str, first: int, last: int) -> None:
        if what == "done":
            assigned = self.handover.end(f"job_{first}", 1)
            if assigned is not None:
                self._tell(assigned, "ended")
        else:
            for assigned in self.handover.left_out(first, last):
                self._tell(assigned, "returned")

    def _tell(self, assigned: AssignedJob, how: str) -> None:
        self.told.append((assigned.claimed.job_id, how))

    def key(self) -> str:
        """Return everything that determines the possible next steps."""
        jobs = {job_id: assigned.number for job_id, assigned in self.handover.jobs.items()}
        waiting = [assigned.number for assigned in self.handover._waiting]
        inside = [number for number, _ in self.inbox._jobs]
        rest = (
            self.counters, self.to_child, self.to_supervisor, self.ran, self.told, self.checked, self.beginning,
            self.running, self.withdrawing, sorted(self.faults), self.is_paused, self.is_dead, self.is_given,
            self.handover._begun,
        )  # fmt: skip
        return repr((jobs, waiting, inside, rest))


def _unknown_job() -> AssignedJob:
    return AssignedJob(claimed(), 0, 0.0)


def explore(width: int) -> tuple[int, list[World]]:
    """Explore every order of steps; return the number of states, and the states without a next step."""
    seen: set[str] = set()
    todo, ends = [World(width)], []
    while todo:
        world = todo.pop()
        _check(world)
        choices = list(world.choices())
        if all(choice in FAULTS for choice in choices):
            ends.append(world)
        for choice in choices:
            following = copy.deepcopy(world)
            following.step(choice)
            if (key := following.key()) not in seen:
                seen.add(key)
                todo.append(following)
    return len(seen), ends


def _check(world: World) -> None:
    told = [job_id for job_id, _ in world.told]
    assert len(told) == len(set(told)), f"reported twice: {world.told}"
    returned = {job_id for job_id, how in world.told if how == "returned"}
    assert not returned & set(world.ran), f"returned, but also run: {world}"
    assert len(world.ran) == len(set(world.ran)), f"begun twice: {world.ran}"


@pytest.mark.parametrize("width", [1, 2])
def test_every_interleaving_ends_each_job_exactly_once(width: int) -> None:
    states, ends = explore(width)
    assert states > 500
    for world in ends:
        assert {job_id for job_id, _ in world.told} == set(JOBS), f"lost: {world}"
        assert not world.handover.jobs
    outcomes = {tuple(sorted(world.told)) for world in ends}
    assert (("job_1", "ended"), ("job_2", "returned")) in outcomes
    assert (("job_1", "returned"), ("job_2", "returned")) in outcomes
    assert (("job_1", "ended"), ("job_2", "ended")) in outcomes
    assert (("job_1", "ended"), ("job_2", "settled")) in outcomes


def test_explorer_detects_a_read_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that reads before it writes can be overtaken: the explorer finds that."""

    def hasty(inbox: Inbox[Claimed]) -> tuple[int, Claimed] | None:
        return inbox._jobs.popleft()  # Without the second check.

    monkeypatch.setattr(Inbox, "begin", hasty)
    with pytest.raises(AssertionError, match="also run"):
        explore(1)


def test_repeated_job_is_a_new_job() -> None:
    counters = Memory()
    handover = Handover(counters, 1)
    handover.give([claimed(attempt=1)], 0.0)
    assert [assigned.number for assigned in handover.withdraw(1.0)] == [1]
    assert handover.give([claimed(attempt=2)], 2.0) == 2
    assert handover.end("job_1", 1) is None, "the previous attempt does not end this one"
    assert handover.left_out(1, 1) == []
    counters.begun = 2
    handover.look(3.0)
    assigned = handover.find("job_1", 2)
    assert assigned is not None
    assert (assigned.since, handover.running(), handover.waiting()) == (3.0, [assigned], [])
    counters.ended = 2
    assert handover.unheard() == [assigned]
    assert handover.end("job_1", 2) is assigned


def test_jobs_of_a_dead_child_are_running_unreported_or_waiting() -> None:
    counters = Memory()
    handover = Handover(counters, 1)
    handover.give([claimed(job_id=f"job_{number}") for number in range(1, 5)], 0.0)
    counters.begun, counters.ended = 2, 1
    running, unheard, waiting = ([assigned.number for assigned in part] for part in handover.bury(1.0))
    assert (running, unheard, waiting) == ([2], [1], [3, 4])
    assert handover.waiting_since() == float("inf")
