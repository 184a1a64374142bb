"""A private PostgreSQL for the tests: its own folder and loopback port, removed when the tests end."""

import fcntl
import itertools
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.support.server import Server, ServerFailed, find_program, free_port

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class PostgresServer(Server):
    """One PostgreSQL with its own data.

    `durable=False` does not wait for the disk. Commits still survive the death of every process, since the operating
    system has them; benchmarks use `durable=True`. `options` are settings of postgresql.conf.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        options: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        programs = find_program("initdb").parent  # Checked first, so that a missing program leaves nothing behind.
        super().__init__("pg", folder=folder)
        self._programs = programs
        self._data = self.folder / "data"
        self._options = {"max_connections": "200", **({} if durable else RELAXED), **(options or {})}
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Start the server; create its data on the first call. Later calls reuse data and port."""
        is_new = not self._data.exists()
        if is_new:
            self._make_data()
        try:
            self._start(self._command(), self._is_ready)
        except ServerFailed:
            if not is_new:
                raise
            self.port = free_port()  # Another process may have taken the port; once it is known, it does not change.
            self._start(self._command(), self._is_ready)

    def _make_data(self) -> None:
        """Create the files of an empty server, or copy those that another part of this test run has created."""
        shared = os.environ.get("SUITE_SHARED")
        if shared is None:
            self._initdb(self._data)
            return
        template = Path(shared) / "postgres"
        with (Path(shared) / "postgres.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._initdb(self.folder / "template")
                shutil.move(self.folder / "template", template)
        self.run("cp", "-a", "--reflink=auto", template, self._data)

    def _initdb(self, data: Path) -> None:
        self.run(
            *(self._programs / "initdb", "-D", data, "-U", "postgres"),
            *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `immediate` is a crash, after which it recovers from its WAL."""
        self._stop(STOP_SIGNALS[mode])

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop the server and start it with the same data on the same port."""
        self.stop(mode)
        self.start()

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or a copy of `template` (a name or a URL), and return its URL."""
        name = f"headway_{next(self._numbers)}"
        source = "template0" if template is None else database_name(template)
        self.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(source)))
        return self.url(name)

    def drop(self, database: str) -> None:
        """Drop a database (a name or a URL), and the connections to it."""
        name = sql.Identifier(database_name(database))
        self.execute(sql.SQL("drop database if exists {} with (force)").format(name))

    def execute(self, statement: sql.Composed) -> None:
        """Run one statement in the maintenance database, outside a transaction."""
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=60) as connection:
            connection.execute(statement)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "logging_collector": "off",
            **self._options,
        }
        pairs = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self._data), *pairs]

    def _is_ready(self) -> bool:
        """Return whether this server, and not another one on its port, accepts connections."""
        try:
            # short: the caller retries.
            with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
                row = connection.execute("select current_setting('data_directory')").fetchone()
        except psycopg.OperationalError:
            return False
        return row == (str(self._data),)


RELAXED: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}


def database_name(database: str) -> str:
    """Return the name of a database that is given as a name or a URL."""
    return urlsplit(database).path.removeprefix("/") if "://" in database else database
