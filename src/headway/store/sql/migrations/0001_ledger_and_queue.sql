-- The ledger, the queue, the leases. Time is microseconds UTC, JSON is text, flags are 0 or 1.

create table headway_schema (
  version integer primary key,
  name    text not null
);
insert into headway_schema (version, name) values (1, 'ledger and queue');

create table headway_schedules (
  name            {text} primary key,
  owner           text not null,
  tenant          text not null,
  slot            bigint not null,          -- hash of the name; slot % shards is the scheduler shard
  revision        integer not null,
  version         bigint not null,          -- rises with every write; a decision made on an older one is refused
  definition      text not null,
  trigger_text    text not null,
  delay           bigint,                   -- fixed-delay schedules only: next_at is the end of the last job + delay
  ends_at         bigint,                   -- and not later than this
  next_at         bigint,
  decided_through bigint not null,          -- every instant up to here has its record
  pauses          text not null,
  paused_until    bigint,
  attention       text,
  created_at      bigint not null,
  updated_at      bigint not null,
  removed_at      bigint
);
create index headway_schedules_due on headway_schedules (next_at, name) where next_at is not null;
create index headway_schedules_owned on headway_schedules (owner) where removed_at is null and owner <> '';
create index headway_schedules_delay on headway_schedules (name) where delay is not null and next_at is null;

create table headway_revisions (
  schedule     {text} not null,
  revision     integer not null,
  effective_at bigint not null,
  definition   text,                        -- null: removed from this time on
  author       text not null,
  primary key (schedule, revision)
);

create table headway_occurrences (
  schedule   {text} not null,
  instant    bigint not null,
  until      bigint,                        -- a run of equal decisions: the last instant of the run
  count      bigint not null,
  outcome    text not null check (outcome in ('fired', 'skipped', 'missed', 'coalesced', 'paused')),
  reason     text not null,
  decided_at bigint not null,
  revision   integer not null,
  token      bigint not null,               -- the fencing token under which it was decided
  node       text not null,
  job_id     text,
  primary key (schedule, instant)
);
create index headway_occurrences_decided on headway_occurrences (decided_at);

create table headway_jobs (
  id                  {text} primary key,
  tenant              text not null,
  task                text not null,
  queue               text not null,
  priority            integer not null,
  status              text not null check (status in {statuses}),
  run_at              bigint not null,
  attempt             integer not null,     -- the fence: rises with every claim, never falls
  failures            integer not null,
  max_attempts        integer not null,
  exclusive           integer not null,     -- 1: at most one such job of its schedule may be live
  version             bigint not null,
  lease_until         bigint,
  node                text,
  key                 text,
  schedule            {text},
  occurrence_at       bigint,
  blocked_by          {text},
  args                text not null,
  tags                text,
  options             text,
  created_at          bigint not null,
  updated_at          bigint not null,
  ready_at            bigint,
  started_at          bigint,
  finished_at         bigint,
  cancel_requested_at bigint,
  progress            integer not null,
  reason              text not null,
  result              text,
  error               text
);
-- The claim looks only at ready jobs: finished and future ones are outside of its index.
create index headway_jobs_ready on headway_jobs (queue, priority desc, run_at, id) where status = 'PENDING';
create index headway_jobs_waiting on headway_jobs (run_at, id) where status in ('SCHEDULED', 'RETRYING');
create index headway_jobs_blocked on headway_jobs (blocked_by) where status = 'BLOCKED';
create index headway_jobs_leased on headway_jobs (lease_until) where lease_until is not null;
create index headway_jobs_finished on headway_jobs (finished_at) where finished_at is not null;
create index headway_jobs_live on headway_jobs (schedule) where schedule is not null and finished_at is null;
create unique index headway_jobs_key on headway_jobs (tenant, key) where key is not null;
-- At most one live job per exclusive schedule, whatever anybody does.
create unique index headway_jobs_exclusive on headway_jobs (schedule)
  where exclusive = 1 and status in ('SCHEDULED', 'PENDING', 'RUNNING', 'RETRYING');

-- Jobs that wait in line and whose predecessor has ended (or was pruned). Of an exclusive schedule only while no other
-- job of it is live: should a line ever break, it is still a line.
create view headway_next_in_line as
select successor.id, successor.blocked_by, successor.run_at, successor.schedule, successor.exclusive
from headway_jobs as successor
where successor.status = 'BLOCKED' and not exists (
  select 1 from headway_jobs as predecessor
  where predecessor.id = successor.blocked_by and predecessor.finished_at is null
) and not exists (
  select 1 from headway_jobs as live
  where successor.exclusive = 1 and live.schedule = successor.schedule and live.schedule is not null
    and live.finished_at is null and live.status <> 'BLOCKED'
);

create table headway_attempts (
  job_id     {text} not null,
  attempt    integer not null,
  node       text,
  ready_at   bigint,
  started_at bigint,
  ended_at   bigint not null,
  outcome    text not null,
  reason     text not null,
  error      text,
  primary key (job_id, attempt)
);

create table headway_events (
  seq      {serial},
  job_id   text,
  schedule text,
  event    text not null,
  at       bigint not null,
  data     text not null
);
create index headway_events_job on headway_events (job_id) where job_id is not null;
create index headway_events_at on headway_events (at);
create index headway_events_schedule on headway_events (schedule, seq) where schedule is not null;

create table headway_leases (
  name        {text} primary key,
  holder      text not null,
  holder_name text not null,
  token       bigint not null,
  since       bigint not null,
  until       bigint not null
);
create index headway_leases_until on headway_leases (until);

create table headway_counters (
  name  text primary key,
  value bigint not null
);
insert into headway_counters (name, value) values ('token', 0), ('pruned_through', 0);

create table headway_nodes (
  id         text primary key,
  name       text not null,
  roles      text not null,
  version    text not null,
  started_at bigint not null,
  beat_at    bigint not null,
  state      text not null
);

create view headway_jobs_v as
select id, tenant, task, status, queue, priority, key, schedule, {time occurrence_at} as occurrence_at, progress,
  attempt as attempts, {time created_at} as created_at, {time run_at} as run_at, {time started_at} as started_at,
  {time finished_at} as finished_at
from headway_jobs;

create view headway_occurrences_v as
select schedule, {time instant} as instant, outcome, reason, {time decided_at} as decided_at, job_id,
  {time until} as until, count, revision, token
from headway_occurrences;

create view headway_attempts_v as
select job_id, attempt, node, {time started_at} as started_at, {time ended_at} as ended_at, outcome
from headway_attempts
union all
select id, attempt, node, {time started_at}, {time cast(null as bigint)}, 'running'
from headway_jobs where status = 'RUNNING';

-- What can be derived is not stored twice: creation and attempts come from their own rows. seq orders by time.
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
from headway_attempts
union all
select ended_at * 8 + 3, job_id, 'settled', {time ended_at},
  cast({json_object}('attempt', attempt, 'outcome', outcome, 'reason', reason) as text)
from headway_attempts
union all
select at * 8 + 4, job_id, event, {time at}, data from headway_events where job_id is not null;

create view headway_nodes_v as
select id, name, roles, {time started_at} as started_at, {time beat_at} as beat_at from headway_nodes;

create view headway_leases_v as
select name, holder, token, {time until} as until from headway_leases;

create view headway_schedules_v as
select name, trigger_text as trigger, {time next_at} as next_at, {time decided_through} as decided_through,
  (paused_until is not null and paused_until > {view_now}) as paused,
  case when next_at <= {view_now} then ({view_now} - next_at) / 1e6 else 0 end as undecided_seconds
from headway_schedules where removed_at is null;
