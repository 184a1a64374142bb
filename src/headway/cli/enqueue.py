"""`headway enqueue`: enqueue one job, and optionally watch it."""

from contextlib import aclosing, asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.app import Headway
from headway.cli.parsing import ArgOption, ArgsOption, TimeoutOption, read_args, read_timeout
from headway.cli.session import Session, new_command
from headway.cli.watch import stay, tell
from headway.core.access import COMMAND_LINE
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, TaskNotFound
from headway.core.instants import parse_duration, parse_start
from headway.core.needs import numbers, read_amounts, read_labels
from headway.wire.jobs import NewJob
from headway.wiring.local_operations import OpenStore, read_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headway.operations.everything import Operations


async def enqueue(
    session: Session,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of the task, or module:task.")],
    arg: ArgOption = None,
    args: ArgsOption = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Start after this time at the earliest: 30m.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="Start at this time at the earliest.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Idempotency key: the same key returns the same job.")
    ] = None,
    debounce: Annotated[
        str | None,
        typer.Option("--debounce", metavar="DURATION", help="Start when no call with the same --key came for so long."),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option("--max-wait", metavar="DURATION", help="With --debounce: start after this at the latest."),
    ] = None,
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="DURATION", help="At most one job per --key in this time.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option("--unique", metavar="DURATION", help="At most one unfinished job per --key, for this time."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="Jobs with a higher priority run first.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="The tenant of the job.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Maximum number of attempts.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be given several times.")] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Cancel it if it has not started after this time."),
    ] = None,
    job_timeout: Annotated[
        str | None, typer.Option("--job-timeout", metavar="DURATION", help="How long an attempt may take.")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="NAME", help="The limit of the job; account-{id} inserts the argument id."),
    ] = None,
    need: Annotated[
        list[str] | None,
        typer.Option(
            "--need", metavar="K=V", help="What a worker must offer: cpu=2, memory=4G. Several times, or with commas."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="A label that a worker must have: zone=eu.")
    ] = None,
    callback_url: Annotated[
        str | None,
        typer.Option("--callback-url", metavar="URL", help="URL that is notified when it ends, like a webhook."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has ended; exit code 1 if it failed.")] = False,
    timeout: TimeoutOption = None,
) -> int:
    """Enqueue a job. It is durable when this returns.

    \b
    headway enqueue video.transcode -a input=s3://uploads/v.mp4 -a height=720 --delay 30m --key upload-789
    headway enqueue jobs:hello --watch
    """
    if watch and wait:
        raise DefinitionError("use --watch or --wait, not both")
    timeout_s = read_timeout(timeout, watch or wait)
    windows: dict[str, Any] = {"debounce": debounce, "max_wait": max_wait, "throttle": throttle, "unique": unique}
    for name, duration in {"delay": delay, "expires": expires, "timeout": job_timeout, **windows}.items():
        if duration is not None:
            parse_duration(duration, what=name)
    if at is not None:
        parse_start(at, what="at")
    job = NewJob(
        type=task,
        args=read_args(arg, args),
        delay=delay,
        run_at=at,
        queue=queue,
        priority=priority,
        tenant=tenant,
        max_attempts=max_attempts,
        tags=tag,
        expires=expires,
        timeout=job_timeout,
        callback_url=callback_url,
        limit=limit,
        needs=None if need is None else numbers(read_amounts(",".join(need), "--need")),
        labels=None if label is None else read_labels(",".join(label), "--label"),
        **windows,
    )
    if job.has_window:  # The key names the window; it is not an idempotency key.
        job.key, key = key, None
    async with _operations(session, job) as operations:
        enqueued = await operations.jobs.enqueue(job, idempotency_key=key)
        if watch or wait:
            return await stay(session, operations, enqueued.id, draws=watch, timeout_s=timeout_s)
        await tell(session, enqueued, operations)
    return 0


@asynccontextmanager
async def _operations(session: Session, job: NewJob) -> "AsyncIterator[Operations]":
    """Open the operations of the server, or of the store of the app, which knows the task."""
    if session.server is not None:
        async with session.operations() as operations:
            yield operations
        return
    app, job.type = _resolve(session, job.type)
    async with app:
        store, clock = await app.store(), Clock(node=COMMAND_LINE)
        redis, latency_s = app.settings.redis, await read_time(store, clock)
        async with aclosing(OpenStore(store, clock, latency_s, redis, tasks=app.tasks)) as opened:
            yield opened.operations


def _resolve(session: Session, task: str) -> tuple[Headway, str]:
    """Find the app and the name of the task; `module:task` means the app `module:app` by default."""
    module, colon, name = task.partition(":")
    app = session.app()
    if app is None and colon:
        session.app_path = f"{module}:app"
        app = session.app()
    app = app or Headway(settings=session.settings(), name=COMMAND_LINE)
    if colon and app.tasks and task not in app.tasks:
        task = name if name in app.tasks else _function_name(app, module, name)
    if app.tasks and task not in app.tasks:
        near = get_close_matches(task, app.tasks, 1) or sorted(app.tasks)[:20]
        raise TaskNotFound(f"the app has no task {task!r}; it has {', '.join(near)}")
    return app, task


def _function_name(app: Headway, module: str, name: str) -> str:
    """Return the name of a task, given the name of its function in a module."""
    return next(
        (
            task.name
            for task in app.tasks.values()
            if (getattr(task, "__module__", None), getattr(task, "__name__", None)) == (module, name)
        ),
        name,
    )


app = new_command(enqueue)
