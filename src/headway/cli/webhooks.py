"""`headway webhooks`: URLs that are notified when jobs end, and the messages to them."""

from typing import Annotated, cast

import typer

from headway.cli.output import Column
from headway.cli.root import FAILED, OK
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean
from headway.core.errors import DefinitionError
from headway.core.instants import Instant, away, parse_instant
from headway.core.urls import check_url
from headway.core.webhooks import ALL_EVENTS, EVENTS, STATUSES, DeliveryStatus
from headway.operations.verbs import pages
from headway.operations.webhooks import KEEP_DEFAULT, check_keep
from headway.wire.webhooks import Delivery, Webhook, WebhookWithSecret

app = new_group(help="Notify URLs when jobs end; list the messages, and send them again.")

ALL_TENANTS = "*"
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the webhook, as `list` shows it.")]


@command(app, "list")
async def list_(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
) -> None:
    """List webhooks."""
    async with session.operations() as operations:
        found = [webhook async for webhook in pages(operations.webhooks.list) if tenant in (None, webhook.tenant)]
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no webhooks; add one with `headway webhooks add URL`")
    else:
        columns = [
            Column("id"),
            Column("url", "name", wraps=True),
            Column("tenant", wraps=True),
            Column("events", wraps=True),
            Column("state"),
            Column("note", wraps=True, spare=True),
        ]
        session.out.table(columns, [_row(webhook) for webhook in found])


def _row(webhook: Webhook) -> tuple[object, ...]:
    url = webhook.url or "callback_url of each job"
    state = "on" if webhook.enabled else "off"
    return webhook.id, url, webhook.tenant, ", ".join(webhook.events), state, webhook.note


@command(app)
async def add(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send the messages: https://…")],
    event: Annotated[
        list[str] | None, typer.Option("--event", metavar="EVENT", help=f"{', '.join(EVENTS)} or *; repeatable.")
    ] = None,
    tenant: Annotated[
        str,
        typer.Option("--tenant", metavar="TENANT", help="The tenant of the jobs; * for all tenants that you may see."),
    ] = ALL_TENANTS,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Notify a URL when jobs end. Shows the secret for the signatures, only this once."""
    check_url(url, "URL")
    whose = None if tenant == ALL_TENANTS else tenant
    async with session.operations("create") as operations:
        webhook = await operations.webhooks.add(url, events=event or [ALL_EVENTS], note=note, tenant=whose)
    _show_secret(session, webhook, f"{webhook.id} notifies {webhook.url}")


def _show_secret(session: Session, webhook: WebhookWithSecret, words: str) -> None:
    if session.as_json:
        session.out.json(webhook)
        return
    session.out.say(webhook.secret)  # Alone on stdout, so that it can be piped.
    session.out.note(clean(f"{words}; its secret is not shown again"))


@command(app)
async def remove(session: Session, webhook_id: IdArgument) -> None:
    """Delete the webhook and discard its pending deliveries."""
    async with session.operations() as operations:
        webhook = await operations.webhooks.get(webhook_id)
        await operations.webhooks.remove(webhook_id)
    _tell(session, webhook, "is removed")


@command(app)
async def disable(session: Session, webhook_id: IdArgument) -> None:
    """Disable a webhook; pending messages wait, for a day at most."""
    async with session.operations() as operations:
        _tell(session, await operations.webhooks.change(webhook_id, enabled=False), "is off")


@command(app)
async def enable(session: Session, webhook_id: IdArgument) -> None:
    """Enable a webhook, for jobs that end from now on."""
    async with session.operations() as operations:
        _tell(session, await operations.webhooks.change(webhook_id, enabled=True), "is on")


def _tell(session: Session, webhook: Webhook, words: str) -> None:
    if session.as_json:
        session.out.json(webhook)
    else:
        session.out.say(clean(f"{webhook.id} {words}"))


@command(app)
async def rotate(
    session: Session,
    webhook_id: IdArgument,
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TIME", help="How long messages are signed with the old secret too; 0s if it has leaked."
        ),
    ] = KEEP_DEFAULT,
) -> None:
    """Create a new secret and show it, only this once. `callbacks:TENANT` is for the callback_url of jobs."""
    check_keep(keep, "--keep")
    async with session.operations() as operations:
        webhook = await operations.webhooks.rotate(webhook_id, keep=keep)
    _show_secret(session, webhook, f"{webhook.id} signs with it, and with the old one for {keep}")


@command(app, "test")
async def send_test(
    session: Session,
    webhook_id: IdArgument,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Where to send it; only for callbacks:TENANT.")
    ] = None,
) -> int:
    """Send a test message, once, from this machine (or from the server); exit code 1 if it does not arrive."""
    if url is not None:
        check_url(url, "--url")
    async with session.operations() as operations:
        delivery = await operations.webhooks.test(webhook_id, url=url)
    if session.as_json:
        session.out.json(delivery)
    else:
        session.out.say(clean(f"{delivery.url}: {_last(delivery)}"))
    return OK if delivery.status == "DELIVERED" else FAILED


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
    """List messages to webhooks, newest first."""
    if status is not None and status.upper() not in STATUSES:
        raise DefinitionError(f"--status must be one of {', '.join(STATUSES)}")
    wanted = None if status is None else cast("DeliveryStatus", status.upper())
    async with session.operations() as operations:
        listed = pages(operations.deliveries.list, endpoint=webhook_id, status=wanted, job=job_id, most=limit)
        found = [delivery async for delivery in listed]
        now = operations.now
    if session.as_json:
        session.out.json(found)
    elif not found:
        is_filtered = any(given is not None for given in (webhook_id, status, job_id))
        session.out.say("no message matches" if is_filtered else "no messages yet")
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
        delivery.job,
        delivery.url,
        delivery.status,
        delivery.tries,
        None if delivery.next_at is None else away(parse_instant(delivery.next_at), now),
        _last(delivery),
    )


def _last(delivery: Delivery) -> str:
    """Describe the last attempt."""
    if not delivery.outcomes:
        return ""
    last = delivery.outcomes[-1]
    return f"{last.code if last.error is None else last.error} ({last.took_ms} ms)"


@command(app)
async def replay(
    session: Session,
    delivery_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message, as `deliveries` shows it.")],
) -> None:
    """Send a message again, with the same id; the API processes send it."""
    async with session.operations() as operations:
        delivery = await operations.deliveries.replay(delivery_id)
    if session.as_json:
        session.out.json(delivery)
    else:
        session.out.say(clean(f"{delivery.id} will be sent to {delivery.url} again"))
