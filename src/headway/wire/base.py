"""What every resource is made of: the types of its fields, and a complete example of each for the specification."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UnsetType as Absent

__all__ = ["Absent", "Count", "Cursor", "Limit", "Page", "Resource", "Span", "Time", "example", "example_of"]

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200

Time = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={"format": "date-time"}, description="ISO 8601, UTC", examples=["2027-01-31T06:00:00Z"]
    ),
]
Span = Annotated[str, msgspec.Meta(description="a duration", examples=["1h30m"])]
Count = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX, description="how many at most", examples=[PAGE_DEFAULT])]
Cursor = Annotated[str, msgspec.Meta(description="`next_cursor` of the page before")]

T = TypeVar("T")
R = TypeVar("R", bound="type[Resource]")


class Resource(msgspec.Struct):
    """An object of the API. Some fields may be absent."""


class Page(msgspec.Struct, Generic[T]):
    """Part of a list. Ask again with `cursor` = `next_cursor` until that is null."""

    items: list[T]
    next_cursor: str | None = None


# A complete example of each resource, and the names by which a shorter example is recognized.
EXAMPLES: Final[dict[type[Resource], tuple[Mapping[str, Any], frozenset[str]]]] = {}


def example_of(kind: type[Resource]) -> dict[str, Any]:
    """Return the complete example of a resource."""
    return dict(EXAMPLES[kind][0])


def example(values: Mapping[str, Any], *, known_by: frozenset[str]) -> Callable[[R], R]:
    """Give a resource its example; the specification refers to the resource wherever these names turn up."""

    def register(kind: R) -> R:
        EXAMPLES[kind] = values, known_by
        return kind

    return register
