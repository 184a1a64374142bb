-- What is known of people leaves the store; that something ran, when and how it ended stays.

-- name: erasable
-- Find jobs of a tenant, or the one with a key, in the order of their ids; and how many have not ended yet.
select id, finished_at from headway_jobs
where tenant = :tenant and (cast(:key as text) is null or key = :key) and id > :after order by id limit :limit;

-- name: erase_jobs
-- Empty ended jobs of what was handed in and what came of it. The key goes too: it may be a name.
update headway_jobs
set args = :nothing, result = null, error = null, metadata = null, detail = null, tags = null, options = null, key = null,
  callback = null, reason = 'erased', log_bytes = 0, updated_at = {now}, version = version + 1
where id in {list ids} and finished_at is not null
returning id;

-- name: erase_attempts
-- Forget what attempts said when they failed.
update headway_attempts set reason = 'erased', error = null where job_id in {list ids} returning attempt;

-- name: erase_events
-- Forget what was said when something happened to jobs; that it happened stays.
update headway_events set data = :nothing where job_id is not null and job_id {bytewise} in {list ids} returning seq;

-- name: erase_feed
-- Forget what followers were told of jobs.
delete from headway_feed where job_id in {list ids} returning seq;
