"""A store that answers and takes no writes: said as it is over HTTP, by /readyz, in alerts and by `headway status`."""

from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.support.api import ApiProcess, api_process
from tests.support.command_line import Cli
from tests.support.postgres import PostgresServer, database_name
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres
LOOKS = 6
PROBES_THAT_WAIT = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and query like 'update headway_jobs set id = id%%' and wait_event_type = 'Lock'"
)


@pytest.fixture
def url(migrated_url: str, postgres_server: PostgresServer) -> Iterator[str]:
    """A database that is writable again when the test is over."""
    yield migrated_url
    set_read_only(postgres_server, migrated_url, is_so=False)


def set_read_only(server: PostgresServer, url: str, *, is_so: bool) -> None:
    """Let a database take no writes, as a primary that was demoted, or take them again."""
    value = sql.SQL("on" if is_so else "off")
    name = sql.Identifier(database_name(url))
    server.execute(sql.SQL("alter database {} set default_transaction_read_only = {}").format(name, value))
    with psycopg.connect(url, autocommit=True) as operator:
        operator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'headway' and datname = current_database()"
        )


def readiness(client: httpx.Client) -> tuple[int, str, str]:
    answer = client.get("/readyz")
    body: dict[str, Any] = answer.json()
    return answer.status_code, body["status"], body["checks"]["store"]


def is_ready(client: httpx.Client) -> bool:
    return readiness(client)[0] == 200


def test_read_only(url: str, postgres_server: PostgresServer, cli: Cli) -> None:
    with api_process(url) as api, api.client() as client:
        wait_until(lambda: is_ready(client), "the API to be ready")
        job = client.post("/api/jobs", json={"type": "report"}).json()["id"]
        set_read_only(postgres_server, url, is_so=True)
        wait_until(lambda: readiness(client) == (503, "unready", "is read-only"), "/readyz to tell")
        refused = wait_until(lambda: refusal(client), "the refusal to be clear")
        assert refused is not None
        assert refused.headers["Retry-After"] == "5"
        assert "nothing was written" in refused.json()["error"]["message"]
        assert [one["id"] for one in client.get("/api/jobs").json()["items"]] == [job], "reads work"
        told = [alert for alert in client.get("/api/alerts").json()["items"] if alert["code"] == "store_read_only"]
        assert "primary" in told[0]["cure"]
        said = cli("status", "--store", url, "--json").json
        assert said["degraded"][0].startswith("the store is read-only: nothing is decided")
        assert [words for words in said["degraded"] if "alive" in words] == [], "nobody can write that it lives"
        set_read_only(postgres_server, url, is_so=False)
        wait_until(lambda: is_ready(client), "the API to be ready again")
        wait_until(lambda: client.post("/api/jobs", json={"type": "report"}).status_code == 201, "writes to be taken")


def refusal(client: httpx.Client) -> httpx.Response | None:
    """Return the answer to a write as soon as it says what is wrong. Connections that were cut off are met first."""
    answer = client.post("/api/jobs", json={"type": "report"})
    assert answer.status_code == 503, answer.text
    return answer if answer.json()["error"]["code"] == "store_read_only" else None


def look_often(api: ApiProcess) -> set[tuple[int, str, str]]:
    with api.client() as client:
        return {readiness(client) for _ in range(LOOKS)}


@pytest.mark.parametrize("table", ["headway_jobs", "headway_occurrences"])
def test_a_locked_table(url: str, table: str) -> None:
    """The answer does not depend on what else is asked of the API, and nobody who looks stays behind in the server."""
    with api_process(url) as api, api.client() as client, psycopg.connect(url) as operator:
        wait_until(lambda: is_ready(client), "the API to be ready")
        operator.execute(sql.SQL("lock table {} in share mode").format(sql.Identifier(table)))
        wait_until(lambda: not is_ready(client), "/readyz to tell")
        assert look_often(api) == {(503, "unready", "does not answer")}
        with psycopg.connect(url, autocommit=True) as other:
            [(waiting,)] = other.execute(PROBES_THAT_WAIT).fetchall()
            assert waiting <= 1
        operator.rollback()
        wait_until(lambda: is_ready(client), "the API to be ready again")
