"""Leases that another server grants and the store records.

The engine (Redis, etcd, ZooKeeper, Consul) says who may try; the store keeps the record, and its fence is what every
write is checked against. So the engine can lose its data, its quorum or its mind, and all that it can do is let
somebody try in vain:

    acquire   the engine's lock first; then the store's row is adopted, from whoever has it, with a token above every
              other. Two who hold the engine's lock at once (it was restarted empty) have one row between them: the
              later has it, and what the earlier writes is refused.
    renew     both. A lock that the engine has forgotten while the row is still ours is taken again.
    release   the row first, then the lock: whoever gets the lock finds the row free.

*Doubt.* Two halves of an engine that know nothing of each other would have their friends rob each other for ever, and
an engine that comes back knows nothing of whom the store let act without it. So a row is not taken by force by one
who found his own row taken while the engine still called the lock his, nor by one whom the store refused it in the
engine's absence: he waits until the row is free, or until the engine says that the lock is another's.

*Absence.* A lease must outlive the question: an engine that has not answered within a quarter of it counts as absent,
and is not asked again for a few seconds. Meanwhile `store` as the fallback lets the store alone decide: whoever has the
rows keeps them, and if he dies they run out there. With `stop` leases are given up, and nothing is decided until
the engine is back.
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

PATIENCE: Final = 0.25  # The part of a lease for which the engine's answer is waited for.
ABSENT_S: Final = 5.0
GOODBYE_S_MAX: Final = 0.5  # Somebody who wants to leave tells it what it needs not know: locks run out by themselves.
AT_ONCE: Final = 32

T = TypeVar("T")


class AdmittedLeases:
    """Leases of the store for which an engine's lock is needed first. The port `Leases` says what they promise."""

    def __init__(self, engine: Engine, store: AdoptingLeases, *, clock: Clock, falls_back: bool) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock
        self._falls_back = falls_back
        self._doubtful: dict[str, float] = {}  # Leases that are not taken by force, each until a monotonic time.
        self._absent_until = 0.0
        self._trouble: str | None = None  # Why the engine is not asked, in words; None while it answers.

    @property
    def state(self) -> JsonObject:
        """Say which engine it is, how it is, and what is done without it."""
        fallback = "store" if self._falls_back else "stop"
        return {"engine": self._engine.name, "trouble": self._trouble, "fallback": fallback}

    async def acquire(self, names: Sequence[str], *, holder: str, holder_name: str, duration: Duration) -> list[Lease]:
        """Take those whose lock the engine grants."""

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
        """Extend those that both still know as ours."""
        if not leases:
            return []
        holder = leases[0].holder
        admitted = await self._still_admitted([lease.name for lease in leases], holder, duration)
        renewed = await self._store.renew([lease for lease in leases if lease.name in admitted], duration=duration)
        lost = admitted - {lease.name for lease in renewed}
        if lost:  # Somebody else has the rows: he is the one, whatever the engine thinks of us.
            self._doubt(lost, duration)
            await self._give_up(lost, holder)
        return renewed

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give them back at once."""
        if leases:
            await self._store.release(leases)
            await self._give_up({lease.name for lease in leases}, leases[0].holder)

    async def watch(self, hear: Callable[[], None]) -> None:
        """Hear of locks that may have come free."""
        await self._engine.watch(hear)

    async def close(self) -> None:
        """Leave the engine; one that does not answer is left without a word."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S_MAX):
                await self._engine.close()

    async def _ask_for(self, names: Iterable[str], holder: str, duration: Duration) -> dict[str, int]:
        """Ask the engine for locks, several at a time; return the tokens of those that it grants."""
        tokens: dict[str, int] = {}
        left = iter(dict.fromkeys(names))
        while some := list(islice(left, AT_ONCE)):
            answers = await self._answer(
                partial(self._ask_for_each, some, holder, duration), duration / SECOND * PATIENCE
            )
            for name, token in zip(some, answers, strict=True):
                if token is None:
                    self._doubtful.pop(name, None)  # The engine and the store agree that it is another's.
                else:
                    tokens[name] = token
        return tokens

    async def _ask_for_each(self, names: Sequence[str], holder: str, duration: Duration) -> list[int | None]:
        asked = (self._engine.acquire(name, holder=holder, duration=duration) for name in names)
        answers: list[int | None] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):  # All of them: none is left behind.
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
        except EngineUnavailable as error:  # They run out by themselves.
            self._miss(error)

    async def _answer(self, ask: Callable[[], Awaitable[T]], limit_s: float) -> T:
        """Ask the engine, unless it was absent a moment ago, and wait for so long at most."""
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
        """Note that the engine is absent, and leave it alone for a while."""
        node, engine, now = self._clock.node, self._engine.name, self._clock.monotonic()
        if self._trouble is None:
            emit(EngineLost(node=node, engine=engine, error=str(error), falls_back=self._falls_back))
        self._trouble = str(error)
        if now >= self._absent_until:
            self._absent_until = now + ABSENT_S

    def _doubt(self, names: Collection[str], duration: Duration) -> None:
        """Do not take these by force. Who still wants one asks again within its duration, and it is noted anew."""
        now = self._clock.monotonic()
        self._doubtful = {name: until for name, until in self._doubtful.items() if until > now}
        self._doubtful |= dict.fromkeys(names, now + duration / SECOND)
