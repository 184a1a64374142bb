"""How much of its offer a worker has left for jobs with needs.

An attempt uses what it needs from its claim until its code has stopped and its outcome is written. An attempt whose
lease was lost uses it until its code is gone and the lease is over in the store, so that the store never lists more for
this worker than it offers. What is used is added up from the attempts each time: a counter beside them could drift.
"""

from collections.abc import Callable, Iterable, Mapping

from headway.core.jobs import Claimed
from headway.core.needs import Amounts, Needs, Offer, parse_needs, times


class Capacity:
    """What a worker offers, and what its attempts use of it."""

    def __init__(self, held: Callable[[], Iterable[Claimed]], may_run: Callable[[str, int], bool]) -> None:
        self.offer = Offer()
        self._held = held
        self._may_run = may_run  # Whether the code of a lost attempt may still run, or its lease hold.
        self._lost: dict[tuple[str, int], Amounts] = {}

    def lose(self, claimed: Claimed) -> None:
        """Note that the lease of an attempt is lost; it is over for the store, but perhaps not here."""
        amounts = _amounts(claimed)
        if amounts:
            self._lost[claimed.job_id, claimed.attempt] = amounts

    def free(self) -> Amounts:
        """Return what is free of the offer."""
        self._lost = {attempt: amounts for attempt, amounts in self._lost.items() if self._may_run(*attempt)}
        free = dict(self.offer.amounts)
        for amounts in (*map(_amounts, self._held()), *self._lost.values()):
            for name, amount in amounts.items():
                free[name] = free.get(name, 0) - amount
        return free

    def fits(self, text: str) -> bool:
        """Return whether a job with these needs fits into what is free now."""
        needs = parse_needs(text)
        return needs is not None and self.offer.covers(needs) and times(needs, self.free(), 1) == 1


def less(free: Mapping[str, int], needs: Needs) -> Amounts:
    """Return what is free beside a job with these needs."""
    return {name: amount - needs.amounts.get(name, 0) for name, amount in free.items()}


def _amounts(claimed: Claimed) -> Amounts:
    needs = parse_needs(claimed.needs) if claimed.needs else None
    return {} if needs is None else needs.amounts
