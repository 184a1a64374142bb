"""`headway enqueue`: hand in one job."""

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from headway.app import Headway
from headway.cli.given import ArgOption, ArgsOption, read_args
from headway.cli.session import AUTHOR, Session, hear_time, new_command
from headway.cli.shapes import job_shape
from headway.cli.text import clean
from headway.clock import Clock
from headway.errors import TaskNotFound
from headway.model import Job


async def enqueue(
    session: Session,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")],
    arg: ArgOption = None,
    args: ArgsOption = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Not before so long: 30m.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="T", help="Not before this time.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="The same key gives the same job, however often.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Where it waits.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher runs first.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whose job it is.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="How often it is tried.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be given several times.")] = None,
) -> None:
    """Enqueue a job. It is durable when this returns.

    \b
    headway enqueue video.transcode -a input=s3://uploads/v.mp4 -a height=720 --delay 30m --key upload-789
    """
    app = session.app() or Headway(settings=session.settings(), name=AUTHOR)
    if app.tasks and task not in app.tasks:
        near = get_close_matches(task, app.tasks, 1) or sorted(app.tasks)[:20]
        raise TaskNotFound(f"the app has no task {task!r}; it has {', '.join(near)}")
    options: dict[str, Any] = {
        "delay": delay,
        "at": at,
        "key": key,
        "queue": queue,
        "priority": priority,
        "tenant": tenant,
        "max_attempts": max_attempts,
        "tags": tag,
    }
    async with app:
        handle = await app.enqueue(task, read_args(arg, args), **options)
        store, clock = await app.store(), Clock()
        await hear_time(store, clock)
        tell(session, await store.queue.get(handle.id), clock)


def tell(session: Session, job: Job, clock: Clock) -> None:
    """Write one job in one line, or as JSON."""
    shape = job_shape(job, clock.now())
    if session.as_json:
        session.out.json(shape)
    else:
        session.out.say(clean(f"{job.id} {job.status}: {shape['why']}"))


app = new_command(enqueue)
