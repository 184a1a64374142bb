-- The origin of this database: marks that detect a restored backup, and the repair after a restore.

-- name: marks
-- Read the marks.
select name, value from headway_counters where name like 'origin|%';

-- name: set_mark
-- Set a mark.
insert into headway_counters (name, value) values (:name, :value)
on conflict (name) do update set value = excluded.value;

-- name: move_mark
-- Move a mark to the store's time, never back.
insert into headway_counters (name, value) values (:name, {now})
on conflict (name) do update set value = excluded.value where headway_counters.value < excluded.value
returning value;

-- name: drop_mark
-- Delete a mark.
delete from headway_counters where name = :name;

-- name: server_identity
-- PostgreSQL only: identify server, database and table. A copy of the rows has the marks of the original.
select (select system_identifier from pg_control_system()) as system,
  cast((select oid from pg_database where datname = current_database()) as bigint) as database,
  cast(cast('headway_counters' as regclass) as bigint) as tables,
  case when pg_is_in_recovery() then 0
    else cast(cast('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) as bit(32)) as bigint) end as timeline;

-- name: raise_tokens
-- Never issue a token twice: fewer than a million a second were issued, so the time in microseconds exceeds them all.
update headway_counters set value = case when value + 1000000 > {now} then value + 1000000 else {now} end
where name = 'token' returning value;

-- name: last_job_of_page
-- Find the last id of a page of jobs.
select max(id) as last from (select id from headway_jobs where id > :after order by id limit :limit) as page;

-- name: raise_attempts
-- The same for the attempts of jobs that have not ended: they are the tokens of these jobs.
update headway_jobs set attempt = attempt + :by
where id > :after and id <= :last and finished_at is null and attempt < :below
returning id;
