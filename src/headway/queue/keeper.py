"""The keeper's tick: let things go on that nobody else moves.

One keeper is for lanes that wait at a limit although it has a free place. Usually the worker whose job ended opens them
at once; the tick is for workers that died, and for new limits. Another keeper is for groups: it adds up their counts,
closes forgotten ones and finishes those whose jobs have all ended.
"""

from collections.abc import Callable

from headway.core.instants import SECOND, Duration
from headway.core.upkeep_ports import Upkeep


class Keeper:
    """Keeps lanes or groups going. A `Loop` runs `tick`."""

    def __init__(self, upkeep: Upkeep, *, is_mine: Callable[[], bool], poll: Duration) -> None:
        self._upkeep = upkeep
        self._is_mine = is_mine
        self._poll_s = poll / SECOND

    async def tick(self) -> float:
        """Do one bounded piece; return 0 while there is more."""
        return 0.0 if self._is_mine() and await self._upkeep.keep_going() else self._poll_s
