"""`headway webhooks`: whom to tell when jobs end, and what was told."""

from typing import Annotated

import msgspec
import typer

from headway.cli.output import Column
from headway.cli.root import FAILED, OK
from headway.cli.session import AUTHOR, PAGE, Desk, Session, command, new_group
from headway.cli.text import clean
from headway.core.errors import DefinitionError
from headway.core.instants import DAY, Instant, away, parse_duration
from headway.core.settings import mask_url
from headway.core.urls import check_url
from headway.operations import audit_log as deeds
from headway.server.webhook_messages import delivery_shape, endpoint_shape
from headway.store.webhooks import ALL_EVENTS, EVENTS, STATUSES, Delivery, Endpoint, tenant_of_callbacks

app = new_group(help="Tell URLs when jobs end; see what was told, and tell it again.")

ALL_TENANTS = "*"
KEEP_MAX = 7 * DAY
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the webhook, as `list` shows it.")]


@command(app, "list")
async def list_(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
) -> None:
    """List whom to tell, and about what."""
    found: list[Endpoint] = []
    async with session.open() as desk:
        while page := await desk.store.webhooks.page(tenant=tenant, after=found[-1].id if found else None, limit=PAGE):
            found += page
        now = desk.now
    if session.as_json:
        session.out.json([endpoint_shape(endpoint, now) for endpoint in found])
    elif not found:
        session.out.say("nobody is told; `headway webhooks add URL` adds somebody")
    else:
        columns = [
            Column("id"),
            Column("url", "name", wraps=True),
            Column("tenant", wraps=True),
            Column("events", wraps=True),
            Column("state"),
            Column("note", wraps=True, spare=True),
        ]
        session.out.table(columns, [_row(endpoint) for endpoint in found])


def _row(endpoint: Endpoint) -> tuple[object, ...]:
    url = "callback_url of each job" if endpoint.is_callbacks else mask_url(endpoint.url)
    state = "on" if endpoint.disabled_at is None else "off"
    return endpoint.id, url, endpoint.tenant, ", ".join(endpoint.events), state, endpoint.note


@command(app)
async def add(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send the messages: https://…")],
    event: Annotated[
        list[str] | None, typer.Option("--event", metavar="EVENT", help=f"{', '.join(EVENTS)} or *; again for more.")
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="TENANT", help="Whose jobs it hears of; * for all.")
    ] = ALL_TENANTS,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Tell a URL when jobs end. Shows the secret that signs the messages, this once."""
    plain = check_url(url, "URL")
    async with session.open("create") as desk:
        events = event or [ALL_EVENTS]
        endpoint = await desk.acting(deeds.add_webhook(tenant, plain, events)).webhooks.add(
            tenant=tenant, url=plain, events=events, note=note, author=AUTHOR
        )
        _show_secret(session, endpoint, desk.now, f"{endpoint.id} tells {mask_url(plain)}")


def _show_secret(session: Session, endpoint: Endpoint, now: Instant, words: str) -> None:
    secret = endpoint.secrets[0].value
    if session.as_json:
        session.out.json({**endpoint_shape(endpoint, now), "secret": secret})
        return
    session.out.say(secret)  # Alone on stdout, so that it can be piped to where it belongs.
    session.out.note(clean(f"{words}; its secret is not shown again"))


@command(app)
async def remove(session: Session, webhook_id: IdArgument) -> None:
    """Delete the webhook and discard its pending deliveries."""
    async with session.open() as desk:
        endpoint = await desk.store.webhooks.get(webhook_id)
        await desk.acting(deeds.remove_webhook(endpoint)).webhooks.remove(webhook_id)
        _tell(session, endpoint, desk.now, "is removed")


@command(app)
async def disable(session: Session, webhook_id: IdArgument) -> None:
    """Tell it nothing for now; messages that wait for it go on waiting, for a day at most."""
    await _switch(session, webhook_id, is_on=False)


@command(app)
async def enable(session: Session, webhook_id: IdArgument) -> None:
    """Tell it again what ends from now on."""
    await _switch(session, webhook_id, is_on=True)


async def _switch(session: Session, webhook_id: str, *, is_on: bool) -> None:
    async with session.open() as desk:
        before, now = await desk.store.webhooks.get(webhook_id), desk.now
        acting = desk.acting(deeds.change_webhook(before, lambda endpoint: endpoint_shape(endpoint, now)))
        endpoint = await acting.webhooks.change(webhook_id, is_on=is_on)
        _tell(session, endpoint, desk.now, "is on" if is_on else "is off")


def _tell(session: Session, endpoint: Endpoint, now: Instant, words: str) -> None:
    if session.as_json:
        session.out.json(endpoint_shape(endpoint, now))
    else:
        session.out.say(clean(f"{endpoint.id} {words}"))


@command(app)
async def rotate(
    session: Session,
    webhook_id: IdArgument,
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help="How long the old secret signs, too; 0s when it has leaked.")
    ] = "24h",
) -> None:
    """Make a new secret and show it, this once. `callbacks:TENANT` is what signs for the callback_url of jobs."""
    kept = parse_duration(keep, what="--keep")
    if kept > KEEP_MAX:
        raise DefinitionError("--keep must be from 0s to 7d")
    async with session.open() as desk:
        tenant = tenant_of_callbacks(webhook_id)
        if tenant is not None:
            await desk.store.webhooks.ensure_callbacks(tenant)
        acting = desk.acting(deeds.rotate_secret(webhook_id, keep))
        endpoint = await acting.webhooks.rotate(webhook_id, keep=kept)
        _show_secret(session, endpoint, desk.now, f"{endpoint.id} signs with it, and with the old one for {keep}")


@command(app, "test")
async def try_out(
    session: Session,
    webhook_id: IdArgument,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Where to, for what stands for callback_url.")
    ] = None,
) -> int:
    """Send a test message, once, from this machine (or from the server); the exit code is 1 when it does not arrive."""
    async with session.open() as desk:
        endpoint = await desk.store.webhooks.get(webhook_id)
        if endpoint.is_callbacks == (url is None):
            wanted = "is needed for" if endpoint.is_callbacks else "may only be given for"
            raise DefinitionError(f"--url {wanted} what stands for the callback_url of jobs")
        delivery = await _send_test(session, desk, endpoint, None if url is None else check_url(url, "--url"))
        detail = {"url": mask_url(delivery.url), "status": delivery.status}
        await desk.store.audit_log.record(
            actor=AUTHOR,
            tenant=endpoint.tenant,
            origin=deeds.origin(),
            action="webhooks.test",
            target=endpoint.id,
            detail=msgspec.json.encode(detail).decode(),
        )
    if session.as_json:
        session.out.json(delivery_shape(delivery))
    else:
        session.out.say(clean(f"{mask_url(delivery.url)}: {_last(delivery)}"))
    return OK if delivery.status == "DELIVERED" else FAILED


async def _send_test(session: Session, desk: Desk, endpoint: Endpoint, url: str | None) -> Delivery:
    # With HTTP clients behind them, which nothing else here needs.
    from headway.cli.remote import RemoteDesk
    from headway.server.webhook_sender import Deliverer

    if isinstance(desk, RemoteDesk):
        return await desk.test_webhook(endpoint.id, url)
    deliverer = Deliverer(desk.store, session.settings(), desk.clock)
    try:
        return await deliverer.test(endpoint, url or endpoint.url)
    finally:
        await deliverer.close()


@command(app)
async def deliveries(
    session: Session,
    webhook_id: Annotated[str | None, typer.Option("--webhook", metavar="ID", help="Only to this webhook.")] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help=f"One of {', '.join(STATUSES)}.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only about this job.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, max=10_000, help="How many.")] = 20,
) -> None:
    """List what was told to whom, the newest first."""
    if status is not None and status.upper() not in STATUSES:
        raise DefinitionError(f"--status must be one of {', '.join(STATUSES)}")
    found: list[Delivery] = []
    async with session.open() as desk:
        while len(found) < limit and (
            page := await desk.store.webhooks.deliveries(
                endpoint=webhook_id,
                status=None if status is None else status.upper(),
                job=job_id,
                before=found[-1].id if found else None,
                limit=min(limit - len(found), PAGE),
            )
        ):
            found += page
        now = desk.now
    if session.as_json:
        session.out.json([delivery_shape(delivery) for delivery in found])
    elif not found:
        session.out.say("nothing was told")
    else:
        columns = [
            Column("id"),
            Column("event"),
            Column("job"),
            Column("url", "name", wraps=True),
            Column("status"),
            Column("tries", right=True),
            Column("next", "time", right=True),
            Column("last answer", wraps=True, spare=True),
        ]
        session.out.table(columns, [_delivery_row(delivery, now) for delivery in found])


def _delivery_row(delivery: Delivery, now: Instant) -> tuple[object, ...]:
    return (
        delivery.id,
        delivery.event,
        delivery.job_id,
        mask_url(delivery.url),
        delivery.status,
        delivery.tries,
        None if delivery.next_at is None else away(delivery.next_at, now),
        _last(delivery),
    )


def _last(delivery: Delivery) -> str:
    """Say how the last try went."""
    if not delivery.outcomes:
        return ""
    last = delivery.outcomes[-1]
    return f"{last.code if last.error is None else last.error} ({last.took_ms} ms)"


@command(app)
async def replay(
    session: Session,
    delivery_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message, as `deliveries` shows it.")],
) -> None:
    """Send a message again, under the same id; whoever serves the API sends it."""
    async with session.open() as desk:
        delivery = await desk.acting(deeds.replay(delivery_id)).webhooks.replay(delivery_id)
    if session.as_json:
        session.out.json(delivery_shape(delivery))
    else:
        session.out.say(clean(f"{delivery.id} will be sent to {mask_url(delivery.url)} again"))
