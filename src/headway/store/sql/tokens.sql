-- API tokens; only their hashes are stored.

-- name: add_token
-- Insert a token that expires after :lifetime.
insert into headway_tokens (id, hash, tenant, role, name, created_at, created_by, expires_at)
values (:id, :hash, :tenant, :role, :name, {now}, :created_by, {now} + cast(:lifetime as bigint))
returning id, tenant, role, name, created_at, created_by, expires_at, revoked_at, 'valid' as state;

-- name: token_by_hash
-- Find a token by its hash, with its state.
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens where hash = :hash;

-- name: token_by_id
-- Find a token by its id, with its state.
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens where id = :id;

-- name: tokens
-- Read a page of tokens, newest first.
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens
where id < :before and (cast(:tenant as text) is null or tenant = :tenant)
order by id desc limit :limit;

-- name: any_token
-- Return whether a token was ever created, and whether one is valid.
select exists (select 1 from headway_tokens) as made,
  exists (
    select 1 from headway_tokens where revoked_at is null and (expires_at is null or expires_at > {now})
  ) as usable;

-- name: revoke_token
-- Revoke a token; one that is revoked already keeps its time.
update headway_tokens set revoked_at = {now}
where id = :id and revoked_at is null and (cast(:tenant as text) is null or tenant = :tenant)
returning id;
