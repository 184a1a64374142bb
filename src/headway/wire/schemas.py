"""Errors as JSON, and how the specification recognizes the resource that an example shows.

An answer in a table of routes is an example. Where its names are those of a resource, the specification refers to the
resource, so that a job is the same `Job` wherever it turns up.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from headway.wire.base import EXAMPLES, Absent, Resource


class Problem(Resource):
    """Why a request was refused."""

    code: Annotated[str, msgspec.Meta(description="for programs; it stays the same")]
    message: Annotated[str, msgspec.Meta(description="for people; it names the field that is wrong")]
    hint: Annotated[str, msgspec.Meta(description="what to do instead")] | Absent = UNSET


class Error(Resource):
    """The body of every answer from 400 on."""

    error: Problem
    request_id: Annotated[str, msgspec.Meta(description="also in the header X-Request-ID, and in the log")]


@cache
def _names(shape: type[Resource]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(shape))


def shape_of(example: Mapping[str, Any]) -> type[Resource] | None:
    """Return the shape of which an example has the names, or the most telling of them; None when it has others."""
    for shape, (_, telling) in EXAMPLES.items():
        if telling <= example.keys() <= _names(shape):
            return shape
    return None


def whole(example: Any) -> Any:
    """Fill up the shapes in an example that was written shorter, so that those who read it see all the names."""
    match example:
        case dict():
            shape = shape_of(example)
            known = {} if shape is None else EXAMPLES[shape][0]
            return {**known, **{name: whole(value) for name, value in example.items()}}
        case list() | tuple():
            return [whole(item) for item in example]
        case _:
            return example
