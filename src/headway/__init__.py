"""Headway: a distributed, highly available job scheduler whose ledger can be audited.

from headway import Headway, Cron

app = Headway()

@app.task
def report(day: str) -> str: ...

app.schedule("daily-report", report, Cron("0 6 * * *", tz="Europe/Berlin"), args={"day": "yesterday"})
"""

from headway.app import Headway, JobHandle, Options, Retry, Task
from headway.errors import (
    AlreadyFinal,
    Conflict,
    DefinitionError,
    DuplicateKey,
    HeadwayError,
    InvalidConfig,
    InvalidSchedule,
    InvalidTask,
    JobNotFound,
    LeaseLost,
    NotFound,
    ScheduleChanged,
    ScheduleNotFound,
    ScheduleOwned,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskNotFound,
)
from headway.lifecycle import Status
from headway.scheduling.triggers import After, At, Cron, Every
from headway.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "After",
    "AlreadyFinal",
    "At",
    "Conflict",
    "Cron",
    "DefinitionError",
    "DuplicateKey",
    "Every",
    "Headway",
    "HeadwayError",
    "InvalidConfig",
    "InvalidSchedule",
    "InvalidTask",
    "JobHandle",
    "JobNotFound",
    "LeaseLost",
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
    "StoreUnavailable",
    "Task",
    "TaskNotFound",
]
