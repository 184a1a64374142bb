"""`headway purge`: erase what jobs of a tenant were given, what came of them and what they logged."""

from typing import Annotated

import typer

from headway.cli.parsing import YesOption, confirm
from headway.cli.session import PAGE, Session, new_command
from headway.cli.text import clean, count
from headway.core.validation import check_name
from headway.operations import audit_log as deeds


async def purge(
    session: Session,
    tenant: Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Whose jobs.")],
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only the job with this key, and its reruns.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    yes: YesOption = False,
) -> None:
    """Erase arguments, results, errors, logs, steps, keys and callback URLs of jobs that have ended, for good.

    That they ran, when and how they ended stays, so that schedules can still be audited. Jobs that have not ended are
    left alone: cancel them first, or come back. Until then a key that leads to them is kept.
    """
    check_name(tenant, "--tenant")
    async with session.open() as desk:
        ended: list[str] = []
        unfinished = 0
        after = ""
        while True:
            page, waiting = await desk.store.erasure.page(tenant, key, after)
            if not page and not waiting:
                break
            ended += page
            unfinished += len(waiting)
            after = max([*page, *waiting])
        if ended and not dry_run:
            confirm(clean(f"This erases the content of {count(len(ended), 'job')} of {tenant}, for good."), yes=yes)
        erased = 0
        for start in range(0, 0 if dry_run else len(ended), PAGE):
            acting = desk.acting(deeds.purge(tenant, key))
            part, keeps_key = ended[start : start + PAGE], key is not None and unfinished > 0
            erased += len(await acting.erasure.erase(part, keeps_key=keeps_key))
    if session.as_json:
        found = {"tenant": tenant, "jobs": len(ended) if dry_run else erased, "unfinished": unfinished}
        session.out.json({**found, "dry_run": dry_run})
        return
    jobs = count(len(ended) if dry_run else erased, "job")
    session.out.say(clean(f"{jobs} of {tenant} {'would run_as_child erased' if dry_run else 'erased'}"))
    if unfinished:
        session.out.note(f"{count(unfinished, 'job')} not ended yet and left alone")


app = new_command(purge)
