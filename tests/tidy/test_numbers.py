"""Check that numbers in the documentation match the code, and that pages agree with each other.

A sentence that contains a number is written here with the constant in its place. A change of the constant or of the
sentence fails the test, which names the other one.
"""

import re
from pathlib import Path

import pytest

from headway.adapters.redis import live_progress as live
from headway.cli import log, log_writer
from headway.core.instants import HOUR, SECOND
from headway.operations import series
from headway.server import followers, live_fanout, outbound
from headway.server import webhook_sender as deliverer
from headway.server.routes import streams as follow
from headway.store import bulk as store_bulk
from headway.store import failures, queue, statements, webhooks
from headway.wire import base, dead_letters
from headway.wire import job_requests as bulk
from headway.worker import reporter

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORD_OF = dict(enumerate(WORDS)) | {40: "forty", 60: "sixty", 1_000: "a thousand"}


def normalize_whitespace(text: str) -> str:
    return " ".join(text.split())


def constant(path: str, name: str) -> int:
    """Read a numeric constant from a source file of the dashboard."""
    found = re.search(rf"const {name} = ([0-9_]+)( \* SECOND)?;", (ROOT / "dashboard" / "src" / path).read_text())
    assert found, f"dashboard/src/{path} does not define {name}"
    return int(found[1].replace("_", "")) * (1_000 if found[2] else 1)


PER_SECOND = round(1 / live.TELL_EVERY_S)
UNHEARD = round(1 / live.UNHEARD_EVERY_S)
_WAITS = [deliverer.BACKOFF_FIRST * deliverer.BACKOFF_FACTOR**times // SECOND for times in range(3)]

SENTENCES: dict[str, tuple[str, ...]] = {
    "docs/live.md": (
        f"up to {PER_SECOND} times a second",
        f"every {reporter.CHECKPOINT_EVERY_S:g} s, and before the end",
        f"every {reporter.LINES_EVERY_S:g} s, and before the end",
        f"more than {live.LINES_MAX} at once",
        f"{live_fanout.LIVE_PER_SECOND_MAX:,} live values a second in all",
        f"so {live_fanout.LIVE_PER_SECOND_MAX // 2:,} followers get two a second",
        f"at most {live.TAIL_BYTES_MAX >> 10} KiB of them; gone after {live.KEPT_S} s",
        f"published {WORD_OF[UNHEARD]} times a second",
        f"at most {live.PER_SECOND_MAX:,} values a second",
        f"up to {WORD_OF[round(reporter.CHECKPOINT_EVERY_S)]} seconds of progress and",
        f"and {WORD_OF[round(reporter.LINES_EVERY_S)]} of its log",
    ),
    "docs/limits.md": (
        f"sent up to {PER_SECOND} times a second and written every {reporter.CHECKPOINT_EVERY_S:g} s",
        f"at most every {reporter.REPORT_EVERY_S:g} s",
    ),
    "docs/follow.md": (
        f"sent {WORD_OF[PER_SECOND]} times a second",
        f"Every {follow.HEARTBEAT_S:g} s without an event there is a comment",
    ),
    "docs/api.md": (
        f"in {series.POINTS} steps",
        f"the newest {series.JOBS_MAX:,} jobs that ended",
        f"`limit` is {base.PAGE_DEFAULT} by default, and {base.PAGE_MAX} at most",
        f"A count stops at {store_bulk.COUNT_MAX:,}",
        f"processes at most {bulk.GROUP_MAX:,} jobs",
        f'`{{"jobs": […]}}`, up to {queue.ENQUEUE_MAX:,}',
    ),
    "docs/client.md": (f"at most {bulk.GROUP_MAX:,} at once",),
    "docs/operations.md": (
        f"the first {WORD_OF[log.TRACEBACKS_MAX]} have theirs",
        f"of more than {log.JOB_LINES_MAX} lines a second",
        f"up to {log_writer.LINES_MAX:,} lines wait",
    ),
    "docs/webhooks.md": (
        f"within {WORD_OF[round(outbound.SEND_S_MAX)]} seconds means that the message was accepted",
        f"after {deliverer.BACKOFF_FIRST // SECOND} seconds, then {_WAITS[1]}, {_WAITS[2]}, and so on",
        f"and so on up to {deliverer.BACKOFF_MOST // HOUR} hours",
        f"for {deliverer.PATIENCE // HOUR} hours, also across restarts",
        f"at most {deliverer.TARGET_SHARE} requests of a process are in progress to one host",
        f"of {deliverer.CONCURRENCY} in all",
        f"the last {webhooks.OUTCOMES_MAX} attempts",
        f"A tenant may have {webhooks.ENDPOINTS_MAX}",
        f"{outbound.READ_BYTES_MAX >> 10} KiB of the response",
    ),
    "docs/dashboard.md": (
        f"from {WORD_OF[constant('dialog.tsx', 'TYPED_FROM')]} on it has to be typed",
        f"everything is read every {WORD_OF[constant('live.ts', 'POLL_MS') // 1_000]} seconds",
        f"at most every {WORD_OF[constant('pages/job.tsx', 'ANNOUNCE_MS') // 1_000]} seconds",
    ),
}


@pytest.mark.parametrize("page", SENTENCES)
def test_numbers_match_the_code(page: str) -> None:
    text = normalize_whitespace(PAGES[page])
    missing = [sentence for sentence in SENTENCES[page] if sentence not in text]
    assert missing == [], f"{page} and the code disagree"


# Numbers that occur on many pages: each occurrence must be one of these.
EVERYWHERE = {
    r"\b([\w,]+) times a second": {str(PER_SECOND), WORD_OF[PER_SECOND], WORD_OF[UNHEARD], "few"},
    r"(?:[Ss]chema version|schema none ->) (\d+)": {str(len(list(statements.migrations(statements.SQLITE))))},
}


@pytest.mark.parametrize("pattern", EVERYWHERE)
def test_pages_agree(pattern: str) -> None:
    for page, text in PAGES.items():
        if "/adr/" in page:
            continue  # ADRs keep the numbers of their date.
        for match in re.finditer(pattern, text):
            assert match[1] in EVERYWHERE[pattern], f"{page}: {match[0]}"


# A stated count, and the pattern of the lines that it counts.
COUNTED = {
    "docs/follow.md": (r"There are (\w+) ways to see", r"^\| \[[^\]]+\]\(#[\w-]+\) \|"),
}


@pytest.mark.parametrize("page", COUNTED)
def test_stated_count_matches_the_list(page: str) -> None:
    number, things = COUNTED[page]
    said = re.search(number, PAGES[page])
    assert said, f"{page} does not state a count"
    assert WORDS.index(said[1]) == len(re.findall(things, PAGES[page], re.MULTILINE))


def test_related_limits_are_equal() -> None:
    """Check that each part can pass on everything that the previous one accepts at once."""
    assert dead_letters.LETTERS_AT_ONCE == constant("actions.tsx", "LETTERS_AT_ONCE") == bulk.GROUP_MAX
    assert failures.COUNTED_MAX == dead_letters.LETTERS_PLANNED_MAX
    assert live.LINES_MAX == followers.LIVE_LINES_MAX
    assert live.TELL_EVERY_S == live_fanout.LIVE_EVERY_S
