"""The deliverer's tick: what ended is told, at least once, for a day if need be.

A due delivery is taken for a minute and sent; the answer decides whether it is over or when it is due again. Any number
of processes do this side by side. If one dies after sending and before writing that down, the minute runs out and the
message is sent again, under the same id: receivers recognise it by `webhook-id`.

One that hangs must not keep others waiting: of all that is under way, no target (scheme, host and port) and no endpoint
gets more than its part, and what is due to those that have theirs is left alone until a place is free.
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
from headway.server.offload import Offload
from headway.server.outbound import Sender, SendResult
from headway.server.webhook_messages import headers_for, job_message, trial_message
from headway.wire.base import LISTED_BYTES_MAX

CONCURRENCY: Final = 64
CLAIM: Final = 4  # At a time: all of it may be for one host.
TARGET_SHARE: Final = 8  # Of all that is under way, to one host.
ENDPOINT_SHARE: Final = 24  # Callbacks of one tenant go to many hosts, and they all hang in a bad network.
LEASE: Final = MINUTE  # Longer than a request can take, with the writing of its outcome.
PATIENCE: Final = DAY
BACKOFF_FIRST: Final = 5 * SECOND
BACKOFF_MOST: Final = 3 * HOUR
BACKOFF_FACTOR: Final = 3
BACKOFF_SPREAD: Final = 0.25  # Of the wait, to both sides.
RETRY_AFTER_MAX: Final = 3 * HOUR
PAUSE: Final = MINUTE  # After this, what waits for a disabled endpoint is looked at again.
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
    """What this process has done since it began, for its metrics."""

    delivered: int = 0
    failed: int = 0
    retried: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a try makes of a delivery: its status, and the wait until the next try."""

    status: str
    delay: Duration | None = None


def judge(answer: SendResult, *, tries: int, age: Duration, spread: float) -> Verdict:
    """Decide what comes after a try, which was number `tries` of a message of that age."""
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
    # The last try is when the patience ends, not the one before it.
    return Verdict(WAITING, max(SECOND, min(max(round(wait), asked), PATIENCE - age)))


class Deliverer:
    """Sends what is due. `tick` is run by a `Loop`, which `wake` wakes."""

    def __init__(
        self,
        outbox: Outbox,
        feed: ChangeFeed,
        settings: Settings,
        clock: Clock,
        *,
        sender: Sender | None = None,
        offload: Offload | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = Counts()
        self.wake = wake
        self._outbox = outbox
        self._feed = feed
        self._clock = clock
        self._offload = offload or Offload()
        self._sender = sender or Sender(clock, settings.webhook_allow)
        self._retention = settings.retention
        self._poll_s = settings.poll / SECOND
        self._under_way: dict[asyncio.Task[None], Delivery] = {}
        self._prune_at = clock.monotonic()

    async def tick(self) -> float:
        """Begin with as much of what is due as there is room for; return the seconds until there may be more."""
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
        return self._poll_s  # Sooner when something ends, which makes room.

    async def send_now(self, delivery: Delivery, endpoint: Endpoint, *, again: bool = True) -> Delivery:
        """Try a claimed delivery once, and write down how it went; without `again` there is no other try."""
        url = self._url(delivery, endpoint)
        began = self._clock.now()
        answer = SendResult(took_ms=0, error="the URL cannot be used", is_final=True)
        if url is not None:
            answer = await self._send(delivery, endpoint, url)
        return await self._settle(delivery, endpoint, answer, began=began, again=again)

    async def test(self, endpoint: Endpoint, url: str) -> Delivery:
        """Send a test message to an endpoint, once, and return what came of it."""
        delivery = await self._outbox.add_test(endpoint, url, LEASE)
        return await self.send_now(delivery, endpoint, again=False)

    async def close(self) -> None:
        """Let what is under way end, for a moment; what has no answer by then is sent again when its time is over."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=GOODBYE_S_MAX)
        left = list(self._under_way)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._sender.close()

    # --- what is under way

    def under_way_to(self, target: str) -> int:
        """Return how much is under way to one target."""
        return sum(_target(delivery) == target for delivery in self._under_way.values())

    def _busy(self) -> tuple[list[str], list[str]]:
        """Return the endpoints and the targets for which another claim could be too much."""
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
            pass  # Nobody knows how it went, so it is due again when its time is over.
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
        except (ValueError, TypeError, ArithmeticError, RecursionError):  # Nobody can read what somebody else wrote.
            return SendResult(took_ms=0, error="the message cannot be written", is_final=True)
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
        """Return where to send it: rows are written by triggers, so nothing has looked at the text before."""
        try:
            return check_url(endpoint.url or delivery.url)
        except DefinitionError:
            return None

    # --- what comes of it

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
            with contextlib.suppress(NotFound):  # Somebody has just removed it.
                await self._outbox.change(endpoint.id, is_on=False)  # It says that it wants nothing more, ever.
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
        """Write down how it went, also where the store is away for a moment: to send it twice is worse than to wait."""
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
    """Return whom it goes to; one with a URL that makes no sense goes to nobody."""
    try:
        return target_of(delivery.url)
    except ValueError:
        return ""
