"""Parameters of the statements of groups, for the tests of query plans."""

from typing import Any

from headway.core.instants import DAY

GROUP = "batch_00000000000000000000000777"
GROUPS = f'[{{"id": "{GROUP}"}}, {{"id": "batch_00000000000000000000000778"}}]'
IDS = f'["{GROUP}", "batch_00000000000000000000000778"]'
JOBS = '["job_00000000000000000000000777", "job_00000000000000000000000778"]'
KEYS = '[{"tenant": "default", "key": "key-7"}]'
COUNTS = {"total": 1, "completed": 1, "failed": 0, "timed_out": 0, "cancelled": 0, "retried": 0}
PAGE = {"kind": "batch", "before": "~", "limit": 50}

# Statements of every addition, of every read, and of every second.
HOT: dict[str, dict[str, Any]] = {
    "batch_by_name": {"tenant": "default", "name": "batch 7"},
    "unfinished_groups": {"tenant": "acme", "kind": "batch", "limit": 10_001},
    "group_page": {**PAGE, "tenant": None, "finished": None},
    "groups": {"groups": GROUPS},
    "groups_of_tenant": {"groups": GROUPS, "tenant": "default"},
    "hold_groups": {"groups": GROUPS},
    "hold_groups_of": {"ids": JOBS},
    "lock_group": {"id": GROUP},
    "lock_free_group": {"id": GROUP},
    "close_group": {"id": GROUP, "reason": ""},
    "request_cancel_of_group": {"id": GROUP, "reason": ""},
    "groups_at_work": {"deltas": 1_000, "limit": 100},
    "next_look": {},
    "take_deltas": {"id": GROUP, "limit": 1_000},
    "update_group": {
        "id": GROUP,
        **COUNTS,
        "open_until": 1,
        "began_at": None,
        "closed_at": None,
        "reason": "",
        "look_at": 1,
    },
    "finish_group": {"id": GROUP, "outcome": "completed"},
    "is_job_completed": {"id": "job_00000000000000000000000777"},
    "members_to_cancel": {"id": GROUP, "limit": 1_000},
    "members_to_retry": {"id": GROUP, "limit": 500},
    "rerun_of_group": {"id": GROUP},
    "batch_names": {"tenant": "default", "names": '["batch 7", "batch 8"]'},
    "prune_groups": {"retention": 30 * DAY, "limit": 500},
    "prune_deltas": {"ids": IDS},
    "keys_in_use": {"keys": KEYS},
}
GROUP_KEY = "headway_groups_pkey|sqlite_autoindex_headway_groups_1"
MEMBERS = "headway_jobs_group"
BY: dict[str, str] = {
    **dict.fromkeys(("members_to_cancel", "members_to_retry"), f"{MEMBERS}|headway_jobs_dead"),
    "groups": "headway_jobs_group_running|headway_jobs_leased",  # Either has only jobs that run.
    "batch_by_name": "headway_groups_name",
    **dict.fromkeys(("hold_groups", "lock_group", "lock_free_group", "update_group"), GROUP_KEY),
    "take_deltas": "headway_deltas_group",
    "groups_at_work": "headway_groups_look",
    "next_look": "headway_groups_look",
    "rerun_of_group": "headway_groups_reruns",
}
UNDER_LOAD = ("groups", "hold_groups", "lock_group", "lock_free_group", "take_deltas", "update_group", "keys_in_use")
# Statements for people, run by hand or rarely, and those on small tables.
COLD = {"open_group", "record_retries", "erase_groups", "job_count_of_group", "jobs_to_act_of_group"}
FILL = """
insert into headway_groups (id, kind, tenant, name, created_at, open_for, open_until, finished_at, rerun_of, look_at)
select 'batch_' || lpad(n::text, 26, '0'), 'batch', 'default', 'batch ' || n, {now}, 1, {now},
  case when n % 100 <> 0 then {now} end, case when n % 400 = 7 then 'batch_' || lpad((n - 1)::text, 26, '0') end,
  case when n % 100 = 0 then {now} + (n - 500) * bigint '1000000' end
from generate_series(1, 20000) as n;
insert into headway_deltas (group_id, completed)
select 'batch_' || lpad((n * 100)::text, 26, '0'), 1 from generate_series(1, 200) as n, generate_series(1, 20) as m;
update headway_jobs set group_id = 'batch_' || lpad((right(id, 26)::int % 2000)::text, 26, '0')
where right(id, 26)::int % 3 = 0;
"""
