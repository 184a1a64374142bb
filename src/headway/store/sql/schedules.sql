-- Schedules and their ledger. A decision is written with the advance of its schedule, in one transaction.

-- name: due
-- Find schedules with undecided instants, the oldest first, and the time by which to decide them. `is true` keeps
-- the shards a filter: a join would lose the order of the index, and all due schedules would be sorted every time.
select *, {now} as now from headway_schedules
where next_at <= {now} and (cast(slot % :shards as text) in {list shard_ids}) is true
order by next_at, name
limit :limit;

-- name: next_due
-- Find when the next decision is due.
select next_at, {now} as now from headway_schedules
where next_at is not null and (cast(slot % :shards as text) in {list shard_ids}) is true
order by next_at
limit 1;

-- name: live_jobs
-- Find the jobs of these schedules that have not ended.
select j.schedule, j.id, j.status, j.blocked_by from {rows names as r (name text)}
join headway_jobs j on j.schedule = r.name and j.schedule is not null and j.finished_at is null
order by j.id;

-- name: advance
-- Advance schedules past the decided instants; one that was changed meanwhile is not returned.
update headway_schedules
set decided_through = r.to_decided_through, next_at = r.to_next_at, pauses = r.to_pauses, attention = null,
  version = {next version}, updated_at = {now}
from {rows plans as r (schedule text, seen_version bigint, to_decided_through bigint, to_next_at bigint,
  to_pauses text)}
where headway_schedules.name = r.schedule and headway_schedules.version = r.seen_version
returning name;

-- name: record
-- Insert decisions into the ledger. The primary key rejects a second one for the same instant.
insert into headway_occurrences (schedule, instant, until, count, outcome, reason, decided_at, revision, token, node,
  job_id)
select r.schedule, r.instant, r.until, r.count, r.outcome, r.reason, {now}, r.revision, r.token, r.node, r.job_id
from {rows occurrences as r (schedule text, instant bigint, until bigint, count bigint, outcome text, reason text,
  revision integer, token bigint, node text, job_id text)}
where true;

-- name: hold
-- Set aside a schedule that cannot be planned, with the reason.
update headway_schedules
set next_at = {now} + :pause, attention = :attention, version = {next version}, updated_at = {now}
where name = :key and version = :version
returning name;

-- name: follow
-- Fixed delay: the next instant is the end of the last job plus the delay; none when that is past the schedule's end.
update headway_schedules
set next_at = case when ends_at is null or {now} + delay <= ends_at then {now} + delay end,
  version = {next version}, updated_at = {now}
where name in {list names} and delay is not null and removed_at is null and (next_at is null or next_at > {now})
  and not exists (
    select 1 from headway_jobs j where j.schedule = headway_schedules.name and j.finished_at is null
  )
returning name, {notify_schedules};

-- name: count_failures
-- Count consecutive failures of schedules; a success resets the count, and a cancelled job does not change it.
update headway_schedules
set failing = r.failed + case when r.succeeded = 1 then 0 else failing end
from {rows ends as r (schedule text, failed integer, succeeded integer)}
where headway_schedules.name = r.schedule and (r.failed > 0 or headway_schedules.failing <> 0)
returning name;

-- name: stranded
-- Fixed delay: find schedules that wait for a job that is gone.
select name from headway_schedules as s
where delay is not null and next_at is null and removed_at is null
  and (paused_until is null or paused_until <= {now}) and (ends_at is null or {now} + delay <= ends_at)
  and not exists (select 1 from headway_jobs j where j.schedule = s.name and j.finished_at is null)
limit :limit;

-- name: schedule
-- Read one schedule of a tenant.
select *, {now} as now from headway_schedules where tenant {bytewise} = :tenant and {name_in name} = :name;

-- name: schedule_locked
-- Read and lock one schedule of a tenant.
select *, {now} as now from headway_schedules where tenant {bytewise} = :tenant and {name_in name} = :name {lock};

-- name: schedules_locked
-- Read and lock these schedules.
select * from headway_schedules
where name in (
  select s.name from {rows names as r (tenant text, name text)}
  join headway_schedules s on s.tenant {bytewise} = r.tenant and {name_in s.name} = r.name
)
order by name {lock};

-- name: schedules_named
-- Read these schedules.
select s.* from {rows names as r (tenant text, name text)}
join headway_schedules s on s.tenant {bytewise} = r.tenant and {name_in s.name} = r.name;

-- name: schedule_events
-- Read a page of the events of one schedule, newest first.
select event, at, data from headway_events
where schedule = :schedule and event in {list events} and at >= :since and at < :before
order by seq desc
limit :limit;

-- name: schedule_whose
-- Find the tenants of the schedules with these keys.
select name, tenant from headway_schedules where name in {list keys};

-- name: schedules
-- Read a page of schedules by tenant and name. A schedule is late if an instant was not decided within ten seconds, the
-- budget of promise L1. A fixed delay has no next instant while its job runs, and is over only after its end.
select * from headway_schedules
where removed_at is null and tenant {bytewise} >= :after_tenant
  and (tenant {bytewise}, {name_in name}) > (:after_tenant, :after)
  and (cast(:owner as text) is null or owner = :owner)
  and (cast(:tenant as text) is null or tenant {bytewise} = :tenant)
  and (cast(:words as text) is null or lower({name_in name}) like :words escape '!'
    or lower({task_of}) like :words_in_json escape '!')
  and (cast(:state as text) is null
    or (:state = 'paused' and paused_until > {now})
    or (:state = 'late' and next_at < {now} - 10000000)
    or (:state = 'attention' and attention is not null)
    or (:state = 'failing' and failing >= :flagged)
    or (:state = 'ended' and next_at is null and (delay is null or ends_at < {now}))
    or (:state = 'active' and attention is null and (paused_until is null or paused_until <= {now})
      and (next_at is not null or (delay is not null and (ends_at is null or ends_at >= {now})))))
order by tenant {bytewise}, {name_in name}
limit :limit;

-- name: definitions
-- Read the definitions of these schedules.
select name, definition from headway_schedules where name in {list names};

-- name: schedule_add
-- Create schedules; one whose name exists already is not returned.
insert into headway_schedules (name, owner, tenant, slot, revision, version, definition, trigger_text, delay, ends_at,
  next_at, decided_through, pauses, created_at, updated_at)
select r.name, r.owner, r.tenant, r.slot, 1, 1, r.definition, r.trigger_text, r.delay, r.ends_at, r.next_at,
  r.decided_through, '[]', r.created_at, r.created_at
from {rows schedules as r (name text, owner text, tenant text, slot bigint, definition text, trigger_text text,
  delay bigint, ends_at bigint, next_at bigint, decided_through bigint, created_at bigint)}
where true
on conflict do nothing
returning name, {notify_schedules};

-- name: schedules_revise
-- Set the new definition of schedules (none: removed), from now on.
update headway_schedules
set owner = r.owner, definition = r.definition, trigger_text = r.trigger_text, delay = r.delay, ends_at = r.ends_at,
  next_at = r.next_at, decided_through = r.decided_through, removed_at = r.removed_at, attention = null,
  revision = revision + 1, version = {next headway_schedules.version}, updated_at = {now}
from {rows schedules as r (name text, version bigint, owner text, definition text, trigger_text text, delay bigint,
  ends_at bigint, next_at bigint, decided_through bigint, removed_at bigint)}
where headway_schedules.name = r.name and headway_schedules.version = r.version
returning headway_schedules.name, revision, {notify_schedules};

-- name: revision_add
-- Record every definition with the time from which it is valid.
insert into headway_revisions (schedule, revision, effective_at, definition, author)
select r.schedule, r.revision, r.effective_at, r.definition, r.author
from {rows revisions as r (schedule text, revision integer, effective_at bigint, definition text, author text)}
where true;

-- name: schedule_pauses
-- Change the pauses of a schedule.
update headway_schedules
set pauses = :pauses, paused_until = cast(:paused_until as bigint), next_at = cast(:next_at as bigint),
  version = {next version}, updated_at = {now}
where name = :key and version = :version
returning version, {notify_schedules};

-- name: schedule_touch
-- Mark that the schedule has a new live job, so that a decision made without it is rejected.
update headway_schedules set version = {next version} where name = :key and version = :version returning version;

-- name: revisions
-- Read all definitions that a schedule ever had.
select * from headway_revisions where schedule = :schedule order by revision;

-- name: occurrences
-- Read a page of the ledger of one schedule, newest first.
select o.*, s.tenant from headway_occurrences o left join headway_schedules s on s.name = o.schedule
where o.schedule = :schedule and o.instant < :before and o.instant >= :since
order by o.instant desc
limit :limit;

-- name: recent_occurrences
-- Read the newest :number decisions of each of these schedules, with the statuses of their jobs.
select o.schedule, o.instant, o.count, o.outcome, o.reason, o.job_id, j.status as job_status
from {rows names as r (name text)}
join headway_occurrences o on o.schedule = r.name and o.instant >= coalesce((
  select x.instant from headway_occurrences x where x.schedule = r.name
  order by x.instant desc limit 1 offset cast(:number as bigint) - 1
), cast(:first as bigint))
left join headway_jobs j on j.id = o.job_id
order by o.schedule, o.instant;

-- name: calendar
-- Count the decisions of one schedule by local day, with the statuses of their jobs: the newest :limit of a period,
-- without runs of equal ones. Each period with a constant UTC offset comes with that offset.
with picked as materialized (
  select instant, until, outcome, job_id from headway_occurrences
  where schedule = :schedule and instant >= :since and instant < :before
  order by instant desc limit :limit
)
select (p.instant + r.ahead) / 86400000000 as day, p.outcome, j.status, count(*) as decisions
from picked p
join {rows stretches as r (begins bigint, ends bigint, ahead bigint)} on p.instant >= r.begins and p.instant < r.ends
left join headway_jobs j on j.id = p.job_id
where p.until is null
group by 1, 2, 3;

-- name: calendar_runs
-- Read the runs of equal decisions of one schedule that overlap a period: the newest :limit that begin in it, and the
-- one before, which may reach into it.
select * from (
  select instant, until, count, outcome from headway_occurrences
  where schedule = :schedule and instant >= :since and instant < :before and until is not null
  order by instant desc limit :limit
) as within_it
union all
select * from (
  select instant, until, count, outcome from headway_occurrences
  where schedule = :schedule and instant < :since order by instant desc limit 1
) as before_it where until >= :since;

-- name: ledger
-- Read a page of the ledger of one schedule, oldest first, for the audit.
select o.schedule, o.instant, o.until, o.count, o.outcome, o.reason, o.decided_at, o.revision, o.token, o.job_id,
  j.finished_at
from headway_occurrences o left join headway_jobs j on j.id = o.job_id
where o.schedule = :schedule and o.instant > :after and o.instant <= :until
order by o.instant
limit :limit;

-- name: ledger_keys
-- Read a page of the keys of all schedules, including removed ones, for the audit.
select name, decided_through, tenant from headway_schedules
where name > :after and (cast(:tenant as text) is null or tenant = :tenant)
order by name limit :limit;

-- name: started_by_hand
-- Find a manually started job that had not ended by a time, for the audit.
select id from headway_jobs
where schedule = :schedule and occurrence_at is null and (finished_at is null or finished_at >= :after)
limit 1;

-- name: schedule_counts
-- Count schedules. One is late if an instant was not decided within ten seconds, the budget of promise L1.
select count(*) as total,
  coalesce(sum(case when next_at < {now} - 10000000 then 1 else 0 end), 0) as late,
  coalesce(sum(case when paused_until is not null and paused_until > {now} then 1 else 0 end), 0) as paused,
  coalesce(sum(case when attention is not null then 1 else 0 end), 0) as attention,
  min(case when attention is not null then decided_through end) as held_since,
  {now} as now
from headway_schedules where removed_at is null and (cast(:tenant as text) is null or tenant = :tenant);

-- name: failing
-- Find the schedules with this many consecutive failures.
select name, tenant, failing from headway_schedules
where removed_at is null and failing >= :least and (cast(:tenant as text) is null or tenant = :tenant)
order by failing desc, name limit :limit;

-- name: held
-- Find the schedules that cannot be planned, with the reason.
select name, tenant, attention from headway_schedules
where removed_at is null and attention is not null and (cast(:tenant as text) is null or tenant = :tenant)
order by name limit :limit;

-- name: coming
-- Find the schedules that are due next or overdue, and how far each is decided.
select name, tenant, decided_through, next_at from headway_schedules
where next_at is not null and (cast(:tenant as text) is null or tenant = :tenant)
order by next_at, name
limit :limit;

-- name: outcome_counts
-- Count decisions by outcome since a time.
select outcome, sum(count) as decisions from headway_occurrences
where decided_at >= {now} - :window and (
  cast(:tenant as text) is null or schedule in (select name from headway_schedules where tenant = :tenant)
) group by outcome;

-- name: prune_occurrences
-- Delete decisions older than the retention.
with old as materialized (
  select schedule, instant from headway_occurrences where decided_at < {now} - :retention
  order by decided_at limit :limit
)
delete from headway_occurrences where (schedule, instant) in (select schedule, instant from old)
returning decided_at;

-- name: raise_counter
-- Move a mark forward, never back.
update headway_counters set value = :value where name = :name and value < :value;

-- name: counter
-- Read a mark.
select value from headway_counters where name = :name;
