-- Needs: the classes of a queue are the distinct texts of what its jobs need; ADR 42.

-- name: open_classes
-- Find the next classes with open lanes after a queue and its needs, by a loose scan of the index of open lanes.
with recursive found (queue, needs, step) as (
  select cast(:queue as text) {bytewise}, cast(:needs as text) {bytewise}, 0
  union all
  select
    coalesce(
      (select l.queue from headway_lanes l where l.open = 1 and l.queue = found.queue and l.needs > found.needs
        order by l.queue, l.needs, l.tenant, l.turn limit 1),
      (select l.queue from headway_lanes l where l.open = 1 and l.queue > found.queue
        order by l.queue, l.needs, l.tenant, l.turn limit 1)),
    coalesce(
      (select l.needs from headway_lanes l where l.open = 1 and l.queue = found.queue and l.needs > found.needs
        order by l.queue, l.needs, l.tenant, l.turn limit 1),
      (select l.needs from headway_lanes l where l.open = 1 and l.queue > found.queue
        order by l.queue, l.needs, l.tenant, l.turn limit 1)),
    found.step + 1
  from found where found.queue is not null
)
select queue, needs from found where queue is not null and step > 0 limit :limit;

-- name: lane_heads
-- Read since when the next jobs of lanes wait, as far as this worker may start them.
select r.of_tenant as tenant, r.of_key as limit_key, r.of_task as limited_task,
  (
    select coalesce(j.ready_at, j.run_at) from headway_jobs j
    where j.status = 'PENDING' and j.queue = :queue and j.needs = :needs and j.tenant = r.of_tenant
      and j.limit_key = r.of_key and j.limited_task = r.of_task and (j.expires_at is null or j.expires_at > {now})
      and j.company is null and j.task not in {list skip}
    order by j.priority desc, j.run_at, j.id limit 1
  ) as ready_at, {now} as now
from {rows lanes as r (of_tenant text, of_key text, of_task text)};

-- name: waiting_needs
-- Find the next classes with ready jobs after a queue and its needs, by a loose scan of the index of ready jobs.
with recursive found (queue, needs, step) as (
  select cast(:queue as text), cast(:needs as text) {bytewise}, 0
  union all
  select
    coalesce(
      (select j.queue from headway_jobs j where j.status = 'PENDING' and j.queue = found.queue and j.needs > found.needs
        order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1),
      (select j.queue from headway_jobs j where j.status = 'PENDING' and j.queue > found.queue
        order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1)),
    coalesce(
      (select j.needs from headway_jobs j where j.status = 'PENDING' and j.queue = found.queue and j.needs > found.needs
        order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1),
      (select j.needs from headway_jobs j where j.status = 'PENDING' and j.queue > found.queue
        order by j.queue, j.needs, j.tenant, j.limit_key, j.limited_task, j.priority desc, j.run_at, j.id limit 1)),
    found.step + 1
  from found where found.queue is not null
)
select queue, needs from found where queue is not null and step > 0 limit :limit;

-- name: parked_needs
-- Find the next classes with jobs that are parked because no worker offered what they need.
with recursive found (queue, needs, step) as (
  select cast(:queue as text), cast(:needs as text) {bytewise}, 0
  union all
  select
    coalesce(
      (select j.queue from headway_jobs j where j.parked = 'needs' and j.queue = found.queue and j.needs > found.needs
        order by j.queue, j.needs limit 1),
      (select j.queue from headway_jobs j where j.parked = 'needs' and j.queue > found.queue
        order by j.queue, j.needs limit 1)),
    coalesce(
      (select j.needs from headway_jobs j where j.parked = 'needs' and j.queue = found.queue and j.needs > found.needs
        order by j.queue, j.needs limit 1),
      (select j.needs from headway_jobs j where j.parked = 'needs' and j.queue > found.queue
        order by j.queue, j.needs limit 1)),
    found.step + 1
  from found where found.queue is not null
)
select queue, needs from found where queue is not null and step > 0 limit :limit;

-- name: claim_unoffered
-- transition: PENDING -> RUNNING
-- Take ready jobs that need what no worker offers; they are parked in the same transaction.
update headway_jobs
set status = 'RUNNING', attempt = {next_attempt}, node = :node, lease_until = {now_once} + :lease, started_at = {now_once},
  progress = 0, detail = null, held = 0, updated_at = {now_once}, version = {next version}
where {addressed} from headway_jobs
  where status = 'PENDING' and queue = :queue and needs = :needs
  limit :limit {skip_locked}
{end_addressed}
returning id, attempt, failures, max_attempts, schedule, options;

-- name: unpark_needs
-- Let parked jobs of a class go on that a worker offers now; they keep their place in the queue.
update headway_jobs set parked = null, updated_at = {now}, version = {next version}
where {addressed} from headway_jobs
  where parked = 'needs' and queue = :queue and needs = :needs
  limit :limit {skip_locked}
{end_addressed}
  and status || '' = 'BLOCKED'
returning id, {notify_waiting};

-- name: prune_shares
-- Delete what tenants have used of classes without lanes; the shares of jobs without needs stay.
delete from headway_shares
where {picked shares as r (in_queue text, for_needs text, of_tenant text, most integer)} from headway_shares
  where queue = r.in_queue and needs = r.for_needs and tenant = r.of_tenant and open = 0
    and not exists (
      select 1 from headway_lanes l where l.queue = r.in_queue and l.needs = r.for_needs and l.tenant = r.of_tenant
    )
  {picked_limit}
{end_picked}
returning tenant;
