"""`headway trail`: what people did, the newest first."""

from typing import Annotated

import typer

from headway.cli.output import Column, to_json
from headway.cli.parsing import read_past
from headway.cli.session import PAGE, Session, new_command
from headway.core.access import Action
from headway.wire.shapes import Shape, action_shape


async def trail(
    session: Session,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only of this one.")] = None,
    action: Annotated[str | None, typer.Option("--action", metavar="NAME", help="Such as tokens.create.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="ID", help="Only what was done to this.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Only after this time, or so long ago: 24h.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="How many at most.")] = 50,
) -> None:
    """Show what people did over the API, and with tokens, the newest first. The store refuses to change a line."""
    found: list[Action] = []
    async with session.open() as desk:
        after = None if since is None else read_past(since, desk.now, "--since")
        while len(found) < limit:
            page = await desk.store.access.actions(
                actor=actor,
                action=action,
                target=target,
                tenant=tenant,
                since=after,
                before=found[-1].seq if found else None,
                limit=min(limit - len(found), PAGE),
            )
            found += page
            if not page:
                break
    shapes = [action_shape(line) for line in found]
    if session.as_json:
        session.out.json(shapes)
    elif not shapes:
        session.out.say("nobody did anything yet")
    else:
        columns = [
            Column("at", "time"),
            Column("actor", "name", wraps=True),
            Column("tenant", spare=True),
            Column("from", spare=True),
            Column("action"),
            Column("target", wraps=True),
            Column("detail", wraps=True, spare=True),
        ]
        session.out.table(columns, [_row(shape) for shape in shapes])


def _row(shape: Shape) -> tuple[object, ...]:
    names = ("at", "actor", "tenant", "origin", "action", "target")
    return *(shape[name] for name in names), to_json(shape["detail"]) if shape["detail"] else ""


app = new_command(trail)
