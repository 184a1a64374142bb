"""Webhooks and deliveries as JSON. Secrets in URLs are masked."""

from typing import Annotated, Any, Final

import msgspec

from headway.core import webhooks as stored
from headway.core.instants import Instant, isoformat
from headway.core.settings import mask_url
from headway.core.webhooks import DeliveryStatus
from headway.wire.base import Count, Resource, Time, example, stamp

_WEBHOOK: Final[dict[str, Any]] = {
    "id": "wh_01m7h07rq30wjd03gjnmt8r3pz",
    "tenant": "default",
    "url": "https://example.org/hook",
    "events": ["job.completed", "job.failed"],
    "note": "notifies the shop",
    "enabled": True,
    "disabled_at": None,
    "created_at": "2027-01-31T06:00:00Z",
    "created_by": "ada",
    "secrets": 1,
}


@example(_WEBHOOK, known_by=frozenset({"id", "events", "secrets"}))
class Webhook(Resource):
    """A URL that is notified when jobs end. Without a URL it represents the `callback_url` of its tenant's jobs."""

    id: str
    tenant: Annotated[str, msgspec.Meta(description="the tenant of the jobs; `*` for all tenants")]
    url: str | None
    events: list[str]
    note: str
    enabled: bool
    disabled_at: Time | None
    created_at: Time
    created_by: str
    secrets: Annotated[int, msgspec.Meta(ge=0, description="the number of secrets that sign each message")]


@example({**_WEBHOOK, "secret": "whsec_…"}, known_by=frozenset({"id", "events", "secrets", "secret"}))
class WebhookWithSecret(Webhook):
    """A webhook with its new secret, which is shown only once."""

    secret: Annotated[str, msgspec.Meta(description="signs the messages")]


class Outcome(Resource):
    """The result of one delivery attempt."""

    at: Time
    code: Annotated[int | None, msgspec.Meta(description="the status code of the response")]
    error: Annotated[str | None, msgspec.Meta(description="why there was no response")]
    took_ms: Count


@example(
    {
        "id": "msg_0006498a1f2c80a1b2c3d4e5f60718293a4b5c",
        "endpoint": "wh_01m7h07rq30wjd03gjnmt8r3pz",
        "job": "job_01m7h07rq30wjd03gjnmt8r3pz",
        "tenant": "default",
        "event": "job.completed",
        "url": "https://example.org/hook",
        "status": "WAITING",
        "tries": 1,
        "next_at": "2027-01-31T06:00:05Z",
        "created_at": "2027-01-31T06:00:00Z",
        "ended_at": None,
        "outcomes": [{"at": "2027-01-31T06:00:00Z", "code": 503, "error": None, "took_ms": 41}],
    },
    known_by=frozenset({"id", "endpoint", "outcomes"}),
)
class Delivery(Resource):
    """A message to a webhook, with its last attempts."""

    id: str
    endpoint: Annotated[str, msgspec.Meta(description="the id of the webhook")]
    job: Annotated[str | None, msgspec.Meta(description="the id of the job; null for a test message")]
    tenant: str
    event: str
    url: str
    status: DeliveryStatus
    tries: Count
    next_at: Annotated[Time | None, msgspec.Meta(description="when the next attempt is due")]
    created_at: Time
    ended_at: Time | None
    outcomes: list[Outcome]


def webhook_of(endpoint: stored.Endpoint, now: Instant) -> Webhook:
    """Convert a webhook, without its secrets."""
    return Webhook(
        id=endpoint.id,
        tenant=endpoint.tenant,
        url=mask_url(endpoint.url) or None,
        events=list(endpoint.events),
        note=endpoint.note,
        enabled=endpoint.disabled_at is None,
        disabled_at=stamp(endpoint.disabled_at),
        created_at=isoformat(endpoint.created_at),
        created_by=endpoint.created_by,
        secrets=len(endpoint.signing(now)),
    )


def webhook_with_secret(endpoint: stored.Endpoint, now: Instant) -> WebhookWithSecret:
    """Convert a webhook with its newest secret, for the response that creates it."""
    shown = msgspec.structs.asdict(webhook_of(endpoint, now))
    return WebhookWithSecret(**shown, secret=endpoint.secrets[0].value)


def delivery_of(delivery: stored.Delivery) -> Delivery:
    """Convert a delivery with its last attempts."""
    return Delivery(
        id=delivery.id,
        endpoint=delivery.endpoint,
        job=delivery.job_id,
        tenant=delivery.tenant,
        event=delivery.event,
        url=mask_url(delivery.url),
        status=delivery.status,
        tries=delivery.tries,
        next_at=stamp(delivery.next_at),
        created_at=isoformat(delivery.created_at),
        ended_at=stamp(delivery.ended_at),
        outcomes=[Outcome(isoformat(one.at), one.code, one.error, one.took_ms) for one in delivery.outcomes],
    )
