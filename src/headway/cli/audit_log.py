"""`headway audit-log`: actions of operators and admins, the newest first."""

from typing import Annotated

import typer

from headway.cli.output import Column, to_json
from headway.cli.parsing import read_past
from headway.cli.session import Session, new_command
from headway.core.instants import isoformat
from headway.operations.verbs import pages
from headway.wire.access import AuditLogEntry


async def audit_log(
    session: Session,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only actions of this actor.")] = None,
    action: Annotated[str | None, typer.Option("--action", metavar="NAME", help="Such as tokens.create.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="ID", help="Only actions on this target.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Only after this time, or in the last 24h.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Maximum number of entries.")
    ] = 50,
) -> None:
    """Show the audit log: actions of operators and admins, the newest first. Entries cannot be changed.

    The old name `headway trail` does the same.
    """
    async with session.operations() as operations:
        after = None if since is None else isoformat(read_past(since, operations.now, "--since"))
        entries = pages(
            operations.audit_log.list,
            actor=actor,
            action=action,
            target=target,
            tenant=tenant,
            since=after,
            most=limit,
        )
        found = [entry async for entry in entries]
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no entries yet")
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
        session.out.table(columns, [_row(entry) for entry in found])


def _row(entry: AuditLogEntry) -> tuple[object, ...]:
    detail = to_json(entry.detail) if entry.detail else ""
    return entry.at, entry.actor, entry.tenant, entry.origin, entry.action, entry.target, detail


app = new_command(audit_log)
