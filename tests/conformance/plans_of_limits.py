"""Parameters of the statements of limits and fairness, for the tests of query plans."""

import json
from typing import Any

from headway.core.instants import DAY, MINUTE

JOB = "job_00000000000000000000000777"
HERE = {"queue": "default", "needs": ""}
LANES = json.dumps([{"of_tenant": "default", "of_key": "", "of_task": "", "most": 10}])
HELD_LANES = json.dumps([{"in_queue": "default", "for_needs": "", "of_tenant": "t-7", "of_key": "", "of_task": ""}])
NEW_LANES = json.dumps([{"queue": "default", "needs": "", "tenant": "t-7", "limit_key": "", "limited_task": ""}])
SHARES = json.dumps([{"queue": "default", "needs": "", "tenant": "t-7"}])
GATES = json.dumps(
    [{"gate": f"account-{number}", "to_state": "1:1", "counts_until": 1, "reach": MINUTE} for number in (7, 8)]
)
COUNTED = json.dumps(
    [
        {"gate": f"{kind}:{value}", "kind": kind, "value": value}
        for kind, value in {"queue": "default", "task": "t-1", "tenant": "default", "key": "account-7"}.items()
    ]
)
CHARGES = json.dumps(
    [{"in_queue": "default", "for_needs": "", "of_tenant": "t-7", "more": 5, "took": 5, "jobs": 1}],
)
QUEUES = json.dumps([{"in_queue": "default", "for_needs": ""}])
PLACES = json.dumps([{"in_queue": "default", "for_needs": "", "of_tenant": "t-7"}])
RANGES = json.dumps([{"limit_name": "account-*", "low": "account-", "high": "account-\U0010ffff"}])
MARKS = json.dumps(
    [{"of_tenant": "t-7", "of_key": "", "of_task": "", "to_open": 1, "to_held_by": None, "to_look_at": 1, "to_turn": 1}]
)

# Statements of every claim, of every end of a limited attempt, and of every second.
HOT: dict[str, dict[str, Any]] = {
    "limits_revision": {**HERE},
    "take_rings": {"queue": "default", "limit": 1_000},
    "open_shares": {"shares": SHARES, "cost": 1, "has_usual": 1},
    "open_lanes": {"lanes": NEW_LANES},
    "held_lanes": {"gates": GATES, "limit": 100},
    "due_lanes": {"limit": 500},
    "reopen_lanes": {"lanes": HELD_LANES},
    "next_shares": {**HERE, "past": "[]", "limit": 64},
    "next_shares (past)": {**HERE, "past": '["t-1"]', "limit": 64},
    "await_share": {**HERE, "past": "[]"},
    "next_lanes": {**HERE, "tenants": '[{"of_tenant": "t-7"}, {"of_tenant": "t-8"}]', "limit": 16},
    "lock_gates": {"gates": GATES},
    "gate_states": {"gates": GATES},
    "count_running": {"gates": COUNTED},
    "claim_lanes": {**HERE, "node": "n", "lease": MINUTE, "held": 15, "skip": "[]", "lanes": LANES, "most": 10},
    "lanes_left": {**HERE, "skip": "[]", "has_tasks": 1, "lanes": LANES},
    "relabel_lanes": {**HERE, "lanes": LANES, "most": 10},
    "unlabelled_ahead": {**HERE, "lanes": LANES, "limit": 20},
    "relabel_ahead": {"ids": json.dumps([JOB])},
    "mark_lanes": {**HERE, "lanes": MARKS},
    "mark_shares": {**HERE, "shares": '[{"of_tenant": "t-7", "charge": 5}]'},
    "mark_gates": {"gates": GATES},
    "lock_shares": {"shares": SHARES},
    "charge": {"cost": 1, "charges": CHARGES},
    "suspect": {"id": JOB},
    "waiting_gates": {"after": "", "limit": 200},
    "relabel": {"after": "", "limit": 5_000},
    "relabel_jobs": {"after": "", "last": JOB},
    "prune_gates": {"age": 30 * DAY, "limit": 500},
    # What people see: none of these may read all jobs, lanes or tenants.
    "gate_holders": {"kind": "key", "value": "account-7", "tenant": None, "limit": 20},
    "held_lanes_of_limits": {"limits": RANGES, "most": 1_000},
    "open_lanes_of_queues": {"queues": '[{"in_queue": "default"}]', "most": 1_000},
    "sharing_queues": {"limit": 1_000},
    "pending_queues": {"limit": 1_000},
    "held_lanes_of_tenant": {"queues": QUEUES, "tenant": "t-7", "most": 1_000},
    "sharing_tenants": {"queues": QUEUES, "after": "t-1", "limit": 51},
    "tenant_shares": {"places": PLACES},
    "tenant_waits": {"tenant": "t-7", "newest": 10_000, "limit": 200},
    "tenant_backlog": {"places": PLACES, "most": 500},
    "running_seconds": {"tenant": None, "limit": 10_000},
    "running_seconds (tenant)": {"tenant": "t-7", "limit": 10_000},
}
ORDERED = {"next_shares", "await_share", "due_lanes", "relabel"}
LANE = "headway_jobs_lane"
BY: dict[str, str] = {
    **dict.fromkeys(("limits_revision", "claim_lanes", "lanes_left", "relabel_lanes", "unlabelled_ahead"), LANE),
    "count_running": "headway_jobs_held_queue|headway_jobs_held_task|headway_jobs_held_tenant|headway_jobs_held_key",
    "take_rings": "headway_rings_queue",
    "held_lanes": "headway_lanes_held",
    "waiting_gates": "headway_lanes_held",
    "due_lanes": "headway_lanes_look",
    "held_lanes_of_limits": "headway_lanes_held",
    "pending_queues": LANE,
    "tenant_backlog": LANE,
    "next_lanes": "headway_lanes_open",
    **dict.fromkeys(("next_shares", "next_shares (past)", "await_share"), "headway_shares_next"),
}
UNDER_LOAD = (
    "limits_revision",
    "take_rings",
    "open_shares",
    "open_lanes",
    "held_lanes",
    "due_lanes",
    "reopen_lanes",
    "next_shares",
    "next_lanes",
    "lock_gates",
    "count_running",
    "claim_lanes",
    "lanes_left",
    "mark_lanes",
    "mark_shares",
    "mark_gates",
    "charge",
)
# Statements for people, run by hand or rarely, and those on small tables.
COLD = {
    *("lock_limits", "raise_limits_revision", "limits", "limit", "put_limit", "limit_in_force", "remove_limit"),
    *("record_limit", "mark_limited_queues", "mark_unlimited_queues", "mark_running", "writers", "relabelled_limit"),
    *("relabelled", "recheck_lanes", "limits_at_work", "prune_lanes", "limit_holders"),
    *("running_of_tenant", "tenant", "tenants", "put_tenant", "remove_tenant", "weigh_shares", "next_tenants"),
    *("tenants_named", "tenants_with_slo", "used_of_queues", "limit_revisions", "prune_limit_revisions"),
    *("job_hold", "job_share", "waiting_lanes", "usual_duration", "attempt_spans"),
}
FILL = """
insert into headway_shares (queue, needs, tenant, vtime, weight, cost, used, open)
select 'default', '', 't-' || n, n, 1, 50000, 0, case when n % 20 = 0 then 1 else 0 end
from generate_series(1, 20000) as n;
insert into headway_lanes (queue, needs, tenant, limit_key, limited_task, turn, open, held_by, look_at)
select 'default', '', 't-' || n % 20000, case when n <= 20000 then '' else 'account-' || n end, '', n,
  case when n % 20 = 0 then 1 else 0 end, case when n % 20 = 1 then 'account-' || n end,
  case when n % 100 = 1 then {now} + n * bigint '1000000' end
from generate_series(1, 40000) as n;
insert into headway_gates (name, state, used_at)
select 'account-' || n, '', {now} - n * bigint '1000000' from generate_series(1, 20000) as n;
insert into headway_rings (queue, needs, tenant, limit_key, limited_task)
select 'queue-' || n % 100, '', 't-' || n, '', '' from generate_series(1, 20000) as n;
"""
