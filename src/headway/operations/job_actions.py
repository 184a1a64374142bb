"""Cancel and retry a job, with the audit log entry; used by the operations and by `Headway` itself."""

from headway.core.jobs import Job
from headway.operations import audit_log
from headway.operations.caller import Caller
from headway.operations.job_reads import visible_job


async def cancel_job(caller: Caller, job_id: str, reason: str) -> Job:
    """Cancel a job, or ask it to stop if it runs; return its state afterwards."""
    job = await visible_job(caller, job_id)
    return await caller.acting(audit_log.cancel(job, reason)).queue.cancel(job.id, author=caller.name, reason=reason)


async def retry_job(caller: Caller, job: Job, args: str | None = None) -> Job:
    """Run a finished job again, perhaps with other arguments; return the new job, or the same job if it was parked."""
    await caller.admit_jobs(1)
    acting = caller.acting(audit_log.retry(job, other_args=args is not None))
    return await acting.queue.retry(job.id, author=caller.name, args=args)
