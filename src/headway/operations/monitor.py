"""What the callers of one process share, so that many requests cost one reading of the store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headway.operations.series import SeriesReader


@dataclass(frozen=True, slots=True)
class Monitor:
    """Shared readings: what keeps the store from taking writes, and series."""

    trouble: Callable[[], Awaitable[str]]
    series: SeriesReader
