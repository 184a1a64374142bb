"""A 2xx response is durable: the API is killed while clients enqueue, and each acknowledged job exists once."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer
from tests.support.waiting import DEADLINE_S, wait_until

CLIENTS = 4
ROUNDS = 3
ACKNOWLEDGED_MIN = 20  # Per client and round, before the API is killed.


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/headway.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database(template=request.getfixturevalue("migrated_database"))
    yield url
    server.drop(url)


class Client:
    """Enqueue jobs in sequence, each with its own key, and record the responses."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._next = 0
        self.acknowledged: dict[str, str] = {}
        self.unknown: list[str] = []

    def enqueue_until_disconnected(self, api: ApiProcess) -> None:
        with api.client() as http:
            while True:
                key = f"{self._number}-{self._next}"
                self._next += 1
                try:
                    self._enqueue(http, key)
                except httpx.HTTPError:
                    self.unknown.append(key)
                    return

    def repeat_unknown(self, api: ApiProcess) -> None:
        with api.client() as http:
            for key in self.unknown:
                self._enqueue(http, key)
        self.unknown.clear()

    def _enqueue(self, http: httpx.Client, key: str) -> None:
        answer = http.post("/api/jobs", json={"type": "work", "args": {"key": key}, "key": key})
        assert answer.status_code in (200, 201), answer.text
        self.acknowledged[key] = answer.json()["id"]


def all_acknowledged(clients: list[Client], jobs: int) -> bool:
    return all(len(client.acknowledged) >= jobs for client in clients)


def test_acknowledged_jobs_exist_exactly_once(store: str) -> None:
    clients = [Client(number) for number in range(CLIENTS)]
    for rounds in range(1, ROUNDS + 1):
        with api_process(store) as api:
            for client in clients:
                client.repeat_unknown(api)
            threads = [threading.Thread(target=client.enqueue_until_disconnected, args=(api,)) for client in clients]
            for thread in threads:
                thread.start()
            wait_until(partial(all_acknowledged, clients, rounds * ACKNOWLEDGED_MIN), "responses to every client")
            api.kill()
            for thread in threads:
                thread.join(DEADLINE_S)
                assert not thread.is_alive()
    with api_process(store) as api, api.client() as http:
        for client in clients:
            client.repeat_unknown(api)
        stored: dict[str, list[str]] = {}
        cursor: str | None = None
        while True:
            page = http.get("/api/jobs", params={"limit": "200", **({"cursor": cursor} if cursor else {})}).json()
            for job in page["items"]:
                stored.setdefault(job["key"], []).append(job["id"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
    acknowledged = {key: job_id for client in clients for key, job_id in client.acknowledged.items()}
    assert len(acknowledged) >= CLIENTS * ROUNDS * ACKNOWLEDGED_MIN
    assert stored == {key: [job_id] for key, job_id in acknowledged.items()}
