# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""SAQ on Redis or PostgreSQL: ten concurrent jobs, the default (more are no faster); finished jobs are deleted."""

import logging
from contextlib import asynccontextmanager

from saq import Job, Queue, Worker

from bench.peers.kit import POSTGRES, REDIS, VARIANT, Awaited, hit, in_flight


def open_queue():
    """Create a queue on the store of this variant."""
    if "postgres" in VARIANT:
        return Queue.from_url(POSTGRES, min_size=4, max_size=20)
    return Queue.from_url(REDIS)


async def noop(_context, *, key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


async def setup():
    """Create the schema by connecting once."""
    queue = open_queue()
    await queue.connect()
    await queue.disconnect()


@asynccontextmanager
async def producer():
    """Open a client."""
    queue = open_queue()
    await queue.connect()

    async def one(key, sent_ns):
        await queue.enqueue(Job(function="noop", kwargs={"key": key, "sent_ns": sent_ns}, ttl=-1))

    yield Awaited(one, lambda keys: in_flight(one, keys))
    await queue.disconnect()


async def worker():
    """Run a worker until killed."""
    logging.disable(logging.WARNING)
    queue = open_queue()
    await queue.connect()
    await Worker(queue, functions=[noop], concurrency=10, dequeue_timeout=1.0).start()
