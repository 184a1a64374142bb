"""The columns of the table `jobs`, derived from the structs in `headway.core.jobs`.

A field of `JobFields` or `Job` is a column of the same name. Two fields, back-off and timeout, share the column
`options`. Two columns, `log_bytes` and `apart_for`, are not fields. Those in `ONLY_FOR_CLAIMS` are not read with jobs.
The window of a new job is not a column.
"""

from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from headway.core.jobs import Erased, Job, JobFields, Large, NewJob
from headway.core.lifecycle import Status

_IN_OPTIONS: Final = ("backoff", "timeout")
_NOT_STORED: Final = ("omitted", "window")
_NOT_FIELDS: Final = ("log_bytes", "apart_for")
ONLY_FOR_CLAIMS: Final = frozenset({"limited_task", "held"})
_HINTS: Final = get_type_hints(Job, include_extras=True)
_KINDS: Final[dict[str, Any]] = {**get_type_hints(NewJob), **get_type_hints(Job)}


def _columns(fields: tuple[str, ...]) -> tuple[str, ...]:
    return (*(name for name in fields if name not in (*_IN_OPTIONS, *_NOT_STORED)), "options")


def _marks(name: str) -> tuple[object, ...]:
    return _HINTS[name].__metadata__ if get_origin(_HINTS[name]) is Annotated else ()


def _with_kind(columns: tuple[str, ...], kind: object) -> tuple[str, ...]:
    return tuple(name for name in columns if _KINDS.get(name) == kind)


def _sql_type(name: str) -> str:
    kind = _KINDS.get(name)
    return "bigint" if kind is bool or int in (kind, *get_args(kind)) else "text"


KEPT: Final = _columns(JobFields.__struct_fields__)  # Those that a job keeps as they were given.
NEW: Final = _columns(NewJob.__struct_fields__)  # Those of the rows that `enqueue` inserts.
ALL: Final = (*_columns(Job.__struct_fields__), *_NOT_FIELDS)
LARGE: Final = {name: mark.spare for name in _HINTS for mark in _marks(name) if isinstance(mark, Large)}
ERASED: Final = tuple(name for name in _HINTS if any(isinstance(mark, Erased) for mark in _marks(name)))
TYPES: Final = {name: _sql_type(name) for name in NEW}
# Texts that are empty in most jobs.
BLANK: Final = tuple(
    field.name for field in msgspec.structs.fields(NewJob) if field.default == "" and field.name in KEPT
)
# Columns whose values are converted: truth values to numbers, lists to JSON, and statuses.
FLAGS: Final = _with_kind(ALL, bool)
LISTS: Final = _with_kind(ALL, tuple[str, ...])
STATUSES: Final = _with_kind(ALL, Status)
