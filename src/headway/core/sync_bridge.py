"""The one bridge from blocking code to coroutines.

Blocking callers have two ways to run a coroutine. `Portal` runs it on an event loop in a background thread.
`run_inline` runs it in the caller's own thread, which is cheaper, but only works for a coroutine that never waits.
`blocking_twin` makes the `…_sync` twin of a coroutine method.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from headway.core.errors import InvalidTask

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """An event loop in a background thread, started on first use and again in a forked process."""

    def __init__(self, name: str = "headway-portal") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the background loop and wait for its result."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidTask("a _sync call inside of Headway's own loop would deadlock; await the coroutine instead")
        called = self.submit(coroutine)
        try:
            return called.result()
        finally:
            called.cancel()  # An interrupted caller no longer wants the result.

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> "Future[R]":
        """Run a coroutine on the background loop and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the background loop call a function soon."""
        self._started().call_soon_threadsafe(callback)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():  # A fork has no threads.
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def run_inline(coroutine: Coroutine[Any, Any, R], *, else_say: str) -> R:
    """Run a coroutine that never has to wait, in the caller's thread; if it waits, fail with these words."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        coroutine.close()
    raise AssertionError(else_say)


class Blocking(Protocol):
    """An object that can run its own coroutines for blocking callers."""

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for it."""
        ...


S = TypeVar("S", bound=Blocking)


def blocking_twin(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """Make the blocking twin of a coroutine method: `job_sync = blocking_twin(job)`."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.blocking(method(self, *args, **kwargs))

    call.__name__ += "_sync"
    call.__qualname__ += "_sync"
    return call
