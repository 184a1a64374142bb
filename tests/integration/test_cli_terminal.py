"""Output on a real terminal: it updates, it can be left at any time, and it restores the terminal."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.lifecycle import Succeeded
from tests.integration.test_cli_jobs import JobFactory, new
from tests.support import evidence
from tests.support.command_line import Cli
from tests.support.waiting import wait_until

HEADWAY = str(Path(sys.executable).with_name("headway"))


class Screen:
    """A command on a pseudo-terminal."""

    def __init__(self, folder: Path, *args: str, columns: int, rows: int) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(side)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "NO_COLOR"))
        }
        self.process = subprocess.Popen(
            [HEADWAY, *args],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        self.side = side
        self.written = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # A read may end inside a character.
        evidence.attach(" ".join(("headway", *args)), lambda: self.plain)

    def wait_for(self, text: str) -> None:
        """Read until a text has been written."""

        def is_written() -> bool:
            self._read()
            return text in self.plain

        wait_until(is_written, f"{text!r} to be written", every_s=0)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._main], [], [], 0.1)
        if not ready:
            return False
        self.written += self._decoder.decode(os.read(self._main, 65536))
        return True

    @property
    def plain(self) -> str:
        """The output without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written)

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._main, keys.encode())

    def end(self) -> int:
        """Wait for the command to exit, and read the rest; return the exit code."""

        def has_ended() -> bool:
            self._read()
            return self.process.poll() is not None

        wait_until(has_ended, "the command to exit", every_s=0)
        while self._read():
            pass
        return self.process.returncode

    def close(self) -> None:
        """Kill the command and close the terminal."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)
        os.close(self.side)


@contextlib.contextmanager
def on_screen(folder: Path, *args: str, columns: int = 100, rows: int = 30) -> Iterator[Screen]:
    screen = Screen(folder, *args, columns=columns, rows=rows)
    try:
        yield screen
    finally:
        screen.close()


@pytest.fixture
def factory(cli: Cli) -> JobFactory:
    return JobFactory(f"sqlite:///{cli.folder / 'headway.db'}")


def test_watch_draws_a_job_until_its_end(cli: Cli, factory: JobFactory) -> None:
    factory.live()
    with on_screen(cli.folder, "enqueue", "report", "--watch") as screen:
        screen.wait_for("Ctrl-C stops watching, not the job")
        claimed = factory.claim()
        factory.report(claimed, progress=40, detail='{"step": "Writing", "done": 4, "total": 10, "rate": 2.0}')
        screen.wait_for("▸ Writing  ━")
        screen.wait_for("40%  4/10 · 2.0/s")
        factory.end(claimed, Succeeded('"done"'))
        assert screen.end() == 0
        assert screen.plain.rstrip().endswith('result "done"')
        assert "\x1b[?25h" in screen.written  # The cursor is visible again.


def test_interrupted_watch_does_not_affect_the_job(cli: Cli, factory: JobFactory) -> None:
    job_id = new(cli)
    factory.claim()
    with on_screen(cli.folder, "jobs", "watch", job_id) as screen:
        screen.wait_for("elapsed ")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
        assert f"stopped watching; {job_id} goes on (RUNNING, 0%)" in screen.plain.replace("\r\n", "")
        assert "Traceback" not in screen.plain
        assert "headway: " not in screen.plain  # No error message.
    job = cli("jobs", "show", job_id, "--json").json
    assert (job["status"], job["attempts"]) == ("RUNNING", 1)


@pytest.mark.parametrize("way", ["q", "\x1b", "interrupt"])
def test_top_uses_the_alternate_screen_and_restores_the_terminal(cli: Cli, factory: JobFactory, way: str) -> None:
    new(cli)
    factory.report(factory.claim(), progress=40, detail='{"step": "Writing"}')
    with on_screen(cli.folder, "top", "--every", "0.2", columns=80, rows=24) as screen:
        screen.wait_for("40%")
        screen.wait_for("q quits")
        if way == "interrupt":
            screen.process.send_signal(signal.SIGINT)
        else:
            screen.press(way)
        assert screen.end() == 0
        assert "\x1b[?1049h" in screen.written
        assert screen.written.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
        assert termios.tcgetattr(screen.side) == screen.before
        assert "Traceback" not in screen.plain
