"""The bridge from synchronous code to coroutines."""

import asyncio
import inspect
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from headway import InvalidTask
from headway.core.sync_bridge import Portal, blocking_twin, run_inline
from tests.support.waiting import DEADLINE_S

R = TypeVar("R")


async def where() -> tuple[int, threading.Thread]:
    await asyncio.sleep(0)
    return os.getpid(), threading.current_thread()


def test_portal_runs_all_calls_on_one_background_thread() -> None:
    portal = Portal()
    _, thread = portal.call(where())
    assert thread is not threading.current_thread()
    assert portal.call(where())[1] is thread
    assert thread.daemon


def test_portal_rejects_calls_from_its_own_thread() -> None:
    portal = Portal()

    async def nested() -> None:
        portal.call(where())

    with pytest.raises(InvalidTask, match="would deadlock"):
        portal.call(nested())


def test_portal_propagates_errors() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        Portal().call(fail())


def test_portal_works_in_a_forked_process() -> None:
    portal = Portal()
    portal.call(where())
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, str(portal.call(where())[0]).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as said:
        assert said.read() == str(child)
    assert os.waitpid(child, 0)[1] == 0


def test_coroutine_that_never_waits_runs_in_the_callers_thread() -> None:
    async def nested() -> threading.Thread:
        return threading.current_thread()

    async def outer() -> threading.Thread:
        return await nested()

    assert run_inline(outer(), else_say="it waited") is threading.current_thread()


def test_coroutine_that_waits_cannot_run_inline() -> None:
    with pytest.raises(AssertionError, match="it waited"):
        run_inline(where(), else_say="it waited")


class Adder:
    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return run_inline(coroutine, else_say="it waited")

    async def add(self, first: int, *, second: int = 1) -> int:
        """Add two numbers."""
        return first + second

    add_sync = blocking_twin(add)


def test_sync_twin_blocks_and_has_the_metadata_of_its_coroutine() -> None:
    assert Adder().add_sync(2) == 3
    assert Adder().add_sync(2, second=3) == 5
    assert Adder.add_sync.__name__ == "add_sync"
    assert Adder.add_sync.__qualname__ == "Adder.add_sync"
    assert Adder.add_sync.__doc__ == "Add two numbers."
    assert inspect.signature(Adder().add_sync) == inspect.signature(Adder().add)
    assert not inspect.iscoroutinefunction(Adder().add_sync)


def test_portal_runs_calls_that_are_not_awaited() -> None:
    portal, called = Portal(), threading.Event()
    assert portal.submit(where()).result(DEADLINE_S)[1] is portal.call(where())[1]
    portal.call_soon(called.set)
    assert called.wait(DEADLINE_S)
