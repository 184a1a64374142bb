-- What workers need: progress in words, logs, results of finished steps, parked jobs, dead letters, paused queues.

insert into headway_schema (version, name) values (2, 'worker');

alter table headway_jobs add column metadata text;                       -- what the task says about itself, JSON
alter table headway_jobs add column detail text;                         -- step, counts, rate and ETA of the attempt, JSON
alter table headway_jobs add column log_bytes bigint not null default 0;
alter table headway_jobs add column parent text;                         -- the job that enqueued this one
alter table headway_jobs add column rerun_of {text};                     -- the job that this one repeats
alter table headway_jobs add column parked text;                         -- why nobody can run it; BLOCKED until somebody can
alter table headway_jobs add column expires_at bigint;                   -- not started until then: cancelled
alter table headway_jobs add column reviewed_at bigint;                  -- a dead letter that somebody has dealt with
alter table headway_schedules add column failing integer not null default 0;  -- jobs that failed in a row
alter table headway_nodes add column asked text;                         -- what an operator wants of the node: drain

create index headway_jobs_parked on headway_jobs (task) where parked is not null;
create index headway_jobs_expiring on headway_jobs (expires_at) where expires_at is not null and finished_at is null;
create index headway_jobs_dead on headway_jobs (id)
  where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null;
create index headway_jobs_asked on headway_jobs (node)
  where cancel_requested_at is not null and finished_at is null;
create index headway_jobs_reruns on headway_jobs (rerun_of) where rerun_of is not null;
-- In the order of headway_jobs.id: the history of a job was read by going through all events.
drop index headway_events_job;
create index headway_events_job on headway_events (job_id {bytewise}) where job_id is not null;

create table headway_log (
  seq     {serial},
  job_id  {text} not null,
  attempt integer not null,
  at      bigint not null,
  stream  text not null,
  line    text not null
);
create index headway_log_job on headway_log (job_id, seq);

create table headway_steps (
  job_id  {text} not null,
  name    {text} not null,
  attempt integer not null,
  at      bigint not null,
  result  text not null,
  primary key (job_id, name)
);

create table headway_queues (
  name      {text} primary key,
  paused_at bigint,
  paused_by text not null,
  reason    text not null
);

-- A parked job is in nobody's line, but those behind it still wait for it.
drop view headway_next_in_line;
create view headway_next_in_line as
select successor.id, successor.blocked_by, successor.run_at, successor.schedule, successor.exclusive
from headway_jobs as successor
where successor.status = 'BLOCKED' and successor.parked is null and not exists (
  select 1 from headway_jobs as predecessor
  where predecessor.id = successor.blocked_by and predecessor.finished_at is null
) and not exists (
  select 1 from headway_jobs as live
  where successor.exclusive = 1 and live.schedule = successor.schedule and live.schedule is not null
    and live.finished_at is null and live.status <> 'BLOCKED'
);

-- A completed job is the trace of its own last attempt; every other end of an attempt has a row. Version 1 wrote one for
-- completed attempts too, and still does in the middle of a rolling upgrade: these say nothing new.
create view headway_all_attempts as
select job_id, attempt, node, ready_at, started_at, ended_at, outcome, reason, error from headway_attempts
where outcome <> 'completed'
union all
select id, attempt, node, ready_at, started_at, finished_at, 'completed', '', null
from headway_jobs where status = 'COMPLETED';

drop view headway_attempts_v;
create view headway_attempts_v as
select job_id, attempt, node, {time started_at} as started_at, {time ended_at} as ended_at, outcome
from headway_all_attempts
union all
select id, attempt, node, {time started_at}, {time cast(null as bigint)}, 'running'
from headway_jobs where status = 'RUNNING';

-- What can be derived is not stored twice: creation and attempts come from their own rows. seq orders by time.
drop view headway_events_v;
create view headway_events_v as
select created_at * 8 as seq, id as job_id, 'enqueued' as event, {time created_at} as at, '{}' as data
from headway_jobs
union all
select ready_at * 8 + 1, id, 'promoted', {time ready_at}, '{}' from headway_jobs as j
where ready_at > created_at and not exists (
  select 1 from headway_attempts as a where a.job_id = j.id and a.ready_at = j.ready_at
)
union all
select distinct a.ready_at * 8 + 1, a.job_id, 'promoted', {time a.ready_at}, '{}'
from headway_attempts as a join headway_jobs as j on j.id = a.job_id where a.ready_at > j.created_at
union all
select started_at * 8 + 2, id, 'claimed', {time started_at}, cast({json_object}('attempt', attempt, 'node', node) as text)
from headway_jobs where status = 'RUNNING'
union all
select started_at * 8 + 2, job_id, 'claimed', {time started_at}, cast({json_object}('attempt', attempt, 'node', node) as text)
from headway_all_attempts
union all
select ended_at * 8 + 3, job_id, 'settled', {time ended_at},
  cast({json_object}('attempt', attempt, 'outcome', outcome, 'reason', reason) as text)
from headway_all_attempts
union all
select at * 8 + 4, job_id, event, {time at}, data from headway_events where job_id is not null;
