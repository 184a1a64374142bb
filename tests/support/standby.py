"""A synchronous standby of a PostgresServer: what the primary has acknowledged, it has too."""

import time
from collections.abc import Sequence

import psycopg
from psycopg import sql

from tests.support.postgres import PostgresServer, database_name
from tests.support.server import READY_SECONDS, ServerFailed


class StandbyServer(PostgresServer):
    """A copy that follows its primary until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def start(self) -> None:
        """Copy the primary on the first call; start, and have the primary wait for this one with every commit."""
        if not self._data.exists():
            self.run(
                *(self._programs / "pg_basebackup", "-h", "127.0.0.1", "-p", str(self._primary.port)),
                *("-U", "postgres", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "--no-sync"),
            )
        self._start(self._command(), self._is_ready)
        configure(self._primary, "synchronous_standby_names", "*")
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_followed():
            if time.monotonic() > deadline:
                raise ServerFailed(f"the standby does not follow:\n{self.tail()}")
            time.sleep(0.05)

    def promote(self) -> None:
        """Make it a primary of its own. The other one hears nothing of it: its commits wait from now on."""
        self.execute(sql.SQL("select pg_promote(true, {})").format(round(READY_SECONDS)))

    def _is_followed(self) -> bool:
        with psycopg.connect(self._primary.url(), autocommit=True) as connection:
            found = connection.execute("select sync_state from pg_stat_replication").fetchall()
        return ("sync",) in found


def configure(server: PostgresServer, name: str, value: str) -> None:
    """Change a setting of a running server, also one on which no commit ends."""
    server.execute(sql.SQL("alter system set {} = {}").format(sql.Identifier(name), value))
    server.execute(sql.SQL("select pg_reload_conf()").format())


def several_hosts(servers: Sequence[PostgresServer], database: str) -> str:
    """Return an address that names all of them; whoever uses it looks for the one that can be written to."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@{hosts}/{database_name(database)}?target_session_attrs=read-write"
