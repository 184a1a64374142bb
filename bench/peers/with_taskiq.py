# mypy: ignore-errors
# The library is in the peers' own environment, so that types cannot be checked here.
"""taskiq on Redis: streams, which acknowledge, or a list, which does not; a hundred jobs at once."""

from contextlib import asynccontextmanager

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench.peers.kit import REDIS, VARIANT, Awaited, become, hit, in_flight

broker = ListQueueBroker(REDIS) if "list" in VARIANT else RedisStreamBroker(REDIS, consumer_id="0")


@broker.task(task_name="noop")
async def noop(key, sent_ns):
    """Be a job that does next to nothing."""
    hit(key, sent_ns)


@asynccontextmanager
async def producer():
    """Open a client."""
    await broker.startup()
    yield Awaited(noop.kiq, lambda keys: in_flight(noop.kiq, keys))
    await broker.shutdown()


def worker():
    """Work until killed."""
    limits = ("--workers", 1, "--max-async-tasks", 100, "--max-prefetch", 100)
    become("taskiq", "worker", "bench.peers.with_taskiq:broker", *limits, "--log-level", "ERROR")
