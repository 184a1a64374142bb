"""Tasks for a child that is spoken with directly."""

import time

from headway import Context, Headway

app = Headway("sqlite://", name="child")


@app.task
async def hold(ctx: Context) -> str:
    """Keep the loop busy until asked to stop, which nobody should do; say when it begins."""
    ctx.progress(1)
    until = time.monotonic() + 30
    while not ctx.cancelled and time.monotonic() < until:
        time.sleep(0.01)  # noqa: ASYNC251 - that is the mistake
    return "asked" if ctx.cancelled else "never asked"


@app.task
async def short() -> str:
    """Do nothing."""
    return "done"


@app.task
async def keep(ctx: Context, steps: int) -> int:
    """Ask the supervisor many times, each time without letting the loop go on."""
    return sum(ctx.once(f"step {number}", lambda: 1) for number in range(steps))
