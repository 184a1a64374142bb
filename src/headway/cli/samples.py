"""The sample app of `headway demo`: tasks that take a few seconds and report progress, and schedules for them.

They only sleep; what they report is real. Each is what a first task of your own could look like.
"""

import asyncio
import os
import signal
import time
from typing import Any, Final

from headway.app import Headway
from headway.core.settings import Settings
from headway.core.triggers import After, Cron, Every
from headway.tasks.context import Context
from headway.tasks.retry import Retry

BERLIN: Final = Cron("30 2 * * *", tz="Europe/Berlin")
BATCHES: Final = 8
CRASHES_IN: Final = 5
STEPS: Final = (("Download", 2), ("Transcode 1080p", 5), ("Transcode 720p", 3), ("Upload", 2))
SYNC_SUCCEEDS_IN: Final = 3
ADDRESSES: Final = {1: "ada@example.com", 2: "grace@example.com"}
# What the demo begins with, and what every report asks for.
AFTERWARDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("sync_customers", {"source": "crm.example"}),
    ("send_invoice", {"customer": 1}),
    ("send_invoice", {"customer": 4711}),
)

app = Headway(settings=Settings(), name="demo")


@app.task
async def beat() -> str:
    """End at once."""
    return "tick"


@app.task
async def poll_inbox(ctx: Context, mails: int = 30) -> str:
    """Wait for the network, as async tasks do; hundreds of these share one process."""
    for _ in ctx.track(range(mails), "Reading mail"):
        await asyncio.sleep(0.12)
    return f"{mails} mails"


@app.task
def thumbnails(ctx: Context, images: int = 60) -> str:
    """Take longer than the interval of its schedule."""
    for _ in ctx.track(range(images), "Scaling"):
        time.sleep(0.11)
    return f"{images} images"


@app.task(timeout="5m", retry=Retry(max_attempts=3, backoff="1s..5s"))
def transcode(ctx: Context, video: str = "holiday.mp4") -> dict[str, Any]:
    """Go through named steps; finished steps are not repeated, whatever happens to the worker."""
    ctx.metadata["input"] = video
    with ctx.steps(*STEPS) as steps:
        for name, weight in STEPS:
            ctx.log(f"{name} of {video}")
            with steps(name):
                ctx.once(name, _process, ctx, weight * 12)
    return {"video": video, "steps": len(STEPS)}


@app.task(retry=Retry(max_attempts=3, backoff="2s"))
def import_orders(ctx: Context, crash: bool = True) -> dict[str, Any]:
    """Import batches, each stored once it is done; the first attempt that runs kills its own process half way."""
    imported: list[int] = []
    crashes = crash and ctx.attempt == ctx.once("attempt that crashes", lambda: ctx.attempt)
    for number in ctx.track(range(1, BATCHES + 1), "Importing batches"):
        if crashes and number == CRASHES_IN:
            time.sleep(0.6)
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.once(f"batch {number}", _import, number, imported)
    return {"batches": BATCHES, "imported by this attempt": imported}


@app.task
def report(ctx: Context, day: str = "today") -> str:
    """Do little, and enqueue jobs for the rest."""
    for percent, step in ((10, "Reading"), (60, "Writing")):
        ctx.progress(percent, step)
        ctx.log(f"{step} the figures of {day}")
        time.sleep(0.8)
    for task, args in AFTERWARDS:
        ctx.enqueue_sync(task, args, tags=["after-report"])
    return f"the report of {day}"


@app.task(retry=Retry(max_attempts=5, backoff="2s..8s"))
async def sync_customers(ctx: Context, source: str = "crm.example") -> str:
    """Depend on an unreliable service: the third attempt succeeds."""
    ctx.log(f"asking {source} for what has changed")
    for page in ctx.track(range(10), "Fetching pages"):
        await asyncio.sleep(0.2)
        if page == 2 + ctx.attempt and ctx.attempt < SYNC_SUCCEEDS_IN:
            raise ConnectionError(f"{source} has closed the connection")
    return f"10 pages of {source}"


@app.task(retry=Retry(max_attempts=2, backoff="2s"))
async def send_invoice(ctx: Context, customer: int = 4711) -> str:
    """Fail on every attempt: the job ends in the dead-letter queue."""
    ctx.log(f"writing the invoice of customer {customer}")
    await asyncio.sleep(0.5)
    address = ADDRESSES.get(customer)
    if address is None:
        raise LookupError(f"customer {customer} has no address")
    return f"sent to {address}"


def _process(ctx: Context, frames: int) -> int:
    for _ in ctx.track(range(frames)):
        time.sleep(0.1)
    return frames


def _import(number: int, imported: list[int]) -> int:
    time.sleep(0.6)
    imported.append(number)
    return number


app.schedule("heartbeat", beat, Every("2s"), overlap="allow")
app.schedule("thumbnails", thumbnails, Every("5s"), overlap="skip")
app.schedule("inbox", poll_inbox, After("3s"))
app.schedule("videos", transcode, After("5s"), args={"video": "holiday.mp4"})
app.schedule("report", report, Cron("* * * * *"), args={"day": "today"})
app.schedule("nightly", report, BERLIN, args={"day": "yesterday"})
