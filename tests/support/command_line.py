"""The command line as a user calls it, in this process, with what it writes."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli.root import run


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

    def sql(self, statement: str, *parameters: object) -> list[Any]:
        """Look into the store, or break it, behind Headway's back."""
        with sqlite3.connect(self.folder / "headway.db") as connection:
            return connection.execute(statement, parameters).fetchall()
