# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""Huey on Redis, PostgreSQL or SQLite (with its default, full durability): one consumer with four threads."""

from contextlib import contextmanager

from huey import PostgresHuey, RedisHuey, SqliteHuey

from bench.peers.kit import POSTGRES, REDIS, SQLITE, VARIANT, Blocking, become, hit

if "sqlite" in VARIANT:
    huey = SqliteHuey("bench", filename=SQLITE)
elif "postgres" in VARIANT:
    huey = PostgresHuey("bench", dsn=POSTGRES)
else:
    huey = RedisHuey("bench", url=REDIS)


@huey.task()
def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    yield Blocking(noop)


def worker():
    """Run a worker until killed; poll often where the store cannot wake it."""
    polling = ("-d", "0.05", "-m", "0.2")
    become("huey_consumer", "bench.peers.with_huey.huey", "-k", "thread", "-w", 4, *polling, "-q")
