"""Jobs, schedules, decisions and previews as JSON objects: the same for the HTTP API, the command line and webhooks.

Times are ISO 8601 with `Z`. What looks like a secret by its name is masked here, so that no output forgets it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from headway.core.errors import InvalidSchedule
from headway.core.instants import DAY, INSTANT_MAX, INSTANT_MIN, Instant, format_duration, isoformat, to_datetime
from headway.core.job_logs import read_stream
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.occurrences import Occurrence
from headway.core.schedules import Pause, Schedule, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.triggers import After, At, Cron, Trigger, describe, trigger_to_dict
from headway.core.zones import zone
from headway.operations.why import (
    Detail,
    eta_at,
    eta_seconds,
    glance,
    read_detail,
    read_error,
    read_json,
    read_metadata,
)
from headway.scheduling.planner import first_at, next_instant

MASK: Final = "***"
DEPTH_SHOWN: Final = 100  # More than anybody can hand in over HTTP.
LISTED_BYTES_MAX: Final = 4_096  # Larger values are left out of lists; `omitted` names them.
# A word of a name after which a secret follows, in small letters. Some people write two words as one: dbpassword.
_SECRET: Final = re.compile(
    r"""
      ^pass(?!ag|ed|eng|es|i[nov]|able|over|th)                               # pass, passwd; not passenger, passed
    | (?<!by)(?<!com)(?<!over)(?<!sur)(?<!tres)(?<!under)pass$                # dbpass; not bypass, compass
    | pass(word|wd|phrase|code|key) | pwd | ^pw$
    | token(?!i[sz]) | secret(?!ar) | credential | ^creds?$ | ^jwt$ | ^bearer$ | ^cookies?$
    | apikey | ^(access|auth|encryption|master|private|public|secret|signing|ssh)?keys?$
    | ^o?auth$ | ^authenti | authori[sz]ation
    """,
    re.VERBOSE,
)
# What is in every name that the other expression finds something in; most names are done with after a look for it.
_HINT: Final = re.compile("pass|pwd|pw|token|secret|cred|jwt|bearer|cookie|key|auth")
_WORD_ENDS: Final = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_MEASURES: Final = frozenset({"bits", "count", "length", "limit", "size", "total", "ttl"})
_NESTED: Final = frozenset({dict, list})
_NAMES_KEPT: Final = 4_096
_NAME_LENGTH_KEPT: Final = 64

# What can be written as a date in every zone.
_WRITABLE: Final = (INSTANT_MIN + DAY, INSTANT_MAX - DAY)

Shape = dict[str, Any]


def stamp(instant: Instant | None) -> str | None:
    """Write an instant for JSON: ISO 8601 UTC with `Z`, or null."""
    return None if instant is None else isoformat(instant)


def masked(value: Any, depth: int = DEPTH_SHOWN) -> Any:
    """Hide what looks like a secret by its name, however deep it is; what is deeper than anybody reads is left out."""
    kind = type(value)  # As JSON was read: nothing is derived from these two, and asking so costs a fifth.
    if kind is not dict and kind is not list:
        return value
    if not depth:
        return "…"
    if kind is list:
        return [masked(inner, depth - 1) if inner and type(inner) in _NESTED else inner for inner in value]
    return {
        name: MASK
        if _is_secret(name, inner)
        else masked(inner, depth - 1)
        if inner and type(inner) in _NESTED
        else inner
        for name, inner in value.items()
    }


def unmasked(value: Any, stored: Any) -> Any:
    """Put back what was masked: who reads a definition, changes it and writes it back has not seen its secrets."""
    if isinstance(value, dict):
        known = stored if isinstance(stored, dict) else {}
        return {
            name: known[name]
            if inner == MASK and name in known and _is_secret(name, known[name])
            else unmasked(inner, known.get(name))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        known_items = stored if isinstance(stored, list) and len(stored) == len(value) else [None] * len(value)
        return [unmasked(inner, known) for inner, known in zip(value, known_items, strict=True)]
    return value


def _is_secret(name: object, value: object) -> bool:
    if value is None or value == "" or isinstance(value, bool) or not isinstance(name, str):
        return False
    kind = _named(name) if len(name) <= _NAME_LENGTH_KEPT else _named.__wrapped__(name)
    return kind == "secret" or (kind == "secrets" and not isinstance(value, int | float))


@lru_cache(_NAMES_KEPT)
def _named(name: str) -> Literal["plain", "secret", "secrets"]:
    """Say what is called so. A number of secrets is none: max_tokens, key_size."""
    if not _HINT.search(name.lower()):
        return "plain"
    words = {*_WORD_ENDS.sub(" ", name).lower().split(), *_NO_LETTERS.sub(" ", name).lower().split()}
    secret = [word for word in words if _SECRET.search(word)]
    if not secret:
        return "plain"
    is_plural = all(word.endswith("s") and not word.endswith("ss") for word in secret)
    return "secrets" if is_plural or words & _MEASURES else "secret"


def job_shape(job: Job, now: Instant, *, why: str | None = None, node_name: str | None = None) -> Shape:
    """Write a job the way the HTTP API does; without a `why` it says what the job alone can tell."""
    return {**job_facts(job), **job_outlook(job, now, why=why, node_name=node_name)}


def job_outlook(job: Job, now: Instant, *, why: str | None = None, node_name: str | None = None) -> Shape:
    """Write what changes with the time although the job does not."""
    words = glance(job, now, node_name) if why is None else why
    return {"why": words, "eta_seconds": eta_seconds(job, now)}


def job_facts(job: Job) -> Shape:
    """Write what stays the same until the job changes; what was too large to be read with it is null, and named."""
    return {
        **_state(job, masked(read_metadata(job))),
        "args": masked(read_json(job.args)),
        "result": masked(read_json(job.result)),
        "error": read_error(job.error),
        **_version(job),
        **({"omitted": list(job.omitted)} if job.omitted else {}),
    }


CONTENT: Final = ("args", "result", "metadata")


def listed(job: Job, *, parts: Collection[str] = CONTENT, largest: int = LISTED_BYTES_MAX) -> Job:
    """Return a job as lists have it: what is large is left out, and named in `omitted`; so is a large traceback."""
    large = [name for name in parts if (text := getattr(job, name)) is not None and _is_longer(text, largest)]
    changes: dict[str, Any] = {name: "null" if name == "args" else None for name in large}
    if job.error is not None and _is_longer(job.error, largest) and (error := read_error(job.error)) is not None:
        if error.pop("traceback", None) is not None:
            large.append("error.traceback")
        changes["error"] = msgspec.json.encode(error).decode()
    if not changes:
        return job
    return msgspec.structs.replace(job, **changes, omitted=(*job.omitted, *large))


def _is_longer(text: str, size: int) -> bool:
    return len(text) > size or (4 * len(text) > size and len(text.encode("utf-8", "replace")) > size)


def job_news(job: Job) -> Shape:
    """Write what followers are told when a job changes: no arguments, result or error, and no large metadata."""
    brief = listed(job, parts=("metadata",))
    news = {**_state(brief, masked(read_metadata(brief))), **_version(job)}
    return {**news, "omitted": ["metadata"]} if "metadata" in brief.omitted else news


def _version(job: Job) -> Shape:
    serial = read_detail(job).serial if job.status is Status.RUNNING else 0
    return {"version": job.version, "live": serial} if serial else {"version": job.version}


def _state(job: Job, metadata: Shape) -> Shape:
    """Write a job without what it was given and what came of it."""
    return {
        "id": job.id,
        "type": job.task,
        "status": str(job.status),
        "progress": job.progress,
        "created_at": stamp(job.created_at),
        "run_at": stamp(job.run_at),
        "started_at": stamp(job.started_at),
        "updated_at": stamp(job.updated_at),
        "finished_at": stamp(job.finished_at),
        "ready_at": stamp(job.ready_at),
        "cancel_requested_at": stamp(job.cancel_requested_at),
        "reviewed_at": stamp(job.reviewed_at),
        "metadata": metadata,
        "detail": _detail_shape(read_detail(job)),
        "eta_at": stamp(eta_at(job)),
        "attempts": job.attempt,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "timeout": _duration(job.timeout),
        "expires_at": stamp(job.expires_at),
        "queue": job.queue,
        "priority": job.priority,
        "tenant": job.tenant,
        "key": job.key,
        "tags": list(job.tags),
        "schedule": job.schedule_name,
        "occurrence_at": stamp(job.occurrence_at),
        "batch": None,
        "parent": job.parent,
        "rerun_of": job.rerun_of,
        "node": job.node,
        "blocked_by": job.blocked_by,
        "parked": job.parked,
        "reason": job.reason,
    }


def _detail_shape(detail: Detail) -> Shape | None:
    """Write what a job says about itself; null when it has said nothing."""
    shape: Shape = {
        name: value for name in ("step", "done", "total", "rate") if (value := getattr(detail, name)) is not None
    }
    if detail.steps:
        shape["steps"] = [{"name": step.name, "state": step.state, "seconds": step.seconds} for step in detail.steps]
    return shape or None


def attempt_shape(attempt: Mapping[str, Any]) -> Shape:
    """Write an attempt that has ended."""
    return {
        "attempt": attempt["attempt"],
        "node": attempt["node"],
        "ready_at": stamp(attempt["ready_at"]),
        "started_at": stamp(attempt["started_at"]),
        "ended_at": stamp(attempt["ended_at"]),
        "outcome": attempt["outcome"],
        "reason": attempt["reason"],
        "error": read_error(attempt["error"]),
    }


def line_shape(line: Mapping[str, Any]) -> Shape:
    """Write a line of a job's log, with level and logger; one that was written already stays as it is."""
    if "level" in line:
        return {**line, "at": stamp(line["at"])}
    stream, level, logger = read_stream(line["stream"])
    return {**line, "at": stamp(line["at"]), "stream": stream, "level": level, "logger": logger}


def occurrence_shape(occurrence: Occurrence) -> Shape:
    """Write a decision; a run of equal ones has `until` and `count`."""
    until = {} if occurrence.until is None else {"until": stamp(occurrence.until)}
    return {
        "schedule": occurrence.schedule,
        "tenant": occurrence.tenant,
        "instant": stamp(occurrence.instant),
        **until,
        "count": occurrence.count,
        "outcome": str(occurrence.outcome),
        "reason": occurrence.reason,
        "decided_at": stamp(occurrence.decided_at),
        "job_id": occurrence.job_id,
    }


def listed_schedule(schedule: Schedule, now: Instant) -> Shape:
    """Write a schedule for a list: arguments of more than so many bytes are left out, and named in `omitted`."""
    if not _is_longer(schedule.spec.args, LISTED_BYTES_MAX):
        return schedule_shape(schedule, now)
    brief = replace(schedule, spec=replace(schedule.spec, args="null"))
    return {**schedule_shape(brief, now), "omitted": ["args"]}


def schedule_shape(schedule: Schedule, now: Instant) -> Shape:
    """Write a schedule with every policy, also where it is the default."""
    pause = schedule.paused_at(now)
    return {
        "name": schedule.name,
        **spec_shape(schedule.spec),
        "owner": schedule.owner,
        "revision": schedule.revision,
        "created_at": stamp(schedule.created_at),
        "decided_through": stamp(schedule.decided_through),
        "next_at": stamp(schedule.next_at),
        "paused": pause is not None,
        "pause": None if pause is None else _pause_shape(pause),
        "attention": schedule.attention,
        "failing": schedule.failing,
    }


def _pause_shape(pause: Pause) -> Shape:
    return {
        "since": stamp(pause.since),
        "until": stamp(pause.until),
        "reason": pause.reason,
        "author": pause.author,
    }


def spec_shape(spec: ScheduleSpec) -> Shape:
    """Write a definition with every policy."""
    return {
        "task": spec.task,
        "trigger": trigger_to_dict(spec.trigger),
        "rule": describe(spec.trigger),
        "args": masked(read_json(spec.args)),
        "tenant": spec.tenant,
        "queue": spec.queue,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "backoff": None if spec.backoff is None else str(spec.backoff),
        "tags": list(spec.tags),
        "overlap": str(spec.overlap),
        "queue_limit": spec.queue_limit,
        "missed": str(spec.missed),
        "deadline": _duration(spec.deadline),
        "grace": _duration(spec.grace),
        "catch_up_limit": spec.catch_up_limit,
        "catch_up_rate": None if spec.catch_up_rate is None else str(spec.catch_up_rate),
        "jitter": _duration(spec.jitter),
        "start": stamp(spec.start),
        "end": stamp(spec.end),
        "expect": _duration(spec.expect),
        "callback_url": None if spec.callback_url is None else mask_url(spec.callback_url),
        "expires": _duration(spec.expires),
    }


def definition_shape(spec: ScheduleSpec) -> Shape:
    """Write a definition as its author would: what is the default is left out, and secrets are masked."""
    shape: Shape = masked(spec.to_dict())
    return shape if spec.callback_url is None else {**shape, "callback_url": mask_url(spec.callback_url)}


def _duration(value: int | None) -> str | None:
    return None if value is None else format_duration(value)


def zone_of(trigger: Trigger) -> ZoneInfo:
    """Return the zone whose clock a trigger goes by."""
    return zone(trigger.tz) if isinstance(trigger, Cron | At) and trigger.tz else zone("UTC")


def instants_after(spec: ScheduleSpec, after: Instant, limit: int) -> Iterator[Instant]:
    """Yield the next instants of a definition; a fixed delay has none that are known before its job ends."""
    if isinstance(spec.trigger, After):
        return
    after = max(after, _WRITABLE[0])
    for _ in range(limit):
        instant = next_instant(spec, spec.trigger, after)
        if instant is None or instant > _WRITABLE[1]:
            return
        yield instant
        after = instant


def previews(spec: ScheduleSpec, after: Instant, limit: int, tz: ZoneInfo | None = None) -> list[Shape]:
    """Write the next instants of a definition."""
    clock = tz or zone_of(spec.trigger)
    return [preview_shape(instant, spec.trigger, clock) for instant in instants_after(spec, after, limit)]


def require_instants(name: str, spec: ScheduleSpec, now: Instant) -> None:
    """Refuse a definition that would never fire, before anything is written."""
    if first_at(spec, now) is None:
        raise InvalidSchedule(f"schedule {name!r} has no instant after {stamp(now)}: {describe(spec.trigger)}")


def preview_shape(instant: Instant, trigger: Trigger, tz: ZoneInfo) -> Shape:
    """Write one instant to come, with its local time and what daylight saving does to it."""
    note = trigger.note(instant) if isinstance(trigger, Cron) else None
    return {"instant": stamp(instant), "local": to_datetime(instant).astimezone(tz).isoformat(), "note": note}
