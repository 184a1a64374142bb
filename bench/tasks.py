"""The tasks that the benchmarks of the worker run."""

import asyncio
import time
from typing import Final

from headway import Context, Headway
from headway.core.settings import Settings

PROGRESS_S: Final = 0.5  # As often as the store takes it.


def declare(app: Headway) -> Headway:
    """Give an app the tasks."""

    @app.task
    async def nothing() -> None:
        """Only be run."""

    @app.task
    def blocking() -> None:
        """Be there, so that the worker has children of both kinds."""

    @app.task
    async def sleeper(ctx: Context, seconds: int) -> None:
        """Sleep for a while, and say how far that is."""
        steps = round(seconds / PROGRESS_S)
        for step in range(steps):
            ctx.progress(step * 100 / steps, f"step {step} of {steps}")
            await asyncio.sleep(PROGRESS_S)

    @app.task
    async def chatter(ctx: Context, seconds: float, gap_s: float) -> None:
        """Say something new all the time, and when that was."""
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            ctx.metadata["said"] = [number, time.monotonic_ns()]
            await asyncio.sleep(gap_s)

    return app


def open_app(url: str) -> Headway:
    """Make an app for the side that enqueues."""
    return declare(Headway(settings=Settings(store=url, node="bench"), name="bench"))


app = declare(Headway(name="bench"))
