"""All calls of the client."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from headway.client.binding import PAGE, Shapes, W_co, get, items_of, listing, operation, pages
from headway.client.declared_calls import Limits, Queues, Tenants
from headway.client.jobs import JobCalls
from headway.client.operators import Batches, Dead, Tokens, Webhooks, Workers
from headway.client.requests import (
    Flow,
    Request,
    Shape,
    Steps,
    ask,
    instant_text,
)
from headway.client.schedules import Schedules
from headway.core.errors import (
    ScheduleNotFound,
)
from headway.core.instants import Instant, InstantLike, from_datetime


class Calls(JobCalls[W_co]):
    """All calls."""

    def __init__(self, wire: W_co) -> None:
        super().__init__(wire)
        self.schedules = Schedules(wire)
        self.queues = Queues(wire)
        self.batches = Batches(wire)
        self.limits = Limits(wire)
        self.tenants = Tenants(wire)
        self.workers = Workers(wire)
        self.dead = Dead(wire)
        self.tokens = Tokens(wire)
        self.webhooks = Webhooks(wire)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wire.address.base!r})"

    @operation
    def nodes(self, *, gone: bool = False) -> Steps[Shapes]:
        """Return the live processes; with `gone` also those that died without signing off within the last day."""
        return items_of(get("/api/nodes", {"gone": gone or None, "limit": PAGE}))

    @operation
    def stats(self) -> Steps[Shape]:
        """Return the statistics: leader, workers, queues, schedules, dead letters and faults."""
        return get("/api/stats")

    @operation
    def series(self, window: str = "1h", *, task: str | None = None, queue: str | None = None) -> Steps[Shape]:
        """Return how jobs ended over the last `1h`, `6h` or `24h`, as points for a chart."""
        return get("/api/stats/series", {"window": window, "task": task, "queue": queue})

    @operation
    def failures(
        self,
        *,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        finished_after: InstantLike | None = None,
        limit: int | None = None,
    ) -> Steps[Shapes]:
        """Return dead letters counted by task and error, most first; with `finished_after` all that failed since."""
        query = {"type": type, "queue": queue, "tenant": tenant, "schedule": schedule, "limit": limit}
        return items_of(
            get("/api/failures", {**query, "finished_after": instant_text(finished_after, "finished_after")})
        )

    @operation
    def alerts(self) -> Steps[Shapes]:
        """Return the alerts: what needs an operator."""
        return items_of(get("/api/alerts"))

    @operation
    def audit(
        self,
        *,
        schedule: str | None = None,
        tenant: str | None = None,
        since: InstantLike | None = None,
        until: InstantLike | None = None,
    ) -> Steps[Shape]:
        """Compare the expected instants of every schedule with the recorded ones; by default those of the last day."""
        window = {"since": instant_text(since), "until": instant_text(until)}
        return _audit({"schedule": schedule, "tenant": tenant, **window})

    @listing
    def audit_log(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: InstantLike | None = None,
        until: InstantLike | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over the audit log, newest entries first."""
        query = {"actor": actor, "action": action, "target": target}
        return pages("/api/audit-log", {**query, "since": instant_text(since), "until": instant_text(until)}, limit)

    trail = audit_log  # The old name.

    @operation
    def me(self) -> Steps[Shape]:
        """Return the name, tenant and role of the token."""
        return get("/api/me")

    @operation
    def time(self) -> Steps[Instant | None]:
        """Return the server's time, in whole seconds; None if the response has none."""
        return _time()


def _time() -> Steps[Instant | None]:
    reply = yield from ask(Request(method="GET", path="/api/me"))
    try:
        return from_datetime(parsedate_to_datetime(reply.headers["date"]).replace(tzinfo=UTC))
    except (KeyError, ValueError):
        return None


def _audit(query: Mapping[str, Any]) -> Steps[Shape]:
    """Join the pages of an audit; all cover the period of the first one."""
    report: Shape | None = None
    cursor = None
    while True:
        page: Shape = yield from get("/api/audit", {**query, "cursor": cursor}, missing=ScheduleNotFound)
        cursor = page.pop("next_cursor")
        if report is None:
            report, query = page, {**query, "since": page["since"], "until": page["until"]}
        else:
            for name in ("schedules", "expected", "recorded"):
                report[name] += page[name]
            for kind, total in page["totals"].items():
                report[kind] += page[kind]
                report["totals"][kind] += total
            report["ok"] = report["ok"] and page["ok"]
        if cursor is None:
            return report
