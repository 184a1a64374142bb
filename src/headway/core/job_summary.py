"""Say in a few words where a job is, from the job alone, as lists do."""

from typing import assert_never

from headway.core.instants import Instant, away, span
from headway.core.job_details import error_line, left_words, read_detail
from headway.core.jobs import Job
from headway.core.lifecycle import Status


def glance(job: Job, now: Instant, node_name: str | None = None) -> str:
    """Say in a few words what the job alone can tell."""
    match job.status:
        case Status.PENDING:
            return "waits for a worker"
        case Status.SCHEDULED:
            return f"due {away(job.run_at, now)}"
        case Status.RETRYING:
            soon = f"next attempt {away(job.run_at, now)}" if job.run_at > now else "the next attempt is due"
            return f"{failure_words(job)}; {soon}"
        case Status.BLOCKED:
            return f"parked: {job.reason}" if job.parked is not None else f"waits for {job.blocked_by} to end"
        case Status.RUNNING:
            return running_words(job, now, node_name or job.node)
        case Status.COMPLETED | Status.FAILED | Status.TIMED_OUT | Status.CANCELLED:
            return end_words(job, now)
    assert_never(job.status)


def failure_words(job: Job) -> str:
    """Describe the last failure."""
    words = job.reason.removesuffix(", retrying") or "failed"
    error = error_line(job.error)
    return f"{words}: {error}" if error else words


def running_words(job: Job, now: Instant, node: str | None) -> str:
    """Say since when a job runs, where, and how far it is."""
    where = "" if node is None else f" on {node}"  # Events for followers do not contain the node.
    running = f"running{where} for {span(max(0, now - (job.started_at or now)))}"
    if job.cancel_requested_at is not None:
        asked = f"asked to stop {away(job.cancel_requested_at, now)}"
        return f"{asked} ({job.reason}), {running}" if job.reason else f"{asked}, {running}"
    detail, left = read_detail(job), left_words(job, now)
    words = [running]
    if job.progress or detail.step:
        words.append(f"{job.progress}%" + (f" ({detail.step})" if detail.step else ""))
    if left:
        words.append(f"about {left}")
    if job.attempt > 1:
        words.append(tries(job.attempt, job.failures, job.max_attempts))
    return ", ".join(words)


def tries(attempt: int, failures: int, allowed: int) -> str:
    """Describe the attempt of a job: `attempt 2/3`, or `attempt 5 (1 of 3 failed)` if some did not count."""
    if attempt <= allowed and failures in (attempt, attempt - 1):
        return f"attempt {attempt}/{allowed}"
    return f"attempt {attempt} ({failures} of {allowed} failed)"


def end_words(job: Job, now: Instant) -> str:
    """Say when and how a job ended."""
    ended = away(job.finished_at if job.finished_at is not None else now, now)
    if job.status is Status.COMPLETED:
        took = "" if job.started_at is None or job.finished_at is None else span(job.finished_at - job.started_at)
        return f"completed {ended}" + (f", took {took}" if took else "")
    if job.status is Status.CANCELLED:
        return job.reason or f"cancelled {ended}"
    words = f"{failure_words(job)}; ended {ended}"
    return f"out of time; {words}" if job.status is Status.TIMED_OUT and "out of time" not in words else words
