# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""taskiq on Redis: streams with acknowledgements, or a list without; a hundred concurrent jobs."""

from contextlib import asynccontextmanager

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench.peers.kit import REDIS, VARIANT, Awaited, become, hit, in_flight

broker = ListQueueBroker(REDIS) if "list" in VARIANT else RedisStreamBroker(REDIS, consumer_id="0")


@broker.task(task_name="noop")
async def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@asynccontextmanager
async def producer():
    """Open a client."""
    await broker.startup()
    yield Awaited(noop.kiq, lambda keys: in_flight(noop.kiq, keys))
    await broker.shutdown()


def worker():
    """Run a worker until killed."""
    limits = ("--workers", 1, "--max-async-tasks", 100, "--max-prefetch", 100)
    become("taskiq", "worker", "bench.peers.with_taskiq:broker", *limits, "--log-level", "ERROR")
