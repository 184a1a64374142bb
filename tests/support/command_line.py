"""The command line as a user calls it, in this process, with what it writes."""

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
    """Let commands in this process take a machine for healthy that is slow.

    A node that a test has made beats once. It is alive for an hour, not for ten seconds.
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
    """Calls commands and captures what they write."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, *args: str) -> Result:
        code = run(args)
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def await_words(self, words: str) -> None:
        """Wait in another thread until the command that runs has written this."""
        captures: Any = sys.stdout
        wait_until(lambda: words in captures.getvalue(), f"the command to write {words!r}")

    def sql(self, statement: str, *parameters: object) -> list[Any]:
        """Look into the store, or break it, behind Headway's back."""
        with sqlite3.connect(self.folder / "headway.db") as connection:
            return connection.execute(statement, parameters).fetchall()
