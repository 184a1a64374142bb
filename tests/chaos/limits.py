"""Limits, rates and tenants of the torture test, and the check that they were never exceeded.

Nothing here uses the claim, its counts or the audit: attempts and definitions are compared in plain SQL, and what the
tasks wrote themselves is compared with the largest limit that was ever in force.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from headway.core.errors import StoreError
from headway.core.limits import Limit
from headway.core.tenants import Tenant
from headway.store import Store
from tests.chaos.arena import with_store
from tests.chaos.worker_arena import WorkerArena

REST_S: Final = 0.7
ACCOUNTS: Final = ("account-0", "account-1", "account-2")
TENANTS: Final = ("default", "acme", "globex")
API: Final = "remote-api"
LIMITS: Final[dict[str, dict[str, Any]]] = {
    "account-*": {"concurrency": 2},
    API: {"rate": "8/s"},
    "task:stumble": {"concurrency": 4},
    "tenant:*": {"concurrency": 30, "rate": "200/s", "burst": 60},
    "queue:*": {"concurrency": 60},
}
COMES_AND_GOES: Final = "task:labour"


def put_limits(store: str) -> None:
    """Define the limits and the weights of tenants."""

    async def put(opened: Store) -> None:
        for name, options in LIMITS.items():
            await opened.limits.put(Limit.build(name, **options), author="tests")
        await opened.tenants.put(Tenant.build("acme", weight=3), author="tests")

    with_store(store, put)


def options_of(number: int) -> dict[str, Any]:
    """Return the tenant and the limit of the job with this number."""
    match number % 4:
        case 0:
            limit = {"limit": ACCOUNTS[number // 4 % len(ACCOUNTS)]}
        case 2:
            limit = {"limit": API}
        case _:
            limit = {}
    return {"tenant": TENANTS[number % len(TENANTS)], **limit}


def change_limits(store: str, over: threading.Event) -> int:
    """Lower and raise one limit, put and remove another one, until the end; return how often it succeeded."""
    changed = 0

    for number in itertools.count():

        async def change(opened: Store, number: int = number) -> None:
            await opened.limits.put(Limit.build("account-*", concurrency=1 + number % 3), author="tests")
            if number % 4 == 1:
                await opened.limits.put(Limit.build(COMES_AND_GOES, concurrency=3), author="tests")
            elif number % 4 == 3:
                await opened.limits.remove(COMES_AND_GOES, author="tests")

        if over.wait(REST_S):  # short: how often limits change.
            return changed
        with suppress(StoreError):
            with_store(store, change)
            changed += 1
    raise AssertionError


# The attempts under each name that a limit can count, and the definition that was in force when each one started.
_SPANS: Final = """
with spans as (
  select a.job_id, a.attempt, a.started_at, coalesce(a.ended_at, 9e18) as ended_at, name
  from (
    select job_id, attempt, started_at, ended_at from headway_all_attempts
    union all
    select id, attempt, started_at, null from headway_jobs where lease_until is not null
  ) as a
  join headway_jobs j on j.id = a.job_id
  cross join lateral (
    values ('queue:' || j.queue), ('task:' || j.task), ('tenant:' || j.tenant), (j.limit_key)
  ) as names (name)
  where a.started_at is not null and name <> ''
),
governed as (
  select s.*, d.*
  from spans s
  cross join lateral (
    select name as rule, concurrency, rate, per, burst, at from (
      select distinct on (r.name) r.* from headway_limit_revisions r
      where r.at <= s.started_at
        and (r.name = s.name or (right(r.name, 1) = '*' and starts_with(s.name, left(r.name, -1))
          and (r.name like '%:*') = (s.name ~ '^(queue|task|tenant):')))
      order by r.name, r.revision desc
    ) as defined
    where removed = 0 order by right(name, 1) = '*', length(name) desc limit 1
  ) as d
)
"""
_AT_A_TIME: Final = (
    _SPANS
    + """
select g.name, g.job_id, g.attempt, g.concurrency, count(*) from governed g join spans o on o.name = g.name
where g.concurrency is not null and o.started_at <= g.started_at and o.ended_at > g.started_at
group by g.name, g.job_id, g.attempt, g.concurrency having count(*) > g.concurrency order by 1, 2, 3
"""
)
_IN_A_PERIOD: Final = (
    _SPANS
    + """
select g.name, g.job_id, g.attempt, g.rate, count(*) from governed g join spans o on o.name = g.name
where g.rate is not null and o.started_at between g.at and g.started_at and o.started_at > g.started_at - g.per
group by g.name, g.job_id, g.attempt, g.rate, g.burst having count(*) > g.rate + coalesce(g.burst, 0) order by 1, 2, 3
"""
)


def exceeded(arena: WorkerArena) -> Iterator[str]:
    """Yield the attempts that started although their limit was used up: by the leases and starts of attempts alone."""
    for name, job_id, attempt, most, found in arena.sql(_AT_A_TIME):
        yield f"S8: {name} allows {most} at a time, and attempt {attempt} of {job_id} was number {found}"
    for name, job_id, attempt, most, found in arena.sql(_IN_A_PERIOD):
        yield f"S8: {name} allows {most} starts, and attempt {attempt} of {job_id} was number {found}"


def overlapping(arena: WorkerArena, lines: list[list[str]]) -> Iterator[str]:
    """Yield runs that overlapped beyond the largest limit, by the order of the lines that tasks wrote.

    Only runs whose outcome was accepted are counted: from `begin` to `end` they held a lease. The code of a worker that
    was frozen or killed may go on after its lease, beside the next one; its outcome is never accepted.
    """
    completed = "select j.id, j.attempt, j.limit_key from headway_jobs j where status = 'COMPLETED' and limit_key <> ''"
    keys = {(job_id, str(attempt)): key for job_id, attempt, key in arena.sql(completed)}
    [(most,)] = arena.sql("select max(concurrency) from headway_limit_revisions where name = 'account-*'")
    ended = {(job_id, attempt) for word, job_id, attempt, *_ in lines if word == "end"}
    running: Counter[str] = Counter()
    for word, job_id, attempt, *_ in lines:
        key = keys.get((job_id, attempt), "")
        if key not in ACCOUNTS or (job_id, attempt) not in ended or word not in ("begin", "end"):
            continue
        running[key] += 1 if word == "begin" else -1
        if running[key] > most:
            yield f"S8: {key} allows {most} at a time, and {running[key]} ran when attempt {attempt} of {job_id} began"
