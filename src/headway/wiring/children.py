"""Plan the child processes of a worker, and describe an app to the supervisor that never imports it."""

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from headway.core.limits import Limit
from headway.core.schedules import ScheduleSpec
from headway.core.settings import Settings
from headway.core.tenants import Tenant
from headway.tasks.task import Task
from headway.worker.child_processes import ChildPoolPlan
from headway.worker.environment import ALLOWED
from headway.worker.ipc import Hello, TaskInfo
from headway.worker.process import child_command

THREADS_MAX: Final = 32
CHILD_STORE: Final = "HEADWAY_CHILD_STORE"
CHILD_REPORT_S: Final = "HEADWAY_CHILD_REPORT_S"
LIVE_REPORT_EVERY_S: Final = 0.02


def child_pool_plan(settings: Settings, store: str | None = None) -> ChildPoolPlan:
    """Return how many children of which kind a worker has; their app uses its own store unless one is given."""
    return ChildPoolPlan(
        command=child_command(settings.app),
        environ={  # Not in the command, which every user of the machine can read.
            **({} if store is None else {CHILD_STORE: store}),
            **({} if settings.redis is None else {CHILD_REPORT_S: str(LIVE_REPORT_EVERY_S)}),
            **({ALLOWED: ",".join(settings.task_env)} if settings.task_env else {}),
        },
        processes=settings.processes or _cores(),
        concurrency=settings.concurrency,
        threads=min(settings.concurrency, THREADS_MAX),
        max_jobs=settings.child_max_jobs,
        max_memory=settings.child_max_memory,
    )


def _cores() -> int:
    """Count the cores that this process may use, if the system reports that, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Described(Protocol):
    """The description of an app for the supervisor."""

    @property
    def name(self) -> str:
        """Its name, which owns its schedules."""
        ...

    @property
    def version(self) -> str | None:
        """The version of its code."""
        ...

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """Its tasks."""
        ...

    @property
    def declared(self) -> Mapping[str, ScheduleSpec]:
        """Its schedules."""
        ...

    @property
    def declared_limits(self) -> Mapping[str, Limit]:
        """Its limits."""
        ...

    @property
    def declared_tenants(self) -> Mapping[str, Tenant]:
        """Its tenants."""
        ...


def hello_of(app: Described, store: str) -> Hello:
    """Describe an app and its store."""
    tasks = [
        TaskInfo(
            name=task.name,
            isolation=task.execution.isolation,
            timeout=task.execution.timeout,
            retries_timeouts=task.execution.retry is None or task.execution.retry.retry_timeouts,
            defaults=task.defaults.to_dict(),
        )
        for task in app.tasks.values()
    ]
    schedules = {name: spec.to_json() for name, spec in app.declared.items()}
    limits, tenants = tuple(app.declared_limits.values()), tuple(app.declared_tenants.values())
    return Hello(os.getpid(), app.name, store, tasks, schedules, limits=limits, tenants=tenants, version=app.version)
