"""Announce jobs from a process that runs no loops of Headway: a script or a service that only enqueues.

The announcer and its connection live in a thread that starts with the first job. At exit the process waits briefly for
unsent announcements.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from headway.core.clock import Clock
from headway.core.ports import Transport
from headway.core.sync_bridge import Portal
from headway.queue.announcer import Announcer, TransportHealth, announcer_loop

FLUSH_S_MAX: Final = 0.5
_LOOK_EVERY_S: Final = 0.005


class BackgroundAnnouncer:
    """Announces from any thread of a process, and of its forks."""

    def __init__(self, open_transport: Callable[[], Transport], clock: Clock) -> None:
        self._open = open_transport
        self._clock = clock
        self._portal = Portal("headway-announcer")
        self._lock = threading.Lock()
        self._process = 0
        self._announcer: Announcer | None = None

    def announce(self, ready: Sequence[tuple[str, str]]) -> None:
        """Announce jobs, as (queue, id)."""
        self._started().announce(ready)

    def flush(self) -> None:
        """Wait until everything is sent, but not for long."""
        until = self._clock.monotonic() + FLUSH_S_MAX
        while self._is_sending and self._clock.monotonic() < until:
            self._clock.nap(_LOOK_EVERY_S)

    async def flush_async(self) -> None:
        """Wait until everything is sent, but not for long."""
        until, wake = self._clock.monotonic() + FLUSH_S_MAX, asyncio.Event()
        while self._is_sending and self._clock.monotonic() < until:
            await self._clock.rest(_LOOK_EVERY_S, wake)

    @property
    def _is_sending(self) -> bool:
        announcer = self._announcer
        return announcer is not None and self._process == os.getpid() and not announcer.is_done

    def _started(self) -> Announcer:
        with self._lock:
            if self._announcer is None or self._process != os.getpid():  # A fork has no threads.
                if self._announcer is None:
                    atexit.register(self.flush)
                self._announcer, self._process = self._start(), os.getpid()
            return self._announcer

    def _start(self) -> Announcer:
        transport, woken = self._open(), asyncio.Event()
        announcer = Announcer(
            transport,
            TransportHealth(transport.name, self._clock.node),
            clock=self._clock,
            wake=lambda: self._portal.call_soon(woken.set),
        )
        running = self._portal.submit(announcer_loop(announcer, self._clock, woken).run())
        running.add_done_callback(lambda ended: ended.result())  # Logs the error of a loop that fails.
        return announcer
