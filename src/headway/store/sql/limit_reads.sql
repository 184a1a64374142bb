-- What operators and tenants see of limits and shares. Each statement reads a bounded number of rows: neither all jobs, nor
-- all gates, nor all tenants.

-- name: gate_holders
-- Read the attempts that count under one gate, those that have run longest first.
select * from (
  select id, task, tenant, queue, limit_key, started_at from headway_jobs
  where cast(:kind as text) = 'queue' and queue = :value and lease_until is not null and (held & 1) = 1
    and (cast(:tenant as text) is null or tenant = :tenant)
  union all
  select id, task, tenant, queue, limit_key, started_at from headway_jobs
  where cast(:kind as text) = 'task' and task = :value and lease_until is not null and (held & 2) = 2
    and (cast(:tenant as text) is null or tenant = :tenant)
  union all
  select id, task, tenant, queue, limit_key, started_at from headway_jobs
  where cast(:kind as text) = 'tenant' and tenant = :value and lease_until is not null and (held & 4) = 4
    and (cast(:tenant as text) is null or tenant = :tenant)
  union all
  select id, task, tenant, queue, limit_key, started_at from headway_jobs
  where cast(:kind as text) = 'key' and limit_key = :value and lease_until is not null and (held & 8) = 8
    and (cast(:tenant as text) is null or tenant = :tenant)
) as found
order by started_at, id limit :limit;

-- name: held_lanes_of_limits
-- Count the lanes that wait at the gates of each limit, by gate, up to :most of each limit.
select r.limit_name, l.held_by as gate, count(*) as lanes
from {each limits as r (limit_name text, low text, high text)} headway_lanes as h
  where h.held_by is not null and h.held_by >= r.low and h.held_by <= r.high order by h.held_by, h.turn limit :most
{end_each headway_lanes as l}
group by r.limit_name, l.held_by;

-- name: open_lanes_of_queues
-- Count the open lanes of queues that have ready jobs, among up to :most of each: where the limit of the queue is full, these
-- wait for it. A lane whose last job was taken stays open until a claim finds it empty.
select r.in_queue as queue, count(*) as lanes
from {each queues as r (in_queue text)} headway_lanes as h
  where h.queue = r.in_queue and h.open = 1 limit :most
{end_each headway_lanes as l}
where exists (
  select 1 from headway_jobs j where j.status = 'PENDING' and j.queue = l.queue and j.needs = l.needs
    and j.tenant = l.tenant and j.limit_key = l.limit_key and j.limited_task = l.limited_task
)
group by r.in_queue;

-- name: sharing_queues
-- Find the queues that tenants have shared. A loose index scan, which does not read their tenants.
with recursive found (queue, needs) as (
  select (select queue from headway_shares order by queue, needs, tenant limit 1),
    (select needs from headway_shares order by queue, needs, tenant limit 1)
  union all
  select
    (select s.queue from headway_shares s where (s.queue, s.needs) > (found.queue, found.needs)
      order by s.queue, s.needs, s.tenant limit 1),
    (select s.needs from headway_shares s where (s.queue, s.needs) > (found.queue, found.needs)
      order by s.queue, s.needs, s.tenant limit 1)
  from found where found.queue is not null
)
select queue as in_queue, needs as for_needs from found where queue is not null limit :limit;

-- name: pending_queues
-- Find the queues with ready jobs. A loose index scan, which does not read their jobs; it orders by all columns of the
-- index, so that no planner reads and sorts them.
with recursive found (queue, needs) as (
  select
    (select queue from headway_jobs where status = 'PENDING'
      order by queue, needs, tenant, limit_key, limited_task, priority desc, run_at, id limit 1),
    (select needs from headway_jobs where status = 'PENDING'
      order by queue, needs, tenant, limit_key, limited_task, priority desc, run_at, id limit 1)
  union all
  select
    (select j.queue from headway_jobs j where j.status = 'PENDING' and (j.queue, j.needs) > (found.queue, found.needs)
      order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1),
    (select j.needs from headway_jobs j where j.status = 'PENDING' and (j.queue, j.needs) > (found.queue, found.needs)
      order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1)
  from found where found.queue is not null
)
select queue as in_queue, needs as for_needs from found where queue is not null limit :limit;

-- name: held_lanes_of_tenant
-- Count the lanes of one tenant that wait, by gate; reads no lane of another tenant.
select l.held_by as gate, count(*) as lanes
from {each queues as r (in_queue text, for_needs text)} headway_lanes as h
  where h.queue = r.in_queue and h.needs = r.for_needs and h.tenant = :tenant and h.held_by is not null limit :most
{end_each headway_lanes as l}
group by l.held_by order by l.held_by;

-- name: tenants
-- Read the defined tenants.
select * from headway_tenants order by name;

-- name: next_tenants
-- Read the names of the next defined tenants, after a name.
select name from headway_tenants where name > :after order by name limit :limit;

-- name: tenants_named
-- Read the definitions of some tenants.
select * from headway_tenants where name {among names name};

-- name: tenants_with_slo
-- Read the first tenants whose jobs should not wait for long.
select name, wait_slo from headway_tenants where wait_slo is not null order by name limit :limit;

-- name: sharing_tenants
-- Read the next tenants that have used these queues, after a name.
select distinct s.tenant as name
from {each queues as r (in_queue text, for_needs text)} headway_shares as h
  where h.queue = r.in_queue and h.needs = r.for_needs and h.tenant > :after order by h.tenant limit :limit
{end_each headway_shares as s}
order by name limit :limit;

-- name: tenant_shares
-- Read what tenants have used of queues.
select s.queue, s.needs, s.tenant, s.used, s.vtime
from {each places as r (in_queue text, for_needs text, of_tenant text)} headway_shares as h
  where h.queue = r.in_queue and h.needs = r.for_needs and h.tenant = r.of_tenant limit 1
{end_each headway_shares as s}
order by s.queue, s.needs, s.tenant;

-- name: used_of_queues
-- Add up what tenants have used of each queue, and their weights; reads up to :limit shares.
select queue, sum(used) as used, sum(weight) as weight from (
  select queue, used, weight from headway_shares order by queue, needs, tenant limit :limit
) as read
group by queue;

-- name: running_seconds
-- Add up how long the running attempts of tenants have taken so far; reads what runs.
select queue, tenant, sum(case when started_at < {now} then {now} - started_at else 0 end) as took from headway_jobs
where lease_until is not null and started_at is not null and tenant <> 'default'
  and (cast(:tenant as text) is null or tenant = :tenant)
group by queue, tenant limit :limit;

-- name: tenant_waits
-- Read how long the newest started jobs of a tenant waited for a worker: those that run, and those among its newest jobs,
-- up to :newest, so that a backlog is not read. No index has the jobs of the tenant `default` alone: of the newest jobs of
-- all tenants, those that are its own.
select started_at - ready_at as waited from (
  select id, started_at, ready_at from headway_jobs where lease_until is not null and tenant = :tenant
  union
  select id, started_at, ready_at from (
    select id, started_at, ready_at from headway_jobs
    where tenant = :tenant and tenant <> 'default' order by id desc limit :newest
  ) as newest
  union
  select id, started_at, ready_at from (
    select id, tenant, started_at, ready_at from headway_jobs
    where cast(:tenant as text) = 'default' order by id desc limit :newest
  ) as newest_of_all where tenant = :tenant
) as job
where started_at is not null and ready_at is not null and started_at >= ready_at
order by started_at desc, id desc limit :limit;

-- name: tenant_backlog
-- Count the ready jobs of tenants, up to :most of each in each queue, and find the one of them that has waited longest.
select r.of_tenant as tenant, count(*) as jobs, min(coalesce(j.ready_at, j.run_at)) as oldest_at, {now} as now
from {each places as r (in_queue text, for_needs text, of_tenant text)} headway_jobs as h
  where h.status = 'PENDING' and h.queue = r.in_queue and h.needs = r.for_needs and h.tenant = r.of_tenant
  order by h.limit_key, h.limited_task, h.priority desc, h.run_at, h.id limit :most
{end_each headway_jobs as j}
group by r.of_tenant;
