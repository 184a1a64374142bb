"""An app whose tasks misbehave in every way that a worker has to survive.

Each task writes a line to the file TRACE, so that tests see what really ran, whatever the store says.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from headway import After, Cancel, Context, Every, Headway, Retry

app = Headway(name="chaos")

QUICKLY = Retry(max_attempts=3, backoff="100ms")
SLEEPER = ["sleep", "600"]


def trace(*words: object) -> None:
    """Append a line in one write."""
    path = os.environ.get("TRACE")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")


def trace_run(ctx: Context, word: str, *more: object) -> None:
    """Record what a job does, and in which process."""
    trace(word, ctx.job_id, ctx.attempt, os.getpid(), *more)


def is_first_run(ctx: Context) -> bool:
    """Return whether no earlier attempt ran; the first attempt may have been handed back before it began."""
    path = f"{os.environ['TRACE']}.{ctx.job_id}"
    with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
        file.write(str(ctx.attempt))
    with open(path, encoding="utf-8") as file:
        return file.read() == str(ctx.attempt)


@app.task
def nothing() -> None:
    """Do nothing."""


@app.task
async def nothing_async() -> None:
    """Do nothing, on the loop."""


@app.task
def short(seconds: float = 0.02) -> int:
    """Run for a moment."""
    time.sleep(seconds)
    return os.getpid()


@app.task
async def rest(seconds: float) -> float:
    """Wait on the loop."""
    await asyncio.sleep(seconds)
    return seconds


@app.task
def sit(ctx: Context, seconds: float, only_first: bool = False) -> int:
    """Run for a while; with `only_first`, only in the first attempt that runs."""
    trace_run(ctx, "begin")
    if is_first_run(ctx) or not only_first:
        time.sleep(seconds)
    trace_run(ctx, "end")
    return ctx.attempt


@app.task
def hold(ctx: Context, until: str, only_first: bool = False) -> int:
    """Run until a file exists; with `only_first`, only in the first attempt that runs."""
    trace_run(ctx, "begin")
    is_held = is_first_run(ctx) or not only_first
    while is_held and not os.path.exists(until):
        time.sleep(0.02)
    trace_run(ctx, "end")
    return ctx.attempt


@app.task
async def hold_async(until: str) -> None:
    """Run until a file exists, on the loop."""
    while not os.path.exists(until):  # noqa: ASYNC240 - it takes microseconds
        await asyncio.sleep(0.05)


@app.task(timeout="10m")
def stale(ctx: Context, marker: str) -> str:
    """Return; but the first attempt that runs waits for the marker, then writes everything that it can."""
    trace_run(ctx, "begin")
    if not is_first_run(ctx):
        return "second"
    ctx.progress(10, "first")
    while not os.path.exists(marker):
        time.sleep(0.02)
    ctx.progress(66, "stale")
    ctx.log("a stale line")
    ctx.metadata["stale"] = True
    for word, call in (
        ("child", lambda: ctx.enqueue_sync(nothing)),
        ("step", lambda: ctx.once("stale-step", lambda: 1)),
    ):
        trace_run(ctx, "trying", word)
        try:
            call()
            trace_run(ctx, "accepted", word)
        except Exception as error:  # noqa: BLE001 - which one is what the test wants to know
            trace_run(ctx, "refused", word, type(error).__name__)
    return "first"


@app.task(retry=QUICKLY)
def crash(ctx: Context, how: str) -> None:
    """Crash the process."""
    trace_run(ctx, "begin", how)
    _crash(how)


@app.task(retry=QUICKLY)
async def crash_async(how: str) -> None:
    """Crash the process of the loop, with all jobs in it."""
    await asyncio.sleep(0.3)
    _crash(how)


def _crash(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "close":
        os.closerange(3, 256)
        time.sleep(600)
    elif how == "raise":
        raise SystemExit(4)
    elif how == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


@app.task
def hold_gil(ctx: Context, until: str) -> int:
    """Hold the interpreter until the test writes to a pipe, without using a core."""
    pipe = os.open(until, os.O_RDWR)  # Also for writing, so that there is no early end of file.
    trace_run(ctx, "begin")
    while ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1) < 1:
        pass
    return ctx.attempt


@app.task(timeout="1s", retry=Retry(max_attempts=1))
def catastrophic(ctx: Context) -> None:
    """Hold the interpreter for ever, in one call that does not check for signals."""
    trace_run(ctx, "begin")
    mutex = ctypes.create_string_buffer(64)  # Zeros are an unlocked mutex.
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@app.task(timeout="1s", retry=Retry(max_attempts=1))
def backtracking(ctx: Context) -> None:
    """Hold the interpreter for years, in one call that checks for signals now and then."""
    trace_run(ctx, "begin")
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.task
def stubborn(ctx: Context) -> None:
    """Ignore every signal and exception that can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trace_run(ctx, "begin")
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)


@app.task(isolation="thread")
def stubborn_thread(ctx: Context) -> None:
    """Ignore a stop request, in a thread."""
    trace_run(ctx, "begin")
    while True:
        time.sleep(0.05)


@app.task
async def stubborn_async(ctx: Context) -> None:
    """Ignore a cancellation, on the loop."""
    trace_run(ctx, "begin")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


ONE_TIMEOUT = Retry(max_attempts=3, backoff="100ms", retry_timeouts=False)


@app.task(timeout="1s", retry=ONE_TIMEOUT)
async def torn_async(ctx: Context) -> None:
    """Raise another exception when stopped, on the loop."""
    trace_run(ctx, "begin")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise RuntimeError("torn") from None


@app.task(timeout="1s", retry=ONE_TIMEOUT)
def torn(ctx: Context, starts: bool = False) -> None:
    """Raise another exception when stopped by a signal; optionally leave a process behind."""
    more = [subprocess.Popen(SLEEPER).pid] if starts else []
    trace_run(ctx, "begin", *more)
    try:
        time.sleep(60)
    finally:
        raise RuntimeError("torn")


@app.task(timeout="1s", retry=ONE_TIMEOUT)
async def plain_async(ctx: Context) -> None:
    """Stop on request."""
    trace_run(ctx, "begin")
    await asyncio.Event().wait()


@app.task(timeout="1s", retry=ONE_TIMEOUT)
async def unmoved(ctx: Context) -> str:
    """Swallow the stop request, and return a result."""
    trace_run(ctx, "begin")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done all the same"
    return "never"


@app.task
def checking(ctx: Context) -> None:
    """Check now and then whether to stop."""
    trace_run(ctx, "begin")
    try:
        while True:
            time.sleep(0.02)
            ctx.check()
    finally:
        trace_run(ctx, "stopped")


@app.task(isolation="thread")
def tracking(ctx: Context) -> None:
    """Track an endless iterable."""
    trace_run(ctx, "begin")
    for _ in ctx.track(itertools.count(), "Counting"):
        time.sleep(0.01)


@app.task
async def awaiting(ctx: Context) -> None:
    """Await something that never happens."""
    trace_run(ctx, "begin")
    try:
        await asyncio.Event().wait()
    finally:
        trace_run(ctx, "stopped")


@app.task
def logging_without_end(ctx: Context) -> None:
    """Log endlessly, without checking for a stop."""
    trace_run(ctx, "begin")
    while True:
        ctx.log("x" * 200)


@app.task
def parent_of_many(ctx: Context, then: str = "wait") -> None:
    """Start processes that try to escape: in the group, in their own session, forked twice."""
    children = [subprocess.Popen(SLEEPER), subprocess.Popen(SLEEPER, start_new_session=True)]
    double = subprocess.run(
        ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    trace_run(ctx, "begin", *(child.pid for child in children), double.stdout.strip())
    if then == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(0.05)
        if then == "check":
            ctx.check()


@app.task
def flood(ctx: Context, lines: int, calls: int) -> None:
    """Log far too much, then fail."""
    for number in range(lines):
        ctx.log(f"line {number:09} {'x' * 40}")
    for number in range(calls):
        ctx.progress(number % 90, f"call {number}")
    ctx.progress(97, "the last word")
    raise ValueError("after the flood")


@app.task
def murmur(ctx: Context, lines: int, until: str = "/") -> None:
    """Log very short lines far too often, and run until a file exists."""
    trace_run(ctx, "begin")
    for _ in range(lines):
        ctx.log("y")
    while not os.path.exists(until):
        time.sleep(0.02)


@app.task
def count_up(ctx: Context, seconds: float) -> None:
    """Report progress all the time."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        ctx.progress(min(99.9, number / 100), f"call {number}")
        time.sleep(0.001)
    ctx.progress(100, "done")


@app.task
def shout(lines: int) -> None:
    """Print a lot."""
    for number in range(lines):
        print("shout", number, "y" * 80)
    print("to stderr", file=sys.stderr)


@app.task(retry=QUICKLY)
def steps_once(ctx: Context, how: str = "kill") -> list[int]:
    """Do two steps once each, and crash between them in the first attempt that runs."""
    first = ctx.once("first", _traced, ctx, 1)
    if is_first_run(ctx):
        _crash(how)
    return [first, ctx.once("second", _traced, ctx, 2)]


@app.task(retry=QUICKLY)
async def steps_once_async(ctx: Context) -> list[int]:
    """Do a step once, and crash the loop with all jobs in the first attempt that runs."""
    first = await ctx.once("first", _traced_async, ctx, 1)
    trace_run(ctx, "kept", first)
    if is_first_run(ctx):
        await asyncio.sleep(0.5)
        os._exit(1)
    return [first, await ctx.once("second", _traced_async, ctx, 2)]


def _traced(ctx: Context, number: int) -> int:
    trace_run(ctx, "step", number)
    return number


async def _traced_async(ctx: Context, number: int) -> int:
    return _traced(ctx, number)


@app.task(retry=Retry(max_attempts=3, backoff="100ms", retry_on=OSError, give_up_on=ConnectionError))
def picky(ctx: Context, kind: str) -> int:
    """Raise retryable and final exceptions, and signals."""
    trace_run(ctx, "begin", kind)
    if kind == "later" and is_first_run(ctx):
        raise Retry(after="1s", reason="not yet")
    if kind == "cancel":
        raise Cancel("nothing to do")
    if kind == "os" and is_first_run(ctx):
        raise OSError("once")
    if kind == "connection":
        raise ConnectionResetError("for good")
    if kind == "value":
        raise ValueError("not in the list")
    return ctx.attempt


@app.task(retry=QUICKLY)
async def cancels_itself(ctx: Context) -> None:
    """Raise a cancellation that was not requested."""
    trace_run(ctx, "begin")
    raise asyncio.CancelledError


@app.task(memory="256MB", retry=Retry(max_attempts=1))
def hungry(ctx: Context) -> int:
    """Use more memory than allowed."""
    trace_run(ctx, "begin")
    return len(bytearray(1 << 30))


@app.task
def crowd(ctx: Context, jobs: int) -> list[int]:
    """Enqueue very many jobs at once, and again; return their number."""
    rows = [{"seconds": n} for n in range(jobs)]
    options: dict[str, Any] = {"key": "crowd:{seconds}", "tenant": "tenant-{seconds}", "queue": "crowd"}
    options["priority"] = lambda row: row["seconds"] % 10
    first = ctx.enqueue_many_sync("short", rows, **options)
    again = ctx.enqueue_many_sync("short", rows, **options)
    return [len(set(first)), len({*first, *again})]


@app.task
async def fan_out(ctx: Context, jobs: int) -> list[str]:
    """Enqueue children."""
    return [await ctx.enqueue(nothing) for _ in range(jobs)]


@app.task(isolation="thread")
def in_thread(ctx: Context) -> list[Any]:
    """Return where it runs."""
    return [os.getpid(), ctx.token, ctx.queue]


@app.task(isolation="process")
async def in_process(ctx: Context) -> list[Any]:
    """Return where it runs."""
    await asyncio.sleep(0)
    return [os.getpid(), ctx.token, ctx.queue]


@app.task
def talking(ctx: Context, until: str) -> int:
    """Report the number of the attempt all the time, in every possible way."""
    trace_run(ctx, "begin")
    for number in itertools.count(1):
        trace_run(ctx, "said", number)
        ctx.log(f"{ctx.attempt}: {number}")
        ctx.metadata["attempt"] = ctx.attempt
        ctx.progress(90 - 10 * ctx.attempt, f"attempt {ctx.attempt}")
        if os.path.exists(until):
            break
        time.sleep(0.02)
    return ctx.attempt


@app.task
def lingering(ctx: Context, seconds: float = 1.2) -> None:
    """Run longer than the interval of its schedule, and notice its replacement."""
    trace(f"begin-{ctx.occurrence.schedule if ctx.occurrence else ''}", ctx.job_id, ctx.attempt, time.monotonic())
    try:
        for _ in range(round(seconds / 0.02)):
            time.sleep(0.02)
            ctx.check()
    finally:
        trace(f"end-{ctx.occurrence.schedule if ctx.occurrence else ''}", ctx.job_id, ctx.attempt, time.monotonic())


if os.environ.get("WITH_SCHEDULES"):
    app.schedule("in-line", lingering, Every("1s"), overlap="queue")
    app.schedule("newest", lingering, Every("1s"), overlap="replace", args={"seconds": 30})
    app.schedule("skipping", lingering, Every("1s"), overlap="skip")
    app.schedule("following", lingering, After("500ms"), args={"seconds": 0.4})
if os.environ.get("WITH_LATECOMER"):

    @app.task
    def latecomer() -> str:
        """Exist only in a newer version of this app."""
        return "here"
