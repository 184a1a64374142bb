"""The known tasks: those of the app of this process, and those that live workers register."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headway.core.clock import Clock
from headway.core.errors import InvalidTask, TaskNotFound
from headway.core.instants import DAY
from headway.store import Store
from headway.tasks.options import Options

KNOWN_FOR_S: Final = 1.0


class TaskLike(Protocol):
    """A task of the app: the default options of its jobs, and the arguments that it accepts."""

    @property
    def defaults(self) -> Options:
        """The options of its jobs."""
        ...

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check arguments."""
        ...


@dataclass(slots=True)
class TaskCatalogue:
    """The known tasks. The registrations of workers are read at most once a second."""

    store: Store
    clock: Clock
    app: Mapping[str, TaskLike] = field(default_factory=dict)
    version: str | None = None  # Of the code of this process, for tasks that are pinned to it.
    _heard: dict[str, dict[str, Any]] = field(default_factory=dict)
    _heard_at: float = -1e9

    async def options_of(self, name: str, args: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Return the default options of a task and the checked arguments; raise `TaskNotFound`."""
        task = self.app.get(name)
        if task is not None:
            try:
                return task.defaults, task.bind((), args)
            except InvalidTask as error:
                raise InvalidTask(f"args: {error}") from None
        if name not in self._heard and self.clock.monotonic() - self._heard_at > KNOWN_FOR_S:
            await self._read_workers()
        if name in self._heard:
            options = Options.from_dict(self._heard[name])
            return (options.with_needs(self.version) if options.pin else options), args
        if self.app or self._heard:
            raise TaskNotFound(f"unknown task {name!r}: no worker registers it; see `headway workers list`")
        return Options(), args  # No worker was alive within the last day: any task may exist.

    async def _read_workers(self) -> None:
        heard: dict[str, dict[str, Any]] = {}
        for node in await self.store.nodes.alive(DAY):
            worker = node.state.get("worker")
            if isinstance(worker, dict):
                defaults = worker.get("defaults")
                heard.update({name: (defaults or {}).get(name, {}) for name in worker.get("tasks", ())})
        self._heard, self._heard_at = heard, self.clock.monotonic()
