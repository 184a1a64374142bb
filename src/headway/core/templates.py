"""Text templates with arguments: `report:{tenant_id}`. Only a name may stand in braces; `{{` is a literal brace."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headway.core.errors import InvalidTask
from headway.core.instants import quote

_PLACE: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """Texts, and between them the names of arguments."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "Template":
        """Parse a template, or raise an error that names the wrong brace."""
        texts, names, end = [""], [], 0
        for match in _PLACE.finditer(text):
            texts[-1] += text[end : match.start()]
            end = match.end()
            if match[1]:
                names.append(match[1])
                texts.append("")
            elif match[0] in ("{{", "}}"):
                texts[-1] += match[0][0]
            else:
                raise InvalidTask(
                    f"{quote(text)} has a brace that holds no name: write {{name}} for an argument of the job,"
                    " {{ or }} for the brace itself"
                )
        texts[-1] += text[end:]
        return cls(tuple(texts), tuple(names))

    @property
    def only(self) -> str | None:
        """The name of the one argument that the template consists of; None for any other template."""
        return self.names[0] if self.texts == ("", "") else None

    def fill(self, values: Mapping[str, str]) -> str:
        """Replace the names with texts."""
        return self.texts[0] + "".join(
            values[name] + text for name, text in zip(self.names, self.texts[1:], strict=True)
        )

    def require(self, args: Mapping[str, Any], what: str, whose: str) -> None:
        """Raise `InvalidTask` if an argument that the template names does not exist."""
        for name in self.names:
            if name not in args:
                raise InvalidTask(f"{what} needs the argument {name!r}, which the {whose} does not have")

    def fill_from(self, args: Mapping[str, Any]) -> str:
        """Replace the names with the arguments of a job."""
        return self.fill({name: argument_text(name, args[name]) for name in self.names})


def argument_text(name: str, value: Any) -> str:
    """Format an argument as part of a text; raise `InvalidTask` where that is ambiguous, as for None and lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise InvalidTask(f"{name} must be text or a number to be a part of a text, not {quote(value)}")
    return value
