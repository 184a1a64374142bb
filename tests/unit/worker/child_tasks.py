"""Tasks for tests that talk to a child process directly."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headway import Context, Headway
from headway.worker import child, child_connection
from headway.worker import spawned as started

app = Headway("sqlite://", name="child")

# On a busy machine a killed process may take a while to disappear.
vars(started)["KILL_LOOKS"] = 4_000
for module in (child, child_connection):
    vars(module)["LOOK_EVERY_S"] = float(os.environ.get("CHILD_LOOK_EVERY_S", child_connection.LOOK_EVERY_S))
LONG_S = 600.0  # Longer than the timeout of any test.


@app.task
async def hold(ctx: Context) -> str:
    """Block the event loop until cancelled, which async code should never do; report when it begins."""
    ctx.progress(1)
    until = time.monotonic() + LONG_S
    while not ctx.cancelled and time.monotonic() < until:
        time.sleep(0.01)  # noqa: ASYNC251 - that is the mistake
    return "asked" if ctx.cancelled else "never asked"


WHEN_IMPORTED = {name: value for name, value in os.environ.items() if name in ("HEADWAY_STORE", "HEADWAY_QUEUES")}


@app.task
def environment() -> dict[str, Any]:
    """Return the environment variables of the task, its process and a subprocess."""
    settings = Headway().settings
    own = Path("/proc/self/environ")  # The environment at the start of the process, where the system has it.
    began_with = own.read_text().split("\0") if own.exists() else os.environ
    return {
        "when imported": WHEN_IMPORTED,
        "settings": [settings.store, settings.queues, settings.token],
        "task": sorted(os.environ),
        "process": sorted(line.partition("=")[0] for line in began_with),
        "program": sorted(line.partition("=")[0] for line in subprocess.check_output(["env"], text=True).splitlines()),
    }


@app.task
async def short() -> str:
    """Do nothing."""
    return "done"


@app.task
async def keep(ctx: Context, steps: int) -> int:
    """Send many requests to the supervisor without yielding to the loop."""
    return sum(ctx.once(f"step {number}", lambda: 1) for number in range(steps))


@app.task(isolation="process")
async def leave(ctx: Context) -> str:
    """Send a request, and end before the response."""
    asyncio.ensure_future(ctx.once("step", _one))  # noqa: RUF006 - it is cancelled with the loop
    await asyncio.sleep(0.01)
    return "left"


async def _one() -> int:
    return 1


@app.task(isolation="process")
def short_sync() -> str:
    """Do nothing."""
    return "done"


@app.task(isolation="process")
def rest(sign: str) -> None:
    """Run until a file exists."""
    until = time.monotonic() + LONG_S
    while not Path(sign).exists() and time.monotonic() < until:
        time.sleep(0.01)


RAISED = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "generator": GeneratorExit}


class Noteless(Exception):
    """An exception that cannot be formatted."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RAISED["exit"]


@app.task(isolation="process")
def fail_sync(what: str) -> None:
    """Raise an exception that normally ends a process."""
    raise RAISED.get(what, Noteless)


@app.task
async def fail(what: str) -> None:
    """Raise it in a coroutine."""
    raise RAISED.get(what, Noteless)


@app.task
async def fail_beside(busy_s: float) -> None:
    """Raise it in a background task, which event loops propagate; with a running thread that cannot be stopped."""
    asyncio.get_running_loop().run_in_executor(None, time.sleep, busy_s)
    await asyncio.create_task(_fail_later())


async def _fail_later() -> None:
    raise SystemExit(3)


@app.task(isolation="process")
def spoil_sync(ctx: Context) -> None:
    """Break the child, so that it cannot report how the job ended."""
    _spoil(ctx)


@app.task
async def spoil(ctx: Context) -> None:
    """Break the child, so that it cannot report how the job ended."""
    _spoil(ctx)


@app.task
async def clog(ctx: Context) -> None:
    """Make the child send an invalid message together with the outcome."""
    channel: Any = ctx._channel
    channel.buffer(object())


def _spoil(ctx: Context) -> None:
    spoilt: Any = ctx
    spoilt.take_report = None


SCRIPT = "trap '' TERM; sleep 611 & echo $!; wait; sleep 611"  # It ignores SIGTERM.


@app.task
async def start(ctx: Context, how: str, then: str = "wait") -> str:
    """Start processes, report their ids, then wait for a stop, fail, or return."""
    if how == "asyncio":
        process = await asyncio.create_subprocess_exec("sleep", "611")
        pids = [process.pid]
    elif how == "to_thread":
        pids = [(await asyncio.to_thread(subprocess.Popen, ["sleep", "611"])).pid]
    else:
        pids = _start(how)
    ctx.metadata["pids"] = pids
    if then == "wait":
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
    return _then(then)


@app.task(isolation="thread")
def start_in_thread(ctx: Context, how: str, then: str = "wait") -> str:
    """Start processes in a thread."""
    ctx.metadata["pids"] = _start(how)
    while then == "wait":
        time.sleep(0.01)
        ctx.check()
    return _then(then)


def _start(how: str) -> list[int]:
    if how == "plain":
        return [subprocess.Popen(["sleep", "611"]).pid]
    shell = subprocess.Popen(["sh", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    return [shell.pid, int(shell.stdout.readline())]


def _then(then: str) -> str:
    if then == "fail":
        raise ValueError(then)
    return then


# --- harm that hostile tasks do to the process that later jobs share


@app.task(isolation="process")
def fork(how: str) -> str:
    """Fork, and return in both processes."""
    if os.fork() == 0:
        if how == "raise":
            raise ValueError("the copy")
        return "copy"
    os.wait()
    return "original"


@app.task
async def fork_on_loop() -> str:
    """Fork on an event loop that others share."""
    if os.fork() == 0:
        await asyncio.sleep(0)
        return "copy"
    os.wait()  # noqa: ASYNC222 - the copy ends at once
    return "original"


@app.task(isolation="process")
def mess(what: str) -> str:
    """Change global state of the process."""
    _MESSES[what]()
    return what


@app.task(isolation="process")
def mess_then_wait(what: str, sign: str) -> str:
    """Change global state while other jobs run in the same process."""
    _MESSES[what]()
    while not Path(sign).exists():
        time.sleep(0.01)
    return what


@app.task(isolation="process")
def look() -> dict[str, Any]:
    """Use and describe state that others may have changed."""
    print("still here", flush=True)
    umask = os.umask(0o022)
    os.umask(umask)
    return {
        "cwd": os.getcwd(),
        "umask": umask,
        "recursion": sys.getrecursionlimit(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD)],
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "nice": os.nice(0),
    }


@app.task(isolation="process")
def fail_where_umask_is_zero() -> str:
    """Fail because of the damage that another job did."""
    umask = os.umask(0o022)
    os.umask(umask)
    if umask == 0:
        raise PermissionError("the umask is 0")
    return "done"


def _vanish() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


_MESSES: dict[str, Any] = {
    "directory": _vanish,
    "umask": lambda: os.umask(0),
    "recursion": lambda: sys.setrecursionlimit(60),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.05),
    "handlers": lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGCHLD)],
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    "stdout": lambda: sys.stdout.close(),
    "stdout file": lambda: os.close(1),
    "nice": lambda: os.nice(3),
}


@app.task
async def disturb(what: str) -> str:
    """Damage the event loop that others share."""
    loop = asyncio.get_running_loop()
    if what == "cancel all":
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
    elif what == "remove readers":
        for number in range(3, 64):
            loop.remove_reader(number)
    elif what == "stop":
        loop.stop()
    elif what == "handlers":
        loop.set_task_factory(lambda *_, **__: 1 / 0)  # type: ignore[arg-type]
    elif what == "executor":
        await loop.shutdown_default_executor()
    await asyncio.sleep(0)
    return what


@app.task
async def neighbour(sign: str) -> str:
    """Wait with a background task and a thread, as well-behaved code does."""

    async def wait() -> None:
        while not os.path.exists(sign):  # noqa: ASYNC240 - another process makes it
            await asyncio.sleep(0.01)

    await asyncio.gather(wait(), asyncio.sleep(0))
    await asyncio.gather(asyncio.sleep(0))
    return await asyncio.to_thread(lambda: "well")
