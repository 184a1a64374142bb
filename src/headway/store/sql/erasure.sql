-- Erase personal data; that a job ran, when and how it ended stays.

-- name: erasable
-- Find jobs of a tenant in the order of their ids, and whether they have ended.
select id, finished_at from headway_jobs where tenant = :tenant and id > :after order by id limit :limit;

-- name: erasable_by_key
-- The same for the job with a key and all its reruns: they have the same arguments.
with recursive family (id) as (
  select id from headway_jobs where tenant = :tenant and key = :key
  union
  select again.id from family join headway_jobs as again on again.rerun_of = family.id
)
select id, finished_at from headway_jobs
where id in (select id from family) and tenant = :tenant and id > :after order by id limit :limit;

-- name: erase_jobs
-- Erase arguments and results of ended jobs. The key, which may be personal data, is erased too, unless it is still
-- needed to find the unfinished jobs of its family.
update headway_jobs
set args = :nothing, {erased_columns}, options = null, key = case when :keeps_key = 1 then key end, reason = 'erased',
  log_bytes = 0, updated_at = {now}, version = {next version}
where id in {list ids} and finished_at is not null
returning id, tenant;

-- name: erase_attempts
-- Erase the errors of attempts.
update headway_attempts set reason = 'erased', error = null where job_id in {list ids} returning attempt;

-- name: erase_events
-- Erase the texts of events of jobs; the events stay.
update headway_events set data = :nothing where job_id is not null and job_id {bytewise} in {list ids} returning seq;

-- name: erase_callbacks
-- Erase the URLs of deliveries about jobs; pending ones are not sent any more.
update headway_deliveries
set url = '', status = case when status = 'WAITING' then 'FAILED' else status end, next_at = null,
  ended_at = coalesce(ended_at, {now})
where endpoint = :endpoint and job_id in {list ids}
returning id;

-- name: erase_feed
-- Delete the feed entries of jobs.
delete from headway_feed where job_id in {list ids} returning seq;

-- name: erase_windows
-- Delete the windows of jobs: their keys may be personal data.
delete from headway_windows where job_id in {list ids} returning job_id;
