"""The calls on queues, workers, dead letters, tokens and webhooks."""

from collections.abc import Iterable
from typing import TypedDict, Unpack

from headway.client.binding import Group, W_co, delete, get, listing, operation, pages, post, require_known, send
from headway.client.requests import (
    Flow,
    Request,
    Shape,
    Steps,
    body_of,
    duration_text,
    part,
)
from headway.core.errors import (
    InvalidTask,
    JobNotFound,
    NotFinal,
)
from headway.core.instants import DurationLike


class Queues(Group[W_co]):
    """Queues: what waits where, and their taps."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over the queues in which anything waits or runs, and those that are paused."""
        return pages("/api/queues", {}, limit)

    @operation
    def pause(self, name: str, *, reason: str = "") -> Steps[Shape]:
        """Take nothing more from a queue; what runs goes on, and what comes waits."""
        return post(f"/api/queues/{part(name)}/pause", {"reason": reason}, invalid=InvalidTask)

    @operation
    def resume(self, name: str) -> Steps[Shape]:
        """Take from a queue again."""
        return post(f"/api/queues/{part(name)}/resume", invalid=InvalidTask)


class Workers(Group[W_co]):
    """Workers: who runs jobs."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over the workers that are alive."""
        return pages("/api/workers", {}, limit)

    @operation
    def drain(self, name: str) -> Steps[Shape]:
        """Have a worker, by name or id, take no more jobs and leave when it has finished."""
        return post(f"/api/workers/{part(name)}/drain")


class DeadLetterFilters(TypedDict, total=False):
    """Which dead letters; `error` is a type, or an error whose numbers and ids may differ."""

    type: str | None
    queue: str | None
    tenant: str | None
    schedule: str | None
    error: str | None


class Dead(Group[W_co]):
    """Dead letters: jobs that have failed for good and that nobody has looked at yet."""

    @listing
    def list(
        self,
        *,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        error: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over dead letters, newest first; `error` is a type, or an error whose numbers and ids may differ."""
        query = {"type": type, "queue": queue, "tenant": tenant, "schedule": schedule, "error": error, "cursor": before}
        return pages("/api/dead", query, limit)

    @operation
    def retry(self, job_id: str) -> Steps[Shape]:
        """Run a dead letter once more, as a new job."""
        return post(f"/api/dead/{part(job_id)}/retry", missing=JobNotFound, conflict=NotFinal)

    @operation
    def drop(self, job_id: str) -> Steps[Shape]:
        """Take a dead letter off the list; the job stays in the history."""
        return post(f"/api/dead/{part(job_id)}/drop", missing=JobNotFound, conflict=NotFinal)

    @operation
    def retry_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        **filters: Unpack[DeadLetterFilters],
    ) -> Steps[Shape]:
        """Run dead letters once more, oldest first: those with these ids, those that match, or everything."""
        return _letters("retry", ids, filters, everything, dry_run, limit)

    @operation
    def drop_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        **filters: Unpack[DeadLetterFilters],
    ) -> Steps[Shape]:
        """Take dead letters off the list: those with these ids, those that match, or everything."""
        return _letters("drop", ids, filters, everything, dry_run, limit)


def _letters(
    verb: str,
    ids: Iterable[str] | None,
    filters: DeadLetterFilters,
    everything: bool,
    dry_run: bool,
    limit: int | None,
) -> Steps[Shape]:
    require_known(filters, DeadLetterFilters, f"{verb}_many")
    which = {"ids": None if ids is None else [*ids], **filters, "all": everything}
    return post(f"/api/dead/{verb}", {**which, "dry_run": dry_run, "limit": limit}, missing=JobNotFound)


class Tokens(Group[W_co]):
    """Tokens: who may ask."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over tokens; their values are not kept anywhere."""
        return pages("/api/tokens", {}, limit)

    @operation
    def create(
        self, name: str, *, role: str, tenant: str | None = None, expires_in: DurationLike | None = None
    ) -> Steps[Shape]:
        """Make a token; its value is in the answer, this once."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in": duration_text(expires_in, "expires_in")}
        return post("/api/tokens", body)

    @operation
    def revoke(self, token_id: str) -> Steps[Shape]:
        """Revoke a token; it is refused within five seconds."""
        return delete(f"/api/tokens/{part(token_id)}")


class Webhooks(Group[W_co]):
    """Webhooks: who is told when jobs end, and what was told."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over webhooks."""
        return pages("/api/webhooks", {}, limit)

    @operation
    def get(self, webhook_id: str) -> Steps[Shape]:
        """Return one webhook."""
        return get(_webhook(webhook_id))

    @operation
    def create(
        self, url: str, *, events: Iterable[str] | None = None, note: str = "", tenant: str | None = None
    ) -> Steps[Shape]:
        """Have a URL told when jobs end; the secret that signs is in the answer."""
        told = None if events is None else [*events]
        return post("/api/webhooks", {"url": url, "events": told, "note": note, "tenant": tenant})

    @operation
    def change(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        note: str | None = None,
        enabled: bool | None = None,
    ) -> Steps[Shape]:
        """Change a webhook; what is left out stays."""
        told = None if events is None else [*events]
        body = body_of({"url": url, "events": told, "note": note, "enabled": enabled})
        return send(Request(method="PUT", path=_webhook(webhook_id), body=body))

    @operation
    def remove(self, webhook_id: str) -> Steps[Shape]:
        """Remove a webhook."""
        return delete(_webhook(webhook_id))

    @operation
    def rotate(self, webhook_id: str, *, keep: DurationLike = "24h") -> Steps[Shape]:
        """Make a new secret; the old one goes on signing beside it for so long."""
        return post(_webhook(webhook_id, "rotate"), {"keep": duration_text(keep, "keep")})

    @operation
    def test(self, webhook_id: str, *, url: str | None = None) -> Steps[Shape]:
        """Send a test message, once, and say what came of it."""
        return post(_webhook(webhook_id, "test"), {"url": url})

    @listing
    def deliveries(
        self,
        *,
        webhook: str | None = None,
        job: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over what was told to whom, newest first."""
        query = {"endpoint": webhook, "job": job, "status": status, "cursor": before}
        return pages("/api/deliveries", query, limit)

    @operation
    def delivery(self, delivery_id: str) -> Steps[Shape]:
        """Return one delivery with its last tries."""
        return get(f"/api/deliveries/{part(delivery_id)}")

    @operation
    def replay(self, delivery_id: str) -> Steps[Shape]:
        """Send a message again, under the same id."""
        return post(f"/api/deliveries/{part(delivery_id)}/replay")


def _webhook(webhook_id: str, verb: str | None = None) -> str:
    return f"/api/webhooks/{part(webhook_id)}" + (f"/{verb}" if verb else "")
