# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""RQ on Redis: a fork for every job, the default, or none; results are not kept."""

import logging
from contextlib import contextmanager

from redis import Redis
from rq import Queue, SimpleWorker, Worker

from bench.peers.kit import REDIS, VARIANT, Blocking, hit


def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    queue = Queue(connection=Redis.from_url(REDIS))

    def one(key, sent_ns):
        queue.enqueue(noop, key, sent_ns, result_ttl=0)

    def many(keys):
        queue.enqueue_many([Queue.prepare_data(noop, (key, 0), result_ttl=0) for key in keys])

    yield Blocking(one, many)


def worker():
    """Run a worker until killed."""
    logging.disable(logging.WARNING)
    kind = Worker if "fork" in VARIANT else SimpleWorker
    connection = Redis.from_url(REDIS)
    kind([Queue(connection=connection)], connection=connection).work(logging_level="ERROR")
