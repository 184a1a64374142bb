"""A private PgBouncer in transaction mode, in front of a PostgresServer.

In this mode two transactions of one client may run on two server connections. Session state (prepared statements,
LISTEN, session locks, SET) does not work through it; tests with it show that Headway does not need any.
"""

import psycopg

from tests.support.postgres import PostgresServer, database_name
from tests.support.server import Server, find_program

CONFIG = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
# Round robin, so that code which relies on getting the same connection again fails.
server_round_robin = 1
server_login_retry = 1
"""


class PgBouncer(Server):
    """One PgBouncer in transaction mode; it serves every database of its PostgreSQL."""

    def __init__(self, postgres: PostgresServer) -> None:
        program = find_program("pgbouncer")
        super().__init__("bouncer")
        self._program = program
        self._postgres = postgres

    def start(self) -> None:
        """Start the pooler."""
        config = self.folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(port=self.port, server_port=self._postgres.port))
        config.chmod(0o644)
        self._start([str(self._program), str(config)], self._is_ready)

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database (given by name or URL) through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database_name(database)}"

    def _is_ready(self) -> bool:
        """Return whether this pooler, and not another one on its port, connects to our server."""
        try:
            with psycopg.connect(self.url(), autocommit=True, connect_timeout=30) as connection:
                row = connection.execute("select current_setting('port')").fetchone()
        except psycopg.OperationalError:
            return False
        return row == (str(self._postgres.port),)
