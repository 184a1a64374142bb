-- Who is followed, and the feed of their changes. Triggers write the feed; see migration 3.

-- name: follow_jobs
-- Have the changes of these jobs fed for a while; `*` are all jobs. Whoever was followed all the time keeps its `since`.
insert into headway_followed (scope, since, until)
select r.scope, {view_now}, {view_now} + :duration from {rows scopes as r (scope text)}
where true
on conflict (scope) do update set until = excluded.until,
  since = case when headway_followed.until > {view_now} then headway_followed.since else excluded.since end
returning scope, since;

-- name: forget_followed
-- Forget who is not followed any more.
delete from headway_followed where until < {view_now} - :age returning scope;

-- name: feed_position
-- Where is the feed now?
select {feed_position} as position;

-- name: feed
-- Read what has been committed since a position was taken, and, if another is given, until that one. Not what has a
-- higher number: numbers are given before the commit, and a lower one may come later.
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
-- Forget what happened a while ago; who comes back later is told to read everything anew.
delete from headway_feed where seq in (
  select seq from headway_feed where at < {view_now} - :age order by at limit :limit
)
returning xid, seq;

-- name: versions
-- Read the versions of these jobs, to find out whether any change was missed.
select job.id, job.version from {jobs_of ids};

-- name: stamps
-- Read of these jobs what changes whenever anything of them does: an extended lease is not another version.
select job.id, job.version, job.lease_until from {jobs_of ids};

-- name: jobs_by_id
-- Read these jobs.
select {job_columns job.} from {jobs_of ids};

-- name: log_since
-- Read the lines that a job logged after one of its versions.
select seq, attempt, at, stream, line, version from headway_log
where job_id = :id and version > :after and seq > :seq order by seq limit :limit;

-- name: last_line
-- Which line had a job logged last by one of its versions?
select attempt, at from headway_log where job_id = :id and version <= :version order by seq desc limit 1;
