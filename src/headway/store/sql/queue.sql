-- The queue. Four statements write a status (promote, claim, settle, cancel); each names its transition.
--
-- `status || ''` hides a condition from the planner of PostgreSQL. Its statistics are mostly of a moment when nothing ran;
-- it would scan "the one or two" running jobs and compare each with every row of the parameter.

-- name: enqueue
-- Insert jobs; skip those whose (tenant, key) exists already, and do not return them.
insert into headway_jobs (id, task, args, {kept_columns}, limited_task, status, run_at, attempt, failures, version,
  expires_at, created_at, updated_at, ready_at, progress, reason)
select r.id, r.task, r.args, {kept_columns r.}, case when {is_limited_task r.task} then r.task else '' end,
  case
    when r.blocked_by is not null then 'BLOCKED'
    when r.delay > 0 or r.run_at > {now} then 'SCHEDULED'
    else 'PENDING'
  end,
  coalesce(r.run_at, {now} + r.delay), 0, 0, 1, coalesce(r.run_at, {now} + r.delay) + r.expires, {now}, {now},
  case when r.blocked_by is null and r.delay = 0 and (r.run_at is null or r.run_at <= {now}) then {now} end,
  0, ''
from {new_jobs}
where true
on conflict (tenant, key) where key is not null do nothing
returning id, status, created_at, run_at, {notify_ready};

-- name: jobs_by_key
-- Find the jobs that have these keys.
select j.* from {rows keys as r (tenant text, key text)}
join headway_jobs j on j.tenant = r.tenant and j.key = r.key;

-- name: keys_in_use
-- Find which of these keys are in use.
select j.tenant, j.key from {rows keys as r (tenant text, key text)}
join headway_jobs j on j.tenant = r.tenant and j.key = r.key;

-- name: promote
-- transition: SCHEDULED, RETRYING -> PENDING
-- Make due jobs ready, longest due first.
with due as materialized (
  select id from headway_jobs
  where status in ('SCHEDULED', 'RETRYING') and run_at <= {now}
  order by run_at, id
  limit :limit {skip_locked}
)
update headway_jobs
set status = 'PENDING', ready_at = {now}, updated_at = {now}, version = {next version}
where id in (select id from due) and status in ('SCHEDULED', 'RETRYING')
returning id, {notify_ready};

-- name: promote_blocked
-- transition: BLOCKED -> PENDING
-- Make due jobs ready whose predecessor has ended; of an exclusive schedule only one, and none beside jobs that are left
-- from a time when the schedule was not exclusive.
with free as materialized (
  select min(id) as id from headway_next_in_line as n
  where run_at <= {now} and (exclusive = 0 or not exists (
    select 1 from headway_next_in_line as beside
    where beside.schedule = n.schedule and beside.exclusive = 0 and beside.run_at <= {now}
  ))
  group by case when exclusive = 1 then schedule else id end
  order by 1
  limit :limit
)
update headway_jobs
set status = 'PENDING', ready_at = {now}, updated_at = {now}, version = {next version}
where id in (select id from free) and status = 'BLOCKED'
returning id, {notify_ready};

-- name: promote_successors
-- transition: BLOCKED -> PENDING
-- Make the jobs ready that waited for one of these, by the rules of promote_blocked.
with free as materialized (
  select min(id) as id from headway_next_in_line as n
  where run_at <= {now} and blocked_by in {list ids} and (exclusive = 0 or not exists (
    select 1 from headway_next_in_line as beside
    where beside.schedule = n.schedule and beside.exclusive = 0 and beside.run_at <= {now}
  ))
  group by case when exclusive = 1 then schedule else id end
)
update headway_jobs
set status = 'PENDING', ready_at = {now}, updated_at = {now}, version = {next version}
where id in (select id from free) and status = 'BLOCKED'
returning id, {notify_ready};

-- name: lock_lines
-- Lock the schedules of these jobs, and with them the lines of waiting jobs.
select name from headway_schedules
where name in (select schedule from headway_jobs where id in {list ids} and schedule is not null)
order by name {lock};

-- name: lock_jobs
-- Lock these jobs, so that their status does not change between two statements.
select id from headway_jobs where id in {list ids} order by id {lock};

-- name: leave_line
-- After a change to overlap=allow, a waiting job waits only for its predecessor.
update headway_jobs set exclusive = 0, updated_at = {now}, version = {next version}
where schedule in {list schedules} and schedule is not null and finished_at is null and status = 'BLOCKED'
  and exclusive = 1
returning id;

-- name: bypass
-- Make the successors of cancelled jobs wait for the predecessors of those.
update headway_jobs
set blocked_by = gone.before_it, version = {next version}
from (
  select id as gone_id, blocked_by as before_it from headway_jobs
  where id in {list ids} and status = 'CANCELLED' and blocked_by is not null
) as gone
where headway_jobs.status = 'BLOCKED' and headway_jobs.blocked_by = gone.gone_id
returning id;

-- name: next_promotion
-- Find when the next waiting job is due, and whether promote_blocked would promote one.
select min(run_at) as next_at, {now} as now,
  exists (select 1 from headway_next_in_line where run_at <= {now}) as is_free
from headway_jobs where status in ('SCHEDULED', 'RETRYING');

-- name: claim
-- transition: PENDING -> RUNNING
-- Take up to :limit ready jobs of one queue that are in no lane of a tenant or limit, unless the queue is paused or
-- limited: then claim_lanes takes them. Tasks in :skip are left for others, and suspects for claim_apart. What is picked
-- is ready and locked, so it is found again by its address; nothing has to be asked twice.
update headway_jobs
set status = 'RUNNING', attempt = {next_attempt}, node = :node, lease_until = {now_once} + :lease, started_at = {now_once},
  progress = 0, detail = null, held = 0, updated_at = {now_once}, version = {next version}
where {addressed} from headway_jobs
  where status = 'PENDING' and queue = :queue and needs = '' and tenant = 'default' and limit_key = ''
    and limited_task = '' and (expires_at is null or expires_at > {now_once})
    and task not in {list skip} and company is null
    and not exists (
      select 1 from headway_queues
      where (name = :queue and paused_at is not null) or (name in (:queue, '*') and limited = 1)
    )
  order by priority desc, run_at, id
  limit :limit {skip_locked}
{end_addressed}
returning id, task, {bounded args}, attempt, failures, max_attempts, tenant, queue, priority, schedule, occurrence_at,
  {bounded options}, {bounded metadata}, {bounded reason}, run_at, log_bytes;

-- name: apart
-- Find ready suspects of these queues and tasks: jobs that run apart because workers were lost with them.
select id, task, company, ready_at, queue, tenant, limit_key, needs, {now} as now from headway_jobs
where status = 'PENDING' and company is not null and task in {list tasks}
  and (cast(:any_queue as integer) = 1 or queue in {list queues}) and needs not in {list unfit}
  and (expires_at is null or expires_at > {now})
  and not exists (select 1 from headway_queues q where q.name = headway_jobs.queue and q.paused_at is not null)
order by priority desc, run_at, id
limit :limit;

-- name: suspect
-- Read what limits look at of one ready suspect.
select id, task, queue, tenant, limit_key, needs from headway_jobs where id = :id and status = 'PENDING' and company is not null;

-- name: claim_apart
-- transition: PENDING -> RUNNING
-- Claim one suspect.
update headway_jobs
set status = 'RUNNING', attempt = {next_attempt}, node = :node, lease_until = {now_once} + :lease, started_at = {now_once},
  progress = 0, detail = null, held = :held, updated_at = {now_once}, version = {next version}
where {addressed} from headway_jobs
  where id = :id and status = 'PENDING' and company is not null
  limit 1 {skip_locked}
{end_addressed}
returning id, task, {bounded args}, attempt, failures, max_attempts, tenant, queue, priority, schedule, occurrence_at,
  {bounded options}, {bounded metadata}, {bounded reason}, run_at, log_bytes, company, apart_for, started_at;

-- name: held_by_node
-- Find the jobs that a node holds. The order by lease makes the planner use the index of leases.
select id, attempt, failures, max_attempts, schedule, options, lease_until, {now} as now from (
  select id, attempt, failures, max_attempts, schedule, options, lease_until, node from headway_jobs
  where lease_until is not null order by lease_until limit :limit
) as leased where node = :node;

-- name: ready_queues
-- Find the queues with ready jobs, by a loose index scan.
with recursive found (queue) as (
  -- Not min(): with statistics of an empty table, a planner would scan the whole index for it.
  select (
    select queue from headway_jobs where status = 'PENDING'
    order by queue, needs, tenant, limit_key, limited_task, priority desc, run_at, id limit 1
  )
  union all
  select (
    select j.queue from headway_jobs j where j.status = 'PENDING' and j.queue > found.queue
    order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1
  )
  from found where found.queue is not null
)
select queue,
  case
    when exists (select 1 from headway_queues q where q.name in (found.queue, '*') and q.limited = 1)
      or (select g.seq from headway_rings g where g.queue = found.queue order by g.queue, g.seq limit 1) is not null
      or (
        select s.tenant from headway_shares s
        where s.queue = found.queue and s.needs = '' and s.open = 1 and s.tenant <> 'default'
        order by s.queue, s.needs, s.open, s.vtime, s.tenant limit 1
      ) is not null
      or (
        select l.tenant from headway_lanes l
        where l.queue = found.queue and l.needs = '' and l.tenant = 'default' and l.open = 1
          and (l.limit_key <> '' or l.limited_task <> '')
        order by l.queue, l.needs, l.tenant, l.turn limit 1
      ) is not null
    then 1 else 0
  end as has_lanes
from found where queue is not null limit :limit;

-- name: extend
-- Extend the leases of running attempts; stale ones are not returned.
update headway_jobs
set lease_until = {now} + :lease
from {rows attempts as r (job_id text, job_attempt integer)}
where headway_jobs.id = r.job_id and headway_jobs.attempt = r.job_attempt and headway_jobs.status || '' = 'RUNNING'
returning id, attempt, lease_until, cancel_requested_at;

-- name: settle_completed
-- transition: RUNNING -> COMPLETED
-- Settle successful attempts, which is the usual case; stale ones are not returned.
update headway_jobs
set status = 'COMPLETED', result = r.to_result, error = null, reason = '', progress = 100, finished_at = {now_once},
  lease_until = null, updated_at = {now_once}, version = {next version}
from {rows attempts as r (job_id text, job_attempt integer, to_result text)}
where headway_jobs.id = r.job_id and headway_jobs.attempt = r.job_attempt and headway_jobs.status || '' = 'RUNNING'
returning id, attempt, schedule;

-- name: settle
-- transition: RUNNING -> PENDING, RETRYING, BLOCKED, FAILED, TIMED_OUT, CANCELLED
-- Settle all other attempts; stale ones match no row and are not returned.
update headway_jobs
set status = r.to_status, failures = r.to_failures, reason = r.to_reason, error = r.to_error,
  run_at = case when r.final = 1 then run_at else {now} + r.retry_in end,
  finished_at = case when r.final = 1 then {now} end, parked = r.to_parked,
  company = case when r.to_status in ('PENDING', 'BLOCKED') then company else r.to_company end,
  apart_for = case when r.to_status in ('PENDING', 'BLOCKED') then apart_for else r.to_apart_for end,
  lease_until = null, updated_at = {now}, version = {next version}
from {rows settlements as r (job_id text, job_attempt integer, to_status text, final integer, to_failures integer,
  to_reason text, to_error text, to_parked text, retry_in bigint, to_company integer, to_apart_for bigint)}
where headway_jobs.id = r.job_id and headway_jobs.attempt = r.job_attempt and headway_jobs.status || '' = 'RUNNING'
returning id, attempt, schedule, node, ready_at, started_at, finished_at, updated_at, cancel_requested_at,
  {notify_again};

-- name: record_attempts
-- Record ended attempts. A row exists already only if the attempt number was lowered by hand.
insert into headway_attempts (job_id, attempt, node, ready_at, started_at, ended_at, outcome, reason, error)
select r.job_id, r.attempt, r.node, r.ready_at, r.started_at, r.ended_at, r.outcome, r.reason, r.error
from {rows attempts as r (job_id text, attempt integer, node text, ready_at bigint, started_at bigint, ended_at bigint,
  outcome text, reason text, error text)}
where true
on conflict do nothing;

-- name: settled_already
-- Find which of these attempts were settled already, for a settlement whose response was lost. Not by
-- headway_all_attempts: SQLite would read all of it.
select r.job_id, r.attempt from {rows attempts as r (job_id text, attempt integer, outcome text)}
join headway_attempts a on a.job_id = r.job_id and a.attempt = r.attempt and a.outcome = r.outcome
union all
select r.job_id, r.attempt from {rows attempts as r (job_id text, attempt integer, outcome text)}
join headway_jobs j on j.id = r.job_id and j.attempt = r.attempt and j.status = 'COMPLETED'
where r.outcome = 'completed';

-- name: any_expired
-- Check whether a lease has expired, so that an idle queue is not written to. The order is for the planner:
-- without it and with old statistics it expects to find one soon, and reads the whole table.
select 1 as found from headway_jobs where lease_until is not null and lease_until < {now} order by lease_until limit 1;

-- name: expired
-- Find running attempts whose lease has expired. Only the lease decides. The other columns
-- explain the loss: whether the worker sent a heartbeat since, and how often and after how long workers were lost
-- with this job; a worker with a later heartbeat, or that claimed the job again, was not lost.
select id, attempt, failures, max_attempts, schedule, options, node, company, started_at, lease_until,
  (select n.beat_at from headway_nodes n where n.id = headway_jobs.node) as beat_at,
  (
    select count(*) from headway_attempts a left join headway_nodes n on n.id = a.node
    where a.job_id = headway_jobs.id and a.outcome = 'expired' and (n.beat_at is null or n.beat_at <= a.ended_at)
      and coalesce(a.node, '') <> headway_jobs.node
  ) as losses,
  (
    select max(a.ended_at - a.started_at) from headway_attempts a
    where a.job_id = headway_jobs.id and a.outcome = 'expired' and a.started_at between 0 and a.ended_at
  ) as longest
from headway_jobs
where lease_until is not null and lease_until < {now}
order by lease_until
limit :limit {skip_locked};

-- name: beside
-- Count by worker the jobs that it ran at some time since :since: those it holds, and those lost with it before.
select node, count(*) as jobs, count(company) as suspects from (
  select leased.node, leased.company from (
    select node, company from headway_jobs where lease_until is not null order by lease_until limit :limit
  ) as leased where leased.node in (select lost_node from {rows nodes as r (lost_node text, since bigint)})
  union all
  select a.node, j.company from {rows nodes as r (lost_node text, since bigint)}
  join headway_attempts a on a.node = r.lost_node and a.outcome = 'expired' and a.ended_at > r.since
  join headway_jobs j on j.id = a.job_id
) as ran group by node;

-- name: cancel
-- transition: SCHEDULED, PENDING, RETRYING, BLOCKED -> CANCELLED
-- Cancel jobs that are not running.
update headway_jobs
set status = 'CANCELLED', reason = :reason, parked = null, finished_at = {now}, updated_at = {now},
  version = {next version}
where id in {list ids} and status in ('SCHEDULED', 'PENDING', 'RETRYING', 'BLOCKED')
returning id, schedule, blocked_by;

-- name: request_cancel
-- Ask running jobs to stop; their workers are notified, or see it when they extend leases.
update headway_jobs
set cancel_requested_at = {now}, reason = :reason, updated_at = {now}, version = {next version}
where id in {list ids} and status = 'RUNNING' and cancel_requested_at is null
returning id, {notify_stop};

-- name: asked_to_stop
-- Find the jobs of a node that were asked to stop.
select id, attempt, reason from headway_jobs
where node = :node and cancel_requested_at is not null and finished_at is null and status = 'RUNNING';

-- name: report
-- Write progress of running attempts; stale ones are not returned.
update headway_jobs
set progress = coalesce(r.to_progress, progress), detail = coalesce(r.to_detail, detail),
  metadata = coalesce(r.to_metadata, metadata), log_bytes = case when log_bytes < 1000000000000 then log_bytes + r.more_log else log_bytes end, updated_at = {now},
  version = {next version}
from {rows reports as r (job_id text, job_attempt integer, to_progress integer, to_detail text, to_metadata text,
  more_log bigint)}
where headway_jobs.id = r.job_id and headway_jobs.attempt = r.job_attempt and headway_jobs.status || '' = 'RUNNING'
returning id, attempt;

-- name: record_log
-- Insert log lines.
insert into headway_log (job_id, attempt, at, stream, line, version)
select r.job_id, r.attempt, coalesce(r.at, {now}), r.stream, r.line,
  (select j.version from headway_jobs as j where j.id = r.job_id)
from {rows lines as r (job_id text, attempt integer, at bigint, stream text, line text)}
where true;

-- name: log
-- Read a page of a job's log, oldest first.
select seq, attempt, at, stream, line, version from headway_log
where job_id = :id and seq > :after order by seq limit :limit;

-- name: log_newest
-- Read a page of a job's log, newest first.
select seq, attempt, at, stream, line, version from headway_log
where job_id = :id and seq < :before order by seq desc limit :limit;

-- name: hold_attempt
-- Lock a running attempt, so that it is not settled or expired meanwhile; return no row when it is over.
select id, tenant, group_id from headway_jobs
where id = :id and attempt = :attempt and status = 'RUNNING' {lock};

-- name: record_step
-- Store the result of a finished step; the first result stays.
insert into headway_steps (job_id, name, attempt, at, result)
values (:id, :name, :attempt, {now}, :result)
on conflict (job_id, name) do nothing;

-- name: step_sizes
-- Return the size of the results of finished steps.
select job_id, sum({bytes result}) as size from headway_steps where job_id in {list ids} group by job_id;

-- name: steps
-- Read the results of finished steps.
select job_id, name, result from headway_steps where job_id in {list ids};

-- name: unpark
-- Unpark jobs of these tasks: those parked for one cause, or all that another worker might run.
update headway_jobs
set parked = null, run_at = case when run_at > {now} then run_at else {now} end, updated_at = {now},
  version = {next version}
where parked is not null and task in {list tasks} and status = 'BLOCKED' and (parked = :cause or (:cause = '' and parked <> 'needs'))
returning id, {notify_waiting};

-- name: unpark_jobs
-- Unpark these jobs.
update headway_jobs set parked = null, updated_at = {now}, version = {next version}
where id in {list ids} and coalesce(parked, '') <> '' and status || '' = 'BLOCKED'
returning id, {notify_waiting};

-- name: overdue
-- Find jobs that did not start in time.
select id from headway_jobs
where expires_at is not null and expires_at <= {now} and finished_at is null
  and status in ('SCHEDULED', 'PENDING', 'RETRYING', 'BLOCKED')
order by expires_at
limit :limit;

-- name: dead
-- Read a page of dead letters, newest first.
select {job_columns} from headway_jobs
where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null and id < :before
  and (cast(:task as text) is null or task = :task)
  and (cast(:queue as text) is null or queue = :queue)
  and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:schedule as text) is null or {name_in schedule} = :schedule)
order by id desc
limit :limit;

-- name: review
-- Remove jobs from the dead-letter queue.
update headway_jobs set reviewed_at = {now}, version = {next version}
where id in {list ids} and status in ('FAILED', 'TIMED_OUT') and reviewed_at is null
returning id;

-- name: reruns
-- Find the reruns of these jobs.
select id, rerun_of from headway_jobs where rerun_of in {list ids} order by id;

-- name: queues_paused
-- Read the paused queues.
select name, paused_at, paused_by, reason from headway_queues where paused_at is not null order by name;

-- name: pause_queue
-- Pause a queue; return no row when it was paused already.
insert into headway_queues (name, paused_at, paused_by, reason) values (:name, {now}, :author, :reason)
on conflict (name) do update set paused_at = excluded.paused_at, paused_by = excluded.paused_by,
  reason = excluded.reason where headway_queues.paused_at is null
returning name;

-- name: resume_queue
-- Resume a queue; return no row when it was not paused.
update headway_queues set paused_at = null where name = :name and paused_at is not null
returning name, {notify_queue};

-- name: ahead
-- Count the ready jobs of the queue, or those of a tenant, before this one, up to :limit.
select count(*) as jobs from (
  select other.tenant from headway_jobs other
  where other.status = 'PENDING' and other.queue = :queue
    and (other.priority > :priority or (other.priority = :priority and (other.run_at, other.id) < (:run_at, :id)))
  limit :limit
) as before_it where cast(:tenant as text) is null or tenant = :tenant;

-- name: running
-- Read running jobs, longest running first.
select {job_columns} from headway_jobs where lease_until is not null order by started_at, id limit :limit;

-- name: running_counts
-- Count running jobs by queue.
select queue, count(*) as running from headway_jobs where lease_until is not null group by queue order by queue;

-- name: dead_counts
-- Count dead letters by task, the newest up to :limit.
select task, count(*) as letters, max(id) as newest from (
  select id, task from headway_jobs
  where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null
    and (cast(:tenant as text) is null or tenant = :tenant)
  order by id desc limit :limit
) as letters group by task order by count(*) desc, task;

-- name: job
-- Read one job.
select * from headway_jobs where id = :id;

-- name: jobs_by_prefix
-- Find jobs by a prefix of their id.
select * from headway_jobs where id >= :low and id < :high order by id limit 2;

-- name: jobs
-- Read a page of jobs, newest first.
select {job_columns} from headway_jobs
where id < :before and {chosen}
order by id desc
limit :limit;

-- name: jobs_of_tenant
-- The same for one tenant, by a partial index that does not cover the default tenant.
select {job_columns} from headway_jobs
where tenant = :tenant and tenant <> 'default' and id < :before and {chosen}
order by id desc
limit :limit;

-- name: jobs_rerunning
-- The same for the reruns of a job.
select {job_columns} from headway_jobs
where rerun_of = :rerun_of and id < :before and {chosen}
order by id desc
limit :limit;

-- name: jobs_of_group
-- The same for the jobs of a group.
select {job_columns} from headway_jobs
where group_id = :group_id and id < :before and {chosen}
order by id desc
limit :limit;

-- name: job_count
-- Count the jobs that match a filter and that the verb applies to, up to :limit.
select count(*) as jobs from (
  select 1 as one from headway_jobs where {chosen} and {fit} limit :limit
) as found;

-- name: job_count_of_tenant
-- The same for one tenant, by its index.
select count(*) as jobs from (
  select 1 as one from headway_jobs
  where tenant = :tenant and tenant <> 'default' and {chosen} and {fit} limit :limit
) as found;

-- name: job_count_of_group
-- The same for the jobs of a group.
select count(*) as jobs from (
  select 1 as one from headway_jobs
  where group_id = :group_id and {chosen} and {fit} limit :limit
) as found;

-- name: jobs_to_act
-- Find the jobs that match a filter and that the verb applies to, oldest first.
select id, tenant from headway_jobs
where {chosen} and {fit}
order by id
limit :limit;

-- name: jobs_to_act_of_tenant
-- The same for one tenant, by its index.
select id, tenant from headway_jobs
where tenant = :tenant and tenant <> 'default' and {chosen} and {fit}
order by id
limit :limit;

-- name: jobs_to_act_of_group
-- The same for the jobs of a group.
select id, tenant from headway_jobs
where group_id = :group_id and {chosen} and {fit}
order by id
limit :limit;

-- name: jobs_to_act_by_id
-- Find which of these jobs a tenant has, and which of them the verb applies to.
select id, tenant, case when {fit} then 1 else 0 end as is_fit from headway_jobs
where id in {list ids} and (cast(:tenant as text) is null or tenant = :tenant)
order by id;

-- name: jobs_to_repeat
-- Read the columns of these jobs that their reruns need.
select id, task, args, {kept_columns}, status, parked, reason
from headway_jobs where id in {list ids} order by id;

-- name: job_states
-- Read the status of these jobs.
select id, status, cancel_requested_at from headway_jobs where id in {list ids};

-- name: latest
-- Read the newest job of a task.
select * from headway_jobs
where task = :task and (cast(:tenant as text) is null or tenant = :tenant) and (cast(:key as text) is null or key = :key)
  and (cast(:status as text) is null or status = :status)
order by id desc limit 1;

-- name: latest_of_tenant
-- The same for one tenant, by a partial index that does not cover the default tenant.
select * from headway_jobs
where tenant = :tenant and tenant <> 'default' and task = :task and (cast(:key as text) is null or key = :key)
  and (cast(:status as text) is null or status = :status)
order by id desc limit 1;

-- name: attempts
-- Read the ended attempts of one job, newest first.
select * from headway_all_attempts where job_id = :id order by attempt desc limit :limit;

-- name: queue_depths
-- Count pending jobs by queue.
select queue, count(*) as pending, min(run_at) as oldest_at, {now} as now
from headway_jobs where status = 'PENDING' group by queue order by queue;

-- name: live_counts
-- Count the live jobs of a tenant by queue and status, up to :limit of each status.
select queue, status, count(*) as jobs, min(run_at) as oldest_at, {now} as now from (
  select * from (
    select queue, status, run_at from headway_jobs where lease_until is not null and tenant = :tenant limit :limit
  ) as running
  union all
  select * from (
    select queue, status, run_at from headway_jobs where status = 'PENDING' and tenant = :tenant limit :limit
  ) as ready
  union all
  select * from (
    select queue, status, run_at from headway_jobs
    where status in ('SCHEDULED', 'RETRYING') and tenant = :tenant order by run_at, id limit :limit
  ) as waiting
  union all
  select * from (
    select queue, status, run_at from headway_jobs where status = 'BLOCKED' and tenant = :tenant limit :limit
  ) as blocked
) as live group by queue, status order by queue, status;

-- name: ended_counts
-- Count recently ended jobs by status. Reads the newest :limit of all tenants, and counts those of one tenant if given.
select status, sum(case when cast(:tenant as text) is null or tenant = :tenant then 1 else 0 end) as jobs,
  count(*) as looked_at, min(finished_at) as since_at, {now} as now
from (
  select status, tenant, finished_at from headway_jobs
  where finished_at is not null and finished_at >= {now} - :window
  order by finished_at desc limit :limit
) as ended group by status order by status;

-- name: ended_series
-- Count jobs by outcome and time step since a time, with median and p95 of the durations of completed ones, by rank. The
-- newest :limit of all tenants are read, and those that match are counted.
with looked_at as materialized (
  select finished_at, started_at, status, tenant, task, queue from headway_jobs
  where finished_at is not null and finished_at >= :since
  order by finished_at desc limit :limit
),
counted as (
  select finished_at / :step as step, status,
    case when status = 'COMPLETED' then finished_at - started_at end as took
  from looked_at
  where (cast(:tenant as text) is null or tenant = :tenant)
    and (cast(:task as text) is null or task = :task)
    and (cast(:queue as text) is null or queue = :queue)
),
ranked as (
  select step, status, took, row_number() over (partition by step, status order by took) as place,
    count(*) over (partition by step, status) as ended
  from counted
)
select step, status, max(ended) as ended,
  min(case when place * 2 >= ended then took end) as half,
  min(case when place * 20 >= ended * 19 then took end) as most
from ranked group by step, status
union all
select null, 'looked at', count(*), min(finished_at), null from looked_at;

-- name: waiting_counts
-- Count jobs that wait for their time or their predecessor.
select status, count(*) as waiting from headway_jobs
where status in ('SCHEDULED', 'RETRYING') group by status
union all
select 'BLOCKED', count(*) from headway_jobs where status = 'BLOCKED'
union all
select 'RUNNING', count(*) from headway_jobs where lease_until is not null;

-- name: prune_jobs
-- Delete jobs that ended before the cutoff, oldest first. Jobs of an unfinished group stay.
with old as materialized (
  select id from headway_jobs
  where finished_at is not null and finished_at < {now} - :retention
    and (
      group_id is null
      or not exists (select 1 from headway_groups as g where g.id = headway_jobs.group_id and g.finished_at is null)
    )
  order by finished_at limit :limit {skip_locked}
)
delete from headway_jobs where id in (select id from old) returning id;

-- name: prune_attempts
-- Delete the attempts of pruned jobs.
delete from headway_attempts where job_id in {list ids};

-- name: prune_log
-- Delete the log of pruned jobs.
delete from headway_log where job_id in {list ids};

-- name: prune_steps
-- Delete the step results of pruned jobs.
delete from headway_steps where job_id in {list ids};

-- name: prune_job_events
-- Delete the events of pruned jobs.
delete from headway_events where job_id is not null and job_id {bytewise} in {list ids};

-- name: prune_events
-- Delete events without a job: those of schedules and of deleted jobs.
with old as materialized (
  select seq, job_id from headway_events where at < {now} - :retention order by at limit :limit
)
delete from headway_events
where seq in (select old.seq from old left join headway_jobs as job on job.id = old.job_id where job.id is null)
returning seq;

-- name: events
-- Read the events of one job, oldest first.
select seq, event, at, data from headway_events_v where job_id = :id order by seq limit :limit;

-- name: record_events
-- Record events that no other table shows.
insert into headway_events (job_id, schedule, event, at, data)
select r.job_id, r.schedule, r.event, {now}, r.data
from {rows events as r (job_id text, schedule text, event text, data text)}
where true;
