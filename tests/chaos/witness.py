"""An app whose tasks record what they did, so that the store can be compared with what really ran.

Each attempt appends lines to the file TRACE: `begin` and `end` with job, attempt, process and token; `kept` when the
store has acknowledged a step, `child` when it has acknowledged a job. The result of an attempt names the attempt and
the process, and so does its `end`: the stored result must be that of an attempt that got that far.
"""

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

from headway import Context, Headway, Retry
from tests.chaos.worker_tasks import is_first_run, trace_run

ATTEMPTS_MAX = 50  # No job may fail because of the faults of others.

app = Headway(name="torture")
patient = Retry(max_attempts=ATTEMPTS_MAX, backoff="100ms..1s")


def _begin(ctx: Context) -> None:
    trace_run(ctx, "begin", ctx.token)


def _end(ctx: Context) -> str:
    trace_run(ctx, "end", ctx.token)
    return f"{ctx.attempt}/{os.getpid()}"


@app.task(retry=patient)
async def beat(ctx: Context) -> str:
    """Run as a scheduled job."""
    _begin(ctx)
    await asyncio.sleep(0.02)
    return _end(ctx)


@app.task(retry=patient)
async def breathe(ctx: Context, seconds: float = 0.05) -> str:
    """Wait on the loop."""
    _begin(ctx)
    await asyncio.sleep(seconds)
    return _end(ctx)


@app.task(retry=patient)
def labour(ctx: Context, seconds: float) -> str:
    """Take a while, and report progress."""
    _begin(ctx)
    for _ in ctx.track(range(10), "Working"):
        time.sleep(seconds / 10)
    ctx.log(str(ctx.attempt))
    return _end(ctx)


@app.task(retry=patient)
def errand(ctx: Context) -> str:
    """Keep a step and enqueue a job, both of which are permanent once acknowledged."""
    _begin(ctx)
    step = ctx.once("draw", lambda: f"{ctx.attempt}/{os.getpid()}")
    trace_run(ctx, "kept", step)
    child = ctx.enqueue_sync(breathe, key=f"child of {ctx.job_id}")
    trace_run(ctx, "child", child)
    return _end(ctx)


@app.task
async def idle() -> None:
    """Do nothing, for unreadable rows."""


@app.task(retry=patient)
def harm(ctx: Context, what: str) -> str:
    """Damage the process that the next job uses."""
    _begin(ctx)
    _HARMS[what]()
    return _end(ctx)


_HARMS: dict[str, Callable[[], object]] = {
    "umask": lambda: os.umask(0o777),
    "directory": lambda: os.chdir("/proc"),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.01),
    "handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "stdout": lambda: sys.stdout.close(),
    "recursion": lambda: sys.setrecursionlimit(80),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    "noise": lambda: print("x" * 20_000),
}
HARMS = tuple(_HARMS)


@app.task(retry=patient)
async def harm_loop(ctx: Context, what: str) -> str:
    """Damage the event loop that other jobs share."""
    _begin(ctx)
    loop = asyncio.get_running_loop()
    if what == "cancel":
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    elif what == "stop":
        loop.stop()
    await asyncio.sleep(0)
    return _end(ctx)


@app.task(retry=patient)
def stumble(ctx: Context) -> str:
    """Fail in the first attempt that runs."""
    _begin(ctx)
    if is_first_run(ctx):
        raise RuntimeError("the first attempt fails")
    return _end(ctx)
