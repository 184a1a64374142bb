-- What is known of people leaves the store; that something ran, when and how it ended stays.

-- name: erasable
-- Find jobs of a tenant in the order of their ids, and whether they have ended.
select id, finished_at from headway_jobs where tenant = :tenant and id > :after order by id limit :limit;

-- name: erasable_by_key
-- The same for the job with a key and every job that repeats it: they were given the same.
with recursive family (id) as (
  select id from headway_jobs where tenant = :tenant and key = :key
  union
  select again.id from family join headway_jobs as again on again.rerun_of = family.id
)
select id, finished_at from headway_jobs
where id in (select id from family) and tenant = :tenant and id > :after order by id limit :limit;

-- name: erase_jobs
-- Empty ended jobs of what was handed in and what came of it. The key goes too, unless it is needed to find the others
-- of its family: it may be a name.
update headway_jobs
set args = :nothing, result = null, error = null, metadata = null, detail = null, tags = null, options = null,
  key = case when :keeps_key = 1 then key end, callback = null, reason = 'erased', log_bytes = 0, updated_at = {now},
  version = {next version}
where id in {list ids} and finished_at is not null
returning id, tenant;

-- name: erase_attempts
-- Forget what attempts said when they failed.
update headway_attempts set reason = 'erased', error = null where job_id in {list ids} returning attempt;

-- name: erase_events
-- Forget what was said when something happened to jobs; that it happened stays.
update headway_events set data = :nothing where job_id is not null and job_id {bytewise} in {list ids} returning seq;

-- name: erase_callbacks
-- Forget where the end of jobs was told; what was not told yet is not told any more.
update headway_deliveries
set url = '', status = case when status = 'WAITING' then 'FAILED' else status end, next_at = null,
  ended_at = coalesce(ended_at, {now})
where endpoint = :endpoint and job_id in {list ids}
returning id;

-- name: erase_feed
-- Forget what followers were told of jobs.
delete from headway_feed where job_id in {list ids} returning seq;
