# mypy: ignore-errors
# The library is in the peers' own environment, so that types cannot be checked here.
"""Huey on Redis, PostgreSQL or SQLite (in its own durability, which is full): one consumer of four threads."""

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
    """Be a job that does next to nothing."""
    hit(key, sent_ns)


@contextmanager
def producer():
    """Open a client."""
    yield Blocking(noop)


def worker():
    """Work until killed, looking often where nothing wakes it."""
    polling = ("-d", "0.05", "-m", "0.2")
    become("huey_consumer", "bench.peers.with_huey.huey", "-k", "thread", "-w", 4, *polling, "-q")
