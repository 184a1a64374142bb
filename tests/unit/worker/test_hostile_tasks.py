"""Harm that a task does to its process or event loop affects neither the next job nor a concurrent one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.worker.ipc import Done, Failed, FailedInDamagedProcess, Finish, ReplacementRequest, Run, ToSupervisor
from tests.support.waiting import async_wait_until
from tests.unit.worker.test_child import Line, started
from tests.unit.worker.test_ipc import claimed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks and signals as Linux has them")


def _ended(job_id: str) -> Any:
    return lambda message: isinstance(message, Done | Failed | FailedInDamagedProcess) and message.job_id == job_id


async def _result(line: Line, number: int, task: str, **args: object) -> ToSupervisor:
    """Run one job; return how it ended."""
    line.process.send(Run(number, [claimed(job_id=f"job_{number}", task=task, args=json.dumps(args))]))
    return await line.hear(_ended(f"job_{number}"))


@pytest.mark.parametrize(("kind", "task", "args"), [
    ("process", "fork", {"how": "return"}), ("process", "fork", {"how": "raise"}), ("loop", "fork_on_loop", {}),
])  # fmt: skip
async def test_forked_copy_does_not_report_for_its_job(kind: str, task: str, args: dict[str, str]) -> None:
    async with started(2, kind) as line:
        assert await _result(line, 1, task, **args) == Done("job_1", 1, '"original"')
        short = "short" if kind == "loop" else "short_sync"
        assert await _result(line, 2, short) == Done("job_2", 1, '"done"')
        assert not [message for message in line.heard if isinstance(message, Done | Failed)]


async def test_process_state_is_restored_for_the_next_job() -> None:
    async with started(1, "process") as line:
        before = await _result(line, 1, "look")
        assert isinstance(before, Done)
        messes = ["directory", "umask", "recursion", "handlers", "blocked", "limits", "stdout", "stdout file", "alarm"]
        for number, what in enumerate(messes):
            assert await _result(line, 2 + 2 * number, "mess", what=what) == Done(
                f"job_{2 + 2 * number}", 1, f'"{what}"'
            )
            after = await _result(line, 3 + 2 * number, "look")
            assert isinstance(after, Done), f"{what}: {after}"
            assert after.result == before.result, what
        assert not [message for message in line.heard if isinstance(message, ReplacementRequest)]


async def test_process_that_cannot_be_restored_runs_no_more_jobs() -> None:
    async with started(1, "process") as line:
        jobs = [claimed(task="mess", args='{"what":"nice"}'), claimed(task="look", job_id="job_2")]
        line.process.send(Run(1, jobs))
        assert await line.hear(_ended("job_1")) == Done("job_1", 1, '"nice"')
        spent = await line.hear(lambda message: isinstance(message, ReplacementRequest))
        assert isinstance(spent, ReplacementRequest)
        assert "priority" in spent.reason
        line.process.counters.withdrawn = 2
        line.process.send(Finish())
        assert await line.ending() == "ended with exit code 0"
        assert line.process.counters.begun == 1


async def test_failure_beside_a_job_that_damaged_the_process_is_not_charged(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    async with started(2, "thread") as line:
        line.process.send(
            Run(1, [claimed(task="mess_then_wait", args=json.dumps({"what": "umask", "sign": str(sign)}))])
        )
        await async_wait_until(lambda: line.process.counters.begun == 1, "the first job to begin", every_s=0.005)
        for number in range(2, 200):  # Until the first job has done its damage.
            ended = await _result(line, number, "fail_where_umask_is_zero")
            if not isinstance(ended, Done):
                break
        assert isinstance(ended, FailedInDamagedProcess)
        assert ended.company >= 2
        assert "umask" in ended.reason
        sign.touch()
        await line.hear(_ended("job_1"))
        assert await _result(line, 500, "fail_where_umask_is_zero") == Done("job_500", 1, '"done"')


@pytest.mark.parametrize("what", ["cancel all", "remove readers", "stop", "handlers", "executor"])
async def test_damage_to_the_loop_is_not_charged_to_a_concurrent_job(what: str, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    async with started(4, "loop") as line:
        line.process.send(Run(1, [claimed(task="neighbour", args=json.dumps({"sign": str(sign)}))]))
        await async_wait_until(lambda: line.process.counters.begun == 1, "the concurrent job to begin", every_s=0.005)
        assert await _result(line, 2, "disturb", what=what) == Done("job_2", 1, f'"{what}"')
        sign.touch()
        ended = await line.hear(_ended("job_1"))
        if what in ("handlers", "executor"):
            assert isinstance(ended, FailedInDamagedProcess), ended
        else:
            assert ended == Done("job_1", 1, '"well"')
        if what in ("executor", "remove readers"):  # Other state may be lost as well.
            spent = await line.hear(lambda message: isinstance(message, ReplacementRequest))
            assert isinstance(spent, ReplacementRequest)
            assert spent.is_harmful == (what == "remove readers")
        else:
            assert await _result(line, 3, "short") == Done("job_3", 1, '"done"')
