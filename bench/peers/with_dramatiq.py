# mypy: ignore-errors
# The library is in the peers' own environment, so that types cannot be checked here.
"""Dramatiq on Redis: one process of eight threads, as it has by itself, and a longer prefetch."""

import os
from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.kit import REDIS, Blocking, become, hit

dramatiq.set_broker(RedisBroker(url=REDIS))


@dramatiq.actor(queue_name="default")
def noop(key, sent_ns):
    """Be a job that does next to nothing."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    yield Blocking(noop.send)


def worker():
    """Work until killed."""
    os.environ["dramatiq_queue_prefetch"] = "128"  # noqa: SIM112 (that is its name)
    become("dramatiq", "bench.peers.with_dramatiq", "--processes", 1, "--threads", 8)
