"""Leases that another server grants and the store records.

The engine (Redis, etcd, ZooKeeper, Consul) decides who may try; the store keeps the record, and every write is checked
against the store's fencing token. So an engine that loses its data or its quorum, or misbehaves, can only let a node
try in vain:

    acquire   the engine's lock first; then the store's row is taken over from its holder, with a token above all
              others. If two nodes hold the engine's lock at once (it was restarted empty), they compete for one row:
              the later one has it, and writes of the earlier one are rejected.
    renew     both. A lock that the engine has forgotten while the row is still ours is acquired again.
    release   the row first, then the lock: the next holder of the lock finds the row free.

*Doubt.* With a split-brain engine, the nodes of both halves would take the row from each other for ever, and an engine
that comes back does not know whom the store let act without it. So a node does not take a row by force if it found its
own row taken while the engine still called the lock its own, or if the store refused the row to it while the engine was
unavailable. It waits until the row is free, or until the engine says that another node has the lock.

*Absence.* A request to the engine must end well before the lease: an engine that has not answered within a quarter of
the lease counts as unavailable, and is not asked again for a few seconds. Meanwhile, with the fallback `store`, the
store alone decides: holders of rows keep them, and the rows of a dead holder expire. With `stop`, leases are given up,
and nothing is decided until the engine is back.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.events import EngineLost, EngineReturned, emit
from headway.core.instants import SECOND, Duration
from headway.core.json_values import JsonObject
from headway.core.nodes import Lease
from headway.core.ports import AdoptingLeases, Engine

PATIENCE: Final = 0.25  # The share of a lease that a request to the engine may take.
ABSENT_S: Final = 5.0
GOODBYE_S_MAX: Final = 0.5  # At shutdown; a release may be skipped, since locks expire by themselves.
AT_ONCE: Final = 32

T = TypeVar("T")


class AdmittedLeases:
    """Leases of the store that need an engine's lock first. The port `Leases` documents the methods."""

    def __init__(self, engine: Engine, store: AdoptingLeases, *, clock: Clock, falls_back: bool) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock
        self._falls_back = falls_back
        self._doubtful: dict[str, float] = {}  # Leases that are not taken by force, each until a monotonic time.
        self._absent_until = 0.0
        self._trouble: str | None = None  # Why the engine is not asked; None while it answers.

    @property
    def state(self) -> JsonObject:
        """Describe the engine, its state and the fallback."""
        fallback = "store" if self._falls_back else "stop"
        return {"engine": self._engine.name, "trouble": self._trouble, "fallback": fallback}

    async def acquire(self, names: Sequence[str], *, holder: str, holder_name: str, duration: Duration) -> list[Lease]:
        """Acquire the leases whose lock the engine grants."""

        async def of_free_ones(asked: Sequence[str]) -> list[Lease]:
            won = await self._store.acquire(asked, holder=holder, holder_name=holder_name, duration=duration)
            self._doubt({*asked} - {lease.name for lease in won}, duration)
            for lease in won:
                self._doubtful.pop(lease.name, None)
            return won

        try:
            tokens = await self._ask_for(names, holder, duration)
        except EngineUnavailable as error:
            self._miss(error)
            return await of_free_ones(names) if self._falls_back else []
        now = self._clock.monotonic()
        doubtful = {name for name in tokens if self._doubtful.get(name, now) > now}
        sure = {name: token for name, token in tokens.items() if name not in doubtful}
        won: list[Lease] = []
        if sure:
            won += await self._store.adopt(sure, holder=holder, holder_name=holder_name, duration=duration)
        if doubtful:
            won += await of_free_ones(sorted(doubtful))
            await self._give_up(doubtful - {lease.name for lease in won}, holder)
        return won

    async def renew(self, leases: Sequence[Lease], *, duration: Duration) -> list[Lease]:
        """Extend the leases that the engine and the store still assign to us."""
        if not leases:
            return []
        holder = leases[0].holder
        admitted = await self._still_admitted([lease.name for lease in leases], holder, duration)
        renewed = await self._store.renew([lease for lease in leases if lease.name in admitted], duration=duration)
        lost = admitted - {lease.name for lease in renewed}
        if lost:  # Another node has the rows: it is the holder, whatever the engine says.
            self._doubt(lost, duration)
            await self._give_up(lost, holder)
        return renewed

    async def release(self, leases: Sequence[Lease]) -> None:
        """Release them at once."""
        if leases:
            await self._store.release(leases)
            await self._give_up({lease.name for lease in leases}, leases[0].holder)

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call back when locks may have become free."""
        await self._engine.watch(hear)

    async def close(self) -> None:
        """Disconnect from the engine; do not wait for one that does not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S_MAX):
                await self._engine.close()

    async def _ask_for(self, names: Iterable[str], holder: str, duration: Duration) -> dict[str, int]:
        """Acquire locks of the engine, several concurrently; return the tokens of those that it grants."""
        tokens: dict[str, int] = {}
        left = iter(dict.fromkeys(names))
        while some := list(islice(left, AT_ONCE)):
            answers = await self._answer(
                partial(self._ask_for_each, some, holder, duration), duration / SECOND * PATIENCE
            )
            for name, token in zip(some, answers, strict=True):
                if token is None:
                    self._doubtful.pop(name, None)  # The engine and the store agree that another node has it.
                else:
                    tokens[name] = token
        return tokens

    async def _ask_for_each(self, names: Sequence[str], holder: str, duration: Duration) -> list[int | None]:
        asked = (self._engine.acquire(name, holder=holder, duration=duration) for name in names)
        answers: list[int | None] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):  # Await all: no lock is left behind.
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers

    async def _still_admitted(self, names: Sequence[str], holder: str, duration: Duration) -> set[str]:
        renew = partial(self._engine.renew, names, holder=holder, duration=duration)
        try:
            kept = await self._answer(renew, duration / SECOND * PATIENCE)
            forgotten = [name for name in names if name not in kept]
            return {*kept, *await self._ask_for(forgotten, holder, duration)}
        except EngineUnavailable as error:
            self._miss(error)
            return set(names) if self._falls_back else set()

    async def _give_up(self, names: Collection[str], holder: str) -> None:
        if not names:
            return
        try:
            await self._answer(partial(self._engine.release, names, holder=holder), GOODBYE_S_MAX)
        except EngineUnavailable as error:  # They expire by themselves.
            self._miss(error)

    async def _answer(self, ask: Callable[[], Awaitable[T]], limit_s: float) -> T:
        """Call the engine with a time limit, unless it was unavailable a moment ago."""
        if self._clock.monotonic() < self._absent_until:
            raise EngineUnavailable(self._trouble)
        try:
            async with asyncio.timeout(limit_s):
                answer = await ask()
        except TimeoutError:
            raise EngineUnavailable(f"{self._engine.name} does not answer within {limit_s:g} s") from None
        if self._trouble is not None and self._clock.monotonic() >= self._absent_until:  # Else it was asked earlier.
            emit(EngineReturned(node=self._clock.node, engine=self._engine.name))
            self._trouble = None
        return answer

    def _miss(self, error: EngineUnavailable) -> None:
        """Note that the engine is unavailable, and do not ask it for a while."""
        node, engine, now = self._clock.node, self._engine.name, self._clock.monotonic()
        if self._trouble is None:
            emit(EngineLost(node=node, engine=engine, error=str(error), falls_back=self._falls_back))
        self._trouble = str(error)
        if now >= self._absent_until:
            self._absent_until = now + ABSENT_S

    def _doubt(self, names: Collection[str], duration: Duration) -> None:
        """Do not take these by force. A caller that still wants one asks again within its duration, and renews this."""
        now = self._clock.monotonic()
        self._doubtful = {name: until for name, until in self._doubtful.items() if until > now}
        self._doubtful |= dict.fromkeys(names, now + duration / SECOND)
