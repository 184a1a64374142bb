"""The command line as a user calls it, in this process, on a SQLite file in an empty folder."""

import json
import re
from pathlib import Path

import pytest

from headway import __version__
from headway.core.instants import parse_instant
from headway.store.statements import SQLITE, migrations
from tests.integration.test_cli_jobs import JobFactory
from tests.support.command_line import Cli, Result

SCHEMA = migrations(SQLITE)[-1].version


def put(cli: Cli, name: str = "daily", *options: str) -> Result:
    rule = options or ("--cron", "0 6 * * *", "--tz", "Europe/Berlin")
    return cli("schedules", "put", name, "--task", "report", *rule)


# --- first steps


def test_migrate_reports_both_schema_versions(cli: Cli) -> None:
    store = {"store": "sqlite:///headway.db"}
    assert cli("migrate", "--json").json == {**store, "before": 0, "after": SCHEMA}
    assert cli("migrate", "--json").json == {**store, "before": SCHEMA, "after": SCHEMA}
    assert cli("migrate").out == f"schema {SCHEMA}: nothing to do (sqlite:///headway.db)\n"


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"headway {__version__}\n"
    assert cli("--version", "--json").json == {"version": __version__}
    assert cli("--version", "status").code == 2


def test_reading_commands_do_not_create_a_missing_store(cli: Cli) -> None:
    for command in (
        ("status",),
        ("audit",),
        ("schedules", "list"),
        ("schedules", "show", "x"),
        ("schedules", "preview", "x"),
        ("jobs", "list"),
        ("jobs", "cancel", "job_x"),
    ):
        result = cli(*command)
        assert result.code == 5
        assert result.err.startswith("headway: there is no store at headway.db yet; `headway migrate` makes one")
    assert cli("doctor").code == 1
    assert list(cli.folder.iterdir()) == []


def test_global_options_work_before_and_after_the_command(cli: Cli) -> None:
    url = "sqlite:///other.db"
    for args in (
        ("--store", url, "--json", "migrate"),
        ("migrate", "--store", url, "--json"),
        ("--json", "migrate", "--store", url),
        ("--store", "sqlite:///wrong.db", "migrate", "--json", "--store", url),
    ):
        assert cli(*args).json["store"] == url
    assert cli("schedules", "--store", url, "list", "--json").json == []
    assert cli("--store", url, "schedules", "--json", "list").json == []
    assert not (cli.folder / "wrong.db").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("bogus",),
        ("schedules", "bogus"),
        ("schedules", "put"),
        ("schedules", "put", "x"),
        ("jobs", "list", "--limit", "many"),
        ("jobs", "list", "--limit", "0"),
        ("jobs", "list", "--status", "LOST"),
        ("jobs", "retry"),
        ("jobs", "cancel", "--status", "LOST"),
        ("jobs", "cancel", "job_1", "--task", "report"),
        ("jobs", "retry", "--status", "failed", "--watch"),
        ("status", "extra"),
        ("migrate", "--bogus"),
        ("--store", "mysql://x", "status"),
        ("--store", "", "migrate"),
        ("--app", "no such", "enqueue", "x"),
        ("enqueue", "x", "-a", "novalue"),
        ("enqueue", "x", "-a", "n=1", "-a", "n=2"),
        ("enqueue", "x", "--args", "[1]"),
        ("enqueue", "x", "--delay", "soon"),
        ("enqueue", "x", "--at", "tomorrow"),
        ("enqueue", "x", "--delay", "1s", "--at", "2027-01-01"),
        ("enqueue", "x", "--priority", "99999"),
        ("enqueue", "x", "--tag", ""),
        ("enqueue", "a\x1bb"),
        ("enqueue", "x", "-a", "n=\udc80"),
        ("enqueue", "x", "-a", "n=a\\u0000b", "--args", '{"n": "a\\u0000b", "m": "\\u0000"}'),
        ("scheduler", "--poll", "soon"),
        ("scheduler", "--shards", "0"),
        ("scheduler", "--coordination-mode", "chaos"),
        ("demo", "--seconds", "0"),
        ("schedules", "preview"),
        ("schedules", "preview", "* * *  * * nonsense"),
        ("schedules", "preview", "0 0 30 2 *"),
        ("schedules", "preview", "@never"),
        ("schedules", "preview", "*/0 * * * *"),
        ("schedules", "preview", "0 6 * * *", "--tz", "../../etc/passwd"),
        ("schedules", "preview", "0 6 * * *", "--dst", "maybe"),
        ("schedules", "preview", "0 6 * * *", "--every", "5s"),
        ("schedules", "preview", "--every", "5s", "--dst", "skip"),
        ("schedules", "preview", "0 6 * * *", "--from", "monday"),
        ("schedules", "preview", "0 6 * * *", "-n", "0"),
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2_and_one_line(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("headway: ")
    assert result.err.count("\n") == 1
    assert result.err[:-1].isprintable()
    error = cli(*args, "--json")
    assert error.code == 2
    assert error.error["message"]
    assert error.error["code"] in {"usage", "invalid_schedule", "invalid_task", "invalid_config", "definition_error"}


def test_similar_command_is_suggested(cli: Cli) -> None:
    assert "Did you mean 'schedules'" in cli("schedule", "list").err


def test_invalid_environment_fails_with_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STORE", "postgres//user:secret@host/db")
    result = cli("status")
    assert result.code == 2
    assert "HEADWAY_STORE must start with" in result.err
    assert "secret" not in result.err


def test_password_is_never_shown(cli: Cli) -> None:
    url = "postgresql://user:s3cr%2Ft@127.0.0.1:1/db?password=s3cr/t"
    for args in (("status",), ("migrate",), ("doctor",), ("doctor", "--json"), ("enqueue", "x"), ("audit", "--json")):
        result = cli(*args, "--store", url)
        assert result.code in (1, 5)
        assert "s3cr" not in result.out + result.err
    for address in ("user:pa/s3cr@host", "user:s3cr[@host", "user:x@s3cr@127.0.0.1:1", "user:x@host:s3cr"):
        result = cli("status", "--store", f"postgresql://{address}/db")
        assert result.code == 5
        assert "s3cr" not in result.err
        assert "'pa'" not in result.err


# --- preview


def test_preview_of_the_missing_hour(cli: Cli) -> None:
    args = ("schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2027-03-27", "-n", "3")
    rows = cli(*args, "--json").json
    assert [set(row) for row in rows] == [{"instant", "local", "note"}] * 3
    assert [(row["instant"], row["local"]) for row in rows] == [
        ("2027-03-27T01:30:00Z", "2027-03-27T02:30:00+01:00"),
        ("2027-03-28T01:00:00Z", "2027-03-28T03:00:00+02:00"),
        ("2027-03-29T00:30:00Z", "2027-03-29T02:30:00+02:00"),
    ]
    assert (rows[0]["note"], rows[2]["note"]) == (None, None)
    assert "02:30 does not exist" in rows[1]["note"]
    lines = cli(*args).out.splitlines()
    assert lines[0].split() == ["2027-03-27", "02:30", "+01:00", "01:30Z"]
    assert lines[1].startswith("2027-03-28 03:00 +02:00  01:00Z  02:30 does not exist")


def test_preview_of_other_triggers(cli: Cli) -> None:
    rows = cli("schedules", "preview", "--every", "30s", "--from", "2027-01-01", "-n", "2", "--json").json
    assert [row["instant"] for row in rows] == ["2027-01-01T00:00:00Z", "2027-01-01T00:00:30Z"]
    at = ("schedules", "preview", "--at", "2027-01-01T00:00", "--tz", "Asia/Tokyo", "--from", "2026-01-01", "--json")
    assert cli(*at).json == [{"instant": "2026-12-31T15:00:00Z", "local": "2027-01-01T00:00:00+09:00", "note": None}]
    skipped = ("schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin", "--dst", "skip", "--from", "2027-03-28")
    assert cli(*skipped, "-n", "1", "--json").json[0]["instant"] == "2027-03-29T00:30:00Z"
    seconds = ("schedules", "preview", "* * * * *", "--seconds", "*/20", "--from", "2027-01-01", "-n", "2", "--json")
    assert [row["instant"][-4:] for row in cli(*seconds).json] == ["00Z"[-4:].rjust(4, ":"), ":20Z"]
    assert cli("schedules", "preview", "--at", "2020-01-01").out.startswith("none")


def test_preview_of_a_schedule_by_name(cli: Cli) -> None:
    put(cli)
    rows = cli("schedules", "preview", "daily", "--from", "2027-01-01", "-n", "1", "--json").json
    assert rows == [{"instant": "2027-01-01T05:00:00Z", "local": "2027-01-01T06:00:00+01:00", "note": None}]
    assert cli("schedules", "preview", "nobody").code == 3
    put(cli, "poll", "--after", "10m")
    assert cli("schedules", "preview", "poll").code == 2


# --- schedules


def test_put_with_every_option_and_show(cli: Cli) -> None:
    result = put(
        cli,
        "full",
        *("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--dst", "both", "--args", '{"n": 1}', "-a", "s=x"),
        *("--overlap", "queue", "--queue-limit", "3", "--missed", "all", "--deadline", "4h", "--grace", "5s"),
        *("--catch-up-limit", "7", "--catch-up-rate", "10/m", "--jitter", "2m", "--start", "2090-01-01"),
        *("--end", "2091-01-01", "--queue", "media", "--priority", "5", "--tenant", "acme", "--max-attempts", "3"),
        *("--backoff", "5s..5m", "--tag", "a", "--tag", "b", "--expect", "10m"),
    )
    assert (result.code, result.err) == (0, "warning: no worker is alive\n")
    shape = cli("schedules", "show", "acme/full", "--json").json
    expected = {
        "name": "full",
        "task": "report",
        "trigger": {"kind": "cron", "expr": "30 2 * * *", "tz": "Europe/Berlin", "dst": "both"},
        "args": {"n": 1, "s": "x"},
        "overlap": "queue",
        "queue_limit": 3,
        "missed": "all",
        "deadline": "4h",
        "grace": "5s",
        "catch_up_limit": 7,
        "catch_up_rate": "10/m",
        "jitter": "2m",
        "start": "2090-01-01T00:00:00Z",
        "end": "2091-01-01T00:00:00Z",
        "expect": "10m",
        "queue": "media",
        "priority": 5,
        "tenant": "acme",
        "max_attempts": 3,
        "backoff": "5s..5m",
        "tags": ["a", "b"],
        "owner": "",
        "revision": 1,
        "paused": False,
        "pause": None,
        "attention": None,
        "next_at": "2090-01-01T01:30:00Z",
    }
    assert {name: shape[name] for name in expected} == expected
    assert len(shape["next"]) == 5
    assert "cron 30 2 * * * Europe/Berlin dst=both" in cli("schedules", "show", "acme/full").out
    assert "did you mean acme/full?" in cli("schedules", "show", "full").err


def test_put_creates_changes_or_keeps(cli: Cli) -> None:
    assert put(cli).out.startswith("daily created: cron 0 6 * * * Europe/Berlin\n")
    assert put(cli).out == "daily unchanged: cron 0 6 * * * Europe/Berlin\n"
    changed = put(cli, "daily", "--every", "1h")
    assert changed.out.startswith("daily changed: every 1h\n  before (cron 0 6 * * * Europe/Berlin)\n")
    assert cli("schedules", "show", "daily", "--json").json["revision"] == 2
    assert put(cli, "daily", "--every", "2h", "--json").json["outcome"] == "changed"


def test_put_dry_run_shows_before_and_after_and_writes_nothing(cli: Cli) -> None:
    assert put(cli, "daily", "--every", "1h", "--dry-run").out.startswith("daily would be created: every 1h\n")
    assert not (cli.folder / "headway.db").exists()
    put(cli)
    change = put(cli, "daily", "--cron", "0 7 * * *", "--dry-run", "--json").json
    assert (change["outcome"], change["dry_run"]) == ("changed", True)
    assert "T06:00:00+0" in change["before"][0]["local"]  # +01:00 in winter, +02:00 in summer.
    assert change["after"][0]["instant"].endswith("T07:00:00Z")
    assert cli("schedules", "show", "daily", "--json").json["revision"] == 1


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--every", "1s", "--cron", "@daily"),
        ("--every", "1us"),
        ("--every", "1s", "--tz", "UTC"),
        ("--at", "2020-01-01"),
        ("--cron", "0 6 * * * 2020"),
        ("--cron", "1,2,3" + ",4" * 10_000 + " * * * *"),
        ("--every", "1s", "--overlap", "maybe"),
        ("--every", "1s", "--missed", "never"),
        ("--every", "1s", "--catch-up-rate", "fast"),
        ("--every", "1s", "--queue-limit", "0"),
        ("--every", "1s", "--start", "2028-01-01", "--end", "2027-01-01"),
        ("--every", "1s", "--priority", "high"),
    ],
)
def test_invalid_schedules_are_rejected(cli: Cli, options: tuple[str, ...]) -> None:
    cli("migrate")
    for dry_run in ((), ("--dry-run",)):
        result = cli("schedules", "put", "x", "--task", "t", *options, *dry_run)
        assert (result.code, result.out) == (2, "")
        assert result.err.count("\n") == 1
        assert len(result.err) < 500
    assert cli("schedules", "list", "--json").json == []


def test_list_is_one_array_sorted_by_name_and_paged(cli: Cli) -> None:
    for name in ("c", "a", "b"):
        put(cli, name)
    assert [row["name"] for row in cli("schedules", "list", "--json").json] == ["a", "b", "c"]
    first = cli("schedules", "list", "--json", "--limit", "2")
    assert [row["name"] for row in first.json] == ["a", "b"]
    assert first.err == "there are more: --after 'b'\n"
    assert [row["name"] for row in cli("schedules", "list", "--json", "--after", "b").json] == ["c"]
    lines = cli("schedules", "list").out.splitlines()
    assert lines[0].split() == ["name", "rule", "task", "state", "next", "at", "(UTC)"]
    assert [line.split()[0] for line in lines[1:]] == ["a", "b", "c"]


def test_pause_and_resume(cli: Cli) -> None:
    put(cli)
    paused = cli("schedules", "pause", "daily", "--until", "30m", "--reason", "too loud", "--json").json
    assert paused["paused"] is True
    assert (paused["pause"]["reason"], paused["pause"]["author"]) == ("too loud", "cli")
    lasts = parse_instant(paused["pause"]["until"]) - parse_instant(paused["pause"]["since"])
    assert 20 < lasts / 60_000_000 <= 30  # Minus the time until the command reached the store.
    assert re.search(r" paused for 2\dm", cli("schedules", "list").out)
    assert cli("schedules", "pause", "daily").out.startswith("daily is already paused")
    assert cli("schedules", "pause", "daily", "--until", "1h").code == 2
    assert cli("schedules", "resume", "daily").out == "daily is on\n"
    assert cli("schedules", "resume", "daily").out == "daily is already on\n"
    assert cli("schedules", "pause", "daily", "--until", "2020-01-01").code == 2
    assert cli("schedules", "pause", "daily", "--until", "later").code == 2
    assert cli("schedules", "pause", "nobody").code == 3
    assert cli("schedules", "resume", "nobody").code == 3


def test_trigger_respects_the_overlap_policy(cli: Cli) -> None:
    put(cli)
    first = cli("schedules", "trigger", "daily", "-a", "day=today", "--json").json
    assert (first["status"], first["type"], first["schedule"]) == ("PENDING", "report", "daily")
    assert first["args"] == {"day": "today"}
    second = cli("schedules", "trigger", "daily", "--json").json
    assert (first["outcome"], second["outcome"], second["id"]) == ("started", "not started", first["id"])
    assert cli("schedules", "trigger", "daily").out == (
        f"not started: {first['id']} of this schedule is PENDING, and overlap=skip makes no second job\n"
    )
    assert len(cli("jobs", "list", "--schedule", "daily", "--json").json) == 1
    put(cli, "lined-up", "--every", "9d", "--overlap", "queue")
    ahead = cli("schedules", "trigger", "lined-up", "--json").json
    behind = cli("schedules", "trigger", "lined-up", "--json").json
    assert behind["status"] == "BLOCKED"
    assert behind["why"].startswith(f"waits for {ahead['id']} to end, as schedule lined-up runs one at a time")
    assert "queue_limit=1" in cli("schedules", "trigger", "lined-up").out
    assert cli("schedules", "trigger", "nobody").code == 3


def test_cron_expression_with_too_few_fields_is_not_a_name(cli: Cli) -> None:
    for text in ("0 6 * *", "*/5 *", "30 2 1 JAN", "0 6"):
        result = cli("schedules", "preview", text)
        assert (result.code, "fields" in result.err, "no schedule" in result.err) == (2, True, False), result.err
    put(cli, "report of May 5")
    assert cli("schedules", "preview", "report of May 5", "-n", "1", "--json").json
    assert cli("schedules", "preview", "report of").code == 3


def test_put_warns_of_schedules_that_cannot_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(
        "from headway import Headway\napp = Headway('sqlite:///headway.db')\n"
        "@app.task(expires='2h')\ndef bill(order: int) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rule = ("--every", "1h")
    misfit = cli("--app", "shop:app", "schedules", "put", "a", "--task", "bill", "-a", "count=1", *rule)
    assert (misfit.code, "warning: the arguments of 'a' do not fit 'bill'" in misfit.err) == (0, True), misfit.err
    fine = cli("--app", "shop:app", "schedules", "put", "b", "--task", "bill", "-a", "order=1", *rule, "--json")
    assert (fine.err, fine.json["warnings"], fine.json["expires"]) == ("", [], "2h")
    unknown = cli("schedules", "put", "c", "--task", "nobody-has-it", *rule, "--json")
    assert (unknown.code, unknown.json["warnings"]) == (0, ["no worker is alive"])
    factory = JobFactory("sqlite:///headway.db")
    factory.live()
    unknown = cli("schedules", "put", "d", "--task", "nobody-has-it", *rule)
    assert (unknown.code, "warning: no live worker knows the task 'nobody-has-it'" in unknown.err) == (0, True)


def test_apply_reads_a_file_that_also_has_tasks(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\nstore = "sqlite:///elsewhere.db"\n'
        '[tasks.backup]\ncommand = ["pg_dump", "{day}"]\nqueue = "slow"\nexpires = "3h"\n'
        '[schedules.nightly]\ntask = "backup"\ncron = "0 2 * * *"\nargs = { day = "today" }\n'
        '[schedules.odd]\ntask = "backup"\ncron = "0 3 * * *"\ntenant = "acme"\n'
    )
    dry = cli("schedules", "apply", "-f", str(file), "--dry-run")
    assert (dry.code, "nightly would be created" in dry.out) == (0, True), dry.err
    assert "acme/odd would be created" in dry.out
    assert "the arguments of 'acme/odd' do not fit 'backup'" in dry.err
    assert cli("schedules", "apply", "-f", str(file)).code == 0
    shown = cli("schedules", "show", "nightly", "--json").json
    assert (shown["queue"], shown["expires"], shown["owner"]) == ("slow", "3h", "file:shop.toml")
    assert "unchanged" in cli("schedules", "apply", "-f", str(file)).out
    put_lines = cli("trail", "--action", "schedule.put", "--json").json
    assert sorted((line["tenant"], line["target"]) for line in put_lines) == [("acme", "odd"), ("default", "nightly")]
    file.write_text(file.read_text() + "colour = 1\n")
    assert cli("schedules", "apply", "-f", str(file)).code == 2
    file.write_text('[tasks.backup]\nnonsense = 1\n[schedules.a]\ntask = "backup"\nevery = "1h"\n')
    broken = cli("schedules", "apply", "-f", str(file), "--dry-run")
    assert (broken.code, "tasks.backup" in broken.err) == (2, True)


def test_schedules_of_other_tenants_are_named_tenant_slash_name(cli: Cli) -> None:
    rule = ("--task", "report", "--cron", "0 6 * * *")
    assert "report created" in cli("schedules", "put", "report", *rule).out
    assert "acme/report created" in cli("schedules", "put", "acme/report", *rule).out
    assert "globex/report created" in cli("schedules", "put", "report", "--tenant", "globex", *rule).out
    names = [row.split()[0] for row in cli("schedules", "list").out.splitlines()[1:]]
    assert names == ["acme/report", "report", "globex/report"]
    found = cli("schedules", "list", "--json").json
    assert [(one["tenant"], one["name"]) for one in found] == [(t, "report") for t in ("acme", "default", "globex")]
    assert next(one["tenant"] for one in cli("schedules", "list", "--after", "acme/report", "--json").json) == "default"
    assert cli("schedules", "pause", "acme/report").out.startswith("acme/report is paused")
    assert [one["paused"] for one in cli("schedules", "list", "--json").json] == [True, False, False]
    job = cli("schedules", "trigger", "acme/report", "--json").json
    assert (job["tenant"], job["schedule"]) == ("acme", "report")
    assert [one["id"] for one in cli("jobs", "list", "--schedule", "acme/report", "--json").json] == [job["id"]]
    assert cli("jobs", "list", "--schedule", "report", "--json").json == []
    assert "acme/report" in cli("jobs", "list", "--schedule", "acme/report").out
    [run] = cli("schedules", "history", "acme/report", "--json").json
    assert (run["outcome"], run["job_id"], run["tenant"]) == ("triggered", job["id"], "acme")
    assert "triggered: by cli" in cli("schedules", "history", "acme/report").out
    assert cli("schedules", "history", "report", "--json").json == []
    assert cli("audit", "--schedule", "globex/report").out.startswith("ok: 1 schedule")
    assert cli("schedules", "preview", "acme/report", "-n", "1", "--json").json
    assert cli("schedules", "remove", "acme/report", "--yes").out == "acme/report removed\n"
    assert cli("schedules", "show", "acme/report").code == 3
    assert cli("schedules", "show", "report").code == 0

    # A name with a slash keeps its meaning as long as it is unambiguous.
    cli("schedules", "put", "a/b", "--tenant", "default", *rule)
    assert cli("schedules", "show", "a/b", "--json").json["tenant"] == "default"
    assert "default/a/b" in cli("schedules", "list").out
    assert cli("schedules", "put", "a/b", *rule).out.startswith("default/a/b unchanged")
    cli("schedules", "put", "b", "--tenant", "a", *rule)
    both = cli("schedules", "pause", "a/b")
    assert (both.code, "--tenant a b" in both.err) == (2, True)
    assert cli("schedules", "show", "default/a/b", "--json").json["name"] == "a/b"
    assert cli("schedules", "show", "b", "--tenant", "a", "--json").json["tenant"] == "a"


def test_backfill_counts_confirms_and_is_idempotent(cli: Cli) -> None:
    put(cli)
    args = ("schedules", "backfill", "daily", "--from", "2026-01-01", "--to", "2026-01-05")
    refused = cli(*args)
    assert refused.code == 2
    assert "This adds 4 jobs to daily, from 2026-01-01 05:00Z to 2026-01-04 05:00Z." in refused.err
    assert "--yes" in refused.err
    dry = cli(*args, "--dry-run", "--json").json
    assert (dry["count"], dry["dry_run"], dry["instants"][0]) == (4, True, "2026-01-01T05:00:00Z")
    assert cli("jobs", "list", "--json").json == []
    assert cli(*args, "--yes", "--json").json["count"] == 4
    assert len(cli("jobs", "list", "--schedule", "daily", "--json").json) == 4
    assert cli(*args, "--yes").out == "0 jobs added\n"
    assert cli("schedules", "backfill", "daily", "--from", "2026-01-05", "--to", "2026-01-01", "--yes").code == 2
    assert cli("schedules", "backfill", "nobody", "--from", "2026-01-01", "--to", "2026-01-02", "--yes").code == 3
    put(cli, "fast", "--every", "1s")
    assert cli("schedules", "backfill", "fast", "--from", "2020-01-01", "--to", "2026-01-01", "--yes").code == 2


def test_remove_needs_confirmation_and_keeps_history(cli: Cli) -> None:
    put(cli)
    assert cli("schedules", "remove", "daily").code == 2
    assert cli("schedules", "remove", "daily", "--yes", "--json").json == {
        "schedule": "daily",
        "tenant": "default",
        "removed": True,
    }
    assert cli("schedules", "remove", "daily", "--yes").code == 3
    assert cli("schedules", "show", "daily").code == 3
    assert cli("schedules", "list").out.startswith("no schedules yet")


def decide(cli: Cli, name: str, instant: str, **more: object) -> None:
    """Write a decision into the ledger without a scheduler."""
    row = {
        "schedule": name,
        "instant": parse_instant(instant),
        "until": None,
        "count": 1,
        "outcome": "fired",
        "reason": "on time",
        "decided_at": parse_instant(instant) + 200_000,
        "revision": 1,
        "token": 1,
        "node": "test",
        "job_id": None,
        **more,
    }
    columns = ", ".join(f'"{column}"' for column in row)
    marks = ", ".join("?" * len(row))
    cli.sql(f"insert into headway_occurrences ({columns}) values ({marks})", *row.values())


def test_history_is_newest_first_with_ranges(cli: Cli) -> None:
    put(cli)
    decide(cli, "daily", "2026-01-01T05:00:00Z")
    until = parse_instant("2026-01-04T05:00:00Z")
    decide(cli, "daily", "2026-01-02T05:00:00Z", outcome="missed", reason="too late", count=3, until=until)
    items = cli("schedules", "history", "daily", "--json").json
    assert items == [
        {
            "schedule": "daily",
            "tenant": "default",
            "instant": "2026-01-02T05:00:00Z",
            "until": "2026-01-04T05:00:00Z",
            "count": 3,
            "outcome": "missed",
            "reason": "too late",
            "decided_at": "2026-01-02T05:00:00.200000Z",
            "job_id": None,
        },
        {
            "schedule": "daily",
            "tenant": "default",
            "instant": "2026-01-01T05:00:00Z",
            "count": 1,
            "outcome": "fired",
            "reason": "on time",
            "decided_at": "2026-01-01T05:00:00.200000Z",
            "job_id": None,
        },
    ]
    assert len(cli("schedules", "history", "daily", "-n", "1", "--json").json) == 1
    assert len(cli("schedules", "history", "daily", "--since", "2026-01-02", "--json").json) == 1
    assert "2026-01-02 05:00Z … 2026-01-04 05:00Z (3)  missed: too late" in cli("schedules", "history", "daily").out
    put(cli, "young")
    assert cli("schedules", "history", "young", "--json").json == []
    assert cli("schedules", "history", "nobody").code == 3


def test_audit_is_clean_until_the_ledger_is_damaged(cli: Cli) -> None:
    put(cli)
    clean = cli("audit", "--json")
    assert clean.code == 0
    assert {"schedules", "expected", "recorded", "gaps", "duplicates", "phantoms", "ok"} <= set(clean.json)
    assert clean.json["ok"] is True
    assert cli("audit").out.startswith("ok: 1 schedule, 0 instants expected")
    later = parse_instant("2040-01-01T00:00:00Z")
    cli.sql("update headway_schedules set decided_through = ?", later)
    broken = cli("audit", "--json")
    assert (broken.code, broken.json["ok"]) == (1, False)
    assert broken.json["gaps"][0]["schedule"] == "daily"
    assert cli("audit").out.splitlines()[-1].startswith("NOT OK: 1 schedule")
    assert cli("audit", "--schedule", "nobody").code == 3
    assert cli("audit", "--since", "whenever").code == 2
    assert cli("audit", "--schedule", "daily", "--until", "1h").code == 0


# --- jobs


JOB_FIELDS = {
    *("id", "type", "status", "progress", "created_at", "run_at", "started_at", "updated_at", "finished_at"),
    *("metadata", "attempts", "max_attempts", "queue", "priority", "tenant", "key", "schedule", "occurrence_at"),
    *("batch", "args", "result", "error", "why", "eta_seconds", "version"),
}


def test_enqueue_prints_the_job(cli: Cli) -> None:
    job = cli("enqueue", "video.transcode", "-a", "input=a.mp4", "-a", "height=720", "--queue", "media", "--json").json
    assert set(job) >= JOB_FIELDS
    assert (job["type"], job["status"], job["queue"]) == ("video.transcode", "PENDING", "media")
    assert (job["args"], job["metadata"], job["result"]) == ({"input": "a.mp4", "height": 720}, {}, None)
    assert job["why"] == "no worker is alive"
    later = cli("enqueue", "x", "--delay", "30m", "--json").json
    assert later["status"] == "SCHEDULED"
    assert later["why"].startswith("due in ")
    at = cli("enqueue", "x", "--at", "2040-01-01T00:00:00+02:00", "--json").json
    assert at["run_at"] == "2039-12-31T22:00:00Z"
    assert cli("enqueue", "x").out.endswith(" PENDING: no worker is alive\n")


def test_key_returns_one_job(cli: Cli) -> None:
    first = cli("enqueue", "x", "--key", "k", "-a", "n=1", "--json").json
    assert cli("enqueue", "x", "--key", "k", "-a", "n=1", "--json").json["id"] == first["id"]
    other = cli("enqueue", "x", "--key", "k", "-a", "n=2", "--json")
    assert (other.code, other.error["code"]) == (2, "duplicate_key")


def test_jobs_are_listed_filtered_shown_and_cancelled(cli: Cli) -> None:
    first = cli("enqueue", "a", "--json").json["id"]
    second = cli("enqueue", "b", "--queue", "q", "--tenant", "t", "--json").json["id"]
    assert [job["id"] for job in cli("jobs", "list", "--json").json] == [second, first]
    for option in (("--task", "b"), ("--queue", "q"), ("--tenant", "t"), ("-n", "1")):
        assert [job["id"] for job in cli("jobs", "list", *option, "--json").json] == [second]
    assert [job["id"] for job in cli("jobs", "list", "--before", second, "--json").json] == [first]
    assert cli("jobs", "list", "--status", "running").out == "no job matches\n"
    assert first in cli("jobs", "list").out
    assert cli("jobs", "show", first, "--json").json["type"] == "a"
    assert cli("jobs", "show", first[:-3], "--json").json["id"] == first
    assert cli("jobs", "show", first.removeprefix("job_"), "--json").json["id"] == first
    for unknown in ("job_", "job_zzz", "x", "job_%", "", "~"):
        assert cli("jobs", "show", unknown).code == 3
    cancelled = cli("jobs", "cancel", first[:-3], "--reason", "no longer needed", "--json").json
    assert (cancelled["status"], cancelled["why"]) == ("CANCELLED", "cancelled by cli: no longer needed")
    again = cli("jobs", "cancel", first, "--json")
    assert (again.code, again.error["code"]) == (2, "already_final")


# --- hostile data


def test_escape_sequences_in_data_never_reach_the_terminal(cli: Cli) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2028\r\nheadway: fine"
    put(cli)
    assert cli("schedules", "pause", "daily", "--reason", evil).code == 2
    cli("schedules", "pause", "daily", "--reason", "plain")
    cli.sql("update headway_schedules set pauses = replace(pauses, 'plain', ?)", json.dumps(evil)[1:-1])
    job = cli("enqueue", "x", "-a", f"n={evil}", "--json").json["id"]
    cli("jobs", "cancel", job, "--reason", evil)
    decide(cli, "daily", "2026-01-01T05:00:00Z", reason=evil)
    cli.sql("update headway_schedules set attention = ?", evil)
    cli.sql("update headway_jobs set task = ?, queue = ?", evil, evil)
    for args in (
        ("schedules", "list"),
        ("schedules", "show", "daily"),
        ("schedules", "history", "daily"),
        ("jobs", "list"),
        ("jobs", "show", job),
        ("status",),
        ("doctor",),
        ("audit",),
        ("schedules", "trigger", evil),
        ("jobs", "show", evil),
    ):
        for json_option in ((), ("--json",)):
            result = cli(*args, *json_option)
            written = result.out + result.err
            assert all(line.isprintable() for line in written.split("\n")), written
            assert "\nheadway: fine" not in written


def test_piped_output_is_plain_and_untruncated(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    name = "a-name-" + "x" * 150
    put(cli, name)
    job = cli("schedules", "trigger", name, "--json").json["id"]
    for args in (("schedules", "list"), ("jobs", "list"), ("status",), ("schedules", "show", name), ("doctor",)):
        out = cli(*args).out
        assert "\x1b" not in out
        assert not set(out) & set("│─┌┐└┘├┤┬┴┼━┃╭╮╰╯")
        assert not any(line != line.rstrip() for line in out.splitlines())
    assert f"{job}  PENDING  report  {name}  " in cli("jobs", "list").out


# --- files


APPLIED = """
[schedules.daily]
task = "report"
cron = "0 6 * * *"
tz = "Europe/Berlin"

[schedules.beat]
task = "beat"
every = "2s"
"""


def test_apply_creates_changes_and_prunes(cli: Cli) -> None:
    file = cli.folder / "schedules.toml"
    file.write_text(APPLIED)
    args = ("schedules", "apply", "-f", str(file))
    assert [change["outcome"] for change in cli(*args, "--dry-run", "--json").json] == ["created", "created"]
    assert not (cli.folder / "headway.db").exists()
    assert cli(*args).code == 0
    assert [change["outcome"] for change in cli(*args, "--json").json] == ["unchanged", "unchanged"]
    assert {row["owner"] for row in cli("schedules", "list", "--json").json} == {"file:schedules.toml"}
    file.write_text(APPLIED.replace("0 6", "0 7").replace("[schedules.beat]", "[schedules.pulse]"))
    dry = cli(*args, "--dry-run", "--prune", "--json").json
    assert {change["name"]: change["outcome"] for change in dry} == {
        "daily": "changed",
        "pulse": "created",
        "beat": "removed",
    }
    assert "T06:00:00+0" in dry[0]["before"][0]["local"]
    assert "T07:00:00+0" in dry[0]["after"][0]["local"]
    text = cli(*args, "--dry-run").out
    assert "daily would be changed: cron 0 7 * * * Europe/Berlin" in text
    assert cli(*args, "--prune").code == 2
    assert cli(*args, "--prune", "--yes").code == 0
    assert [row["name"] for row in cli("schedules", "list", "--json").json] == ["daily", "pulse"]


def test_apply_validates_everything_before_writing(cli: Cli) -> None:
    file = cli.folder / "schedules.toml"
    file.write_text(APPLIED + "[schedules.over]\ntask = 'x'\nat = '2020-01-01'\n")
    result = cli("schedules", "apply", "-f", str(file))
    assert (result.code, "'over' has no instant after" in result.err) == (2, True)
    assert cli("schedules", "list", "--json").json == []


def test_foreign_schedules_are_taken_over_with_force_only(cli: Cli) -> None:
    file = cli.folder / "schedules.toml"
    file.write_text(APPLIED)
    assert cli("schedules", "apply", "-f", str(file)).code == 0
    denied = put(cli, "daily", "--every", "1h")
    assert denied.code == 4
    assert "belongs to file:schedules.toml; --force takes it over" in denied.err
    assert put(cli, "daily", "--every", "1h", "--dry-run").code == 4
    assert put(cli, "daily", "--every", "1h", "--force").code == 0
    assert cli("schedules", "apply", "-f", str(file)).code == 4
    assert cli("schedules", "apply", "-f", str(file), "--force").code == 0


# --- the app


SHOP = """
from headway import Cron, Headway, Retry
app = Headway("sqlite:///shop.db")
other = 5

@app.task(queue="mail", priority=3, retry=Retry(max_attempts=4, backoff="1s..2s"))
def send(to: str, copies: int = 1) -> None: ...

app.schedule("newsletter", send, Cron("0 8 * * MON"), args={"to": "all"})
"""


def test_app_provides_its_store_and_task_defaults(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    job = cli("enqueue", "send", "-a", "to=you", "--app", "shop:app", "--json").json
    assert (job["queue"], job["priority"], job["max_attempts"]) == ("mail", 3, 4)
    assert (cli.folder / "shop.db").exists()
    assert cli("enqueue", "sendd", "--app", "shop", "--json").error["code"] == "task_not_found"
    assert cli("enqueue", "send", "-a", "nobody=1", "--app", "shop:app").code == 2
    monkeypatch.setenv("HEADWAY_APP", "shop:app")
    shape = cli("schedules", "put", "weekly", "--task", "send", "--every", "7d", "-a", "to=x", "--json").json
    assert (shape["queue"], shape["max_attempts"], shape["backoff"]) == ("mail", 4, "1s..2s")
    assert cli("schedules", "put", "typo", "--task", "sned", "--every", "7d").code == 3
    assert [row["name"] for row in cli("schedules", "list", "--json").json] == ["weekly"]
    assert not (cli.folder / "headway.db").exists()
    assert cli("schedules", "list", "--json", "--store", "sqlite:///headway.db").code == 5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent:app", "No module named 'absent'"),
        ("broken:app", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("unparsable:app", "SyntaxError: "),
        ("empty:app", "'app' is not there\n"),
        ("shop:other", "'other' is int, not Headway; did you mean shop:app?"),
        ("shop:App", "'App' is not there; did you mean shop:app?"),
        ("shop.app", "did you mean shop:app?"),
        ("shop.py", "did you mean shop:app?"),
        ("shop.py:main", "did you mean shop:main?"),
        ("./shop.py", "must look like module:app, not './shop.py'; did you mean shop:app?"),
        ("inner/jobs.py:app", "must look like module:app, not 'inner/jobs.py:app'; did you mean inner.jobs:app?"),
        ("inner.jobs.app", "did you mean inner.jobs:app?"),
        ("inner.absent:app", "No module named 'inner.absent'\n"),
        ("shop:app.tasks.x", "'app.tasks.x' is not there"),
        ("shop:app:x", "must look like module:app"),
        ("../shop:app", "must look like module:app"),
        (":", "must look like module:app"),
    ],
)
def test_unusable_app_fails_with_one_line(cli: Cli, path: str, message: str) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    (cli.folder / "broken.py").write_text("# The second line is wrong.\n1 / 0")
    (cli.folder / "unparsable.py").write_text("def f(:")
    (cli.folder / "empty.py").write_text("")
    (cli.folder / "inner").mkdir()
    (cli.folder / "inner" / "jobs.py").write_text("")
    result = cli("enqueue", "x", "--app", path)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err


# --- status and doctor


def test_status_has_the_documented_shape(cli: Cli) -> None:
    put(cli, "daily", "--every", "1d", "--start", "2090-01-01")  # Not due during the test, at any time of day.
    cli("enqueue", "x")
    status = cli("status", "--json").json
    assert {"store", "leader", "nodes", "workers", "queues", "schedules", "oldest_undecided_seconds"} <= set(status)
    assert status["store"]["kind"] == "sqlite"
    assert status["store"]["url"] == "sqlite:///headway.db"
    assert (status["leader"], status["nodes"], status["workers"]) == (None, [], [])
    assert (status["queues"][0]["name"], status["queues"][0]["pending"]) == ("default", 1)
    assert (status["schedules"]["total"], status["schedules"]["late"]) == (1, 0)
    assert status["oldest_undecided_seconds"] == 0
    assert status["degraded"] == ["no scheduler is alive", "no worker is alive, and 1 job waits"]
    text = cli("status").out
    assert "1 on · 0 paused · 0 late" in text
    assert text.endswith("! no scheduler is alive\n! no worker is alive, and 1 job waits\n")


def test_status_reports_late_schedules_and_stuck_nodes(cli: Cli) -> None:
    put(cli)
    cli.sql("update headway_schedules set next_at = next_at - 1000000 * 86400 * 2, attention = 'odd'")
    state = {"loops": {"scheduler": 43.0, "janitor": 1.0}, "mode": "leader", "wake_ups": "poll"}
    now = parse_instant(cli("enqueue", "x", "--json").json["created_at"])
    cli.sql(
        "insert into headway_nodes (id, name, roles, version, started_at, beat_at, state) values (?, ?, ?, ?, ?, ?, ?)",
        *("node_1", "alpha", "scheduler", "1", now, now, json.dumps(state)),
    )
    status = cli("status", "--json").json
    assert status["schedules"]["late"] == 1
    assert status["oldest_undecided_seconds"] > 10
    [coming] = status["schedules"]["coming"]
    assert coming["undecided_seconds"] > 10
    assert coming["decided_through"] in cli("status").out
    assert status["nodes"][0]["name"] == "alpha"
    faults = " · ".join(status["degraded"])
    assert "schedulers are alive, but none of them leads" in faults
    assert "the oldest undecided instant is " in faults
    assert "1 schedule cannot be planned" in faults
    assert "the loop scheduler of alpha has been stuck for 43s" in faults
    assert "janitor" not in faults
    assert "polls" not in faults  # An embedded store always polls; only PostgreSQL has notifications.


def test_doctor_names_the_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    put(cli)
    monkeypatch.setenv("HEADWAY_STROE", "x")
    monkeypatch.setenv("HEADWAY_SQLITE_SYNCHRONOUS", "normal")
    report = cli("doctor", "--json")
    marks = {(check["check"], check["mark"]) for check in report.json["checks"]}
    assert (report.code, report.json["ok"]) == (0, True)
    assert marks >= {
        ("settings", "warn"),
        ("zones", "ok"),
        ("schema", "ok"),
        ("clock", "ok"),
        ("database", "ok"),
        ("durability", "warn"),
        ("wake_ups", "ok"),
        ("running", "warn"),
        ("audit", "ok"),
        ("permissions", "ok"),
        ("api", "warn"),
    }
    (cli.folder / "headway.db").chmod(0o604)
    text = cli("doctor").out
    assert "! other users of this machine can read or write headway.db" in text
    assert "! HEADWAY_STROE is set, but no setting has this name" in text
    assert f"✓ schema version {SCHEMA}" in text
    with_app = cli("doctor", "--app", "shop:app", "--store", "sqlite:///headway.db", "--json").json["checks"]
    assert {check["check"]: check["mark"] for check in with_app}["sync"] == "warn"
    cli.sql("update headway_schedules set decided_through = decided_through + 1000000 * 86400 * 3")
    broken = cli("doctor", "--json")
    assert broken.code == 1
    assert {check["check"]: check["mark"] for check in broken.json["checks"]}["audit"] == "bad"
    assert cli("doctor", "--app", "absent:app").code == 1
