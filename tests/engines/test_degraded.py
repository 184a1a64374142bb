"""Status, health, metrics, alerts and doctor show that an engine is unavailable, and its return, without a restart."""

from pathlib import Path

import pytest

from tests.chaos.arena import environment
from tests.engines.test_failover import schedulers
from tests.support.api import ApiProcess, api_process
from tests.support.command_line import Cli
from tests.support.redis import RedisServer
from tests.support.waiting import wait_until

# The engine is waited for during a quarter of it, and called every third of it. On a slow machine a node may miss an
# answer or a heartbeat, so everything here is polled.
LEASE_S = 6.0


def ready(api: ApiProcess) -> tuple[str, str]:
    """Return the status of /readyz, and its check of the engines."""
    with api.client() as client:
        answer = client.get("/readyz")
    if answer.status_code != 200:
        return answer.text, ""
    return answer.json()["status"], answer.json()["checks"]["engines"]


def engine_up(api: ApiProcess) -> list[str]:
    """Return the metrics of the engine."""
    with api.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("headway_engine_up", "headway_engine_cut_off"))]


def test_unavailable_engine_is_shown_everywhere(
    redis: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, headway = f"sqlite:///{tmp_path}/headway.db", Cli(capsys, tmp_path)
    settings = {"HEADWAY_COORDINATION": redis.url(), "HEADWAY_LEADER_LEASE": f"{LEASE_S:g}s"}
    for name, value in {"HEADWAY_STORE": store, **settings}.items():
        monkeypatch.setenv(name, value)

    def shows(*words: str) -> bool:
        """Return whether `headway status` prints all of these words."""
        shown = " ".join(headway("status").out.split())
        return all(word in shown for word in words)

    def alerts() -> list[str]:
        with api.client() as client:
            items = client.get("/api/alerts").json()["items"]
        return [alert["target"] for alert in items if alert["code"] == "engine_away"]

    def doctors_marks() -> tuple[int, list[str]]:
        asked = headway("doctor", "--json")
        return asked.code, [check["mark"] for check in asked.json["checks"] if check["check"] == "coordination"]

    with (
        api_process(store, env=environment(store, **settings)) as api,
        schedulers(store, tmp_path, LEASE_S, HEADWAY_COORDINATION=redis.url()) as nodes,
    ):
        nodes.start("one")
        wait_until(lambda: ready(api) == ("ready", "ok"), "the API to be ready")
        up = 'headway_engine_up{engine="redis",part="coordination"} 1.0'
        wait_until(lambda: up in engine_up(api), "the metrics to show the engine")
        wait_until(lambda: shows("redis ok (2 nodes)"), "the status to show the engine")
        wait_until(lambda: "grants and releases a lock in" in headway("doctor").out, "the doctor to pass")

        redis.kill()
        away = ("degraded", "redis does not answer any node")
        wait_until(lambda: ready(api) == away, "the API to be degraded")
        lines = [
            'headway_engine_up{engine="redis",part="coordination"} 0.0',
            'headway_engine_cut_off_nodes{engine="redis",part="coordination"} 2.0',
        ]
        wait_until(lambda: engine_up(api) == lines, "the metrics to show that it is unavailable")
        words = "redis does not answer any node (2 nodes)", "connection refused); the store grants leases instead"
        wait_until(lambda: shows(*words), "the status to show that it is unavailable")
        wait_until(lambda: alerts() == ["redis"], "an alert")
        wait_until(lambda: doctors_marks() == (0, ["warn"]), "the doctor to warn")
        monkeypatch.setenv("HEADWAY_COORDINATION_FALLBACK", "stop")
        assert headway("doctor").code == 1

        redis.start()
        wait_until(lambda: ready(api) == ("ready", "ok"), "the API to be ready again")
        # Logged once, not with every call. On a slow machine the engine may have been unavailable once more.
        wait_until(
            lambda: nodes.log().count("engine_unavailable") == nodes.log().count("engine_returned") > 0,
            "as many log lines engine_returned as engine_unavailable",
        )


@pytest.mark.parametrize(
    "engine", ["redis://:secret@127.0.0.1:none", "rediss://:secret@127.0.0.1?ca=/nowhere.pem", "ftp://:secret@x"]
)
def test_invalid_engine_url_stops_the_start(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_STORE", f"sqlite:///{tmp_path}/headway.db")
    monkeypatch.setenv("HEADWAY_COORDINATION", engine)
    started = Cli(capsys, tmp_path)("scheduler")
    assert started.code == 2, started
    assert "secret" not in started.err
    assert "Traceback" not in started.err
