# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""Chancy on PostgreSQL: asyncio, a thousand concurrent jobs, eager polling. It reports completions once a second."""

import logging
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job

from bench.peers.kit import POSTGRES, Awaited, hit

log = logging.getLogger("chancy-bench")
log.addHandler(logging.NullHandler())
log.setLevel(logging.ERROR)


@job(queue="q")
async def noop(*, key: int, sent_ns: int):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


def open_app():
    """Create an application without plugins."""
    return Chancy(POSTGRES, log=log)


async def setup():
    """Create the schema and the queue."""
    async with open_app() as app:
        await app.migrate()
        executor = Chancy.Executor.Async
        await app.declare(Queue("q", concurrency=1000, executor=executor, polling_interval=1, eager_polling=True))


@asynccontextmanager
async def producer():
    """Open a client."""
    async with open_app() as app:

        async def one(key, sent_ns):
            await app.push(noop.job.with_kwargs(key=key, sent_ns=sent_ns))

        async def many(keys):
            jobs = (noop.job.with_kwargs(key=key, sent_ns=0) for key in keys)
            async for _ in app.push_many(jobs, batch_size=1000):
                pass

        yield Awaited(one, many)


async def worker():
    """Run a worker until killed."""
    async with open_app() as app, Worker(app) as running:
        await running.wait_for_shutdown()
