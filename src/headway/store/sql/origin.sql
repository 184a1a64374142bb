-- Where this database comes from: marks that a restored backup does not fit, and what is done after a restore.

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
-- Forget a mark.
delete from headway_counters where name = :name;

-- name: server_identity
-- PostgreSQL only: which server, which database and which table this is. A copy of the rows has the marks of others.
select (select system_identifier from pg_control_system()) as system,
  cast((select oid from pg_database where datname = current_database()) as bigint) as database,
  cast(cast('headway_counters' as regclass) as bigint) as tables,
  case when pg_is_in_recovery() then 0
    else cast(cast('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) as bit(32)) as bigint) end as timeline;

-- name: raise_tokens
-- Give no token again that was ever given: fewer than a million a second were, so the time in microseconds is above all.
update headway_counters set value = case when value + 1000000 > {now} then value + 1000000 else {now} end
where name = 'token' returning value;

-- name: last_job_of_page
-- Up to which id does a page of jobs reach?
select max(id) as last from (select id from headway_jobs where id > :after order by id limit :limit) as page;

-- name: raise_attempts
-- The same for the attempts of jobs that have not ended: they are the tokens of these jobs.
update headway_jobs set attempt = attempt + :by
where id > :after and id <= :last and finished_at is null and attempt < :below
returning id;
