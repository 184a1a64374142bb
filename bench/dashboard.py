"""dashboard: how fast pages appear in a real browser, with a full store.

    paint    from navigation to the first useful paint, in a browser with an empty cache
    filter   from the last key or click to the rows that are left, on the lists of jobs and of schedules

The store has a hundred thousand jobs and ten thousand schedules with twenty decisions each, loaded by bulk SQL.
Browser, server and database share the machine, and nothing else runs. The page itself measures, by the clock of the
browser, up to the frame that shows the result.
"""

import sys
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright

from bench.api import api_server
from bench.bare import Bare
from bench.figures import Figure, Target, plain
from bench.places import Place, Run, database, opened
from bench.scale import multiply
from headway.core.instants import DAY, MINUTE, SECOND
from headway.core.jobs import NewJob
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron
from tests.support.browser import find_browser, require_build
from tests.support.server import ServerMissing

PAINT: Final = Target("<", 1.0)
FILTER: Final = Target("<", 300.0)
DECISIONS: Final = 20
PATIENCE_MS: Final = 60_000
SPEC: Final = ScheduleSpec.build(task="report", trigger=Cron("0 6 * * *", "Europe/Berlin"), args={"tenant_id": 1})

# One job was enqueued by Headway; the others are copies that have ended, newest first by number. Portable SQL.
_NUMBER: Final = "'job_000000000000000000' || substr(cast({} as text), 2)"  # Eight digits, so that ids sort by time.
_JOBS: Final = """
insert into headway_jobs ({columns})
with recursive numbers(n) as (select cast(1 as bigint) union all select n + 1 from numbers where n < {count})
select {values} from headway_jobs, numbers where id = '{source}'
"""
_LAST: Final = 200_000_000
_ENDED_AT: Final = f"created_at - n * {2 * SECOND}"
_COLUMNS: Final = {
    "id": _NUMBER.format(f"{_LAST} - n"),
    "task": "'report-' || (n % 50)",
    "queue": "'queue-' || (n % 5)",
    "key": "'order-' || n",
    "schedule": "'daily-' || (n % {schedules})",
    "status": "case n % 50 when 0 then 'FAILED' when 1 then 'CANCELLED' else 'COMPLETED' end",
    "attempt": "1",
    "version": "3",
    "node": "'node_0'",
    "progress": "100",
    "error": """case n % 50 when 0 then '{{"type": "OSError", "message": "disk ' || (n % 7) || ' is full"}}' end""",
    "reason": "case n % 50 when 0 then 'OSError' else '' end",
    "created_at": f"{_ENDED_AT} - {MINUTE}",
    "run_at": f"{_ENDED_AT} - {MINUTE}",
    "ready_at": f"{_ENDED_AT} - {MINUTE}",
    "started_at": f"{_ENDED_AT} - (n % 30 + 1) * {SECOND}",
    "finished_at": _ENDED_AT,
    "updated_at": _ENDED_AT,
}
_OCCURRENCES: Final = f"""
insert into headway_occurrences (schedule, instant, count, outcome, reason, decided_at, revision, token, node, job_id)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {DECISIONS})
select name, created_at - n * {DAY}, 1, case n % 5 when 0 then 'skipped' else 'fired' end, 'on time',
  created_at - n * {DAY}, 1, 1, 'node_0', case n % 5 when 0 then null else {_NUMBER.format(f"{_LAST} - n")} end
from headway_schedules, numbers
"""

# Name: page, and a selector that matches once it is useful.
PAINTS: Final = {
    "Now": ("", ".health .signs"),
    "Jobs": ("jobs", "tbody tr:nth-child(50) .badge"),
    "Schedules": ("schedules", "tbody tr:nth-child(50) .dot"),
}
_ENTER: Final = """await new Promise(requestAnimationFrame);
  began = performance.now();
  field.form.requestSubmit();"""
_TYPE: Final = """const field = document.querySelector("[data-filter]");
  field.value = "%s";
  field.dispatchEvent(new Event("input", {bubbles: true}));
"""
# Name: page, the user's action, and the expected rows.
FILTERS: Final = {
    "jobs by state": (
        "jobs",
        """document.querySelector('.tabs a[href*="status=FAILED"]').click();""",
        "rows.length > 0 && rows.every((row) => row.textContent.includes('Failed'))",
    ),
    "jobs by task": (
        "jobs",
        """const field = document.querySelector("[list=known-tasks]");
        field.value = "report-7";
        field.dispatchEvent(new Event("change", {bubbles: true}));""",
        "rows.length > 0 && rows.every((row) => /report-7(?!\\d)/.test(row.textContent))",
    ),
    "jobs by a text that one has": (
        "jobs",
        _TYPE % "order-{last}" + _ENTER,
        "rows.length === 1",
    ),
    "jobs by a text that none has": (
        "jobs",
        _TYPE % "no such thing" + _ENTER,
        "document.querySelector('.empty') !== null",
    ),
    "schedules by a text": (
        "schedules",
        _TYPE % "daily-99",
        "rows.length > 0 && rows.every((row) => row.textContent.includes('daily-99'))",
    ),
}
# Once the document is there, and again with every frame.
_SEEN: Final = """(() => {
  window.__seen = new Promise((done) => {
    const look = () => requestAnimationFrame(() => (document.querySelector("%s") ? done(performance.now()) : look()));
    look();
  });
})()"""
_FILTERED: Final = """() => new Promise(async (done) => {
  let began = performance.now();
  %s
  const look = () => requestAnimationFrame(() => {
    const rows = [...document.querySelectorAll("tbody tr")];
    if (%s) done(performance.now() - began);
    else look();
  });
  look();
})"""


async def measure(run: Run) -> list[Figure]:
    """Measure both databases; skip without a browser."""
    try:
        program = find_browser()
        require_build()
    except ServerMissing as missing:
        print(f"left out: the dashboard, which needs {missing}", file=sys.stderr)
        return []
    figures = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
        for place in run.places:
            figures += await _measure_on(place, run, browser)
        await browser.close()
    return figures


async def _measure_on(place: Place, run: Run, browser: Browser) -> list[Figure]:
    jobs, schedules = run.size(100_000, 1_000), run.size(10_000, 200)
    what = f"with {jobs:,} jobs and {schedules:,} schedules"
    async with database(place) as url:
        await _fill(place, url, jobs, schedules)
        async with api_server(url) as (port, _):
            address = f"http://127.0.0.1:{port}/"
            figures = []
            for name, (path, selector) in PAINTS.items():
                taken = [await _painted(browser, f"{address}#/{path}", selector) for _ in range(run.repetitions + 1)]
                seconds = [ms / 1_000 for ms in taken[1:]]
                figures.append(
                    plain("dashboard", place.name, f"first useful paint of {name}, {what}", seconds, "s", PAINT)
                )
            for name, (path, act, found) in FILTERS.items():
                script = _FILTERED % (act.replace("{last}", str(jobs)), found)
                taken = [await _filtered(browser, f"{address}#/{path}", script) for _ in range(run.repetitions + 1)]
                figures.append(plain("dashboard", place.name, f"{name}, {what}", taken[1:], "ms", FILTER))
    return figures


async def _open(browser: Browser) -> tuple[Any, Page]:
    """Open a browser with an empty profile."""
    context = await browser.new_context(viewport={"width": 1280, "height": 720})
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    return context, page


async def _painted(browser: Browser, address: str, selector: str) -> float:
    """Return the milliseconds from the navigation to the first useful paint."""
    context, page = await _open(browser)
    try:
        await context.add_init_script(_SEEN % selector)
        await page.goto(address, wait_until="commit")
        await page.wait_for_selector(selector, state="attached")
        return float(await page.evaluate("window.__seen"))
    finally:
        await context.close()


async def _filtered(browser: Browser, address: str, script: str) -> float:
    """Return the milliseconds from the user's action until the list shows its result."""
    context, page = await _open(browser)
    try:
        await page.goto(address)
        await page.wait_for_selector("tbody tr:nth-child(50)")
        await page.wait_for_selector('[data-live="live"]')
        return float(await page.evaluate(script))
    finally:
        await context.close()


async def _fill(place: Place, url: str, jobs: int, schedules: int) -> None:
    async with opened(url) as (store, clock):
        await store.schedules.put("daily", SPEC)
        [source] = await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="report", args='{"n":1}')])
    bare = await place.bare(url)
    try:
        await bare.execute(multiply("daily", schedules - 1))
        await _multiply(bare, source.id, jobs, schedules)
        await bare.execute(_OCCURRENCES)
        for statement in ("vacuum analyze", "checkpoint") if place.name == "postgresql" else ("analyze",):
            await bare.execute(statement)
    finally:
        await bare.close()


async def _multiply(bare: Bare, source: str, count: int, schedules: int) -> None:
    columns = (await bare.read("headway_jobs", "id limit 1")).columns
    changed = {name: value.format(schedules=schedules) for name, value in _COLUMNS.items()}
    values = ", ".join(changed.get(column, column) for column in columns)
    await bare.execute(_JOBS.format(columns=", ".join(columns), values=values, count=count, source=source))
    await bare.execute(f"delete from headway_jobs where id = '{source}'")
