-- Webhooks (endpoints) and their messages (deliveries, which triggers write when a job ends).

-- name: add_endpoint
-- Insert an endpoint, unless its tenant has reached the limit.
insert into headway_endpoints (id, tenant, url, events, secrets, note, created_at, created_by)
select :id, cast(:tenant as text), :url, :events, :secrets, :note, {now}, :created_by
where (select count(*) from headway_endpoints where tenant = :tenant) < :most
returning *;

-- name: ensure_callbacks
-- Insert the endpoint that represents the callback_url of a tenant's jobs, unless it exists.
insert into headway_endpoints (id, tenant, url, events, secrets, note, created_at, created_by)
values (:id, :tenant, '', '["*"]', :secrets, 'callback_url of each job', {now}, 'headway')
on conflict (id) do nothing
returning id;

-- name: endpoint
-- Read one endpoint.
select * from headway_endpoints where id = :id;

-- name: endpoint_to_change
-- Read and lock one endpoint.
select * from headway_endpoints where id = :id {lock};

-- name: endpoints
-- Read a page of endpoints by id.
select * from headway_endpoints
where id > :after and (cast(:tenant as text) is null or tenant = :tenant)
order by id limit :limit;

-- name: endpoints_by_id
-- Read these endpoints, for the sender.
select * from headway_endpoints where id in {list ids};

-- name: change_endpoint
-- Update an endpoint.
update headway_endpoints
set url = :url, events = :events, note = :note, secrets = :secrets,
  disabled_at = case when cast(:is_on as integer) = 1 then null else coalesce(disabled_at, {now}) end
where id = :id
returning *;

-- name: redirect_deliveries
-- Redirect pending deliveries to the new URL of their endpoint.
update headway_deliveries set url = :url
where endpoint = :id and job_id is not null and next_at is not null and url <> :url
returning id;

-- name: remove_endpoint
-- Remove an endpoint. Its deliveries stay in the log; pending ones are discarded when they are due.
delete from headway_endpoints where id = :id returning id;

-- name: add_test
-- Insert a test message; the caller sends it at once.
insert into headway_deliveries (id, endpoint, tenant, event, url, status, tries, next_at, created_at, outcomes)
values (:id, :endpoint, :tenant, :event, :url, 'WAITING', 0, {now} + cast(:lease as bigint), {now}, '[]')
returning *, {now} as now;

-- name: next_delivery
-- Find when the next delivery is due. Read first, so that waiting writes nothing.
select min(next_at) as next_at, {now} as now from headway_deliveries where next_at is not null;

-- name: claim_deliveries
-- Claim due deliveries for a while, oldest first, but none for endpoints and targets that have their share in flight. A
-- delivery whose outcome is not recorded before the claim expires is due again.
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
-- Record the outcome of an attempt, unless its claim expired and another process has claimed it.
update headway_deliveries
set status = :status, tries = tries + cast(:tried as integer), outcomes = :outcomes,
  next_at = case when cast(:delay as bigint) is null then null else {now} + cast(:delay as bigint) end,
  ended_at = case when cast(:delay as bigint) is null then {now} end
where id = :id and next_at = :leased
returning *;

-- name: delivery
-- Read one delivery with the tenant of its endpoint.
select d.*, e.tenant as owner from headway_deliveries as d left join headway_endpoints as e on e.id = d.endpoint
where d.id = :id;

-- name: deliveries
-- Read a page of deliveries, newest first; with an owner only those to its endpoints.
select d.* from headway_deliveries as d
where d.id < :before
  and (cast(:endpoint as text) is null or d.endpoint = :endpoint)
  and (cast(:status as text) is null or d.status = :status)
  and (cast(:owner as text) is null
    or exists (select 1 from headway_endpoints as e where e.id = d.endpoint and e.tenant = :owner))
order by d.id desc limit :limit;

-- name: deliveries_of_job
-- Read the deliveries about one job, newest first; by endpoint, the first column of the index.
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
-- Count the deliveries that failed for good recently, up to :limit; with an owner only those to its endpoints.
select count(*) as failed from (
  select 1 as one from headway_deliveries as d
  where d.ended_at is not null and d.ended_at >= {now} - :window and d.status = 'FAILED'
    and (cast(:owner as text) is null
      or exists (select 1 from headway_endpoints as e where e.id = d.endpoint and e.tenant = :owner))
  limit :limit
) as found;

-- name: replay_delivery
-- Send a delivery again now, to the current URL of its endpoint; the retry period starts over.
update headway_deliveries
set status = 'WAITING', tries = 0, next_at = {now}, created_at = {now}, ended_at = null,
  url = coalesce((select e.url from headway_endpoints as e where e.id = endpoint and e.url <> ''), url)
where id = :id
returning *;

-- name: prune_deliveries
-- Delete old finished deliveries.
with old as materialized (
  select id from headway_deliveries
  where ended_at < {now} - cast(:age as bigint) order by ended_at limit :limit {skip_locked}
)
delete from headway_deliveries where id in (select id from old) returning id;
