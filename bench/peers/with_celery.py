# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""Celery on Redis: one child process, or eight threads; a long prefetch, no results, no gossip, mingle or heartbeat."""

from contextlib import contextmanager

from celery import Celery

from bench.peers.kit import NUMBER, REDIS, VARIANT, Blocking, become, hit

app = Celery("bench", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,  # Its documentation recommends 50 to 150 for many short tasks.
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task(name="noop")
def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    yield Blocking(noop.delay)


def worker():
    """Run a worker until killed."""
    pool = ("-P", "threads", "-c", 8) if "threads" in VARIANT else ("-P", "prefork", "-c", 1)
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
    become("celery", "-A", "bench.peers.with_celery", "worker", *pool, *quiet, "-n", f"w{NUMBER}@local")
