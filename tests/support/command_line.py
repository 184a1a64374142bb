"""The command line as a user calls it, in this process, with what it writes."""

import json
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli.root import run

WORDS_S_MAX = 20


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
        deadline = time.monotonic() + WORDS_S_MAX
        captures: Any = sys.stdout
        while words not in captures.getvalue():
            assert time.monotonic() < deadline, f"{words!r} is not said"
            time.sleep(0.01)

    def sql(self, statement: str, *parameters: object) -> list[Any]:
        """Look into the store, or break it, behind Headway's back."""
        with sqlite3.connect(self.folder / "headway.db") as connection:
            return connection.execute(statement, parameters).fetchall()
