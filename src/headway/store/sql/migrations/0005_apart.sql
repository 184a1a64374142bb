-- Jobs with which workers were lost run apart from each other, see ADR 33.

insert into headway_schema (version, name) values (5, 'apart');

alter table headway_jobs add column company integer;   -- null: no suspect; so many suspects at most run together; 0: alone
alter table headway_jobs add column apart_for bigint;  -- so long after its start a suspect is kept apart

create index headway_jobs_apart on headway_jobs (priority desc, run_at, id)
  where status = 'PENDING' and company is not null;
-- Who was lost with which worker. Few attempts end like that.
create index headway_attempts_lost on headway_attempts (node) where outcome = 'expired';
