-- Leases and nodes. Leases run on the store's own clock; tokens come from a counter that outlives every lease.

-- name: next_tokens
-- Take fresh fencing tokens; the returned one is the highest of them.
update headway_counters set value = value + :count where name = 'token' returning value;

-- name: next_tokens_above
-- Take fresh fencing tokens that are also above one that a coordination engine has issued.
update headway_counters set value = case when value > :above then value else :above end + :count
where name = 'token' returning value;

-- name: held_by_others
-- Find which of these leases another node holds. Read first, so that waiting for a lease writes nothing.
select name from headway_leases where name in {list names} and until > {now} and holder <> :holder;

-- name: acquire
-- Acquire leases that are free, have expired or are ours; those that another node holds are not returned.
insert into headway_leases (name, holder, holder_name, token, since, until)
select r.name, :holder, :holder_name, r.token, {now}, {now} + :duration
from {rows leases as r (name text, token bigint)}
where true
on conflict (name) do update
set holder = excluded.holder, holder_name = excluded.holder_name, token = excluded.token, since = excluded.since,
  until = excluded.until
where headway_leases.until <= {now} or headway_leases.holder = excluded.holder
returning name, token, until, since, {now} as now;

-- name: adopt
-- Take over leases from any holder: a coordination engine granted them to us. The old holder is fenced by its token.
insert into headway_leases (name, holder, holder_name, token, since, until)
select r.name, :holder, :holder_name, r.token, {now}, {now} + :duration
from {rows leases as r (name text, token bigint)}
where true
on conflict (name) do update
set holder = excluded.holder, holder_name = excluded.holder_name, token = excluded.token, since = excluded.since,
  until = excluded.until
returning name, token, until, since, {now} as now;

-- name: renew
-- Extend leases that are still ours; those that are not returned are lost.
update headway_leases
set until = {now} + :duration
from {rows leases as r (lease_name text, lease_token bigint)}
where headway_leases.name = r.lease_name and headway_leases.token = r.lease_token and headway_leases.holder = :holder
  and headway_leases.until > {now}
returning name, token, until, since, {now} as now;

-- name: release
-- Release leases at once; the row stays, so that the last holder is known.
update headway_leases
set until = {now}
from {rows leases as r (lease_name text, lease_token bigint)}
where headway_leases.name = r.lease_name and headway_leases.token = r.lease_token and headway_leases.holder = :holder
  and headway_leases.until > {now}
returning name, {notify_leases};

-- name: fence
-- Check that these leases are still ours, and lock them until the transaction ends.
select name, token, {now} as now from headway_leases
where name in {list names} and holder = :holder and until > {now} {share};

-- name: leases
-- Read the leases with a prefix.
select name, holder, holder_name, token, since, until, {now} as now from headway_leases
where name >= :low and name < :high order by name limit :limit;

-- name: prune_leases
-- Delete leases that expired long ago; tokens do not depend on them.
with old as materialized (
  select name from headway_leases where until < {now} - :age order by until limit :limit {skip_locked}
)
delete from headway_leases where name in (select name from old) returning name;

-- name: beat
-- Write the heartbeat of this node, and return the store's time. A row with an older heartbeat than the last
-- acknowledged one is left alone: then the store has lost data.
insert into headway_nodes (id, name, roles, version, started_at, beat_at, state)
values (:id, :name, :roles, :version, {now}, {now}, :state)
on conflict (id) do update set beat_at = {now}, state = excluded.state, roles = excluded.roles
where headway_nodes.beat_at >= :seen
returning {now} as now, asked, started_at;

-- name: ask_node
-- Write a request to a node; it reads it with its next heartbeat.
update headway_nodes set asked = :asked where id = :id returning id, {notify_beat};

-- name: leave
-- Deregister a node.
delete from headway_nodes where id = :id returning state;

-- name: nodes
-- Read the nodes with a recent heartbeat.
select id, name, roles, version, started_at, beat_at, state, asked, {now} as now from headway_nodes
where beat_at >= {now} - :age order by started_at, id limit :limit;

-- name: prune_nodes
-- Delete nodes without a recent heartbeat.
delete from headway_nodes where beat_at < {now} - :age returning id, state;

-- name: keep_tally
-- Add the counters of a leaving node to the sums of the nodes that left before it.
insert into headway_counters (name, value)
select r.name, r.number from {rows cells as r (name text, number bigint)}
where true
on conflict (name) do update set value = headway_counters.value + excluded.value;

-- name: time
-- Read the store's time.
select {now} as now;

-- name: notify
-- PostgreSQL only: notify listeners.
select {notify_payload};
