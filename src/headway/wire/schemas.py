"""Errors as JSON, and how the specification recognizes the resource in an example.

A response in a route table is an example. If its names are those of a resource, the specification refers to the
resource, so that a job is the same `Job` everywhere.
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
    """The body of every response from 400 on."""

    error: Problem
    request_id: Annotated[str, msgspec.Meta(description="also in the header X-Request-ID, and in the log")]


@cache
def _names(shape: type[Resource]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(shape))


def shape_of(example: Mapping[str, Any]) -> type[Resource] | None:
    """Return the resource whose names, or most distinctive names, an example has; None if it has others."""
    for shape, (_, telling) in EXAMPLES.items():
        if telling <= example.keys() <= _names(shape):
            return shape
    return None


def whole(example: Any) -> Any:
    """Complete the resources in a short example, so that readers see all fields."""
    match example:
        case dict():
            shape = shape_of(example)
            known = {} if shape is None else EXAMPLES[shape][0]
            return {**known, **{name: whole(value) for name, value in example.items()}}
        case list() | tuple():
            return [whole(item) for item in example]
        case _:
            return example
