"""Wait for a condition. The timeout protects against a hanging test; it is never an expectation of speed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

# Longer than a loaded machine ever delays a process. A test that reaches it has found a problem.
DEADLINE_S = 90.0
LOOK_EVERY_S = 0.02


def wait_until(look: Callable[[], T], what: str, *, within_s: float = DEADLINE_S, every_s: float = LOOK_EVERY_S) -> T:
    """Call `look` until it returns something true, and return that. `what` completes "timed out waiting for …"."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline, _timed_out(what, within_s, seen)
        time.sleep(every_s)
    return seen


@overload
async def async_wait_until(
    look: Callable[[], Awaitable[T]], what: str, *, within_s: float = ..., every_s: float = ...
) -> T: ...


@overload
async def async_wait_until(look: Callable[[], T], what: str, *, within_s: float = ..., every_s: float = ...) -> T: ...


async def async_wait_until(
    look: Callable[[], Awaitable[T] | T], what: str, *, within_s: float = DEADLINE_S, every_s: float = LOOK_EVERY_S
) -> T:
    """Do the same on an event loop. `look` is a function or a coroutine function."""
    deadline = time.monotonic() + within_s
    while not (seen := await _seen(look)):
        assert time.monotonic() < deadline, _timed_out(what, within_s, seen)
        await asyncio.sleep(every_s)
    return seen


async def _seen(look: Callable[[], Awaitable[T] | T]) -> T:
    seen = look()
    return await seen if isinstance(seen, Awaitable) else seen


def _timed_out(what: str, within_s: float, seen: object) -> str:
    return f"timed out after {within_s:.0f} s waiting for {what}; last seen: {seen!r}"
