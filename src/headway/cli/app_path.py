"""Find the app that `--app module:app` names, and suggest the right name if there is none."""

import importlib
import os
import sys
import traceback
from typing import Any

from headway.app import Headway
from headway.core.errors import HeadwayError, InvalidConfig


def load_app(path: str) -> Headway:
    """Import `module:app`, also from the current folder; an error says in one line what is wrong."""
    module_name, _, attribute = path.partition(":")
    attribute = attribute or "app"
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise InvalidConfig(f"--app must look like module:app, not {path[:60]!r}{_meant(path)}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except HeadwayError:
        raise
    except Exception as error:  # The user's module may raise anything.
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        hint = _meant(path) if is_missing else _place_of(error)
        raise InvalidConfig(
            f"the app {path!r} cannot be imported from {os.getcwd()}: {type(error).__name__}: {error}{hint}"
        ) from error
    for part in attribute.split("."):
        missing_in, found = found, getattr(found, part, None)
    if not isinstance(found, Headway):
        kind = "is not there" if found is None else f"is {type(found).__name__}, not Headway"
        apps = [name for name, value in getattr(missing_in, "__dict__", {}).items() if isinstance(value, Headway)]
        hint = f"; did you mean {module_name}:{apps[0]}?" if apps else ""
        raise InvalidConfig(f"the app {path!r} cannot be used: {attribute!r} {kind}{hint}")
    return found


def _meant(path: str) -> str:
    """Suggest the app that was meant by `jobs.app`, `jobs.py`, `jobs.py:app` or `src/jobs.py`, if its file is here."""
    text, _, attribute = path.replace(os.sep, ".").lstrip(".").partition(":")
    words = text.removesuffix(".py").split(".")
    for count in range(len(words), 0, -1):
        parts, rest = words[:count], words[count:]
        module = os.path.join(*parts)
        if all(map(str.isidentifier, words)) and any(map(os.path.isfile, (f"{module}.py", f"{module}/__init__.py"))):
            meant = f"{'.'.join(parts)}:{attribute or '.'.join(rest) or 'app'}"
            return f"; did you mean {meant}?" if meant not in (path, f"{path}:app") else ""
    return ""


def _place_of(error: Exception) -> str:
    """Return where in the files of this folder an exception was raised; a syntax error already says it."""
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(os.getcwd() + os.sep)]
    return f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""
