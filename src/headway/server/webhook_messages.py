"""The message about the end of a job, and its signature.

Messages follow the Standard Webhooks specification, so that any library for it can verify them: `webhook-id` is the
same for every attempt, `webhook-timestamp` is the time of this attempt, and `webhook-signature` has one signature for
each valid secret, over id, timestamp and body.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from headway.core.instants import SECOND, Instant
from headway.core.jobs import Job
from headway.core.webhooks import SECRET_PREFIX, Delivery
from headway.wire.base import stamp
from headway.wire.jobs import job_of

CONTENT_TYPE: Final = "application/json"


def job_message(event: str, job: Job) -> bytes:
    """Build the message about a finished job. It is the same whenever it is built."""
    ended = job.finished_at or job.updated_at
    data = job_of(job, ended, with_traceback=False)  # Receivers of webhooks must not see code and paths.
    return msgspec.json.encode({"type": event, "timestamp": stamp(ended), "data": data})


def trial_message(event: str, delivery: Delivery) -> bytes:
    """Build a test message."""
    data = {"endpoint": delivery.endpoint, "note": "a test; nothing has happened"}
    return msgspec.json.encode({"type": event, "timestamp": stamp(delivery.created_at), "data": data})


def sign(message_id: str, seconds: int, body: bytes, secrets: Iterable[str]) -> str:
    """Return the signatures of a message, one for each secret, separated by spaces."""
    content = f"{message_id}.{seconds}.".encode() + body
    return " ".join(f"v1,{_signature(secret, content)}" for secret in secrets)


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def headers_for(message_id: str, now: Instant, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers of a message."""
    seconds = now // SECOND
    return {
        "Content-Type": CONTENT_TYPE,
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": sign(message_id, seconds, body, secrets),
    }
