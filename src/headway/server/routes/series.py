"""How jobs ended over the last hours, as points for a chart. Many who look at one chart cost one look at the store."""

from typing import Final

from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND, Duration, Instant
from headway.core.lifecycle import FINAL, Status
from headway.core.single_flight import Recent
from headway.server.web import Answer, Call, Param, Route
from headway.store import Store
from headway.wire.shapes import Shape, stamp

WINDOWS: Final[dict[str, Duration]] = {"1h": HOUR, "6h": 6 * HOUR, "24h": 24 * HOUR}
POINTS: Final = 120
JOBS_MAX: Final = 20_000
FRESH_S: Final = 3.0
READING_SHARE: Final = 0.05
KEPT_MAX: Final = 256


class Series:
    """What was read last of each kind, for a few seconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[str, str | None, str | None, str | None], Recent[Shape]] = {}

    async def get(self, window: str, tenant: str | None, task: str | None, queue: str | None) -> Shape:
        """Return how the jobs of a tenant (or all) ended, by steps of time."""
        wanted = (window, tenant, task, queue)
        known = self._known.pop(wanted, None)
        if known is None:
            known = Recent(lambda: self._read(*wanted), clock=self._clock, fresh_s=FRESH_S, cost=READING_SHARE)
        self._known[wanted] = known
        if len(self._known) > KEPT_MAX:  # The one that was asked for longest ago.
            del self._known[next(iter(self._known))]
        return await known.get()

    async def _read(self, window: str, tenant: str | None, task: str | None, queue: str | None) -> Shape:
        step = WINDOWS[window] // POINTS
        until = (self._clock.now() // step + 1) * step
        since = until - POINTS * step
        rows, oldest = await self._store.statistics.ended_series(
            since, step, tenant=tenant, task=task, queue=queue, limit=JOBS_MAX
        )
        if oldest is not None:  # What came before was not looked at, and of the step that it falls in not all.
            since = min((oldest // step + 1) * step, until - step)
        by_step: dict[int, Shape] = {}
        for row in rows:
            by_step.setdefault(row["step"], {})[row["status"]] = row
        return {
            "since": stamp(since),
            "until": stamp(until),
            "step_seconds": step // SECOND,
            "points": [_point(at, by_step.get(at // step, {})) for at in range(since, until, step)],
            "truncated": oldest is not None,
        }


def _point(at: Instant, ended: Shape) -> Shape:
    completed = ended.get(Status.COMPLETED)
    return {
        "at": stamp(at),
        **{status.lower(): ended[status]["ended"] if status in ended else 0 for status in sorted(FINAL)},
        "duration_p50": None if completed is None else _seconds(completed["half"]),
        "duration_p95": None if completed is None else _seconds(completed["most"]),
    }


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else round(duration / SECOND, 6)


async def get_series(call: Call) -> Answer:
    """Say how jobs ended lately, by steps of time."""
    query, series = call.query, call.services.series
    return Answer(await series.get(query.get("window", "1h"), call.tenant, query.get("task"), query.get("queue")))


_POINT: Final = {
    "at": "2027-01-31T06:00:00Z",
    "cancelled": 0,
    "completed": 30,
    "failed": 1,
    "timed_out": 0,
    "duration_p50": 1.204,
    "duration_p95": 4.5,
}

ROUTES: Final = (
    Route(
        method="GET",
        path="/api/stats/series",
        handler=get_series,
        role="viewer",
        summary="How jobs ended over the last hours, in 120 steps",
        what=(
            "How many ended in each step, and in how many seconds half and 95 of 100 of the completed ones were done."
            " The newest 20,000 jobs of everybody are looked at; if there were more, `truncated` is true, and the"
            " points begin where they do. An answer may be a few seconds old."
        ),
        tag="operations",
        query=(
            Param("window", "how far back", choices=tuple(WINDOWS), example="1h"),
            Param("task", "only jobs of this task"),
            Param("queue", "only jobs of this queue"),
        ),
        answers={
            200: {
                "since": "2027-01-31T05:00:30Z",
                "until": "2027-01-31T06:00:30Z",
                "step_seconds": 30,
                "points": [_POINT],
                "truncated": False,
            }
        },
    ),
)
