"""Reports of running attempts go to the live channel and rarely to the store; the store gets all of them in the end."""

import asyncio
from collections.abc import Callable

import msgspec

from headway.core.errors import StoreUnavailable
from headway.core.job_details import Detail
from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import Succeeded
from headway.core.ports import Latest
from headway.worker.reporter import CHECKPOINT_EVERY_S, LINES_EVERY_S, REPORT_EVERY_S
from tests.simulation.stage import Stage
from tests.simulation.virtual_loop import virtual
from tests.unit.worker.test_supervisor import LEASE_S, Post


class Told:
    """The port `Live` without a server: it records its calls."""

    name = "told"

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.values: list[Latest] = []
        self.forgotten: list[str] = []
        self.may_tell: Callable[[str, int], bool] = lambda _job_id, _attempt: False
        self.changed: Callable[[], None] = lambda: None

    def begin(self, may_tell: Callable[[str, int], bool], changed: Callable[[], None]) -> None:
        self.may_tell, self.changed = may_tell, changed

    def tell(self, latest: Latest) -> None:
        self.values.append(latest)

    def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)

    async def close(self) -> None:
        """Do nothing."""


def _report(job: Claimed, progress: int | None, *lines: str, metadata: str | None = None) -> Report:
    texts = tuple((None, "log", line) for line in lines)
    return Report(job_id=job.id, attempt=job.attempt, progress=progress, lines=texts, metadata=metadata)


def serial(detail: object) -> int:
    return msgspec.json.decode(str(detail), type=Detail).serial


@virtual
async def test_store_is_written_rarely_while_the_live_channel_works() -> None:
    async with Stage() as stage:
        live = Told()
        post = Post(stage, live=live)
        post.supervisor.reporter.begin_live()
        [job] = await post.take()
        for every_s, lines in ((CHECKPOINT_EVERY_S, ()), (LINES_EVERY_S, ("a line",)), (REPORT_EVERY_S, ())):
            live.trouble = "it is away" if every_s == REPORT_EVERY_S else None
            versions: set[object] = set()
            for number in range(round(LEASE_S * 10)):
                post.supervisor.reported([_report(job, number % 99, *lines)])
                await post.supervisor.reporter.tick()
                await post.supervisor.lease_extender.tick()
                versions.add(post.job(job, "version"))
                await asyncio.sleep(0.1)
            assert abs(len(versions) - 1 - LEASE_S / every_s) <= 1, every_s
        assert len(live.values) == 3 * round(LEASE_S * 10)
        post.supervisor.reported([_report(job, 77, "the last line", metadata='{"a":1}')])
        post.supervisor.ended(job, Succeeded())
        await post.supervisor.settle()
        assert post.log(job)[-1] == "the last line", "the last report is stored before the end"
        assert post.job(job, "status", "metadata") == ("COMPLETED", '{"a":1}')
        assert live.forgotten == [job.id]
        assert not live.may_tell(job.id, job.attempt)


@virtual
async def test_live_values_are_complete_and_numbered_as_in_the_store() -> None:
    async with Stage() as stage:
        live = Told()
        post = Post(stage, live=live)
        [job] = await post.take()
        post.supervisor.reported([_report(job, 10, "one", "two")])
        post.supervisor.reported([Report(job_id=job.id, attempt=job.attempt, detail='{"step":"Copy"}')])
        post.supervisor.reported([_report(job, None, "three", metadata='{"rows":3}')])
        *_, last = live.values
        assert (last.progress, last.metadata, last.serial) == (10, '{"rows":3}', 3)
        assert msgspec.json.decode(last.detail or "") == {"step": "Copy", "serial": 3}
        times = [at for value in live.values for at, _, _ in value.lines]
        assert times == sorted(set(times)), "a line is identified by its time"
        assert [value.after for value in live.values if value.lines] == [0, times[1]]
        await asyncio.sleep(CHECKPOINT_EVERY_S)
        await post.supervisor.reporter.tick()
        assert serial(post.job(job, "detail")[0]) == 3
        await post.supervisor.lease_extender.tick()
        post.supervisor.reported([Report(job_id=job.id, attempt=job.attempt, detail="no JSON")])
        post.seat.driver.is_down = True
        await asyncio.sleep(CHECKPOINT_EVERY_S)
        try:
            await post.supervisor.reporter.tick()
        except StoreUnavailable:
            post.seat.driver.is_down = False
        await post.supervisor.lease_extender.tick()
        await asyncio.sleep(CHECKPOINT_EVERY_S)
        await post.supervisor.reporter.tick()
        assert serial(post.job(job, "detail")[0]) == live.values[-1].serial == 4


@virtual
async def test_attempt_with_an_untrusted_lease_reports_nothing() -> None:
    async with Stage() as stage:
        live = Told()
        post = Post(stage, live=live)
        post.supervisor.reporter.begin_live()
        [job] = await post.take()
        post.supervisor.reported([_report(job, 10)])
        assert live.may_tell(job.id, job.attempt)
        assert not live.may_tell(job.id, job.attempt + 1)
        post.seat.driver.is_down = True
        await asyncio.sleep(LEASE_S - post.supervisor.margin_s + 0.1)
        assert not live.may_tell(job.id, job.attempt), "pending reports are discarded"
        post.supervisor.reported([_report(job, 20)])
        assert len(live.values) == 1
        await post.supervisor.lease_watchdog.tick()
        assert live.forgotten == [job.id]
