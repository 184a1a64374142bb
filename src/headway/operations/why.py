"""Explain why a job has its status: one true sentence, and the evidence for it.

Pure: the caller reads the job and its context (`Around`) from the store, and gets words for people and values for
programs. `explain` uses everything that is known about one job; `headway.core.job_summary`, which lists use, needs the
job alone.
"""

from collections.abc import Iterable
from typing import Any, Final, assert_never

import msgspec

from headway.core.instants import (
    SECOND,
    Duration,
    Instant,
    away,
    format_duration,
    isoformat,
    quote,
    span,
)
from headway.core.job_details import eta_seconds, read_detail, read_error
from headway.core.job_summary import end_words, failure_words, glance, running_words
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.needs import parse_needs
from headway.core.nodes import Node
from headway.operations.why_limits import held_words, share_words
from headway.operations.why_needs import busy_words, needs_words
from headway.operations.worker_state import Worker, workers_of
from headway.store.limit_reads import Hold, UsedShare

MOMENT: Final = 2 * SECOND  # Within this time something that happens at once is not yet late.
NAMES_SHOWN: Final = 20

Evidence = dict[str, Any]


class QueuePause(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of a queue: since when, by whom, why."""

    since: Instant
    author: str = ""
    reason: str = ""


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a job, as far as its status requires it."""

    now: Instant
    nodes: tuple[Node, ...] = ()
    pause: QueuePause | None = None
    ahead: int = 0
    is_for_tenant: bool = False  # The caller may learn nothing about other tenants; `ahead` counts only its own jobs.
    predecessor: Job | None = None
    rivals: tuple[Job, ...] = ()
    reruns: tuple[str, ...] = ()
    names: dict[str, str] = {}
    hold: Hold | None = None
    share: UsedShare | None = None

    def name_of(self, node_id: str | None) -> str:
        """Return the name of a node, alive or not; its id if the name is no longer known."""
        alive = (node.name for node in self.nodes if node.id == node_id)
        return next(alive, self.names.get(node_id or "", node_id or "nobody"))

    def lives(self, node_id: str | None) -> bool:
        """Return whether a node has sent a heartbeat recently."""
        return any(node.id == node_id for node in self.nodes)

    @property
    def keepers(self) -> int:
        """The number of live nodes; any of them makes due jobs ready and rescues the jobs of lost workers."""
        return len(self.nodes)


class Explanation(msgspec.Struct, frozen=True):
    """The answer."""

    status: str
    why: str
    evidence: Evidence


def _brief_error(text: str | None) -> Evidence | None:
    """Return the error without its traceback, which is long and not meant for every reader."""
    error = read_error(text)
    return None if error is None else {"type": error["type"], "message": error["message"]}


def explain(job: Job, around: Around) -> Explanation:
    """Explain why a job has its status."""
    sentence, evidence = _of_status(job, around)
    if not job.status.is_final and job.status is not Status.RUNNING and job.expires_at is not None:
        evidence["expires_at"] = isoformat(job.expires_at)
        if job.expires_at > around.now:
            sentence += f"; expires {away(job.expires_at, around.now)} unless it has started"
        else:
            sentence = f"its time to start expired {away(job.expires_at, around.now)}; it is about to be cancelled"
    return Explanation(str(job.status), sentence, {"job": job.id, "task": job.task, **evidence})


def _of_status(job: Job, around: Around) -> tuple[str, Evidence]:
    match job.status:
        case Status.SCHEDULED:
            return _scheduled(job, around)
        case Status.PENDING:
            return _pending(job, around)
        case Status.RETRYING:
            return _retrying(job, around)
        case Status.BLOCKED:
            return _parked(job) if job.parked is not None else _blocked(job, around)
        case Status.RUNNING:
            return _running(job, around)
        case Status.COMPLETED | Status.FAILED | Status.TIMED_OUT | Status.CANCELLED:
            return _ended(job, around)
    assert_never(job.status)


def _at(instant: Instant, now: Instant) -> str:
    second = instant // SECOND * SECOND
    return f"{away(instant, now)}, at {isoformat(second)}" if abs(instant - now) >= SECOND else away(instant, now)


def _scheduled(job: Job, around: Around) -> tuple[str, Evidence]:
    evidence: Evidence = {"run_at": isoformat(job.run_at)}
    if job.schedule is not None:
        evidence["schedule"] = job.schedule_name
    if job.run_at > around.now:
        return f"due {_at(job.run_at, around.now)}", evidence
    return f"was due {_at(job.run_at, around.now)}; {_readier(around, evidence)}", evidence


def _readier(around: Around, evidence: Evidence) -> str:
    """Say which nodes make due jobs ready."""
    evidence["nodes"] = around.keepers
    if not around.keepers:
        return "no scheduler or worker is alive to make it ready"
    return "it becomes ready any moment"


def _retrying(job: Job, around: Around) -> tuple[str, Evidence]:
    evidence: Evidence = {
        "attempts": job.attempt,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "error": _brief_error(job.error),
        "run_at": isoformat(job.run_at),
        "backoff": None if job.backoff is None else str(job.backoff),
    }
    if job.run_at > around.now:
        return f"{failure_words(job)}; next attempt {_at(job.run_at, around.now)}", evidence
    return f"{failure_words(job)}; the next attempt is due; {_readier(around, evidence)}", evidence


_CURES: Final = {
    "unknown task": "start a worker whose app has the task; the job then continues by itself",
    "arguments": "cancel it and enqueue it with arguments that fit; or change the task, then `headway jobs retry {id}`",
    "unreadable": "cancel it and enqueue it again",
    "needs": "start a worker that offers it, with --offer, --label or that version; the job then continues by itself",
}


def _parked(job: Job) -> tuple[str, Evidence]:
    cure = _CURES.get(job.parked or "", "try again with `headway jobs retry {id}`").format(id=job.id)
    evidence: Evidence = {"parked": job.parked, "reason": job.reason, "attempts": job.attempt, "cure": cure}
    return f"parked ({job.parked}): {job.reason or 'no worker can run it'}; {cure}", evidence


def _blocked(job: Job, around: Around) -> tuple[str, Evidence]:
    before = around.predecessor
    evidence: Evidence = {"blocked_by": job.blocked_by, "schedule": job.schedule_name, "run_at": isoformat(job.run_at)}
    if before is not None:
        evidence["blocked_by_status"] = str(before.status)
    if before is not None and not before.status.is_final:
        evidence["blocked_by_why"] = glance(before, around.now, around.name_of(before.node))
        line = f", as schedule {job.schedule_name} runs one at a time" if job.exclusive and job.schedule else ""
        return f"waits for {before.id} to end{line}; that is {before.status}: {evidence['blocked_by_why']}", evidence
    gone = "is gone" if before is None else f"has ended as {before.status}"
    rivals = [rival.id for rival in around.rivals if rival.id != job.id]
    if rivals:
        evidence["live"] = rivals
        return f"{job.blocked_by} {gone}, but {_some(rivals)} of schedule {job.schedule_name} must end first", evidence
    if job.run_at > around.now:
        return f"{job.blocked_by} {gone}; due {_at(job.run_at, around.now)}", evidence
    return f"{job.blocked_by} {gone}, so this job is next; {_readier(around, evidence)}", evidence


def _pending_for_tenant(job: Job, around: Around) -> tuple[str, Evidence]:
    """Say what a ready job lacks, without names and numbers of resources that tenants share."""
    ready = max(0, around.now - (job.ready_at or job.run_at))
    workers = workers_of(around.nodes)
    knowing = [worker for worker in workers if job.task in worker.tasks]
    taking = [worker for worker in knowing if worker.takes(job.queue)]
    evidence: Evidence = {"queue": job.queue, "ready_seconds": round(ready / SECOND, 3), "ahead": around.ahead}
    if job.reason:
        evidence["last"] = job.reason
    if around.pause is not None:
        evidence["paused_at"] = isoformat(around.pause.since)
        return f"queue {quote(job.queue)} has been paused for {span(max(0, around.now - around.pause.since))}", evidence
    if not workers:
        return "no worker is alive", evidence
    if not knowing:
        return f"no live worker knows the task {quote(job.task)}", evidence
    if not taking:
        return f"no worker that knows the task takes from queue {quote(job.queue)}", evidence
    staying = [worker for worker in taking if not worker.draining]
    if not staying:
        return "all workers that could take it are draining", evidence
    if job.needs and (words := needs_words(job.needs, staying, evidence, is_for_tenant=True)):
        return words, evidence
    if around.hold is not None:
        return held_words(around.hold, around.now, evidence, is_for_tenant=True), evidence
    share_words(job, around.share, evidence, is_for_tenant=True)
    own = f"; {_count(around.ahead, 'job')} of its tenant ahead of it" if around.ahead else ""
    return f"ready for {span(ready)}, waits for a worker{own}", evidence


def _pending(job: Job, around: Around) -> tuple[str, Evidence]:
    """Check what a ready job needs, in order, up to the first thing that is missing."""
    if around.is_for_tenant:
        return _pending_for_tenant(job, around)
    ready = max(0, around.now - (job.ready_at or job.run_at))
    workers = workers_of(around.nodes)
    knowing = [worker for worker in workers if job.task in worker.tasks]
    taking = [worker for worker in knowing if worker.takes(job.queue)]
    staying = [worker for worker in taking if not worker.draining]
    evidence: Evidence = {
        "queue": job.queue,
        "ready_seconds": round(ready / SECOND, 3),
        "workers": len(workers),
        "workers_that_know_it": len(knowing),
        "workers_that_take_it": len(staying),
    }
    if job.reason:
        evidence["last"] = job.reason
    if around.pause is not None:
        return _paused(job, around.pause, around.now, evidence), evidence
    if not workers:
        evidence["cure"] = "headway worker --app MODULE:APP"
        return "no worker is alive", evidence
    if not knowing:
        known = sorted({task for worker in workers for task in worker.tasks})
        evidence["tasks"] = known[:NAMES_SHOWN]
        return f"no live worker knows the task {quote(job.task)}; known: {_some(known) or 'none'}", evidence
    if not taking:
        looked = sorted({queue for worker in knowing for queue in worker.queues})
        evidence["queues"] = looked[:NAMES_SHOWN]
        return (
            f"workers that know the task do not take from queue {quote(job.queue)}, only from {_some(looked)}",
            evidence,
        )
    if not staying:
        return f"all workers that could take it are draining ({_some([worker.name for worker in taking])})", evidence
    if job.needs and (words := needs_words(job.needs, staying, evidence)):
        return words, evidence
    if job.company is not None:
        return _apart(job, evidence), evidence
    if around.hold is not None:
        return held_words(around.hold, around.now, evidence), evidence
    share = share_words(job, around.share, evidence)
    if job.needs and (words := busy_words(job.needs, staying, evidence)):
        return f"{words}; ready for {span(ready)}{share}", evidence
    able = [worker for worker in staying if worker.offer.covers(parse_needs(job.needs))]
    return _capacity(job, able, around.ahead, evidence, ready) + share, evidence


def _apart(job: Job, evidence: Evidence) -> str:
    """Say what a suspect job waits for: one whose workers were lost."""
    evidence["company"] = job.company
    waits = "a worker that runs no other job" if job.company == 0 else "a worker that runs no other suspect"
    return f"{job.reason.partition(',')[0] or 'workers were lost with it'}; waits for {waits}"


def _paused(job: Job, pause: QueuePause, now: Instant, evidence: Evidence) -> str:
    evidence |= {"paused_at": isoformat(pause.since), "paused_by": pause.author, "reason": pause.reason}
    evidence["cure"] = f"headway queues resume {job.queue}"
    by = f" by {pause.author}" if pause.author else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"queue {quote(job.queue)} has been paused for {span(max(0, now - pause.since))}{by}{reason}"


def _capacity(job: Job, workers: list[Worker], ahead: int, evidence: Evidence, ready: Duration) -> str:
    """Say how many slots this job could use, and how many of them are free."""
    slots = sum(worker.slots_for(job.task) for worker in workers)
    free = sum(worker.free_for(job.task) for worker in workers)
    kinds = {worker.kind_of(job.task) for worker in workers}
    kind = kinds.pop() if len(kinds) == 1 else None
    evidence |= {"slots": slots, "free": free, "isolation": kind, "ahead": ahead}
    noun = "slot" if kind is None or _is_all(workers, slots) else f"{kind} slot"
    line = f"{_count(ahead, 'job')} ahead of it" if ahead else "it is next"
    if slots and not free:
        busy = f"the only {noun} is" if slots == 1 else f"all {_count(slots, noun)} of {_workers(workers)} are"
        return f"{busy} busy; {line}"
    if ready < MOMENT:
        return f"ready for {span(ready)}; a worker takes it any moment"
    room = f", with {free:,} of {_count(slots, noun)} free" if slots else ""
    return f"ready for {span(ready)}{room}; {line}"


def _is_all(workers: list[Worker], slots: int) -> bool:
    """Say whether these are all slots of the workers, or which kind they are."""
    return slots == sum(worker.slots for worker in workers)


def _workers(workers: list[Worker]) -> str:
    return _count(len(workers), "worker")


def _running(job: Job, around: Around) -> tuple[str, Evidence]:
    now, detail = around.now, read_detail(job)
    started = job.started_at if job.started_at is not None else now
    node = around.name_of(job.node)
    evidence: Evidence = {
        "node": job.node,
        "node_name": node,
        "node_alive": around.lives(job.node),
        "started_at": isoformat(started),
        "attempts": job.attempt,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "progress": job.progress,
        "step": detail.step,
        "eta_seconds": eta_seconds(job, now),
        "timeout": None if job.timeout is None else format_duration(job.timeout),
    }
    if job.cancel_requested_at is not None:
        evidence |= {"cancel_requested_at": isoformat(job.cancel_requested_at), "reason": job.reason}
    if job.lease_until is not None:
        evidence |= {
            "lease_until": isoformat(job.lease_until),
            "lease_seconds": round((job.lease_until - now) / SECOND, 3),
        }
        if job.lease_until < now:
            evidence["nodes"] = around.keepers
            rescue = "it is being rescued" if around.keepers else "no scheduler or worker is alive to rescue it"
            return f"its worker {node} is lost: the lease ran out {away(job.lease_until, now)}; {rescue}", evidence
        if not around.lives(job.node):
            silent = f"{node} has sent no heartbeat recently; unless it comes back, the job is rescued"
            return f"{running_words(job, now, node)}; {silent} {away(job.lease_until, now)}", evidence
    return running_words(job, now, node), evidence


def _ended(job: Job, around: Around) -> tuple[str, Evidence]:
    evidence: Evidence = {
        "finished_at": None if job.finished_at is None else isoformat(job.finished_at),
        "attempts": job.attempt,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "reason": job.reason,
        "error": _brief_error(job.error),
    }
    if job.rerun_of is not None:
        evidence["rerun_of"] = job.rerun_of
    sentence = end_words(job, around.now)
    if around.reruns:
        evidence["reruns"] = list(around.reruns)
        sentence += f"; run again as {_some(around.reruns)}"
    elif job.status in (Status.FAILED, Status.TIMED_OUT):
        if job.reviewed_at is None:
            evidence["cure"] = f"headway jobs retry {job.id}"
            sentence += f"; in the dead-letter queue; retry with `headway jobs retry {job.id}`"
        else:
            evidence["reviewed_at"] = isoformat(job.reviewed_at)
            sentence += f"; reviewed {away(job.reviewed_at, around.now)}"
    return sentence, evidence


def _some(names: Iterable[str]) -> str:
    """List names, a few of them."""
    listed = list(names)
    more = f" and {len(listed) - NAMES_SHOWN:,} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
