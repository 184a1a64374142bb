"""Withhold Headway's own variables, passwords among them, from tasks; only the app reads them.

They are not in the environment with which a child is started, where every process of the same user could read them. The
child gets them through its standard input, has them in `os.environ` while it imports the app, and removes them before
the first task begins. So programs that tasks start do not inherit them either. `task_env` names exceptions.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from headway.core.errors import InvalidConfig
from headway.core.settings import read_also

PREFIX: Final = "HEADWAY_"
ALLOWED: Final = "HEADWAY_CHILD_ALLOWED"  # The comma-separated variables that tasks may see all the same.
NEVER: Final = frozenset({"HEADWAY_TOKEN"})  # The app does not need it: it talks to the store.
BYTES_MAX: Final = 60_000  # Less than the capacity of a pipe, so writing never blocks.


@contextmanager
def divided(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the environment of a child, and the file from which it reads the withheld variables."""
    names = frozenset(environ.get(ALLOWED, "").split(","))
    withheld = {name: value for name, value in environ.items() if name.startswith(PREFIX) and name not in names}
    shown = {name: value for name, value in environ.items() if name not in withheld}
    data = json.dumps({name: value for name, value in withheld.items() if name not in NEVER}).encode()
    if len(data) > BYTES_MAX:
        raise InvalidConfig(f"the variables {PREFIX}… must have at most {BYTES_MAX} bytes together, not {len(data)}")
    theirs, ours = os.pipe()
    try:
        os.write(ours, data)
        os.close(ours)
        yield shown, theirs
    finally:
        os.close(theirs)


def receive() -> dict[str, str]:
    """Read the withheld variables in a child from its standard input, which is empty from then on."""
    data = bytearray()
    while chunk := os.read(0, BYTES_MAX):
        data += chunk
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    withheld: dict[str, str] = json.loads(data) if data else {}
    withheld.pop(ALLOWED, None)
    return withheld


@contextmanager
def shown(withheld: Mapping[str, str]) -> Iterator[None]:
    """Put the withheld variables into `os.environ` while the app is imported; later only settings read them."""
    os.environ.update(withheld)
    try:
        yield
    finally:
        for name in withheld:
            os.environ.pop(name, None)
        read_also(withheld)
