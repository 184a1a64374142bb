"""The limit that a job names: a template over its arguments, such as `account-{account_id}`."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from headway.core.errors import InvalidTask
from headway.core.instants import quote
from headway.core.limits import check_limit_key
from headway.core.templates import Template, argument_text
from headway.core.validation import check_name

_TEMPLATES_KEPT: Final = 256


@lru_cache(_TEMPLATES_KEPT)
def _read(text: str) -> Template:
    return Template.read(text)


def check_limit_template(value: object) -> str:
    """Return a checked template; a text without arguments must be the name of a limit already."""
    text = check_name(value, "limit")
    template = _read(text)
    if not template.names:
        check_limit_key(template.fill({}))
    return text


def check_limit_arguments(text: str, arguments: Collection[str]) -> None:
    """Raise `InvalidTask` if a template needs an argument that the task does not have."""
    for name in _read(text).names:
        if name not in arguments:
            known = ", ".join(sorted(arguments)) or "none"
            raise InvalidTask(
                f"limit {quote(text)} needs the argument {name!r}, which the task does not have; it has {known}"
            )


def fill_limit(text: str, args: Mapping[str, Any]) -> str:
    """Return the limit of a job with these arguments."""
    template = _read(text)
    for name in template.names:
        if name not in args:
            raise InvalidTask(
                f"limit {quote(text)} needs the argument {name!r}, which the job does not have;"
                " pass it, or name another limit"
            )
    return check_limit_key(template.fill({name: argument_text(name, args[name]) for name in template.names}))


def literal(text: str) -> str:
    """Return a template that stands for exactly this text."""
    return text.replace("{", "{{").replace("}", "}}")
