"""`headway batches`: list, show, watch, close, cancel and retry batches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from headway.cli.output import Column, console, to_json
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean, span
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import SECOND
from headway.operations.everything import Operations
from headway.operations.verbs import pages
from headway.wire.batches import Batch

FAILED: Final = 1
LOOK_S: Final = 0.5
STORE_AWAY_S_MAX: Final = 120.0
BAR_WIDTH: Final = 40
LINE_POINTS: Final = 10
# The states of jobs by their order in the bar: their mark, their style, and the mark on terminals with ASCII only.
SEGMENTS: Final = (
    ("completed", "━", "good", "#"),
    ("failed", "━", "bad", "x"),
    ("timed_out", "━", "bad", "t"),
    ("cancelled", "━", "quiet", "c"),
    ("running", "╸", "time", ">"),
    ("waiting", "─", "quiet", "-"),
)

app = new_group(help="List batches; show, watch, close, cancel and retry them.")

BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The name of the batch, or its id.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="The tenant of the batch.")]


@command(app, "list")
async def list_(
    session: Session,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only those that have not finished.")] = False,
    finished: Annotated[bool, typer.Option("--finished", help="Only those that have finished.")] = False,
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
) -> None:
    """List the batches, newest first."""
    state = None if unfinished == finished else "unfinished" if unfinished else "finished"
    async with session.operations() as operations:
        found = [one async for one in pages(operations.batches.list, state=state, tenant=tenant, most=limit)]
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no batches; `async with app.batch(NAME) as batch` makes one")
    else:
        columns = [
            Column("batch", "name", wraps=True),
            Column("state"),
            Column("done", right=True),
            Column("total", right=True),
            Column("failed", right=True),
            Column("running", right=True),
            Column("left", "time", right=True),
        ]
        session.out.table(columns, [_row(batch) for batch in found])


def _row(batch: Batch) -> tuple[object, ...]:
    failed = batch.counts.failed + batch.counts.timed_out
    left = None if batch.eta_seconds is None else span(batch.eta_seconds * SECOND)
    done = f"{batch.progress} %"
    return batch.name, state_of(batch), done, f"{batch.total:,}", f"{failed:,}", f"{batch.counts.running:,}", left


def state_of(batch: Batch) -> str:
    """Describe the state of a batch in a word."""
    if batch.outcome is not None:
        return batch.outcome
    if batch.cancel_requested_at is not None:
        return "cancelling"
    return "open" if batch.closed_at is None else "closed"


@command(app)
async def show(session: Session, batch: BatchArgument, tenant: TenantOption = None) -> None:
    """Show a batch: its counts, progress, rate and time left."""
    async with session.operations() as operations:
        tell(session, await operations.batches.show(batch, tenant=tenant))


@command(app)
async def watch(session: Session, batch: BatchArgument, tenant: TenantOption = None) -> int:
    """Watch a batch until it has finished: one bar by state, with rate and time left.

    Ctrl-C stops watching, not the batch. The exit code is 1 if the batch fails or is cancelled.
    """
    async with session.operations() as operations:
        first = found = await operations.batches.show(batch, tenant=tenant)
        with ExitStack() as stack:
            draw = _drawing(session, stack)
            async for found in _looks(operations, first):
                draw(found)
    if not session.as_json:
        session.out.say(clean(f"{found.name}: {found.outcome}; {words(found)}"))
    return 0 if found.outcome == "completed" else FAILED


async def _looks(operations: Operations, first: Batch) -> AsyncIterator[Batch]:
    """Yield a batch until it has finished, also through an outage of the store."""
    clock: Clock = operations.clock
    found, seen_at = first, clock.monotonic()
    yield found
    while found.finished_at is None:
        await clock.rest(LOOK_S, asyncio.Event())
        try:
            found, seen_at = await operations.batches.show(first.id), clock.monotonic()
        except StoreUnavailable:
            if clock.monotonic() - seen_at > STORE_AWAY_S_MAX:
                raise
            continue
        yield found


def _drawing(session: Session, stack: ExitStack) -> Callable[[Batch], None]:
    if session.as_json:
        return _once_each(lambda batch: print(to_json(batch), flush=True), lambda batch: (batch.counts, batch.outcome))
    if not session.out.on_terminal:
        line = lambda batch: session.out.say(clean(f"{batch.progress} %  {words(batch)}"))  # noqa: E731
        return _once_each(line, lambda batch: (batch.progress // LINE_POINTS, batch.outcome))
    from rich.live import Live
    from rich.text import Text

    live = stack.enter_context(Live(console=console(), refresh_per_second=4, transient=True))
    is_ascii = (console().encoding or "").lower() in ("ascii", "us-ascii")

    def draw(batch: Batch) -> None:
        text = Text()
        for piece, style in pieces(batch, is_ascii=is_ascii):
            text.append(piece, style=style)
        live.update(text)

    return draw


def _once_each(tell_batch: Callable[[Batch], None], kind: Callable[[Batch], Any]) -> Callable[[Batch], None]:
    """Tell of a batch only when this part of it has changed."""
    told: list[Any] = []

    def take(batch: Batch) -> None:
        if told != [kind(batch)]:
            told[:] = [kind(batch)]
            tell_batch(batch)

    return take


def pieces(batch: Batch, *, is_ascii: bool = False) -> list[tuple[str, str]]:
    """Return the bar of a batch as styled pieces: a segment for each state, then the numbers."""
    from headway.cli.output import STYLES

    drawn = [(clean(batch.name) + "  ", "")]
    for (_, mark, style, plain), width in zip(SEGMENTS, segments(batch), strict=True):
        drawn.append(((plain if is_ascii else mark) * width, STYLES.get(style, "")))
    return [*drawn, (f"  {batch.progress} %  {words(batch)}", "")]


def segments(batch: Batch, width: int = BAR_WIDTH) -> list[int]:
    """Divide the width of a bar by state: they add up, and what is not zero is seen."""
    counts = [getattr(batch.counts, name) for name, *_ in SEGMENTS]
    if batch.total == 0:
        return [0] * (len(counts) - 1) + [width]
    widths = [max(1, count * width // batch.total) if count else 0 for count in counts]
    widths[widths.index(max(widths))] += width - sum(widths)
    return widths


def words(batch: Batch) -> str:
    """Describe the counts of a batch, its rate and the time left."""
    counts = batch.counts
    said = [f"{counts.completed:,} of {batch.total:,} completed"]
    for name, count in (("failed", counts.failed), ("timed out", counts.timed_out), ("cancelled", counts.cancelled)):
        said += [f"{count:,} {name}"] if count else []
    said += [f"{batch.retried:,} rerun"] if batch.retried else []
    if batch.finished_at is None:
        said += [f"{counts.running:,} running", f"{counts.waiting:,} waiting"]
    if batch.rate is not None:
        said.append(f"{batch.rate:,.1f}/s")
    if batch.eta_seconds is not None:
        said.append(f"{span(batch.eta_seconds * SECOND)} left")
    return ", ".join(said)


def tell(session: Session, batch: Batch, done: str = "") -> None:
    """Print a batch, or what was done with it."""
    if session.as_json:
        session.out.json(batch)
        return
    session.out.say(clean(f"{batch.name} ({batch.id}): {done or state_of(batch)}; {words(batch)}"))
    failed = batch.counts.failed + batch.counts.timed_out
    if failed and not done:
        session.out.say(clean(f"headway jobs list --batch {batch.id} --status FAILED lists the failed ones"))


@command(app)
async def close(session: Session, batch: BatchArgument, tenant: TenantOption = None) -> None:
    """Close a batch: it takes no more jobs, and finishes when all have ended."""
    async with session.operations() as operations:
        found = await operations.batches.close(batch, tenant=tenant)
    tell(session, found, "closed" if found.changed else "was closed already")


@command(app)
async def cancel(
    session: Session,
    batch: BatchArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")] = "",
    tenant: TenantOption = None,
) -> None:
    """Cancel a batch: its waiting jobs are cancelled, and those that run are asked to stop."""
    async with session.operations() as operations:
        found = await operations.batches.cancel(batch, reason=reason, tenant=tenant)
    tell(session, found, "cancelled" if found.changed else "was cancelled already")


@command(app)
async def retry(session: Session, batch: BatchArgument, tenant: TenantOption = None) -> None:
    """Rerun the failed jobs of a batch: in it while it runs, afterwards in a new batch."""
    async with session.operations() as operations:
        found = await operations.batches.retry(batch, tenant=tenant)
    tell(session, found, "the failed jobs run again" if found.changed else "no failed job is left to rerun")
