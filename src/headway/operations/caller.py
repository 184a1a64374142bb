"""The caller of an operation: its rights, its quotas and the store that it works on."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec

from headway.core.access import ROLES
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, Denied
from headway.core.instants import Instant
from headway.core.ports import WebhookSender
from headway.core.tenants import ALL_TENANTS
from headway.operations.job_source import JobSource, StoredJobs
from headway.operations.monitor import Monitor
from headway.operations.task_catalogue import TaskCatalogue
from headway.store import Store
from headway.store.audit_log import Actor, AuditEntry
from headway.tasks.options import Options

P = ParamSpec("P")
T = TypeVar("T")
_RANKS: Final = {role: rank for rank, role in enumerate(ROLES)}


@dataclass(frozen=True, slots=True)
class Principal:
    """A credential: its role and its tenant, where `*` means all tenants. `session` is set for a signed-in browser."""

    name: str
    tenant: str
    role: str
    token_id: str | None = None
    session: str | None = None

    def may(self, role: str) -> bool:
        """Return whether the credential has at least this role."""
        return _RANKS[self.role] >= _RANKS[role]

    @property
    def one_tenant(self) -> str | None:
        """The only tenant that the credential sees; None for all."""
        return None if self.tenant == ALL_TENANTS else self.tenant

    @property
    def holder(self) -> str:
        """The holder whose quota the credential uses: its tenant, or itself if it sees all tenants."""
        return self.one_tenant or f"*{self.token_id or self.name}"  # No tenant begins with `*`.

    def sees(self, tenant: str) -> bool:
        """Return whether the credential sees a tenant."""
        return self.tenant in (ALL_TENANTS, tenant)


class Quotas(Protocol):
    """The quotas of one tenant; they raise an error when exceeded."""

    async def jobs(self, principal: Principal, more: int) -> None:
        """Admit this many more jobs."""
        ...

    async def schedules(self, principal: Principal, more: int) -> None:
        """Admit this many more schedules."""
        ...


class Offload(Protocol):
    """Runs large pieces of work outside the event loop, a few at a time for each holder."""

    def turn(self, holder: str) -> AbstractAsyncContextManager[None]:
        """Hold one of the holder's places; wait until one is free."""
        ...

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do a piece of work on that many bytes; the caller already holds a place."""
        ...

    async def take_turn(self, holder: str, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do a piece of work on that many bytes: at once if they are few, else when a place is free."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, its origin, and the store that the operations work on. Without quotas, a caller is unlimited."""

    principal: Principal
    origin: str
    store: Store
    clock: Clock
    tasks: TaskCatalogue | None = None
    quotas: Quotas | None = None
    sender: WebhookSender | None = None
    jobs: JobSource | None = None
    offload: Offload | None = None
    audits_enqueues: bool = False
    monitor: Monitor | None = None

    @property
    def name(self) -> str:
        """The name for the audit log and the records."""
        return self.principal.name

    @property
    def tenant(self) -> str | None:
        """The only tenant that the caller sees; None for all."""
        return self.principal.one_tenant

    @property
    def now(self) -> Instant:
        """The store's time."""
        return self.clock.now()

    @property
    def is_bounded(self) -> bool:
        """Whether the work of one call is limited: calls over HTTP are."""
        return self.quotas is not None

    def require_role(self, role: str) -> None:
        """Raise an error if the caller lacks this role."""
        if not self.principal.may(role):
            raise Denied(f"the role {role} is needed, this token has {self.principal.role}")

    def require_all_tenants(self) -> None:
        """Raise an error if the caller sees one tenant only."""
        if self.tenant is not None:
            raise Denied("this concerns all tenants; a token for all of them is needed")

    @property
    def job_source(self) -> JobSource:
        """Where jobs are read."""
        return self.jobs or StoredJobs(self.store)

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Hold a place for large work; load large data only while holding it."""
        return nullcontext() if self.offload is None else self.offload.turn(self.principal.holder)

    async def convert(self, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do work that grows with user data; a server does large pieces outside its event loop."""
        if self.offload is None:
            return work(*args, **options)
        return await self.offload.take_turn(self.principal.holder, size, work, *args, **options)

    async def convert_now(self, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do such work; the caller already holds a place."""
        return work(*args, **options) if self.offload is None else await self.offload.run(size, work, *args, **options)

    async def options_of(self, task: str, args: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Return the default options of a task, and the arguments as it takes them; raise `TaskNotFound`."""
        return (Options(), args) if self.tasks is None else await self.tasks.options_of(task, args)

    async def admit_jobs(self, more: int) -> None:
        """Raise an error if these jobs exceed the quota of the caller's tenant."""
        if self.quotas is not None:
            await self.quotas.jobs(self.principal, more)

    async def admit_schedules(self, more: int) -> None:
        """Raise an error if these schedules exceed the quota of the caller's tenant."""
        if self.quotas is not None and more:
            await self.quotas.schedules(self.principal, more)

    def acting(self, entry: AuditEntry | Sequence[AuditEntry]) -> Store:
        """Return the store for one action: the audit log entry is written in the same transaction."""
        return self.store.auditing(Actor(self.principal.name, self.origin, self.principal.tenant), entry, self.clock)

    async def record(self, action: str, target: str, tenant: str, detail: Mapping[str, Any]) -> None:
        """Write an audit log entry for an action that changes nothing in the store."""
        await self.store.audit_log.record(
            actor=self.name,
            tenant=tenant,
            origin=self.origin,
            action=action,
            target=target,
            detail=msgspec.json.encode(detail).decode(),
        )


def require_printable(text: str, what: str) -> str:
    """Raise an error if the text has control characters: other users see it."""
    if not text.isprintable():
        raise DefinitionError(f"{what} must contain printable characters only")
    return text
