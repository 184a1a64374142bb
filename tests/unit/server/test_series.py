"""Chart series: the points of a window, and one query shared by many viewers."""

import asyncio
from typing import Any

import msgspec

from headway.core.clock import Clock
from headway.core.instants import MINUTE, SECOND, parse_instant
from headway.operations.series import KEPT_MAX, SeriesReader

NOW = parse_instant("2027-01-31T06:00:10Z")


class Queue:
    """Returns made-up rows, and counts its calls."""

    def __init__(self, rows: list[dict[str, Any]], oldest: int | None = None) -> None:
        self.rows, self.oldest = rows, oldest
        self.asked: list[tuple[int, int, dict[str, Any]]] = []

    async def ended_series(self, since: int, step: int, **which: Any) -> Any:
        """Return the rows after a delay."""
        self.asked.append((since, step, which))
        await asyncio.sleep(0)
        return self.rows, self.oldest


class Still(Clock):
    """A clock that the test advances."""

    def __init__(self) -> None:
        super().__init__(wall=lambda: NOW, monotonic=lambda: self.seconds)
        self.seconds = 100.0


def series(queue: Queue) -> tuple[SeriesReader, Still]:
    clock = Still()
    return SeriesReader(type("Store", (), {"statistics": queue})(), clock), clock


def row(at: str, step: int, status: str, ended: int, half: int = 0, most: int = 0) -> dict[str, Any]:
    return {"step": parse_instant(at) // step, "status": status, "ended": ended, "half": half, "most": most}


async def test_hour_has_120_points_up_to_now() -> None:
    step = 30 * SECOND
    queue = Queue(
        [
            row("2027-01-31T06:00:00Z", step, "COMPLETED", 3, 1_500_000, 2_000_000),
            row("2027-01-31T05:59:30Z", step, "FAILED", 1),
            row("2027-01-31T05:59:30Z", step, "TIMED_OUT", 2),
            row("2027-01-31T05:59:30Z", step, "CANCELLED", 4),
        ]
    )
    found = await series(queue)[0].get("1h", "acme", "report", "q")
    assert queue.asked[0][:2] == (parse_instant("2027-01-31T05:00:30Z"), step)
    assert queue.asked[0][2] == {"tenant": "acme", "task": "report", "queue": "q", "limit": 20_000}
    assert (found.since, found.until, found.step_seconds, found.truncated) == (
        "2027-01-31T05:00:30Z",
        "2027-01-31T06:00:30Z",
        30,
        False,
    )
    assert len(found.points) == 120
    assert msgspec.to_builtins(found.points[-1]) == {
        "at": "2027-01-31T06:00:00Z",
        "completed": 3,
        "failed": 0,
        "timed_out": 0,
        "cancelled": 0,
        "duration_p50": 1.5,
        "duration_p95": 2.0,
    }
    before = found.points[-2]
    assert (before.failed, before.timed_out, before.cancelled, before.duration_p50) == (1, 2, 4, None)
    assert sum(point.completed for point in found.points) == 3


async def test_longer_windows_have_longer_steps() -> None:
    shown, _ = series(Queue([]))
    for window, seconds in (("1h", 30), ("6h", 180), ("24h", 720)):
        found = await shown.get(window, None, None, None)
        assert (found.step_seconds, len(found.points)) == (seconds, 120)


async def test_series_begins_at_the_first_complete_step() -> None:
    oldest = NOW - 10 * MINUTE
    found = await series(Queue([], oldest))[0].get("1h", None, None, None)
    assert found.truncated is True
    assert found.points[0].at == found.since == "2027-01-31T05:50:30Z"  # The step before was seen only in part.
    found = await series(Queue([], NOW))[0].get("24h", None, None, None)
    assert len(found.points) == 1


async def test_concurrent_viewers_share_one_query() -> None:
    queue = Queue([])
    shown, clock = series(queue)
    await asyncio.gather(*(shown.get("1h", "acme", None, None) for _ in range(50)))
    assert len(queue.asked) == 1
    await shown.get("1h", "globex", None, None)
    await shown.get("6h", "acme", None, None)
    assert len(queue.asked) == 3  # Tenants do not share results.
    clock.seconds += 10
    await shown.get("1h", "acme", None, None)
    assert len(queue.asked) == 4


async def test_cache_is_bounded() -> None:
    queue = Queue([])
    shown, _ = series(queue)
    for number in range(KEPT_MAX + 10):
        await shown.get("1h", None, f"task-{number}", None)
    assert len(shown._known) == KEPT_MAX
    await shown.get("1h", None, f"task-{KEPT_MAX + 9}", None)
    assert len(queue.asked) == KEPT_MAX + 10
    await shown.get("1h", None, "task-0", None)
    assert len(queue.asked) == KEPT_MAX + 11
