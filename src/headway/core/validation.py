"""Check names, numbers and texts that users give."""

from typing import Final

from headway.core.errors import InvalidTask
from headway.core.instants import quote
from headway.core.lifecycle import Status

NAME_LENGTH_MAX: Final = 200
KEY_LENGTH_MAX: Final = 512
REASON_LENGTH_MAX: Final = 500
TAGS_MAX: Final = 32
PRIORITY_MAX: Final = 1_000
ATTEMPTS_MAX: Final = 1_000


def check_name(value: object, what: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return a name that is safe to store and show; raise `InvalidTask` with the reason otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidTask(f"{what} must be non-empty text, not {quote(value)}")
    if len(value) > length_max:
        raise InvalidTask(f"{what} must have at most {length_max} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidTask(f"{what} must not have control characters: {value[:40]!r}")
    return value


def check_int(value: object, what: str, low: int, high: int) -> int:
    """Return an integer within its bounds; raise `InvalidTask` with the bounds otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidTask(f"{what} must be a whole number from {low} to {high}, not {quote(value)}")
    return value


def check_tags(value: object, what: str = "tags") -> tuple[str, ...]:
    """Return tags as a tuple of names, at most `TAGS_MAX`."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or len(value) > TAGS_MAX:
        raise InvalidTask(f"{what} must be a list of at most {TAGS_MAX} texts")
    return tuple(check_name(tag, "tag") for tag in value)


def read_status(value: object) -> Status:
    """Return a status by its name; raise `InvalidTask` with the known ones otherwise."""
    try:
        return Status(str(value).upper())
    except ValueError:
        raise InvalidTask(f"status must be one of {', '.join(Status)}, not {quote(value)}") from None


def storable(text: str, length_max: int) -> str:
    """Return text that every database can store: without NUL and lone surrogates, and truncated."""
    if len(text) > length_max:
        text = f"{text[: length_max - 20]}… ({len(text):,} characters)"
    return text.replace("\x00", "␀").encode("utf-8", "replace").decode()
