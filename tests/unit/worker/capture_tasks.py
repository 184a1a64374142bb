"""Tasks that print, log and warn in every way."""

import asyncio
import io
import logging
import os
import signal
import sys
import threading
import warnings

from headway import Context, Headway

app = Headway("sqlite://", name="capture")
log = logging.getLogger("shop.orders")
print("while it is imported")
# Apps configure their streams before any task runs.
sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
wrapped = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
print("through a wrapper", file=wrapped)
detached = io.TextIOWrapper(sys.stderr.detach(), "utf-8", write_through=True)  # type: ignore[union-attr]


@app.task
def everything() -> None:
    """Write in each way, without using a context."""
    print("printed")
    print("one", end=" ")
    print("line")
    print("to stderr", file=detached)
    log.info("logged %d", 7)
    log.warning("two\nlines")
    log.error("torn %d", "no number")
    try:
        raise ValueError("caught")
    except ValueError:
        log.exception("an exception")
    warnings.warn("out of date", stacklevel=1)
    print("bytes ü", file=wrapped)
    print("\r10%", end="", file=sys.stderr)
    print("\r20%", end="", file=sys.stderr)
    thread = threading.Thread(target=print, args=("from a thread",))
    thread.start()
    thread.join()
    print("without an end", end="")


@app.task
def configured() -> None:
    """Install handlers that would repeat captured output, and one that writes elsewhere."""
    logging.basicConfig(level=logging.DEBUG, force=True)
    log.debug("fine")
    log.info("once")
    logging.getLogger().handlers.clear()
    os.write(1, b"native\n")
    print("terminal:", sys.stdout.isatty(), sys.stdout.fileno())


@app.task
def copied() -> str:
    """Print in a forked copy, which must not write to the job's log."""
    pid = os.fork()
    if pid == 0:
        print("from the copy", flush=True)
        os._exit(0)
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@app.task
def flood(lines: int) -> None:
    """Print much more than a log keeps, and a line without a newline."""
    for _ in range(lines):
        print("x" * 1_000)
    for _ in range(lines):
        print("y" * 1_000, end="")


turns: dict[str, asyncio.Event] = {}


async def _take_turns(name: str) -> None:
    """Continue when another task has printed something."""
    turns.setdefault(name, asyncio.Event()).set()
    other = "b" if name == "a" else "a"
    await turns.setdefault(other, asyncio.Event()).wait()


@app.task
async def shared(name: str) -> None:
    """Print while another task on the loop does, also from a thread and a background task."""
    print(name, "begins")
    await _take_turns(name)
    log.info("%s goes on", name)
    await asyncio.to_thread(print, name, "in a thread")
    await asyncio.create_task(_say(name))


async def _say(name: str) -> None:
    print(name, "in a task of its own")


meeting = threading.Barrier(2, timeout=90)


@app.task(isolation="thread")
def beside(name: str) -> None:
    """Print while another thread does."""
    meeting.wait()
    print(name, "in its thread")
    meeting.wait()


@app.task
def with_context(ctx: Context) -> None:
    """Write through the context as well."""
    print("before")
    ctx.log("between")
    print("after")


left_behind: list[asyncio.Task[None]] = []
may_speak = threading.Event()


@app.task
async def late() -> None:
    """Leave a thread behind that prints after the end of the attempt."""

    def speak() -> None:
        may_speak.wait()
        print("too late")

    attempt = asyncio.current_task()
    assert attempt is not None
    left_behind.extend((attempt, asyncio.create_task(asyncio.to_thread(speak))))


@app.task
async def afterwards() -> None:
    """Let the leftover thread print, and wait for it."""
    attempt, rest = left_behind
    await asyncio.wait([attempt])
    may_speak.set()
    await rest
    print("in time")


@app.task
def crash() -> None:
    """Print something and crash at once."""
    print("one")
    log.warning("two")
    print("three", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)
