"""Quotas per tenant: rate limit of requests, open streams, unfinished jobs, schedules.

Quotas are settings. They apply to tokens of one tenant; a token for all tenants belongs to the operator. Each API
process counts requests and streams for itself. Jobs are counted in the store with a short cache, so clients that
enqueue at several processes at once can exceed the quota a little. Jobs from schedules are never refused. 0 means
unlimited.

A stream is anything that occupies a place among the followers: an event stream, a long poll, a WebSocket, each
subscription of a WebSocket after its first. A process has a fixed number of places and reserves a part of them for
holders with few streams, so a holder with many (a tenant, or one token for all tenants) leaves room for the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.core.single_flight import CachedRead
from headway.operations.caller import Principal
from headway.operations.tenant_counts import TenantCounts
from headway.server.fanout import FOLLOWERS_MAX
from headway.server.refusals import Refused

TENANTS_MAX: Final = 10_000
STREAMS_RESERVED: Final = 2_000  # Places for holders with few streams.
STREAMS_FEW: Final = 20
BODIES_BYTES_MAX: Final = 256 << 20  # All large bodies being received.
BODIES_BYTES_OF_ONE_MAX: Final = 64 << 20
FRESH_S: Final = 2.0
COUNTING_SHARE: Final = 0.05

T = TypeVar("T")


class TenantQuotas:
    """The quotas of all tenants in this process."""

    def __init__(self, counts: TenantCounts, settings: Settings, clock: Clock) -> None:
        self._counts = counts
        self._settings = settings
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # Remaining requests, and as of when (token bucket).
        self._streams: dict[str, int] = {}
        self._streams_open = 0
        self._bodies: dict[str, int] = {}
        self._jobs: dict[str, CachedRead[int]] = {}
        self._admitted: dict[str, int] = {}  # Jobs admitted here since the last count.

    def request(self, principal: Principal) -> None:
        """Count a request; refuse it if its tenant is over the rate limit."""
        most = self._settings.tenant_requests
        if principal.one_tenant is None or not most:
            return
        now = self._clock.monotonic()
        left, at = self._left.pop(principal.tenant, (float(most), now))
        left = min(float(most), left + (now - at) * most)
        _keep(self._left, principal.tenant, (left - 1 if left >= 1 else left, now))  # A refusal costs nothing.
        if left < 1:
            raise _too_much(f"rate limit: a tenant may send {most:,} requests a second", retry_after=1)

    @contextmanager
    def stream(self, principal: Principal) -> Iterator[None]:
        """Count a stream while it is open; refuse it if its holder has too many, or all holders together."""
        most = self._settings.tenant_streams
        holder = principal.holder
        held = self._streams.get(holder, 0)
        if principal.one_tenant is not None and 0 < most <= held:
            raise _too_much(f"a tenant may have {most:,} open streams here", retry_after=5)
        if self._streams_open >= FOLLOWERS_MAX - (STREAMS_RESERVED if held >= STREAMS_FEW else 0):
            raise Refused(503, "too_many_followers", "too many streams are open here", headers={"Retry-After": "5"})
        self._streams[holder] = held + 1
        self._streams_open += 1
        try:
            yield
        finally:
            self._streams_open -= 1
            self._streams[holder] -= 1
            if not self._streams[holder]:
                del self._streams[holder]

    @contextmanager
    def body(self, principal: Principal, size: int) -> Iterator[None]:
        """Count a large body while it is received and parsed; refuse it if there are too many."""
        holder = principal.holder
        held = self._bodies.get(holder, 0)
        if held + size > BODIES_BYTES_OF_ONE_MAX:
            raise _too_much(f"{BODIES_BYTES_OF_ONE_MAX:,} bytes of requests may be in progress at once", retry_after=1)
        if sum(self._bodies.values()) + size > BODIES_BYTES_MAX:
            raise Refused(503, "busy", "too many large requests are in progress here", headers={"Retry-After": "1"})
        self._bodies[holder] = held + size
        try:
            yield
        finally:
            self._bodies[holder] -= size
            if not self._bodies[holder]:
                del self._bodies[holder]

    async def jobs(self, principal: Principal, more: int) -> None:
        """Refuse jobs beyond the quota of unfinished jobs."""
        most, tenant = self._settings.tenant_jobs, principal.one_tenant
        if tenant is None or not most:
            return
        counted = self._jobs.get(tenant)
        if counted is None:
            counted = CachedRead(
                lambda: self._unfinished(tenant), clock=self._clock, fresh_s=FRESH_S, cost=COUNTING_SHARE
            )
            _keep(self._jobs, tenant, counted)
        if await counted.get() + self._admitted.get(tenant, 0) + more > most:
            raise _too_much(f"a tenant may have {most:,} unfinished jobs", retry_after=10)
        self._admitted[tenant] = self._admitted.get(tenant, 0) + more

    async def _unfinished(self, tenant: str) -> int:
        self._admitted.pop(tenant, None)
        return await self._counts.unfinished_jobs(tenant, limit=self._settings.tenant_jobs)

    async def schedules(self, principal: Principal, more: int) -> None:
        """Refuse schedules beyond the quota."""
        most, tenant = self._settings.tenant_schedules, principal.one_tenant
        if tenant is not None and most and await self._counts.schedules(tenant) + more > most:
            raise _too_much(f"a tenant may have {most:,} schedules; remove one first", retry_after=60)


def _keep(kept: dict[str, T], tenant: str, value: T) -> None:
    kept[tenant] = value
    if len(kept) > TENANTS_MAX:  # The least recently used one.
        del kept[next(iter(kept))]


def _too_much(message: str, *, retry_after: int) -> Refused:
    return Refused(429, "quota", message, headers={"Retry-After": str(retry_after)})
