"""The calls on workers, dead letters, tokens and webhooks."""

from collections.abc import Iterable
from typing import TypedDict, Unpack

from headway.client.binding import Group, W_co, delete, get, listing, operation, pages, post, require_known, send
from headway.client.declared_calls import DeclaredBatches, DeclaredWebhooks, DeclaredWorkers
from headway.client.requests import (
    Flow,
    Request,
    Shape,
    Steps,
    body_of,
    duration_text,
    part,
)
from headway.core.errors import DuplicateKey, InvalidTask, JobNotFound, NotFinal, TaskNotFound
from headway.core.instants import DurationLike


class Workers(DeclaredWorkers[W_co]):
    """Workers: list and drain them."""

    @operation
    def drain(self, name: str) -> Steps[Shape]:
        """Drain a worker, by name or id: it takes no more jobs and exits when its jobs have finished."""
        return post(f"/api/workers/{part(name)}/drain")


class Batches(DeclaredBatches[W_co]):
    """Batches: create, list, show, close, cancel and retry them; `enqueue_many(…, batch=NAME)` adds jobs."""

    @operation
    def create(
        self,
        name: str,
        *,
        on_done: str | None = None,
        on_failure: str | None = None,
        open_for: DurationLike | None = None,
        tenant: str | None = None,
    ) -> Steps[Shape]:
        """Create a batch, or return the one that has this name; the callbacks are names of tasks."""
        span = None if open_for is None else duration_text(open_for)
        body = {"name": name, "tenant": tenant, "on_done": on_done, "on_failure": on_failure, "open_for": span}
        given = {key: value for key, value in body.items() if value is not None}
        return post(
            "/api/batches", given, is_keyed=True, missing=TaskNotFound, conflict=DuplicateKey, invalid=InvalidTask
        )

    @listing
    def list(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over batches, newest first; `state` is `finished` or `unfinished`."""
        return pages("/api/batches", {"state": state, "tenant": tenant, "cursor": before}, limit)


class DeadLetterFilters(TypedDict, total=False):
    """Filters of dead letters; `error` is a type, or an error whose numbers and ids may differ."""

    type: str | None
    queue: str | None
    tenant: str | None
    schedule: str | None
    error: str | None


class Dead(Group[W_co]):
    """Dead letters: jobs that failed for good and await review."""

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
        """Retry a dead letter, as a new job."""
        return post(f"/api/dead/{part(job_id)}/retry", missing=JobNotFound, conflict=NotFinal)

    @operation
    def drop(self, job_id: str) -> Steps[Shape]:
        """Drop a dead letter; the job stays in the history."""
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
        """Retry dead letters, oldest first: those with these ids, those that match, or all."""
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
        """Drop dead letters: those with these ids, those that match, or all."""
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
    """Tokens for the API."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over tokens; their values are not stored."""
        return pages("/api/tokens", {}, limit)

    @operation
    def create(
        self, name: str, *, role: str, tenant: str | None = None, expires_in: DurationLike | None = None
    ) -> Steps[Shape]:
        """Create a token; only this response contains its value."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in": duration_text(expires_in, "expires_in")}
        return post("/api/tokens", body)

    @operation
    def revoke(self, token_id: str) -> Steps[Shape]:
        """Revoke a token; it is refused within five seconds."""
        return delete(f"/api/tokens/{part(token_id)}")


class Webhooks(DeclaredWebhooks[W_co]):
    """Webhooks: URLs that are notified when jobs end, and the deliveries to them."""

    @operation
    def get(self, webhook_id: str) -> Steps[Shape]:
        """Return one webhook."""
        return get(_webhook(webhook_id))

    @operation
    def create(
        self, url: str, *, events: Iterable[str] | None = None, note: str = "", tenant: str | None = None
    ) -> Steps[Shape]:
        """Notify a URL when jobs end; only this response contains the secret for the signatures."""
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
        """Change a webhook; missing fields keep their values."""
        told = None if events is None else [*events]
        body = body_of({"url": url, "events": told, "note": note, "enabled": enabled})
        return send(Request(method="PUT", path=_webhook(webhook_id), body=body))

    @operation
    def remove(self, webhook_id: str) -> Steps[Shape]:
        """Remove a webhook."""
        return delete(_webhook(webhook_id))

    @operation
    def rotate(self, webhook_id: str, *, keep: DurationLike = "24h") -> Steps[Shape]:
        """Create a new secret; messages are signed with the old one too for this long."""
        return post(_webhook(webhook_id, "rotate"), {"keep": duration_text(keep, "keep")})

    @operation
    def test(self, webhook_id: str, *, url: str | None = None) -> Steps[Shape]:
        """Send a test message, once, and return the outcome."""
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
        """Iterate over deliveries, newest first."""
        query = {"endpoint": webhook, "job": job, "status": status, "cursor": before}
        return pages("/api/deliveries", query, limit)

    @operation
    def delivery(self, delivery_id: str) -> Steps[Shape]:
        """Return one delivery with its last attempts."""
        return get(f"/api/deliveries/{part(delivery_id)}")

    @operation
    def replay(self, delivery_id: str) -> Steps[Shape]:
        """Send a message again, with the same id."""
        return post(f"/api/deliveries/{part(delivery_id)}/replay")


def _webhook(webhook_id: str, verb: str | None = None) -> str:
    return f"/api/webhooks/{part(webhook_id)}" + (f"/{verb}" if verb else "")
