"""Read how jobs ended over the last hours, as points for a chart. Equal requests share one read (single-flight)."""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND, Duration, Instant, isoformat
from headway.core.lifecycle import FINAL, Status
from headway.core.single_flight import CachedRead
from headway.store import Store
from headway.wire.overview import Point, Series

Window = Literal["1h", "6h", "24h"]
WINDOWS: Final[dict[str, Duration]] = {window: int(window[:-1]) * HOUR for window in get_args(Window)}
POINTS: Final = 120
JOBS_MAX: Final = 20_000
FRESH_S: Final = 3.0
READING_SHARE: Final = 0.05
KEPT_MAX: Final = 256


class SeriesReader:
    """Reads series and caches each for a few seconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[str, str | None, str | None, str | None], CachedRead[Series]] = {}

    async def get(self, window: str, tenant: str | None, task: str | None, queue: str | None) -> Series:
        """Return how the jobs of a tenant (or of all tenants) ended, by time step."""
        wanted = (window, tenant, task, queue)
        known = self._known.pop(wanted, None)
        if known is None:
            known = CachedRead(lambda: self._read(*wanted), clock=self._clock, fresh_s=FRESH_S, cost=READING_SHARE)
        self._known[wanted] = known
        if len(self._known) > KEPT_MAX:  # Forget the least recently used one.
            del self._known[next(iter(self._known))]
        return await known.get()

    async def _read(self, window: str, tenant: str | None, task: str | None, queue: str | None) -> Series:
        step = WINDOWS[window] // POINTS
        until = (self._clock.now() // step + 1) * step
        since = until - POINTS * step
        rows, oldest = await self._store.statistics.ended_series(
            since, step, tenant=tenant, task=task, queue=queue, limit=JOBS_MAX
        )
        if oldest is not None:  # Earlier jobs were not read, and the step of the oldest one is incomplete.
            since = min((oldest // step + 1) * step, until - step)
        by_step: dict[int, dict[str, Any]] = {}
        for row in rows:
            by_step.setdefault(row["step"], {})[row["status"]] = row
        return Series(
            since=isoformat(since),
            until=isoformat(until),
            step_seconds=step // SECOND,
            points=[_point(at, by_step.get(at // step, {})) for at in range(since, until, step)],
            truncated=oldest is not None,
        )


def _point(at: Instant, ended: Mapping[str, Any]) -> Point:
    completed = ended.get(Status.COMPLETED)
    return Point(
        at=isoformat(at),
        **{status.lower(): ended[status]["ended"] if status in ended else 0 for status in FINAL},
        duration_p50=None if completed is None else _seconds(completed["half"]),
        duration_p95=None if completed is None else _seconds(completed["most"]),
    )


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else round(duration / SECOND, 6)
