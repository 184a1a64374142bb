-- Limits, rates and fairness between tenants (ADR 40), windows of calls that become one job (ADR 41), needs (ADR 42) and
-- groups (ADR 43). One step, so that a rolling upgrade can migrate first.

insert into headway_schema (version, name) values (6, 'limits, windows, needs and groups');

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

-- Groups of jobs that are counted and end together: batches now, flows and maps later.

alter table headway_jobs add column group_id {text};
alter table headway_jobs add column group_tenant {text};              -- if it is another one
create index headway_jobs_group on headway_jobs (group_id, id) where group_id is not null;
create index headway_jobs_group_running on headway_jobs (group_id) where group_id is not null and lease_until is not null;

create table headway_groups (
  id                  {text} primary key,
  kind                text not null check (kind in ('batch', 'flow', 'map')),
  tenant              {text} not null,
  name                {text} not null,
  parent              {text},                   -- the job or group that it belongs to
  total               bigint not null default 0,
  completed           bigint not null default 0,
  failed              bigint not null default 0,
  timed_out           bigint not null default 0,
  cancelled           bigint not null default 0,
  retried             bigint not null default 0, -- dead letters among them that were rerun in the group
  created_at          bigint not null,
  opened_by           {text},                   -- the job that created it: when that completes, the group closes
  open_for            bigint not null,          -- so long after the last addition it closes by itself
  open_until          bigint not null,
  began_at            bigint,                   -- the earliest start of the jobs that have ended
  closed_at           bigint,                   -- since then it takes no more jobs, except from its own jobs
  cancel_requested_at bigint,
  finished_at         bigint,
  outcome             text check (outcome in ('completed', 'failed', 'cancelled')),
  reason              text not null default '',
  on_done             text,                     -- a job to enqueue at the end, as JSON
  on_failure          text,
  spec                text,
  cursor              text,
  rerun_of            {text},                   -- the finished group whose failed jobs it repeats
  look_at             bigint                    -- when housekeeping looks at it next; null: when a job ends
);
create unique index headway_groups_name on headway_groups (tenant, name) where kind = 'batch';
create index headway_groups_tenant on headway_groups (tenant, kind, id);
create index headway_groups_look on headway_groups (look_at) where look_at is not null;
create index headway_groups_unfinished on headway_groups (tenant, kind) where finished_at is null;
create index headway_groups_finished on headway_groups (finished_at) where finished_at is not null;
create index headway_groups_reruns on headway_groups (rerun_of) where rerun_of is not null;

-- What each statement changed in the counts of a group. Only inserted, so that jobs of one group never wait for each
-- other; housekeeping adds them to the group. On SQLite, which has one writer, the triggers add to the group at once.
create table headway_deltas (
  seq       {serial},
  group_id  {text} not null,
  added     bigint not null default 0,
  completed bigint not null default 0,
  failed    bigint not null default 0,
  timed_out bigint not null default 0,
  cancelled bigint not null default 0,
  retried   bigint not null default 0,
  added_at  bigint,
  began_at  bigint
);
create index headway_deltas_group on headway_deltas (group_id, seq);

-- only for sqlite, as one statement:
create trigger headway_group_new after insert on headway_jobs when new.group_id is not null
begin
  update headway_groups
  set total = total + 1, open_until = max(open_until, new.created_at + open_for)
  where id = new.group_id;
end

-- only for sqlite, as one statement:
create trigger headway_group_change after update on headway_jobs
when new.group_id is not null and new.status <> old.status
  and (new.finished_at is not null or old.finished_at is not null)
begin
  update headway_groups
  set completed = completed + (new.status = 'COMPLETED') - (old.status = 'COMPLETED'),
    failed = failed + (new.status = 'FAILED') - (old.status = 'FAILED'),
    timed_out = timed_out + (new.status = 'TIMED_OUT') - (old.status = 'TIMED_OUT'),
    cancelled = cancelled + (new.status = 'CANCELLED') - (old.status = 'CANCELLED'),
    began_at = coalesce(min(began_at, new.started_at), began_at, new.started_at),
    look_at = case
      when closed_at is not null and total <= completed + failed + timed_out + cancelled + 1 then 0
      else look_at
    end
  where id = new.group_id;
end

-- One function for rings (ADR 40) and groups, so that a statement is looked at once.
-- only for postgresql, as one statement:
create function headway_ring_and_count() returns trigger language plpgsql as $$
declare
  has_rings boolean;
  has_members boolean;
begin
  select
    bool_or(status = 'PENDING' and (tenant <> 'default' or limit_key <> '' or limited_task <> '' or needs <> '')),
    bool_or(group_id is not null)
  into has_rings, has_members from changed;
  if has_rings then
    insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
    select distinct queue, needs, tenant, limit_key, limited_task from changed
    where status = 'PENDING' and (tenant <> 'default' or limit_key <> '' or limited_task <> '' or needs <> '');
  end if;
  if has_members and tg_op = 'INSERT' then
    insert into headway_deltas (group_id, added, completed, failed, timed_out, cancelled, added_at)
    select group_id, count(*), count(*) filter (where status = 'COMPLETED'), count(*) filter (where status = 'FAILED'),
      count(*) filter (where status = 'TIMED_OUT'), count(*) filter (where status = 'CANCELLED'), max(created_at)
    from changed where group_id is not null group by group_id;
  elsif has_members then
    insert into headway_deltas (group_id, completed, failed, timed_out, cancelled, began_at)
    select group_id, completed, failed, timed_out, cancelled, began_at from (
      select group_id, min(started_at) as began_at,
        coalesce(sum(step) filter (where status = 'COMPLETED'), 0) as completed,
        coalesce(sum(step) filter (where status = 'FAILED'), 0) as failed,
        coalesce(sum(step) filter (where status = 'TIMED_OUT'), 0) as timed_out,
        coalesce(sum(step) filter (where status = 'CANCELLED'), 0) as cancelled
      from (
        select group_id, status, started_at, 1 as step from changed
        where group_id is not null and finished_at is not null
        union all
        select group_id, status, null, -1 from was where group_id is not null and finished_at is not null
      ) as ends group by group_id
    ) as net where completed <> 0 or failed <> 0 or timed_out <> 0 or cancelled <> 0;
  end if;
  return null;
end $$

-- only for postgresql, as one statement:
create trigger headway_ring_and_count_new after insert on headway_jobs
referencing new table as changed for each statement execute function headway_ring_and_count()

-- only for postgresql, as one statement:
create trigger headway_ring_and_count_change after update on headway_jobs
referencing old table as was new table as changed for each statement execute function headway_ring_and_count()

{replace_view} headway_batches_v as
select b.id, b.tenant, b.name, b.total, b.total - b.running - b.completed - b.failed - b.timed_out - b.cancelled as waiting,
  b.running, b.completed, b.failed, b.timed_out, b.cancelled, {time b.created_at} as created_at,
  {time b.closed_at} as closed_at, {time b.finished_at} as finished_at, b.outcome
from (
  select g.id, g.tenant, g.name, g.created_at, g.closed_at, g.finished_at, g.outcome,
    g.total + coalesce(d.added, 0) as total, g.completed + coalesce(d.completed, 0) as completed,
    g.failed + coalesce(d.failed, 0) as failed, g.timed_out + coalesce(d.timed_out, 0) as timed_out,
    g.cancelled + coalesce(d.cancelled, 0) as cancelled,
    (select count(*) from headway_jobs j where j.group_id = g.id and j.group_id is not null and j.lease_until is not null) as running
  from headway_groups as g
  left join (
    select group_id, cast(sum(added) as bigint) as added, cast(sum(completed) as bigint) as completed,
      cast(sum(failed) as bigint) as failed, cast(sum(timed_out) as bigint) as timed_out,
      cast(sum(cancelled) as bigint) as cancelled
    from headway_deltas group by group_id
  ) as d on d.group_id = g.id
  where g.kind = 'batch'
) as b;
