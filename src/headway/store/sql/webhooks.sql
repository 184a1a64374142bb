-- Webhooks: whom to tell (endpoints), and what was told (deliveries, which triggers write when a job ends).

-- name: add_endpoint
-- Keep whom to tell, unless its tenant has as many as it may.
insert into headway_endpoints (id, tenant, url, events, secrets, note, created_at, created_by)
select :id, cast(:tenant as text), :url, :events, :secrets, :note, {now}, :created_by
where (select count(*) from headway_endpoints where tenant = :tenant) < :most
returning *;

-- name: ensure_callbacks
-- Make what stands for the callback_url of a tenant's jobs, unless it is there.
insert into headway_endpoints (id, tenant, url, events, secrets, note, created_at, created_by)
values (:id, :tenant, '', '["*"]', :secrets, 'callback_url of each job', {now}, 'headway')
on conflict (id) do nothing
returning id;

-- name: endpoint
-- Read one.
select * from headway_endpoints where id = :id;

-- name: endpoint_to_change
-- Read one and keep it from being changed by others until the transaction ends.
select * from headway_endpoints where id = :id {lock};

-- name: endpoints
-- Read a page of them by id.
select * from headway_endpoints
where id > :after and (cast(:tenant as text) is null or tenant = :tenant)
order by id limit :limit;

-- name: endpoints_by_id
-- Read some of them, for those who send.
select * from headway_endpoints where id in {list ids};

-- name: change_endpoint
-- Write what was changed.
update headway_endpoints
set url = :url, events = :events, note = :note, secrets = :secrets,
  disabled_at = case when cast(:is_on as integer) = 1 then null else coalesce(disabled_at, {now}) end
where id = :id
returning *;

-- name: redirect_deliveries
-- Send what waits to the new address of its endpoint.
update headway_deliveries set url = :url
where endpoint = :id and job_id is not null and next_at is not null and url <> :url
returning id;

-- name: remove_endpoint
-- Tell it nothing more. What was told stays in the log; what waits is given up when its turn comes.
delete from headway_endpoints where id = :id returning id;

-- name: add_test
-- Write down a message about no job, which whoever adds it sends at once.
insert into headway_deliveries (id, endpoint, tenant, event, url, status, tries, next_at, created_at, outcomes)
values (:id, :endpoint, :tenant, :event, :url, 'WAITING', 0, {now} + cast(:lease as bigint), {now}, '[]')
returning *, {now} as now;

-- name: next_delivery
-- When is the next one due? Looked at first, so that waiting writes nothing.
select min(next_at) as next_at, {now} as now from headway_deliveries where next_at is not null;

-- name: claim_deliveries
-- Take what is due for a while, oldest first, but nothing for those who have enough under way. If nobody says how it
-- went before the while is over, it is due again.
with due as materialized (
  select id from headway_deliveries
  where next_at <= {now} and endpoint not in {list endpoints}
    and not exists (
      select 1 from {rows targets as t (target text)} where substr(url, 1, length(t.target)) = t.target
    )
  order by next_at limit :limit {skip_locked}
)
update headway_deliveries set next_at = {now} + cast(:lease as bigint)
where id in (select id from due)
returning *, {now} as now;

-- name: record_delivery
-- Write down how a try went, unless its time ran out and somebody else has taken it.
update headway_deliveries
set status = :status, tries = tries + cast(:tried as integer), outcomes = :outcomes,
  next_at = case when cast(:delay as bigint) is null then null else {now} + cast(:delay as bigint) end,
  ended_at = case when cast(:delay as bigint) is null then {now} end
where id = :id and next_at = :leased
returning *;

-- name: delivery
-- Read one, with whose endpoint it is for.
select d.*, e.tenant as owner from headway_deliveries as d left join headway_endpoints as e on e.id = d.endpoint
where d.id = :id;

-- name: deliveries
-- Read a page of them, newest first; with an owner those to its endpoints only.
select d.* from headway_deliveries as d
where d.id < :before
  and (cast(:endpoint as text) is null or d.endpoint = :endpoint)
  and (cast(:status as text) is null or d.status = :status)
  and (cast(:owner as text) is null
    or exists (select 1 from headway_endpoints as e where e.id = d.endpoint and e.tenant = :owner))
order by d.id desc limit :limit;

-- name: deliveries_of_job
-- Read those about one job, newest first; through the endpoints, because that is what the index begins with.
with told as materialized (
  select d.*, e.tenant as owner from headway_endpoints as e cross join headway_deliveries as d
  where d.endpoint = e.id and d.job_id = :job
)
select * from told
where id < :before
  and (cast(:endpoint as text) is null or endpoint = :endpoint)
  and (cast(:status as text) is null or status = :status)
  and (cast(:owner as text) is null or owner = :owner)
order by id desc limit :limit;

-- name: failed_deliveries
-- How many were given up lately? With an owner those to its endpoints only; counted up to :limit.
select count(*) as failed from (
  select 1 as one from headway_deliveries as d
  where d.ended_at is not null and d.ended_at >= {now} - :window and d.status = 'FAILED'
    and (cast(:owner as text) is null
      or exists (select 1 from headway_endpoints as e where e.id = d.endpoint and e.tenant = :owner))
  limit :limit
) as found;

-- name: replay_delivery
-- Send it again, now, to where its endpoint is now; the hours that it may take begin anew.
update headway_deliveries
set status = 'WAITING', tries = 0, next_at = {now}, created_at = {now}, ended_at = null,
  url = coalesce((select e.url from headway_endpoints as e where e.id = endpoint and e.url <> ''), url)
where id = :id
returning *;

-- name: prune_deliveries
-- Forget what ended long ago.
with old as materialized (
  select id from headway_deliveries
  where ended_at < {now} - cast(:age as bigint) order by ended_at limit :limit {skip_locked}
)
delete from headway_deliveries where id in (select id from old) returning id;
