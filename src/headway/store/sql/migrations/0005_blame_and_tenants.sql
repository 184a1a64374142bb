-- Blame, retention of the audit log, tenants. One step, so that a rolling upgrade can migrate first.

insert into headway_schema (version, name) values (5, 'blame, audit retention, tenants');

-- Jobs with which workers were lost run apart from each other, see ADR 33.

alter table headway_jobs add column company integer;   -- null: no suspect; so many suspects at most run together; 0: alone
alter table headway_jobs add column apart_for bigint;  -- so long after its start a suspect is kept apart

create index headway_jobs_apart on headway_jobs (priority desc, run_at, id)
  where status = 'PENDING' and company is not null;
-- Who was lost with which worker. Few attempts end like that.
create index headway_attempts_lost on headway_attempts (node) where outcome = 'expired';

-- Entries of the audit log may leave when they are old. Younger ones than 29 days cannot be deleted, and none be changed.

-- only for postgresql, as one statement:
drop trigger headway_actions_kept on headway_actions

-- only for postgresql, as one statement:
create trigger headway_actions_kept before update or truncate on headway_actions
for each statement execute function headway_keep()

-- only for postgresql, as one statement:
create trigger headway_actions_not_deleted before delete on headway_actions
for each row when (old.at > {view_now} - 2505600000000) execute function headway_keep()

-- only for sqlite, as one statement:
drop trigger headway_actions_not_deleted

-- only for sqlite, as one statement:
create trigger headway_actions_not_deleted before delete on headway_actions
when old.at > {view_now} - 2505600000000
begin
  select raise(abort, 'the trail of actions is only added to');
end

-- Names of schedules are unique per tenant, see ADR 35. What was the name is a key now, and stays what it was.

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
