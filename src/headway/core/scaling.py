"""How many slots a queue needs, for autoscalers: enough to start what waits in time, never more than limits let run."""

from collections.abc import Iterable, Mapping
from typing import Final

from headway.core.instants import Duration
from headway.core.limits import Lane, Rules

SECONDS_DEFAULT: Final = 1.0  # Of a job, while none of the queue has ended.


def startable(queue: str, waiting: Mapping[Lane, int], rules: Rules, running: Mapping[str, int]) -> int:
    """Return how many of the waiting jobs the limits on concurrency let run beside those that run."""
    free: dict[str, int] = {}
    total = 0
    for lane, jobs in waiting.items():
        gates = [(name, rules.find(name)) for name in rules.gates(queue, lane)]
        for name, limit in gates:
            if limit is not None and limit.concurrency is not None:
                free.setdefault(name, max(0, limit.concurrency - running.get(name, 0)))
        most = min([jobs, *(free[name] for name, _ in gates if name in free)])
        for name, _ in gates:
            if name in free:
                free[name] -= most
        total += most
    return total


def wanted_slots(running: int, ready: int, seconds: float, wait: Duration) -> int:
    """Return the slots that are wanted: those in use, and as many as the ready jobs need to start in time."""
    if not ready:
        return running
    work_s = ready * seconds
    return running + max(1, min(ready, -int(-work_s // (wait / 1_000_000))))


def gates_of_all(queue: str, lanes: Iterable[Lane], rules: Rules) -> list[str]:
    """Return the names of all gates of these lanes."""
    return sorted({name for lane in lanes for name in rules.gates(queue, lane)})
