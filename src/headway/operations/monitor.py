"""Readings shared by all callers of one process, so that many requests cost one read of the store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headway.operations.series import SeriesReader


@dataclass(frozen=True, slots=True)
class Monitor:
    """Shared readings: what keeps the store from accepting writes, and series."""

    trouble: Callable[[], Awaitable[str]]
    series: SeriesReader
