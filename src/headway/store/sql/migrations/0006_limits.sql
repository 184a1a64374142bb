-- Limits, rates and fairness between tenants (ADR 40), and windows of calls that become one job (ADR 41). One step, so that a rolling upgrade can migrate first.

insert into headway_schema (version, name) values (6, 'limits, fairness and windows');

alter table headway_jobs add column needs {text} not null default '';         -- what a worker must offer
alter table headway_jobs add column limit_key {text} not null default '';     -- the limit that this job named
alter table headway_jobs add column limited_task {text} not null default '';  -- its task, if a limit names that
alter table headway_jobs add column held integer not null default 0;          -- kinds of limits that count this attempt

-- A lane is what has the same queue, needs, tenant, limit_key and limited_task: if its first job may not start, none may.
-- Without tenants and limits all jobs of a queue are in one lane.
create index headway_jobs_lane
  on headway_jobs (queue, needs, tenant, limit_key, limited_task, priority desc, run_at, id)
  where status = 'PENDING';
drop index headway_jobs_ready;
create index headway_jobs_parked_needs on headway_jobs (queue, needs) where parked = 'needs';

-- One index for the jobs of a tenant by id, and by task. Each change of a job writes an entry to each of its indexes.
drop index headway_jobs_latest;
drop index headway_jobs_tenant;
create index headway_jobs_tenant on headway_jobs (tenant, id, task) where tenant <> 'default';

-- What runs is counted from leases. Attempts are in these indexes only while a limit of that kind exists.
create index headway_jobs_held_queue on headway_jobs (queue) where lease_until is not null and (held & 1) = 1;
create index headway_jobs_held_task on headway_jobs (task) where lease_until is not null and (held & 2) = 2;
create index headway_jobs_held_tenant on headway_jobs (tenant) where lease_until is not null and (held & 4) = 4;
create index headway_jobs_held_key on headway_jobs (limit_key) where lease_until is not null and (held & 8) = 8;

alter table headway_queues add column limited integer not null default 0;     -- 1: claims must look at limits; * is all

create table headway_limits (
  name        {text} primary key,         -- queue:media, task:report, tenant:*, account-*
  kind        text not null check (kind in ('queue', 'task', 'tenant', 'key')),
  stem        text not null,              -- the name without its kind and without a * at the end
  is_pattern  integer not null,
  concurrency integer,
  rate        integer,                    -- so many starts
  per         bigint,                     -- in so many microseconds
  burst       integer,
  owner       text not null,              -- the app that declares it; empty: put by an operator
  author      text not null,
  revision    bigint not null,
  in_force    integer not null,           -- 0: nothing under it starts until attempts that run are counted
  relabel     {text},                     -- jobs up to this id have their limited_task; null: all of them
  updated_at  bigint not null
);
create index headway_limits_task on headway_limits (stem) where kind = 'task';

-- Every definition that was in force, for the audit; no definition: the limit was removed.
create table headway_limit_revisions (
  revision    bigint not null,
  name        {text} not null,
  at          bigint not null,
  author      text not null,
  concurrency integer,
  rate        integer,
  per         bigint,
  burst       integer,
  removed     integer not null,
  primary key (name, revision)
);
insert into headway_counters (name, value) values ('limits', 0);

-- A gate is a limit for one name, such as account-42. A claim locks its row, then counts in a new statement.
create table headway_gates (
  name    {text} primary key,
  state   text not null,                  -- of a rate: recent starts
  used_at bigint not null
);
create index headway_gates_used on headway_gates (used_at);

create table headway_tenants (
  name       {text} primary key,
  weight     integer not null,
  wait_slo   bigint,
  author     text not null,
  updated_at bigint not null
);

-- What a tenant has used of a queue, in microseconds divided by its weight. The least is served next.
create table headway_shares (
  queue   {text} not null,
  needs   {text} not null,
  tenant  {text} not null,
  vtime   bigint not null,
  weight  integer not null,
  cost    bigint not null,                -- moving mean of what a job takes
  used    bigint not null,                -- what all its jobs took
  open    integer not null,               -- 1: it may have jobs that may start
  primary key (queue, needs, tenant)
);
create index headway_shares_next on headway_shares (queue, needs, open, vtime, tenant);

create table headway_lanes (
  queue        {text} not null,
  needs        {text} not null,
  tenant       {text} not null,
  limit_key    {text} not null,
  limited_task {text} not null,
  turn         bigint not null,           -- the lanes of a tenant take turns
  open         integer not null,
  held_by      {text},                    -- the gate that is full
  look_at      bigint,                    -- when its rate allows the next start
  primary key (queue, needs, tenant, limit_key, limited_task)
);
create index headway_lanes_open on headway_lanes (queue, needs, tenant, turn) where open = 1;
create index headway_lanes_held on headway_lanes (held_by, turn) where held_by is not null;
create index headway_lanes_look on headway_lanes (look_at) where look_at is not null;

-- Lanes that got a ready job. Only inserted, so that no enqueue waits for a row of others; claims take them away.
create table headway_rings (
  seq          {serial},
  queue        {text} not null,
  needs        {text} not null,
  tenant       {text} not null,
  limit_key    {text} not null,
  limited_task {text} not null
);
create index headway_rings_queue on headway_rings (queue, seq);

-- One ring per lane is enough. On PostgreSQL, statements would wait for each other here; a statement rings once there.
-- only for sqlite, as one statement:
create unique index headway_rings_lane on headway_rings (queue, needs, tenant, limit_key, limited_task)

-- only for sqlite, as one statement:
create trigger headway_ring_new after insert on headway_jobs
when new.status = 'PENDING'
  and (new.tenant <> 'default' or new.limit_key <> '' or new.limited_task <> '' or new.needs <> '')
begin
  insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
  values (new.queue, new.needs, new.tenant, new.limit_key, new.limited_task)
  on conflict do nothing;
end

-- only for sqlite, as one statement:
create trigger headway_ring_change after update on headway_jobs
when new.status = 'PENDING'
  and (new.tenant <> 'default' or new.limit_key <> '' or new.limited_task <> '' or new.needs <> '')
begin
  insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
  values (new.queue, new.needs, new.tenant, new.limit_key, new.limited_task)
  on conflict do nothing;
end

-- only for postgresql, as one statement:
create function headway_ring() returns trigger language plpgsql as $$
begin
  insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
  select distinct queue, needs, tenant, limit_key, limited_task from changed
  where status = 'PENDING' and (tenant <> 'default' or limit_key <> '' or limited_task <> '' or needs <> '');
  return null;
end $$

-- only for postgresql, as one statement:
create trigger headway_ring_new after insert on headway_jobs
referencing new table as changed for each statement execute function headway_ring()

-- only for postgresql, as one statement:
create trigger headway_ring_change after update on headway_jobs
referencing new table as changed for each statement execute function headway_ring()

-- Jobs of tenants that are ready already have rung nowhere.
insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
select distinct queue, needs, tenant, limit_key, limited_task from headway_jobs
where status = 'PENDING' and tenant <> 'default';

{replace_view} headway_limits_v as
select l.name, l.concurrency, l.rate, l.per / 1e6 as per, l.burst,
  case
    when l.is_pattern = 1 then null
    when l.kind = 'queue' then (
      select count(*) from headway_jobs j where j.queue = l.stem and j.lease_until is not null and (j.held & 1) = 1)
    when l.kind = 'task' then (
      select count(*) from headway_jobs j where j.task = l.stem and j.lease_until is not null and (j.held & 2) = 2)
    when l.kind = 'tenant' then (
      select count(*) from headway_jobs j where j.tenant = l.stem and j.lease_until is not null and (j.held & 4) = 4)
    else (
      select count(*) from headway_jobs j where j.limit_key = l.stem and j.lease_until is not null and (j.held & 8) = 8)
  end as running
from headway_limits as l;

create table headway_windows (
  tenant    {text} not null,
  key       {text} not null,
  kind      text not null check (kind in ('debounce', 'throttle', 'unique')),
  task      text not null,
  job_id    {text} not null,
  opened_at bigint not null,
  until     bigint not null,               -- debounce: the start of the job; else the end of the window
  merged    integer not null,              -- calls merged into the job
  primary key (tenant, key)
);
create index headway_windows_until on headway_windows (until);
create index headway_windows_job on headway_windows (job_id);
