"""`headway migrate`: bring the store to the schema of this program."""

from headway.cli.session import Session, new_command
from headway.core.access import COMMAND_LINE
from headway.core.settings import mask_url


async def migrate(session: Session) -> None:
    """Migrate the store to the schema of this version.

    Safe to run at any time, by several at once, and while schedulers run.
    """
    from headway.wiring.maintenance import migrate_store

    settings = session.settings()
    before, after = await migrate_store(settings, COMMAND_LINE)
    if session.as_json:
        session.out.json({"store": mask_url(settings.store), "before": before, "after": after})
    elif before == after:
        session.out.say(f"schema {after}: nothing to do ({mask_url(settings.store)})")
    else:
        session.out.say(f"schema {before or 'none'} -> {after} ({mask_url(settings.store)})")


app = new_command(migrate)
