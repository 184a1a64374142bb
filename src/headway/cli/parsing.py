"""Parse option values strictly: times, durations, arguments. Errors name the option."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from headway.core.errors import DefinitionError, InvalidTask
from headway.core.instants import SECOND, parse_duration
from headway.operations.times import read_future as read_future
from headway.operations.times import read_past as read_past

ARGS_JSON_MAX: Final = 4 * 1024 * 1024

ArgOption = Annotated[
    list[str] | None,
    typer.Option("-a", "--arg", metavar="K=V", help="One argument; the value is JSON where it can be, else text."),
]
ArgsOption = Annotated[str | None, typer.Option("--args", metavar="JSON", help="All arguments as one JSON object.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="Wait no longer than this (exit code 6).")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_args(pairs: Sequence[str] | None, text: str | None) -> dict[str, Any]:
    """Merge `--args` and `-a`; the latter wins."""
    args: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidTask(f"-a must look like name=value, not {pair[:60]!r}")
        if name in args:
            raise InvalidTask(f"-a {name[:60]}=… is given twice; give it once, a list as {name[:60]}='[1, 2]'")
        args[name] = _read_value(value)
    return (_read_object(text) if text is not None else {}) | args


def _read_object(text: str) -> dict[str, Any]:
    if len(text) > ARGS_JSON_MAX:
        raise InvalidTask("--args is too long; store large data elsewhere")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidTask(f"--args must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidTask('--args must be one JSON object, such as {"n": 20}')
    return value


def _read_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def read_timeout(text: str | None, is_waiting: bool) -> float | None:
    """Parse how long to wait, in seconds."""
    if text is None:
        return None
    if not is_waiting:
        raise DefinitionError("--timeout needs --wait")
    return parse_duration(text, what="--timeout") / SECOND


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation of something that cannot be undone; without a terminal, require `--yes`."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise DefinitionError(f"{question} Without a terminal, confirm with --yes")
    typer.confirm(question, abort=True, err=True)
