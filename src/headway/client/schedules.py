"""The calls on schedules."""

from collections.abc import Mapping
from typing import Any, Final

from headway.client.binding import Shapes, W_co, get, items_of, listing, operation, pages, post, send
from headway.client.declared_calls import DeclaredSchedules
from headway.client.jobs import new_key
from headway.client.requests import (
    Flow,
    Request,
    Shape,
    Steps,
    body_of,
    instant_text,
    part,
    query_of,
    time_text,
)
from headway.core.errors import (
    DuplicateKey,
    InvalidSchedule,
    ScheduleNotFound,
    ScheduleOwned,
)
from headway.core.instants import InstantLike


class Schedules(DeclaredSchedules[W_co]):
    """Read and control schedules. A name belongs to the token's tenant, or to `tenant` if the token sees all."""

    @listing
    def list(
        self,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        q: str | None = None,
        state: str | None = None,
        recent: int | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over schedules by name; with `recent` each has this many of its newest decisions."""
        query = {"owner": owner, "tenant": tenant, "q": q, "state": state, "recent": recent, "cursor": after}
        return pages("/api/schedules", query, limit)

    @operation
    def put(
        self,
        name: str,
        definition: Mapping[str, Any],
        *,
        if_match: int | None = None,
        dry_run: bool = False,
        owner: str | None = None,
        take_over: bool = False,
        tenant: str | None = None,
    ) -> Steps[Shape]:
        """Create or change a schedule: `{"task": "report", "cron": "0 6 * * *", "tz": "Europe/Berlin", …}`.

        With `if_match`, the revision that was read, it raises `ScheduleChanged` if the schedule has changed since. With
        `dry_run` it only returns what would change.
        """
        query = {"dry_run": dry_run or None, "owner": owner or None, "take_over": take_over or None, "tenant": tenant}
        return _put_schedule(name, definition, if_match, query)

    @operation
    def remove(self, name: str, *, owner: str | None = None, tenant: str | None = None) -> Steps[Shape]:
        """Remove a schedule; its decisions stay in the ledger."""
        query = query_of({"owner": owner or None, "tenant": tenant})
        return send(Request(method="DELETE", path=_schedule(name), query=query, missing=ScheduleNotFound))

    @operation
    def pause(
        self, name: str, *, reason: str = "", until: InstantLike | None = None, tenant: str | None = None
    ) -> Steps[Shape]:
        """Pause a schedule, perhaps until a time or for a duration (`2h`); its instants are recorded as paused."""
        body = {"reason": reason, "until": time_text(until)}
        return post(_schedule(name, "pause"), body, query=query_of({"tenant": tenant}), **_SCHEDULE)

    @operation
    def trigger(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Steps[Shape]:
        """Enqueue a job of the schedule now, if its overlap rule allows that; else return the live job.

        In that case the `outcome` in the result is `not started`, and `message` says why.
        """
        body = {"args": None if args is None else dict(args), "key": new_key() if key is None else key}
        query, meaning = query_of({"tenant": tenant}), {"is_keyed": True, "conflict": DuplicateKey, **_SCHEDULE}
        return post(_schedule(name, "trigger"), body, query=query, **meaning)

    @operation
    def backfill(
        self,
        name: str,
        first: InstantLike,
        last: InstantLike,
        *,
        again: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> Steps[Shape]:
        """Enqueue a job for each past instant from `first` to `last` that has not fired."""
        body = {"from": time_text(first), "to": time_text(last), "again": again, "dry_run": dry_run, "limit": limit}
        query, is_keyed = query_of({"tenant": tenant}), dry_run or not again
        return post(_schedule(name, "backfill"), body, query=query, is_keyed=is_keyed, **_SCHEDULE)

    @operation
    def preview(
        self,
        name: str,
        n: int = 5,
        *,
        since: InstantLike | None = None,
        tz: str | None = None,
        tenant: str | None = None,
    ) -> Steps[Shapes]:
        """Return the next instants of a schedule."""
        query = {"n": n, "from": time_text(since), "tz": tz, "tenant": tenant}
        return items_of(get(_schedule(name, "preview"), query, **_SCHEDULE))

    @operation
    def preview_rule(self, rule: Mapping[str, Any], n: int = 5) -> Steps[Shapes]:
        """Return the next instants of a trigger without a schedule: `{"cron": "30 2 * * *", "tz": "Europe/Berlin"}`."""
        return items_of(post("/api/schedules/preview", {**rule, "n": n}, is_keyed=True, **_SCHEDULE))

    @operation
    def calendar(self, name: str, year: int | None = None, *, tenant: str | None = None) -> Steps[Shape]:
        """Return the decisions of a year and the outcomes of their jobs, by day in the schedule's time zone."""
        return get(_schedule(name, "calendar"), {"year": year, "tenant": tenant}, **_SCHEDULE)

    @listing
    def occurrences(
        self,
        name: str,
        *,
        since: InstantLike | None = None,
        before: InstantLike | None = None,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> Flow[Shape]:
        """Iterate over the decisions of a schedule, newest first."""
        query = {"since": instant_text(since), "before": instant_text(before), "tenant": tenant}
        return pages(_schedule(name, "occurrences"), query, limit, missing=ScheduleNotFound)

    @listing
    def runs(
        self,
        name: str,
        *,
        since: InstantLike | None = None,
        before: InstantLike | None = None,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> Flow[Shape]:
        """Iterate over the decisions and the manual runs of a schedule, newest first."""
        query = {"since": instant_text(since), "before": instant_text(before), "tenant": tenant}
        return pages(_schedule(name, "runs"), query, limit, missing=ScheduleNotFound)


_SCHEDULE: Final[Mapping[str, Any]] = {"missing": ScheduleNotFound, "invalid": InvalidSchedule}


def _schedule(name: str, verb: str | None = None) -> str:
    return f"/api/schedules/{part(name)}" + (f"/{verb}" if verb else "")


def _put_schedule(
    name: str, definition: Mapping[str, Any], if_match: int | None, query: Mapping[str, Any]
) -> Steps[Shape]:
    request = Request(
        method="PUT",
        path=_schedule(name),
        query=query_of(query),
        body=body_of(definition),
        headers={} if if_match is None else {"If-Match": f'"{if_match}"'},
        conflict=ScheduleOwned,
        invalid=InvalidSchedule,
    )
    return send(request)
