"""`headway tokens`: create, list and revoke tokens for the API."""

from typing import Annotated, Any, cast

import typer

from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean
from headway.core.access import ROLES
from headway.core.instants import Instant, away, format_duration, parse_duration, parse_instant
from headway.core.tenants import ALL_TENANTS
from headway.operations.verbs import pages
from headway.wire.access import Role, Token

app = new_group(help="Create, list and revoke tokens for the API.")


@command(app)
async def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will use it.")],
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help=f"One of {', '.join(ROLES)}.")] = ROLES[0],
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="TENANT", help="The tenant that it sees; * for all.")
    ] = ALL_TENANTS,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="How long it is valid, such as 90d; by default without end."),
    ] = None,
) -> None:
    """Create a token and show its value. This is the only time: only a hash of it is stored.

    Creating the first token turns on sign-in, also on loopback.
    """
    lifetime = None if expires is None else format_duration(parse_duration(expires, what="--expires"))
    async with session.operations("create") as operations:
        token = await operations.tokens.create(name=name, role=cast("Role", role), tenant=tenant, expires_in=lifetime)
        now = operations.now
    if session.as_json:
        session.out.json(token)
        return
    session.out.say(token.token)  # Alone on stdout, so that it can be piped.
    ends = "" if token.expires_at is None else f", expires {away(parse_instant(token.expires_at), now)}"
    whose = "all tenants" if token.tenant == ALL_TENANTS else f"tenant {token.tenant}"
    session.out.note(clean(f"{token.id}: {token.name}, {token.role} of {whose}{ends}; it is not shown again"))


@command(app, "list")
async def list_(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include expired and revoked tokens.")] = False,
) -> None:
    """List the valid tokens, the newest first."""
    async with session.operations() as operations:
        found = [token async for token in pages(operations.tokens.list, tenant=tenant)]
        now = operations.now
    shown = [token for token in found if everything or token.state == "valid"]
    if session.as_json:
        session.out.json(shown)
    elif not shown:
        session.out.say("no valid tokens; create one with `headway tokens create`" if found else "no tokens yet")
    else:
        columns = [
            Column("id"),
            Column("name", "name", wraps=True),
            Column("tenant", wraps=True),
            Column("role"),
            Column("state"),
            Column("expires", "time", right=True),
            Column("created by", spare=True),
        ]
        session.out.table(columns, [_row(token, now) for token in shown])


def _row(token: Token, now: Instant) -> tuple[Any, ...]:
    expires = "never" if token.expires_at is None else away(parse_instant(token.expires_at), now)
    return token.id, token.name, token.tenant, token.role, token.state, expires, token.created_by


@command(app)
async def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, as `list` shows it.")],
) -> None:
    """Revoke a token: it is refused within five seconds, also on open streams."""
    async with session.operations() as operations:
        token = await operations.tokens.revoke(token_id)
    if session.as_json:
        session.out.json(token)
    else:
        session.out.say(clean(f"{token.id} ({token.name}) is revoked"))
