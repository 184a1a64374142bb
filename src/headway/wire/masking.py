"""Mask secrets by their names, wherever user data is shown."""

import re
from functools import lru_cache
from typing import Any, Final, Literal

MASK: Final = "***"
DEPTH_SHOWN: Final = 100  # Deeper than a request body may be.
# A word of a name that marks a secret, in lowercase. Some names join two words: dbpassword.
_SECRET: Final = re.compile(
    r"""
      ^pass(?!ag|ed|eng|es|i[nov]|able|over|th)                               # pass, passwd; not passenger, passed
    | (?<!by)(?<!com)(?<!over)(?<!sur)(?<!tres)(?<!under)pass$                # dbpass; not bypass, compass
    | pass(word|wd|phrase|code|key) | pwd | ^pw$
    | token(?!i[sz]) | secret(?!ar) | credential | ^creds?$ | ^jwt$ | ^bearer$ | ^cookies?$
    | apikey | ^(access|auth|encryption|master|private|public|secret|signing|ssh)?keys?$
    | ^o?auth$ | ^authenti | authori[sz]ation
    """,
    re.VERBOSE,
)
# A fast pre-check: every name that the other expression matches also matches this one.
_HINT: Final = re.compile("pass|pwd|pw|token|secret|cred|jwt|bearer|cookie|key|auth")
_WORD_ENDS: Final = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_MEASURES: Final = frozenset({"bits", "count", "length", "limit", "size", "total", "ttl"})
_NESTED: Final = frozenset({dict, list})
_NAMES_KEPT: Final = 4_096
_NAME_LENGTH_KEPT: Final = 64


def masked(value: Any, depth: int = DEPTH_SHOWN) -> Any:
    """Mask values whose names look like secrets, at any depth; very deep values are left out."""
    kind = type(value)  # Exact types, as the JSON parser returns: a fifth of the cost of isinstance.
    if kind is not dict and kind is not list:
        return value
    if not depth:
        return "…"
    if kind is list:
        return [masked(inner, depth - 1) if inner and type(inner) in _NESTED else inner for inner in value]
    return {
        name: MASK
        if _is_secret(name, inner)
        else masked(inner, depth - 1)
        if inner and type(inner) in _NESTED
        else inner
        for name, inner in value.items()
    }


def unmasked(value: Any, stored: Any) -> Any:
    """Restore masked values: a client that reads, edits and writes back a definition has not seen its secrets."""
    if isinstance(value, dict):
        known = stored if isinstance(stored, dict) else {}
        return {
            name: known[name]
            if inner == MASK and name in known and _is_secret(name, known[name])
            else unmasked(inner, known.get(name))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        known_items = stored if isinstance(stored, list) and len(stored) == len(value) else [None] * len(value)
        return [unmasked(inner, known) for inner, known in zip(value, known_items, strict=True)]
    return value


def _is_secret(name: object, value: object) -> bool:
    if value is None or value == "" or isinstance(value, bool) or not isinstance(name, str):
        return False
    kind = _named(name) if len(name) <= _NAME_LENGTH_KEPT else _named.__wrapped__(name)
    return kind == "secret" or (kind == "secrets" and not isinstance(value, int | float))


@lru_cache(_NAMES_KEPT)
def _named(name: str) -> Literal["plain", "secret", "secrets"]:
    """Return whether a name marks a secret. Counts do not: max_tokens, key_size."""
    if not _HINT.search(name.lower()):
        return "plain"
    words = {*_WORD_ENDS.sub(" ", name).lower().split(), *_NO_LETTERS.sub(" ", name).lower().split()}
    secret = [word for word in words if _SECRET.search(word)]
    if not secret:
        return "plain"
    is_plural = all(word.endswith("s") and not word.endswith("ss") for word in secret)
    return "secrets" if is_plural or words & _MEASURES else "secret"
