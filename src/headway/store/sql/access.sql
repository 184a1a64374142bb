-- Tokens, of which only the hash is kept, and the trail of what people did.

-- name: add_token
-- Keep a new token; it expires so long after this moment.
insert into headway_tokens (id, hash, tenant, role, name, created_at, created_by, expires_at)
values (:id, :hash, :tenant, :role, :name, {now}, :created_by, {now} + cast(:lifetime as bigint))
returning id, tenant, role, name, created_at, created_by, expires_at, revoked_at, 'valid' as state;

-- name: token_by_hash
-- Whose is this token, and does it still count?
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens where hash = :hash;

-- name: token_by_id
-- Does this token still count?
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens where id = :id;

-- name: tokens
-- Read tokens page by page, the newest first.
select id, tenant, role, name, created_at, created_by, expires_at, revoked_at,
  case when revoked_at is not null then 'revoked' when expires_at <= {now} then 'expired' else 'valid' end as state
from headway_tokens
where id < :before and (cast(:tenant as text) is null or tenant = :tenant)
order by id desc limit :limit;

-- name: any_token
-- Was a token ever made, and does one still count?
select exists (select 1 from headway_tokens) as made,
  exists (
    select 1 from headway_tokens where revoked_at is null and (expires_at is null or expires_at > {now})
  ) as usable;

-- name: revoke_token
-- Let a token count no more; one that was revoked before keeps its time.
update headway_tokens set revoked_at = {now}
where id = :id and revoked_at is null and (cast(:tenant as text) is null or tenant = :tenant)
returning id;

-- name: add_action
-- Write down what somebody did, in one line or several.
insert into headway_actions (at, actor, tenant, origin, action, target, detail)
select {now}, r.actor, r.tenant, r.origin, r.action, r.target, r.detail
from {rows lines as r (actor text, tenant text, origin text, action text, target text, detail text)}
where true;

-- name: actions
-- Read the trail page by page, the newest first.
select seq, at, actor, tenant, origin, action, target, detail from headway_actions
where seq < :before
  and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:actor as text) is null or actor = :actor)
  and (cast(:action as text) is null or action = :action)
  and (cast(:target as text) is null or target = :target)
  and (cast(:since as bigint) is null or at >= :since)
  and (cast(:until as bigint) is null or at < :until)
order by seq desc limit :limit;

-- name: prune_actions
-- Delete what was written longer ago than :age, the oldest first. What is younger than 29 days cannot be deleted at all.
with old as materialized (
  select seq from (select seq, at from headway_actions order by seq limit :limit) as first_ones
  where at < {now} - cast(:age as bigint)
)
delete from headway_actions where seq in (select seq from old) returning seq;

-- name: add_session
-- Keep that somebody has signed in with a token.
insert into headway_sessions (hash, token_hash, created_at, expires_at)
values (:hash, :token_hash, {now}, {now} + cast(:lifetime as bigint))
returning expires_at;

-- name: session_by_hash
-- Which token does this session stand for? Nothing when it is over.
select token_hash, expires_at from headway_sessions where hash = :hash and expires_at > {now};

-- name: end_session
-- Let a session count no more.
delete from headway_sessions where hash = :hash returning token_hash;

-- name: end_old_sessions
-- Forget sessions that are over, and of one token all but the newest.
delete from headway_sessions
where expires_at <= {now}
  or hash in (
    select hash from headway_sessions where token_hash = :token_hash
    order by created_at desc, hash limit 1000000 offset :kept
  )
returning hash;
