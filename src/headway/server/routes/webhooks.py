"""Routes of webhooks: whom to tell about the end of jobs, and what was told.

All of it is for admins: a webhook carries what jobs did out of the house. A secret is in the answer that makes it, and
in no other. What another tenant has, also what is for all tenants, looks as if it did not exist.
"""

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.errors import NotFound
from headway.core.instants import DAY, parse_duration
from headway.core.settings import mask_url
from headway.core.urls import URL_LENGTH_MAX, check_url
from headway.core.validation import NAME_LENGTH_MAX
from headway.operations import audit_log as deeds
from headway.server.web import CURSOR, LIMIT, Answer, Call, Param, Refused, Route, require_printable
from headway.server.webhook_messages import delivery_shape, endpoint_shape
from headway.store.webhooks import (
    ALL_EVENTS,
    EVENTS,
    NOTE_LENGTH_MAX,
    STATUSES,
    Delivery,
    Endpoint,
    tenant_of_callbacks,
)

KEEP_MAX: Final = 7 * DAY
TAG: Final = "webhooks"
_WEBHOOK_ID: Final = re.compile(r"wh_[0-9a-z]{26}|callbacks:.+")
_MESSAGE_ID: Final = re.compile(r"msg_[0-9a-f]{34}")

Url = Annotated[str, msgspec.Meta(min_length=1, max_length=URL_LENGTH_MAX)]
Note = Annotated[str, msgspec.Meta(max_length=NOTE_LENGTH_MAX)]
Events = Annotated[list[Annotated[str, msgspec.Meta(max_length=40)]], msgspec.Meta(min_length=1, max_length=10)]


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whom to tell, and about what. Only who may see all tenants names one, or `*` for all of them."""

    url: Url
    events: Events = msgspec.field(default_factory=lambda: [ALL_EVENTS])
    note: Note = ""
    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)] | None = None

    def __post_init__(self) -> None:
        require_printable(self.note, "note")


class WebhookChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change; what is left out stays."""

    url: Url | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    note: Note | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_printable(self.note or "", "note")


class Rotation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long the old secret signs beside the new one; `0s` when it has leaked."""

    keep: Annotated[str, msgspec.Meta(max_length=64)] = "24h"


class Trial(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to send a test of what stands for the callback_url of jobs; other webhooks have a URL."""

    url: Url | None = None


WEBHOOK_EXAMPLE: Final[dict[str, Any]] = {
    "id": "wh_01m7h07rq30wjd03gjnmt8r3pz",
    "tenant": "default",
    "url": "https://example.org/hook",
    "events": ["job.completed", "job.failed"],
    "note": "tells the shop",
    "enabled": True,
    "disabled_at": None,
    "created_at": "2027-01-31T06:00:00Z",
    "created_by": "ada",
    "secrets": 1,
}
WITH_SECRET_EXAMPLE: Final = {**WEBHOOK_EXAMPLE, "secret": "whsec_…"}
DELIVERY_EXAMPLE: Final[dict[str, Any]] = {
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
}


# --- whom to tell


async def list_webhooks(call: Call) -> Answer:
    """Read a page of webhooks."""
    limit, cursor = call.page(_WEBHOOK_ID)
    found = await call.store.webhooks.page(tenant=call.tenant, after=cursor, limit=limit)
    now = call.clock.now()
    items = [endpoint_shape(endpoint, now) for endpoint in found]
    return Answer({"items": items, "next_cursor": found[-1].id if len(found) == limit else None})


async def add_webhook(call: Call) -> Answer:
    """Make a webhook; the answer has its secret."""
    body = await call.body(NewWebhook)
    tenant = body.tenant or call.principal.tenant
    if not call.principal.sees(tenant):
        raise Refused(403, "forbidden", "tenant: only a token for all tenants may name another one")
    url = check_url(body.url)
    endpoint = await call.acting(deeds.add_webhook(tenant, url, body.events)).webhooks.add(
        tenant=tenant, url=url, events=body.events, note=body.note, author=call.principal.name
    )
    return Answer(_with_secret(call, endpoint), 201, {"Location": f"/api/webhooks/{endpoint.id}"})


async def get_webhook(call: Call) -> Answer:
    """Read a webhook."""
    return Answer(endpoint_shape(await _endpoint(call), call.clock.now()))


async def change_webhook(call: Call) -> Answer:
    """Change a webhook."""
    body = await call.body(WebhookChange)
    before, now = await _endpoint(call), call.clock.now()
    acting = call.acting(deeds.change_webhook(before, lambda endpoint: endpoint_shape(endpoint, now)))
    endpoint = await acting.webhooks.change(
        before.id,
        url=None if body.url is UNSET else check_url(body.url),
        events=None if body.events is UNSET else body.events,
        note=None if body.note is UNSET else body.note,
        is_on=None if body.enabled is UNSET else body.enabled,
    )
    return Answer(endpoint_shape(endpoint, now))


async def remove_webhook(call: Call) -> Answer:
    """Remove a webhook."""
    endpoint = await _endpoint(call)
    await call.acting(deeds.remove_webhook(endpoint)).webhooks.remove(endpoint.id)
    return Answer(status=204)


async def rotate_secret(call: Call) -> Answer:
    """Make a new secret; the answer has it."""
    body = await call.body(Rotation)
    keep = parse_duration(body.keep, what="keep")
    if keep > KEEP_MAX:
        raise Refused(422, "invalid", "keep must be from 0s to 7d")
    tenant = tenant_of_callbacks(call.path("id"))
    if tenant is not None and call.principal.sees(tenant):
        await call.store.webhooks.ensure_callbacks(tenant)  # So that its secret can be had before the first job.
    webhook_id = (await _endpoint(call)).id
    endpoint = await call.acting(deeds.rotate_secret(webhook_id, body.keep)).webhooks.rotate(webhook_id, keep=keep)
    return Answer(_with_secret(call, endpoint))


async def test_webhook(call: Call) -> Answer:
    """Send a test message, once, and say what came of it."""
    body = await call.body(Trial)
    endpoint = await _endpoint(call)
    if endpoint.is_callbacks == (body.url is None):
        wanted = "is needed for" if endpoint.is_callbacks else "may only be given for"
        raise Refused(422, "invalid", f"url {wanted} what stands for the callback_url of jobs")
    url = endpoint.url or check_url(body.url)
    delivery = await call.services.deliverer.test(endpoint, url)
    await call.record("webhooks.test", endpoint.id, endpoint.tenant, url=mask_url(url), status=delivery.status)
    return Answer(delivery_shape(delivery))


async def _endpoint(call: Call) -> Endpoint:
    """Find the webhook of the path, as far as the caller may see it."""
    endpoint = await call.store.webhooks.get(call.path("id"))
    if not call.principal.sees(endpoint.tenant):
        raise NotFound("no webhook has this id")
    return endpoint


def _with_secret(call: Call, endpoint: Endpoint) -> dict[str, Any]:
    return {**endpoint_shape(endpoint, call.clock.now()), "secret": endpoint.secrets[0].value}


# --- what was told


async def list_deliveries(call: Call) -> Answer:
    """Read a page of deliveries, newest first."""
    limit, cursor = call.page(_MESSAGE_ID)
    found = await call.store.webhooks.deliveries(
        owner=call.tenant,
        endpoint=call.query.get("endpoint"),
        status=call.query.get("status"),
        job=call.query.get("job"),
        before=cursor,
        limit=limit,
    )
    items = [delivery_shape(delivery) for delivery in found]
    return Answer({"items": items, "next_cursor": found[-1].id if len(found) == limit else None})


async def get_delivery(call: Call) -> Answer:
    """Read a delivery."""
    return Answer(delivery_shape(await _delivery(call)))


async def replay_delivery(call: Call) -> Answer:
    """Send a delivery again."""
    delivery_id = (await _delivery(call)).id
    delivery = await call.acting(deeds.replay(delivery_id)).webhooks.replay(delivery_id)
    call.services.deliverer.wake()
    return Answer(delivery_shape(delivery), 202)


async def _delivery(call: Call) -> Delivery:
    """Find the delivery of the path. It belongs to whoever owns the webhook, not to whom the job belongs."""
    delivery, owner = await call.store.webhooks.delivery(call.path("id"))
    if call.tenant is not None and owner != call.tenant:
        raise NotFound("no delivery has this id")
    return delivery


_EVENT_WORDS: Final = f"Events are {', '.join(EVENTS)}, or * for all."
ROUTES: Final = (
    Route(
        method="GET",
        path="/api/webhooks",
        handler=list_webhooks,
        role="admin",
        tag=TAG,
        summary="List webhooks",
        query=(LIMIT, CURSOR),
        answers={200: {"items": [WEBHOOK_EXAMPLE], "next_cursor": None}},
    ),
    Route(
        method="POST",
        path="/api/webhooks",
        handler=add_webhook,
        role="admin",
        tag=TAG,
        summary="Tell a URL when jobs end",
        what=f"{_EVENT_WORDS} The answer has the secret that signs the messages; it is not shown again.",
        body=NewWebhook,
        body_example={"url": "https://example.org/hook", "events": ["job.completed", "job.failed"]},
        answers={201: WITH_SECRET_EXAMPLE},
    ),
    Route(
        method="GET",
        path="/api/webhooks/{id}",
        handler=get_webhook,
        role="admin",
        tag=TAG,
        summary="Show a webhook",
        what="`callbacks:TENANT` is the one that stands for the `callback_url` of a tenant's jobs.",
        answers={200: WEBHOOK_EXAMPLE},
    ),
    Route(
        method="PUT",
        path="/api/webhooks/{id}",
        handler=change_webhook,
        role="admin",
        tag=TAG,
        summary="Change, disable or enable a webhook",
        what="What is left out stays. Messages that wait go to the new URL.",
        body=WebhookChange,
        body_example={"enabled": False},
        answers={200: WEBHOOK_EXAMPLE},
    ),
    Route(
        method="DELETE",
        path="/api/webhooks/{id}",
        handler=remove_webhook,
        role="admin",
        tag=TAG,
        summary="Remove a webhook",
        what="Its pending deliveries are discarded.",
        answers={204: None},
    ),
    Route(
        method="POST",
        path="/api/webhooks/{id}/rotate",
        handler=rotate_secret,
        role="admin",
        tag=TAG,
        summary="Make a new secret",
        what="The old one signs beside it for `keep`. The answer has the new one; it is not shown again.",
        body=Rotation,
        body_is_optional=True,
        body_example={"keep": "24h"},
        answers={200: WITH_SECRET_EXAMPLE},
    ),
    Route(
        method="POST",
        path="/api/webhooks/{id}/test",
        handler=test_webhook,
        role="admin",
        tag=TAG,
        summary="Send a test message, once",
        what="The answer comes when the message was answered, or ten seconds later.",
        body=Trial,
        body_is_optional=True,
        body_example={},
        answers={200: {**DELIVERY_EXAMPLE, "event": "webhook.test", "job": None, "status": "DELIVERED"}},
    ),
    Route(
        method="GET",
        path="/api/deliveries",
        handler=list_deliveries,
        role="admin",
        tag=TAG,
        summary="List what was told to whom",
        query=(
            Param("endpoint", "only to this webhook", example=WEBHOOK_EXAMPLE["id"]),
            Param("status", "only those in this state", choices=STATUSES, example="FAILED"),
            Param("job", "only about this job", example=DELIVERY_EXAMPLE["job"]),
            LIMIT,
            CURSOR,
        ),
        answers={200: {"items": [DELIVERY_EXAMPLE], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/deliveries/{id}",
        handler=get_delivery,
        role="admin",
        tag=TAG,
        summary="Show a delivery with its last tries",
        answers={200: DELIVERY_EXAMPLE},
    ),
    Route(
        method="POST",
        path="/api/deliveries/{id}/replay",
        handler=replay_delivery,
        role="admin",
        tag=TAG,
        summary="Send a message again, under the same id",
        answers={202: {**DELIVERY_EXAMPLE, "tries": 0, "outcomes": []}},
    ),
)
