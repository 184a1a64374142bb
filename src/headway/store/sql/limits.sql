-- Limits and fairness: the claim by shares, and what operators define. ADR 40 explains tables, locks and their order:
-- the revision of the limits, then shares by name, then gates by name. Whoever opens a lane locks its share first.

-- name: limits_revision
-- Read the revision of the limits and keep it from changing until this claim is committed. Also say whether the queue is
-- paused, has jobs that do not ring, and has tenants whose jobs wait.
select value as revision, {now} as now,
  exists (select 1 from headway_queues where name = :queue and paused_at is not null) as is_paused,
  exists (
    select 1 from headway_jobs where status = 'PENDING' and queue = :queue and needs = :needs and tenant = 'default'
      and limit_key = '' and limited_task = '' and company is null
  ) as has_usual,
  (
    select s.tenant from headway_shares s
    where s.queue = :queue and s.needs = :needs and s.open = 1 and (s.tenant <> 'default' or :needs <> '')
    order by s.queue, s.needs, s.open, s.vtime, s.tenant limit 1
  ) is not null as has_open
from headway_counters where name = 'limits' {share};

-- name: lock_limits
-- Begin a change of the limits: wait for the claims that read the old ones, and let later ones wait.
{lock_limits};

-- name: raise_limits_revision
-- Tell claims to read the limits again.
update headway_counters set value = value + 1 where name = 'limits' returning value as revision, {now} as now;

-- name: limits
-- Read all limits.
select * from headway_limits order by name;

-- name: limit
-- Read one limit.
select * from headway_limits where name = :name;

-- name: put_limit
-- Create or change a limit.
insert into headway_limits (name, kind, stem, is_pattern, concurrency, rate, per, burst, owner, author, revision,
  in_force, relabel, updated_at)
values (:name, :kind, :stem, :is_pattern, :concurrency, :rate, :per, :burst, :owner, :author, :revision, :in_force,
  :relabel, {now})
on conflict (name) do update set concurrency = excluded.concurrency, rate = excluded.rate, per = excluded.per,
  burst = excluded.burst, owner = excluded.owner, author = excluded.author, revision = excluded.revision,
  updated_at = excluded.updated_at
returning in_force, {notify_limits};

-- name: limit_in_force
-- Put a limit in force, now that the attempts that run are counted.
update headway_limits set in_force = 1 where name = :name returning name, {notify_limits};

-- name: remove_limit
-- Remove a limit.
delete from headway_limits where name = :name returning name, {notify_limits};

-- name: record_limit
-- Record a change of a limit for the audit.
insert into headway_limit_revisions (revision, name, at, author, concurrency, rate, per, burst, removed)
values (:revision, :name, {now}, :author, :concurrency, :rate, :per, :burst, :removed);

-- name: mark_limited_queues
-- Claims from these queues must look at limits.
insert into headway_queues (name, paused_by, reason, limited) select value, '', '', 1 from {values names} where true
on conflict (name) do update set limited = 1 where headway_queues.limited = 0;

-- name: mark_unlimited_queues
-- Claims from other queues need not look at limits.
update headway_queues set limited = 0 where limited = 1 and name not in {list names} returning name;

-- name: mark_running
-- Count the attempts that run under one more kind of limit.
update headway_jobs set held = held | cast(:bit as integer) where lease_until is not null and (held & :bit) = 0
returning id;

-- name: writers
-- Find the transactions that write jobs now.
{writers};

-- name: relabelled_limit
-- Find a limit of tasks whose earlier jobs are not in lanes of their own yet, when no older transaction writes jobs.
select name, stem, is_pattern, relabel from headway_limits where relabel is not null and in_force = 1 limit 1;

-- name: relabel
-- Put the next jobs of limited tasks into lanes of their own; return the last id that was looked at.
select max(id) as last, count(*) as jobs from (
  select id from headway_jobs where id > :after order by id limit :limit
) as page;

-- name: relabel_jobs
-- Put jobs of limited tasks into lanes of their own.
update headway_jobs set limited_task = task
where id > :after and id <= :last and finished_at is null and limited_task = '' and {is_limited_task}
returning id, {notify_ready};

-- name: relabelled
-- Remember how far jobs have been put into lanes of their own.
update headway_limits set relabel = :relabel where name = :name returning name;

-- name: take_rings
-- Take the lanes of a queue that got ready jobs.
delete from headway_rings
where {addressed} from headway_rings where queue = :queue order by queue, seq limit :limit {skip_locked} {end_addressed}
returning needs, tenant, limit_key, limited_task;

-- name: open_shares
-- Lock shares in their order and open them. One that was closed starts where the least open one is: it has saved
-- nothing, and owes nothing more than before. The share of `default` may be open without jobs, because these do not ring.
insert into headway_shares (queue, needs, tenant, vtime, weight, cost, used, open)
select r.queue, r.needs, r.tenant,
  coalesce(
    (
      select min(s.vtime) from headway_shares s
      where s.queue = r.queue and s.needs = r.needs and s.open = 1
        and (s.tenant <> 'default' or cast(:has_usual as integer) = 1)
    ),
    (select max(s.vtime) from headway_shares s where s.queue = r.queue and s.needs = r.needs and s.open = 0), 0),
  coalesce((select t.weight from headway_tenants t where t.name = r.tenant), 1), :cost, 0, 1
from {rows shares as r (queue text, needs text, tenant text)}
where true
order by r.queue, r.needs, r.tenant
on conflict (queue, needs, tenant) do update set
  vtime = case
    when headway_shares.open = 0 and headway_shares.vtime < excluded.vtime then excluded.vtime
    else headway_shares.vtime
  end,
  weight = excluded.weight, open = 1;

-- name: open_lanes
-- Open lanes that got ready jobs, unless a gate holds them.
insert into headway_lanes (queue, needs, tenant, limit_key, limited_task, turn, open)
select r.queue, r.needs, r.tenant, r.limit_key, r.limited_task, {now}, 1
from {rows lanes as r (queue text, needs text, tenant text, limit_key text, limited_task text)}
where true
order by r.queue, r.needs, r.tenant, r.limit_key, r.limited_task
on conflict (queue, needs, tenant, limit_key, limited_task) do update set open = 1
  where headway_lanes.open = 0
    and (headway_lanes.held_by is null or headway_lanes.held_by = 'queue:' || headway_lanes.queue)
returning needs, tenant, limit_key, limited_task;

-- name: held_lanes
-- Find the lanes that have waited longest at these gates, up to :limit for each; not those that wait for a rate, unless
-- they wait for longer than :reach, which no rate asks for: then the clock was set back.
select l.queue, l.needs, l.tenant, l.limit_key, l.limited_task
from {each gates as r (gate text, reach bigint)} headway_lanes as h
  where h.held_by = r.gate and (h.look_at is null or h.look_at <= {now} or h.look_at > {now} + r.reach)
  order by h.turn limit :limit
{end_each headway_lanes as l};

-- name: due_lanes
-- Find lanes whose rate allows a start again.
select queue, needs, tenant, limit_key, limited_task from headway_lanes
where look_at is not null and look_at <= {now} order by look_at limit :limit;

-- name: reopen_lanes
-- Open lanes that waited at a gate.
update headway_lanes set open = 1, held_by = null, look_at = null
from {rows lanes as r (in_queue text, for_needs text, of_tenant text, of_key text, of_task text)}
where queue = r.in_queue and needs = r.for_needs and tenant = r.of_tenant and limit_key = r.of_key
  and limited_task = r.of_task and held_by is not null
returning queue, {notify_lanes};

-- name: next_shares
-- Take the tenants that have used least of a queue; other workers take others at the same time.
select tenant, vtime, weight, cost,
  (
    select count(*) from (
      select 1 from headway_shares s
      where s.queue = :queue and s.needs = :needs and s.open = 1 and s.tenant not in {list past}
      order by s.vtime, s.tenant limit :limit + 1
    ) as counted
  ) as open_shares
from headway_shares
where queue = :queue and needs = :needs and open = 1 and tenant not in {list past}
order by vtime, tenant limit :limit {skip_locked};

-- name: await_share
-- Wait for the tenant that has used least, when other claims have locked all of them.
select tenant from headway_shares
where queue = :queue and needs = :needs and open = 1 and tenant not in {list past}
order by vtime, tenant limit 1 {lock};

-- name: next_lanes
-- Read the open lanes of these tenants whose turn it is.
select l.tenant, l.limit_key, l.limited_task, l.held_by, l.look_at
from {each tenants as r (of_tenant text)}
  headway_lanes as h where h.queue = :queue and h.needs = :needs and h.tenant = r.of_tenant and h.open = 1
  order by h.turn limit :limit
{end_each headway_lanes as l};

-- name: lock_gates
-- Lock the gates by name; what runs is counted in the next statement, which sees what others committed meanwhile.
insert into headway_gates (name, state, used_at)
select r.gate, '', {now} from {rows gates as r (gate text)} where true order by r.gate
on conflict (name) do update set used_at = case
  when headway_gates.used_at > excluded.used_at then headway_gates.used_at else excluded.used_at
end
returning name, state;

-- name: count_running
-- Count the attempts that run under these gates.
select r.gate, {now} as now, case r.kind
  when 'queue' then (
    select count(*) from headway_jobs j where j.queue = r.value and j.lease_until is not null and (j.held & 1) = 1)
  when 'task' then (
    select count(*) from headway_jobs j where j.task = r.value and j.lease_until is not null and (j.held & 2) = 2)
  when 'tenant' then (
    select count(*) from headway_jobs j where j.tenant = r.value and j.lease_until is not null and (j.held & 4) = 4)
  when 'key' then (
    select count(*) from headway_jobs j where j.limit_key = r.value and j.lease_until is not null and (j.held & 8) = 8)
  end as running
from {rows gates as r (gate text, kind text, value text)};

-- name: gate_states
-- Read the recent starts of rates.
select name, state from headway_gates where name {among gates gate};

-- name: claim_lanes
-- transition: PENDING -> RUNNING
-- Take ready jobs of lanes, so many of each. Jobs of a limited task that are not in its lane yet are left alone.
update headway_jobs
set status = 'RUNNING', attempt = {next_attempt}, node = :node, lease_until = {now_once} + :lease, started_at = {now_once},
  progress = 0, detail = null, held = :held, updated_at = {now_once}, version = {next version}
where {picked lanes as r (of_tenant text, of_key text, of_task text, most integer)} from headway_jobs
  where status = 'PENDING' and queue = :queue and needs = :needs and tenant = r.of_tenant and limit_key = r.of_key
    and limited_task = r.of_task and (expires_at is null or expires_at > {now}) and task not in {list skip}
    and company is null and (limited_task <> '' or not {is_limited_task})
  order by priority desc, run_at, id {picked_limit}
{end_picked}
returning id, task, {bounded args}, attempt, failures, max_attempts, tenant, queue, priority, schedule, occurrence_at,
  {bounded options}, {bounded metadata}, {bounded reason}, run_at, log_bytes, limit_key, limited_task, started_at;

-- name: lanes_left
-- Say of each lane whether it has jobs that a worker may start, and this worker, and jobs that belong into another lane.
select r.of_tenant as tenant, r.of_key as limit_key, r.of_task as limited_task,
  exists (
    select 1 from headway_jobs where status = 'PENDING' and queue = :queue and needs = :needs and tenant = r.of_tenant
      and limit_key = r.of_key and limited_task = r.of_task and (expires_at is null or expires_at > {now})
      and company is null and (limited_task <> '' or not {is_limited_task})
  ) as is_left,
  exists (
    select 1 from headway_jobs where status = 'PENDING' and queue = :queue and needs = :needs and tenant = r.of_tenant
      and limit_key = r.of_key and limited_task = r.of_task and (expires_at is null or expires_at > {now})
      and company is null and (limited_task <> '' or not {is_limited_task}) and task not in {list skip}
  ) as is_ready,
  (cast(:has_tasks as integer) = 1 and r.of_task = '' and exists (
    select 1 from headway_jobs where status = 'PENDING' and queue = :queue and needs = :needs and tenant = r.of_tenant
      and limit_key = r.of_key and limited_task = '' and {is_limited_task}
  )) as is_unlabelled
from {rows lanes as r (of_tenant text, of_key text, of_task text)};

-- name: relabel_lanes
-- Put ready jobs of limited tasks that are in other lanes into lanes of their own.
update headway_jobs set limited_task = task
where {picked lanes as r (of_tenant text, of_key text, of_task text, most integer)} from headway_jobs
  where status = 'PENDING' and queue = :queue and needs = :needs and tenant = r.of_tenant and limit_key = r.of_key
    and limited_task = '' and r.of_task = '' and {is_limited_task}
  order by priority desc, run_at, id {picked_limit}
{end_picked}
returning id, {notify_ready};

-- name: unlabelled_ahead
-- Find jobs of limited tasks that are not in lanes of their own yet among the first ready ones of lanes: claims read past
-- them.
select j.id from {each lanes as r (of_tenant text, of_key text)} headway_jobs as h
  where h.status = 'PENDING' and h.queue = :queue and h.needs = :needs and h.tenant = r.of_tenant
    and h.limit_key = r.of_key and h.limited_task = '' order by h.priority desc, h.run_at, h.id limit :limit
{end_each headway_jobs as j} where {is_limited_task j.task};

-- name: relabel_ahead
-- Put these jobs of limited tasks into lanes of their own.
update headway_jobs set limited_task = task where id in {list ids} and status = 'PENDING' and limited_task = ''
returning id, {notify_ready};

-- name: mark_lanes
-- Write which lanes stay open, which wait at a gate, and whose turn is later.
update headway_lanes
set open = r.to_open, held_by = r.to_held_by, look_at = r.to_look_at, turn = r.to_turn
from {rows lanes as r (of_tenant text, of_key text, of_task text, to_open integer, to_held_by text, to_look_at bigint,
  to_turn bigint)}
where queue = :queue and needs = :needs and tenant = r.of_tenant and limit_key = r.of_key and limited_task = r.of_task;

-- name: mark_shares
-- Charge tenants for what was started, and close shares without open lanes.
update headway_shares
set vtime = vtime + r.charge,
  open = case
    when exists (
      select 1 from headway_lanes l
      where l.queue = :queue and l.needs = :needs and l.tenant = r.of_tenant and l.open = 1
    ) then 1 else 0
  end
from {rows shares as r (of_tenant text, charge bigint)}
where queue = :queue and needs = :needs and tenant = r.of_tenant and tenant {among shares of_tenant};

-- name: mark_gates
-- Write the recent starts of rates, and until when they count.
update headway_gates set state = r.to_state, used_at = r.counts_until
from {rows gates as r (gate text, to_state text, counts_until bigint)}
where name = r.gate and name {among gates gate};

-- name: lock_shares
-- Lock shares in the order in which they are given, which is that of their keys.
select s.tenant from {each shares as r (queue text, needs text, tenant text)}
  headway_shares as h where h.queue = r.queue and h.needs = r.needs and h.tenant = r.tenant limit 1 {lock}
{end_each headway_shares as s};

-- name: charge
-- Charge tenants for what their jobs took beyond what was charged when they started. Shares are locked in their order, and
-- only for this statement, because claims pass over shares that are locked. A tenant whose jobs never had to wait has no
-- share yet. The mean cost of a job moves the further the more jobs there were: their number is `used` / `cost`.
insert into headway_shares (queue, needs, tenant, vtime, weight, cost, used, open)
select c.in_queue, c.for_needs, c.of_tenant, c.more / c.weight, c.weight,
  case when c.jobs = 0 then :cost else c.took / c.jobs end, c.took, 0
from (
  select r.in_queue, r.for_needs, r.of_tenant, r.more, r.took, r.jobs,
    coalesce((select t.weight from headway_tenants t where t.name = r.of_tenant), 1) as weight
  from {rows charges as r (in_queue text, for_needs text, of_tenant text, more bigint, took bigint, jobs integer)}
) as c
where true
order by c.in_queue, c.for_needs, c.of_tenant
on conflict (queue, needs, tenant) do update set
  vtime = headway_shares.vtime + excluded.vtime, used = headway_shares.used + excluded.used,
  cost = case
    when excluded.used = 0 or excluded.cost = 0 then headway_shares.cost
    else (headway_shares.cost * 4 + excluded.used) / (4 + excluded.used / excluded.cost)
  end;

-- name: recheck_lanes
-- Look again at lanes that wait for rates with names like this, because the limit has changed.
update headway_lanes set look_at = {now}
where held_by is not null and look_at is not null and substr(held_by, 1, length(cast(:stem as text))) = :stem
returning queue;

-- name: limits_at_work
-- Say whether lanes wait at gates, and which limits are not complete: not in force since :age, or not relabelled.
select name, case when in_force = 0 then 1 else 0 end as is_late, revision from headway_limits
where relabel is not null or (in_force = 0 and updated_at < {now} - :age)
union all
select * from (select '', 0, 0 from headway_lanes where held_by is not null limit 1) as waiting;

-- name: waiting_gates
-- Find the next gates at which lanes wait, after a name.
with recursive found (gate) as (
  select (select held_by from headway_lanes where held_by is not null and held_by > :after order by held_by limit 1)
  union all
  select (select l.held_by from headway_lanes l where l.held_by is not null and l.held_by > found.gate
    order by l.held_by limit 1)
  from found where found.gate is not null
)
select gate from found where gate is not null limit :limit;

-- name: prune_gates
-- Delete gates that were not used for long and have no lane waiting.
with old as materialized (
  select name from headway_gates
  where used_at < {now} - :age and not exists (select 1 from headway_lanes l where l.held_by = headway_gates.name)
  order by used_at limit :limit {skip_locked}
)
delete from headway_gates where name in (select name from old) returning name;

-- name: prune_lanes
-- Delete lanes that have been empty for long.
with old as materialized (
  select queue, needs, tenant, limit_key, limited_task from headway_lanes
  where open = 0 and held_by is null and turn < {now} - :age
  limit :limit {skip_locked}
)
delete from headway_lanes
where (queue, needs, tenant, limit_key, limited_task) in (
  select queue, needs, tenant, limit_key, limited_task from old
)
returning queue as in_queue, needs as for_needs, tenant as of_tenant;

-- name: limit_holders
-- Read attempts that count under limits of one kind, those that have run longest first.
select id, task, tenant, queue, limit_key, started_at from headway_jobs
where lease_until is not null and (held & cast(:bit as integer)) = :bit
  and (cast(:tenant as text) is null or tenant = :tenant)
  and substr(
    case cast(:kind as text) when 'queue' then queue when 'task' then task when 'tenant' then tenant else limit_key end,
    1, length(cast(:stem as text))) = :stem
order by started_at, id limit :limit;

-- name: job_hold
-- Find the gate at which the lane of a ready job waits, and when its rate allows the next start.
select l.held_by as gate, l.look_at from headway_jobs j
join headway_lanes l on l.queue = j.queue and l.needs = j.needs and l.tenant = j.tenant and l.limit_key = j.limit_key
  and l.limited_task = j.limited_task
where j.id = :id and j.status || '' = 'PENDING' and l.held_by is not null;

-- name: job_share
-- Read what the tenant of a ready job has used of its queue, and how many tenants with jobs have used less.
select s.used, s.weight, (
    select count(*) from (
      select 1 as one from headway_shares o
      where o.queue = s.queue and o.needs = s.needs and o.open = 1 and o.vtime < s.vtime and o.tenant <> 'default'
      limit :limit
    ) as others
  ) as others
from headway_jobs j join headway_shares s on s.queue = j.queue and s.needs = j.needs and s.tenant = j.tenant
where j.id = :id and j.status || '' = 'PENDING';

-- name: running_of_tenant
-- Count the attempts of one tenant that run, by what limits look at.
select queue, task, limit_key, held, count(*) as running from headway_jobs
where lease_until is not null and tenant = :tenant
group by queue, task, limit_key, held order by queue, task, limit_key, held limit :limit;

-- name: tenant
-- Read the definition of one tenant.
select * from headway_tenants where name = :name;

-- name: put_tenant
-- Create or change the definition of a tenant.
insert into headway_tenants (name, weight, wait_slo, author, updated_at)
values (:name, :weight, :wait_slo, :author, {now})
on conflict (name) do update set weight = excluded.weight, wait_slo = excluded.wait_slo, author = excluded.author,
  updated_at = excluded.updated_at
returning name;

-- name: remove_tenant
-- Remove the definition of a tenant that this author has put.
delete from headway_tenants where name = :name and author = :author returning name;

-- name: weigh_shares
-- Change the weight of a tenant in the queues that it uses.
update headway_shares set weight = :weight where tenant = :name and weight <> :weight returning queue;

-- name: waiting_lanes
-- Count the ready jobs of a queue by lane, up to :limit.
select tenant, limit_key, limited_task, count(*) as jobs from (
  select tenant, limit_key, limited_task from headway_jobs where status = 'PENDING' and queue = :queue limit :limit
) as ready group by tenant, limit_key, limited_task;

-- name: usual_duration
-- Return the mean duration of the newest ended jobs of a queue; reads the newest :limit of all queues.
select avg(finished_at - started_at) as mean from (
  select queue, started_at, finished_at from headway_jobs where finished_at is not null
  order by finished_at desc limit :limit
) as ended where queue = :queue and started_at is not null and finished_at >= started_at;

-- name: attempt_spans
-- Read when attempts ran that had not ended before a time, in the order of their start.
select * from (
  select a.job_id, a.attempt, j.queue, j.task, j.tenant, j.limit_key, a.started_at, a.ended_at
  from headway_all_attempts a join headway_jobs j on j.id = a.job_id
  where a.started_at is not null and a.ended_at >= :since
  union all
  select id, attempt, queue, task, tenant, limit_key, started_at, null from headway_jobs
  where lease_until is not null and started_at is not null
) as spans
order by started_at, job_id, attempt limit :limit;

-- name: limit_revisions
-- Read how limits were defined over time, newest first.
select name, at, concurrency, rate, per, burst, removed from headway_limit_revisions
order by revision desc, name limit :limit;

-- name: prune_limit_revisions
-- Delete definitions that were replaced before the cutoff.
with old as materialized (
  select r.name, r.revision from headway_limit_revisions r
  where exists (
    select 1 from headway_limit_revisions n
    where n.name = r.name and n.revision > r.revision and n.at < {now} - :retention
  )
  limit :limit
)
delete from headway_limit_revisions where (name, revision) in (select name, revision from old) returning name;
