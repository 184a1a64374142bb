"""Dead letters: jobs that failed for good and await review. List, count, retry and drop them.

Lists, retries and drops select letters in one place, so a dry run names exactly the jobs that the real run would touch.
Retrying a letter creates a new job that is linked to it. Dropping one only removes it from the list. The failed job
itself stays in the history until it is pruned.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import DefinitionError, HeadwayError, JobNotFound, NotFinal, StoreError
from headway.core.failures import DeadLetter
from headway.core.instants import parse_instant
from headway.core.jobs import Job as StoredJob
from headway.core.lifecycle import Status
from headway.operations import audit_log
from headway.operations.caller import Caller, require_printable
from headway.operations.job_reads import JOB_ID, page_of_jobs, shown_job, tenant_asked_for, versions_of
from headway.operations.verbs import OperationGroup, check_cursor, verb
from headway.store.failures import COUNTED_MAX
from headway.wire.base import LISTED_BYTES_MAX, PAGE_DEFAULT, PAGE_MAX, Cursor, Limit, Page, Time
from headway.wire.dead_letters import (
    LETTERS_AT_ONCE,
    DroppedLetter,
    DroppedLetters,
    FailureFilter,
    Failures,
    LetterCount,
    LetterFilter,
    ManyLetters,
    RefusedLetter,
    RetriedLetter,
    RetriedLetters,
    group_of,
)
from headway.wire.jobs import Job

GROUPS_DEFAULT: Final = 200
EVERY_FAILURE: Final = FailureFilter()
EVERY_LETTER: Final = LetterFilter()

FinishedAfter = Annotated[
    Time, msgspec.Meta(description="jobs that failed since then", examples=["2027-01-31T05:00:00Z"])
]
GroupLimit = Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX, description="maximum number of groups", examples=[50])]


class FailedJobs(OperationGroup):
    """Failed jobs by error."""

    @verb("GET /api/failures", id="list_failures", role="viewer")
    async def list(
        self,
        which: FailureFilter = EVERY_FAILURE,
        *,
        finished_after: FinishedAfter | None = None,
        limit: GroupLimit = GROUPS_DEFAULT,
    ) -> Failures:
        """Count failed jobs by task and error, most first.

        Dead letters; with `finished_after` every job that failed since then, including those that were retried or
        dropped. Errors that differ only in numbers and ids count as one. The newest 10,000 jobs are counted; `is_exact`
        says whether those were all.
        """
        groups = await self.caller.store.failures.groups(
            **_in_store(self.caller, which), since=None if finished_after is None else parse_instant(finished_after)
        )
        total = sum(group.jobs for group in groups)
        return Failures([*map(group_of, groups[:limit])], len(groups), total, total < COUNTED_MAX)


class DeadLetters(OperationGroup):
    """Dead letters: jobs that failed for good and await review."""

    @verb("GET /api/dead", id="list_dead", role="viewer", stable=versions_of)
    async def list(
        self, which: LetterFilter = EVERY_LETTER, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None
    ) -> Page[Job]:
        """List dead letters, newest first."""
        before, filters = check_cursor(cursor, JOB_ID), _in_store(self.caller, which)
        if which.error is None:
            read = self.caller.store.jobs.dead
            found = await read(**filters, before=before, limit=limit, largest=LISTED_BYTES_MAX)
            return await page_of_jobs(self.caller, found, limit)
        failures = self.caller.store.failures
        letters, following = await failures.letters(**filters, error=which.error, before=before, limit=limit)
        found = await failures.jobs([letter.id for letter in letters], largest=LISTED_BYTES_MAX)
        # The page may be short even if there are more, since the search for an error is bounded.
        return await page_of_jobs(self.caller, found, limit, following=following)

    @verb(
        "POST /api/dead/retry",
        id="retry_dead_group",
        role="operator",
        errors=(JobNotFound, NotFinal),
    )
    async def retry_many(self, which: ManyLetters) -> RetriedLetters:
        """Retry many dead letters, oldest first.

        Select them by `ids`, by filters, or with `all`. `dry_run` changes nothing; `ids` are then the jobs that would
        be retried. `more` says that `limit` was reached. Letters that were retried or dropped meanwhile are in
        `refused`.
        """
        chosen = await _chosen(self.caller, which)
        if which.dry_run:
            return RetriedLetters(**chosen.plan(), retried=[])
        if chosen.letters:
            await self.caller.admit_jobs(len(chosen.letters))
        done: list[RetriedLetter] = []
        refused = [*chosen.refused]
        for letter in chosen.letters:
            try:
                done.append(RetriedLetter(letter.id, (await self._retried(letter)).id))
            except StoreError:
                raise
            except HeadwayError as error:  # Another operator acted on this one first; continue with the others.
                refused.append(RefusedLetter(letter.id, str(error)))
        ids = [one.id for one in done]
        return RetriedLetters(count=len(ids), ids=ids, retried=done, refused=refused, more=chosen.more, dry_run=False)

    @verb(
        "POST /api/dead/drop",
        id="drop_dead_group",
        role="operator",
        errors=(JobNotFound, NotFinal),
    )
    async def drop_many(self, which: ManyLetters) -> DroppedLetters:
        """Drop many dead letters.

        The jobs stay in the history; nothing runs again. Select them by `ids`, by filters, or with `all`. `dry_run`
        changes nothing; `ids` are then the jobs that would be dropped. `more` says that `limit` was reached. Letters
        that were retried or dropped meanwhile are in `refused`.
        """
        chosen = await _chosen(self.caller, which)
        if which.dry_run:
            return DroppedLetters(**chosen.plan(), dropped=[])
        filters = (which.chosen_by or which.filters()).given()
        recorded = {name: text for name, text in filters.items() if name != "tenant"}
        dropped: list[str] = []
        for tenant, ids in _by_tenant(chosen.letters).items():
            for start in range(0, len(ids), PAGE_MAX):
                acting = self.caller.acting(audit_log.drop_dead_group(tenant, recorded))
                dropped += await acting.queue.drop_dead(ids[start : start + PAGE_MAX], author=self.caller.name)
        return DroppedLetters(
            count=len(dropped),
            ids=dropped,
            dropped=dropped,
            refused=chosen.refused,
            more=chosen.more,
            dry_run=False,
        )

    @verb(
        "POST /api/dead/{id}/retry",
        id="retry_dead",
        role="operator",
        status=201,
        errors=(JobNotFound, NotFinal),
        location=lambda job: f"/api/jobs/{job.id}",
    )
    async def retry(self, id: str) -> Job:
        """Retry a dead letter, as a new job."""
        letter = await self._letter(id)
        await self.caller.admit_jobs(1)
        return await shown_job(self.caller, await self._retried(letter))

    @verb("POST /api/dead/{id}/drop", id="drop_dead", role="operator", errors=(JobNotFound, NotFinal))
    async def drop(self, id: str) -> DroppedLetter:
        """Drop a dead letter.

        The job stays in the history; nothing runs again.
        """
        letter = await self._letter(id)
        acting = self.caller.acting(audit_log.drop_dead(letter))
        if not await acting.queue.drop_dead([letter.id], author=self.caller.name):
            raise _no_letter(letter)
        return DroppedLetter(letter.id, dropped=True)

    async def _letter(self, job_id: str) -> DeadLetter:
        [letter] = await _named(self.caller, [job_id])
        if not letter.is_dead:
            raise _no_letter(letter)
        return letter

    async def _retried(self, letter: DeadLetter) -> StoredJob:
        acting = self.caller.acting(audit_log.retry_dead(letter))
        return await acting.queue.retry(letter.id, author=self.caller.name, only_dead=True)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The selected letters, oldest first, whether there are more, and the given ids that are not dead letters."""

    letters: Sequence[DeadLetter]
    more: bool
    refused: list[RefusedLetter]

    def plan(self) -> dict[str, Any]:
        """Return the result of a dry run: which letters would be touched, and their errors, most frequent first."""
        ids = [letter.id for letter in self.letters]
        kinds = Counter((letter.task, letter.kind) for letter in self.letters).most_common()
        errors = [LetterCount(task, kind, number) for (task, kind), number in kinds]
        rest = {"refused": self.refused, "more": self.more, "dry_run": True, "errors": errors}
        return {"count": len(ids), "ids": ids, **rest}


async def _chosen(caller: Caller, which: ManyLetters) -> _Chosen:
    filters = which.filters()
    for name, text in {**filters.given(), **(which.chosen_by.given() if which.chosen_by else {})}.items():
        require_printable(text, name)
    if (which.ids is not None) + bool(filters.given()) + which.all != 1:
        raise DefinitionError("give exactly one of: ids, filters (type, queue, schedule, tenant, error), all")
    if which.limit > LETTERS_AT_ONCE and not which.dry_run:
        raise DefinitionError(f"limit must be at most {LETTERS_AT_ONCE:,}, except with dry_run")
    if which.ids is not None:
        named = await _named(caller, which.ids)
        gone = [RefusedLetter(letter.id, str(_no_letter(letter))) for letter in named if not letter.is_dead]
        return _Chosen([letter for letter in named if letter.is_dead], False, gone)
    found, following = await caller.store.failures.letters(
        **_in_store(caller, filters), error=which.error, limit=which.limit
    )
    return _Chosen(found[::-1], following is not None, [])


async def _named(caller: Caller, job_ids: Sequence[str]) -> list[DeadLetter]:
    """Read jobs by their ids, oldest first, whether they are still dead letters or not."""
    found = await caller.store.failures.among(job_ids)
    for job_id in sorted(set(job_ids)):
        letter = found.get(job_id)
        if letter is None or not caller.principal.sees(letter.tenant):
            raise JobNotFound(f"no job has the id {job_id!r}")
        if not letter.status.is_final:
            raise NotFinal(f"{letter.id} is {letter.status}; it is not a dead letter")
    return [found[job_id] for job_id in sorted(found)]


def _no_letter(letter: DeadLetter) -> JobNotFound:
    is_failed = letter.status in (Status.FAILED, Status.TIMED_OUT)
    return JobNotFound(f"{letter.id} is not a dead letter: {letter.status}" + (", reviewed" if is_failed else ""))


def _in_store(caller: Caller, which: FailureFilter) -> dict[str, Any]:
    """Return the filters under the names that the store uses."""
    tenant = tenant_asked_for(caller, which.tenant)
    return {"task": which.type, "queue": which.queue, "schedule": which.schedule, "tenant": tenant}


def _by_tenant(letters: Iterable[DeadLetter]) -> dict[str, list[str]]:
    """Group letters by tenant: each tenant has its own audit log."""
    found: dict[str, list[str]] = {}
    for letter in letters:
        found.setdefault(letter.tenant, []).append(letter.id)
    return found
