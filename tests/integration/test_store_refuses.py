"""A store that answers but accepts no writes: the API, /readyz, alerts and `headway status` report it."""

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
    """A database that is writable again after the test."""
    yield migrated_url
    set_read_only(postgres_server, migrated_url, is_on=False)


def set_read_only(server: PostgresServer, url: str, *, is_on: bool) -> None:
    """Make a database read-only, like a demoted primary, or writable again."""
    value = sql.SQL("on" if is_on else "off")
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


def test_read_only_store_is_reported(url: str, postgres_server: PostgresServer, cli: Cli) -> None:
    with api_process(url) as api, api.client() as client:
        wait_until(lambda: is_ready(client), "the API to be ready")
        job = client.post("/api/jobs", json={"type": "report"}).json()["id"]
        set_read_only(postgres_server, url, is_on=True)
        wait_until(lambda: readiness(client) == (503, "unready", "is read-only"), "/readyz to report it")
        refused = wait_until(lambda: refusal(client), "the error of a write")
        assert refused is not None
        assert refused.headers["Retry-After"] == "5"
        assert "nothing was written" in refused.json()["error"]["message"]
        assert [one["id"] for one in client.get("/api/jobs").json()["items"]] == [job], "reads work"
        alerts = [alert for alert in client.get("/api/alerts").json()["items"] if alert["code"] == "store_read_only"]
        assert "primary" in alerts[0]["cure"]
        status = cli("status", "--store", url, "--json").json
        assert status["degraded"][0].startswith("the store is read-only: nothing is decided")
        assert [words for words in status["degraded"] if "alive" in words] == [], "missing heartbeats are not reported"
        set_read_only(postgres_server, url, is_on=False)
        wait_until(lambda: is_ready(client), "the API to be ready again")
        wait_until(lambda: client.post("/api/jobs", json={"type": "report"}).status_code == 201, "a successful write")


def refusal(client: httpx.Client) -> httpx.Response | None:
    """Return the response to a write if it names the problem. Closed connections fail first."""
    answer = client.post("/api/jobs", json={"type": "report"})
    assert answer.status_code == 503, answer.text
    return answer if answer.json()["error"]["code"] == "store_read_only" else None


def readiness_seen(api: ApiProcess) -> set[tuple[int, str, str]]:
    with api.client() as client:
        return {readiness(client) for _ in range(LOOKS)}


@pytest.mark.parametrize("table", ["headway_jobs", "headway_occurrences"])
def test_locked_table_is_reported(url: str, table: str) -> None:
    """The result does not depend on other requests, and probes do not accumulate in the server."""
    with api_process(url) as api, api.client() as client, psycopg.connect(url) as operator:
        wait_until(lambda: is_ready(client), "the API to be ready")
        operator.execute(sql.SQL("lock table {} in share mode").format(sql.Identifier(table)))
        wait_until(lambda: not is_ready(client), "/readyz to report it")
        assert readiness_seen(api) == {(503, "unready", "does not answer")}
        with psycopg.connect(url, autocommit=True) as other:
            [(waiting,)] = other.execute(PROBES_THAT_WAIT).fetchall()
            assert waiting <= 1
        operator.rollback()
        wait_until(lambda: is_ready(client), "the API to be ready again")
