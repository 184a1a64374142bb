-- What the status API needs: an ordered feed of changes for those who follow, webhooks, tokens, a trail of actions.

insert into headway_schema (version, name) values (3, 'status');

alter table headway_jobs add column callback text;                       -- where the end of this job is told
alter table headway_log add column version bigint not null default 0;    -- of the job when the line was written
-- Only for installations with tenants: one index more costs every claim and every settlement of everybody.
create index headway_jobs_tenant on headway_jobs (tenant, id) where tenant <> 'default';
create index headway_jobs_latest on headway_jobs (tenant, task, id) where tenant <> 'default';

-- Who is looked at, and until when: job ids, or * for all. Changes of nobody else are fed.
create table headway_followed (
  scope {text} primary key,
  since bigint not null,                  -- without a break
  until bigint not null
);

-- Every version of a job that was followed, as it was. Written by triggers, so that nobody changes a job unseen; the
-- same triggers write down whom to tell about its end.
create table headway_feed (
  seq          {serial},
  xid          bigint not null,           -- the transaction; who reads finds out whether it may have missed one
  job_id       {text} not null,
  version      bigint not null,
  at           bigint not null,
  tenant       text not null,
  task         text not null,
  queue        text not null,
  schedule     text,
  key          text,
  tags         text,
  status       text not null,
  attempt      integer not null,
  failures     integer not null,
  max_attempts integer not null,
  progress     integer not null,
  detail       text,
  metadata     text,
  reason       text not null,
  started_at   bigint,
  finished_at  bigint,
  log_bytes    bigint not null
);
create unique index headway_feed_job on headway_feed (job_id, version);
create index headway_feed_xid on headway_feed (xid, seq);
create index headway_feed_at on headway_feed (at);

create table headway_endpoints (
  id          {text} primary key,
  tenant      text not null,              -- * for all of them
  url         text not null,              -- empty: what callback_url of each job says
  events      text not null,              -- JSON list
  secrets     text not null,              -- JSON list, the newest in front; all of them sign
  note        text not null,
  created_at  bigint not null,
  created_by  text not null,
  disabled_at bigint
);

create table headway_deliveries (
  id         {text} primary key,          -- of the message: the same for every try; sorts by its time
  endpoint   {text} not null,
  job_id     {text},
  tenant     text not null,
  event      text not null,
  url        text not null,
  status     text not null check (status in ('WAITING', 'DELIVERED', 'FAILED')),
  tries      integer not null,
  next_at    bigint,
  created_at bigint not null,
  ended_at   bigint,
  outcomes   text not null                -- JSON list of the last tries: when, code or error, how long
);
create unique index headway_deliveries_once on headway_deliveries (endpoint, job_id, event) where job_id is not null;
create index headway_deliveries_due on headway_deliveries (next_at) where next_at is not null;
create index headway_deliveries_ended on headway_deliveries (ended_at) where ended_at is not null;

create table headway_tokens (
  id         {text} primary key,
  hash       {text} not null,
  tenant     text not null,               -- * for all of them
  role       text not null check (role in ('viewer', 'operator', 'admin')),
  name       text not null,
  created_at bigint not null,
  created_by text not null,
  expires_at bigint,
  revoked_at bigint
);
create unique index headway_tokens_hash on headway_tokens (hash);

-- What people did. Rows are added and never changed.
create table headway_actions (
  seq    {serial},
  at     bigint not null,
  actor  text not null,
  tenant text not null,
  origin text not null,
  action text not null,
  target text not null,
  detail text not null
);
create index headway_actions_tenant on headway_actions (tenant, seq);

-- only for postgresql, as one statement:
create function headway_tell() returns trigger language plpgsql as $$
declare
  moment constant bigint := {view_now};
begin
  if exists (select 1 from headway_followed where until > moment) then
    insert into headway_feed (xid, job_id, version, at, tenant, task, queue, schedule, key, tags, status, attempt,
      failures, max_attempts, progress, detail, metadata, reason, started_at, finished_at, log_bytes)
    select cast(cast(pg_current_xact_id() as text) as bigint), c.id, c.version, moment, c.tenant, c.task, c.queue,
      c.schedule, c.key, c.tags, c.status, c.attempt, c.failures, c.max_attempts, c.progress, c.detail, c.metadata,
      c.reason, c.started_at, c.finished_at, c.log_bytes
    from changed as c
    where exists (select 1 from headway_followed as f where f.scope in ('*', c.id) and f.until > moment)
    on conflict (job_id, version) do nothing;
    if found then
      perform pg_notify('headway', 'feed');
    end if;
  end if;
  if exists (select 1 from headway_endpoints) then
    insert into headway_deliveries (id, endpoint, job_id, tenant, event, url, status, tries, next_at, created_at,
      outcomes)
    select 'msg_' || lpad(to_hex(moment), 14, '0') || substr(replace(cast(gen_random_uuid() as text), '-', ''), 1, 20),
      e.id, c.id, c.tenant, 'job.' || lower(c.status),
      case when e.url = '' then c.callback else e.url end, 'WAITING', 0, moment, moment, '[]'
    from changed as c join headway_endpoints as e on e.disabled_at is null and e.tenant in ('*', c.tenant)
      and (e.url <> '' or c.callback is not null)
      and (e.events = '["*"]' or strpos(e.events, '"job.' || lower(c.status) || '"') > 0)
    where c.finished_at = c.updated_at
    on conflict (endpoint, job_id, event) where job_id is not null do nothing;
    if found then
      perform pg_notify('headway', 'deliveries');
    end if;
  end if;
  return null;
end $$

-- only for postgresql, as one statement:
create trigger headway_tell_new after insert on headway_jobs
referencing new table as changed for each statement execute function headway_tell()

-- only for postgresql, as one statement:
create trigger headway_tell_change after update on headway_jobs
referencing new table as changed for each statement execute function headway_tell()

-- only for postgresql, as one statement:
create function headway_keep() returns trigger language plpgsql as $$
begin
  raise exception 'the trail of actions is only added to';
end $$

-- only for postgresql, as one statement:
create trigger headway_actions_kept before update or delete or truncate on headway_actions
for each statement execute function headway_keep()

-- only for sqlite, as one statement:
create trigger headway_tell_new after insert on headway_jobs
when exists (select 1 from headway_followed where scope in ('*', new.id) and until > {view_now})
begin
  insert or ignore into headway_feed (xid, job_id, version, at, tenant, task, queue, schedule, key, tags, status, attempt,
    failures, max_attempts, progress, detail, metadata, reason, started_at, finished_at, log_bytes)
  values (0, new.id, new.version, {view_now}, new.tenant, new.task, new.queue, new.schedule, new.key, new.tags, new.status,
    new.attempt, new.failures, new.max_attempts, new.progress, new.detail, new.metadata, new.reason, new.started_at,
    new.finished_at, new.log_bytes);
end

-- only for sqlite, as one statement:
create trigger headway_tell_change after update on headway_jobs
when exists (select 1 from headway_followed where scope in ('*', new.id) and until > {view_now})
begin
  insert or ignore into headway_feed (xid, job_id, version, at, tenant, task, queue, schedule, key, tags, status, attempt,
    failures, max_attempts, progress, detail, metadata, reason, started_at, finished_at, log_bytes)
  values (0, new.id, new.version, {view_now}, new.tenant, new.task, new.queue, new.schedule, new.key, new.tags, new.status,
    new.attempt, new.failures, new.max_attempts, new.progress, new.detail, new.metadata, new.reason, new.started_at,
    new.finished_at, new.log_bytes);
end

-- only for sqlite, as one statement:
create trigger headway_end after update on headway_jobs
when old.finished_at is null and new.finished_at is not null and exists (select 1 from headway_endpoints)
begin
  insert or ignore into headway_deliveries (id, endpoint, job_id, tenant, event, url, status, tries, next_at, created_at,
    outcomes)
  select 'msg_' || printf('%014x', {view_now}) || lower(hex(randomblob(10))), e.id, new.id, new.tenant,
    'job.' || lower(new.status),
    case when e.url = '' then new.callback else e.url end, 'WAITING', 0, {view_now}, {view_now}, '[]'
  from headway_endpoints as e
  where e.disabled_at is null and e.tenant in ('*', new.tenant) and (e.url <> '' or new.callback is not null)
    and (e.events = '["*"]' or instr(e.events, '"job.' || lower(new.status) || '"') > 0);
end

-- only for sqlite, as one statement:
create trigger headway_actions_kept before update on headway_actions
begin
  select raise(abort, 'the trail of actions is only added to');
end

-- only for sqlite, as one statement:
create trigger headway_actions_not_deleted before delete on headway_actions
begin
  select raise(abort, 'the trail of actions is only added to');
end

-- only for sqlite, as one statement:
create trigger headway_actions_not_replaced before insert on headway_actions
when exists (select 1 from headway_actions where seq = new.seq)
begin
  select raise(abort, 'the trail of actions is only added to');
end
