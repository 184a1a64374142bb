"""What the servers and nodes of a test wrote, printed when the test fails.

Whatever starts a process registers its output here: `log_file` for output that goes to a file, `attach` for lines
that the test reads itself, `note` for a seed or another fact that explains a failure. `tests/conftest.py` adds it
all to the report of a failed test. For a server that many tests share, only what it wrote during the test is shown.
"""

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LINES_MAX = 80
LINE_LENGTH_MAX = 2_000

ReadFrom = Callable[[int], str]


@dataclass(eq=False)
class Source:
    """The output of one process. `close` keeps what it wrote during this test and stops reading."""

    name: str
    read: ReadFrom
    size: Callable[[], int]
    shared: bool
    start: int = 0  # Where the output of the running test begins.

    def text(self) -> str:
        """Return what was written during the running test."""
        try:
            return self.read(self.start)
        except OSError as gone:
            return f"(cannot be read: {gone})"

    def close(self) -> None:
        """Read the output for the last time, since its file may be removed now."""
        text = self.text()
        self.read, self.shared = lambda _: text, False


_sources: list[Source] = []
_numbers = itertools.count(1)
_folder: tempfile.TemporaryDirectory[str] | None = None


def attach(name: str, read: Callable[[], str], *, shared: bool = False) -> Source:
    """Show what `read` returns if the running test fails; with `shared` also for later tests, until it is closed."""
    return _add(Source(name, lambda start: read()[start:], lambda: len(read()), shared))


def watch(name: str, path: Path, *, shared: bool = False) -> Source:
    """Show the end of a file if the running test fails; with `shared` also for later tests, until it is closed."""
    return _add(Source(name, lambda start: _read(path, start), lambda: path.stat().st_size, shared))


def note(name: str, value: object) -> None:
    """Show a fact, such as a seed, if the running test fails."""
    attach(name, lambda: str(value))


def log_file(name: str, *, shared: bool = False) -> Path:
    """Return the path of a new, empty file for the output of a process. It is removed when the test run ends."""
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="hw-logs-", ignore_cleanup_errors=True)
    path = Path(_folder.name) / f"{next(_numbers)}.log"
    path.touch()
    watch(name, path, shared=shared)
    return path


def begin_test() -> None:
    """Forget the output of the previous test."""
    _sources[:] = [source for source in _sources if source.shared]
    for source in _sources:
        try:
            source.start = source.size()
        except OSError:
            source.start = 0


def sections() -> list[tuple[str, str]]:
    """Return the name and the latest lines of every process that wrote something during the running test."""
    found = [(source.name, _latest_lines(source.text())) for source in _sources]
    return [(name, text) for name, text in found if text]


def _add(source: Source) -> Source:
    _sources.append(source)
    return source


def _read(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _latest_lines(text: str) -> str:
    lines = text.strip().splitlines()
    kept = [line[:LINE_LENGTH_MAX] for line in lines[-LINES_MAX:]]
    return "\n".join([f"… {len(lines) - LINES_MAX} earlier lines", *kept] if len(lines) > LINES_MAX else kept)
