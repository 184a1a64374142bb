"""Every call of the client, written once for those who block and for those who await.

A call is a function that returns steps (see `steps`). `operation` makes a method of it that returns the result,
`listing` one that returns an iterator; on an `AsyncClient` the same methods are to be awaited, or iterated with
`async for`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, overload

from headway.client import follow
from headway.client.follow import Event
from headway.client.progress_bar import draw
from headway.client.requests import (
    Flow,
    Give,
    Request,
    Shape,
    Steps,
    ask,
    body_of,
    duration_text,
    instant_text,
    part,
    query_of,
    read,
    time_text,
)
from headway.client.transport import AwaitingWire, BlockingWire
from headway.core.clock import Clock
from headway.core.errors import (
    AlreadyFinal,
    DuplicateKey,
    InvalidSchedule,
    InvalidTask,
    JobNotFound,
    NotFinal,
    ScheduleNotFound,
    ScheduleOwned,
    TaskNotFound,
)
from headway.core.instants import SECOND, DurationLike, Instant, InstantLike, from_datetime, parse_duration

PAGE: Final = 200

Shapes: TypeAlias = list[Shape]
P = ParamSpec("P")
T = TypeVar("T")
W_co = TypeVar("W_co", bound=BlockingWire | AwaitingWire, covariant=True)


class Group(Generic[W_co]):
    """Some calls, and what carries them out."""

    def __init__(self, wire: W_co) -> None:
        self._wire = wire


class operation(Generic[P, T]):
    """Makes a method of a call that has one result."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._plan = plan
        functools.update_wrapper(self, plan)  # type: ignore[arg-type]

    @overload
    def __get__(self, group: None, owner: object = None) -> "operation[P, T]": ...
    @overload
    def __get__(self, group: Group[BlockingWire], owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AwaitingWire], owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: Group[Any] | None, owner: object = None) -> Any:
        """Bind it to a client."""
        return self if group is None else _bound(self._plan, group, group._wire.run)


class listing(Generic[P, T]):
    """Makes a method of a call that gives one thing after the other."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._plan = plan
        functools.update_wrapper(self, plan)  # type: ignore[arg-type]

    @overload
    def __get__(self, group: None, owner: object = None) -> "listing[P, T]": ...
    @overload
    def __get__(self, group: Group[BlockingWire], owner: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, group: Group[AwaitingWire], owner: object = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, group: Group[Any] | None, owner: object = None) -> Any:
        """Bind it to a client."""
        return self if group is None else _bound(self._plan, group, group._wire.iterate)


def _bound(plan: Callable[..., Any], group: object, carry_out: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(plan)
    def call(*args: Any, **kwargs: Any) -> Any:
        return carry_out(plan(group, *args, **kwargs))

    return call


# --- asking


def _ask(request: Request) -> Steps[Any]:
    return read((yield from ask(request)))


def _get(path: str, query: Mapping[str, Any] | None = None, **meaning: Any) -> Steps[Any]:
    return _ask(Request(method="GET", path=path, query=query_of(query or {}), **meaning))


def _post(path: str, body: Mapping[str, Any] | None = None, **meaning: Any) -> Steps[Any]:
    return _ask(Request(method="POST", path=path, body=None if body is None else body_of(body), **meaning))


def _delete(path: str, **meaning: Any) -> Steps[Any]:
    return _ask(Request(method="DELETE", path=path, **meaning))


def _pages(path: str, query: Mapping[str, Any], limit: int | None, **meaning: Any) -> Flow[Shape]:
    """Give what a list has, from the cursor in the query on, page by page, as far as the caller goes on."""
    left, cursor = limit, query.get("cursor")
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = yield from _get(path, {**query, "limit": size, "cursor": cursor}, **meaning)
        items: list[Shape] = page["items"]
        for item in items:
            yield Give(item)
        cursor, left = page["next_cursor"], None if left is None else left - len(items)
        if cursor is None:
            return


# --- jobs


def new_key() -> str:
    """Make a key that nobody else makes, so that a job whose answer was lost is not made twice."""
    return _KEYS.new_id("auto")


_KEYS: Final = Clock()


def _job_body(
    task: str,
    args: Mapping[str, Any] | None = None,
    *,
    delay: DurationLike | None = None,
    at: InstantLike | None = None,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    tenant: str | None = None,
    callback_url: str | None = None,
    max_attempts: int | None = None,
    timeout: DurationLike | None = None,
    expires: DurationLike | None = None,
    tags: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Shape:
    body = {
        "type": task,
        "args": dict(args or {}),
        "delay": duration_text(delay, "delay"),
        "run_at": instant_text(at, "at"),
        "key": new_key() if key is None else key,
        "queue": queue,
        "priority": priority,
        "tenant": tenant,
        "callback_url": callback_url,
        "max_attempts": max_attempts,
        "timeout": duration_text(timeout, "timeout"),
        "expires": duration_text(expires, "expires"),
        "tags": None if tags is None else list(tags),
        "metadata": None if metadata is None else dict(metadata),
    }
    return {name: value for name, value in body.items() if value is not None}


class JobFilters(TypedDict, total=False):
    """Which jobs; the names are those of the API."""

    status: str
    type: str
    queue: str
    tenant: str
    schedule: str
    batch: str
    tag: str
    key: str
    created_after: InstantLike
    created_before: InstantLike
    finished_after: InstantLike
    finished_before: InstantLike
    rerun_of: str
    q: str


class Schedules(Group[W_co]):
    """Schedules: look at them and steer them. A name is one of the token's tenant, or of `tenant` if it sees all."""

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
        """Iterate over schedules by name; with `recent` each has so many of its newest decisions."""
        query = {"owner": owner, "tenant": tenant, "q": q, "state": state, "recent": recent, "cursor": after}
        return _pages("/api/schedules", query, limit)

    @operation
    def get(self, name: str, *, tenant: str | None = None) -> Steps[Shape]:
        """Return one schedule, and what comes next."""
        return _get(_schedule(name), {"tenant": tenant}, missing=ScheduleNotFound)

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

        With the revision that was seen last as `if_match` it changes nothing that somebody else has changed since
        (`ScheduleChanged`). With `dry_run` it only says what would change.
        """
        query = {"dry_run": dry_run or None, "owner": owner or None, "take_over": take_over or None, "tenant": tenant}
        return _put_schedule(name, definition, if_match, query)

    @operation
    def remove(self, name: str, *, owner: str | None = None, tenant: str | None = None) -> Steps[Shape]:
        """Remove a schedule; what was decided stays in the ledger."""
        query = query_of({"owner": owner or None, "tenant": tenant})
        return _ask(Request(method="DELETE", path=_schedule(name), query=query, missing=ScheduleNotFound))

    @operation
    def pause(
        self, name: str, *, reason: str = "", until: InstantLike | None = None, tenant: str | None = None
    ) -> Steps[Shape]:
        """Stop a schedule, perhaps until a time or for so long (`2h`); its instants are recorded as paused."""
        body = {"reason": reason, "until": time_text(until)}
        return _post(_schedule(name, "pause"), body, query=query_of({"tenant": tenant}), **_SCHEDULE)

    @operation
    def resume(self, name: str, *, tenant: str | None = None) -> Steps[Shape]:
        """Let a paused schedule run again, from now on."""
        return _post(_schedule(name, "resume"), query=query_of({"tenant": tenant}), **_SCHEDULE)

    @operation
    def trigger(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Steps[Shape]:
        """Enqueue a job of the schedule now, where its overlap rule has room for one; else return the one there is.

        The `outcome` beside what the job says is then `not started`, and `message` says why.
        """
        body = {"args": None if args is None else dict(args), "key": new_key() if key is None else key}
        query, meaning = query_of({"tenant": tenant}), {"is_keyed": True, "conflict": DuplicateKey, **_SCHEDULE}
        return _post(_schedule(name, "trigger"), body, query=query, **meaning)

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
        return _post(_schedule(name, "backfill"), body, query=query, is_keyed=is_keyed, **_SCHEDULE)

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
        return _items(_get(_schedule(name, "preview"), query, **_SCHEDULE))

    @operation
    def preview_rule(self, rule: Mapping[str, Any], n: int = 5) -> Steps[Shapes]:
        """Return the next instants of a rule that is no schedule: `{"cron": "30 2 * * *", "tz": "Europe/Berlin"}`."""
        return _items(_post("/api/schedules/preview", {**rule, "n": n}, is_keyed=True, **_SCHEDULE))

    @operation
    def calendar(self, name: str, year: int | None = None, *, tenant: str | None = None) -> Steps[Shape]:
        """Return what was decided for a schedule in a year, and how its jobs ended, by days of its zone."""
        return _get(_schedule(name, "calendar"), {"year": year, "tenant": tenant}, **_SCHEDULE)

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
        """Iterate over what was decided for a schedule, newest first."""
        query = {"since": instant_text(since), "before": instant_text(before), "tenant": tenant}
        return _pages(_schedule(name, "occurrences"), query, limit, missing=ScheduleNotFound)

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
        """Iterate over what was decided for a schedule and what was started by hand, newest first."""
        query = {"since": instant_text(since), "before": instant_text(before), "tenant": tenant}
        return _pages(_schedule(name, "runs"), query, limit, missing=ScheduleNotFound)


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
    return _ask(request)


def _items(steps: Steps[Any]) -> Steps[Shapes]:
    answer = yield from steps
    items: Shapes = answer["items"] if isinstance(answer, dict) else answer
    return items


class Queues(Group[W_co]):
    """Queues: what waits where, and their taps."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over the queues in which anything waits or runs, and those that are paused."""
        return _pages("/api/queues", {}, limit)

    @operation
    def pause(self, name: str, *, reason: str = "") -> Steps[Shape]:
        """Take nothing more from a queue; what runs goes on, and what comes waits."""
        return _post(f"/api/queues/{part(name)}/pause", {"reason": reason}, invalid=InvalidTask)

    @operation
    def resume(self, name: str) -> Steps[Shape]:
        """Take from a queue again."""
        return _post(f"/api/queues/{part(name)}/resume", invalid=InvalidTask)


class Workers(Group[W_co]):
    """Workers: who runs jobs."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over the workers that are alive."""
        return _pages("/api/workers", {}, limit)

    @operation
    def drain(self, name: str) -> Steps[Shape]:
        """Have a worker, by name or id, take no more jobs and leave when it has finished."""
        return _post(f"/api/workers/{part(name)}/drain")


class Dead(Group[W_co]):
    """Dead letters: jobs that have failed for good and that nobody has looked at yet."""

    @listing
    def list(
        self,
        *,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        error: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over dead letters, newest first; `error` is a type, or an error whose numbers and ids may differ."""
        query = {"type": type, "queue": queue, "tenant": tenant, "schedule": schedule, "error": error, "cursor": before}
        return _pages("/api/dead", query, limit)

    @operation
    def retry(self, job_id: str) -> Steps[Shape]:
        """Run a dead letter once more, as a new job."""
        return _post(f"/api/dead/{part(job_id)}/retry", missing=JobNotFound, conflict=NotFinal)

    @operation
    def drop(self, job_id: str) -> Steps[Shape]:
        """Take a dead letter off the list; the job stays in the history."""
        return _post(f"/api/dead/{part(job_id)}/drop", missing=JobNotFound, conflict=NotFinal)

    @operation
    def retry_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        error: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> Steps[Shape]:
        """Run dead letters once more, oldest first: those with these ids, those that match, or everything."""
        filters = {"type": type, "queue": queue, "tenant": tenant, "schedule": schedule, "error": error}
        return _letters("retry", ids, filters, everything, dry_run, limit)

    @operation
    def drop_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        error: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> Steps[Shape]:
        """Take dead letters off the list: those with these ids, those that match, or everything."""
        filters = {"type": type, "queue": queue, "tenant": tenant, "schedule": schedule, "error": error}
        return _letters("drop", ids, filters, everything, dry_run, limit)


def _letters(
    verb: str,
    ids: Iterable[str] | None,
    filters: Mapping[str, str | None],
    everything: bool,
    dry_run: bool,
    limit: int | None,
) -> Steps[Shape]:
    which = {"ids": None if ids is None else [*ids], **filters, "all": everything}
    return _post(f"/api/dead/{verb}", {**which, "dry_run": dry_run, "limit": limit}, missing=JobNotFound)


class Tokens(Group[W_co]):
    """Tokens: who may ask."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over tokens; their values are not kept anywhere."""
        return _pages("/api/tokens", {}, limit)

    @operation
    def create(
        self, name: str, *, role: str, tenant: str | None = None, expires_in: DurationLike | None = None
    ) -> Steps[Shape]:
        """Make a token; its value is in the answer, this once."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in": duration_text(expires_in, "expires_in")}
        return _post("/api/tokens", body)

    @operation
    def revoke(self, token_id: str) -> Steps[Shape]:
        """Revoke a token; it is refused within five seconds."""
        return _delete(f"/api/tokens/{part(token_id)}")


class Webhooks(Group[W_co]):
    """Webhooks: who is told when jobs end, and what was told."""

    @listing
    def list(self, *, limit: int | None = None) -> Flow[Shape]:
        """Iterate over webhooks."""
        return _pages("/api/webhooks", {}, limit)

    @operation
    def get(self, webhook_id: str) -> Steps[Shape]:
        """Return one webhook."""
        return _get(_webhook(webhook_id))

    @operation
    def create(
        self, url: str, *, events: Iterable[str] | None = None, note: str = "", tenant: str | None = None
    ) -> Steps[Shape]:
        """Have a URL told when jobs end; the secret that signs is in the answer."""
        told = None if events is None else [*events]
        return _post("/api/webhooks", {"url": url, "events": told, "note": note, "tenant": tenant})

    @operation
    def change(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        note: str | None = None,
        enabled: bool | None = None,
    ) -> Steps[Shape]:
        """Change a webhook; what is left out stays."""
        told = None if events is None else [*events]
        body = body_of({"url": url, "events": told, "note": note, "enabled": enabled})
        return _ask(Request(method="PUT", path=_webhook(webhook_id), body=body))

    @operation
    def remove(self, webhook_id: str) -> Steps[Shape]:
        """Remove a webhook."""
        return _delete(_webhook(webhook_id))

    @operation
    def rotate(self, webhook_id: str, *, keep: DurationLike = "24h") -> Steps[Shape]:
        """Make a new secret; the old one goes on signing beside it for so long."""
        return _post(_webhook(webhook_id, "rotate"), {"keep": duration_text(keep, "keep")})

    @operation
    def test(self, webhook_id: str, *, url: str | None = None) -> Steps[Shape]:
        """Send a test message, once, and say what came of it."""
        return _post(_webhook(webhook_id, "test"), {"url": url})

    @listing
    def deliveries(
        self,
        *,
        webhook: str | None = None,
        job: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over what was told to whom, newest first."""
        query = {"endpoint": webhook, "job": job, "status": status, "cursor": before}
        return _pages("/api/deliveries", query, limit)

    @operation
    def delivery(self, delivery_id: str) -> Steps[Shape]:
        """Return one delivery with its last tries."""
        return _get(f"/api/deliveries/{part(delivery_id)}")

    @operation
    def replay(self, delivery_id: str) -> Steps[Shape]:
        """Send a message again, under the same id."""
        return _post(f"/api/deliveries/{part(delivery_id)}/replay")


def _webhook(webhook_id: str, verb: str | None = None) -> str:
    return f"/api/webhooks/{part(webhook_id)}" + (f"/{verb}" if verb else "")


class Calls(Group[W_co]):
    """All calls."""

    def __init__(self, wire: W_co) -> None:
        super().__init__(wire)
        self.schedules = Schedules(wire)
        self.queues = Queues(wire)
        self.workers = Workers(wire)
        self.dead = Dead(wire)
        self.tokens = Tokens(wire)
        self.webhooks = Webhooks(wire)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wire.address.base!r})"

    # --- jobs

    @operation
    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        delay: DurationLike | None = None,
        at: InstantLike | None = None,
        key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        callback_url: str | None = None,
        max_attempts: int | None = None,
        timeout: DurationLike | None = None,
        expires: DurationLike | None = None,
        tags: Iterable[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Steps[Shape]:
        """Enqueue a job; it is durable when this returns. Without a key it gets one: no try makes a second job."""
        body = _job_body(
            task,
            args,
            delay=delay,
            at=at,
            key=key,
            queue=queue,
            priority=priority,
            tenant=tenant,
            callback_url=callback_url,
            max_attempts=max_attempts,
            timeout=timeout,
            expires=expires,
            tags=tags,
            metadata=metadata,
        )
        return _enqueue(body)

    @operation
    def enqueue_many(self, jobs: Iterable[Mapping[str, Any]]) -> Steps[Shapes]:
        """Enqueue many jobs, all or none: `{"task": …, "args": {…}, "queue": …}` with the options of `enqueue`."""
        return _enqueue_many([_job_body(**job) for job in jobs])

    @operation
    def job(self, job_id: str) -> Steps[Shape]:
        """Return a job, and why it is where it is."""
        return _get(_job(job_id), missing=JobNotFound)

    @listing
    def jobs(
        self,
        *,
        status: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        batch: str | None = None,
        tag: str | None = None,
        key: str | None = None,
        created_after: InstantLike | None = None,
        created_before: InstantLike | None = None,
        finished_after: InstantLike | None = None,
        finished_before: InstantLike | None = None,
        rerun_of: str | None = None,
        q: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Flow[Shape]:
        """Iterate over jobs, newest first; pages are read as they are needed."""
        query = {
            "status": status,
            "type": type,
            "queue": queue,
            "tenant": tenant,
            "schedule": schedule,
            "batch": batch,
            "tag": tag,
            "key": key,
            "created_after": instant_text(created_after, "created_after"),
            "created_before": instant_text(created_before, "created_before"),
            "finished_after": instant_text(finished_after, "finished_after"),
            "finished_before": instant_text(finished_before, "finished_before"),
            "rerun_of": rerun_of,
            "q": q,
            "cursor": before,
        }
        return _pages("/api/jobs", query, limit)

    @operation
    def count(self, /, **filters: Unpack[JobFilters]) -> Steps[Shape]:
        """Count the jobs that match, with the filters of `jobs`: `{"count": 37, "is_exact": True}`."""
        return _get("/api/jobs/count", _job_filters(filters), missing=JobNotFound)

    @operation
    def retry_many(
        self,
        /,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        reason: str = "",
        **filters: Unpack[JobFilters],
    ) -> Steps[Shape]:
        """Run many jobs that have ended once more, oldest first: those with these ids, or those that match.

        The filters are those of `jobs`. What was retried already is left alone; with `dry_run` it only counts.
        """
        return _many("retry", ids, filters, dry_run, limit, reason)

    @operation
    def cancel_many(
        self,
        /,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        reason: str = "",
        **filters: Unpack[JobFilters],
    ) -> Steps[Shape]:
        """End many jobs, or have them stop, oldest first: those with these ids, or those that match."""
        return _many("cancel", ids, filters, dry_run, limit, reason)

    @operation
    def latest(
        self, type: str, *, tenant: str | None = None, key: str | None = None, status: str | None = None
    ) -> Steps[Shape]:
        """Return the newest job of a kind, such as the latest report of a tenant, or the latest COMPLETED one."""
        query = {"type": type, "tenant": tenant, "key": key, "status": status}
        return _get("/api/jobs/latest", query, missing=JobNotFound)

    @operation
    def cancel(self, job_id: str, *, reason: str = "") -> Steps[Shape]:
        """End a job that has not begun; ask one that runs to stop."""
        return _post(_job(job_id, "cancel"), {"reason": reason}, missing=JobNotFound, conflict=AlreadyFinal)

    @operation
    def retry(self, job_id: str, *, args: Mapping[str, Any] | None = None) -> Steps[Shape]:
        """Run a job that has ended once more, as a new job that is linked to it, perhaps with other arguments."""
        body = None if args is None else {"args": dict(args)}
        return _post(_job(job_id, "retry"), body, missing=JobNotFound, conflict=NotFinal, invalid=InvalidTask)

    @operation
    def why(self, job_id: str) -> Steps[Shape]:
        """Say why a job is where it is, with the evidence."""
        return _get(_job(job_id, "why"), missing=JobNotFound)

    @operation
    def attempts(self, job_id: str) -> Steps[Shapes]:
        """Return the attempts of a job that have ended."""
        return _items(_get(_job(job_id, "attempts"), missing=JobNotFound))

    @operation
    def history(self, job_id: str) -> Steps[Shapes]:
        """Return what has happened to a job, oldest first."""
        return _items(_get(_job(job_id, "history"), missing=JobNotFound))

    @listing
    def log(self, job_id: str, *, after: int = 0, limit: int | None = None, newest_first: bool = False) -> Flow[Shape]:
        """Iterate over the lines that a job has logged, oldest first, from the one behind number `after` on.

        With `newest_first` the other way round: then `after` is the number of the line before which to begin.
        """
        query = {"cursor": after or None, "order": "desc" if newest_first else None}
        return _pages(_job(job_id, "log"), query, limit, missing=JobNotFound)

    @operation
    def wait(self, job_id: str, timeout: DurationLike | None = None) -> Steps[Any]:
        """Wait until a job has ended; return its result, or raise `JobFailed` (`TimeoutError` when time is up)."""
        return follow.wait(job_id, timeout)

    @operation
    def changed(self, job_id: str, version: int, wait: DurationLike = "25s") -> Steps[Shape]:
        """Return a job as soon as it has another version than this one, or as it is when the time is up."""
        return follow.long_poll(job_id, version, parse_duration(wait, what="wait") / SECOND)

    @listing
    def watch(self, job_id: str) -> Flow[Event]:
        """Iterate over what happens to a job until it has ended; survives cut connections and restarted servers."""
        return follow.watch(job_id)

    @operation
    def progress(self, job_id: str) -> Steps[Shape]:
        """Draw the progress of a job on the terminal until it has ended; return the job."""
        return draw(job_id)

    @listing
    def stream(
        self,
        *,
        status: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        tag: str | None = None,
        key: str | None = None,
    ) -> Flow[Event]:
        """Iterate over what happens to all jobs that match, without end.

        An event `resync` says that something may have been missed: read anew what you want to know.
        """
        query = {"status": status, "type": type, "queue": queue, "tenant": tenant, "schedule": schedule}
        return follow.stream({**query, "tag": tag, "key": key})

    # --- everything else

    @operation
    def nodes(self, *, gone: bool = False) -> Steps[Shapes]:
        """Return the processes that are alive; with `gone` also those that died without a word within the last day."""
        return _items(_get("/api/nodes", {"gone": gone or None, "limit": PAGE}))

    @operation
    def stats(self) -> Steps[Shape]:
        """Return who leads, who works, what waits, what is late, and what is not as it should be."""
        return _get("/api/stats")

    @operation
    def series(self, window: str = "1h", *, task: str | None = None, queue: str | None = None) -> Steps[Shape]:
        """Return how jobs ended over the last `1h`, `6h` or `24h`, as points for a chart."""
        return _get("/api/stats/series", {"window": window, "task": task, "queue": queue})

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
        return _items(
            _get("/api/failures", {**query, "finished_after": instant_text(finished_after, "finished_after")})
        )

    @operation
    def alerts(self) -> Steps[Shapes]:
        """Return what needs somebody."""
        return _items(_get("/api/alerts"))

    @operation
    def audit(
        self,
        *,
        schedule: str | None = None,
        tenant: str | None = None,
        since: InstantLike | None = None,
        until: InstantLike | None = None,
    ) -> Steps[Shape]:
        """Compare the expected instants of every schedule with the recorded ones, of the last day unless you say."""
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
        return _pages("/api/audit-log", {**query, "since": instant_text(since), "until": instant_text(until)}, limit)

    trail = audit_log  # The old name.

    @operation
    def me(self) -> Steps[Shape]:
        """Return the name, tenant and role of the token."""
        return _get("/api/me")

    @operation
    def time(self) -> Steps[Instant | None]:
        """Return the server's time, cut to the second; None when it does not tell."""
        return _time()


_TIMES: Final = ("created_after", "created_before", "finished_after", "finished_before")


def _job_filters(filters: Mapping[str, Any]) -> Shape:
    return {name: instant_text(value, name) if name in _TIMES else value for name, value in filters.items()}


def _many(
    verb: str, ids: Iterable[str] | None, filters: Mapping[str, Any], dry_run: bool, limit: int | None, reason: str
) -> Steps[Shape]:
    chosen = None if ids is not None and not filters else _job_filters(filters)
    body = {"filter": chosen, "ids": None if ids is None else [*ids], "dry_run": dry_run, "limit": limit}
    # With ids it is the same twice; with a filter and a limit the second time would take the next ones.
    return _post(f"/api/jobs/{verb}", {**body, "reason": reason}, is_keyed=dry_run or ids is not None)


def _job(job_id: str, verb: str | None = None) -> str:
    return f"/api/jobs/{part(job_id)}" + (f"/{verb}" if verb else "")


def _enqueue(body: Shape) -> Steps[Shape]:
    job: Shape = yield from _post(
        "/api/jobs", body, is_keyed=True, missing=TaskNotFound, conflict=DuplicateKey, invalid=InvalidTask
    )
    return job


def _enqueue_many(jobs: Shapes) -> Steps[Shapes]:
    if not jobs:
        return []
    answer = yield from _post(
        "/api/jobs/bulk",
        {"jobs": jobs},
        is_keyed=True,
        missing=TaskNotFound,
        conflict=DuplicateKey,
        invalid=InvalidTask,
    )
    items: Shapes = answer["items"]
    return items


def _time() -> Steps[Instant | None]:
    reply = yield from ask(Request(method="GET", path="/api/me"))
    try:
        return from_datetime(parsedate_to_datetime(reply.headers["date"]).replace(tzinfo=UTC))
    except (KeyError, ValueError):
        return None


def _audit(query: Mapping[str, Any]) -> Steps[Shape]:
    """Put the pages of an audit together; all are of the time that the first one was of."""
    report: Shape | None = None
    cursor = None
    while True:
        page: Shape = yield from _get("/api/audit", {**query, "cursor": cursor}, missing=ScheduleNotFound)
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
