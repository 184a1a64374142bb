"""Debounce, throttle and unique: one job out of many calls with the same key.

A call with one of these options goes through the window of its tenant and key. While the window is open, the call is
merged into the window's job; otherwise it begins a new job, which opens the window again.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

from headway.core.errors import DuplicateKey, InvalidTask
from headway.core.instants import DAY, Duration, Instant, format_duration
from headway.core.lifecycle import Status

WindowKind: TypeAlias = Literal["debounce", "throttle", "unique"]

WINDOW_OPTIONS: Final = ("debounce", "max_wait", "throttle", "unique")
WINDOW_MAX: Final = 30 * DAY
MERGED_BYTES_MAX: Final = 4_096  # Of the arguments of a merged call, in the event that records it.
MERGES_RECORDED_MAX: Final = 100  # Of one job; its history has room for a thousand events.


class Window(msgspec.Struct, frozen=True):
    """The window that a call goes through. `span` is the quiet time of a debounce, else the length of the window."""

    kind: WindowKind
    key: str
    span: Duration
    max_wait: Duration | None = None


class OpenedWindow(msgspec.Struct, frozen=True):
    """A stored window: the call that opened it, and how many calls were merged into its job."""

    kind: WindowKind
    task: str
    job_id: str
    until: Instant
    merged: int = 0


def window_of(
    *,
    key: str | None,
    debounce: Duration | None = None,
    max_wait: Duration | None = None,
    throttle: Duration | None = None,
    unique: Duration | None = None,
    has_start: bool = False,
) -> Window | None:
    """Return the window that these options ask for; None if they ask for none. `has_start` means a delay or a time."""
    spans: dict[WindowKind, Duration | None] = {"debounce": debounce, "throttle": throttle, "unique": unique}
    given = [(kind, span) for kind, span in spans.items() if span is not None]
    if max_wait is not None and debounce is None:
        raise InvalidTask("max_wait limits how long debounce may wait: add debounce, or leave out max_wait")
    if not given:
        return None
    if len(given) > 1:
        raise InvalidTask(f"{' and '.join(kind for kind, _ in given)} exclude each other: use one of them")
    [(kind, span)] = given
    if key is None:
        raise InvalidTask(f"{kind} needs a key, which calls that belong together share: add one, such as account-42")
    if kind == "debounce" and has_start:
        raise InvalidTask("debounce determines when the job starts: leave out delay and the start time")
    if max_wait is not None and max_wait < span:
        raise InvalidTask(f"max_wait must be at least as long as debounce, which is {format_duration(span)}")
    return Window(kind, key, span, max_wait)


def is_open(opened: OpenedWindow, status: Status | None, now: Instant) -> bool:
    """Return whether calls are merged into the job of a window; without a status, the job was pruned."""
    if status is None:
        return False
    if opened.kind == "debounce":
        return status is Status.SCHEDULED
    return now < opened.until and (opened.kind == "throttle" or not status.is_final)


def check_same(window: Window, task: str, opened: OpenedWindow) -> None:
    """Raise `DuplicateKey` unless a call has the task and the kind of an open window."""
    if (opened.kind, opened.task) != (window.kind, task):
        raise DuplicateKey(
            f"key {window.key!r} is in use for {opened.kind} of the task {opened.task!r} by {opened.job_id},"
            f" so it cannot be used for {window.kind} of {task!r}; use another key"
        )


def debounced_start(window: Window, first: Instant, now: Instant) -> Instant:
    """Return when a debounced job starts after a call now; `first` is the time of the call that created the job."""
    quiet = now + window.span
    return quiet if window.max_wait is None else min(quiet, first + window.max_wait)


def merged_event(args: str, number: int) -> dict[str, Any]:
    """Return the data of the event `merged`: the arguments of the merged call (JSON text), the largest left out.

    `omitted` names arguments that were left out; a name that is too long itself is shortened.
    """
    data: dict[str, Any] = {"number": number}
    if len(args.encode()) <= MERGED_BYTES_MAX:
        data["args"] = msgspec.Raw(args.encode())
    else:
        data |= {**_fitting(args), "bytes": len(args.encode())}
    if number == MERGES_RECORDED_MAX:
        data["note"] = "later merged calls are not recorded"
    return data


_NAME_SHOWN: Final = 40
_NAMES_SHOWN: Final = 20


def _fitting(text: str) -> dict[str, Any]:
    """Return as many arguments as fit, the smallest first, and the names of some others."""
    try:
        args = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # Nested too deeply to be read.
        return {"args": {}, "omitted": ["…"]}
    sizes = {name: len(msgspec.json.encode({name: value})) for name, value in args.items()}
    kept: dict[str, Any] = {}
    left = MERGED_BYTES_MAX
    for name in sorted(sizes, key=lambda name: sizes[name]):
        left -= sizes[name]
        if left < 0:
            break
        kept[name] = args[name]
    omitted = [name[:_NAME_SHOWN] for name in args if name not in kept]
    shown = omitted[:_NAMES_SHOWN] + ["…"] * (len(omitted) > _NAMES_SHOWN)
    return {"args": kept, "omitted": shown}
