-- Windows of debounce, throttle and unique. A call locks the row of its tenant and key before it decides anything.

-- name: open_windows
-- Insert windows, or lock those that exist; return them as they are stored. Locks are taken in the order of :windows.
insert into headway_windows (tenant, key, kind, task, job_id, opened_at, until, merged)
select r.tenant, r.key, r.kind, r.task, r.job_id, {now}, {now} + r.span, 0
from {rows windows as r (tenant text, key text, kind text, task text, job_id text, span bigint)}
where true
on conflict (tenant, key) do update set until = headway_windows.until
returning tenant, key, kind, task, job_id, until, merged;

-- name: lock_scheduled
-- Lock those of these jobs that are scheduled, so that they are not promoted. Others are not locked: a running job may
-- wait for the window that the caller holds.
select id from headway_jobs where id in {list ids} and status || '' = 'SCHEDULED' order by id {lock};

-- name: window_jobs
-- Read the jobs of windows, and the time. This must be a statement after the locks: one that waited for a lock has an
-- old snapshot and an old time.
select {job_columns job.}, {now} as now from {jobs_of ids};

-- name: debounce
-- Give scheduled jobs newer arguments and another start; they expire as long after it as before.
update headway_jobs
set args = r.to_args, run_at = r.to_run_at, expires_at = r.to_run_at + (expires_at - run_at), updated_at = {now},
  version = {next version}
from {rows jobs as r (job_id text, to_args text, to_run_at bigint)}
where headway_jobs.id = r.job_id and headway_jobs.status || '' = 'SCHEDULED'
returning id, updated_at, version, {notify_ready};

-- name: set_windows
-- Write locked windows; without :until the window is opened again.
update headway_windows
set kind = r.to_kind, task = r.to_task, job_id = r.to_job, merged = r.to_merged,
  opened_at = case when r.to_until is null then {now} else opened_at end, until = coalesce(r.to_until, {now} + r.span)
from {rows windows as r (of_tenant text, of_key text, to_kind text, to_task text, to_job text, to_merged integer,
  to_until bigint, span bigint)}
where headway_windows.tenant = r.of_tenant and headway_windows.key = r.of_key
returning job_id;

-- name: windows
-- Find the jobs of windows.
select w.tenant, w.key, w.job_id from {rows keys as r (tenant text, key text)}
join headway_windows w on w.tenant = r.tenant and w.key = r.key;

-- name: prune_windows
-- Delete windows that have ended, except those of debounced jobs that are still scheduled.
delete from headway_windows
where {addressed} from headway_windows
  where until < {now} and not (kind = 'debounce' and exists (
    select 1 from headway_jobs where headway_jobs.id = headway_windows.job_id and headway_jobs.status = 'SCHEDULED'
  ))
  order by until limit :limit {skip_locked}
{end_addressed}
returning job_id;

-- name: prune_windows_of
-- Delete the windows of pruned jobs. One that is locked now is being opened again, or is deleted when it has ended.
delete from headway_windows
where {addressed} from headway_windows where job_id in {list ids} {skip_locked} {end_addressed};
