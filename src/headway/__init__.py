"""Headway: a distributed, highly available job scheduler whose ledger can be audited.

from headway import Headway, Cron

app = Headway()

@app.task
def report(day: str) -> str: ...

app.schedule("daily-report", report, Cron("0 6 * * *", tz="Europe/Berlin"), args={"day": "yesterday"})

The names are loaded when they are first used, so that the command line starts before the engine is there.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headway.core.version import VERSION

if TYPE_CHECKING:
    from headway.app import Headway
    from headway.coordination.locks import Leader, LeaderTerm, Lock, SyncLock
    from headway.core.errors import (
        AlreadyFinal,
        BatchClosed,
        BatchNotFound,
        Conflict,
        DefinitionError,
        Denied,
        DuplicateKey,
        HeadwayError,
        InvalidConfig,
        InvalidLimit,
        InvalidSchedule,
        InvalidTask,
        JobFailed,
        JobNotFound,
        LeaseLost,
        LockHeld,
        NotFinal,
        NotFound,
        ScheduleChanged,
        ScheduleNotFound,
        ScheduleOwned,
        SchemaMismatch,
        StoreError,
        StoreFull,
        StoreReadOnly,
        StoreUnavailable,
        TaskNotFound,
    )
    from headway.core.lifecycle import Status
    from headway.core.settings import Settings
    from headway.core.triggers import After, At, Cron, Every
    from headway.tasks.batches import Batch
    from headway.tasks.context import Context, TaskStopped
    from headway.tasks.handles import JobHandle
    from headway.tasks.options import Options
    from headway.tasks.retry import Cancel, Retry
    from headway.tasks.task import Task

__version__ = VERSION

__all__ = [
    "After",
    "AlreadyFinal",
    "At",
    "Batch",
    "BatchClosed",
    "BatchNotFound",
    "Cancel",
    "Conflict",
    "Context",
    "Cron",
    "DefinitionError",
    "Denied",
    "DuplicateKey",
    "Every",
    "Headway",
    "HeadwayError",
    "InvalidConfig",
    "InvalidLimit",
    "InvalidSchedule",
    "InvalidTask",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "Leader",
    "LeaderTerm",
    "LeaseLost",
    "Lock",
    "LockHeld",
    "NotFinal",
    "NotFound",
    "Options",
    "Retry",
    "ScheduleChanged",
    "ScheduleNotFound",
    "ScheduleOwned",
    "SchemaMismatch",
    "Settings",
    "Status",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "SyncLock",
    "Task",
    "TaskNotFound",
    "TaskStopped",
]

if not TYPE_CHECKING:  # Type checkers read the imports above, and would believe any name if they saw this.
    _HOMES = {
        "Headway": "headway.app",
        "Task": "headway.tasks.task",
        "Batch": "headway.tasks.batches",
        "JobHandle": "headway.tasks.handles",
        "Options": "headway.tasks.options",
        **dict.fromkeys(("Cancel", "Retry"), "headway.tasks.retry"),
        **dict.fromkeys(("Context", "TaskStopped"), "headway.tasks.context"),
        **dict.fromkeys(("After", "At", "Cron", "Every"), "headway.core.triggers"),
        **dict.fromkeys(("Leader", "LeaderTerm", "Lock", "SyncLock"), "headway.coordination.locks"),
        "Settings": "headway.core.settings",
        "Status": "headway.core.lifecycle",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'headway' has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "headway.core.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
