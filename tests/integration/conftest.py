"""What the tests of the command line share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADWAY_STORE", "HEADWAY_APP", "HEADWAY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Cli(capsys, tmp_path)
    for name in ("shop", "broken", "empty"):
        sys.modules.pop(name, None)
