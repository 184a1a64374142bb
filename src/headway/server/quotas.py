"""How much one tenant may take of what all of them share: requests, streams, jobs that wait or run, schedules.

The bounds are settings and hold for tokens of one tenant; who has a token for all of them is the operator. Requests and
streams are counted by each API process for itself. Jobs are counted in the store, as of a moment ago, so that those who
hand in at several processes at once can go a little over the bound. What schedules make is never refused. 0 is no
bound.

A stream is whatever holds a place among the followers: an event stream, a long poll, a WebSocket, each subscription of
a WebSocket after its first. A process has so many places, and keeps a part of them for those who hold few: whoever
takes many, a tenant or one token for all tenants, leaves room for everybody else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.core.single_flight import Recent
from headway.operations.caller import Principal
from headway.server.fanout import FOLLOWERS_MAX
from headway.server.refusals import Refused

TENANTS_MAX: Final = 10_000
STREAMS_RESERVED: Final = 2_000  # Of all places; for holders that have few of them.
STREAMS_FEW: Final = 20
BODIES_BYTES_MAX: Final = 256 << 20  # Of all large bodies that are under way.
BODIES_BYTES_OF_ONE_MAX: Final = 64 << 20
FRESH_S: Final = 2.0
COUNTING_SHARE: Final = 0.05

T = TypeVar("T")


class TenantCounts(Protocol):
    """How much a tenant has."""

    async def unfinished_jobs(self, tenant: str, *, limit: int) -> int:
        """Count the jobs of a tenant that have not ended, up to a limit."""
        ...

    async def schedules(self, tenant: str) -> int:
        """Count the schedules of a tenant."""
        ...


class Quotas:
    """The bounds of every tenant, as this process knows them."""

    def __init__(self, counts: TenantCounts, settings: Settings, clock: Clock) -> None:
        self._counts = counts
        self._settings = settings
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # Requests that may still come, as of when.
        self._streams: dict[str, int] = {}
        self._streams_open = 0
        self._bodies: dict[str, int] = {}
        self._jobs: dict[str, Recent[int]] = {}
        self._admitted: dict[str, int] = {}  # Jobs that were let in here since they were counted.

    def request(self, principal: Principal) -> None:
        """Count a request; refuse it where too many came within a second."""
        most = self._settings.tenant_requests
        if principal.one_tenant is None or not most:
            return
        now = self._clock.monotonic()
        left, at = self._left.pop(principal.tenant, (float(most), now))
        left = min(float(most), left + (now - at) * most)
        _keep(self._left, principal.tenant, (max(left - 1, 0.0), now))
        if left < 1:
            raise _too_much(f"a tenant may ask {most:,} times a second", retry_after=1)

    @contextmanager
    def stream(self, principal: Principal) -> Iterator[None]:
        """Count a stream for as long as it is open; refuse it where its holder, or all of them, have too many."""
        most = self._settings.tenant_streams
        holder = principal.holder
        held = self._streams.get(holder, 0)
        if principal.one_tenant is not None and 0 < most <= held:
            raise _too_much(f"a tenant may have {most:,} streams open here", retry_after=5)
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
        """Count a large body for as long as it is received and read; refuse it where too many are under way."""
        holder = principal.holder
        held = self._bodies.get(holder, 0)
        if held + size > BODIES_BYTES_OF_ONE_MAX:
            raise _too_much(f"{BODIES_BYTES_OF_ONE_MAX:,} bytes may be under way here at once", retry_after=1)
        if sum(self._bodies.values()) + size > BODIES_BYTES_MAX:
            raise Refused(503, "busy", "too many large requests are under way here", headers={"Retry-After": "1"})
        self._bodies[holder] = held + size
        try:
            yield
        finally:
            self._bodies[holder] -= size
            if not self._bodies[holder]:
                del self._bodies[holder]

    async def jobs(self, principal: Principal, more: int) -> None:
        """Refuse jobs beyond what a tenant may have waiting and running."""
        most, tenant = self._settings.tenant_jobs, principal.one_tenant
        if tenant is None or not most:
            return
        counted = self._jobs.get(tenant)
        if counted is None:
            counted = Recent(lambda: self._unfinished(tenant), clock=self._clock, fresh_s=FRESH_S, cost=COUNTING_SHARE)
            _keep(self._jobs, tenant, counted)
        if await counted.get() + self._admitted.get(tenant, 0) + more > most:
            raise _too_much(f"a tenant may have {most:,} jobs that have not ended", retry_after=10)
        self._admitted[tenant] = self._admitted.get(tenant, 0) + more

    async def _unfinished(self, tenant: str) -> int:
        self._admitted.pop(tenant, None)
        return await self._counts.unfinished_jobs(tenant, limit=self._settings.tenant_jobs)

    async def schedules(self, principal: Principal, more: int) -> None:
        """Refuse schedules beyond what a tenant may have."""
        most, tenant = self._settings.tenant_schedules, principal.one_tenant
        if tenant is not None and most and await self._counts.schedules(tenant) + more > most:
            raise _too_much(f"a tenant may have {most:,} schedules; remove one first", retry_after=60)


def _keep(kept: dict[str, T], tenant: str, value: T) -> None:
    kept[tenant] = value
    if len(kept) > TENANTS_MAX:  # The one that was heard of longest ago.
        del kept[next(iter(kept))]


def _too_much(message: str, *, retry_after: int) -> Refused:
    return Refused(429, "quota", message, headers={"Retry-After": str(retry_after)})
