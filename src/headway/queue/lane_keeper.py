"""The lane keeper's tick: let jobs go on that wait at a limit although it has a free place.

Usually the worker whose job ended does that at once. This tick is for workers that died, and for new limits: it puts
waiting jobs of a task that got a limit into a lane of their own, in bounded pieces.
"""

from collections.abc import Callable

from headway.core.instants import SECOND, Duration
from headway.core.upkeep_ports import LaneUpkeep


class LaneKeeper:
    """Keeps lanes going. A `Loop` runs `tick`."""

    def __init__(self, lanes: LaneUpkeep, *, is_mine: Callable[[], bool], poll: Duration) -> None:
        self._lanes = lanes
        self._is_mine = is_mine
        self._poll_s = poll / SECOND

    async def tick(self) -> float:
        """Do one bounded piece; return 0 while there is more."""
        return 0.0 if self._is_mine() and await self._lanes.keep_going() else self._poll_s
