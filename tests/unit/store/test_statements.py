"""The catalogue of statements: one source text for two dialects."""

import re

import pytest

from headway.store.statements import (
    POSTGRES,
    POSTGRES_FOREIGN,
    SQLITE,
    SQLITE_FOREIGN,
    Dialect,
    catalogue,
    migrations,
    parse,
    positional,
)

DIALECTS = [SQLITE, SQLITE_FOREIGN, POSTGRES]

SAMPLE = """
-- A file may say what it is about.

-- name: first
-- transition: A -> B
-- Do this; and that.
select :name as a, '12:30' as b, x::text -- not :this
from {rows things as r (id text, n integer)} where id in {list ids} and at < {now} and a = :name;

-- name: second
-- Do more.
select 1
"""


def test_statement_has_a_name_a_body_and_parameters() -> None:
    first, second = parse(SAMPLE, POSTGRES)
    assert (first.name, first.transition) == ("first", "A -> B")
    assert (second.name, second.transition, second.text, second.parameters) == ("second", None, "select 1", ())
    assert first.parameters == ("name", "things", "ids")
    assert "--" not in first.text
    assert not first.text.endswith(";")


def test_rows_and_lists_in_both_dialects() -> None:
    postgres, sqlite = parse(SAMPLE, POSTGRES)[0].text, parse(SAMPLE, SQLITE)[0].text
    assert "json_to_recordset(cast(:things as json)) as r(id text, n integer)" in postgres
    assert "(select value->>'id' as id, value->>'n' as n from json_each(:things) limit -1) as r" in sqlite
    assert "in (select json_array_elements_text(cast(:ids as json)))" in postgres
    assert "in (select value from json_each(:ids))" in sqlite


def test_named_placeholders_become_positional() -> None:
    first = parse(SAMPLE, POSTGRES)[0]
    text = positional(first, lambda index: f"${index}")
    assert text.count("$1") == 2
    assert "$2" in text
    assert "$3" in text
    assert "12:30" in text
    assert "x::text" in text


@pytest.mark.parametrize("dialect", DIALECTS, ids=["sqlite", "foreign", "postgres"])
def test_every_statement_is_rendered_completely(dialect: Dialect) -> None:
    statements = catalogue(dialect)
    assert len(statements) > 60
    for statement in statements.values():
        assert not re.search(r"\{\w", statement.text), statement.name
        assert ";" not in statement.text, statement.name
        assert statement.parameters == catalogue(SQLITE)[statement.name].parameters or set(statement.parameters) == set(
            catalogue(SQLITE)[statement.name].parameters
        ) | ({"payload"} if statement.name == "notify" else set())


def test_only_postgres_notifies_and_locks() -> None:
    sqlite = "\n".join(statement.text for statement in catalogue(SQLITE).values())
    assert "pg_notify" not in sqlite
    assert not re.search(r"\bfor (update|share)\b", sqlite)
    postgres = catalogue(POSTGRES)
    for name in ("claim", "promote", "expired"):
        assert "for update skip locked" in postgres[name].text
    for name in ("enqueue", "promote", "promote_blocked", "promote_successors", "follow", "release", "schedule_add"):
        assert postgres[name].text.endswith(" as woke")
        assert "pg_notify" not in postgres[name].text, "the driver notifies after the commit"
        assert "pg_notify" in catalogue(POSTGRES_FOREIGN)[name].text, "only the caller knows when it commits"


def test_foreign_connection_needs_no_custom_function() -> None:
    assert not any("headway_now()" in statement.text for statement in catalogue(SQLITE_FOREIGN).values())


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: Dialect) -> None:
    steps = migrations(dialect)
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        assert step.statements
        for text in step.statements:
            assert re.match(r"(create|insert|alter|drop|update|delete)\b", text), text[:60]
            assert not re.search(r"\{\w", text)
