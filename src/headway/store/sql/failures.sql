-- Failed jobs, grouped by error. Only the beginning of an error is read, which has its type and message: a traceback is
-- long, and there may be ten thousand of them.

-- name: dead_letters_page
-- Read a page of dead letters without their large columns, newest first.
select id, tenant, task, status, finished_at, reviewed_at, reason, substr(error, 1, :head) as error from headway_jobs
where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null and id < :before
  and (cast(:task as text) is null or task = :task)
  and (cast(:queue as text) is null or queue = :queue)
  and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:schedule as text) is null or {name_in schedule} = :schedule)
order by id desc
limit :limit;

-- name: dead_letters_among
-- Read these jobs, and whether they are dead letters.
select id, tenant, task, status, finished_at, reviewed_at, reason, substr(error, 1, :head) as error from headway_jobs
where id in {list ids}
order by id desc;

-- name: dead_errors
-- Count dead letters by task and error, the newest up to :limit.
select task, status, reason, error, count(*) as jobs, max(id) as newest,
  max(finished_at) as newest_at, min(finished_at) as oldest_at
from (
  select id, task, status, finished_at, case when error is null then reason end as reason,
    substr(error, 1, :head) as error
  from headway_jobs
  where status in ('FAILED', 'TIMED_OUT') and reviewed_at is null
    and (cast(:task as text) is null or task = :task)
    and (cast(:queue as text) is null or queue = :queue)
    and (cast(:tenant as text) is null or tenant = :tenant)
    and (cast(:schedule as text) is null or {name_in schedule} = :schedule)
  order by id desc limit :limit
) as letters group by task, status, reason, error;

-- name: failed_errors
-- Count the jobs that failed since a time by task and error, including reviewed ones; the newest up to :limit.
select task, status, reason, error, count(*) as jobs, max(id) as newest,
  max(finished_at) as newest_at, min(finished_at) as oldest_at
from (
  select id, task, status, finished_at, case when error is null then reason end as reason,
    substr(error, 1, :head) as error
  from headway_jobs
  where finished_at is not null and finished_at >= :since and status in ('FAILED', 'TIMED_OUT')
    and (cast(:task as text) is null or task = :task)
    and (cast(:queue as text) is null or queue = :queue)
    and (cast(:tenant as text) is null or tenant = :tenant)
    and (cast(:schedule as text) is null or {name_in schedule} = :schedule)
  order by finished_at desc limit :limit
) as failed group by task, status, reason, error;

-- name: failed_jobs
-- Read these jobs, newest first.
select {job_columns job.} from {jobs_of ids} order by job.id desc;
