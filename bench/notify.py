"""notify: commits per second of many clients at once, with and without a notification in the transaction.

PostgreSQL lets one transaction with a notification commit at a time, on the whole server, and a commit that waits for a
synchronous standby holds up the next one. So the way to the standby is measured too: none, one on this machine, and one
that is some milliseconds away. `after` notifies in a separate transaction, which writes nothing and does not wait;
so does Headway, whose jobs have more columns and indexes than the rows of the others.

    .venv/bin/python -m bench.notify [--seconds 3] [--clients 16] [--delay-ms 5]
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import asyncpg

from headway.core.clock import Clock
from headway.core.jobs import NewJob
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.postgres import POOL_SIZE
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxies, slow
from tests.support.standby import StandbyServer, configure

INSERT: Final = "insert into jobs (payload) values ('x') returning id"
INSERT_AND_NOTIFY: Final = "insert into jobs (payload) values ('x') returning id, pg_notify('bench', 'ready')"
NOTIFY: Final = "select pg_notify('bench', 'ready')"
WAYS: Final[dict[str, tuple[str, ...]]] = {
    "none": (INSERT,),
    "inside": (INSERT_AND_NOTIFY,),
    "after": (INSERT, NOTIFY),
}
ROUNDS: Final = 3


async def rate(url: str, statements: tuple[str, ...], clients: int, seconds: float) -> float:
    """Return the inserts per second of all clients together."""
    connections = [await asyncpg.connect(url) for _ in range(clients)]
    ends, done = time.monotonic() + seconds, 0

    async def insert(connection: asyncpg.Connection) -> None:
        nonlocal done
        while time.monotonic() < ends:
            for statement in statements:
                await connection.fetch(statement)
            done += 1

    began = time.monotonic()
    await asyncio.gather(*map(insert, connections))
    took_s = time.monotonic() - began
    for connection in connections:
        await connection.close()
    return done / took_s


async def headway_rate(url: str, clients: int, seconds: float) -> float:
    """Return how many jobs the same number of clients enqueue in a second, on as many connections."""
    stores = [await Store.open(url, Clock(node="bench")) for _ in range(-(-clients // POOL_SIZE))]
    clock, done = Clock(node="bench"), 0
    began = time.monotonic()

    async def enqueue(store: Store) -> None:
        nonlocal done
        while time.monotonic() < began + seconds:
            await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="x")])
            done += 1

    await asyncio.gather(*(enqueue(stores[number % len(stores)]) for number in range(clients)))
    took_s = time.monotonic() - began
    for store in stores:
        await store.close()
    return done / took_s


async def compare(name: str, url: str, clients: int, seconds: float) -> None:
    """Measure all variants in turn, so that other load affects all of them."""
    rates: dict[str, list[float]] = {way: [] for way in (*WAYS, "Headway")}
    for _ in range(ROUNDS):
        for way, statements in WAYS.items():
            rates[way].append(await rate(url, statements, clients, seconds))
        rates["Headway"].append(await headway_rate(url, clients, seconds))
    found = {way: median(values) for way, values in rates.items()}
    columns = "  ".join(f"{way} {value:7,.0f}/s" for way, value in found.items())
    print(f"{name:28}  {columns}  inside/none {found['inside'] / found['none']:.2f}")


class DistantStandby(StandbyServer):
    """A standby with network delay from its primary."""

    def __init__(self, primary: PostgresServer, port: int) -> None:
        super().__init__(primary)
        self._way = port

    def start(self) -> None:
        """Copy the primary, then follow it through the slow connection."""
        super().start()
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"\nprimary_conninfo = 'host=127.0.0.1 port={self._way} user=postgres'\n")
        self.stop()
        self._start(self._command(), self._is_ready)


@contextlib.contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """Make a database with a table of jobs."""
    url = server.create_database()

    async def create() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("create table jobs (id bigserial primary key, payload text not null)")
        await connection.close()
        store = await Store.open(url, Clock(node="bench"), checked=False)
        await migrate(store.driver)
        await store.close()

    asyncio.run(create())
    yield url
    server.drop(url)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--delay-ms", type=float, default=5.0)
    options = parser.parse_args()
    with PostgresServer(durable=True) as primary, Proxies() as proxies:
        with database(primary) as url:
            asyncio.run(compare("no standby", url, options.clients, options.seconds))
        with StandbyServer(primary), database(primary) as url:
            asyncio.run(compare("synchronous standby here", url, options.clients, options.seconds))
            configure(primary, "synchronous_standby_names", "")
        link = proxies.to(primary.port)
        with DistantStandby(primary, link.port), database(primary) as url:
            link.set(slow(options.delay_ms / 1_000))
            name = f"synchronous standby, {options.delay_ms:g} ms"
            asyncio.run(compare(name, url, options.clients, options.seconds))
            configure(primary, "synchronous_standby_names", "")


if __name__ == "__main__":
    main()
