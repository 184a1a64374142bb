# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""Dramatiq on Redis: one process with eight threads, the default, and a longer prefetch."""

import os
from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.kit import REDIS, Blocking, become, hit

dramatiq.set_broker(RedisBroker(url=REDIS))


@dramatiq.actor(queue_name="default")
def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    yield Blocking(noop.send)


def worker():
    """Run a worker until killed."""
    os.environ["dramatiq_queue_prefetch"] = "128"  # noqa: SIM112 (that is its name)
    become("dramatiq", "bench.peers.with_dramatiq", "--processes", 1, "--threads", 8)
