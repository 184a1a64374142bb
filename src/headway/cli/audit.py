"""`headway audit`: expected instants against recorded ones."""

from typing import Annotated, Final

import typer

from headway.cli.output import Column, Output
from headway.cli.parsing import read_past
from headway.cli.schedule_names import TenantOption, which
from headway.cli.session import Session, new_command
from headway.cli.text import count
from headway.core.json_values import JsonObject
from headway.core.schedule_names import schedule_label

FOUND: Final = 1

ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help="Only this schedule; tenant/name of another tenant.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="T", help="Only instants after this time, or so long ago: 24h.")
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="T", help="Only instants up to this time.")]


async def audit(
    session: Session,
    schedule: ScheduleOption = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> int:
    """Compare the expected instants of every schedule with the recorded ones.

    The expected instants are computed anew, by other code than the scheduler's. Exit code 1 when one is missing, is
    recorded twice, or was never one. May run at any time, also while schedulers decide.
    """
    async with session.open() as desk:
        report = await desk.audit(
            None if schedule is None else await which(desk, schedule, tenant),
            None if since is None else read_past(since, desk.now, "--since"),
            None if until is None else read_past(until, desk.now, "--until"),
        )
    if session.as_json:
        session.out.json(report)
    else:
        tell(session.out, report)
    return 0 if report["ok"] else FOUND


def tell(out: Output, report: JsonObject) -> None:
    """Write what was found, and the verdict in a sentence."""
    findings = [(kind, finding) for kind in report["totals"] for finding in report[kind]]
    if findings:
        columns = [
            Column("finding", "bad"),
            Column("schedule", "name"),
            Column("instant"),
            Column("reason", wraps=True),
        ]
        out.table(columns, [(kind, *_row(finding)) for kind, finding in findings])
        out.say()
    out.say(verdict(report), "good" if report["ok"] else "bad")


def _row(finding: JsonObject) -> tuple[str, str, str]:
    until = f" … {finding['until']} ({finding['count']})" if "until" in finding else ""
    return schedule_label(finding["tenant"], finding["schedule"]), finding["instant"] + until, finding["reason"]


def verdict(report: JsonObject) -> str:
    """Say in one sentence what the audit found."""
    schedules = count(report["schedules"], "schedule")
    if report["ok"]:
        return (
            f"ok: {schedules}, {count(report['expected'], 'instant')} expected, {report['recorded']:,} recorded;"
            " no gap, no duplicate, no phantom"
        )
    totals = ", ".join(f"{number:,} {kind}" for kind, number in report["totals"].items() if number)
    return f"NOT OK: {schedules}, {report['expected']:,} expected, {report['recorded']:,} recorded; {totals}"


app = new_command(audit)
