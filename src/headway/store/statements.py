"""The statement catalogue: one SQL text for both databases, read from sql/*.sql.

A statement has a header (`-- name: claim`, optionally `-- transition: …`, then a sentence) and a body in portable
SQL with `:name` placeholders. What differs between SQLite and PostgreSQL is a fragment in braces:

    {now}                            the store's own time in microseconds
    {now_once}                       the same, evaluated once per statement and not for every row; the planner cannot
                                     see it, so use it for values and not for conditions that need an index
    {rows jobs as r (id text, …)}    a JSON parameter as a table with typed columns
    {list ids}                       a JSON parameter as the right side of `in`
    {values names}                   a JSON parameter as a table with the column `value`
    {jobs_of ids}                    the jobs with these ids as `job`, found by index also in a small table
    {addressed} … {end_addressed}    the row is one of those that a subquery selects and locks, run once
    {picked lanes as r (…)} … {picked_limit} {end_picked}
                                     the same with a subquery for each row of a JSON parameter, `most` rows of each
    {each gates as r (…)} … {end_each t as l}
                                     for each row of a JSON parameter the rows of `t as h` that a subquery selects
    {among gates gate}               equal to this column of some row of a JSON parameter; found by index, where a join
                                     would read all of the table
    {is_limited_task} {is_limited_task r.task}
                                     a limit names the task
    {writers}                        the transactions that write jobs now; SQLite has one at a time
    {lock_limits}                    wait for the claims that have read the limits, before claims that begin later
    {skip_locked} {lock} {share}     row locks; SQLite has one writer and needs none
    {notify_ready} …                 what others should hear of after the commit, as `woke`: the driver tells them (a
                                     caller's own transaction does it itself); SQLite watches its data version instead
    {text} {bytewise}                text that sorts by its bytes, on every locale; a column read like that
    {new_jobs}                       the rows of new jobs as `r`, see `job_columns.NEW`
    {kept_columns} {kept_columns r.} the columns that a job keeps as they were given
    {erased_columns}                 `tags = null, …` for every column with users' data
    {job_columns}                    every column of a job; a text with more than :largest bytes is null, and its name
                                     in `omitted`, so that a page of jobs is read without what makes them large
    {next version} {next_attempt}    one more, unless that would overflow: a corrupt row must not stop others
    {bytes x} {bounded x}            how large a text is; the text, or an empty one where it is far too large
    {chosen} {fit}                   the row is a job that a filter chooses; one that can be retried, or cancelled
    {name_in x}                      the name of the schedule with the key x, see `schedule_names.schedule_key`
    {replace_view}                   make a view that exists; what SQLite cannot replace it has dropped before
    {task_of}                        the task in the definition of a schedule, as it is written in JSON
    {feed_position} {feed_since} …   where the feed of changes is, and what has been committed since
    {time x} {view_now}              for views: times as people read them

Rendering happens once per process and dialect.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from headway.core.lifecycle import ATTEMPT_MAX, Status
from headway.store import job_columns

_FRAGMENT: Final = re.compile(r"\{(\w+)(?: ([^{}]*))?\}")
_ROWS: Final = re.compile(r"(\w+) as (\w+) \(([^)]*)\)\s*", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT: Final = re.compile(r"--[^\n]*")
_ONE_STATEMENT: Final = re.compile(
    r"^-- only for (sqlite|postgresql), as one statement:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_CHANNEL: Final = "headway"
_BIGINT_MAX: Final = 2**63 - 1
_NEXT_ATTEMPT: Final = f"case when attempt < {ATTEMPT_MAX} then cast(attempt as integer) + 1 else {ATTEMPT_MAX} end"
TEXT_BYTES_MAX: Final = 1 << 20  # Larger texts of a job are not read; Headway writes far smaller ones.
_STATUSES: Final = "(" + ", ".join(f"'{status}'" for status in Status) + ")"

Fragment = Callable[[str], str]


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One named statement, rendered for one dialect."""

    name: str
    text: str
    parameters: tuple[str, ...]
    transition: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """The SQL fragments of one database."""

    name: str
    fragments: Mapping[str, Fragment]

    def render(self, text: str) -> str:
        """Replace every fragment."""
        return _FRAGMENT.sub(lambda match: self.fragments[match[1]](match[2] or ""), text)


def _columns(arguments: str) -> tuple[str, str, list[tuple[str, str]]]:
    match = _ROWS.fullmatch(arguments)
    assert match, f"malformed fragment: {{rows {arguments}}}"
    parameter, alias, columns = match.groups()
    pairs = [column.split() for column in columns.split(",")]
    return parameter, alias, [(name, kind) for name, kind in pairs]


def _sqlite_rows(arguments: str) -> str:
    parameter, alias, columns = _columns(arguments)
    picked = ", ".join(f"value->>'{name}' as {name}" for name, _ in columns)
    # `limit -1` keeps SQLite from decoding the JSON again for every mention of a column.
    return f"(select {picked} from json_each(:{parameter}) limit -1) as {alias}"


def _postgres_rows(arguments: str) -> str:
    parameter, alias, columns = _columns(arguments)
    typed = ", ".join(f"{name} {kind}" for name, kind in columns)
    return f"json_to_recordset(cast(:{parameter} as json)) as {alias}({typed})"


def _sqlite_each(arguments: str) -> str:
    """Begin a subquery for each row: SQLite has no lateral join, but can unfold an array that a subquery makes."""
    first = "select json_group_array(address) from (select h.rowid as address from"
    return f"{_sqlite_rows(arguments)} cross join json_each(({first}"


def _sqlite_end_each(table: str) -> str:
    return f"))) as place join {table} on {table.split()[-1]}.rowid = place.value"


def _sqlite_picked(arguments: str) -> str:
    first = "select json_group_array(address) from (select rowid as address"
    return f"rowid in (select place.value from {_sqlite_rows(arguments)} cross join json_each(({first}"


def _postgres_each(arguments: str) -> str:
    return f"{_postgres_rows(arguments)} cross join lateral (select h.* from"


def _postgres_picked(arguments: str) -> str:
    rows = _postgres_rows(arguments)
    return f"ctid = any (array(select place.address from {rows} cross join lateral (select ctid as address"


def _sqlite_among(arguments: str) -> str:
    parameter, column = arguments.split()
    return f"in (select value->>'{column}' from json_each(:{parameter}))"


def _postgres_among(arguments: str) -> str:
    parameter, column = arguments.split()
    rows = _postgres_rows(f"{parameter} as among_them ({column} text)")
    return f"= any (array(select among_them.{column} from {rows}))"


def _is_limited_task(column: str) -> str:
    task = column or "task"
    return (
        "exists (select 1 from headway_limits as l where l.kind = 'task' and"
        f" case when l.is_pattern = 1 then substr({task}, 1, length(l.stem)) = l.stem else {task} = l.stem end)"
    )


def _next(column: str) -> str:
    return f"case when {column} < {_BIGINT_MAX} then {column} + 1 else {column} end"


def _bounded(size: str) -> Fragment:
    return lambda column: f"case when {size}({column}) > {TEXT_BYTES_MAX} then '' else {column} end as {column}"


def _fixed(text: str) -> Fragment:
    return lambda _: text


# Built into SQLite, so that connections of other programs can use it too; exact to the millisecond.
_SQLITE_WALL: Final = "(cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000)"
_READY_IN: Final = "case when status = 'PENDING' then queue end"  # For transports, see `announcing`.
# Topics to notify after the commit; see `postgres`.
_READY_TOPIC: Final = (
    "case when status <> 'PENDING' then 'waiting'"
    " when tenant = 'default' and limit_key = '' and limited_task = '' and needs = '' then 'ready ' || queue"
    " else 'lanes ' || queue end"
)
_TOPICS: Final = {
    "notify_ready": _READY_TOPIC,
    "notify_again": f"case when finished_at is null then {_READY_TOPIC} end",
    "notify_lanes": "'lanes ' || queue",
    "notify_limits": "'limits'",
    "notify_schedules": "'schedules'",
    "notify_leases": "'leases'",
    "notify_waiting": "'waiting'",
    "notify_stop": "'stop'",
    "notify_queue": "'resumed ' || name",
    "notify_beat": "'beat ' || id",
}
_TELLING_TRANSPORTS: Final = ("notify_ready", "notify_again")


def _wake_ups(render: Callable[[str], str]) -> dict[str, Fragment]:
    """Return the fragments that notify of a commit, with a function that renders the topic."""
    return {
        name: _fixed((f"{_READY_IN} as ready_in, " if name in _TELLING_TRANSPORTS else "") + f"{render(topic)} as woke")
        for name, topic in _TOPICS.items()
    }


# date_part is a double, exact to the microsecond for centuries; extract would calculate in decimals for every row.
_POSTGRES_NOW: Final = "cast(date_part('epoch', statement_timestamp()) * 1000000 as bigint)"

# A job that matches a filter (see `job_filter`); null parameters match everything.
_CHOSEN: Final = """\
(cast(:status as text) is null or status = :status)
  and (cast(:task as text) is null or task = :task)
  and (cast(:queue as text) is null or queue = :queue)
  and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:schedule as text) is null or {name_in schedule} = :schedule)
  and (cast(:key as text) is null or key = :key)
  and (cast(:rerun_of as text) is null or rerun_of = :rerun_of)
  and (cast(:group_id as text) is null or group_id = :group_id)
  and (cast(:tag as text) is null or tags like :tag escape '!')
  and (cast(:words as text) is null or task like :words escape '!' or key like :words escape '!'
    or {name_in schedule} like :words escape '!' or id like :words escape '!' or reason like :words escape '!')
  and (cast(:since as bigint) is null or created_at >= :since)
  and (cast(:until as bigint) is null or created_at < :until)
  and (cast(:finished_after as bigint) is null or finished_at >= :finished_after)
  and (cast(:finished_before as bigint) is null or finished_at < :finished_before)"""
# A job that can be retried: ended and not retried yet; or cancelled: live and not asked to stop.
_FIT: Final = """\
(cast(:verb as text) is null
    or (:verb = 'cancel' and finished_at is null and cancel_requested_at is null)
    or (:verb = 'retry' and finished_at is not null
      and not exists (
        select 1 from headway_jobs as again where again.rerun_of = headway_jobs.id and again.rerun_of is not null
      ))
    or (:verb = 'retry' and status = 'BLOCKED' and parked is not null))"""


def _job_columns(bytes_of: str) -> Fragment:
    """Return the fragment `job_columns`; `bytes_of` is the expression for the size of a text."""

    def render(table: str) -> str:
        is_large = {
            name: f"{bytes_of.format(table + name)} > cast(:largest as bigint) + {spare}"
            for name, spare in job_columns.LARGE.items()
        }
        read = [
            f"case when {is_large[name]} then null else {table}{name} end as {name}"
            if name in is_large
            else table + name
            for name in job_columns.ALL
        ]
        omitted = " || ".join(f"case when {large} then '{name} ' else '' end" for name, large in is_large.items())
        return ", ".join([*read, f"{omitted} as omitted"])

    return render


def _kept_column(table: str, name: str) -> str:
    """Return a column; texts that are empty in most jobs are left out of the rows of new ones."""
    return f"coalesce({table}{name}, '')" if table and name in job_columns.BLANK else table + name


_NEW_JOBS: Final = "jobs as r (" + ", ".join(f"{name} {kind}" for name, kind in job_columns.TYPES.items()) + ")"
_JOB_FRAGMENTS: Final[dict[str, Fragment]] = {
    "kept_columns": lambda table: ", ".join(_kept_column(table, name) for name in job_columns.KEPT),
    "erased_columns": lambda _: ", ".join(f"{name} = null" for name in job_columns.ERASED),
}

# Newer versions of SQLite return the length of a text without reading it.
_SQLITE_BYTES: Final = "octet_length({})" if sqlite3.sqlite_version_info >= (3, 43) else "length(cast({} as blob))"

_SQLITE_NAME: Final = "substr({0}, instr({0}, char(31)) + 1)"
_POSTGRES_NAME: Final = "substr({0}, strpos({0}, chr(31)) + 1)"
_SNAPSHOT: Final = "cast(cast(:position as text) as pg_snapshot)"
_FED_BY: Final = "cast(cast(f.xid as text) as xid8)"
_FEED_FROM: Final = f"f.xid >= cast(cast(pg_snapshot_xmin({_SNAPSHOT}) as text) as bigint)"

_WRITERS: Final = """\
select distinct virtualtransaction as writer from pg_locks
where relation = to_regclass('headway_jobs') and mode = 'RowExclusiveLock' and granted
  and database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()"""

SQLITE: Final = Dialect(
    "sqlite",
    {
        "now": _fixed("headway_now()"),
        "now_once": _fixed("headway_now()"),
        "view_now": _fixed(_SQLITE_WALL),
        "rows": _sqlite_rows,
        "new_jobs": lambda _: _sqlite_rows(_NEW_JOBS),
        **_JOB_FRAGMENTS,
        "list": lambda parameter: f"(select value from json_each(:{parameter}))",
        "jobs_of": lambda parameter: (
            f"(select * from headway_jobs where id in (select value from json_each(:{parameter}))) as job"
        ),
        "job_columns": _job_columns(_SQLITE_BYTES),
        "addressed": _fixed("rowid in (select rowid"),
        "end_addressed": _fixed(")"),
        "values": lambda parameter: f"json_each(:{parameter})",
        "among": _sqlite_among,
        "each": _sqlite_each,
        "end_each": _sqlite_end_each,
        "picked": _sqlite_picked,
        "picked_limit": _fixed("limit :most"),  # A limit cannot be a column: the outer query takes the first ones.
        "end_picked": _fixed("))) as place where place.key < r.most)"),
        "is_limited_task": _is_limited_task,
        "writers": _fixed("select null as writer where false"),
        "lock_limits": _fixed("select null as locked where false"),
        "skip_locked": _fixed(""),
        "lock": _fixed(""),
        "share": _fixed(""),
        **_wake_ups(lambda _: "null"),
        "notify_payload": _fixed("null as told"),
        "time": lambda column: f"strftime('%Y-%m-%dT%H:%M:%fZ', ({column}) / 1e6, 'unixepoch')",
        "json_object": _fixed("json_object"),
        # One writer at a time: later commits have higher numbers.
        "feed_position": _fixed(
            "cast(coalesce((select seq from sqlite_sequence where name = 'headway_feed'), 0) as text)"
        ),
        "feed_since": _fixed("f.seq > cast(:position as integer)"),
        "feed_until": _fixed("f.seq <= cast(:until as integer)"),
        "feed_again": _fixed("f.seq > cast(:position as integer)"),
        "text": _fixed("text"),
        "bytewise": _fixed("collate binary"),
        "serial": _fixed("integer primary key autoincrement"),
        "statuses": _fixed(_STATUSES),
        "next": _next,
        "next_attempt": _fixed(_NEXT_ATTEMPT),
        "bytes": lambda column: f"length({column})",
        "bounded": _bounded("length"),
        "chosen": _fixed(_CHOSEN.replace("{name_in schedule}", _SQLITE_NAME.format("schedule"))),
        "fit": _fixed(_FIT),
        "name_in": _SQLITE_NAME.format,
        "replace_view": _fixed("create view"),
        "task_of": _fixed("case when json_valid(definition) then definition -> '$.task' end"),
    },
)
# For a caller's connection, on which our functions are not registered.
SQLITE_FOREIGN: Final = Dialect(
    "sqlite", {**SQLITE.fragments, "now": _fixed(_SQLITE_WALL), "now_once": _fixed(_SQLITE_WALL)}
)
POSTGRES: Final = Dialect(
    "postgresql",
    {
        "now": _fixed(_POSTGRES_NOW),
        "now_once": _fixed(f"(select {_POSTGRES_NOW})"),
        "view_now": _fixed(_POSTGRES_NOW),
        "rows": _postgres_rows,
        "new_jobs": lambda _: _postgres_rows(_NEW_JOBS),
        **_JOB_FRAGMENTS,
        "list": lambda parameter: f"(select json_array_elements_text(cast(:{parameter} as json)))",
        # Without the limit it would be a join, which reads all of a small table.
        "jobs_of": lambda parameter: (
            f"json_array_elements_text(cast(:{parameter} as json)) as wanted(id)"
            " cross join lateral (select * from headway_jobs where headway_jobs.id = wanted.id limit 1) as job"
        ),
        "job_columns": _job_columns("octet_length({})"),
        "addressed": _fixed("ctid = any (array(select ctid"),
        "end_addressed": _fixed("))"),
        "values": lambda parameter: f"json_array_elements_text(cast(:{parameter} as json))",
        "among": _postgres_among,
        "each": _postgres_each,
        "end_each": lambda table: f") as {table.split()[-1]}",
        "picked": _postgres_picked,
        "picked_limit": _fixed("limit least(r.most, cast(:most as integer)) for update skip locked"),
        "end_picked": _fixed(") as place))"),
        "is_limited_task": _is_limited_task,
        "writers": _fixed(_WRITERS),
        # Claims lock a row of it for share. A lock of that row would have to wait until no claim overlaps another one.
        "lock_limits": _fixed("lock table headway_counters in exclusive mode"),
        "skip_locked": _fixed("for update skip locked"),
        "lock": _fixed("for update"),
        "share": _fixed("for share"),
        **_wake_ups(lambda topic: f"cast({topic} as text)"),
        "notify_payload": _fixed(f"pg_notify('{_CHANNEL}', :payload) as told"),
        "time": lambda column: f"to_timestamp(({column}) / 1e6)",
        "json_object": _fixed("json_build_object"),
        # A snapshot says exactly which transactions were committed and which were in progress.
        "feed_position": _fixed("cast(pg_current_snapshot() as text)"),
        "feed_since": _fixed(f"{_FEED_FROM} and not pg_visible_in_snapshot({_FED_BY}, {_SNAPSHOT})"),
        "feed_until": _fixed(f"pg_visible_in_snapshot({_FED_BY}, cast(cast(:until as text) as pg_snapshot))"),
        "feed_again": _fixed(_FEED_FROM),
        "text": _fixed('text collate "C"'),
        "bytewise": _fixed('collate "C"'),
        "serial": _fixed("bigint generated always as identity primary key"),
        "statuses": _fixed(_STATUSES),
        "next": _next,
        "next_attempt": _fixed(_NEXT_ATTEMPT),
        "bytes": lambda column: f"octet_length({column})",
        "bounded": _bounded("octet_length"),
        "chosen": _fixed(_CHOSEN.replace("{name_in schedule}", _POSTGRES_NAME.format("schedule"))),
        "fit": _fixed(_FIT),
        "name_in": _POSTGRES_NAME.format,
        "replace_view": _fixed("create or replace view"),
        # A cast to JSON would fail for all rows if one is invalid. Keys are sorted, so the last match is the task.
        "task_of": _fixed("""substring(definition from '.*"task":("(?:[^"\\\\]|\\\\.)*")')"""),
    },
)

# For a caller's transaction: only the caller knows when it commits.
POSTGRES_FOREIGN: Final = Dialect(
    "postgresql",
    {
        **POSTGRES.fragments,
        **_wake_ups(lambda topic: f"case when {topic} is not null then pg_notify('{_CHANNEL}', {topic}) end"),
    },
)


@cache
def catalogue(dialect: Dialect) -> Mapping[str, Statement]:
    """Return every statement of the product, rendered for a dialect."""
    statements: dict[str, Statement] = {}
    for path in sorted(resources.files(__package__).joinpath("sql").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".sql"):
            for statement in parse(path.read_text(), dialect):
                assert statement.name not in statements, f"two statements are named {statement.name}"
                statements[statement.name] = statement
    return statements


def parse(text: str, dialect: Dialect) -> list[Statement]:
    """Read the statements of one file."""
    return [_statement(part, dialect) for part in text.split("-- name: ")[1:]]


def _statement(part: str, dialect: Dialect) -> Statement:
    name, _, rest = part.partition("\n")
    transition = re.search(r"^-- transition: (.*)$", rest, re.MULTILINE)
    body = dialect.render(_COMMENT.sub("", rest).strip().rstrip(";"))
    parameters = tuple(dict.fromkeys(_PLACEHOLDER.findall(body)))
    return Statement(name.strip(), body, parameters, transition[1] if transition else None)


def positional(statement: Statement, mark: Callable[[int], str]) -> str:
    """Rewrite `:name` placeholders by their position, for drivers that want `$1`."""
    order = {name: mark(index) for index, name in enumerate(statement.parameters, 1)}
    return _PLACEHOLDER.sub(lambda match: order[match[1]], statement.text)


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration; its text never changes once it is released."""

    version: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Return all migrations in order."""
    folder = resources.files(__package__).joinpath("sql", "migrations")
    steps = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        number, _, name = path.name.removesuffix(".sql").partition("_")
        steps.append(Migration(int(number), name, tuple(_parts(path.read_text(), dialect))))
    return tuple(steps)


def _parts(script: str, dialect: Dialect) -> Iterator[str]:
    """Split a script into statements. One with inner statements, like a trigger, is marked and ends at a blank line."""
    for number, part in enumerate(_ONE_STATEMENT.split(script)):
        match number % 3:
            case 0:
                text = dialect.render(_COMMENT.sub("", part))
                yield from (piece.strip() for piece in re.split(r";\s*(?:\n|$)", text) if piece.strip())
            case 1:
                is_ours = part == dialect.name
            case _:
                if is_ours:
                    yield dialect.render(part.strip())
