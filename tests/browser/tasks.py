"""The app whose jobs the browser shows. Each task serves one user journey."""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

from headway import Context, Cron, Every, Headway, Retry
from headway.core.settings import Settings

# Scripts that would run if a page did not escape a text.
NASTY = """<img src=x onerror="window.__ran.push('image')">'"><script>window.__ran.push('script')</script>"""
NASTY_URL = "javascript:window.__ran.push('address')"
# A shorter one, for names of limited length.
NASTY_NAME = "<img src=x onerror=window.__ran.push(1)>"

app = Headway(settings=Settings(), name="browser")
ONCE = Retry(max_attempts=1)


@app.task
async def greet(name: str = "you") -> dict[str, Any]:
    """Return at once, with a number that JavaScript cannot represent exactly."""
    return {"greeting": f"hello {name}", "exact": 9_007_199_254_740_993}


@app.task(retry=ONCE)
async def fail(message: str = "the printer is on fire", api_key: str = "hidden") -> None:
    """Fail at once, without a retry."""
    raise OSError(message)


def is_there(path: str) -> bool:
    """Return whether a test has created a file."""
    return Path(path).exists()


@app.task(retry=ONCE)
async def work(ctx: Context, seconds: float = 3_600.0, until: str = "") -> str:
    """Report steps and progress until cancelled, or until the time is up and the file `until` exists."""
    with ctx.steps("Load", "Transform", "Store") as steps:
        for name in ("Load", "Transform", "Store"):
            with steps(name):
                for number in ctx.track(range(round(seconds * 10 / 3)), name):
                    ctx.log(f"{name} line {number}")
                    await asyncio.sleep(0.1)
                while name == "Store" and until and not is_there(until):
                    ctx.log("and on")
                    await asyncio.sleep(0.2)
    return "worked"


@app.task(retry=ONCE)
async def wander(ctx: Context) -> None:
    """Report changing progress until cancelled."""
    for number in itertools.count():
        ctx.progress(number % 100, "Wandering")
        await asyncio.sleep(0.1)


@app.task(retry=ONCE)
async def tell(ctx: Context, lines: int = 10) -> None:
    """Log many lines and return."""
    for number in range(lines):
        ctx.log(f"told line {number}.")


@app.task(retry=ONCE)
async def chat() -> None:
    """Log on several levels."""
    logging.getLogger("shop.stock").warning("seven left")
    logging.getLogger("shop.stock").error("none left")
    print("a plain line")


@app.task(name=NASTY_NAME, retry=ONCE)
async def hostile(ctx: Context, text: str = NASTY, fails: bool = True) -> dict[str, str]:
    """Put a text into every field that a task can write."""
    ctx.log(text)
    ctx.log("\x1b]0;title\x07\x1b[31mred\u202edesrever\u2066")
    ctx.metadata[text] = text
    with ctx.steps(text, "then") as steps, steps(text):
        ctx.progress(10, text)
        await asyncio.sleep(0.3)
    if fails:
        raise type(f"Odd{NASTY_NAME}", (Exception,), {})(text)
    return {text: text, "download_url": NASTY_URL}


app.schedule("minutely", greet, Cron("* * * * *"), args={"name": "minute"})
app.schedule("nightly", greet, Cron("30 2 * * *", tz="Europe/Berlin"), args={"name": "night"})
app.schedule("quick", greet, Every("2s"), overlap="allow")
