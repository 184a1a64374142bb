"""Webhooks: who is notified when jobs end, and the messages that were sent."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import msgspec

from headway.core.errors import DefinitionError
from headway.core.instants import Duration, Instant
from headway.core.lifecycle import FINAL

EVENTS: Final = tuple(sorted(f"job.{status.lower()}" for status in FINAL))
ALL_EVENTS: Final = "*"
TEST_EVENT: Final = "webhook.test"
DeliveryStatus = Literal["WAITING", "DELIVERED", "FAILED"]
STATUSES: Final[tuple[DeliveryStatus, ...]] = get_args(DeliveryStatus)
SECRET_PREFIX: Final = "whsec_"
NOTE_LENGTH_MAX: Final = 500
_CALLBACKS: Final = "callbacks:"


class Secret(msgspec.Struct, frozen=True):
    """Signs messages to an endpoint. The newest has no end; a replaced one signs until its time is over."""

    value: str
    until: Instant | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one try to deliver a message: the status code of the response, or why there was none."""

    at: Instant
    took_ms: int
    code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL that is notified. One without a URL stands for the callback_url of its tenant's jobs."""

    id: str
    tenant: str
    url: str
    events: tuple[str, ...]
    secrets: tuple[Secret, ...]
    note: str
    created_at: Instant
    created_by: str
    disabled_at: Instant | None

    @property
    def is_callbacks(self) -> bool:
        """Return whether it represents the callback_url of jobs."""
        return not self.url

    def signing(self, now: Instant) -> list[str]:
        """Return the secrets that are valid now, newest first."""
        return [secret.value for secret in self.secrets if secret.until is None or secret.until > now]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to an endpoint. `next_at` of a claimed one is when it is due again if its sender is lost."""

    id: str
    endpoint: str
    job_id: str | None
    tenant: str
    event: str
    url: str
    status: DeliveryStatus
    tries: int
    next_at: Instant | None
    created_at: Instant
    ended_at: Instant | None
    outcomes: tuple[Outcome, ...]


def callbacks_id(tenant: str) -> str:
    """Return the id of the endpoint that stands for the callback_url of a tenant's jobs."""
    return _CALLBACKS + tenant


def tenant_of_callbacks(endpoint_id: str) -> str | None:
    """Return the tenant whose callbacks an id stands for; None for any other endpoint."""
    return endpoint_id.removeprefix(_CALLBACKS) or None if endpoint_id.startswith(_CALLBACKS) else None


def check_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return the events without repetitions, or raise an error that lists the known ones."""
    wanted = tuple(dict.fromkeys(events))
    if ALL_EVENTS in wanted:
        return (ALL_EVENTS,)
    unknown = next((event for event in wanted if event not in EVENTS), None)
    if unknown is not None or not wanted:
        wrong = "none" if unknown is None else repr(unknown[:80])
        raise DefinitionError(f"events must be some of {', '.join(EVENTS)} or *, not {wrong}")
    return wanted


class Outbox(Protocol):
    """The messages that wait to be delivered, and whom they are for."""

    async def next_due(self) -> tuple[Instant | None, Instant]:
        """Return when the next message is due, if any, and the store's time."""
        ...

    async def claim(
        self, *, limit: int, lease: Duration, endpoints: Collection[str] = ..., targets: Collection[str] = ...
    ) -> list[Delivery]:
        """Take messages that are due under a lease, none of these endpoints and hosts, which are busy."""
        ...

    async def add_test(self, endpoint: Endpoint, url: str, lease: Duration) -> Delivery:
        """Add a test message, under a lease."""
        ...

    async def named(self, ids: Iterable[str]) -> dict[str, Endpoint]:
        """Return endpoints by their ids."""
        ...

    async def record(
        self, delivery: Delivery, outcome: Outcome | None, *, status: str, delay: Duration | None
    ) -> Delivery | None:
        """Record the outcome of a message; None if its claim was lost."""
        ...

    async def change(self, endpoint_id: str, *, is_on: bool | None = ...) -> Endpoint:
        """Turn an endpoint on or off."""
        ...

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete old deliveries; return how many."""
        ...
