-- The followed jobs, and the feed of their changes. Triggers write the feed; see migration 3.

-- name: follow_jobs
-- Feed the changes of these jobs for a while; `*` means all jobs. One followed without a gap keeps its `since`.
insert into headway_followed (scope, since, until)
select r.scope, {view_now}, {view_now} + :duration from {rows scopes as r (scope text)}
where true
on conflict (scope) do update set until = excluded.until,
  since = case when headway_followed.until > {view_now} then headway_followed.since else excluded.since end
returning scope, since;

-- name: forget_followed
-- Delete jobs that are not followed any more.
delete from headway_followed where until < {view_now} - :age returning scope;

-- name: feed_position
-- Return the current position of the feed.
select {feed_position} as position;

-- name: feed
-- Read the changes committed since a position was taken and, if another one is given, up to that. A higher number is
-- not a later commit: numbers are assigned before the commit, and a lower one may be committed later.
select f.*, {feed_position} as position from headway_feed as f
where {feed_since} and f.seq > :seq and (cast(:until as text) is null or {feed_until})
order by f.seq limit :limit;

-- name: feed_again
-- Read everything that may have been committed since a position was taken.
select f.* from headway_feed as f where {feed_again} order by f.seq limit :limit;

-- name: feed_of_job
-- Read the versions of one job that were fed.
select f.* from headway_feed as f where f.job_id = :id and f.version > :after order by f.version limit :limit;

-- name: prune_feed
-- Delete old entries; a follower that resumes from before them must resync.
delete from headway_feed where seq in (
  select seq from headway_feed where at < {view_now} - :age order by at limit :limit
)
returning xid, seq;

-- name: versions
-- Read the versions of these jobs, to detect missed changes.
select job.id, job.version from {jobs_of ids};

-- name: stamps
-- Read the stamps of these jobs, which change with every change; an extended lease is not a new version.
select job.id, job.version, job.lease_until from {jobs_of ids};

-- name: jobs_by_id
-- Read these jobs.
select {job_columns job.} from {jobs_of ids};

-- name: log_since
-- Read the lines that a job logged after one of its versions.
select seq, attempt, at, stream, line, version from headway_log
where job_id = :id and version > :after and seq > :seq order by seq limit :limit;

-- name: last_line
-- Find the last log line of a job up to one of its versions.
select attempt, at from headway_log where job_id = :id and version <= :version order by seq desc limit 1;
