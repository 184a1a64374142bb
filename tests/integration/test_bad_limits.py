"""Limits that nobody can keep: refused in Python, by commands and over HTTP, with the reason, and never stored."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headway import InvalidLimit
from headway.core.limits import Limit
from tests.support.command_line import Cli
from tests.support.house import House, house

TABLES = ("limits", "limit_revisions", "gates", "lanes", "queues", "tenants", "jobs", "actions")
# A name and options, and words of the reason that say what to do instead.
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("queue:media", {}, 'give it concurrency=5, rate="10/s", or both'),
    ("queue:media", {"concurrency": 0}, "to stop a queue, pause it"),
    ("queue:media", {"concurrency": -1}, "from 1 to 10000"),
    ("queue:media", {"concurrency": 10**9}, "from 1 to 10000"),
    ("queue:media", {"concurrency": 2**70}, "from 1 to 10000"),
    ("queue:media", {"rate": "10"}, "such as 10/s or 100/5m"),
    ("queue:media", {"rate": "10/0s"}, "from 1ms to 31d"),
    ("queue:media", {"rate": "10/1y"}, "time of a rate"),
    ("queue:media", {"rate": "10/32d"}, "from 1ms to 31d"),
    ("queue:media", {"rate": "0/s"}, "from 1 to 1000000"),
    ("queue:media", {"rate": "-1/s"}, "such as 10/s"),
    ("queue:media", {"rate": "1.5/s"}, "such as 10/s"),
    ("queue:media", {"rate": "١٠/s"}, "such as 10/s"),
    ("queue:media", {"rate": "10/٣s"}, "time of a rate"),
    ("queue:media", {"rate": "10/s" + " " * 9_000 + "x"}, "time of a rate"),
    ("queue:media", {"rate": "10/s", "burst": 0}, "from 1 to"),
    ("queue:media", {"concurrency": 1, "burst": 5}, 'write rate="10/s", burst=20'),
    ("queue:", {"concurrency": 1}, "queue:NAME, or queue:* for each"),
    ("tenant:", {"concurrency": 1}, "tenant:NAME, or tenant:* for each"),
    ("a*b", {"concurrency": 1}, "may only be at the end"),
    ("**", {"concurrency": 1}, "may only be at the end"),
    ("x" * 1_000, {"concurrency": 1}, "at most 200 characters"),
    ("a\nb", {"concurrency": 1}, "control characters"),
    ("a\x1bb", {"concurrency": 1}, "control characters"),
]
each_bad = pytest.mark.parametrize(("name", "options", "words"), BAD)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(f"sqlite:///{tmp_path_factory.mktemp('bad-limits')}/headway.db") as home:
        yield home


def stored(path: Path) -> dict[str, list[Any]]:
    """Return every row that a refused limit could have touched."""
    with sqlite3.connect(path) as connection:
        return {table: connection.execute(f"select * from headway_{table}").fetchall() for table in TABLES}


@each_bad
def test_refused_in_python(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidLimit) as refused:
        Limit.build(name, **options)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("value", [True, 1.0, "1", [1], {}, None, float("nan")])
@pytest.mark.parametrize("option", ["concurrency", "burst"])
def test_numbers_of_other_types_are_refused(option: str, value: object) -> None:
    if value is None and option == "burst":
        return
    with pytest.raises(InvalidLimit):
        Limit.build("a", **{"rate": None if option == "concurrency" else "1/s", option: value})  # type: ignore[arg-type]


@each_bad
def test_refused_over_http(home: House, name: str, options: dict[str, Any], words: str) -> None:
    before = home.root.get("/api/limits").json()
    refused = home.root.put(f"/api/limits/{quote(name, safe=':*')}", json=options)
    error = refused.json()["error"]
    if "characters" in words:  # No path with such a name exists.
        assert (refused.status_code, error["code"]) == (404, "not_found")
    else:
        assert refused.status_code == 422, refused.text
        assert words in error["message"] or options.get("concurrency") == 2**70, error
    assert home.root.get("/api/limits").json() == before


@pytest.mark.parametrize("body", [{"concurrency": "5"}, {"concurrency": 1.5}, {"rate": 10}, {"what": 1}, [], "x"])
def test_bodies_of_another_shape_are_refused_over_http(home: House, body: object) -> None:
    before = home.root.get("/api/limits").json()
    assert home.root.put("/api/limits/wrong", json=body).status_code in (400, 422)
    assert home.root.get("/api/limits").json() == before


def test_refused_on_the_command_line_and_nothing_is_stored(cli: Cli) -> None:
    assert cli("limits", "put", "account-*", "--concurrency", "1").code == 0
    before = stored(cli.folder / "headway.db")
    for name, options, words in BAD:
        flags = [text for option, value in options.items() for text in (f"--{option}", f"{value}")]
        refused = cli("limits", "put", *flags, "--", name)
        assert refused.code == 2, (name, options)
        assert "Traceback" not in refused.err
        plain = " ".join(refused.err.split())
        assert words in plain or "--concurrency" in plain, (name, options, plain)
    for limit in ("nobody-42", "account-{missing}", "queue:media", "account-*", "x" * 300):
        assert cli("enqueue", "report", "--limit", limit).code == 2, limit
    assert stored(cli.folder / "headway.db") == before


def test_refused_while_nodes_of_an_older_release_run(cli: Cli) -> None:
    """Their heartbeats do not say which schema they know."""
    assert cli("migrate").code == 0
    with sqlite3.connect(cli.folder / "headway.db") as connection:
        connection.execute(
            "insert into headway_nodes (id, name, roles, version, started_at, beat_at, state)"
            " values ('node_1', 'web-1', 'worker', '0.1.0', 1, 9000000000000000, '{}')"
        )
    before = stored(cli.folder / "headway.db")
    for command in (("limits", "put", "a", "--concurrency", "1"), ("tenants", "set", "acme", "--weight", "2")):
        refused = cli(*command)
        assert refused.code == 2
        assert "web-1 (worker); upgrade or stop them, and try again" in " ".join(refused.err.split())
    assert stored(cli.folder / "headway.db") == before
    with sqlite3.connect(cli.folder / "headway.db") as connection:
        connection.execute("delete from headway_nodes")
    assert cli("limits", "put", "a", "--concurrency", "1").code == 0
