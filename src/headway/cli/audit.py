"""`headway audit`: expected instants against recorded ones."""

from typing import Annotated, Any, Final

import msgspec
import typer

from headway.cli.output import Column, Output
from headway.cli.parsing import read_past
from headway.cli.schedule_names import TenantOption, which
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count
from headway.core.errors import InvalidTask
from headway.core.instants import DAY, Instant, isoformat
from headway.core.schedule_names import schedule_label
from headway.operations.everything import Operations
from headway.wire.base import PAGE_MAX
from headway.wire.ledger_audit import AuditFinding, LedgerAudit

FOUND: Final = 1
SERVER_WINDOW: Final = 365 * DAY  # A server audits no more at once.
FINDINGS_MAX: Final = 1_000
FINDINGS_SHOWN: Final = 50
_WINDOW: Final = ("since", "until", "next_cursor")

ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help="Only this schedule; tenant/name of another tenant.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="T", help="Only instants after this time, or in the last 24h.")
]
LimitsOption = Annotated[bool, typer.Option("--limits", help="Audit limits instead: what ran at a time, what started.")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="T", help="Only instants up to this time.")]


async def audit(
    session: Session,
    schedule: ScheduleOption = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limits: LimitsOption = False,
) -> int:
    """Compare the expected instants of every schedule with the recorded ones.

    The expected instants are computed anew, by code that is independent of the scheduler. Exit code 1 if one is
    missing, recorded twice, or unexpected. It may run at any time, also while schedulers decide. Through a server it
    covers the last year by default. With --limits it recomputes from attempts whether a limit was exceeded, in the
    last day unless --since is given.
    """
    if limits:
        return await _audit_limits(session, since, [("--schedule", schedule), ("--until", until), ("--tenant", tenant)])
    async with session.operations() as operations:
        now = operations.now
        last = None if until is None else read_past(until, now, "--until")
        first = None if since is None else read_past(since, now, "--since")
        if first is None and session.server is not None:
            first = (now if last is None else last) - SERVER_WINDOW
        name = (None, None) if schedule is None else await which(operations, schedule, tenant)
        report = await _audited(operations, name, first, last)
    if session.as_json:
        session.out.json(fields_of(report))
    else:
        tell(session.out, report)
    return 0 if report.ok else FOUND


async def _audit_limits(session: Session, since: str | None, others: list[tuple[str, str | None]]) -> int:
    if wrong := [name for name, value in others if value is not None]:
        raise InvalidTask(f"{wrong[0]} does not belong to --limits, which audits all tenants up to now")
    async with session.operations() as operations:
        first = None if since is None else isoformat(read_past(since, operations.now, "--since"))
        found = await operations.ledger.limits(since=first)
    if session.as_json:
        session.out.json(found)
        return 0 if found.ok else FOUND
    for one in found.excesses[:FINDINGS_SHOWN]:
        what = "ran at a time" if one.kind == "concurrency" else "started in its period"
        session.out.say(clean(f"{one.at}  {one.gate}: {one.found:,} {what}, {one.allowed:,} allowed  {one.job}"))
    told = f"{count(found.attempts, 'attempt')} since {found.since}, {count(found.limits, 'definition')} of limits"
    rest = "" if found.complete else "; there are more attempts, audit a shorter time"
    verdict = "ok" if found.ok else f"{count(len(found.excesses), 'start')} beyond a limit"
    session.out.say(f"{verdict}: {told}{rest}")
    return 0 if found.ok else FOUND


async def _audited(
    operations: Operations, name: tuple[str | None, str | None], since: Instant | None, until: Instant | None
) -> LedgerAudit:
    """Join the pages of an audit; all cover the period of the first one."""
    asked: dict[str, Any] = {
        "schedule": name[0],
        "tenant": name[1],
        "since": None if since is None else isoformat(since),
        "until": None if until is None else isoformat(until),
        "limit": PAGE_MAX,
    }
    report = page = await operations.ledger.audit(**asked)
    while page.next_cursor is not None:
        asked |= {"since": report.since, "until": report.until, "cursor": page.next_cursor}
        page = await operations.ledger.audit(**asked)
        _add(report, page)
    return report


def _add(report: LedgerAudit, page: LedgerAudit) -> None:
    report.schedules += page.schedules
    report.expected += page.expected
    report.recorded += page.recorded
    for kind, total in page.totals.items():
        kept = getattr(report, kind)
        kept += getattr(page, kind)[: FINDINGS_MAX - len(kept)]
        report.totals[kind] += total
    report.ok = report.ok and page.ok


def fields_of(report: LedgerAudit) -> dict[str, Any]:
    """Write a complete report as JSON."""
    return {name: value for name, value in msgspec.to_builtins(report).items() if name not in _WINDOW}


def tell(out: Output, report: LedgerAudit) -> None:
    """Print the findings, and the verdict in a sentence."""
    findings = [(kind, finding) for kind in report.totals for finding in getattr(report, kind)]
    if findings:
        columns = [
            Column("finding", "bad"),
            Column("schedule", "name"),
            Column("instant"),
            Column("reason", wraps=True),
        ]
        out.table(columns, [(kind, *_row(finding)) for kind, finding in findings])
        out.say()
    out.say(verdict(report), "good" if report.ok else "bad")


def _row(finding: AuditFinding) -> tuple[str, str, str]:
    until = f" … {finding.until} ({finding.count})" if finding.until else ""
    return schedule_label(finding.tenant, finding.schedule), finding.instant + until, finding.reason


def verdict(report: LedgerAudit) -> str:
    """Return the verdict of the audit in one sentence."""
    schedules = count(report.schedules, "schedule")
    if report.ok:
        return (
            f"ok: {schedules}, {count(report.expected, 'instant')} expected, {report.recorded:,} recorded;"
            " no gap, no duplicate, no phantom"
        )
    totals = ", ".join(f"{number:,} {kind}" for kind, number in report.totals.items() if number)
    return f"NOT OK: {schedules}, {report.expected:,} expected, {report.recorded:,} recorded; {totals}"


app = new_command(audit)
