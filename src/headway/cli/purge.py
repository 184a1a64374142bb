"""`headway purge`: erase the content of a tenant's jobs: arguments, results and logs."""

from typing import Annotated

import typer

from headway.cli.parsing import YesOption, confirm
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count


async def purge(
    session: Session,
    tenant: Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Whose jobs.")],
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only the job with this key, and its reruns.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show the number of jobs.")] = False,
    yes: YesOption = False,
) -> None:
    """Erase arguments, results, errors, logs, steps, keys and callback URLs of finished jobs, permanently.

    When the jobs ran and how they ended stays, so that schedules can still be audited. Unfinished jobs are left alone:
    cancel them first, or repeat the command later. Until then a key that they use is kept.
    """
    async with session.operations() as operations:
        found = await operations.purge.find(tenant, key=key)
        jobs = len(found.ids)
        if jobs and not dry_run:
            confirm(clean(f"This erases the content of {count(jobs, 'job')} of {tenant}, for good."), yes=yes)
            jobs = await operations.purge.erase(found)
    if session.as_json:
        session.out.json({"tenant": tenant, "jobs": jobs, "unfinished": found.unfinished, "dry_run": dry_run})
        return
    session.out.say(clean(f"{count(jobs, 'job')} of {tenant} {'would be erased' if dry_run else 'erased'}"))
    if found.unfinished:
        session.out.note(f"{count(found.unfinished, 'job')} not ended yet and left alone")


app = new_command(purge)
