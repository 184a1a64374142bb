"""Bulk enqueue: one job per row of arguments, with options that may differ from row to row.

    await report.enqueue_many(rows, key="report:{tenant_id}", tenant="{tenant_id}", priority=lambda row: row["level"])

An option is a template over the row's arguments, a function of them, or a value that all rows share.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, TypeVar, get_type_hints

from headway.core.errors import DefinitionError, InvalidTask
from headway.core.instants import quote
from headway.core.jobs import EnqueueOptions, NewJob
from headway.core.templates import Template
from headway.core.windows import WINDOW_OPTIONS
from headway.tasks.limit_templates import literal

ROWS_MAX: Final = 10_000  # The most that the store takes in one transaction.
# `{n}` is formatted as text; in other options it keeps its type.
_TEXTS: Final = frozenset(name for name, kind in get_type_hints(EnqueueOptions).items() if kind == str | None)
_TEMPLATE: Final = "limit"  # This option is a template in every job: `new_job` fills it.

Row: TypeAlias = Mapping[str, Any]
O = TypeVar("O", bound="_Options")  # noqa: E741


class _Options(Protocol):
    """The options of one job."""

    @property
    def key(self) -> str | None: ...

    @property
    def has_window(self) -> bool: ...

    def changed(self: O, given: Mapping[str, Any]) -> O: ...


def jobs_of_rows(
    rows: Iterable[Row], given: Mapping[str, Any], options: O, new_job: Callable[[Row, O], NewJob]
) -> tuple[list[NewJob], O]:
    """Make a job of each row; return the jobs and their shared options. An error names its row."""
    if not isinstance(rows, Iterable):
        raise InvalidTask(f"rows must be a list or another iterable of arguments, not {type(rows).__name__}")
    fixed, varying = _read(given)
    common = options.changed(fixed)
    has_window = common.has_window or not varying.keys().isdisjoint(WINDOW_OPTIONS)
    if has_window and common.key is not None and "key" not in given:  # Set by `Task.options`, so not filled yet.
        varying["key"] = _from_template("key", Template.read(common.key))
    jobs = []
    for number, row in enumerate(islice(rows, ROWS_MAX + 1)):
        if number == ROWS_MAX:
            raise InvalidTask(f"at most {ROWS_MAX:,} jobs can be enqueued at once; enqueue them in parts")
        if number == 1 and common.key is not None and "key" not in varying and not has_window:
            raise InvalidTask('key is the same for all rows: write a template such as key="report:{id}"')
        try:
            if not isinstance(row, Mapping):
                raise InvalidTask(f"must be an object of names and values, not {type(row).__name__}")
            own = {name: value(row) for name, value in varying.items()}
            jobs.append(new_job(row, common.changed(own) if own else common))
        except DefinitionError as error:
            raise InvalidTask(f"rows[{number}]: {error}") from None
    return jobs, common


def _read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Callable[[Row], Any]]]:
    """Separate options that all rows share from those that are computed for each row."""
    fixed: dict[str, Any] = {}
    varying: dict[str, Callable[[Row], Any]] = {}
    for name, value in given.items():
        template = Template.read(value) if isinstance(value, str) else None
        if name == "tx" or (name == _TEMPLATE and template is not None):
            fixed[name] = value
        elif template is not None and template.names:
            varying[name] = _from_template(name, template)
        elif template is not None:
            fixed[name] = template.fill({})
        elif callable(value):
            varying[name] = _from_function(name, value)
        else:
            fixed[name] = value
    return fixed, varying


def _from_template(option: str, template: Template) -> Callable[[Row], Any]:
    def fill(row: Row) -> Any:
        template.require(row, option, "row")
        if template.only is not None and option not in _TEXTS:
            return row[template.only]
        return template.fill_from(row)

    return fill


def _from_function(option: str, function: Callable[[Row], Any]) -> Callable[[Row], Any]:
    def compute(row: Row) -> Any:
        try:
            value = function(row)
        except Exception as error:
            raise InvalidTask(f"{option} cannot be computed: {type(error).__name__}: {quote(str(error))}") from error
        return literal(value) if option == _TEMPLATE and isinstance(value, str) else value

    return compute
