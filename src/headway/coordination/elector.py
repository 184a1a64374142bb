"""Leader election: leases on roles, trusted no longer than is safe.

An elector tries to hold the lease of each wanted role. There are two states per role, and these transitions between
them:

                    acquired
      FOLLOWER ───────────────────▶ LEADER
          ▲   lost · not trusted ·     │
          └── stuck · released ────────┘

*Trust.* A term is trusted until (monotonic time when the request was *sent*) + lease − margin. The response may have
been slow, or the process frozen in between; counting from the sending errs on the safe side. After that moment the term
counts as lost without waiting for a refusal. The store checks the token again with every write, so a holder that is
wrong about its term wastes work and does no harm.

*Stuck loops.* A process can be alive and renew its leases while the loop that should do the work hangs. Before every
renewal the elector checks how long that loop has been silent, and steps down if that is longer than the lease.

*Sharing.* With several shards and several nodes each node takes at most its fair share, so that a new node finds work
and the shards of a dead node go to the live ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock
from headway.core.events import TermLost, TermWon, emit
from headway.core.instants import SECOND, Duration
from headway.core.nodes import LEASE_MARGIN, Lease
from headway.core.ports import Leases

RENEWALS_PER_LEASE: Final = 3
WAIT_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Term:
    """A lease on a role, and the monotonic time until which it can be trusted."""

    lease: Lease
    trusted_until: float


class Elector:
    """Holds the leases of roles for one node. `tick` is run by a `Loop`."""

    def __init__(
        self,
        leases: Leases,
        *,
        clock: Clock,
        node_id: str,
        node_name: str,
        duration: Duration,
        silence_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._node_id = node_id
        self._node_name = node_name
        self._duration = duration
        self._silence_s = silence_s
        self._on_change = on_change
        self._terms: dict[str, Term] = {}
        self._roles: tuple[str, ...] = ()
        self._share = 0
        self._resting_until = 0.0

    def seek(self, roles: Sequence[str], share: int) -> bool:
        """Set the wanted roles and how many of them to hold at most; return whether that changed."""
        before = self._roles, self._share
        self._roles, self._share = tuple(roles), share
        return before != (self._roles, self._share)

    def held(self) -> dict[str, Lease]:
        """Return the leases that can be trusted now."""
        now = self._clock.monotonic()
        return {role: term.lease for role, term in self._terms.items() if now < term.trusted_until}

    def is_waiting(self) -> bool:
        """Return whether there is a role that this node would take if it were free."""
        return len(self._terms) < min(self._share, len(self._roles))

    def lose(self, reason: str) -> None:
        """Give up every term at once, without a write to the store: they were reported as not ours."""
        for role in tuple(self._terms):
            self._drop(role, reason)

    async def tick(self) -> float:
        """Renew held leases, try for the others, and return the seconds until the next tick."""
        self._drop_untrusted()
        if self._stands_still():
            await self._release(self._terms, "the loop is stuck")
        else:
            await self._renew()
            await self._give_up_surplus()
            await self._acquire()
        rest_s = self._duration / SECOND / RENEWALS_PER_LEASE
        # Releases are announced; expirations must be polled for.
        return min(rest_s, WAIT_S) if self.is_waiting() else rest_s

    async def resign(self) -> None:
        """Release every lease at once, so that another node can have it without waiting."""
        await self._release(self._terms, "released", is_handed_over=True)

    def _stands_still(self) -> bool:
        now = self._clock.monotonic()
        if self._silence_s() > self._duration / SECOND:
            if self._terms:
                self._resting_until = now + self._duration / SECOND  # Let another node try first.
            # Without a term the store or this node was away, perhaps all nodes: retry soon.
            return True
        return now < self._resting_until

    def _drop_untrusted(self) -> None:
        now = self._clock.monotonic()
        for role, term in tuple(self._terms.items()):
            if now >= term.trusted_until:
                self._drop(role, "not renewed in time")

    async def _renew(self) -> None:
        if not self._terms:
            return
        sent = self._clock.monotonic()
        renewed = await self._leases.renew([term.lease for term in self._terms.values()], duration=self._duration)
        self._trust(renewed, sent)
        for role in self._terms.keys() - {lease.name for lease in renewed}:
            self._drop(role, "taken by another node")

    async def _acquire(self) -> None:
        room = self._share - len(self._terms)
        wanted = [role for role in self._roles if role not in self._terms]
        if room <= 0 or not wanted:
            return
        if len(wanted) > room:  # Each node starts elsewhere, or all would compete for the first one.
            self._clock.chance.shuffle(wanted)
        sent = self._clock.monotonic()
        for role in wanted:
            if room <= 0:
                return
            won = await self._leases.acquire(
                [role], holder=self._node_id, holder_name=self._node_name, duration=self._duration
            )
            self._trust(won, sent)
            for lease in won:
                room -= 1
                emit(TermWon(node=self._node_id, role=lease.name, token=lease.token))
                self._on_change()
            sent = self._clock.monotonic()

    async def _give_up_surplus(self) -> None:
        surplus = sorted(self._terms)[self._share :] + [role for role in self._terms if role not in self._roles]
        if surplus:
            await self._release(dict.fromkeys(surplus), "left to another node", is_handed_over=True)

    async def _release(
        self, roles: dict[str, None] | dict[str, Term], reason: str, *, is_handed_over: bool = False
    ) -> None:
        leases = [self._terms[role].lease for role in roles]
        for role in tuple(roles):
            # Before the write to the store: nothing may act on it any more.
            self._drop(role, reason, is_handed_over=is_handed_over)
        await self._leases.release(leases)

    def _trust(self, leases: Sequence[Lease], sent: float) -> None:
        until = sent + self._duration / SECOND * (1 - LEASE_MARGIN)
        for lease in leases:
            self._terms[lease.name] = Term(lease, until)

    def _drop(self, role: str, reason: str, *, is_handed_over: bool = False) -> None:
        token = self._terms.pop(role).lease.token
        emit(TermLost(node=self._node_id, role=role, token=token, reason=reason, is_handed_over=is_handed_over))
        self._on_change()
