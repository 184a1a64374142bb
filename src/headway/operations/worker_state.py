"""What live workers report: their tasks, their queues and their free slots.

A worker runs jobs in several kinds of places (`process`, `loop`, `thread`), each with its own slots, and every task has
one kind. A job cannot use a free slot of another kind.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headway.core.needs import Needs, Offer, missing_words, parse_needs, read_amounts, times
from headway.core.nodes import Node
from headway.core.worker_offers import offer_of

WORKER: Final = "worker"


class Place(msgspec.Struct, frozen=True):
    """The slots of one kind, how many of them are free, and the tasks that run there."""

    slots: int = 0
    free: int = 0
    tasks: frozenset[str] = frozenset()


class _State(msgspec.Struct, frozen=True):
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    slots: int = 0
    running: int = 0
    children: int = 0
    draining: bool = False
    places: dict[str, Place] = {}
    offer_free: dict[str, int | float] = {}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker as it described itself in its last heartbeat."""

    id: str
    name: str
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    slots: int = 0
    running: int = 0
    children: int = 0
    draining: bool = False
    places: Mapping[str, Place] = {}
    offer: Offer = Offer()
    offer_free: Mapping[str, int | float] = {}

    @property
    def free(self) -> int:
        """The number of free slots, of all kinds."""
        return 0 if self.draining else max(0, self.slots - self.running)

    def takes(self, queue: str) -> bool:
        """Return whether it takes jobs from a queue."""
        return "*" in self.queues or queue in self.queues

    def can_run(self, task: str, queue: str) -> bool:
        """Return whether a job of this task in this queue could run here, sooner or later."""
        return not self.draining and task in self.tasks and self.takes(queue)

    def has_free(self, needs: Needs) -> bool:
        """Return whether a job with these needs fits into what is free of the offer."""
        free = read_amounts({name: free for name, free in self.offer_free.items() if free > 0}, "offer_free")
        return self.offer.covers(needs) and times(needs, free, 1) == 1

    def kind_of(self, task: str) -> str | None:
        """Return the kind of place where a task runs here; None if the worker does not report it."""
        return next((kind for kind, place in self.places.items() if task in place.tasks), None)

    def slots_for(self, task: str) -> int:
        """The number of slots for this task; a worker of an older version reports all its slots."""
        kind = self.kind_of(task)
        return self.slots if kind is None else self.places[kind].slots

    def free_for(self, task: str) -> int:
        """The number of free slots for this task."""
        kind = self.kind_of(task)
        if kind is None or self.draining:
            return self.free
        return max(0, min(self.places[kind].free, self.places[kind].slots))


def workers_of(nodes: Iterable[Node]) -> list[Worker]:
    """Return the workers among the nodes; one with a drain request counts as draining before it reacts."""
    return [_worker(node) for node in nodes if WORKER in node.roles]


def _worker(node: Node) -> Worker:
    try:
        said = msgspec.convert(node.state.get(WORKER, {}), _State)
    except msgspec.ValidationError:
        said = _State()
    is_draining = said.draining or node.asked == "drain"
    worker = node.state.get(WORKER)
    offer = offer_of(worker) if isinstance(worker, dict) else Offer()
    fields = msgspec.structs.asdict(said) | {"draining": is_draining, "offer": offer}
    return Worker(id=node.id, name=node.name, **fields)


def unserved(task: str, queue: str, nodes: Iterable[Node], needs: str = "") -> list[str]:
    """Return what keeps jobs of this task from running on these nodes; a worker that starts later may change it."""
    workers = [worker for worker in workers_of(nodes) if not worker.draining]
    if not workers:
        return ["no worker is alive"]
    able = [worker for worker in workers if worker.can_run(task, queue)]
    if able:
        missing = missing_words(parse_needs(needs) or Needs(), [worker.offer for worker in able])
        return [] if missing is None else [f"it {missing}"]
    warnings = []
    if not any(task in worker.tasks for worker in workers):
        warnings.append(f"no live worker knows the task {task!r}")
    if not any(worker.takes(queue) for worker in workers):
        warnings.append(f"no live worker takes from the queue {queue!r}")
    return warnings or [f"no live worker that knows the task {task!r} takes from the queue {queue!r}"]
