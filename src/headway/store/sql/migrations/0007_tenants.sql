-- Names of schedules are unique per tenant, see ADR 35. What was the name is a key now, and stays what it was.

insert into headway_schema (version, name) values (7, 'tenants');

create unique index headway_schedules_name on headway_schedules (tenant {bytewise}, {name_in name});

-- only for sqlite, as one statement:
drop view headway_jobs_v

-- only for sqlite, as one statement:
drop view headway_occurrences_v

-- only for sqlite, as one statement:
drop view headway_schedules_v

{replace_view} headway_jobs_v as
select id, tenant, task, status, queue, priority, key, {name_in schedule} as schedule,
  {time occurrence_at} as occurrence_at, progress, attempt as attempts, {time created_at} as created_at,
  {time run_at} as run_at, {time started_at} as started_at, {time finished_at} as finished_at
from headway_jobs;

{replace_view} headway_occurrences_v as
select {name_in o.schedule} as schedule, {time o.instant} as instant, o.outcome, o.reason,
  {time o.decided_at} as decided_at, o.job_id, {time o.until} as until, o.count, o.revision, o.token, s.tenant
from headway_occurrences as o left join headway_schedules as s on s.name = o.schedule;

{replace_view} headway_schedules_v as
select {name_in name} as name, trigger_text as trigger, {time next_at} as next_at,
  {time decided_through} as decided_through,
  (paused_until is not null and paused_until > {view_now}) as paused,
  case when next_at <= {view_now} then ({view_now} - next_at) / 1e6 else 0 end as undecided_seconds,
  tenant
from headway_schedules where removed_at is null;
