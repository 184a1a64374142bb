"""Why a job is where it is: one true sentence, and the evidence for it.

Pure: whoever asks has read the job and what is around it (`Around`) from the store, and gets words for people and
values for programs. `explain` answers for one job with everything that is known; `glance` says what the job alone can
tell, for lists. What a job says about itself while it runs (step, counts, rate, time left) is read here too, as far as
it can be read: data of users never makes anybody fall over.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, assert_never

import msgspec

from headway.core.instants import (
    DURATION_MAX,
    INSTANT_MAX,
    SECOND,
    Duration,
    Instant,
    away,
    format_duration,
    isoformat,
    quote,
    span,
)
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.nodes import Node
from headway.operations.worker_state import Worker, workers_of

MOMENT: Final = 2 * SECOND  # So long something may take that happens at once.
NAMES_SHOWN: Final = 20
MESSAGE_LENGTH_MAX: Final = 300
RAW_LENGTH_MAX: Final = 4_096

Evidence = dict[str, Any]


# As large as a number may be that is still shown as one.
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=DURATION_MAX // SECOND)]


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One of the steps that a job has named: `done`, `running` or `waiting`, and how long it took."""

    name: str
    state: str
    seconds: _Seconds | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running job last said about itself."""

    step: str | None = None
    done: _Number | None = None
    total: _Number | None = None
    rate: _Number | None = None
    eta: _Seconds | None = None
    steps: tuple[Step, ...] = ()
    serial: Annotated[int, msgspec.Meta(ge=0)] = 0  # Which of its reports this was, where they are told live.

    @property
    def steps_done(self) -> int:
        """How many of the named steps are done."""
        return sum(step.state == "done" for step in self.steps)


_NO_DETAIL: Final = Detail()
_decode_detail: Final = msgspec.json.Decoder(Detail).decode


def read_detail(job: Job) -> Detail:
    """Read what the job last said about itself."""
    if job.detail is None:
        return _NO_DETAIL
    try:
        return _decode_detail(job.detail)
    except (msgspec.DecodeError, RecursionError):
        return _NO_DETAIL


def read_json(text: str | None) -> Any:
    """Read stored JSON; what cannot be read is shown as the text that it is, not at any length."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text[:RAW_LENGTH_MAX]


def read_metadata(job: Job) -> dict[str, Any]:
    """Return the facts that the task has noted, and at which step it is."""
    noted = read_json(job.metadata)
    metadata: dict[str, Any] = {}
    if noted is not None:
        metadata = dict(noted) if isinstance(noted, dict) else {"unreadable": noted}
    detail = read_detail(job)
    if detail.step is not None:
        metadata["current_step"] = detail.step
    if detail.steps:
        metadata |= {"steps_completed": detail.steps_done, "steps_total": len(detail.steps)}
    return metadata


def read_error(text: str | None) -> dict[str, Any] | None:
    """Return what went wrong as an object with at least `type` and `message`."""
    error = read_json(text)
    if error is None:
        return None
    if not isinstance(error, dict):
        return {"type": "Error", "message": str(error)}
    return {**error, "type": str(error.get("type", "Error")), "message": str(error.get("message", ""))}


def error_line(text: str | None) -> str:
    """Say in one line what went wrong: `ConnectionError: refused`."""
    error = read_error(text)
    if error is None:
        return ""
    message = " ".join(error["message"].split())
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 1] + "…"
    return f"{error['type']}: {message}" if message else str(error["type"])


def _brief_error(text: str | None) -> Evidence | None:
    """Return what went wrong without where it did; that is long, and not for everybody."""
    error = read_error(text)
    return None if error is None else {"type": error["type"], "message": error["message"]}


def eta_at(job: Job) -> Instant | None:
    """Return when a running job will end by its own account; that time may have passed."""
    eta = read_detail(job).eta
    if job.status is not Status.RUNNING or eta is None:
        return None
    return min(job.updated_at + round(eta * SECOND), INSTANT_MAX)


def eta_seconds(job: Job, now: Instant) -> int | None:
    """Return how long a running job will still take by its own account; None once that time has passed."""
    at = eta_at(job)
    if at is None or at <= now:
        return None
    left = min(at - now, at - job.updated_at)  # Less the time since it said so, unless our clock is behind.
    return max(1, round(left / SECOND))


def left_words(job: Job, now: Instant) -> str:
    """Say how long a running job will still take: `4m 12s left`; nothing where nobody knows, or it is late."""
    eta = eta_seconds(job, now)
    return "" if eta is None else f"{span(eta * SECOND)} left"


class QueuePause(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is taken from a queue: since when, by whom, why."""

    since: Instant
    author: str = ""
    reason: str = ""


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What is around a job, as far as its status makes it matter."""

    now: Instant
    nodes: tuple[Node, ...] = ()
    pause: QueuePause | None = None
    ahead: int = 0
    is_for_tenant: bool = False  # Who asks may learn nothing of other tenants; `ahead` has only its own jobs.
    predecessor: Job | None = None
    rivals: tuple[Job, ...] = ()
    reruns: tuple[str, ...] = ()
    names: dict[str, str] = {}

    def name_of(self, node_id: str | None) -> str:
        """Return what people call a node, alive or not; its id when that is not known any more."""
        alive = (node.name for node in self.nodes if node.id == node_id)
        return next(alive, self.names.get(node_id or "", node_id or "nobody"))

    def lives(self, node_id: str | None) -> bool:
        """Say whether a node was heard of lately."""
        return any(node.id == node_id for node in self.nodes)

    @property
    def keepers(self) -> int:
        """How many nodes are alive; one of them makes due jobs ready and rescues those of lost workers."""
        return len(self.nodes)


class Why(msgspec.Struct, frozen=True):
    """The answer."""

    status: str
    why: str
    evidence: Evidence


def explain(job: Job, around: Around) -> Why:
    """Say why a job is where it is."""
    sentence, evidence = _of_status(job, around)
    if not job.status.is_final and job.status is not Status.RUNNING and job.expires_at is not None:
        evidence["expires_at"] = isoformat(job.expires_at)
        if job.expires_at > around.now:
            sentence += f"; expires {away(job.expires_at, around.now)} unless it has started"
        else:
            sentence = f"its time to start was over {away(job.expires_at, around.now)}; it is about to be cancelled"
    return Why(str(job.status), sentence, {"job": job.id, "task": job.task, **evidence})


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


def glance(job: Job, now: Instant, node_name: str | None = None) -> str:
    """Say in a few words what the job alone can tell."""
    match job.status:
        case Status.PENDING:
            return "waits for a worker"
        case Status.SCHEDULED:
            return f"due {away(job.run_at, now)}"
        case Status.RETRYING:
            soon = f"next attempt {away(job.run_at, now)}" if job.run_at > now else "the next attempt is due"
            return f"{_failure(job)}; {soon}"
        case Status.BLOCKED:
            return f"parked: {job.reason}" if job.parked is not None else f"waits for {job.blocked_by} to end"
        case Status.RUNNING:
            return _running_words(job, now, node_name or job.node)
        case Status.COMPLETED | Status.FAILED | Status.TIMED_OUT | Status.CANCELLED:
            return _end_words(job, now)
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
    """Say who makes due jobs ready."""
    evidence["nodes"] = around.keepers
    if not around.keepers:
        return "no scheduler or worker is alive to make it ready"
    return "it is made ready at any moment"


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
        return f"{_failure(job)}; next attempt {_at(job.run_at, around.now)}", evidence
    return f"{_failure(job)}; the next attempt is due; {_readier(around, evidence)}", evidence


def _failure(job: Job) -> str:
    words = job.reason.removesuffix(", retrying") or "failed"
    error = error_line(job.error)
    return f"{words}: {error}" if error else words


_CURES: Final = {
    "unknown task": "start a worker whose app has the task: it is taken up again by itself",
    "arguments": "cancel it and enqueue it with arguments that fit; or change the task, then `headway jobs retry {id}`",
    "unreadable": "cancel it and enqueue it anew",
}


def _parked(job: Job) -> tuple[str, Evidence]:
    cure = _CURES.get(job.parked or "", "`headway jobs retry {id}` has it looked at again").format(id=job.id)
    evidence: Evidence = {"parked": job.parked, "reason": job.reason, "attempts": job.attempt, "cure": cure}
    return f"parked ({job.parked}): {job.reason or 'nobody here can run it'}; {cure}", evidence


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
    return f"{job.blocked_by} {gone}, so it is its turn; {_readier(around, evidence)}", evidence


def _pending_for_tenant(job: Job, around: Around) -> tuple[str, Evidence]:
    """Say what a ready job lacks without names and numbers of what all tenants share."""
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
    if all(worker.draining for worker in taking):
        return "all workers that could take it are draining", evidence
    own = f"; {_count(around.ahead, 'job')} of its tenant ahead of it" if around.ahead else ""
    return f"ready for {span(ready)}, waits for a worker{own}", evidence


def _pending(job: Job, around: Around) -> tuple[str, Evidence]:
    """Go through what a ready job needs, in the order in which it needs it, up to what is missing."""
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
    if job.company is not None:
        return _apart(job, evidence), evidence
    return _capacity(job, staying, around.ahead, evidence, ready), evidence


def _apart(job: Job, evidence: Evidence) -> str:
    """Say for what a job waits with which workers were lost."""
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
    """Say how many slots there are that this job could use, and how many of them are free."""
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
        return f"ready for {span(ready)}; a worker takes it at any moment"
    room = f", with {free:,} of {_count(slots, noun)} free" if slots else ""
    return f"ready for {span(ready)}{room}; {line}"


def _is_all(workers: list[Worker], slots: int) -> bool:
    """Say whether these are all slots that the workers have, so that nobody looks for others."""
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
            silent = f"{node} was not heard of lately; unless it comes back the job is rescued"
            return f"{_running_words(job, now, node)}; {silent} {away(job.lease_until, now)}", evidence
    return _running_words(job, now, node), evidence


def _running_words(job: Job, now: Instant, node: str | None) -> str:
    where = "" if node is None else f" on {node}"  # What followers are told does not say where.
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
        words.append(tries(job))
    return ", ".join(words)


def tries(job: Job) -> str:
    """Say which attempt a job is at: `attempt 2/3`, or `attempt 5 (1 of 3 failed)` where some did not count."""
    if job.attempt <= job.max_attempts and job.failures in (job.attempt, job.attempt - 1):
        return f"attempt {job.attempt}/{job.max_attempts}"
    return f"attempt {job.attempt} ({job.failures} of {job.max_attempts} failed)"


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
    sentence = _end_words(job, around.now)
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


def _end_words(job: Job, now: Instant) -> str:
    ended = away(job.finished_at if job.finished_at is not None else now, now)
    if job.status is Status.COMPLETED:
        took = "" if job.started_at is None or job.finished_at is None else span(job.finished_at - job.started_at)
        return f"completed {ended}" + (f", took {took}" if took else "")
    if job.status is Status.CANCELLED:
        return job.reason or f"cancelled {ended}"
    words = f"{_failure(job)}; ended {ended}"
    return f"out of time; {words}" if job.status is Status.TIMED_OUT and "out of time" not in words else words


def _some(names: Iterable[str]) -> str:
    """List names, a few of them."""
    listed = list(names)
    more = f" and {len(listed) - NAMES_SHOWN:,} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
