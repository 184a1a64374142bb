-- Groups of jobs that are counted and end together (ADR 43): batches now, flows and maps later.

insert into headway_schema (version, name) values (7, 'groups');

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
drop trigger headway_ring_new on headway_jobs

-- only for postgresql, as one statement:
drop trigger headway_ring_change on headway_jobs

-- only for postgresql, as one statement:
drop function headway_ring()

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
