"""Parse JSON strictly: no duplicate names, no NaN, no NUL, bounded depth and number of values."""

import json
import math
import re
from collections import Counter
from typing import Any, Final, NamedTuple

from headway.server.refusals import Refused

DEPTH_MAX: Final = 64
VALUES_MAX: Final = 100_000  # In one body: objects, arrays, strings, numbers.
PIECE_BYTES: Final = 1 << 20
DIGITS_MAX: Final = 400
PATH_LENGTH_MAX: Final = 80

_COMMA: Final = ord(",")
_STRING: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)


def _has_more_values(data: bytes, most: int) -> bool:
    """Return whether JSON has more values than that, without parsing it.

    Each value but the first follows a comma or an opening bracket. Strings may contain such characters too: they are
    excluded only if the simple count is too large.
    """
    if _separators(data) < most:
        return False
    found, end = 0, 0
    for text in _STRING.finditer(data):
        gap = text.start() - end
        if gap:
            found += 1 if gap == 1 and data[end] == _COMMA else _separators(data, end, end + gap)
        end = text.end()
        if found >= most:
            return True
    return found + _separators(data, end) >= most


def _separators(data: bytes, start: int = 0, end: int | None = None) -> int:
    """Count commas and non-empty brackets, in pieces, so that other threads can run; a split `[]` counts once more."""
    found, end = 0, len(data) if end is None else end
    for at in range(start, end, PIECE_BYTES):
        until = min(at + PIECE_BYTES, end)
        opened = data.count(b"[", at, until) + data.count(b"{", at, until)
        found += data.count(b",", at, until) + opened - data.count(b"[]", at, until) - data.count(b"{}", at, until)
    return found


def read_json_strictly(data: bytes, most: int = VALUES_MAX) -> Any:
    """Parse JSON strictly: no duplicate names, no NaN, no NUL, bounded depth, exact integers."""
    if _has_more_values(data, most):
        raise Refused(413, "too_large", f"the body may have at most {most:,} values")
    try:
        value = json.loads(
            data,
            object_pairs_hook=_without_duplicates,
            parse_constant=lambda text: _Wrong(f"{text} is not a number in JSON"),
            parse_float=_finite,
            parse_int=_bounded_int,
        )
    except RecursionError:
        raise Refused(422, "too_deep", f"the JSON may be nested {DEPTH_MAX} deep at most") from None
    except UnicodeDecodeError:
        raise Refused(400, "not_json", "the body is not UTF-8") from None
    except ValueError as error:
        raise Refused(400, "not_json", f"the body is not JSON: {error}") from None
    if (wrong := _what_is_wrong(value)) is not None:
        culprit, why = wrong
        raise Refused(422, "invalid", f"{_path_to(culprit, value)}: {why}")
    return value


class _Wrong(NamedTuple):
    """Stands for an unacceptable value until its path is known."""

    why: str


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Refused(422, "duplicate_name", f"the name {twice[:80]!r} is there twice")
    return found


def _finite(text: str) -> float | _Wrong:
    number = float(text)
    return _Wrong(f"{text[:40]} is too large for a number") if math.isinf(number) else number


def _bounded_int(text: str) -> int | _Wrong:
    return _Wrong(f"a number may have {DIGITS_MAX} digits at most") if len(text) > DIGITS_MAX else int(text)


def _what_is_wrong(value: Any) -> tuple[Any, str] | None:
    """Return an unacceptable value and the reason, if there is one; breadth-first, since it may be deep."""
    level = [value]
    for depth in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict | list):
                if depth == DEPTH_MAX:
                    return item, f"nested more than {DEPTH_MAX} deep"
                inner += item  # The names of an object.
                if isinstance(item, dict):
                    inner += item.values()
            elif isinstance(item, _Wrong):
                return item, item.why
            elif isinstance(item, str) and (why := _what_is_wrong_with(item)):
                return item, why
        level = inner
    return None


def _what_is_wrong_with(text: str) -> str | None:
    if "\x00" in text:
        return f"{text[:40]!r} has a NUL character, which databases cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{text[:40]!r} has half of a surrogate pair, which is not valid text"
    return None


def _path_to(culprit: Any, value: Any) -> str:
    """Return the path of a value in dotted notation; for a name, the path of its object."""
    level: list[tuple[str, Any]] = [("", value)]
    while level:
        inner: list[tuple[str, Any]] = []
        for path, item in level:
            if item is culprit or (isinstance(item, dict) and any(name is culprit for name in item)):
                return path.lstrip(".")[:PATH_LENGTH_MAX] or "the body"
            if isinstance(item, dict):
                inner += [(f"{path}.{name}", part) for name, part in item.items()]
            elif isinstance(item, list):
                inner += [(f"{path}[{number}]", part) for number, part in enumerate(item)]
        level = inner
    return "the body"
