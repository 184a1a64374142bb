"""Rows that no worker can run, and jobs with too much output. Other jobs continue, and every bound holds."""

import json
from pathlib import Path

import pytest

from headway.core.instants import SECOND
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_OVERHEAD
from headway.worker.reporter import LINES_MAX
from tests.chaos.worker_arena import MANY_S_MAX, WorkerArena, everywhere, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LONG = "x" * 10_000_000
DEEP = "[" * 50_000
CAUSES = {
    "args = '{not json'": "unreadable",
    "args = '[1, 2]'": "unreadable",
    "args = ''": "unreadable",
    f"args = '{{\"seconds\": {DEEP}'": "unreadable",
    f'args = \'{{"seconds": "{LONG}"}}\'': "unreadable",
    "args = '{\"no such argument\": 1}'": "arguments",
    "options = 'not json'": "unreadable",
    'options = \'{"timeout": "soon"}\'': "unreadable",
    "task = 'ghost'": "unknown task",
    "task = '../../bin/sh; drop table'": "unknown task",
}
ONLY_SQLITE = {
    "args = cast(x'ff7b7d' as text)": "unreadable",
    "args = x'00ff'": "unreadable",
    "task = cast(x'ff' as text)": "unknown task",
}
HARMLESS = ("metadata = '{{{'", "tags = 'no tags'", "detail = 'nothing'", "key = 'k'")


def test_poison_rows_and_floods(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_poison, stores, tmp_path)


def _poison(arena: WorkerArena) -> None:
    causes = CAUSES | (ONLY_SQLITE if arena.store.startswith("sqlite") else {})
    poison = {change: arena.enqueue("short", priority=5) for change in causes}
    harmless = {change: arena.enqueue("short", priority=5) for change in HARMLESS}
    for change, job_id in (poison | harmless).items():
        arena.write(f"update headway_jobs set {change} where id = '{job_id}'")
    latecomer = arena.enqueue("latecomer", priority=5)
    others = arena.enqueue_many("short", [{}] * 50)
    flood = arena.enqueue("flood", {"lines": 100_000, "calls": 100_000})
    counting = arena.enqueue("count_up", {"seconds": 3})
    shouting = arena.enqueue("shout", {"lines": 20_000})

    worker = arena.start("--processes", "2", "--poll", "0.5s")
    assert arena.wait_final([*others, *harmless.values()], MANY_S_MAX).keys() == {"COMPLETED"}
    for change, cause in causes.items():
        job_id = poison[change]
        arena.wait_status(job_id, "BLOCKED")
        row = arena.sql(f"select parked, reason, failures from headway_jobs where id = '{job_id}'")
        assert row[0][0] == cause, (change[:60], row)
        assert row[0][1], change[:60]
        assert row[0][2] == 0
    arena.wait_status(latecomer, "BLOCKED")
    assert worker.is_running()
    assert not worker.said("child_ended"), "a row brought a child down"

    newer = arena.start("--processes", "1", "--poll", "0.5s", WITH_LATECOMER="1")
    arena.wait_status(latecomer, "COMPLETED")
    arena.wait_final([flood, counting, shouting], MANY_S_MAX)
    _check_flood(arena, flood, counting)
    assert arena.job(shouting, "status") == "COMPLETED"
    parked = "select count(*) from headway_jobs where parked is not null"
    all_parked = [(len(causes),)]
    wait_for(
        lambda: arena.sql(parked) == all_parked, "all but the latecomer to be parked again", describe=arena.describe
    )
    attempts = max(len(arena.outcomes(job_id)) for job_id in poison.values())
    assert attempts <= 6, f"parked jobs are retried too often: {attempts}"
    assert worker.is_running()
    assert newer.is_running()


def test_flood_of_short_lines_costs_no_other_job_its_lease(tmp_path: Path) -> None:
    """L9: on SQLite, where all writes go through one writer. Other writes get in between two small ones."""
    arena = WorkerArena.on(f"sqlite:///{tmp_path}/headway.db", tmp_path)
    try:
        arena.start("--worker-lease", "60s", "--processes", "3", "--poll", "0.5s")
        enough = tmp_path / "enough"
        floods = arena.enqueue_many("murmur", [{"lines": 300_000, "until": str(enough)}] * 2)
        for job_id in floods:
            arena.wait_trace("begin", job_id)
        late = arena.enqueue("plain_async")
        arena.wait_final([late, *arena.enqueue_many("nothing", [{}] * 5), arena.enqueue("nothing_async")])
        assert arena.statuses(floods) == {"RUNNING": 2}, "the other writes came after the flood, not in between"
        enough.touch()
        arena.wait_final(floods, MANY_S_MAX)
        assert arena.outcomes(late) == ["timed_out"]
        assert arena.sql("select count(*) from headway_attempts where outcome = 'expired'") == [(0,)]
        for job_id in floods:
            assert arena.job(job_id, "status", "attempt") == ("COMPLETED", 1)
            log = f"from headway_log where job_id = '{job_id}'"
            assert arena.sql(f"select count(*) {log}") == [(LOG_BYTES_MAX // (1 + LOG_LINE_OVERHEAD) + 1,)]
            assert "full" in arena.sql(f"select line {log} order by seq desc limit 1")[0][0]
            writes = [lines for (lines,) in arena.sql(f"select count(*) {log} group by version")]
            assert max(writes) <= LINES_MAX + 1, "a write that blocks all others"
    finally:
        arena.stop()


def _check_flood(arena: WorkerArena, flood: str, counting: str) -> None:
    status, progress, detail = arena.job(flood, "status", "progress", "detail")
    assert (status, progress) == ("FAILED", 97), "the last value is never lost, and 100 means success"
    assert json.loads(detail)["step"] == "the last word"
    sizes = f"select sum(length(line) + {LOG_LINE_OVERHEAD}), count(*) from headway_log where job_id = '{flood}'"
    [(size, lines)] = arena.sql(sizes)
    assert LOG_BYTES_MAX - 10_000 < size <= LOG_BYTES_MAX + 100
    newest = f"select line from headway_log where job_id = '{flood}' order by seq desc limit 2"
    note, last = (row[0] for row in arena.sql(newest))
    assert "full" in note
    assert last.startswith(f"line {lines - 2:09}"), "a line before the notice is missing"

    status, progress, version, attempt, began, ended = arena.job(
        counting, "status", "progress", "version", "attempt", "started_at", "finished_at"
    )
    assert (status, progress) == ("COMPLETED", 100)
    handed_back = 2 * (attempt - 1)  # A child that started slowly, which is written as well.
    assert 4 <= version <= 4 + handed_back + 2 * (ended - began) / SECOND + 3, "more than two writes a second, or none"


def test_job_with_steps_too_large_for_ipc_is_parked(tmp_path: Path) -> None:
    """Finish more than 64 MiB of steps, and retry: the job is parked with the reason, and the others run."""
    everywhere(_too_many_steps, {"sqlite": f"sqlite:///{tmp_path}/headway.db"}, tmp_path)


def _too_many_steps(arena: WorkerArena) -> None:
    job_id = arena.enqueue("nothing", delay="1h")
    rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 70)"
    step = f"select '{job_id}', 'step ' || i, 1, 1, '\"' || hex(zeroblob(500000)) || '\"' from n"
    arena.write(f"insert into headway_steps (job_id, name, attempt, at, result) {rows} {step}")
    arena.write(f"update headway_jobs set status = 'PENDING', attempt = 1 where id = '{job_id}'")
    worker = arena.start("--processes", "1")
    arena.wait_status(job_id, "BLOCKED")
    assert arena.job(job_id, "failures", "parked") == (0, "too large")
    arena.wait_final([arena.enqueue("nothing")])
    assert worker.is_running()
