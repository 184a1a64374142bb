"""Output: tables and facts, formatted on a terminal and plain in a pipe, and JSON as one value.

On a terminal rich draws, in colour unless NO_COLOR says no. In a pipe columns are aligned with spaces, never cut, and
carry no escape of any kind. Cells are data: they go through `clean` here, so no command has to remember it.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway.cli.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_GAP: Final = "  "
WRAPPED_WIDTH_MIN: Final = 8
# Semantic styles: every colour is accompanied by a word.
STYLES: Final = {
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "quiet": "dim",
    "name": "bold",
    "time": "cyan",
    "": "",
}
WORD_STYLES: Final = {
    "fired": "good",
    "skipped": "warn",
    "missed": "bad",
    "coalesced": "quiet",
    "paused": "warn",
    "on": "good",
    "over": "quiet",
    "held": "bad",
    "failing": "bad",
    "alive": "good",
    "draining": "warn",
    "COMPLETED": "good",
    "FAILED": "bad",
    "TIMED_OUT": "bad",
    "RETRYING": "warn",
    "BLOCKED": "warn",
    "CANCELLED": "quiet",
    "RUNNING": "time",
    "created": "good",
    "changed": "warn",
    "removed": "bad",
    "unchanged": "quiet",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title and the meaning of its cells.

    On a narrow terminal those that are `spare` are left out, the last one first; then those that wrap are broken over
    lines. In a pipe everything is there.
    """

    title: str
    style: str = ""
    wraps: bool = False
    right: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one command."""

    as_json: bool = False

    @property
    def on_terminal(self) -> bool:
        """Whether the output is an interactive terminal."""
        return sys.stdout.isatty()

    def json(self, value: object) -> None:
        """Write one JSON value: indented for people, in one line for programs."""
        print(to_json(value, indent=2 if self.on_terminal else None))

    def say(self, text: str = "", style: str = "") -> None:
        """Write a line of text; data in it must be `clean` already."""
        if self.on_terminal:
            console().print(_text(text, style))
        else:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Write a line to stderr, so that it does not disturb programs that read the output."""
        print(text, file=sys.stderr)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, indent: int = 0) -> None:
        """Write a table; without titles it has no header, and empty columns are left out."""
        cells = [[clean("—" if cell is None else cell) for cell in row] for row in rows]
        kept = [index for index, column in enumerate(columns) if column.title or any(row[index] for row in cells)]
        width = console().width - indent if self.on_terminal else 0
        if self.on_terminal:
            kept = _fitting(columns, cells, kept, width)
        columns, cells = [columns[index] for index in kept], [[row[index] for index in kept] for row in cells]
        if self.on_terminal and _least_width(columns, cells) <= width:
            _draw(columns, cells, indent)
        else:
            has_head = any(column.title for column in columns)
            _align([[column.title for column in columns], *cells] if has_head else cells, columns, indent)

    def facts(self, pairs: Mapping[str, object]) -> None:
        """Write one thing as names and values."""
        shown = [(name, value) for name, value in pairs.items() if value not in (None, "")]
        self.table((Column("", "quiet"), Column("", wraps=True)), shown)


def stop_writing() -> None:
    """Stop writing after a broken pipe, and flush nothing into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def to_json(value: object, *, indent: int | None = None) -> str:
    """Write JSON in which nothing but line ends is unprintable."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_builtins)
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _builtins(value: object) -> object:
    import msgspec  # Imported here, since `--help` does not need it.

    return msgspec.to_builtins(value)


_UNPRINTABLE: Final = re.compile(r"[^\n\x20-\x7e]")


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"


def console(*, error: bool = False) -> "Console":
    """Return a console of rich, which reads NO_COLOR and TERM by itself."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, markup=False, emoji=False)


def _text(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(text, style=STYLES.get(style, style))


def _style(style: str, cell: str) -> str:
    return style or WORD_STYLES.get(cell.partition(" ")[0].rstrip(":"), "")


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int], width: int) -> list[int]:
    """Leave out spare columns, the last first, until the rest fits."""
    left = list(kept)
    spare = [index for index in kept if columns[index].spare]
    while spare and sum(_width(index, columns, rows) + len(_GAP) for index in left) > width:
        left.remove(spare.pop())
    return left


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return the width below which rich would truncate cells that must stay complete."""
    widths = (_width(index, columns, rows) for index in range(len(columns)))
    return sum(
        min(width, WRAPPED_WIDTH_MIN) + len(_GAP) if column.wraps else width + len(_GAP)
        for column, width in zip(columns, widths, strict=True)
    )


def _width(index: int, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    return max(len(columns[index].title), *(len(row[index]) for row in rows)) if rows else 0


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: int) -> None:
    from rich.padding import Padding

    console().print(Padding(drawn(columns, rows), (0, 0, 0, indent)))


def drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> "Table":
    """Return a table as rich draws it; its cells must be `clean` already."""
    from rich.table import Table

    has_head = any(column.title for column in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=has_head)
    for column in columns:
        table.add_column(
            column.title,
            no_wrap=not column.wraps,
            overflow="fold",  # Never truncate: wrap long cells.
            justify="right" if column.right else "left",
        )
    for row in rows:
        table.add_row(*(_text(cell, _style(column.style, cell)) for column, cell in zip(columns, row, strict=True)))
    return table


def _align(rows: Sequence[Sequence[str]], columns: Sequence[Column], indent: int) -> None:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        print(" " * indent + _GAP.join(cells).rstrip())
