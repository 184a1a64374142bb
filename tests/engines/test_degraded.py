"""An engine that is away is named wherever somebody looks, and so is its return, without a restart of anybody."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.arena import environment
from tests.engines.test_failover import schedulers
from tests.support.api import ApiProcess, api_process
from tests.support.command_line import Cli
from tests.support.redis import RedisServer

NOTICED_S_MAX = 30.0  # A third of the lease, a beat, and five seconds in which the engine is left alone.


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + NOTICED_S_MAX
    while not holds():
        assert time.monotonic() < deadline, f"not within {NOTICED_S_MAX:g} s: {what}"
        time.sleep(0.2)


def ready(api: ApiProcess) -> tuple[str, str]:
    """Return what /readyz says of everything, and of the engine."""
    with api.client() as client:
        answer = client.get("/readyz")
    assert answer.status_code == 200, answer.text
    return answer.json()["status"], answer.json()["checks"]["engines"]


def engine_up(api: ApiProcess) -> list[str]:
    """Return what /metrics says of the engine."""
    with api.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("headway_engine_up", "headway_engine_cut_off"))]


@pytest.mark.timeout(150)
def test_status_health_metrics_and_doctor(
    redis: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, headway = f"sqlite:///{tmp_path}/headway.db", Cli(capsys, tmp_path)
    settings = {"HEADWAY_COORDINATION": redis.url(), "HEADWAY_LEADER_LEASE": "2s"}
    for name, value in {"HEADWAY_STORE": store, **settings}.items():
        monkeypatch.setenv(name, value)
    with (
        api_process(store, env=environment(store, **settings)) as api,
        schedulers(store, tmp_path, HEADWAY_COORDINATION=redis.url()) as nodes,
    ):
        nodes.start("one")
        until(lambda: ready(api) == ("ready", "ok"), "ready")
        until(lambda: 'headway_engine_up{engine="redis",part="coordination"} 1.0' in engine_up(api), "up")
        assert "redis  ok  (2 nodes)" in headway("status").out
        assert "grants and takes back a lock in" in headway("doctor").out

        redis.kill()
        until(lambda: ready(api) == ("degraded", "redis does not answer any node"), "degraded")
        away = [
            'headway_engine_up{engine="redis",part="coordination"} 0.0',
            'headway_engine_cut_off_nodes{engine="redis",part="coordination"} 2.0',
        ]
        until(lambda: engine_up(api) == away, "metrics")
        shown = " ".join(headway("status").out.split())
        assert "redis does not answer any node (2 nodes)" in shown
        assert "connection refused); the store grants leases instead" in shown
        with api.client() as client:
            alerts = client.get("/api/alerts").json()["items"]
            assert [alert["target"] for alert in alerts if alert["code"] == "engine_away"] == ["redis"]
        asked = headway("doctor", "--json")
        marks = [check["mark"] for check in asked.json["checks"] if check["check"] == "coordination"]
        assert (asked.code, marks) == (0, ["warn"])
        monkeypatch.setenv("HEADWAY_COORDINATION_FALLBACK", "stop")
        assert headway("doctor").code == 1

        redis.start()
        until(lambda: ready(api) == ("ready", "ok"), "ready again")
        log = nodes.log()
        assert log.count("engine_unavailable") == log.count("engine_returned") == 1, log


@pytest.mark.parametrize(
    "engine", ["redis://:secret@127.0.0.1:none", "rediss://:secret@127.0.0.1?ca=/nowhere.pem", "ftp://:secret@x"]
)
def test_an_engine_that_cannot_be_meant_stops_the_start(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_STORE", f"sqlite:///{tmp_path}/headway.db")
    monkeypatch.setenv("HEADWAY_COORDINATION", engine)
    started = Cli(capsys, tmp_path)("scheduler")
    assert started.code == 2, started
    assert "secret" not in started.err
    assert "Traceback" not in started.err
