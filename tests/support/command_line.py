"""The command line as a user calls it, run in this process with captured output."""

import json
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli import doctor
from headway.cli.root import run
from headway.core.instants import HOUR
from headway.operations import attention, monitoring
from headway.operations import job_context as around
from tests.support.waiting import wait_until


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands in this process tolerate a slow machine.

    A node that a test creates beats once. It is alive for an hour, not for ten seconds.
    """
    monkeypatch.setattr(around, "ALIVE_WITHIN", HOUR)
    monkeypatch.setattr(doctor, "SKEW_S_MAX", 3_600.0)
    monkeypatch.setattr(attention, "SKEW_S_MAX", 3_600.0)
    monkeypatch.setattr(monitoring, "PROBE_S_MAX", 3_600.0)
    monkeypatch.setattr(doctor, "AUDIT_S_MAX", 3_600.0)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 1), self.err
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        assert self.out == ""
        body: dict[str, str] = json.loads(self.err)["error"]
        return body


class Cli:
    """Runs commands and captures their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, *args: str) -> Result:
        code = run(args)
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def await_words(self, words: str) -> None:
        """Wait in another thread until the running command has printed this."""
        captures: Any = sys.stdout
        wait_until(lambda: words in captures.getvalue(), f"the command to write {words!r}")

    def sql(self, statement: str, *parameters: object) -> list[Any]:
        """Read the store, or damage it, without Headway."""
        with sqlite3.connect(self.folder / "headway.db") as connection:
            return connection.execute(statement, parameters).fetchall()
