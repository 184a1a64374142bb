"""Failures: what an error is called, which errors are the same, and dead letters.

Errors that differ only in numbers and ids are one error: `row 17 is bad` and `row 18 is bad` are both `row … is bad`.
The command line, the API and the dashboard group and filter with `error_kind`, so that all select the same jobs.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from headway.core.instants import Instant
from headway.core.lifecycle import Status

TYPE_LENGTH_MAX: Final = 100
MESSAGE_LENGTH_MAX: Final = 200
ERROR_TEXT_MAX: Final = 1_000  # Of an error to search for.

_NO_MESSAGE: Final = "(no message)"
# A truncated error: the message may end in the middle of an escape.
_CUT: Final = re.compile(r'\{"type": ?"((?:[^"\\]|\\.)*)", ?"message": ?"((?:[^"\\]|\\.)*)', re.DOTALL)
_HALF_ESCAPE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u[0-9a-fA-F]{0,3}$")
_WITHOUT: Final = r"\1"
_SAME: Final = (
    re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE),
    re.compile(r"\b[a-z]{2,5}_[0-9a-z]{20,}\b"),
    re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE),
    re.compile(r"[0-9]+(?:\.[0-9]+)*"),
)


def error_text(error: str | None, *, status: str, reason: str | None) -> str:
    """Return a stored error, or its beginning, as one line: `OSError: row 17 is bad`."""
    if error is None:
        return _one_line(f"{status}: {reason or 'no error was recorded'}")
    kind, message = _read(error)
    return _one_line(f"{kind}: {message.strip().splitlines()[0] if message.strip() else _NO_MESSAGE}")


def error_kind(text: str) -> str:
    """Return an error without numbers and ids: `OSError: row … is bad`. The kind of a kind is itself."""
    kind, _, message = _one_line(text).partition(": ")
    while (simpler := _simplified(message)) != message:
        message = simpler
    return f"{_clipped(kind, TYPE_LENGTH_MAX)}: {message or _NO_MESSAGE}"


def is_meant(kind: str, wanted: str) -> bool:
    """Return whether a kind of error matches: it is equal, or `wanted` is only its type."""
    if ": " in wanted:
        return kind == error_kind(wanted)
    return kind.startswith(f"{_clipped(_one_line(wanted), TYPE_LENGTH_MAX)}: ")


def _read(error: str) -> tuple[str, str]:
    """Read type and message of a stored error; any other text is a message without a type."""
    try:
        found = msgspec.json.decode(error)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        cut = _CUT.match(error)
        if cut is None:
            return "Error", error
        return _unescaped(cut[1]), _unescaped(cut[2])
    if not isinstance(found, dict):
        return "Error", str(found)
    return str(found.get("type") or "Error"), str(found.get("message") or "")


def _unescaped(text: str) -> str:
    """Unescape the inside of a JSON string; drop an incomplete escape at its end."""
    try:
        return msgspec.json.decode(f'"{_HALF_ESCAPE.sub(_WITHOUT, text)}"', type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _simplified(message: str) -> str:
    for pattern in _SAME:
        message = pattern.sub("…", message)
    return _clipped(message, MESSAGE_LENGTH_MAX)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter, or a job that was one, without its arguments and result."""

    id: str
    tenant: str
    task: str
    status: Status
    finished_at: Instant | None
    error: str
    is_dead: bool = True

    @property
    def kind(self) -> str:
        """The kind of its error."""
        return error_kind(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Jobs of one task with the same kind of error; `example` is the error of the newest."""

    task: str
    error: str
    jobs: int
    newest: str
    example: str
    newest_at: Instant
    oldest_at: Instant
