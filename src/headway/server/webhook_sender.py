"""The sender of webhooks: at-least-once delivery, with retries for up to a day.

The tick claims a due delivery for a minute and sends it; the response decides whether it is finished or when it is due
again. Any number of processes do this in parallel. If one dies after sending and before recording it, the claim expires
and the message is sent again with the same id: receivers recognise it by `webhook-id`.

To prevent head-of-line blocking by receivers that hang, each target (scheme, host and port) and each endpoint has a
limited share of the messages in flight; further deliveries to it are not claimed until a place is free.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headway.core.backoff import backoff
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, JobNotFound, NotFound, StoreError, StoreFull, StoreUnavailable
from headway.core.events import RequestFailed, emit
from headway.core.feed import ChangeFeed
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Duration, Instant
from headway.core.settings import Settings
from headway.core.urls import check_url, target_of
from headway.core.webhooks import Delivery, Endpoint, Outbox, Outcome
from headway.operations.job_source import length_of
from headway.server.offload import ThreadOffload
from headway.server.outbound import Sender, SendResult
from headway.server.webhook_messages import headers_for, job_message, trial_message
from headway.wire.base import LISTED_BYTES_MAX

CONCURRENCY: Final = 64
CLAIM: Final = 4  # Messages in flight; all of them may be for one host.
TARGET_SHARE: Final = 8  # The share of one host in the messages in flight.
ENDPOINT_SHARE: Final = 24  # Callbacks of one tenant go to many hosts, which may all hang.
LEASE: Final = MINUTE  # Longer than a request and the recording of its outcome can take.
PATIENCE: Final = DAY
BACKOFF_FIRST: Final = 5 * SECOND
BACKOFF_MOST: Final = 3 * HOUR
BACKOFF_FACTOR: Final = 3
BACKOFF_SPREAD: Final = 0.25  # Jitter: a share of the wait, in both directions.
RETRY_AFTER_MAX: Final = 3 * HOUR
PAUSE: Final = MINUTE  # Deliveries to a disabled endpoint are checked again after this.
PRUNE_EVERY_S: Final = 60.0
PRUNE_BATCH: Final = 500
WRITE_TRIES: Final = 5
WRITE_REST_S: Final = 2.0
REST_S_MIN: Final = 0.05
GOODBYE_S_MAX: Final = 2.0
GONE: Final = 410

DELIVERED: Final = "DELIVERED"
FAILED: Final = "FAILED"
WAITING: Final = "WAITING"


@dataclass(slots=True)
class Counts:
    """Counters of this process since it started, for its metrics."""

    delivered: int = 0
    failed: int = 0
    retried: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an attempt: the status of the delivery, and the wait until the next attempt."""

    status: str
    delay: Duration | None = None


def judge(answer: SendResult, *, tries: int, age: Duration, spread: float) -> Verdict:
    """Decide what follows attempt number `tries` of a message of that age."""
    if answer.is_good:
        return Verdict(DELIVERED)
    if answer.is_final or answer.code == GONE or age >= PATIENCE:
        return Verdict(FAILED)
    wait = backoff(
        tries,
        first=BACKOFF_FIRST,
        most=BACKOFF_MOST,
        factor=BACKOFF_FACTOR,
        spread=spread,
        least_part=1 - BACKOFF_SPREAD,
        most_part=1 + BACKOFF_SPREAD,
    )
    asked = min((answer.retry_after_s or 0) * SECOND, RETRY_AFTER_MAX)
    # The last attempt is at the end of the retry period, not before it.
    return Verdict(WAITING, max(SECOND, min(max(round(wait), asked), PATIENCE - age)))


class Deliverer:
    """Sends due deliveries. A `Loop` runs `tick`; `wake` wakes it."""

    def __init__(
        self,
        outbox: Outbox,
        feed: ChangeFeed,
        settings: Settings,
        clock: Clock,
        *,
        sender: Sender | None = None,
        offload: ThreadOffload | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = Counts()
        self.wake = wake
        self._outbox = outbox
        self._feed = feed
        self._clock = clock
        self._offload = offload or ThreadOffload()
        self._sender = sender or Sender(clock, settings.webhook_allow)
        self._retention = settings.retention
        self._poll_s = settings.poll / SECOND
        self._under_way: dict[asyncio.Task[None], Delivery] = {}
        self._prune_at = clock.monotonic()

    async def tick(self) -> float:
        """Start as many due deliveries as there are free places; return the seconds until there may be more."""
        await self._prune()
        sent = self._clock.monotonic()
        next_at, now = await self._outbox.next_due()
        self._clock.observe(now, sent=sent)
        if next_at is None:
            return self._poll_s
        if next_at > now:
            return max(REST_S_MIN, (next_at - now) / SECOND)
        while (room := min(CONCURRENCY - len(self._under_way), CLAIM)) > 0:
            busy = self._busy()
            claimed = await self._outbox.claim(limit=room, lease=LEASE, endpoints=busy[0], targets=busy[1])
            await self._begin(claimed)
            if len(claimed) < room:
                break
        return self._poll_s  # Sooner if one finishes and frees its place.

    async def send_now(self, delivery: Delivery, endpoint: Endpoint, *, again: bool = True) -> Delivery:
        """Send a claimed delivery once and record the outcome; without `again` it is not retried."""
        url = self._url(delivery, endpoint)
        began = self._clock.now()
        answer = SendResult(took_ms=0, error="the URL cannot be used", is_final=True)
        if url is not None:
            answer = await self._send(delivery, endpoint, url)
        return await self._settle(delivery, endpoint, answer, began=began, again=again)

    async def test(self, endpoint: Endpoint, url: str) -> Delivery:
        """Send a test message to an endpoint, once, and return the outcome."""
        delivery = await self._outbox.add_test(endpoint, url, LEASE)
        return await self.send_now(delivery, endpoint, again=False)

    async def close(self) -> None:
        """Wait briefly for messages in flight; those without a response are sent again after their claim expires."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=GOODBYE_S_MAX)
        left = list(self._under_way)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._sender.close()

    # --- messages in flight

    def _busy(self) -> tuple[list[str], list[str]]:
        """Return the endpoints and the targets that have no free place for another claim."""
        endpoints = Counter(delivery.endpoint for delivery in self._under_way.values())
        targets = Counter(_target(delivery) for delivery in self._under_way.values())
        return (
            [endpoint for endpoint, count in endpoints.items() if count > ENDPOINT_SHARE - CLAIM],
            [target for target, count in targets.items() if target and count > TARGET_SHARE - CLAIM],
        )

    async def _begin(self, claimed: list[Delivery]) -> None:
        if not claimed:
            return
        endpoints = await self._outbox.named(delivery.endpoint for delivery in claimed)
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery, endpoints.get(delivery.endpoint)))
            self._under_way[task] = delivery
            self.counts.in_flight = len(self._under_way)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self.counts.in_flight = len(self._under_way)
        self.wake()

    async def _deliver(self, delivery: Delivery, endpoint: Endpoint | None) -> None:
        try:
            if endpoint is None:
                await self._give_up(delivery, "the webhook was removed")
            elif endpoint.disabled_at is not None and self._clock.now() - delivery.created_at < PATIENCE:
                await self._outbox.record(delivery, None, status=WAITING, delay=PAUSE)
            elif endpoint.disabled_at is not None:
                await self._give_up(delivery, "the webhook is disabled")
            else:
                await self.send_now(delivery, endpoint)
        except (StoreUnavailable, StoreFull):
            pass  # The outcome is unknown, so it is due again when the claim expires.
        except Exception as error:  # noqa: BLE001 - an unreadable row or a bug is a failed try, and ends no process
            emit(RequestFailed(node=self._clock.node, request_id=delivery.id, error=error))
            with contextlib.suppress(StoreError):
                await self._write_mistake(delivery, error)

    async def _send(self, delivery: Delivery, endpoint: Endpoint, url: str) -> SendResult:
        try:
            body = await self._body(delivery)
            now = self._clock.now()
            headers = headers_for(delivery.id, now, body, endpoint.signing(now))
        except JobNotFound:
            return SendResult(took_ms=0, error="the job was deleted", is_final=True)
        except (ValueError, TypeError, ArithmeticError, RecursionError):  # The stored row cannot be decoded.
            return SendResult(took_ms=0, error="the message cannot be encoded", is_final=True)
        return await self._sender.post(url, body, headers)

    async def _body(self, delivery: Delivery) -> bytes:
        if delivery.job_id is None:
            return trial_message(delivery.event, delivery)
        found = await self._feed.jobs([delivery.job_id], largest=LISTED_BYTES_MAX)
        if found and not found[0].omitted:
            return job_message(delivery.event, found[0])
        async with self._offload.turn(delivery.tenant):
            whole = await self._feed.jobs([delivery.job_id])
            if not whole:
                raise JobNotFound(f"job {delivery.job_id} was pruned")
            [job] = whole
            return await self._offload.run(length_of(job), job_message, delivery.event, job)

    def _url(self, delivery: Delivery, endpoint: Endpoint) -> str | None:
        """Return the checked URL: triggers write the rows, so the text was not checked before."""
        try:
            return check_url(endpoint.url or delivery.url)
        except DefinitionError:
            return None

    # --- outcomes

    async def _settle(
        self, delivery: Delivery, endpoint: Endpoint, answer: SendResult, *, began: Instant, again: bool
    ) -> Delivery:
        verdict = judge(
            answer,
            tries=delivery.tries + 1,
            age=self._clock.now() - delivery.created_at,
            spread=self._clock.chance.random(),
        )
        if not again and verdict.status == WAITING:
            verdict = Verdict(FAILED)
        outcome = Outcome(at=began, took_ms=answer.took_ms, code=answer.code, error=answer.error)
        recorded = await self._write(delivery, outcome, verdict)
        if recorded is not None and answer.code == GONE and not endpoint.is_callbacks:
            with contextlib.suppress(NotFound):  # It was just removed.
                await self._outbox.change(endpoint.id, is_on=False)  # 410 Gone: the receiver wants no more messages.
        return recorded or delivery

    async def _write_mistake(self, delivery: Delivery, error: Exception) -> None:
        answer = SendResult(took_ms=0, error=f"internal error: {type(error).__name__}")
        age, now = self._clock.now() - delivery.created_at, self._clock.now()
        verdict = judge(answer, tries=delivery.tries + 1, age=age, spread=self._clock.chance.random())
        await self._write(delivery, Outcome(at=now, took_ms=0, error=answer.error), verdict)

    async def _give_up(self, delivery: Delivery, why: str) -> None:
        outcome = Outcome(at=self._clock.now(), took_ms=0, error=why)
        await self._write(delivery, outcome, Verdict(FAILED))

    async def _write(self, delivery: Delivery, outcome: Outcome, verdict: Verdict) -> Delivery | None:
        """Record the outcome, with retries if the store is unavailable: sending twice is worse than waiting."""
        for left in reversed(range(WRITE_TRIES)):
            try:
                recorded = await self._outbox.record(delivery, outcome, status=verdict.status, delay=verdict.delay)
                break
            except (StoreUnavailable, StoreFull):
                if not left:
                    raise
                await self._clock.rest(WRITE_REST_S, asyncio.Event())
        if recorded is not None:
            self._count(verdict.status)
        return recorded

    def _count(self, status: str) -> None:
        match status:
            case "DELIVERED":
                self.counts.delivered += 1
            case "FAILED":
                self.counts.failed += 1
            case _:
                self.counts.retried += 1

    async def _prune(self) -> None:
        if self._clock.monotonic() >= self._prune_at:
            pruned = await self._outbox.prune(self._retention, PRUNE_BATCH)
            if pruned < PRUNE_BATCH:
                self._prune_at = self._clock.monotonic() + PRUNE_EVERY_S


def _target(delivery: Delivery) -> str:
    """Return the target of a delivery; one with an invalid URL has none."""
    try:
        return target_of(delivery.url)
    except ValueError:
        return ""
