"""The announcer: sends hints about ready jobs to a transport, after their commit and in the background.

The committing code only appends the jobs to a bounded list; it never waits. While the transport is unavailable, the
last hundred jobs of each queue are kept and announced when it is back; by then the sweeps of the workers have found
them. If many jobs become ready at once, a hundred are announced: a worker that is woken claims as many as it has slots.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock, Loop
from headway.core.errors import EngineUnavailable
from headway.core.events import EngineLost, EngineReturned, emit
from headway.core.json_values import JsonObject
from headway.core.ports import Transport

QUEUES_MAX: Final = 1_000
HINTS_MAX: Final = 100  # Per queue, kept and sent at once.
QUIET_S: Final = 5.0
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 1.0


class TransportHealth:
    """The state of a transport in this process. Logs once when it fails, and once when it works again."""

    def __init__(self, name: str, node: str) -> None:
        self.name = name
        self._node = node
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Why the transport is not relied on; None while it works."""
        return next(iter(self._troubles.values()), None)

    def miss(self, who: str, error: EngineUnavailable) -> None:
        """Note a failed request."""
        if not self._troubles:
            emit(EngineLost(node=self._node, engine=f"{self.name} transport", error=str(error), falls_back=True))
        self._troubles[who] = str(error)

    def meet(self, who: str) -> None:
        """Note a successful request."""
        if self._troubles.pop(who, None) is not None and not self._troubles:
            emit(EngineReturned(node=self._node, engine=f"{self.name} transport"))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A transport as a node uses it."""

    transport: Transport
    health: TransportHealth
    announcer: "Announcer"
    loop: Loop  # Runs the announcer.

    @classmethod
    def by(cls, transport: Transport, clock: Clock) -> "Dispatch":
        """Wrap a transport with an announcer."""
        health, woken = TransportHealth(transport.name, clock.node), asyncio.Event()
        announcer = Announcer(transport, health, clock=clock, wake=woken.set)
        return cls(transport, health, announcer, announcer_loop(announcer, clock, woken))

    def state(self) -> JsonObject:
        """Describe the transport for the state of the node."""
        return {"name": self.transport.name, "trouble": self.health.trouble}


class Announcer:
    """Sends the noted jobs. A `Loop` runs `tick`; `announce` may be called from any thread."""

    def __init__(
        self, transport: Transport, health: TransportHealth, *, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._wake = wake
        self._transport = transport
        self._health = health
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[str]] = {}
        self._is_sending = False
        self._failures = 0
        self._try_at = 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing can be sent now."""
        return self._failures > 0 or not (self._waiting or self._is_sending)

    def announce(self, ready: Sequence[tuple[str, str]]) -> None:
        """Note ready jobs, as (queue, id); if there are too many, drop the oldest."""
        with self._lock:
            for queue, job_id in ready:
                if queue in self._waiting or len(self._waiting) < QUEUES_MAX:
                    self._waiting.setdefault(queue, deque(maxlen=HINTS_MAX)).append(job_id)
        self._wake()

    async def tick(self) -> float:
        """Send noted jobs; while the transport is unavailable, only probe it, with back-off."""
        now = self._clock.monotonic()
        if now < self._try_at:
            return self._try_at - now
        self._is_sending = True
        with self._lock:
            ready, self._waiting = self._waiting, {}
        try:
            if ready or self._failures:
                await self._transport.announce(ready)
        except EngineUnavailable as error:
            return self._missed(error, ready)
        finally:
            self._is_sending = False
        self._failures = 0
        self._health.meet("announcer")
        return 0.0 if self._waiting else QUIET_S

    def _missed(self, error: EngineUnavailable, ready: dict[str, deque[str]]) -> float:
        with self._lock:
            for queue, job_ids in self._waiting.items():
                ready.setdefault(queue, deque(maxlen=HINTS_MAX)).extend(job_ids)
            self._waiting = ready
        self._failures += 1
        self._health.miss("announcer", error)
        rest_s = self._clock.backoff_s(self._failures + 1, first_s=AGAIN_S, most_s=AGAIN_S_MAX)
        self._try_at = self._clock.monotonic() + rest_s
        return rest_s


def announcer_loop(announcer: Announcer, clock: Clock, woken: asyncio.Event) -> Loop:
    """Make the loop that runs an announcer; the announcer's `wake` sets `woken`."""
    return Loop("announcer", announcer.tick, clock=clock, rest_s_max=QUIET_S, woken=woken)
