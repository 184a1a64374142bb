-- The statements of /metrics and /readyz. Each returns a bounded number of rows, whatever is in the store.

-- name: tallies
-- Read the counters of every known node, and the sums of those that left, in one snapshot, so that a node that is just
-- leaving is counted once.
select * from (
  select id, roles, state, beat_at, 0 as value, {now} as now from headway_nodes order by beat_at desc limit :limit
) as nodes
union all
select name, '', '', 0, value, {now} from headway_counters where name like 'tally|%' and value > 0;

-- name: backlog
-- Count the pending jobs of each queue, up to :most, and find the oldest. A loose index scan goes from the first job of
-- a priority in a queue to the first of the next, so that it reads no more of a long queue than it counts. Nothing is
-- joined, since with old statistics a planner would read the whole table for each of these steps.
with recursive heads (id) as (
  select (select id from headway_jobs where status = 'PENDING' order by queue, priority desc, run_at, id limit 1)
  union all
  select coalesce(
    (select j.id from headway_jobs j
      where j.status = 'PENDING' and j.queue = (select h.queue from headway_jobs h where h.id = heads.id)
        and j.priority < (select h.priority from headway_jobs h where h.id = heads.id)
      order by j.queue, j.priority desc, j.run_at, j.id limit 1),
    (select j.id from headway_jobs j
      where j.status = 'PENDING' and j.queue > (select h.queue from headway_jobs h where h.id = heads.id)
      order by j.queue, j.priority desc, j.run_at, j.id limit 1)
  )
  from heads where heads.id is not null
),
lanes (queue, run_at) as (
  select (select h.queue from headway_jobs h where h.id = heads.id),
    (select h.run_at from headway_jobs h where h.id = heads.id)
  from heads where heads.id is not null limit :lanes
),
oldest (queue, oldest_at) as (select queue, min(run_at) from lanes group by queue)
select queue, oldest_at, {now} as now, (
  select count(*) from (
    select 1 as one from headway_jobs j where j.status = 'PENDING' and j.queue = oldest.queue limit :most
  ) as waiting
) as pending
from oldest order by queue limit :limit;

-- name: undecided
-- Find the oldest undecided instant, also of schedules that were set aside.
select {now} as now,
  (select min(next_at) from headway_schedules where next_at is not null) as next_at,
  (select min(decided_through) from headway_schedules where removed_at is null and attention is not null) as held_since,
  (select count(*) from headway_schedules where removed_at is null and attention is not null) as held;

-- name: missed
-- Find the schedules with instants recorded as missed since a time.
select schedule, sum(count) as instants, max(coalesce(until, instant)) as latest,
  (select tenant from headway_schedules where name = schedule) as tenant
from headway_occurrences
where decided_at >= {now} - :window and outcome = 'missed' and (
  cast(:tenant as text) is null or schedule in (select name from headway_schedules where tenant = :tenant)
) group by schedule order by latest desc, schedule limit :limit;

-- name: deliveries_waiting
-- Count pending deliveries and find the oldest; up to :limit, the first due first.
select count(*) as waiting, min(created_at) as oldest_at, {now} as now from (
  select created_at from headway_deliveries where next_at is not null order by next_at limit :limit
) as waiting;

-- name: dead_letters
-- Count dead letters, up to :limit.
select count(*) as letters from (
  select 1 as one from headway_jobs where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null limit :limit
) as letters;

-- name: oldest_transaction
-- PostgreSQL only: find the session or prepared transaction that keeps dead rows from being vacuumed. A role without
-- pg_monitor does not see since when sessions of other users have been open.
select * from (
  select extract(epoch from clock_timestamp() - xact_start) as age_s,
    concat('process ', pid, coalesce(' of ' || nullif(application_name, ''), ''), coalesce(', ' || state, '')) as who
  from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
    and (backend_xmin is not null or backend_xid is not null)
  union all
  select extract(epoch from clock_timestamp() - prepared), concat('prepared transaction ', gid)
  from pg_prepared_xacts where database = current_database()
) as found
order by age_s desc
limit 1;

-- name: touch_jobs
-- Take the lock that every writer needs, and change nothing: detects a locked table and a read-only server.
update headway_jobs set id = id where id = '';

-- name: touch_attempts
-- The same for the attempts.
update headway_attempts set job_id = job_id where job_id = '';

-- name: touch_schedules
-- The same for the schedules.
update headway_schedules set name = name where name = '';

-- name: touch_occurrences
-- The same for the decisions.
update headway_occurrences set schedule = schedule where schedule = '';

-- name: touch_leases
-- The same for the leases.
update headway_leases set name = name where name = '';

-- name: touch_nodes
-- The same for the nodes.
update headway_nodes set id = id where id = '';

-- name: touch_counter
-- Write a row: detects a full disk, and commits that no standby confirms.
insert into headway_counters (name, value) values ('probe', 1)
on conflict (name) do update set value = headway_counters.value + 1;
