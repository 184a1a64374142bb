"""A synchronous standby of a PostgresServer: it has every commit that the primary has acknowledged."""

from collections.abc import Sequence

import psycopg
from psycopg import sql

from tests.support.postgres import PostgresServer, database_name
from tests.support.waiting import wait_until


class StandbyServer(PostgresServer):
    """A copy that follows its primary until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def start(self) -> None:
        """Copy the primary on the first call; start, and make every commit of the primary wait for this standby."""
        if not self._data.exists():
            self.run(
                *(self._programs / "pg_basebackup", "-h", "127.0.0.1", "-p", str(self._primary.port)),
                *("-U", "postgres", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "--no-sync"),
            )
        self._start(self._command(), self._is_ready)
        configure(self._primary, "synchronous_standby_names", "*")
        wait_until(self._is_followed, "the standby to follow")

    def promote(self) -> None:
        """Promote it. The old primary is not notified: its commits wait from now on."""
        self.execute(sql.SQL("select pg_promote(false)").format())
        wait_until(self._is_promoted, "the standby to be promoted")

    def _is_promoted(self) -> bool:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            return connection.execute("select pg_is_in_recovery()").fetchone() == (False,)

    def _is_followed(self) -> bool:
        with psycopg.connect(self._primary.url(), autocommit=True) as connection:
            found = connection.execute("select sync_state from pg_stat_replication").fetchall()
        return ("sync",) in found


def configure(server: PostgresServer, name: str, value: str) -> None:
    """Change a setting of a running server, even of one on which no commit ends."""
    server.execute(sql.SQL("alter system set {} = {}").format(sql.Identifier(name), value))
    server.execute(sql.SQL("select pg_reload_conf()").format())


def several_hosts(servers: Sequence[PostgresServer], database: str) -> str:
    """Return a URL that names all of them; clients that use it look for the writable one."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@{hosts}/{database_name(database)}?target_session_attrs=read-write"
