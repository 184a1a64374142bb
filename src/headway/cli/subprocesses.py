"""Subprocesses that exit when their parent does, for whatever reason.

Such a process gets its options as one line on its standard input, since a store's password must not be visible in the
process list. It shuts down gracefully when that input ends, also when its parent is killed.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

STOP_S_MAX: Final = 5.0


async def start(entry: str, options: dict[str, Any]) -> asyncio.subprocess.Process:
    """Start a process at `module:function`, which must call `run_as_child`."""
    module, _, function = entry.partition(":")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"from {module} import {function}; {function}()"),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the parent only, which then stops the child gracefully.
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(options).encode() + b"\n")
    return child


async def stop(child: asyncio.subprocess.Process) -> None:
    """Stop a process and wait until it has exited."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


def run_as_child(work: Callable[[dict[str, Any], asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run as such a process: do the work, with its options, until the event is set."""
    from headway.cli.root import guarded

    options: dict[str, Any] = json.loads(sys.stdin.readline())

    async def run() -> None:
        stopping = asyncio.Event()
        with _until_input_ends(stopping):
            await work(options, stopping)

    sys.exit(guarded(lambda: asyncio.run(run()), as_json=bool(options.get("as_json"))))


@contextmanager
def _until_input_ends(stopping: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stopping.set)  # Nothing more is ever written, so readable means closed.
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin.fileno())
