"""Webhooks: endpoints, and deliveries to them.

Database triggers insert deliveries in the transaction that ends a job, so exactly the committed ends are delivered. A
sender claims a delivery by moving its due time. If the sender dies, the delivery becomes due again and is sent with the
same id.
"""

import base64
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import Conflict, NotFound
from headway.core.instants import DAY, Duration, Instant
from headway.core.validation import check_name, storable
from headway.core.webhooks import (
    ALL_EVENTS,
    NOTE_LENGTH_MAX,
    SECRET_PREFIX,
    TEST_EVENT,
    Delivery,
    Endpoint,
    Outcome,
    Secret,
    callbacks_id,
    check_events,
)
from headway.store.transaction import Driver, Row, T, Transaction, as_json, call

SECRET_BYTES: Final = 32
ROTATION: Final = DAY  # How long the old secret still signs after a rotation.
SECRETS_MAX: Final = 5
OUTCOMES_MAX: Final = 20
ENDPOINTS_MAX: Final = 50  # Per tenant; each is checked whenever a job ends.
PAGE_MAX: Final = 200
_LAST_ID: Final = "~"  # Sorts after every id.


def new_secret() -> str:
    """Generate a secret in the format of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def ensure_callbacks(tenants: Iterable[str]) -> Transaction[None]:
    """Create the callback endpoints of these tenants if they are missing."""
    wanted = {callbacks_id(tenant): tenant for tenant in tenants}
    if not wanted:
        return
    found = {row["id"] for row in (yield call("endpoints_by_id", ids=as_json(sorted(wanted))))}
    for endpoint_id in sorted(wanted.keys() - found):  # Usually they exist, and nothing is written.
        secret = as_json([Secret(new_secret())])
        yield call("ensure_callbacks", id=endpoint_id, tenant=wanted[endpoint_id], secrets=secret)


def _no_endpoint() -> NotFound:
    return NotFound("no webhook has this id")


def _change(endpoint_id: str, **changes: Any) -> Transaction[Endpoint]:
    rows = yield call("endpoint_to_change", id=endpoint_id)
    if not rows:
        raise _no_endpoint()
    before = _endpoint(rows[0])
    if before.is_callbacks and {"url", "events"} & changes.keys():
        raise Conflict("this webhook stands for the callback_url of each job; it has no URL and no events of its own")
    is_on = changes.pop("is_on", before.disabled_at is None)
    after = replace(before, **changes)
    rows = yield call(
        "change_endpoint",
        id=endpoint_id,
        url=after.url,
        events=as_json(after.events),
        note=after.note,
        secrets=as_json(after.secrets),
        is_on=int(is_on),
    )
    if after.url != before.url:
        yield call("redirect_deliveries", id=endpoint_id, url=after.url)
    return _endpoint(rows[0])


def _rotate(endpoint_id: str, secret: str, now: Instant, keep: Duration) -> Transaction[Endpoint]:
    rows = yield call("endpoint_to_change", id=endpoint_id)
    if not rows:
        raise _no_endpoint()
    until = now + keep
    old = [
        Secret(known.value, until if known.until is None else min(known.until, until))
        for known in _endpoint(rows[0]).secrets
        if known.until is None or known.until > now
    ]
    kept = [known for known in old if known.until is not None and known.until > now][: SECRETS_MAX - 1]
    return (yield from _change(endpoint_id, secrets=(Secret(secret), *kept)))


def _replay(delivery_id: str) -> Transaction[Delivery]:
    rows = yield call("replay_delivery", id=delivery_id)
    if not rows:
        raise NotFound("no delivery has this id")
    yield call("notify", payload="deliveries")
    return _delivery(rows[0])


def _remove(endpoint_id: str) -> Transaction[None]:
    rows = yield call("endpoint_to_change", id=endpoint_id)
    if not rows:
        raise _no_endpoint()
    if _endpoint(rows[0]).is_callbacks:
        raise Conflict("this webhook stands for the callback_url of jobs that may still run; disable it instead")
    yield call("remove_endpoint", id=endpoint_id)


class StoreWebhooks:
    """The endpoints and deliveries of one store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    # --- endpoints

    async def add(
        self, *, tenant: str, url: str, events: Sequence[str] = (ALL_EVENTS,), note: str = "", author: str
    ) -> Endpoint:
        """Create an endpoint for jobs of a tenant, or of all with `*`; the caller has checked the URL."""
        check_name(tenant, "tenant")
        rows = await self._driver.fetch(
            call(
                "add_endpoint",
                id=self._clock.new_id("wh"),
                tenant=tenant,
                url=url,
                events=as_json(check_events(events)),
                secrets=as_json([Secret(new_secret())]),
                note=storable(note, NOTE_LENGTH_MAX),
                created_by=author,
                most=ENDPOINTS_MAX,
            )
        )
        if not rows:
            raise Conflict(f"a tenant may have {ENDPOINTS_MAX} webhooks at most; remove one first")
        return _endpoint(rows[0])

    async def ensure_callbacks(self, tenant: str) -> str:
        """Create the callback endpoint of a tenant if it is missing; return its id."""
        await self._driver.run(lambda: ensure_callbacks([tenant]))
        return callbacks_id(tenant)

    async def get(self, endpoint_id: str) -> Endpoint:
        """Read an endpoint, or raise `NotFound`."""
        rows = await self._driver.fetch(call("endpoint", id=endpoint_id))
        if not rows:
            raise _no_endpoint()
        return _endpoint(rows[0])

    async def page(self, *, tenant: str | None = None, after: str | None = None, limit: int = 50) -> list[Endpoint]:
        """Read a page of endpoints by id, of one tenant or all."""
        rows = await self._driver.fetch(
            call("endpoints", tenant=tenant, after=after or "", limit=max(1, min(limit, PAGE_MAX)))
        )
        return [_endpoint(row) for row in rows]

    async def named(self, ids: Iterable[str]) -> dict[str, Endpoint]:
        """Read the endpoints with these ids; missing ones are left out."""
        rows = await self._driver.fetch(call("endpoints_by_id", ids=as_json(sorted(set(ids)))))
        return {row["id"]: _endpoint(row) for row in rows}

    async def change(
        self,
        endpoint_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        note: str | None = None,
        is_on: bool | None = None,
    ) -> Endpoint:
        """Change the given values; pending deliveries go to the new URL."""
        changes: dict[str, Any] = {} if url is None else {"url": url}
        if events is not None:
            changes["events"] = check_events(events)
        if note is not None:
            changes["note"] = storable(note, NOTE_LENGTH_MAX)
        if is_on is not None:
            changes["is_on"] = is_on
        return await self._driver.run(lambda: _change(endpoint_id, **changes))

    async def rotate(self, endpoint_id: str, *, keep: Duration = ROTATION) -> Endpoint:
        """Rotate the secret; the old one also signs for a while, so that the receiver can switch."""
        secret, now = new_secret(), self._clock.now()
        return await self._driver.run(lambda: _rotate(endpoint_id, secret, now, keep))

    async def remove(self, endpoint_id: str) -> None:
        """Delete the webhook and discard its pending deliveries."""
        await self._driver.run(lambda: _remove(endpoint_id))

    # --- deliveries

    async def next_due(self) -> tuple[Instant | None, Instant]:
        """Return when the next delivery is due, and the store's time."""
        row = (await self._driver.fetch(call("next_delivery")))[0]
        return row["next_at"], row["now"]

    async def claim(
        self, *, limit: int, lease: Duration, endpoints: Collection[str] = (), targets: Collection[str] = ()
    ) -> list[Delivery]:
        """Claim due deliveries for a while, except to these endpoints and to URLs that start with these targets."""
        rows = await self._driver.fetch(
            call(
                "claim_deliveries",
                limit=limit,
                lease=lease,
                endpoints=as_json(endpoints),
                targets=as_json({"target": target} for target in targets),
            )
        )
        return sorted((_delivery(row) for row in rows), key=lambda delivery: (delivery.created_at, delivery.id))

    async def add_test(self, endpoint: Endpoint, url: str, lease: Duration) -> Delivery:
        """Insert a test delivery, claimed by the caller."""
        rows = await self._driver.fetch(
            call(
                "add_test",
                id=_message_id(self._clock.now()),
                endpoint=endpoint.id,
                tenant=endpoint.tenant,
                event=TEST_EVENT,
                url=url,
                lease=lease,
            )
        )
        return _delivery(rows[0])

    async def record(
        self, delivery: Delivery, outcome: Outcome | None, *, status: str, delay: Duration | None
    ) -> Delivery | None:
        """Record the outcome of a try and when the next one is due; return None if the claim was lost.

        Without an outcome nothing was tried, and it is only put off.
        """
        outcomes = delivery.outcomes if outcome is None else (*delivery.outcomes, outcome)
        rows = await self._driver.fetch(
            call(
                "record_delivery",
                id=delivery.id,
                leased=delivery.next_at,
                status=status,
                tried=int(outcome is not None),
                outcomes=as_json(outcomes[-OUTCOMES_MAX:]),
                delay=delay,
            )
        )
        return _delivery(rows[0]) if rows else None

    async def delivery(self, delivery_id: str) -> tuple[Delivery, str | None]:
        """Read a delivery and the tenant of its endpoint, None if that was deleted; or raise `NotFound`."""
        rows = await self._driver.fetch(call("delivery", id=delivery_id))
        if not rows:
            raise NotFound("no delivery has this id")
        return _delivery(rows[0]), rows[0]["owner"]

    async def deliveries(
        self,
        *,
        owner: str | None = None,
        endpoint: str | None = None,
        status: str | None = None,
        job: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """Read a page of deliveries, newest first; with an owner, only those to its endpoints."""
        filters: dict[str, object] = {
            "owner": owner,
            "endpoint": endpoint,
            "status": status,
            "before": before or _LAST_ID,
        }
        filters |= {"limit": max(1, min(limit, PAGE_MAX))}
        statement = call("deliveries", **filters) if job is None else call("deliveries_of_job", job=job, **filters)
        return [_delivery(row) for row in await self._driver.fetch(statement)]

    async def failed(self, window: Duration, *, owner: str | None = None, limit: int = 10_000) -> int:
        """Count recently abandoned deliveries, up to a limit; with an owner, only those to its endpoints."""
        rows = await self._driver.fetch(call("failed_deliveries", window=window, owner=owner, limit=limit))
        failed: int = rows[0]["failed"]
        return failed

    async def replay(self, delivery_id: str) -> Delivery:
        """Send a delivery again with the same id, or raise `NotFound`."""
        return await self._driver.run(lambda: _replay(delivery_id))

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete deliveries that ended before the retention; return how many."""
        return len(await self._driver.fetch(call("prune_deliveries", age=retention, limit=limit)))


def _message_id(now: Instant) -> str:
    """Return an id like those of the triggers, which sort by time."""
    return f"msg_{now:014x}{secrets.token_hex(10)}"


def _items(text: str, kind: type[T]) -> tuple[T, ...]:
    """Decode a list; return an empty one if it is invalid, so that other rows are still sent."""
    try:
        return tuple(msgspec.json.decode(text, type=list[kind]))  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError):
        return ()


def _endpoint(row: Row) -> Endpoint:
    return Endpoint(
        id=row["id"],
        tenant=row["tenant"],
        url=row["url"],
        events=_items(row["events"], str),
        secrets=_items(row["secrets"], Secret),
        note=row["note"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        disabled_at=row["disabled_at"],
    )


def _delivery(row: Row) -> Delivery:
    return Delivery(
        id=row["id"],
        endpoint=row["endpoint"],
        job_id=row["job_id"],
        tenant=row["tenant"],
        event=row["event"],
        url=row["url"],
        status=row["status"],
        tries=row["tries"],
        next_at=row["next_at"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        outcomes=_items(row["outcomes"], Outcome),
    )
