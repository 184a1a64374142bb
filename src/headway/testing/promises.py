"""Check the promises from the records alone: the ledger, the jobs and their attempts must be consistent."""

from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, Final, TypeAlias

from headway.core.instants import INSTANT_MAX, Instant, isoformat
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.occurrences import Decided, Occurrence
from headway.core.schedule_names import key_label, schedule_label
from headway.scheduling.audit import audit
from headway.store import Store

PAGE: Final = 200

Ending: TypeAlias = tuple[Status, Instant | None, str | None, int]
Attempts: TypeAlias = list[dict[str, Any]]


class Promises:
    """Checks a store, and remembers which jobs had ended at the last check."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: dict[str, Ending] = {}

    async def broken(self) -> list[str]:
        """Return every broken promise in words; empty if all are kept."""
        jobs = {job.id: job async for job in all_jobs(self._store)}
        attempts = {job_id: await self._store.jobs.attempts(job_id) for job_id in jobs}
        return [
            *await self._ledger(jobs),
            *(problem for job in jobs.values() for problem in self._final(job, attempts[job.id])),
            *self._alone(jobs, attempts),
            *await self._stale(jobs, attempts),
        ]

    async def _ledger(self, jobs: dict[str, Job]) -> list[str]:
        report = await audit(self._store.ledger)
        kinds = {"gap": report.gaps, "duplicate": report.duplicates, "phantom": report.phantoms}
        found = [
            f"S1: {kind} in {schedule_label(finding.tenant, finding.schedule)} at {isoformat(finding.instant)}:"
            f" {finding.reason}"
            for kind, findings in kinds.items()
            for finding in findings.kept
        ]
        pruned = await self._store.ledger.pruned_through()
        for key in [cursor.key for cursor in await self._store.ledger.keys("", PAGE)]:
            name = key_label(key)
            for occurrence in await all_occurrences(self._store, key):
                is_fired = occurrence.outcome is Decided.FIRED
                job = jobs.get(occurrence.job_id or "")
                if is_fired and job is None and occurrence.decided_at > pruned:
                    found.append(f"S1: {name} fired at {isoformat(occurrence.instant)}, and there is no job of it")
                elif job is not None and (job.schedule, job.occurrence_at) != (key, occurrence.instant):
                    found.append(f"S1: {name} fired at {isoformat(occurrence.instant)} and made {job.id} of another")
        return found

    def _final(self, job: Job, attempts: Attempts) -> list[str]:
        found = []
        numbers = [attempt["attempt"] for attempt in attempts]
        running = [job.attempt] if job.status is Status.RUNNING else []
        if numbers + running != list(range(1, job.attempt + 1)):
            found.append(f"S4: {job.id} is at attempt {job.attempt} and has records of {numbers}")
        if job.status.is_final != (job.finished_at is not None):
            found.append(f"S4: {job.id} is {job.status} and has ended at {job.finished_at}")
        if any(attempt["ended_at"] > (job.finished_at or attempt["ended_at"]) for attempt in attempts):
            found.append(f"S4: {job.id} has an attempt that ended after the job had")
        completed = [attempt["attempt"] for attempt in attempts if attempt["outcome"] == "completed"]
        if len(completed) > 1 or (job.status is Status.COMPLETED) != (completed == [job.attempt]):
            found.append(f"S4: {job.id} is {job.status}, its attempts {completed} completed")
        now = (job.status, job.finished_at, job.result, job.attempt)
        if self._ended.get(job.id, now) != now:
            found.append(f"S4: {job.id} had ended as {self._ended[job.id]} and is {now} now")
        if job.status.is_final:
            self._ended[job.id] = now
        return found

    def _alone(self, jobs: dict[str, Job], attempts: dict[str, Attempts]) -> list[str]:
        """Check that attempts of an exclusive schedule did not overlap."""
        spans: defaultdict[str, list[tuple[Instant, Instant, str]]] = defaultdict(list)
        for job in jobs.values():
            if job.exclusive and job.schedule is not None:
                spans[job.schedule].extend((a["started_at"], a["ended_at"], job.id) for a in attempts[job.id])
                if job.status is Status.RUNNING and job.started_at is not None:
                    spans[job.schedule].append((job.started_at, INSTANT_MAX, job.id))
        return [
            f"S7: {key_label(name)}: {later[2]} started at {isoformat(later[0])} while {earlier[2]} ran"
            for name, runs in spans.items()
            for earlier, later in pairwise(sorted(runs))
            if later[0] < earlier[1]
        ]

    async def _stale(self, jobs: dict[str, Job], attempts: dict[str, Attempts]) -> list[str]:
        """Check that the writes of an attempt are from the time when it ran."""
        found: list[str] = []
        children: defaultdict[str, list[Job]] = defaultdict(list)
        for job in jobs.values():
            if job.parent is not None and job.rerun_of is None:
                children[job.parent].append(job)
        for job in jobs.values():
            spans = {a["attempt"]: (a["started_at"], a["ended_at"]) for a in attempts[job.id]}
            if job.status is Status.RUNNING and job.started_at is not None:
                spans[job.attempt] = (job.started_at, INSTANT_MAX)
            for line in await self._store.jobs.log(job.id, limit=10_000):
                since, until = spans.get(line["attempt"], (0, 0))
                if not since <= line["at"] <= until:
                    found.append(f"S3: {job.id} has a log line of attempt {line['attempt']}, which did not run then")
            found += [
                f"S3: {child.id} was enqueued by {job.id} when that did not run"
                for child in children[job.id]
                if not any(since <= child.created_at <= until for since, until in spans.values())
            ]
        return found


async def all_jobs(store: Store, **filters: Any) -> AsyncIterator[Job]:
    """Read all jobs, newest first."""
    before: str | None = None
    while page := await store.jobs.page(**filters, before=before, limit=PAGE):
        for job in page:
            yield job
        before = page[-1].id


async def all_occurrences(store: Store, key: str) -> list[Occurrence]:
    """Read all decisions of the schedule with a key, oldest first."""
    after: Instant = -1
    found: list[Occurrence] = []
    while page := await store.ledger.ledger(key, after, INSTANT_MAX, PAGE):
        found.extend(occurrence for occurrence, _ in page)
        after = page[-1][0].instant
    return found
