"""Define the tasks that the worker benchmarks run."""

import asyncio
import time
from typing import Final

from headway import Context, Headway
from headway.core.settings import Settings

PROGRESS_S: Final = 0.5  # A worker writes progress to the store at most this often.


def declare(app: Headway) -> Headway:
    """Register the tasks with an app."""

    @app.task
    async def nothing() -> None:
        """Do nothing."""

    @app.task
    def blocking() -> None:
        """Do nothing, synchronously, so that the worker starts both kinds of children."""

    @app.task
    async def sleeper(ctx: Context, seconds: int) -> None:
        """Sleep and report progress."""
        steps = round(seconds / PROGRESS_S)
        for step in range(steps):
            ctx.progress(step * 100 / steps, f"step {step} of {steps}")
            await asyncio.sleep(PROGRESS_S)

    @app.task
    async def chatter(ctx: Context, seconds: float, gap_s: float) -> None:
        """Update the metadata continuously with a counter and a timestamp."""
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            ctx.metadata["said"] = [number, time.monotonic_ns()]
            await asyncio.sleep(gap_s)

    return app


def open_app(url: str) -> Headway:
    """Create an app for the process that enqueues."""
    return declare(Headway(settings=Settings(store=url, node="bench"), name="bench"))


app = declare(Headway(name="bench"))
