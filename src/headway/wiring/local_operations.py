"""Open a store for a command line: its clock, and the operations on it."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from headway.core.access import COMMAND_LINE
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.ports import LiveView, WebhookSender
from headway.core.process_tree import MARK
from headway.core.settings import Settings
from headway.operations.audit_log import origin
from headway.operations.caller import Caller, Principal
from headway.operations.everything import LocalOperations
from headway.operations.job_source import StoredJobs, overlaid_all
from headway.operations.task_catalogue import TaskCatalogue, TaskLike
from headway.store import Store
from headway.store.sqlite import path_of
from headway.store.transaction import call
from headway.wiring.engines import live_view_at, opened_store
from headway.wiring.webhooks import OneOffSender


@dataclass(frozen=True, slots=True)
class OpenStore:
    """An open store with a clock that knows its time."""

    store: Store
    clock: Clock
    latency_s: float = 0.0
    redis: str | None = None  # Where running jobs publish live progress.
    sender: WebhookSender | None = None
    tasks: Mapping[str, TaskLike] | None = None  # Those of the app, where it is known.
    _views: list[LiveView] = field(default_factory=list, repr=False)  # The open subscription to live progress.

    @property
    def now(self) -> Instant:
        """The store's time."""
        return self.clock.now()

    @property
    def operations(self) -> LocalOperations:
        """The operations on the store."""
        who, jobs = Principal(COMMAND_LINE, "*", "admin"), StoredJobs(self.store, self._with_live_progress)
        tasks = TaskCatalogue(self.store, self.clock, self.tasks) if self.tasks else None
        return LocalOperations(Caller(who, origin(), self.store, self.clock, tasks, sender=self.sender, jobs=jobs))

    async def _with_live_progress(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs with their live progress where that is newer than the store and arrives within a moment."""
        if self.redis is None or not any(job.status is Status.RUNNING for job in jobs):
            return list(jobs)
        if not self._views:
            self._views.append(live_view_at(self.redis, self.clock))
        return await overlaid_all(self._views[0], jobs)

    async def aclose(self) -> None:
        """End the subscription to live progress. The caller closes the store."""
        while self._views:
            await self._views.pop().close()


@asynccontextmanager
async def open_local(settings: Settings) -> AsyncIterator[OpenStore]:
    """Open the store that the settings name, and read its time."""
    clock = Clock(node=COMMAND_LINE)
    async with opened_store(settings, clock) as store:
        sender = OneOffSender(store, settings, clock)
        opened = OpenStore(store, clock, await read_time(store, clock), settings.redis, sender)
        async with aclosing(opened):
            yield opened


async def read_time(store: Store, clock: Clock) -> float:
    """Set a clock to the store's time; return the seconds that the request took."""
    sent = clock.monotonic()
    rows = await store.driver.fetch(call("time"))
    clock.observe(rows[0]["now"], sent=sent)
    return clock.monotonic() - sent


def is_missing(url: str) -> bool:
    """Return whether an embedded store does not exist yet; opening it would create an empty one."""
    if not url.startswith("sqlite://") or (path := path_of(url)) == ":memory:":
        return False
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # Opening it reports the error.
    return False


def no_store(url: str) -> StoreUnavailable:
    """Return the error for a store that does not exist yet, with the remedy."""
    hint = "; tasks do not inherit HEADWAY_STORE unless HEADWAY_TASK_ENV names it" if MARK in os.environ else ""
    return StoreUnavailable(
        f"there is no store at {path_of(url)} yet; `headway migrate` makes one, --store or HEADWAY_STORE names another"
        + hint
    )
