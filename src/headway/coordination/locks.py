"""Locks and leader election for users: a lease that renews itself, and reports when it can no longer be trusted.

    async with app.lock("nightly-import", ttl="30s") as lock:     one at a time, over all hosts
    async with app.leader("indexer") as term:                     the same, waited for as long as it takes
    async for term in app.leader("indexer"):                      and again after each loss
        async with term: ...

The lease is named `lock/NAME`, so user locks never collide with leases of Headway itself. Like a term of an elector, it
is trusted until (monotonic time when the request was *sent*) + ttl − margin. After that it counts as lost without
waiting for a refusal: `lost` is set, `check` raises, and the body of the `async with` is cancelled. Code that does not
await cannot be stopped, and a process can be frozen anywhere. So writes that two holders must never both make carry the
fencing token `token`, which only grows; the receiver rejects a write if it has seen a higher one.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from headway.coordination.elector import RENEWALS_PER_LEASE
from headway.core.clock import Clock, cancel_until_done
from headway.core.errors import DefinitionError, LeaseLost, LockHeld, StoreError, StoreFull, StoreUnavailable
from headway.core.instants import HOUR, SECOND, Duration, DurationLike, format_duration, parse_duration, span
from headway.core.nodes import LEASE_MARGIN, Lease
from headway.core.ports import Leases
from headway.core.validation import check_name

TTL_DEFAULT: Final = "30s"
TTL_MIN: Final = SECOND
TTL_MAX: Final = HOUR
PREFIX: Final = "lock/"
LOOK_S_MIN: Final = 0.03
LOOK_FACTOR: Final = 1.5
LOOK_S_MAX: Final = 0.5
GOODBYE_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Grants:
    """The source of locks: leases, their holders, and the errors of the server that grants them."""

    leases: Leases
    held: Callable[[str], Awaitable[list[tuple[Lease, bool]]]]
    trouble: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The requested lock, and how long to wait for it."""

    name: str
    ttl: Duration
    limit_s: float | None = None

    @classmethod
    def of(cls, name: str, ttl: DurationLike, timeout: DurationLike | None, blocking: bool) -> "Wish":
        """Parse and check the arguments of a lock."""
        micros = parse_duration(ttl, what="ttl")
        if not TTL_MIN <= micros <= TTL_MAX:
            raise DefinitionError(
                f"ttl must be from {format_duration(TTL_MIN)} to {format_duration(TTL_MAX)}, not {ttl!r};"
                " a lock renews itself, so it need not be as long as the work"
            )
        limit_s = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        return cls(name=check_name(name, "lock"), ttl=micros, limit_s=limit_s if blocking else 0.0)


class _Hold:
    """One lease: acquired, renewed in the background, released. `on_loss` is called once.

    Without a loop (`is_alone`), in a test on virtual time, nothing is renewed and nothing waits.
    """

    def __init__(
        self,
        wish: Wish,
        grants: Callable[[], Awaitable[Grants]],
        clock: Clock,
        holder_name: str,
        on_loss: Callable[[], None],
        *,
        is_alone: bool = False,
    ) -> None:
        self.wish = wish
        self.loss: str | None = None
        self._grants = grants
        self._clock = clock
        self._holder = clock.new_id("lock")
        self._holder_name = holder_name
        self._on_loss = on_loss
        self._is_alone = is_alone
        self._lease: Lease | None = None
        self._trusted_until = 0.0
        self._keeper: asyncio.Task[None] | None = None

    @property
    def token(self) -> int:
        """The token of the lease, even if it has just been lost."""
        if self._lease is None:
            raise LeaseLost(f"the lock {self.wish.name!r} is not held")
        return self._lease.token

    def check(self) -> None:
        """Raise an error unless the lease can be trusted now."""
        if self.loss is None and self.token and self._clock.monotonic() >= self._trusted_until:
            self._lose("it was not renewed in time")
        if self.loss is not None:
            raise self.error()

    def error(self) -> LeaseLost:
        """Return the error for a lost lock, with the reason."""
        return LeaseLost(f"the lock {self.wish.name!r} is lost: {self.loss}")

    async def attempt(self) -> bool:
        """Try once. If cancelled meanwhile, release what may have been acquired."""
        if self._lease is not None:
            raise DefinitionError(f"the lock {self.wish.name!r} is already held by this object; create another one")
        leases, sent = (await self._grants()).leases, self._clock.monotonic()
        asking = leases.acquire(
            [PREFIX + self.wish.name], holder=self._holder, holder_name=self._holder_name, duration=self.wish.ttl
        )
        won = await (asking if self._is_alone else _or_give_back(asking, leases))
        if not won:
            return False
        self._lease, self.loss = won[0], None
        self._trust(sent)
        if not self._is_alone:
            self._keeper = asyncio.create_task(self._keep(leases), name=f"lock {self.wish.name}")
        return True

    async def refusal(self) -> LockHeld:
        """Return the error for a lock that was not acquired, with its holder."""
        name, limit_s = self.wish.name, self.wish.limit_s
        waited = f", waited for {span(round(limit_s * SECOND))}" if limit_s else ""
        trouble = None
        with contextlib.suppress(StoreError):
            grants = await self._grants()
            for lease, runs in await grants.held(PREFIX + name):
                if runs and lease.name == PREFIX + name:
                    return LockHeld(f"the lock {name!r} is held by {lease.holder_name}{waited}")
            trouble = grants.trouble()
        return LockHeld(f"the lock {name!r} could not be acquired{waited}" + (f": {trouble}" if trouble else ""))

    async def drop(self) -> None:
        """Release it at once. If the server does not answer, it expires by itself."""
        lease, self._lease = self._lease, None
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await cancel_until_done(keeper)
        if lease is not None and self.loss is None:
            with contextlib.suppress(TimeoutError, StoreError):
                async with contextlib.nullcontext() if self._is_alone else asyncio.timeout(GOODBYE_S_MAX):
                    await (await self._grants()).leases.release([lease])

    async def _keep(self, leases: Leases) -> None:
        """Renew until dropped or lost; on any other end it is lost."""
        rest_s = self.wish.ttl / SECOND / RENEWALS_PER_LEASE
        reason = "it was not renewed in time"
        try:
            while (left_s := self._left_s()) > 0:
                await _rest(min(rest_s, left_s))
                if (left_s := self._left_s()) <= 0:
                    break
                try:
                    async with asyncio.timeout(left_s):
                        is_renewed = await self._renew(leases)
                except (StoreUnavailable, StoreFull):
                    rest_s = self._clock.backoff_s(1, first_s=LOOK_S_MAX, most_s=LOOK_S_MAX)
                    continue
                rest_s = self.wish.ttl / SECOND / RENEWALS_PER_LEASE
                if not is_renewed:
                    reason = "it expired, or another holder has it"
                    break
        except TimeoutError:
            pass
        finally:
            if self._lease is not None:  # Otherwise it was dropped.
                self._lose(reason)

    async def _renew(self, leases: Leases) -> bool:
        assert self._lease is not None
        sent = self._clock.monotonic()
        is_renewed = bool(await leases.renew([self._lease], duration=self.wish.ttl))
        if is_renewed:
            self._trust(sent)
        return is_renewed

    def _trust(self, sent: float) -> None:
        self._trusted_until = sent + self.wish.ttl / SECOND * (1 - LEASE_MARGIN)

    def _left_s(self) -> float:
        return self._trusted_until - self._clock.monotonic()

    def _lose(self, reason: str) -> None:
        if self.loss is None:
            self.loss = reason
            self._on_loss()


class _Pace:
    """The wait before the next try: exponential back-off with jitter, up to the limit."""

    def __init__(self, clock: Clock, limit_s: float | None) -> None:
        self._clock = clock
        self._until = None if limit_s is None else clock.monotonic() + limit_s
        self._tries = 0

    def next_s(self) -> float | None:
        """Return the wait before the next try, None if the time is up."""
        self._tries += 1
        rest_s = self._clock.backoff_s(self._tries, first_s=LOOK_S_MIN, most_s=LOOK_S_MAX, factor=LOOK_FACTOR)
        if self._until is None:
            return rest_s
        left_s = self._until - self._clock.monotonic()
        return min(rest_s, left_s) if left_s > 0 else None


class _Named:
    """What all locks have in common."""

    _hold: _Hold

    @property
    def name(self) -> str:
        """The name that the user gave."""
        return self._hold.wish.name

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier holder of the lock."""
        return self._hold.token

    def check(self) -> None:
        """Raise `LeaseLost` unless the lock can be trusted now."""
        self._hold.check()


class Lock(_Named):
    """A lock on a name, over all hosts; for `async with`, or with `acquire` and `release`."""

    def __init__(self, wish: Wish, grants: Callable[[], Awaitable[Grants]], *, clock: Clock, holder_name: str) -> None:
        self.lost = asyncio.Event()
        self._clock = clock
        self._hold = _Hold(wish, grants, clock, holder_name, self._lose)
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0

    @property
    def loss(self) -> LeaseLost:
        """The error of a lost lock."""
        return self._hold.error()

    async def acquire(self) -> Self:
        """Wait until the lock is ours; raise `LockHeld` when that takes too long."""
        self.lost.clear()
        pace, is_waiting = _Pace(self._clock, self._hold.wish.limit_s), False
        while True:
            try:
                if await self._hold.attempt():
                    return self
            except (StoreUnavailable, StoreFull):
                if not is_waiting:  # A store that never answered raises at once; one that went away may come back.
                    raise
            is_waiting, rest_s = True, pace.next_s()
            if rest_s is None:
                raise await self._hold.refusal()
            await _rest(rest_s)

    async def release(self) -> None:
        """Give the lock back at once; whoever waits has it next."""
        await self._hold.drop()

    async def __aenter__(self) -> Self:
        return (await self.acquire())._guarding()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not await self._ended():
            return None
        if kind is None or kind is asyncio.CancelledError:
            raise self.loss from error
        return None

    def _guarding(self) -> Self:
        """Cancel the current task if the lock is lost."""
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling = self._body.cancelling()
        if self.lost.is_set():
            self._body.cancel()
        return self

    async def _ended(self) -> bool:
        """Release the lock; return whether it was lost, and undo the cancellation of the body that followed from it."""
        with contextlib.suppress(LeaseLost):  # A body that never awaits kept the loop from noticing the loss.
            self.check()
        body, self._body = self._body, None
        if not self.lost.is_set():
            await self.release()
            return False
        assert body is not None
        with contextlib.suppress(asyncio.CancelledError):  # A late cancellation arrives here, not in the body.
            await _rest(0)
        await self.release()
        if body.uncancel() > self._cancelling:  # The task was cancelled for another reason too.
            raise asyncio.CancelledError
        return True

    def _lose(self) -> None:
        self.lost.set()
        if self._body is not None:
            self._body.cancel()


class LeaderTerm(Lock):
    """One term of a leader, for `async with`: if it is lost, its body ends and the code after it goes on."""

    async def __aenter__(self) -> Self:
        return self._guarding()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._ended() and kind is asyncio.CancelledError


class Leader:
    """A role with one holder at a time: `async with` for one term, `async for` for one term after another."""

    def __init__(self, new_term: Callable[[], LeaderTerm], new_lock: Callable[[], Lock]) -> None:
        self._new_term = new_term
        self._new_lock = new_lock
        self._lock: Lock | None = None

    async def __aenter__(self) -> Lock:
        lock = self._new_lock()
        entered = await lock.__aenter__()
        self._lock = lock
        return entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._lock is not None
        return await self._lock.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[LeaderTerm]:
        while True:
            term = await self._new_term().acquire()
            try:
                yield term
            finally:
                await term.release()  # If the body has not done it.


class SyncLock(_Named):
    """A lock for code that does not await; renewed in the background. Such code cannot be stopped: see `check`."""

    def __init__(
        self,
        wish: Wish,
        grants: Callable[[], Awaitable[Grants]],
        *,
        clock: Clock,
        holder_name: str,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        is_alone: bool,
    ) -> None:
        self.lost = threading.Event()
        self._clock = clock
        self._hold = _Hold(wish, grants, clock, holder_name, self.lost.set, is_alone=is_alone)
        self._call = call

    def acquire(self) -> Self:
        """Wait until the lock is ours; raise `LockHeld` when that takes too long."""
        self.lost.clear()
        pace, is_waiting = _Pace(self._clock, self._hold.wish.limit_s), False
        while True:
            try:
                if self._call(self._hold.attempt()):
                    return self
            except (StoreUnavailable, StoreFull):
                if not is_waiting:
                    raise
            is_waiting, rest_s = True, pace.next_s()
            if rest_s is None:
                raise self._call(self._hold.refusal())
            self._clock.nap(rest_s)

    def release(self) -> None:
        """Give the lock back at once; whoever waits has it next."""
        self._call(self._hold.drop())

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(LeaseLost):
            self.check()
        self.release()
        if self.lost.is_set() and kind is None:
            raise self._hold.error()


async def _rest(seconds: float) -> None:
    """Wait in real time, not as loops rest, which virtual time stretches: a held lock must be renewed in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def _or_give_back(asking: Coroutine[Any, Any, list[Lease]], leases: Leases) -> list[Lease]:
    """Wait for a lease; if the caller stops waiting, make sure that it is released."""
    asked = asyncio.ensure_future(asking)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(GOODBYE_S_MAX):
                await leases.release(await asked)
        raise
