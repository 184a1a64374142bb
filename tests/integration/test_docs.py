"""Check the documentation: samples run, links resolve, tables match the code.

Marks in the pages, each an HTML comment directly above a code block:

    run                  the Python blocks of a page so marked are one program; the comment of a print is the output
    run: test            another program
    run: worker          another program, with a worker that runs the tasks that it defines
    run: server          another program, with a worker and the API at the address that the page names
    sql: both            runs on both databases; `sqlite` or `postgresql` on that one
    file: NAME           is written into the folder in which the commands of the page run
    session              its commands run and succeed; `exact` also compares their output
    session: background  its commands keep running until the page is done
    session: postgresql  its commands run with a real PostgreSQL as the store

In a session, `job_…` is the newest job without a schedule, and `kill -9` kills the worker that runs it. Requests of
curl must succeed. Where a page says 8480, the tests use another port.

The speed of the machine does not matter: the tests use longer leases and timeouts than a page (`PATIENT`), and its
tasks sleep less (`Terminal.set_pace`), but a job whose worker is to be killed waits until then. The test ends the lease
of a killed worker.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headway import After, Cron, Every, Headway
from headway.cli import root
from headway.core import cron_expression as expression
from headway.core import errors, lifecycle, triggers, windows
from headway.core.instants import (
    DURATION_MAX,
    HOUR,
    SECOND,
    Instant,
    format_duration,
    parse_duration,
    parse_instant,
    to_datetime,
)
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX
from headway.core.jobs import ERROR_BYTES_MAX, METADATA_BYTES_MAX, RESULT_BYTES_MAX, STEP_LENGTH_MAX
from headway.core.json_values import ARGS_BYTES_MAX
from headway.core.occurrences import Decided, LiveJobs, PlannedDecision
from headway.core.schedules import CATCH_UP_LIMIT_MAX, QUEUE_LIMIT_MAX, Pause, Schedule, ScheduleSpec
from headway.core.settings import SHARDS_MAX, Settings
from headway.core.validation import ATTEMPTS_MAX, KEY_LENGTH_MAX, NAME_LENGTH_MAX, PRIORITY_MAX, TAGS_MAX
from headway.operations import jobs as job_operations
from headway.scheduling import planner, scheduler
from headway.server import fanout, followers, json_bodies, offload, quotas, web
from headway.server.api import ROUTES
from headway.server.routes import openapi, websocket
from headway.server.routes import streams as follow
from headway.store import Store, open_driver, postgres, queue, schedules, sqlite
from headway.store.jobs import PAGE_MAX
from headway.store.migrations import migrate
from headway.tasks import execution, progress
from headway.wire import base
from headway.wiring.children import THREADS_MAX
from headway.worker import (
    child_processes,
    claimer,
    ipc,
    reporter,
    settler,
    stopper,
)
from headway.worker import prefetch as pace
from tests.support import evidence
from tests.support.prefork import Prefork, preforked
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        *sorted(DOCS.rglob("*.md")),
        *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    ]
}
RUN_S_MAX = 240
# A stalled process must not lose a lease or run into a timeout; the output of the demo is not compared.
_WAITS = r"(?<![\w-])(ttl=|timeout=|HEADWAY_WORKER_LEASE=|--leader-lease |--ttl |--timeout )(\"?)\d+[sm]\b"
PATIENT = (
    (re.compile(_WAITS), r"\1\g<2>10m"),
    (re.compile(r"(headway demo --seconds) \d+"), r"\1 1"),
)
NO_FSYNC = {"HEADWAY_SQLITE_SYNCHRONOUS": "normal"}  # No test here simulates a power failure.

_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>[^\n]*?) -->\n(?P=indent))?```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block of a page."""

    page: str
    line: int
    language: str
    mark: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the code blocks of a page, with the mark above each."""
    text = PAGES[page]
    return tuple(
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            (match["info"].split() or [""])[0],
            match["mark"] or "",
            inspect.cleandoc("\n" + match["body"]) if match["indent"] else match["body"],
        )
        for match in _FENCE.finditer(text)
    )


def all_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from blocks(page)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "200", **more}


def patient(text: str) -> str:
    """Return a text of a page with leases and timeouts that tolerate stalls."""
    for found, better in PATIENT:
        text = found.sub(better, text)
    return text


@pytest.fixture(scope="module")
def prefork() -> Iterator[Prefork]:
    with preforked("sqlalchemy.orm", "aiohttp", "headway.client", "headway.testing") as made:
        yield made


@dataclass(frozen=True, slots=True)
class Node:
    """A background process, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: list[str], folder: Path, env: dict[str, str]) -> "Node":
        log = evidence.log_file(" ".join(command[2:]))
        with log.open("wb") as output:
            return cls(subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output), log)

    def wait_logged(self, pattern: str) -> re.Match[str]:
        """Wait until the log matches a pattern."""

        def match_log() -> re.Match[str] | None:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            assert found or self.process.poll() is None, f"it ended with {self.process.returncode}"
            return found

        found = wait_until(match_log, f"{pattern!r} of {self.process.args!r}")
        assert found
        return found

    def wait_port(self) -> int:
        """Wait until it listens; return the port."""
        return int(self.wait_logged(r"listening url=http://127\.0\.0\.1:(\d+)")[1])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(RUN_S_MAX)


# --- structure of the pages


def test_fences_are_closed_and_marks_are_known() -> None:
    for page, text in PAGES.items():
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(page)), page
    known = re.compile(
        r"|run(: (test|worker|server))?|sql: (both|sqlite|postgresql)|file: [\w.]+"
        r"|session(: (exact|background|postgresql))?"
    )
    assert [str(block) for block in all_blocks() if not known.fullmatch(block.mark)] == []


def slug(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower())


def anchors(page: str) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    text = _FENCE.sub("", PAGES[page])
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(str(file.resolve().relative_to(ROOT))), f"{page} links to {target}"


def test_navigation_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md\b", nav)
    assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_index_has_every_adr() -> None:
    index = PAGES["docs/adr/index.md"]
    for path in sorted((DOCS / "adr").glob("0*.md")):
        title = path.read_text().partition("\n")[0]
        assert f"[{path.name[:4]}]({path.name})" in index
        assert title.startswith(f"# {path.name[:4]} ")
        assert all(
            part in path.read_text()
            for part in ("**Context.**", "**Decision.**", "**What it costs.**", "**Rejected.**")
        )


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    for path in re.findall(r"`((?:tests|examples|scripts|docs|src)/[\w./-]+)`", PAGES[page]):
        assert (ROOT / path).exists(), f"{page} names {path}"


def test_readme_lists_every_example() -> None:
    for path in sorted((ROOT / "examples").glob("*.py")):
        assert f"(examples/{path.name})" in PAGES["README.md"]


# --- the tables


def rows(page: str) -> list[list[str]]:
    """Return the rows of all tables of a page as lists of cells."""
    lines = re.findall(r"^\|(?!---)(.+)\|$", PAGES[page], re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in (f" {line} " for line in lines)]


def test_every_setting_is_documented_with_its_default() -> None:
    table = {row[0]: row for row in rows("docs/settings.md")}
    for setting in fields(Settings):
        row = table[f"`{setting.name}`"]
        assert row[1] == f"`HEADWAY_{setting.name.upper()}`"
        default: Any = setting.default
        if setting.name in ("leader_lease", "worker_lease", "poll", "grace", "retention", "audit_retention"):
            default = format_duration(default)
        if default not in (None, "", ()):
            assert row[2].strip("`") == str(default)


def test_bounds_of_settings_match_the_documentation() -> None:
    table = {row[0].strip("`"): row for row in rows("docs/settings.md")}
    bounded = [name for name, row in table.items() if " to " in row[3]]
    assert len(bounded) >= 9
    for name in bounded:
        low, _, high = table[name][3].partition(" to ")
        for value in (low, high):
            Settings.load({name: value}, environ={}, file=Path("none"))
        for value in (_beyond(low, -1), _beyond(high, 1)):
            with pytest.raises(errors.InvalidConfig):
                Settings.load({name: value}, environ={}, file=Path("none"))


def _beyond(bound: str, by: int) -> str:
    """Return the next number or second beyond a bound."""
    return str(int(bound) + by) if bound.isdigit() else f"{parse_duration(bound) / SECOND + by:.0f}s"


def commands() -> Iterator[str]:
    """Yield the full name of every command."""
    group = root._root()
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        children = getattr(command, "commands", None)
        yield from [f"{name} {child}" for child in children] if children else [name]


def test_every_command_is_documented_with_an_example() -> None:
    examples = "\n".join(block.body for block in blocks("docs/cli.md") if block.language == "console")
    for command in commands():
        assert (
            f"\n## headway {command}\n" in PAGES["docs/cli.md"] or f"\n### headway {command}\n" in PAGES["docs/cli.md"]
        )
        assert re.search(rf"^\$ headway {command}\b", examples, re.MULTILINE), f"no example of headway {command}"


def test_every_exit_code_is_documented() -> None:
    table = {row[0] for row in rows("docs/cli.md")}
    assert {str(code) for _, code in root.EXIT_CODES} | {"0", str(root.BUG)} <= table


def test_every_error_is_documented() -> None:
    named = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert named
    for name in named:
        assert f"`{name}`" in PAGES["docs/python.md"]


NOT_MADE: set[str] = set()


def test_mentioned_promises_are_explained() -> None:
    promises = PAGES["docs/promises.md"]
    made = set(re.findall(r"^### ([SL]\d+) ", promises, re.MULTILINE))
    assert made == {*(f"S{n}" for n in range(1, 13)), *(f"L{n}" for n in range(1, 12))} - NOT_MADE
    for promise in NOT_MADE:
        assert f"({promise})" in promises, f"{promise} is not made: the page must mention it"
    for page, text in PAGES.items():
        for promise in re.findall(r"\b[SL]\d{1,2}\b", text):
            assert re.search(rf"\b{promise}\b", promises), f"{page} mentions {promise}"


def test_every_view_is_documented_with_its_columns(filled_sqlite: Path) -> None:
    table = {row[0].strip("`"): re.findall(r"`(\w+)`", row[1]) for row in rows("docs/audit.md") if len(row) == 2}
    with sqlite3.connect(filled_sqlite) as connection:
        found = [row[0] for row in connection.execute("select name from sqlite_master where type = 'view'")]
        # Those for people; other views are parts of statements.
        views = [view for view in found if view.endswith("_v")]
        assert views
        for view in views:
            columns = [column[0] for column in connection.execute(f"select * from {view} limit 0").description]
            assert table[view] == columns


def test_limits_match_the_code() -> None:
    table = {row[0]: row[1] for row in rows("docs/limits.md")}
    number = "{:,}".format
    expected = {
        "arguments of a job, as JSON": number(ARGS_BYTES_MAX),
        "jobs in one `enqueue_many`": number(queue.ENQUEUE_MAX),
        "names of tasks, schedules, queues, tenants, tags": number(NAME_LENGTH_MAX),
        "idempotency key, key of a window": number(KEY_LENGTH_MAX),
        "`debounce`, `max_wait`, `throttle`, `unique`": format_duration(windows.WINDOW_MAX),
        "arguments of a merged call in the event `merged`": number(windows.MERGED_BYTES_MAX),
        "events `merged` of a job": number(windows.MERGES_RECORDED_MAX),
        "tags of a job": number(TAGS_MAX),
        "priority": f"to {number(PRIORITY_MAX)}",
        "`max_attempts`": f"1 to {number(ATTEMPTS_MAX)}",
        "page of jobs or occurrences": number(PAGE_MAX),
        "arguments, result or metadata of a job in a list over HTTP": number(base.LISTED_BYTES_MAX),
        "cron expression": f"{expression.TEXT_LENGTH_MAX} characters; a list in it {expression.LIST_ITEMS_MAX} items; "
        f"years {expression.YEAR_MIN}–{expression.YEAR_MAX}",
        "interval of `Every`, delay of `After`": f"{format_duration(triggers.INTERVAL_MIN)} to "
        f"{format_duration(DURATION_MAX)}",
        "any other duration": format_duration(DURATION_MAX),
        "`catch_up_limit`": f"1 to {number(CATCH_UP_LIMIT_MAX)}",
        "`queue_limit`": f"1 to {number(QUEUE_LIMIT_MAX)}",
        "instants in one backfill": number(schedules.BACKFILL_MAX),
        "decisions of one schedule that fire in one transaction, `overlap=allow`": number(planner.FIRES_PER_PLAN_MAX),
        "schedules decided in one transaction": number(scheduler.BATCH),
        "statement timeout": f"{postgres.STATEMENT_S_MAX:g} s on PostgreSQL, {sqlite.STATEMENT_S_MAX:g} s on SQLite",
        "connections of a process to PostgreSQL": f"{postgres.POOL_SIZE}, and one",
        "scheduler shards": number(SHARDS_MAX),
        "result of a job or of a `ctx.once` step, as JSON": number(RESULT_BYTES_MAX),
        "error of a job, traceback included": number(ERROR_BYTES_MAX),
        "log of a job": number(LOG_BYTES_MAX),
        "line of a log": number(LOG_LINE_LENGTH_MAX),
        "metadata of a job, as JSON": number(METADATA_BYTES_MAX),
        "steps of a job": f"{progress.STEPS_MAX}, their names {STEP_LENGTH_MAX}",
        "progress of a job": f"every {reporter.REPORT_EVERY_S:g} s",
        "lost workers of a job": f"{lifecycle.LOSSES_MAX}; ",
        "jobs in one claim or one settlement of a worker": number(max(claimer.CLAIM_MAX, settler.SETTLE_MAX)),
        "jobs prefetched by a child process behind those that run": f"within {pace.PREFETCH_S * 1000:g} ms, at most "
        f"{pace.PREFETCH_MAX:,}; one that waits for more than {stopper.WAIT_S_MAX:g} s is handed back",
        "jobs, arguments and finished steps sent to a child process at once": f"{ipc.FRAME_BYTES_MAX >> 20} MiB",
        "threads of a worker": number(THREADS_MAX),
        "time from the request to stop a job to SIGTERM, and from there to SIGKILL": f"{stopper.SOFT_S:g} s, "
        f"{stopper.HARD_S:g} s",
        "time for a child process to import the app": f"{child_processes.START_S_MAX:g} s",
        "memory limit of a task": f"at least {execution.MEMORY_MIN >> 20} MB",
    }
    for what, bound in expected.items():
        assert bound in table[what], what


def test_api_limits_match_the_code() -> None:
    table = {row[0]: row[1] for row in rows("docs/api.md") if len(row) == 2}
    number = "{:,}".format
    expected = {
        "body": f"{web.BODY_BYTES_MAX >> 20} MiB; {web.BULK_BYTES_MAX >> 20} MiB",
        "nesting of JSON": number(json_bodies.DEPTH_MAX),
        "query parameter or path segment": number(web.TEXT_LENGTH_MAX),
        "page": f"{base.PAGE_MAX}, and {web.PAGE_BYTES_MAX >> 20} MiB",
        "value in a list": f"{base.LISTED_BYTES_MAX >> 10} KiB",
        "values in a body: objects, lists, strings, numbers": (
            f"{number(json_bodies.VALUES_MAX)}; {number(web.BULK_VALUES_MAX)}"
        ),
        f"large bodies (over {offload.SMALL_BYTES_MAX >> 10} KiB) in progress at one process": (
            f"{quotas.BODIES_BYTES_MAX >> 20} MiB; {quotas.BODIES_BYTES_OF_ONE_MAX >> 20} MiB"
        ),
        "attempts of a job that are listed": (
            f"{number(job_operations.ATTEMPTS_SHOWN)}, the newest; tracebacks up to {web.PAGE_BYTES_MAX >> 20} MiB"
        ),
        "long poll": f"{follow.WAIT_S_MAX:g} s",
        "open streams of one process: event streams, long polls, WebSockets, their subscriptions after the first": (
            f"{number(fanout.FOLLOWERS_MAX)}; the last {number(quotas.STREAMS_RESERVED)} are kept for tenants and"
            f" tokens that have fewer than {quotas.STREAMS_FEW}"
        ),
        "events buffered for one subscriber": f"{number(followers.EVENTS_MAX)}, or {followers.BYTES_MAX >> 20} MiB",
        "subscriptions of one WebSocket": number(websocket.SUBSCRIPTIONS_MAX),
    }
    for what, bound in expected.items():
        assert bound in table[what], what


def test_every_error_of_the_api_is_documented() -> None:
    listed = {row[0] for row in rows("docs/api.md")}
    answers = {status for route in ROUTES for status in openapi.error_statuses(route)}
    assert {str(status) for status in answers | {405}} <= listed


def test_every_streamed_event_is_documented() -> None:
    sources = "".join(map(inspect.getsource, (fanout, followers, follow)))
    kinds = set(re.findall(r'(?:Event|job_event)\("(\w+)"', sources))
    assert {"resync", "gone", "log", "ready"} <= kinds
    for kind in kinds | {"status", "progress", "done"}:
        assert f"`{kind}`" in PAGES["docs/follow.md"], kind


def test_reference_instants() -> None:
    found = 0
    for row in rows("docs/time.md"):
        text = re.fullmatch(r"`([^`]+)` (\w+/\w+)", row[0])
        if len(row) != 5 or not text:
            continue
        found += 1
        day = parse_instant(row[1][:10], tz=text[2])
        for dst, cell in zip(("shift", "skip", "both"), row[2:], strict=True):
            assert cell == ", ".join(_instants_of_day(Cron(text[1], tz=text[2], dst=dst), day)) or (  # type: ignore[arg-type]
                cell == "–" and not _instants_of_day(Cron(text[1], tz=text[2], dst=dst), day)  # type: ignore[arg-type]
            ), (row, dst)
    assert found == 7


def _instants_of_day(trigger: Cron, day: Instant) -> list[str]:
    instants, instant = [], trigger.next_after(day - 1)
    while instant is not None and instant < day + 23 * 3_600_000_000:
        instants.append(f"{to_datetime(instant):%Y-%m-%dT%H:%MZ}")
        instant = trigger.next_after(instant)
    return instants


# --- worked examples of docs/time.md


def _at(text: str) -> Instant:
    return parse_instant(f"2027-01-01T{text}Z")


def _clock(instant: Instant) -> str:
    moment: datetime = to_datetime(instant)
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


def _line(decision: PlannedDecision) -> str:
    span = _clock(decision.instant) + (f" – {_clock(decision.until)}" if decision.until else "")
    count = f"×{decision.count}" if decision.count > 1 else ""
    moved = f", starts {_clock(decision.start_at)}" if decision.start_at not in (None, decision.instant) else ""
    starts = moved if decision.outcome is Decided.FIRED and decision.start_at is not None else ""
    waits = ", waits in line" if decision.waits else ""
    return f"{span} {count} {decision.outcome} {decision.reason}{starts}{waits}"


def _worked(now: str, *, every: str = "10m", decided: str = "10:00", **given: Any) -> str:
    live, pauses = given.pop("live", LiveJobs()), given.pop("pauses", ())
    spec = ScheduleSpec.build(task="task", trigger=Every(every), **given)
    schedule = Schedule(name="s", spec=spec, decided_through=_at(decided), pauses=pauses)
    return "\n".join(_line(decision) for decision in planner.plan(schedule, _at(now), live).decisions)


_RUNNING = LiveJobs(running=("job_a",))
_RELEASE = Pause(since=_at("10:15"), until=_at("10:45"), reason="release", author="ada")
WORKED = {
    "grace": _worked("10:10:45"),
    "latest": _worked("10:43"),
    "latest, on time": _worked("10:40:20"),
    "all": _worked("10:43", missed="all"),
    "all, limited": _worked("10:43", missed="all", catch_up_limit=2, catch_up_rate="1/m", overlap="allow"),
    "skip": _worked("10:43", missed="skip"),
    "deadline": _worked("10:43", deadline="20m"),
    "long outage": _worked("09:00", every="1s", decided="01:00"),
    "overlap skip": _worked("10:10:02", live=_RUNNING),
    "overlap queue": _worked("10:10:02", live=_RUNNING, overlap="queue"),
    "overlap queue, full": _worked(
        "10:20:02", decided="10:10:02", live=LiveJobs(running=("job_a",), waiting=("job_b",)), overlap="queue"
    ),
    "overlap allow": _worked("10:10:02", live=_RUNNING, overlap="allow"),
    "overlap replace": _worked("10:10:02", live=_RUNNING, overlap="replace"),
    "jitter": _worked("10:10:02", jitter="2m"),
    "pause": _worked("10:50:01", pauses=(_RELEASE,)),
}


def test_worked_examples_match_the_planner() -> None:
    shown = [
        "\n".join(" ".join(line.split()) for line in block.body.strip().splitlines())
        for block in blocks("docs/time.md")
        if block.language == "text" and re.match(r"\d\d:\d\d", block.body)
    ]
    expected = ["\n".join(" ".join(line.split()) for line in text.splitlines()) for text in WORKED.values()]
    assert shown == expected


def test_quoted_error_matches_the_code() -> None:
    with pytest.raises(errors.InvalidSchedule) as refused:
        Cron("0 12 * * 1 *")
    quoted = [" ".join(block.body.split()) for block in blocks("docs/time.md")]
    assert str(refused.value) in quoted


def test_fixed_delay_is_due_at_once() -> None:
    spec = ScheduleSpec.build(task="task", trigger=After("10m"))
    assert planner.first_at(spec, _at("10:00")) == _at("10:00") + 1


# --- Python


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.language == "python"], ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.body, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


RUNNER = """
import ast, asyncio, inspect, sys
code = compile(open("sample.py").read(), "sample.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"__name__": "sample"})
if inspect.iscoroutine(result):
    asyncio.run(result)
"""


PROGRAMS = sorted({(block.page, block.mark) for block in all_blocks() if block.mark.split(":")[0] == "run"})


@pytest.mark.parametrize(("page", "mark"), PROGRAMS)
def test_python_samples_run_and_print_their_comments(page: str, mark: str, tmp_path: Path, prefork: Prefork) -> None:
    program = "\n".join(block.body for block in blocks(page) if block.mark == mark)
    (tmp_path / "runner.py").write_text(RUNNER)
    with _node_for(program, tmp_path, mark) if mark in ("run: worker", "run: server") else nullcontext(0) as port:
        (tmp_path / "sample.py").write_text(patient(program).replace("127.0.0.1:8480", f"127.0.0.1:{port}"))
        run = prefork.python(tmp_path / "runner.py", cwd=tmp_path, env=environment(**NO_FSYNC))
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == re.findall(r"^\s*print\(.*\)  # (.*)$", program, re.MULTILINE)


@contextmanager
def _node_for(program: str, folder: Path, mark: str) -> Iterator[int]:
    """Run a worker with the definitions of a program, or a node with the API; yield the port of the API."""
    lines = compile(program, "sample", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST).body
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)
    kept = [line for line in lines if isinstance(line, kinds) or ast.unparse(line).startswith("app = ")]
    (folder / "defined.py").write_text("\n".join(map(ast.unparse, kept)))
    role = mark.replace("run: server", "serve").removeprefix("run: ")
    command = [sys.executable, "-m", "headway", role, "--app", "defined:app", "--processes", "1"]
    node = Node.start(command, folder, environment(HEADWAY_PORT="0", **NO_FSYNC))
    try:
        yield node.wait_port() if role == "serve" else 0
    finally:
        node.stop()


# --- SQL


async def _fill(url: str) -> None:
    driver = open_driver(url)
    await migrate(driver)
    await driver.close()
    async with Headway(url, name="docs") as app:
        await app.put_schedule("daily-report", task="report", trigger=Every("100ms"))
        await asyncio.sleep(0.5)  # A few instants are due after this; more on a slow machine.
        await app.remove_schedule("daily-report")  # Decides the due instants.
        await app.put_schedule("late", task="report", trigger=Every("100ms"))
        await app.enqueue("mail")
        await _run_twice(await app.store(), (await app.enqueue("mail", queue="twice")).id)


async def _run_twice(store: Store, job_id: str) -> None:
    """Release a job, complete it in a second attempt, and check that the first attempt is fenced."""
    for outcome in (lifecycle.Released(), lifecycle.Succeeded()):
        (claimed,) = await store.work.claim("twice", node="node", lease=HOUR, limit=1)
        await store.work.settle([lifecycle.settle(claimed, outcome, 0.5)])
    stale = lifecycle.Attempt(job_id=job_id, attempt=1, failures=0, max_attempts=1)
    assert await store.work.settle([lifecycle.settle(stale, lifecycle.Succeeded(), 0.5)]) == {job_id}


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(_fill(f"sqlite:///{folder}/headway.db"))
    return folder


@pytest.fixture
def filled_sqlite(filled_once: Path, tmp_path: Path) -> Path:
    """A copy for this test."""
    return shutil.copytree(filled_once, tmp_path / "filled") / "headway.db"


def sql_blocks(database: str) -> list[Block]:
    return [block for block in all_blocks() if block.mark in ("sql: both", f"sql: {database}")]


IMPOSSIBLE = ("having count(*) > 1", "b.instant <= a.until", "j.id is null", "b.attempt > a.attempt")
PRESENT = (
    *("oldest_undecided_seconds", "schedule = 'daily-report'", "<> 'fired'", "decided_at", "from headway_jobs_v\n"),
    *("j.attempts > 1", "'settle_refused'"),
)


def _check_answer(query: str, answer: list[Any]) -> None:
    if any(part in query for part in IMPOSSIBLE):
        assert answer == [], query
    elif any(part in query for part in PRESENT):
        assert answer, query


def test_sql_on_sqlite(filled_sqlite: Path) -> None:
    assert len(sql_blocks("sqlite")) >= 10
    with sqlite3.connect(filled_sqlite) as connection:
        for block in sql_blocks("sqlite"):
            _check_answer(block.body, connection.execute(block.body).fetchall())


@pytest.mark.postgres
def test_sql_on_postgresql(postgres_url: str) -> None:
    asyncio.run(_fill(postgres_url))
    with psycopg.connect(postgres_url) as connection:
        for block in sql_blocks("postgresql"):
            cursor = connection.execute(block.body.encode())
            _check_answer(block.body, cursor.fetchall() if cursor.description else [])


def test_oldest_undecided_age_grows_without_a_scheduler(filled_sqlite: Path) -> None:
    query = next(block.body for block in sql_blocks("sqlite") if "oldest_undecided_seconds" in block.body)
    with sqlite3.connect(filled_sqlite) as connection:
        first = connection.execute(query).fetchone()[0]
        wait_until(lambda: connection.execute(query).fetchone()[0] > first, "a greater age")


# --- commands


CURL = ["curl", "--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--max-time", str(RUN_S_MAX)]


class Terminal:
    """Run the commands of a page as a reader would, in one folder."""

    def __init__(self, folder: Path, prefork: Prefork) -> None:
        self._folder = folder
        self._prefork = prefork
        self._port = 0
        self._environment = environment(PYTHONUNBUFFERED="1", HEADWAY_PORT="0", **NO_FSYNC)
        self._background: list[Node] = []
        self._orphaned: list[str] = []
        self.set_pace(0.1)

    def write(self, name: str, text: str) -> None:
        """Write a file, with every call of sleep multiplied by the pace."""
        paced = r'sleep(\1 * float(open("pace").read()))'
        (self._folder / name).write_text(re.sub(r"\bsleep\(([\d.]+)\)", paced, text))

    def set_pace(self, pace: float) -> None:
        """Multiply the sleeps of the page's tasks by this factor from now on."""
        (self._folder / "pace.new").write_text(str(pace))
        (self._folder / "pace.new").rename(self._folder / "pace")

    def run(self, line: str) -> str:
        """Run one line; it must succeed, or exit with the code that its comment names."""
        line, _, code = patient(line).partition("  # exit code ")
        if line.startswith("export "):
            name, _, value = shlex.split(line, comments=True)[1].partition("=")
            self._environment[name] = value
            return ""
        if line.endswith(" &"):
            self.start(line.removesuffix(" &"))
            return ""
        if line.startswith("kill -9 "):
            self._kill_worker()
            return ""
        done = self._execute(line)
        assert done.returncode == int(code or 0), f"{line}: {done.stderr}"
        return done.stdout

    def start(self, line: str) -> None:
        """Start a background command, and wait until it runs and a scheduler leads."""
        words = self._words(patient(line))
        node = Node.start([sys.executable, "-m", *words], self._folder, self._environment)
        self._background.append(node)
        node.wait_logged(r"\bstarting node=")
        if words[1] in ("dev", "serve"):
            self._port = node.wait_port()
        if words[1] == "worker":
            node.wait_logged(r"\bchild_ready\b")
        wait_until(lambda: '"leader": {' in self._execute("headway status --json").stdout, "a leader", every_s=0.1)

    def stop(self) -> None:
        """Stop all background commands."""
        for node in self._background:
            node.process.send_signal(signal.SIGTERM)
        for node in self._background:
            node.process.wait(RUN_S_MAX)
        self._background.clear()

    def _execute(self, line: str) -> subprocess.CompletedProcess[str]:
        words, env = self._words(line), self._environment
        if words[0] == "headway":
            if words[1] == "demo":  # It chooses a port itself.
                env = {name: value for name, value in env.items() if name != "HEADWAY_PORT"}
            return self._prefork.headway(*words[1:], cwd=self._folder, env=env)
        return subprocess.run(
            [*CURL, *words[1:]],
            cwd=self._folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )

    def _words(self, line: str) -> list[str]:
        words = shlex.split(line.replace("127.0.0.1:8480", f"127.0.0.1:{self._port}"))
        if "job_…" in line:
            newest = self._newest_job()
            words = [word.replace("job_…", newest) for word in words]
        assert words[0] in ("headway", "curl"), f"only headway and curl commands run here: {line}"
        return words

    def _newest_job(self) -> str:
        jobs = json.loads(self.run("headway jobs list --json -n 200"))
        return str(next((job for job in jobs if job["schedule"] is None), jobs[0])["id"])

    def _kill_worker(self) -> None:
        """Kill the process that runs the newest job (its pid is in the node name), and expire its leases."""
        job_id = self._newest_job()
        name, number = wait_until(
            lambda: re.findall(r"running on (\S+-(\d+)) for", self._show(job_id)["why"]), f"{job_id} to run"
        )[0]
        os.kill(int(number), signal.SIGKILL)
        self._orphaned.append(job_id)
        self.set_pace(0.1)
        connection = sqlite3.connect(self._folder / "headway.db", timeout=RUN_S_MAX)
        with connection:
            connection.execute("update headway_jobs set lease_until = 1 where id = ?", [job_id])
            connection.execute("update headway_leases set until = 1 where holder_name = ?", [name])
        connection.close()

    def check_rescued(self) -> None:
        """Check that the jobs of killed workers have run again."""
        for job in map(self._show, self._orphaned):
            assert [attempt["outcome"] for attempt in job["history"]] == ["expired", "completed"], job

    def _show(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(f"headway jobs show {job_id} --json"))
        return found


def _run_page(page: str, terminal: Terminal, kinds: tuple[str, ...]) -> int:
    performed = 0
    for block in blocks(page):
        kind, _, argument = block.mark.partition(": ")
        if kind == "file":
            terminal.write(argument, block.body)
        elif block.mark in kinds:
            performed += 1
            _run_block(block, terminal)
    return performed


def _run_block(block: Block, terminal: Terminal) -> None:
    lines = block.body.splitlines()
    if any(line.startswith("$ kill -9 ") for line in lines):
        terminal.set_pace(HELD)  # Until it is killed.
    for index, line in enumerate(lines):
        if not line.startswith("$ "):
            continue
        if block.mark == "session: background" and not line.startswith("$ export "):
            terminal.start(line.removeprefix("$ "))
            continue
        printed = terminal.run(line.removeprefix("$ "))
        following = next(
            (i for i, text in enumerate(lines[index + 1 :], index + 1) if text.startswith("$ ")), len(lines)
        )
        if block.mark == "session: exact":
            assert printed.splitlines() == lines[index + 1 : following], f"{block}: {line}"


SESSIONS = ("session", "session: exact", "session: background")
HELD = 100_000.0


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.mark.startswith("session") for b in blocks(page))])
def test_commands_run_as_written(page: str, tmp_path: Path, prefork: Prefork) -> None:
    terminal = Terminal(tmp_path, prefork)
    try:
        assert _run_page(page, terminal, SESSIONS)
        terminal.check_rescued()
    finally:
        terminal.stop()


@pytest.mark.slow
@pytest.mark.postgres
def test_commands_run_as_written_on_postgresql(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefork: Prefork
) -> None:
    page = "README.md"
    monkeypatch.setitem(PAGES, page, PAGES[page].replace("postgresql://localhost/app", postgres_url))
    blocks.cache_clear()
    terminal = Terminal(tmp_path, prefork)
    try:
        assert _run_page(page, terminal, ("session: postgresql",))
    finally:
        terminal.stop()
        blocks.cache_clear()


def test_name_of_an_app_does_not_depend_on_how_it_is_loaded(tmp_path: Path) -> None:
    """The owner of its schedules must be the same with HEADWAY_APP and --app."""
    (tmp_path / "jobs.py").write_text("from headway import Headway\napp = Headway()\n")
    names = {
        subprocess.run(
            [sys.executable, "-c", "import jobs; print(jobs.app.name)"],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=True,
        ).stdout
        for variables in ({}, {"HEADWAY_APP": "jobs:app"})
    }
    assert names == {"jobs\n"}
