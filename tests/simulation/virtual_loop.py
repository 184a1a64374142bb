"""Coroutines in virtual time, on the loop of headway.testing."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from headway.testing.loop import Deadlock, Livelock, VirtualLoop

__all__ = ["Deadlock", "Livelock", "VirtualLoop", "run_virtual", "virtual"]

T = TypeVar("T")
P = ParamSpec("P")


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run a coroutine to its end in virtual time."""
    loop = loop or VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async test in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
