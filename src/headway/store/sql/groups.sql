-- Groups of jobs (ADR 43). A group row is locked before any of its jobs. Who adds jobs locks it for share, who closes or
-- finishes it waits for them; no job that ends locks it.

-- name: open_group
-- Create a group; return no row when a batch of that name exists.
insert into headway_groups (id, kind, tenant, name, created_at, opened_by, open_for, open_until, on_done, on_failure,
  spec, rerun_of, look_at)
values (:id, :kind, :tenant, :name, {now}, :opened_by, :open_for, {now} + :open_for, :on_done, :on_failure, :spec,
  :rerun_of, {now} + :look_in)
on conflict (tenant, name) where kind = 'batch' do nothing
returning id;

-- name: batch_by_name
-- Find a batch by its name.
select id, on_done, on_failure from headway_groups where tenant = :tenant and name = :name and kind = 'batch';

-- name: unfinished_groups
-- Count the unfinished groups of a tenant, up to :limit.
select count(*) as groups from (
  select 1 as one from headway_groups where tenant = :tenant and kind = :kind and finished_at is null limit :limit
) as found;

-- name: group_page
-- Find groups, newest first.
select id from headway_groups
where kind = :kind and id < :before and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:finished as integer) is null or (finished_at is not null) = (cast(:finished as integer) = 1))
order by id desc limit :limit;

-- name: groups
-- Read groups with exact counts: what is in the row, what is not added to it yet, and what runs, as of one instant.
select g.*, {now} as now, coalesce(d.added, 0) as d_added, coalesce(d.completed, 0) as d_completed,
  coalesce(d.failed, 0) as d_failed, coalesce(d.timed_out, 0) as d_timed_out, coalesce(d.cancelled, 0) as d_cancelled,
  coalesce(d.retried, 0) as d_retried, d.added_at as d_added_at, d.began_at as d_began_at,
  coalesce(r.running, 0) as running
from headway_groups as g
left join (
  select group_id, cast(sum(added) as bigint) as added, cast(sum(completed) as bigint) as completed,
    cast(sum(failed) as bigint) as failed, cast(sum(timed_out) as bigint) as timed_out,
    cast(sum(cancelled) as bigint) as cancelled, cast(sum(retried) as bigint) as retried, max(added_at) as added_at,
    min(began_at) as began_at
  from headway_deltas where group_id {among groups id} group by group_id
) as d on d.group_id = g.id
left join (
  select group_id, count(*) as running from headway_jobs
  where group_id {among groups id} and group_id is not null and lease_until is not null group by group_id
) as r on r.group_id = g.id
where g.id {among groups id};

-- name: groups_of_tenant
-- Find which of these groups belong to a tenant.
select id from headway_groups where id {among groups id} and tenant = :tenant;

-- name: hold_groups
-- Keep groups from being closed and finished until the end of the transaction.
select id, tenant, name, closed_at, cancel_requested_at, finished_at from headway_groups
where id {among groups id} order by id {share};

-- name: hold_groups_of
-- The same for the groups of these jobs.
select id, name, closed_at, cancel_requested_at, finished_at from headway_groups
where id in (select group_id from headway_jobs where id in {list ids} and group_id is not null) order by id {share};

-- name: lock_group
-- Lock a group: wait for those who add jobs.
select id, tenant, name, total, completed, failed, timed_out, cancelled, retried, closed_at, cancel_requested_at,
  finished_at, open_for, on_done, on_failure, rerun_of, reason
from headway_groups where id = :id {lock};

-- name: lock_free_group
-- Lock a group to look at it, unless somebody adds jobs or looks at it now.
select id, tenant, name, total, completed, failed, timed_out, cancelled, retried, created_at, opened_by, open_for,
  open_until, began_at, closed_at, cancel_requested_at, finished_at, on_done, on_failure, spec, rerun_of, reason,
  {now} as now
from headway_groups where id = :id {skip_locked};

-- name: close_group
-- Close a group: it takes no more jobs from outside.
update headway_groups set closed_at = {now}, reason = :reason, look_at = 0
where id = :id and closed_at is null
returning id;

-- name: request_cancel_of_group
-- Close a group, and keep its jobs from going on.
update headway_groups
set closed_at = coalesce(closed_at, {now}), cancel_requested_at = {now}, reason = :reason, look_at = 0
where id = :id and finished_at is null and cancel_requested_at is null
returning id;

-- name: groups_at_work
-- Find groups that housekeeping has to look at: those with changed counts, and those whose time has come.
select id from (
  select distinct group_id as id from (select group_id from headway_deltas order by seq limit :deltas) as oldest
  union
  select id from (
    select id from headway_groups where look_at is not null and look_at <= {now} order by look_at limit :limit
  ) as due
) as found limit :limit;

-- name: next_look
-- Find when housekeeping has to look at a group next.
select min(look_at) as at from headway_groups where look_at is not null;

-- name: take_deltas
-- Take changes of the counts of a group.
delete from headway_deltas
where seq in (select seq from headway_deltas where group_id = :id order by seq limit :limit)
returning added, completed, failed, timed_out, cancelled, retried, added_at, began_at;

-- name: record_retries
-- Count dead letters that were rerun in their group.
insert into headway_deltas (group_id, retried)
select r.id, r.retried from {rows groups as r (id text, retried bigint)} where true;

-- name: update_group
-- Write the counts of a group, and when to look at it next.
update headway_groups
set total = :total, completed = :completed, failed = :failed, timed_out = :timed_out, cancelled = :cancelled,
  retried = :retried, open_until = :open_until, began_at = :began_at, closed_at = :closed_at, reason = :reason,
  look_at = :look_at
where id = :id
returning id;

-- name: finish_group
-- Finish a group, once.
update headway_groups set finished_at = {now}, outcome = :outcome, look_at = null
where id = :id and finished_at is null
returning finished_at;

-- name: is_job_completed
-- Check whether a job has completed.
select 1 as found from headway_jobs where id = :id and status = 'COMPLETED';

-- name: members_to_cancel
-- Find jobs of a group that have not ended and were not asked to stop.
select id from headway_jobs
where group_id = :id and finished_at is null and cancel_requested_at is null
order by id limit :limit;

-- name: members_to_retry
-- Find dead letters of a group that were not rerun.
select id from headway_jobs
where group_id = :id and status in ('FAILED', 'TIMED_OUT') and reviewed_at is null and reason <> 'erased'
  and not exists (select 1 from headway_jobs as again where again.rerun_of = headway_jobs.id and again.rerun_of is not null)
order by id limit :limit;

-- name: rerun_of_group
-- Find the group that repeats the failed jobs of a group.
select id, closed_at from headway_groups where rerun_of = :id and rerun_of is not null order by id desc limit 1;

-- name: batch_names
-- Find which of these names a tenant has given to batches.
select name from headway_groups where tenant = :tenant and name in {list names} and kind = 'batch';

-- name: prune_groups
-- Delete groups that finished before the cutoff and whose jobs are deleted.
delete from headway_groups
where id in (
  select g.id from headway_groups as g
  where g.finished_at is not null and g.finished_at < {now} - :retention
    and not exists (select 1 from headway_jobs as j where j.group_id = g.id)
  order by g.finished_at limit :limit
)
returning id;

-- name: prune_deltas
-- Delete what is left of deleted groups.
delete from headway_deltas where group_id in {list ids};

-- name: erase_groups
-- Erase names and callbacks of finished groups of a tenant; the counts stay.
update headway_groups
set name = id, reason = 'erased', on_done = null, on_failure = null, spec = null
where tenant = :tenant and finished_at is not null and reason <> 'erased'
returning id;
