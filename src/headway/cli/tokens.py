"""`headway tokens`: make, list and revoke what lets people and programs into the API."""

from typing import Annotated, Any

import typer

from headway.cli.output import Column
from headway.cli.session import AUTHOR, PAGE, Session, command, new_group
from headway.cli.text import clean
from headway.core.access import Token
from headway.core.instants import Instant, away, parse_duration
from headway.operations.audit_log import origin
from headway.store.access import ALL_TENANTS, ROLES
from headway.wire.shapes import token_shape

app = new_group(help="Make, list and revoke tokens for the API.")


@command(app)
async def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will use it.")],
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help=f"One of {', '.join(ROLES)}.")] = ROLES[0],
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="TENANT", help="Whose things it may see and change; * for all.")
    ] = ALL_TENANTS,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="How long it counts, such as 90d; else for ever.")
    ] = None,
) -> None:
    """Make a token and show its value, this once: only a hash of it is kept.

    The first token ends the access without one that the API gives on loopback.
    """
    lifetime = None if expires is None else parse_duration(expires, what="--expires")
    async with session.open("create") as desk:
        token, value = await desk.store.access.create_token(
            name=name, tenant=tenant, role=role, lifetime=lifetime, actor=AUTHOR, origin=origin()
        )
        now = desk.now
    if session.as_json:
        session.out.json({**token_shape(token), "token": value})
        return
    session.out.say(value)  # Alone on stdout, so that it can be piped to where it belongs.
    ends = "" if token.expires_at is None else f", expires {away(token.expires_at, now)}"
    whose = "all tenants" if token.tenant == ALL_TENANTS else f"tenant {token.tenant}"
    session.out.note(clean(f"{token.id}: {token.name}, {token.role} of {whose}{ends}; it is not shown again"))


@command(app, "list")
async def list_(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that expired or were revoked.")] = False,
) -> None:
    """List the tokens that count, the newest first."""
    found: list[Token] = []
    async with session.open() as desk:
        while page := await desk.store.access.tokens(tenant=tenant, before=found[-1].id if found else None, limit=PAGE):
            found += page
        now = desk.now
    shown = [token for token in found if everything or token.state == "valid"]
    if session.as_json:
        session.out.json([token_shape(token) for token in shown])
    elif not shown:
        session.out.say("no token counts; `headway tokens create` makes one" if found else "there is no token yet")
    else:
        columns = [
            Column("id"),
            Column("name", "name", wraps=True),
            Column("tenant", wraps=True),
            Column("role"),
            Column("state"),
            Column("expires", "time", right=True),
            Column("made by", spare=True),
        ]
        session.out.table(columns, [_row(token, now) for token in shown])


def _row(token: Token, now: Instant) -> tuple[Any, ...]:
    expires = "never" if token.expires_at is None else away(token.expires_at, now)
    return token.id, token.name, token.tenant, token.role, token.state, expires, token.created_by


@command(app)
async def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, as `list` shows it.")],
) -> None:
    """Let a token count no more, within five seconds, also on streams that are open."""
    async with session.open() as desk:
        token = await desk.store.access.revoke_token(token_id, actor=AUTHOR, origin=origin())
    if session.as_json:
        session.out.json(token_shape(token))
    else:
        session.out.say(clean(f"{token.id} ({token.name}) is revoked"))
