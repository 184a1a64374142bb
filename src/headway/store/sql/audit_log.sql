-- The audit log: who did what to what. Entries are never changed.

-- name: add_audit_entries
-- Add entries to the audit log.
insert into headway_actions (at, actor, tenant, origin, action, target, detail)
select {now}, r.actor, r.tenant, r.origin, r.action, r.target, r.detail
from {rows lines as r (actor text, tenant text, origin text, action text, target text, detail text)}
where true;

-- name: audit_entries
-- Read a page of the audit log, newest first.
select seq, at, actor, tenant, origin, action, target, detail from headway_actions
where seq < :before
  and (cast(:tenant as text) is null or tenant = :tenant)
  and (cast(:actor as text) is null or actor = :actor)
  and (cast(:action as text) is null or action = :action)
  and (cast(:target as text) is null or target = :target)
  and (cast(:since as bigint) is null or at >= :since)
  and (cast(:until as bigint) is null or at < :until)
order by seq desc limit :limit;

-- name: prune_audit_entries
-- Delete entries older than :age, oldest first. A trigger keeps entries that are younger than 29 days.
with old as materialized (
  select seq from (select seq, at from headway_actions order by seq limit :limit) as first_ones
  where at < {now} - cast(:age as bigint)
)
delete from headway_actions where seq in (select seq from old) returning seq;
