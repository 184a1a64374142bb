-- Sessions of users who signed in to the dashboard.

-- name: add_session
-- Insert a session of a token.
insert into headway_sessions (hash, token_hash, created_at, expires_at)
values (:hash, :token_hash, {now}, {now} + cast(:lifetime as bigint))
returning expires_at;

-- name: session_by_hash
-- Find a session that is not over, by its hash.
select token_hash, expires_at from headway_sessions where hash = :hash and expires_at > {now};

-- name: end_session
-- End a session.
delete from headway_sessions where hash = :hash returning token_hash;

-- name: end_old_sessions
-- Delete expired sessions, and all but the newest sessions of one token.
delete from headway_sessions
where expires_at <= {now}
  or hash in (
    select hash from headway_sessions where token_hash = :token_hash
    order by created_at desc, hash limit 1000000 offset :kept
  )
returning hash;
