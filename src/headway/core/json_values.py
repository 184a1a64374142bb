"""JSON that users give: arguments, results and metadata."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headway.core.errors import InvalidTask
from headway.core.validation import NAME_LENGTH_MAX

JsonObject: TypeAlias = dict[str, Any]
ARGS_BYTES_MAX: Final = 256 * 1024


def encode_args(value: object, what: str = "args") -> str:
    """Encode arguments as canonical JSON, so that equal arguments have equal text; refuse large ones."""
    if isinstance(value, str):
        value = _decode_args(value, what)
    if not isinstance(value, Mapping):
        raise InvalidTask(f"{what} must be an object of names and values, not {type(value).__name__}")
    try:
        text = msgspec.json.encode(value, order="deterministic").decode()
        check_finite(value, text, what)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidTask(f"{what} must be JSON: {error}") from None
    if len(text) > ARGS_BYTES_MAX or len(text.encode()) > ARGS_BYTES_MAX:
        raise _too_large(what)
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidTask(f"{what} must not contain NUL characters; PostgreSQL cannot store them")
    return text


def check_finite(value: object, text: str, what: str) -> None:
    """Refuse NaN and infinity, which msgspec would silently encode as null."""
    if "null" not in text:
        return
    # A stack instead of recursion: values may be nested as deeply as the encoder allows.
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)  # The hook is for `Raw`, which is JSON already.
    left: list[tuple[str, Any]] = [("", plain)]
    while left:
        place, found = left.pop()
        if isinstance(found, float) and not math.isfinite(found):
            where = f" at {place[:NAME_LENGTH_MAX]}" if place else ""
            raise InvalidTask(f"{what} must be JSON, which has no {found}{where}; give a number, a text or None")
        if isinstance(found, dict):
            left += [(f"{place}.{name}" if place else name, part) for name, part in found.items()]
        elif isinstance(found, list | tuple):
            left += [(f"{place}[{at}]", part) for at, part in enumerate(found)]


_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # Skips escaped backslashes.


def _decode_args(text: str, what: str) -> object:
    if len(text) > ARGS_BYTES_MAX:
        raise _too_large(what)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidTask(f"{what} must be JSON: {error}") from None


def _too_large(what: str) -> InvalidTask:
    return InvalidTask(f"{what} must have at most {ARGS_BYTES_MAX} bytes as JSON; store large data elsewhere")
