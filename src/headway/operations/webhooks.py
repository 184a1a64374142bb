"""Webhooks: URLs that are notified when jobs end, and the messages that were sent to them.

All operations need the role admin, since a webhook sends data of jobs to other systems. Only the response that creates
a secret contains it. Webhooks of other tenants, and those for all tenants, are reported as not found.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from headway.core.errors import DefinitionError, Denied, NotFound
from headway.core.instants import DAY, Duration, parse_duration
from headway.core.settings import mask_url
from headway.core.urls import URL_LENGTH_MAX, check_url
from headway.core.validation import NAME_LENGTH_MAX
from headway.core.webhooks import ALL_EVENTS, EVENTS, NOTE_LENGTH_MAX, DeliveryStatus, Endpoint, tenant_of_callbacks
from headway.operations.caller import require_printable
from headway.operations.verbs import OperationGroup, check_cursor, verb
from headway.store.audit_log import AuditEntry
from headway.wire.base import PAGE_DEFAULT, Absent, Cursor, Limit, Page
from headway.wire.webhooks import (
    Delivery,
    Webhook,
    WebhookWithSecret,
    delivery_of,
    webhook_of,
    webhook_with_secret,
)

KEEP_DEFAULT: Final = "24h"
KEEP_MAX: Final = 7 * DAY
_WEBHOOK_ID: Final = re.compile(r"wh_[0-9a-z]{26}|callbacks:.+")
_MESSAGE_ID: Final = re.compile(r"msg_[0-9a-f]{34}")
_EXAMPLE_ID: Final = "wh_01m7h07rq30wjd03gjnmt8r3pz"

Url = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=URL_LENGTH_MAX,
        description="where to send the messages",
        examples=["https://example.org/hook"],
    ),
]
TestUrl = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=URL_LENGTH_MAX,
        description="where to send the test; needed, and allowed, only for `callbacks:TENANT`",
    ),
]
Events = Annotated[
    Sequence[Annotated[str, msgspec.Meta(max_length=40)]],
    msgspec.Meta(
        min_length=1,
        max_length=10,
        description=f"{', '.join(EVENTS)}, or * for all",
        examples=[["job.completed", "job.failed"]],
    ),
]
Note = Annotated[str, msgspec.Meta(max_length=NOTE_LENGTH_MAX, description="what it is for")]
Tenant = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=NAME_LENGTH_MAX,
        description="the tenant of the jobs, `*` for all tenants; only for tokens for all tenants",
    ),
]
Enabled = Annotated[bool, msgspec.Meta(description="false stops the notifications", examples=[False])]
Keep = Annotated[
    str,
    msgspec.Meta(
        max_length=64,
        description="how long messages are signed with the old secret too; `0s` if it has leaked",
        examples=[KEEP_DEFAULT],
    ),
]
OnlyEndpoint = Annotated[str, msgspec.Meta(description="only to this webhook", examples=[_EXAMPLE_ID])]
OnlyStatus = Annotated[DeliveryStatus, msgspec.Meta(description="only messages with this status", examples=["FAILED"])]
OnlyJob = Annotated[str, msgspec.Meta(description="only about this job", examples=["job_01m7h07rq30wjd03gjnmt8r3pz"])]


def _location(webhook: Webhook) -> str:
    return f"/api/webhooks/{webhook.id}"


class Webhooks(OperationGroup):
    """Webhooks: URLs that are notified when jobs end."""

    @verb("GET /api/webhooks", id="list_webhooks", role="admin")
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[Webhook]:
        """List webhooks."""
        after = check_cursor(cursor, _WEBHOOK_ID)
        found = await self.caller.store.webhooks.page(tenant=self.caller.tenant, after=after, limit=limit)
        items = [webhook_of(endpoint, self.caller.now) for endpoint in found]
        return Page(items, found[-1].id if len(found) == limit else None)

    @verb("POST /api/webhooks", id="add_webhook", role="admin", status=201, location=_location)
    async def add(
        self, url: Url, *, events: Events = (ALL_EVENTS,), note: Note = "", tenant: Tenant | None = None
    ) -> WebhookWithSecret:
        """Notify a URL when jobs end.

        The response contains the secret for the signatures; it is not shown again.
        """
        require_printable(note, "note")
        whose = tenant or self.caller.principal.tenant
        if not self.caller.principal.sees(whose):
            raise Denied("tenant: only a token for all tenants may name another one")
        plain = check_url(url)
        what = {"url": mask_url(plain), "events": list(events)}
        entry = AuditEntry("webhooks.add", lambda rows: str(rows[0]["id"]), whose, what)
        endpoint = await self.caller.acting(entry).webhooks.add(
            tenant=whose, url=plain, events=events, note=note, author=self.caller.name
        )
        return webhook_with_secret(endpoint, self.caller.now)

    @verb("GET /api/webhooks/{id}", id="get_webhook", role="admin")
    async def get(self, id: str) -> Webhook:
        """Show a webhook.

        `callbacks:TENANT` represents the `callback_url` of all jobs of a tenant.
        """
        return webhook_of(await self._endpoint(id), self.caller.now)

    @verb("PUT /api/webhooks/{id}", id="change_webhook", role="admin")
    async def change(
        self,
        id: str,
        *,
        url: Url | Absent = UNSET,
        events: Events | Absent = UNSET,
        note: Note | Absent = UNSET,
        enabled: Enabled | Absent = UNSET,
    ) -> Webhook:
        """Change, disable or enable a webhook.

        Missing fields keep their values. Pending messages go to the new URL.
        """
        require_printable(note or "", "note")
        before, now = await self._endpoint(id), self.caller.now

        def changes(after: Endpoint) -> Mapping[str, Any]:
            old, new = (msgspec.structs.asdict(webhook_of(endpoint, now)) for endpoint in (before, after))
            return {"changes": {name: [old[name], new[name]] for name in new if old[name] != new[name]}}

        entry = AuditEntry("webhooks.change", before.id, before.tenant, detail_from=changes)
        endpoint = await self.caller.acting(entry).webhooks.change(
            before.id,
            url=None if url is UNSET else check_url(url),
            events=None if events is UNSET else events,
            note=None if note is UNSET else note,
            is_on=None if enabled is UNSET else enabled,
        )
        return webhook_of(endpoint, now)

    @verb("DELETE /api/webhooks/{id}", id="remove_webhook", role="admin", status=204)
    async def remove(self, id: str) -> None:
        """Remove a webhook.

        Its pending deliveries are discarded.
        """
        endpoint = await self._endpoint(id)
        what = {"url": mask_url(endpoint.url)}
        entry = AuditEntry("webhooks.remove", endpoint.id, endpoint.tenant, what, lambda _: {})
        await self.caller.acting(entry).webhooks.remove(endpoint.id)

    @verb("POST /api/webhooks/{id}/rotate", id="rotate_secret", role="admin")
    async def rotate(self, id: str, *, keep: Keep = KEEP_DEFAULT) -> WebhookWithSecret:
        """Create a new secret.

        Messages are signed with the old one too for `keep`. The response contains the new one; it is not shown again.
        """
        kept = check_keep(keep)
        tenant = tenant_of_callbacks(id)
        if tenant is not None and self.caller.principal.sees(tenant):
            await self.caller.store.webhooks.ensure_callbacks(tenant)  # Its secret is available before the first job.
        webhook_id = (await self._endpoint(id)).id
        entry = AuditEntry("webhooks.rotate", webhook_id, lambda endpoint: str(endpoint.tenant), {"keep": keep})
        acting = self.caller.acting(entry)
        return webhook_with_secret(await acting.webhooks.rotate(webhook_id, keep=kept), self.caller.now)

    @verb("POST /api/webhooks/{id}/test", id="test_webhook", role="admin")
    async def test(self, id: str, *, url: TestUrl | None = None) -> Delivery:
        """Send a test message, once.

        The response comes when the receiver has answered, or after ten seconds.
        """
        endpoint = await self._endpoint(id)
        if endpoint.is_callbacks == (url is None):
            wanted = "is needed for" if endpoint.is_callbacks else "may only be given for"
            raise DefinitionError(f"url {wanted} callbacks:TENANT")
        target = endpoint.url or check_url(url)
        if self.caller.sender is None:
            raise DefinitionError("this process sends no webhook messages")
        delivery = await self.caller.sender.test(endpoint, target)
        detail = {"url": mask_url(target), "status": delivery.status}
        await self.caller.record("webhooks.test", endpoint.id, endpoint.tenant, detail)
        return delivery_of(delivery)

    async def _endpoint(self, webhook_id: str) -> Endpoint:
        """Return a webhook that the caller may see."""
        endpoint = await self.caller.store.webhooks.get(webhook_id)
        if not self.caller.principal.sees(endpoint.tenant):
            raise NotFound("no webhook has this id")
        return endpoint


def check_keep(text: str, what: str = "keep") -> Duration:
    """Parse how long messages are signed with the old secret too."""
    keep = parse_duration(text, what=what)
    if keep > KEEP_MAX:
        raise DefinitionError(f"{what} must be from 0s to 7d")
    return keep


class Deliveries(OperationGroup):
    """Deliveries: messages to webhooks and their status."""

    @verb("GET /api/deliveries", id="list_deliveries", role="admin")
    async def list(
        self,
        *,
        endpoint: OnlyEndpoint | None = None,
        status: OnlyStatus | None = None,
        job: OnlyJob | None = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[Delivery]:
        """List deliveries, newest first."""
        found = await self.caller.store.webhooks.deliveries(
            owner=self.caller.tenant,
            endpoint=endpoint,
            status=status,
            job=job,
            before=check_cursor(cursor, _MESSAGE_ID),
            limit=limit,
        )
        return Page([*map(delivery_of, found)], found[-1].id if len(found) == limit else None)

    @verb("GET /api/deliveries/{id}", id="get_delivery", role="admin")
    async def get(self, id: str) -> Delivery:
        """Show a delivery with its last attempts."""
        delivery, owner = await self.caller.store.webhooks.delivery(id)
        if self.caller.tenant is not None and owner != self.caller.tenant:  # It belongs to the owner of the webhook.
            raise NotFound("no delivery has this id")
        return delivery_of(delivery)

    @verb("POST /api/deliveries/{id}/replay", id="replay_delivery", role="admin", status=202)
    async def replay(self, id: str) -> Delivery:
        """Send a message again, with the same id."""
        delivery_id = (await self.get(id)).id
        entry = AuditEntry(
            "deliveries.replay",
            delivery_id,
            lambda sent: str(sent.tenant),
            detail_from=lambda sent: {"endpoint": sent.endpoint},
        )
        delivery = await self.caller.acting(entry).webhooks.replay(delivery_id)
        if self.caller.sender is not None:
            self.caller.sender.wake()
        return delivery_of(delivery)
