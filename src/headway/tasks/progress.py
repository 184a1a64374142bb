"""The progress of a running job: percent, steps, rate and time left."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headway.core.jobs import STEP_LENGTH_MAX, UNFINISHED_MAX
from headway.core.validation import storable

STEPS_MAX: Final = 200


class ProgressTracker:
    """Compute percent, step, rate and time left from a task's calls. Different threads write and read it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._fraction = 0.0
        self._label: str | None = None
        self._done: int | None = None
        self._total: int | None = None
        self._count_began = self._began
        self._steps: list[tuple[str, float]] = []
        self._ended: dict[int, float] = {}
        self._at: int | None = None
        self._at_began = self._began
        self._moved_to: object = None  # The last progress, and since when.
        self._moved_at = self._began
        self._lock = threading.Lock()

    def set(self, fraction: float, label: str | None) -> None:
        """Set the progress of the whole job, or of the current step; ignore what is not a number."""
        fraction = float(fraction)  # It may be a number type of a library, which cannot be encoded.
        with self._lock:
            if not math.isnan(fraction):
                self._fraction = min(max(fraction, 0.0), 1.0)
            self._done = self._total = None
            if label is not None:
                self._label = storable(label, STEP_LENGTH_MAX)

    def begin_count(self, label: str | None, total: int | None) -> None:
        """Start to count items."""
        with self._lock:
            self._fraction, self._done, self._total, self._count_began = 0.0, 0, total, self._monotonic()
            if label is not None:
                self._label = storable(label, STEP_LENGTH_MAX)

    def count(self, done: int) -> None:
        """Set how many items are done."""
        with self._lock:
            self._done = done
            if self._total:
                self._fraction = min(max(done / self._total, 0.0), 1.0)

    def begin_steps(self, steps: Sequence[tuple[str, float]]) -> None:
        """Set all steps in advance."""
        with self._lock:
            self._steps = [(storable(str(name), STEP_LENGTH_MAX), float(weight)) for name, weight in steps]
            self._ended, self._at, self._fraction = {}, None, 0.0

    def enter_step(self, name: str) -> None:
        """Enter a step; one that was not announced, or is done already, is appended."""
        name = storable(str(name), STEP_LENGTH_MAX)
        with self._lock:
            free = [at for at, (known, _) in enumerate(self._steps) if known == name and at not in self._ended]
            if not free and len(self._steps) < STEPS_MAX:
                self._steps.append((name, 1.0))
            self._at = free[0] if free else len(self._steps) - 1
            self._at_began = self._monotonic()
            self._fraction, self._done, self._total, self._label = 0.0, None, None, None

    def leave_step(self) -> None:
        """Mark the current step as done."""
        with self._lock:
            if self._at is not None:
                self._ended[self._at] = round(self._monotonic() - self._at_began, 3)
            self._at, self._fraction, self._done, self._total, self._label = None, 0.0, None, None, None

    def read(self) -> tuple[int, str]:
        """Return percent, and everything else as JSON."""
        with self._lock:
            return self._read()

    def _read(self) -> tuple[int, str]:
        whole = self._whole()
        detail: dict[str, Any] = {}
        step = self._label or (self._steps[self._at][0] if self._at is not None else None)
        if step is not None:
            detail["step"] = step
        if self._moved_to != (place := (whole, self._done, self._total)):
            self._moved_to, self._moved_at = place, self._monotonic()
        elapsed = self._moved_at - self._count_began
        if self._done is not None:
            detail["done"] = self._done
            if self._total is not None:
                detail["total"] = self._total
            if self._done and elapsed > 0:
                detail["rate"] = round(self._done / elapsed, 3)
        eta = self._time_left(whole, elapsed)
        if eta is not None and eta > (still := self._monotonic() - self._moved_at):
            detail["eta"] = round(eta - still, 1)
        if self._steps:
            detail["steps"] = [self._step_row(at) for at in range(len(self._steps))]
        percent = int(whole * 100 + 1e-9)  # 0.29 * 100 is a little less than 29.
        return min(percent, UNFINISHED_MAX), msgspec.json.encode(detail).decode()

    def _whole(self) -> float:
        if not self._steps:
            return self._fraction
        total = sum(weight for _, weight in self._steps) or 1.0
        done = sum(self._steps[at][1] for at in self._ended)
        here = self._steps[self._at][1] * self._fraction if self._at is not None else 0.0
        return min((done + here) / total, 1.0)

    def _time_left(self, whole: float, elapsed: float) -> float | None:
        """Return the time left as of the last progress."""
        if not self._steps and self._done and self._total:
            return elapsed / self._done * (self._total - self._done)
        return (self._moved_at - self._began) / whole * (1 - whole) if whole > 0 else None

    def _step_row(self, at: int) -> tuple[str, str, float | None]:
        name = self._steps[at][0]
        if at in self._ended:
            return name, "done", self._ended[at]
        return (name, "running", None) if at == self._at else (name, "waiting", None)
