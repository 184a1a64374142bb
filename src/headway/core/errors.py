"""Every error that Headway raises.

    HeadwayError
    ├── DefinitionError       what the program or the caller asked for makes no sense; never retried
    │   ├── InvalidSchedule   a trigger, zone or policy that cannot be kept
    │   ├── InvalidTask       a name, argument or option that no job can have
    │   ├── InvalidLimit      a limit that cannot be kept, or that no rule defines
    │   ├── InvalidConfig     a setting that cannot be used
    │   └── RequestTooLarge   more than one request may take; ask for less at once
    ├── NotFound
    │   ├── TaskNotFound
    │   ├── ScheduleNotFound
    │   ├── JobNotFound
    │   └── BatchNotFound
    ├── Conflict              a concurrent change came first; read again and decide anew
    │   ├── ScheduleChanged   the schedule has another revision than the caller saw
    │   ├── ScheduleOwned     the schedule belongs to another app
    │   ├── LimitOwned        the limit belongs to another app, or to an operator
    │   ├── NodesTooOld       nodes of an older release run, which do not know this feature
    │   ├── AlreadyFinal      the job has ended, and final states never change
    │   ├── NotFinal          the job has not ended yet
    │   ├── DuplicateKey      the idempotency key was used with other arguments
    │   ├── BatchClosed       the batch takes no more jobs: it is closed, cancelled or finished
    │   └── LockHeld          another owner holds the lock, and the wait for it ended
    ├── Denied                the credential is missing, wrong, or not sufficient
    ├── LeaseLost             this attempt, term or lock is no longer ours: stop, write nothing
    ├── JobFailed             the job that was waited for did not complete
    ├── EngineUnavailable     a server beside the store (Redis, etcd, …) does not answer; the store goes on without it
    └── StoreError
        ├── StoreUnavailable  try again later; loops back off and retry
        │   └── StoreReadOnly the store takes no writes now; nothing was written; reads work
        ├── StoreFull         the disk or quota under the store is used up; nothing was written; loops back off
        └── SchemaMismatch    the database is older or newer than this program

A branch exists only where a caller would act differently. The docstring of a class is its default message.
"""


class HeadwayError(Exception):
    """Something went wrong in Headway."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class DefinitionError(HeadwayError):
    """The definition cannot be used."""


class InvalidSchedule(DefinitionError):
    """The schedule cannot be kept."""


class InvalidTask(DefinitionError):
    """The task, its arguments or its options cannot be used."""


class InvalidLimit(DefinitionError):
    """The limit cannot be kept."""


class InvalidConfig(DefinitionError):
    """The setting cannot be used."""


class RequestTooLarge(DefinitionError):
    """This is too much for one request; ask for less at once."""


class NotFound(HeadwayError):
    """Not found."""


class TaskNotFound(NotFound):
    """No task has this name."""


class ScheduleNotFound(NotFound):
    """No schedule has this name."""


class JobNotFound(NotFound):
    """No job has this id."""


class BatchNotFound(NotFound):
    """No batch has this name or id."""


class Conflict(HeadwayError):
    """The request conflicts with a concurrent change."""


class ScheduleChanged(Conflict):
    """The schedule was changed concurrently; read it again."""


class ScheduleOwned(Conflict):
    """The schedule belongs to another app."""


class LimitOwned(Conflict):
    """The limit belongs to another app."""


class NodesTooOld(Conflict):
    """Nodes of an older release run, which do not know this feature; upgrade or stop them first."""


class AlreadyFinal(Conflict):
    """The job has ended already, and final states never change."""


class NotFinal(Conflict):
    """The job has not ended yet."""


class DuplicateKey(Conflict):
    """The idempotency key was used before with other arguments."""


class BatchClosed(Conflict):
    """The batch takes no more jobs."""


class LockHeld(Conflict):
    """The lock is held by another owner."""


class Denied(HeadwayError):
    """The token is missing, wrong, or not enough for this."""


class LeaseLost(HeadwayError):
    """The lease is lost: another process may hold it."""


class JobFailed(HeadwayError):
    """The job did not complete."""


class EngineUnavailable(HeadwayError):
    """A server beside the store does not answer."""


class StoreError(HeadwayError):
    """The store refused."""


class StoreUnavailable(StoreError):
    """The store does not answer; try again later."""


class StoreReadOnly(StoreUnavailable):
    """The store is read-only; nothing was written."""


class StoreFull(StoreError):
    """The store has no room left; nothing was written."""


class SchemaMismatch(StoreError):
    """The database has another schema version than this program; run `headway migrate`."""
