"""The hot statements use their indexes: a million finished jobs or future schedules must not slow them down.

SQLite plans by rules, so an empty database shows the plan. PostgreSQL plans by statistics: its tables are filled, and
each statement is checked once with its actual parameters and once with the generic plan of a prepared statement.
"""

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import asyncpg
import pytest

from headway.core.instants import DAY, HOUR, MINUTE
from headway.store.sqlite import SqliteConnection
from headway.store.statements import POSTGRES, SQLITE, catalogue, migrations, positional
from tests.conformance import plans_of_groups, plans_of_limits, plans_of_needs
from tests.conformance.conftest import Databases
from tests.support.waiting import DEADLINE_S

JOB = "job_00000000000000000000000777"
IDS = json.dumps([JOB, "job_00000000000000000000000778"])
NAMES = json.dumps(["s-7", "s-8"])

# The condition that selects jobs; here, all of them.
ANY: dict[str, Any] = {
    "status": None,
    "task": None,
    "queue": None,
    "tenant": None,
    "schedule": None,
    "key": None,
    "tag": None,
    "words": None,
    "since": None,
    "until": None,
    "finished_after": None,
    "finished_before": None,
    "rerun_of": None,
    "group_id": None,
}

WHICH: dict[str, Any] = {"task": None, "queue": None, "tenant": None, "schedule": None}

# One set of parameters for every statement that runs in a loop, or for every job or schedule.
HOT: dict[str, dict[str, Any]] = {
    "due": {"shards": 4, "shard_ids": '["0", "2"]', "limit": 1_000},
    "next_due": {"shards": 4, "shard_ids": '["0", "2"]'},
    "live_jobs": {"names": '[{"name": "s-7"}, {"name": "s-8"}]'},
    "advance": {
        "plans": '[{"schedule": "s-7", "seen_version": 1, "to_decided_through": 5, "to_next_at": 6, "to_pauses": "[]"}]'
    },
    "record": {
        "occurrences": '[{"schedule": "s-7", "instant": 5, "count": 1, "outcome": "fired", "reason": "", "revision": 1,'
        ' "token": 1, "node": "n"}]'
    },
    "hold": {"key": "s-7", "version": 1, "pause": MINUTE, "attention": "x"},
    "follow": {"names": NAMES},
    "stranded": {"limit": 500},
    "schedule": {"tenant": "default", "name": "s-7"},
    "schedule_locked": {"tenant": "default", "name": "s-7"},
    "schedules": {
        "after_tenant": "default",
        "after": "s-7",
        "owner": None,
        "tenant": None,
        "words": None,
        "words_in_json": None,
        "state": None,
        "flagged": 3,
        "limit": 200,
    },
    "schedules_locked": {"names": '[{"tenant": "default", "name": "s-7"}, {"tenant": "acme", "name": "s-8"}]'},
    "schedules_named": {"names": '[{"tenant": "default", "name": "s-7"}, {"tenant": "acme", "name": "s-8"}]'},
    "schedule_whose": {"keys": NAMES},
    "schedule_events": {"schedule": "s-7", "events": '["triggered"]', "since": 0, "before": 2**62, "limit": 50},
    "definitions": {"names": NAMES},
    "recent_occurrences": {"names": '[{"name": "s-7"}, {"name": "s-8"}]', "number": 20, "first": -(2**60)},
    "calendar": {
        "schedule": "s-7",
        "since": 0,
        "before": 2**60,
        "stretches": f'[{{"begins": 0, "ends": {2**60}, "ahead": 3600000000}}]',
        "limit": 100_000,
    },
    "calendar_runs": {"schedule": "s-7", "since": 0, "before": 2**60, "limit": 10_000},
    "schedule_touch": {"key": "s-7", "version": 1},
    "revisions": {"schedule": "s-7"},
    "occurrences": {"schedule": "s-7", "before": 2**62, "since": 0, "limit": 50},
    "ledger": {"schedule": "s-7", "after": 0, "until": 2**62, "limit": 1_000},
    "ledger_keys": {"after": "s-7", "tenant": None, "limit": 200},
    "backlog": {"most": 10_000, "lanes": 5_000, "limit": 1_000},
    "dead_letters": {"limit": 10_000},
    "deliveries_waiting": {"limit": 10_000},
    "next_delivery": {},
    "claim_deliveries": {"limit": 4, "lease": MINUTE, "endpoints": '["wh_1"]', "targets": '[{"target": "http://a/"}]'},
    "record_delivery": {"id": "m", "leased": 1, "status": "FAILED", "tried": 1, "outcomes": "[]", "delay": None},
    "prune_deliveries": {"age": 30 * DAY, "limit": 500},
    "endpoint": {"id": "wh_1"},
    "endpoint_to_change": {"id": "wh_1"},
    "endpoints_by_id": {"ids": '["wh_1"]'},
    "delivery": {"id": "m"},
    "deliveries": {"before": "~", "endpoint": None, "status": None, "owner": "acme", "limit": 50},
    "redirect_deliveries": {"id": "wh_1", "url": "http://a/"},
    "replay_delivery": {"id": "m"},
    "failed_deliveries": {"window": DAY, "owner": None, "limit": 10_000},
    "prune_occurrences": {"retention": 30 * DAY, "limit": 500},
    "enqueue": {
        "jobs": json.dumps(
            [
                {"id": "job_new", "tenant": "t", "task": "t", "queue": "q", "priority": 0, "max_attempts": 1}
                | {"exclusive": 0, "key": "key-7", "args": "{}", "delay": 0, "reason": ""}
            ]
        )
    },
    "jobs_by_key": {"keys": '[{"tenant": "default", "key": "key-7"}]'},
    "promote": {"limit": 1_000},
    "promote_blocked": {"limit": 1_000},
    "promote_successors": {"ids": IDS},
    "next_promotion": {},
    "lock_lines": {"ids": IDS},
    "lock_jobs": {"ids": IDS},
    "bypass": {"ids": IDS},
    "leave_line": {"schedules": '["schedule-1"]'},
    "claim": {"queue": "default", "limit": 100, "node": "n", "lease": MINUTE, "skip": "[]"},
    "claim (skipping)": {"queue": "default", "limit": 100, "node": "n", "lease": MINUTE, "skip": '["a", "b"]'},
    "ready_queues": {"limit": 1_000},
    "extend": {"attempts": f'[{{"job_id": "{JOB}", "job_attempt": 1}}]', "lease": MINUTE},
    "settle": {
        "settlements": json.dumps(
            [{"job_id": JOB, "job_attempt": 1, "to_status": "FAILED", "final": 1, "to_failures": 1}]
        )
    },
    "settle_completed": {"attempts": f'[{{"job_id": "{JOB}", "job_attempt": 1, "to_result": "1"}}]'},
    "settled_already": {"attempts": f'[{{"job_id": "{JOB}", "attempt": 1, "outcome": "completed"}}]'},
    "count_failures": {"ends": '[{"schedule": "s-7", "failed": 1, "succeeded": 0}]'},
    "report": {"reports": f'[{{"job_id": "{JOB}", "job_attempt": 1, "to_progress": 5, "more_log": 0}}]'},
    "asked_to_stop": {"node": "n-7"},
    "hold_attempt": {"id": JOB, "attempt": 1},
    "step_sizes": {"ids": IDS},
    "steps": {"ids": IDS},
    "log": {"id": JOB, "after": 0, "limit": 1_000},
    "log_newest": {"id": JOB, "before": 2**62, "limit": 1_000},
    "events": {"id": JOB, "limit": 1_000},
    "unpark": {"tasks": '["t-1", "t-2"]', "cause": ""},
    "unpark_jobs": {"ids": IDS},
    "overdue": {"limit": 500},
    "dead": {
        "before": "~",
        "task": None,
        "queue": None,
        "tenant": None,
        "schedule": None,
        "limit": 50,
        "largest": 4_096,
    },
    "review": {"ids": IDS},
    "reruns": {"ids": IDS},
    "ahead": {"queue": "default", "priority": 1, "run_at": 2**50, "id": JOB, "limit": 10_000, "tenant": None},
    "running": {"limit": 200, "largest": 4_096},
    "running_counts": {},
    "dead_counts": {"limit": 10_000, "tenant": None},
    "dead_letters_page": {**WHICH, "before": "~", "head": 640, "limit": 1_000},
    "dead_letters_among": {"ids": IDS, "head": 640},
    "dead_errors": {**WHICH, "head": 640, "limit": 10_000},
    "failed_errors": {**WHICH, "since": 2**50, "head": 640, "limit": 10_000},
    "failed_jobs": {"ids": IDS, "largest": 4_096},
    "any_expired": {},
    "expired": {"limit": 500},
    "apart": {"tasks": '["t-1"]', "queues": "[]", "any_queue": 1, "unfit": "[]", "limit": 50},
    "claim_apart": {"id": JOB, "node": "n", "lease": MINUTE, "held": 0},
    "held_by_node": {"node": "n-1", "limit": 10_000},
    "beside": {"nodes": '[{"lost_node": "n-1", "since": 7}, {"lost_node": "n-2", "since": 7}]', "limit": 10_000},
    "cancel": {"ids": IDS, "reason": "r"},
    "request_cancel": {"ids": IDS, "reason": "r"},
    "job": {"id": JOB},
    "jobs_by_prefix": {"low": "job_0", "high": "job_0~"},
    "jobs": {**ANY, "before": "~", "limit": 50, "largest": 4_096},
    "jobs_of_tenant": {**ANY, "before": "~", "tenant": "acme", "limit": 50, "largest": 4_096},
    "jobs_rerunning": {**ANY, "before": "~", "rerun_of": JOB, "limit": 50, "largest": 4_096},
    "job_count_of_tenant": {**ANY, "tenant": "acme", "verb": "retry", "limit": 10_000},
    "jobs_to_act_of_tenant": {**ANY, "tenant": "acme", "verb": "retry", "limit": 1_000},
    "jobs_to_act_by_id": {"ids": IDS, "verb": "retry", "tenant": None},
    "jobs_to_repeat": {"ids": IDS},
    "job_states": {"ids": IDS},
    "latest_of_tenant": {"task": "t", "tenant": "acme", "key": None, "status": None},
    "versions": {"ids": IDS},
    "stamps": {"ids": IDS},
    "erasable": {"tenant": "acme", "after": "", "limit": 500},
    "erasable_by_key": {"tenant": "acme", "key": "k", "after": "", "limit": 500},
    "erase_jobs": {"ids": IDS, "nothing": "{}", "keeps_key": 0},
    "erase_callbacks": {"ids": IDS, "endpoint": "callbacks:acme"},
    "erase_attempts": {"ids": IDS},
    "erase_events": {"ids": IDS, "nothing": "{}"},
    "erase_feed": {"ids": IDS},
    "jobs_by_id": {"ids": IDS, "largest": 4_096},
    "last_line": {"id": JOB, "version": 3},
    "log_since": {"id": JOB, "after": 0, "seq": 0, "limit": 1_000},
    "feed_of_job": {"id": JOB, "after": 0, "limit": 1_000},
    "attempts": {"id": JOB, "limit": 1_000},
    "queue_depths": {},
    "live_counts": {"tenant": "acme", "limit": 100_000},
    "ended_counts": {"tenant": None, "window": HOUR, "limit": 100_000},
    "ended_series": {"tenant": None, "task": None, "queue": None, "since": 2**50, "step": MINUTE, "limit": 20_000},
    "waiting_counts": {},
    "prune_jobs": {"retention": 30 * DAY, "limit": 500},
    "prune_attempts": {"ids": IDS},
    "prune_log": {"ids": IDS},
    "prune_steps": {"ids": IDS},
    "prune_job_events": {"ids": IDS},
    "prune_events": {"retention": 30 * DAY, "limit": 500},
    "prune_leases": {"age": HOUR, "limit": 500},
    "held_by_others": {"names": '["occurrence/s-7/1"]', "holder": "n"},
    "adopt": {
        "leases": '[{"name": "occurrence/s-7/1", "token": 5}]',
        "holder": "n",
        "holder_name": "n",
        "duration": MINUTE,
    },
    "acquire": {
        "leases": '[{"name": "occurrence/s-7/1", "token": 5}]',
        "holder": "n",
        "holder_name": "",
        "duration": MINUTE,
    },
    "renew": {"leases": '[{"lease_name": "scheduler/0", "lease_token": 5}]', "holder": "n", "duration": MINUTE},
    "release": {"leases": '[{"lease_name": "scheduler/0", "lease_token": 5}]', "holder": "n"},
    "fence": {"names": '["scheduler/0"]', "holder": "n"},
    **plans_of_limits.HOT,
    **plans_of_needs.HOT,
    **plans_of_groups.HOT,
    "jobs_of_group": {**ANY, "before": "~", "group_id": plans_of_groups.GROUP, "limit": 50, "largest": 4_096},
    "open_windows": {
        "windows": '[{"tenant": "default", "key": "key-7", "kind": "unique", "task": "t", "job_id": "j", "span": 1}]'
    },
    "lock_scheduled": {"ids": IDS},
    "window_jobs": {"ids": IDS, "largest": 4_096},
    "debounce": {"jobs": f'[{{"job_id": "{JOB}", "to_args": "{{}}", "to_run_at": 5}}]'},
    "set_windows": {
        "windows": '[{"of_tenant": "default", "of_key": "key-7", "to_kind": "unique", "to_task": "t", "to_job": "j",'
        ' "to_merged": 1, "to_until": 5, "span": 0}]'
    },
    "windows": {"keys": '[{"tenant": "default", "key": "key-7"}]'},
    "prune_windows": {"limit": 500},
    "prune_windows_of": {"ids": IDS},
    "erase_windows": {"ids": IDS},
}
# The index has the requested order.
ORDERED = {
    "claim",
    "claim (skipping)",
    "due",
    "promote",
    "apart",
    "expired",
    "overdue",
    "dead",
    "log",
    "log_newest",
    "dead_letters_page",
    *plans_of_limits.ORDERED,
    *plans_of_needs.ORDERED,
    "prune_windows",
}
KEY = "headway_jobs_pkey|sqlite_autoindex_headway_jobs_1"
# Each of these has its own index, and reads the large table in no other way.
BY: dict[str, str] = {
    **dict.fromkeys(("claim", "claim (skipping)", "ready_queues", "ahead"), "headway_jobs_lane"),
    **dict.fromkeys(("extend", "settle", "settle_completed", "report", "hold_attempt", "unpark_jobs", "debounce"), KEY),
    "claim_apart": f"{KEY}|headway_jobs_apart",
    "apart": "headway_jobs_apart",
    "held_by_node": "headway_jobs_leased",
    "settled_already": f"{KEY}|headway_attempts_pkey|sqlite_autoindex_headway_attempts_1",
    "overdue": "headway_jobs_expiring",
    "asked_to_stop": "headway_jobs_asked",
    "dead": "headway_jobs_dead",
    **dict.fromkeys(("dead_counts", "dead_letters_page", "dead_errors"), "headway_jobs_dead"),
    "failed_errors": "headway_jobs_finished",
    "unpark": "headway_jobs_parked",
    "reruns": "headway_jobs_reruns",
    "jobs_rerunning": "headway_jobs_reruns",
    "running": "headway_jobs_leased",
    "running_counts": "headway_jobs_leased",
    "ended_counts": "headway_jobs_finished",
    "ended_series": "headway_jobs_finished",
    "log": "headway_log_job",
    "log_newest": "headway_log_job",
    "prune_log": "headway_log_job",
    **plans_of_limits.BY,
    **plans_of_needs.BY,
    **plans_of_groups.BY,
    "jobs_of_group": plans_of_groups.MEMBERS,
}
# They must also be planned well when a full table was empty a minute ago.
UNDER_LOAD = (
    "claim",
    "claim (skipping)",
    "ready_queues",
    "settle",
    "settle_completed",
    "settled_already",
    "report",
    "hold_attempt",
    "asked_to_stop",
    "overdue",
    "extend",
    "expired",
    "any_expired",
    "apart",
    "claim_apart",
    "held_by_node",
    "beside",
    "promote",
    "jobs_by_key",
    "enqueue",
    "job",
    "cancel",
    *plans_of_limits.UNDER_LOAD,
    *plans_of_needs.UNDER_LOAD,
    *plans_of_groups.UNDER_LOAD,
)
# Statements for people, run manually or rarely, and those on small tables.
COLD = {
    *(
        "schedule_add",
        "schedules_revise",
        "revision_add",
        "schedule_pauses",
        "schedule_counts",
        "outcome_counts",
        "missed",
        "failing",
        "held",
        "coming",
    ),
    *("raise_counter", "counter", "record_attempts", "record_events", "started_by_hand", "schema_version"),
    *("add_session", "session_by_hash", "end_session", "end_old_sessions"),
    *("next_tokens", "next_tokens_above", "leases", "time", "notify"),
    *("beat", "ask_node", "leave", "nodes", "prune_nodes"),
    *("record_log", "record_step", "queues_paused", "pause_queue", "resume_queue"),
    *("tallies", "keep_tally", "undecided", "oldest_transaction", "missed"),
    *("marks", "set_mark", "move_mark", "drop_mark", "server_identity"),
    *("raise_tokens", "last_job_of_page", "raise_attempts"),
    *("touch_jobs", "touch_attempts", "touch_schedules", "touch_occurrences", "touch_leases", "touch_nodes"),
    "touch_counter",
    *("add_endpoint", "ensure_callbacks", "endpoints", "change_endpoint", "remove_endpoint", "add_test"),
    "deliveries_of_job",
    "latest",
    *("job_count", "jobs_to_act"),
    *("follow_jobs", "forget_followed", "feed_position", "feed", "feed_again", "prune_feed"),
    *("tokens", "any_token", "token_by_id", "token_by_hash", "add_token", "revoke_token", "add_audit_entries"),
    *("audit_entries", "prune_audit_entries"),
    *plans_of_limits.COLD,
    *plans_of_groups.COLD,
}

BIG = (
    "headway_(?:jobs|schedules|occurrences|attempts|events|revisions|leases|log|steps|lanes|shares|gates|rings|windows"
    "|groups)"
)
# Partial indexes that hold only waiting or running jobs: scanning one reads only pending work.
SMALL = "headway_jobs_(?:lane|waiting|blocked|leased|apart|parked_needs)|headway_schedules_delay"


def test_every_statement_is_hot_or_cold() -> None:
    hot = {_statement(name) for name in HOT}
    assert hot | COLD == catalogue(SQLITE).keys()
    assert not hot & COLD
    assert HOT.keys() >= ORDERED | BY.keys() | set(UNDER_LOAD)


def _statement(name: str) -> str:
    """Return a statement by its name; a word in brackets distinguishes several sets of parameters."""
    return name.partition(" ")[0]


@pytest.fixture(scope="module")
def sqlite() -> Iterator[SqliteConnection]:
    connection = SqliteConnection(":memory:")
    for step in migrations(SQLITE):
        connection.script(step.statements)
    yield connection
    connection.raw.close()


@pytest.mark.parametrize("name", HOT)
def test_sqlite_searches(sqlite: SqliteConnection, name: str) -> None:
    plan = _sqlite_plan(sqlite, name)
    scans = [line for line in plan if re.search(r"\bSCAN\b", line) and "json_each" not in line]
    allowed = re.compile(
        rf"SCAN (?:\w+ USING (?:COVERING )?INDEX (?:{SMALL})\b|due|free|picked|old|gone|r|t|found|leased|ran|before_it|"
        r"place VIRTUAL TABLE INDEX 1:$|counted|locked|page|l USING INDEX headway_limits_task$|"
        r"headway_all_attempts$|headway_events_v$|CONSTANT ROW|\(.*\))"
    )
    if name == "next_due":  # Walks the index up to the first schedule of its shards.
        allowed = re.compile("SCAN headway_schedules USING INDEX headway_schedules_due")
    if name in ("dead_counts", "dead_errors", "failed_errors"):  # Walks the index up to its limit.
        allowed = re.compile("SCAN headway_jobs USING INDEX headway_jobs_dead|SCAN (?:letters|failed)")
    if name in ("backlog", "dead_letters", "deliveries_waiting"):  # The same.
        allowed = re.compile(
            r"SCAN headway_jobs USING (?:COVERING )?INDEX headway_jobs_(?:lane|dead)\b"
            r"|SCAN headway_deliveries USING INDEX headway_deliveries_due"
            r"|SCAN (?:CONSTANT ROW|heads|lanes|oldest|letters|waiting)$"
        )
    if name == "sharing_queues":  # Reads the first row, then looks up the next queue.
        allowed = re.compile(r"SCAN (?:headway_shares USING COVERING INDEX \w+|found|CONSTANT ROW|\(.*\))$")
    if name == "tenant_waits":  # Of the tenant `default` it looks at the newest jobs of all, up to its limit.
        allowed = re.compile(
            r"SCAN (?:headway_jobs USING INDEX sqlite_autoindex_headway_jobs_1|newest|newest_of_all|job)$"
        )
    if name in ("live_counts", "ended_counts"):  # Counts its results.
        allowed = re.compile(rf"SCAN \w+ USING INDEX (?:{SMALL})|SCAN (?:live|running|ready|waiting|blocked|ended)$")
    if name == "groups_at_work":  # Walks both up to its limit.
        allowed = re.compile(r"SCAN (?:headway_deltas|oldest|due|found|\(.*\))$")
    if name == "erasable_by_key":  # A job and its retries.
        allowed = re.compile(r"SCAN family$")
    if name in ("ended_series", "calendar", "calendar_runs"):  # Counts its results, up to a limit.
        allowed = re.compile(r"SCAN (?:looked_at|ranked|\(subquery-\d+\)|p|r|within_it|before_it)$")
    assert [line for line in scans if not allowed.search(line)] == [], "\n".join(plan)
    if name != "groups":  # It joins the sums of one page.
        assert not any("AUTOMATIC" in line for line in plan), "\n".join(plan)
    used = {index for line in plan for index in re.findall(r"(?:headway_jobs|other|j|a) USING.*? INDEX (\w+)", line)}
    if name in BY and name not in ("log", "log_newest", "prune_log"):
        assert used <= {*BY[name].split("|"), *KEY.split("|")}, "\n".join(plan)
    assert name not in BY or any(re.search(rf" INDEX (?:{BY[name]})\b", line) for line in plan)


def _sqlite_plan(sqlite: SqliteConnection, name: str) -> list[str]:
    rows = sqlite.raw.execute(f"explain query plan {catalogue(SQLITE)[_statement(name)].text}", HOT[name])
    return [row["detail"] for row in rows]


@pytest.mark.parametrize("name", sorted(ORDERED))
def test_sqlite_does_not_sort(sqlite: SqliteConnection, name: str) -> None:
    """The index has the requested order, so the limit ends the work, whatever the backlog."""
    assert not any("TEMP B-TREE" in line for line in _sqlite_plan(sqlite, name))


FILL = """
insert into headway_jobs (id, tenant, task, queue, priority, status, run_at, attempt, failures, max_attempts, exclusive,
  version, key, schedule, blocked_by, lease_until, args, created_at, updated_at, started_at, finished_at, progress,
  reason, node, cancel_requested_at, parked, expires_at, held, rerun_of)
select 'job_' || lpad(n::text, 26, '0'), 'default', 't-' || n % 9, 'default', n % 3, status, {now} + due, 1, 0, 1, 0, 1,
  case when n % 2 = 0 then 'key-' || n end, case when n % 4 = 0 then 's-' || n % 20000 end,
  case when status = 'BLOCKED' then 'job_' || lpad((n - 9000)::text, 26, '0') end,
  case when status = 'RUNNING' then {now} + 30000000 end, '{{}}' || repeat(' ', 300), {now}, {now}, {now},
  case when status in ('COMPLETED', 'FAILED') then {now} end, 0, '', 'n-' || n % 50,
  case when n % 20 = 0 then {now} end, case when status = 'BLOCKED' and n % 2 = 0 then 'unknown task' end,
  case when n % 5 = 0 then {now} + n * bigint '1000000' end, case when status = 'RUNNING' then 15 else 0 end,
  case when n % 400 = 7 then 'job_' || lpad((n - 1)::text, 26, '0') end
from generate_series(1, 60000) as n,
lateral (
  select case when n % 500 = 1 then 'FAILED' when n <= 50000 then 'COMPLETED' when n <= 53000 then 'PENDING'
    when n <= 57000 then 'SCHEDULED'
    when n <= 59800 then 'RUNNING' else 'BLOCKED' end as status,
    case when n between 53001 and 57000 then n * bigint '1000000' else 0 end as due
) as kind;
insert into headway_schedules (name, owner, tenant, slot, revision, version, definition, trigger_text, delay, next_at,
  decided_through, pauses, created_at, updated_at)
select 's-' || n, 'app', 'default', n * 2654435761 & 4294967295, 1, 1, '{{}}' || repeat(' ', 150), 'every 1h',
  case when n % 100 = 0 then 60000000 end, case when n % 100 <> 0 then {now} + (n - 500) * bigint '1000000' end,
  {now}, '[]', {now}, {now}
from generate_series(1, 20000) as n;
insert into headway_windows
select 'default', 'key-' || n, 'debounce', 't', 'job_' || lpad(n::text, 26, '0'), {now},
  {now} + (n - 500) * bigint '1000000', 0
from generate_series(1, 60000) as n;
insert into headway_revisions select 's-' || n, 1, {now}, '{{}}', '' from generate_series(1, 20000) as n;
insert into headway_occurrences (schedule, instant, count, outcome, reason, decided_at, revision, token, node)
select 's-' || n % 20000, n, 1, 'fired', '', {now}, 1, 1, 'n' from generate_series(1, 60000) as n;
insert into headway_attempts (job_id, attempt, ended_at, outcome, reason)
select 'job_' || lpad(n::text, 26, '0'), 1, {now}, 'failed', '' from generate_series(1, 50000) as n;
insert into headway_events (job_id, event, at, data)
select 'job_' || lpad(n::text, 26, '0'), 'cancelled', {now}, '{{}}' || repeat(' ', 60)
from generate_series(1, 50000) as n;
insert into headway_log (job_id, attempt, at, stream, line)
select 'job_' || lpad((n % 20000)::text, 26, '0'), 1, {now}, 'log', repeat('x', 60)
from generate_series(1, 60000) as n;
insert into headway_steps (job_id, name, attempt, at, result)
select 'job_' || lpad(n::text, 26, '0'), 'download', 1, {now}, '1' from generate_series(1, 60000) as n;
insert into headway_leases (name, holder, holder_name, token, since, until)
select 'occurrence/s-' || n || '/1', 'n', '', n, {now}, {now} + 30000000 from generate_series(1, 20000) as n;
"""


@pytest.fixture
async def unknown(request: pytest.FixtureRequest) -> AsyncIterator[asyncpg.Connection]:
    """Create tables on which only the test runs ANALYZE."""
    databases: Databases = request.getfixturevalue("postgres_databases")
    url = databases.take()
    connection = await asyncpg.connect(url, timeout=DEADLINE_S)
    try:
        for [table] in await connection.fetch("select tablename from pg_tables where tablename like 'headway%'"):
            await connection.execute(f"alter table {table} set (autovacuum_enabled = false)")
        yield connection
    finally:
        await connection.close()
        databases.drop(url)


@pytest.fixture
async def filled(unknown: asyncpg.Connection) -> asyncpg.Connection:
    """Fill the tables, with statistics from when they were empty."""
    await unknown.execute("analyze")
    await unknown.execute((FILL + plans_of_limits.FILL + plans_of_groups.FILL).format(now=POSTGRES.render("{now}")))
    return unknown


def _literal(value: object) -> str:
    return (
        "null" if value is None else str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
    )


async def _plans(connection: asyncpg.Connection, name: str) -> dict[str, str]:
    """Return the plan for these parameters, and the generic one."""
    statement = catalogue(POSTGRES)[_statement(name)]
    text = positional(statement, lambda index: f"${index}")
    values = [HOT[name][parameter] for parameter in statement.parameters]
    own = await connection.fetch(f"explain {text}", *values)
    await connection.execute(f"prepare looked_at as {text}")
    await connection.execute("set plan_cache_mode = force_generic_plan")
    arguments = f"({', '.join(map(_literal, values))})" if values else ""
    generic = await connection.fetch(f"explain execute looked_at {arguments}")
    await connection.execute("reset plan_cache_mode; deallocate looked_at")
    return {"own": "\n".join(row[0] for row in own), "generic": "\n".join(row[0] for row in generic)}


@pytest.mark.postgres
async def test_postgres_uses_its_indexes(filled: asyncpg.Connection) -> None:
    problems = await _problems(filled, UNDER_LOAD, "statistics of an empty table")
    await filled.execute("analyze")
    problems += await _problems(filled, HOT, "fresh statistics")
    assert problems == [], "\n\n".join(problems)


@pytest.mark.postgres
async def test_postgres_finds_jobs_by_id_in_a_small_new_table(unknown: asyncpg.Connection) -> None:
    """The planner would rather read a thousand rows than look up two."""
    few = FILL.partition(";")[0].replace("60000", "1000")
    await unknown.execute(few.format(now=POSTGRES.render("{now}")))
    problems = await _problems(unknown, ("versions", "stamps", "jobs_by_id"), "no statistics")
    assert problems == [], "\n\n".join(problems)


async def _problems(connection: asyncpg.Connection, names: Iterable[str], when: str) -> list[str]:
    problems = []
    for name in names:
        for kind, plan in (await _plans(connection, name)).items():
            if name.startswith("prune_") and kind == "generic":
                continue  # Without its parameters it seems to delete a large part of the table.
            if not _is_good(name, plan):
                problems.append(f"{name}, {kind} plan, {when}:\n{plan}")
    return problems


def _is_good(name: str, plan: str) -> bool:
    if re.search(rf"Seq Scan on {BIG}\b", plan):
        return False
    if _statement(name) == "claim" and re.search(r"-> +(?:Incremental )?Sort", plan):
        return False
    if name == "ready_queues" and "Aggregate" in plan:  # Reads the first row of each queue, not all.
        return False
    used = set(re.findall(r"(?:using|Bitmap Index Scan on) (headway_\w+)", plan))
    return name not in BY or bool(used & set(BY[name].split("|")))
