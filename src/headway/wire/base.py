"""Building blocks of resources: field types, and a complete example of each for the specification."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar, overload

import msgspec
from msgspec import UnsetType as Absent

from headway.core.instants import Duration, Instant, format_duration, isoformat

__all__ = [
    "Absent",
    "Count",
    "Cursor",
    "Limit",
    "Page",
    "Resource",
    "Span",
    "Time",
    "duration",
    "example",
    "example_of",
]

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200
LISTED_BYTES_MAX: Final = 4_096  # Larger values are left out of lists; `omitted` names them.

Time = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={"format": "date-time"}, description="ISO 8601, UTC", examples=["2027-01-31T06:00:00Z"]
    ),
]
Span = Annotated[str, msgspec.Meta(description="a duration", examples=["1h30m"])]
Count = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX, description="maximum number of items", examples=[PAGE_DEFAULT])]
Cursor = Annotated[str, msgspec.Meta(description="`next_cursor` of the previous page")]
Omitted = Annotated[
    list[str],
    msgspec.Meta(description="fields too large for this list; the object itself has them", examples=[["args"]]),
]

T = TypeVar("T")
R = TypeVar("R", bound="type[Resource]")


class Resource(msgspec.Struct):
    """An object of the API. Some fields may be absent."""


class Page(msgspec.Struct, Generic[T]):
    """A page of a list. Repeat the request with `cursor` = `next_cursor` until that is null."""

    items: list[T]
    next_cursor: str | None = None


# A complete example of each resource, and the names by which a shorter example is recognized.
EXAMPLES: Final[dict[type[Resource], tuple[Mapping[str, Any], frozenset[str]]]] = {}


def example_of(kind: type[Resource]) -> dict[str, Any]:
    """Return the complete example of a resource."""
    return dict(EXAMPLES[kind][0])


def example(values: Mapping[str, Any], *, known_by: frozenset[str]) -> Callable[[R], R]:
    """Give a resource its example; the specification refers to the resource wherever these names occur."""

    def register(kind: R) -> R:
        EXAMPLES[kind] = values, known_by
        return kind

    return register


@overload
def stamp(instant: Instant) -> str: ...


@overload
def stamp(instant: None) -> None: ...


@overload
def stamp(instant: Instant | None) -> str | None: ...


def stamp(instant: Instant | None) -> str | None:
    """Format an instant for JSON: ISO 8601 UTC with `Z`, or null."""
    return None if instant is None else isoformat(instant)


def duration(value: Duration | None) -> str | None:
    """Format a duration for JSON, or null."""
    return None if value is None else format_duration(value)


def is_longer(text: str, size: int) -> bool:
    """Return whether a text has more than this many bytes."""
    return len(text) > size or (4 * len(text) > size and len(text.encode("utf-8", "replace")) > size)
