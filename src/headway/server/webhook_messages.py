"""What is said about the end of a job: the message, its signature, and how webhooks look as JSON.

Messages follow the Standard Webhooks rules, so that any library for them can verify one: `webhook-id` is the same for
every try, `webhook-timestamp` is when this try was made, and `webhook-signature` has one signature for each secret that
counts, over id, timestamp and body.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from headway.core.instants import SECOND, Instant
from headway.core.jobs import Job
from headway.core.settings import mask_url
from headway.store.webhooks import SECRET_PREFIX, Delivery, Endpoint, Outcome
from headway.wire.jobs import job_of
from headway.wire.shapes import Shape, stamp

CONTENT_TYPE: Final = "application/json"


def job_message(event: str, job: Job) -> bytes:
    """Write the message about a job that has ended. It says the same whenever it is written."""
    ended = job.finished_at or job.updated_at
    data = job_of(job, ended, with_traceback=False)  # Code and paths are not for everybody who receives webhooks.
    return msgspec.json.encode({"type": event, "timestamp": stamp(ended), "data": data})


def trial_message(event: str, delivery: Delivery) -> bytes:
    """Write a message about nothing, which is only to arrive."""
    data = {"endpoint": delivery.endpoint, "note": "a test; nothing has happened"}
    return msgspec.json.encode({"type": event, "timestamp": stamp(delivery.created_at), "data": data})


def sign(message_id: str, seconds: int, body: bytes, secrets: Iterable[str]) -> str:
    """Return the signatures of a message, one for each secret, with blanks between them."""
    content = f"{message_id}.{seconds}.".encode() + body
    return " ".join(f"v1,{_signature(secret, content)}" for secret in secrets)


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def headers_for(message_id: str, now: Instant, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers that go with a message."""
    seconds = now // SECOND
    return {
        "Content-Type": CONTENT_TYPE,
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": sign(message_id, seconds, body, secrets),
    }


def endpoint_shape(endpoint: Endpoint, now: Instant) -> Shape:
    """Write an endpoint; its secrets are shown to whoever makes or rotates it, once, and not here."""
    return {
        "id": endpoint.id,
        "tenant": endpoint.tenant,
        "url": mask_url(endpoint.url) or None,
        "events": list(endpoint.events),
        "note": endpoint.note,
        "enabled": endpoint.disabled_at is None,
        "disabled_at": stamp(endpoint.disabled_at),
        "created_at": stamp(endpoint.created_at),
        "created_by": endpoint.created_by,
        "secrets": len(endpoint.signing(now)),
    }


def delivery_shape(delivery: Delivery) -> Shape:
    """Write a delivery with its last tries."""
    return {
        "id": delivery.id,
        "endpoint": delivery.endpoint,
        "job": delivery.job_id,
        "tenant": delivery.tenant,
        "event": delivery.event,
        "url": mask_url(delivery.url),
        "status": delivery.status,
        "tries": delivery.tries,
        "next_at": stamp(delivery.next_at),
        "created_at": stamp(delivery.created_at),
        "ended_at": stamp(delivery.ended_at),
        "outcomes": [outcome_shape(outcome) for outcome in delivery.outcomes],
    }


def outcome_shape(outcome: Outcome) -> Shape:
    """Write how a try went."""
    return {"at": stamp(outcome.at), "code": outcome.code, "error": outcome.error, "took_ms": outcome.took_ms}
