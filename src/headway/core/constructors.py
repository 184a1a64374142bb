"""Compile functions that build a struct, with the names of its fields known only at run time.

`dataclasses` does the same. A compiled call is as fast as one written by hand; unpacking a dict into the call takes up
to twice as long, and jobs are built by the ten thousand.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def constructor(
    struct: Callable[..., Any], parameters: str, arguments: Mapping[str, str], **names: object
) -> Callable[..., Any]:
    """Return `lambda parameters: struct(name=expression, …)`; expressions may use the parameters and these names."""
    call = ", ".join(f"{name}={expression}" for name, expression in arguments.items())
    compiled: Callable[..., Any] = eval(f"lambda {parameters}: struct({call})", {**names, "struct": struct})
    return compiled


def attributes(source: str, names: Iterable[str]) -> dict[str, str]:
    """Return expressions that read these attributes of a parameter, for `constructor`."""
    return {name: f"{source}.{name}" for name in names}
