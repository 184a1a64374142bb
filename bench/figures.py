"""Figures: the results of a benchmark, as a table row for people and as a line of JSON for programs."""

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure, such as `< 2`; with `of_ratio` it applies to the ratio to the other side."""

    sign: str
    value: float
    of_ratio: bool = False

    def __str__(self) -> str:
        return f"{'ratio ' if self.of_ratio else ''}{self.sign} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: the median over its repetitions, and the same of the bare database or a peer beside it."""

    bench: str
    store: str
    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    other: float | None = None
    ratio: float | None = None
    target: Target | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        measured = self.ratio if self.target.of_ratio else self.value
        return measured is not None and _HOLDS[self.target.sign](measured, self.target.value)

    def to_json(self) -> str:
        """Write the figure as one line."""
        target = None if self.target is None else str(self.target)
        return json.dumps({**asdict(self), "target": target, "is_met": self.is_met})


@dataclass(frozen=True, slots=True)
class Pair:
    """The seconds that Headway and the bare database took for the same work, one after the other."""

    headway_s: float
    bare_s: float

    @property
    def ratio(self) -> float:
        """Headway's speed relative to the bare database."""
        return self.bare_s / self.headway_s


def seconds(
    bench: str,
    store: str,
    what: str,
    pairs: Sequence[Pair],
    target: Target | None = None,
) -> Figure:
    """Summarise durations."""
    times = [pair.headway_s for pair in pairs]
    return Figure(
        bench=bench,
        store=store,
        what=what,
        value=median(times),
        unit="s",
        low=min(times),
        high=max(times),
        other=median(pair.bare_s for pair in pairs),
        ratio=median(pair.ratio for pair in pairs),
        target=target,
    )


def rate(
    bench: str,
    store: str,
    what: str,
    count: int,
    pairs: Sequence[Pair],
    target: Target | None = None,
) -> Figure:
    """Summarise rates, with `count` items per repetition."""
    rates = [count / pair.headway_s for pair in pairs]
    return Figure(
        bench=bench,
        store=store,
        what=what,
        value=median(rates),
        unit="/s",
        low=min(rates),
        high=max(rates),
        other=median(count / pair.bare_s for pair in pairs),
        ratio=median(pair.ratio for pair in pairs),
        target=target,
    )


def compared(
    bench: str,
    store: str,
    what: str,
    ours: Sequence[float],
    others: Sequence[float],
    unit: str,
    target: Target | None = None,
) -> Figure:
    """Summarise values and those of the other side from the same rounds; the ratio is ours to theirs."""
    return Figure(
        bench=bench,
        store=store,
        what=what,
        value=median(ours),
        unit=unit,
        low=min(ours),
        high=max(ours),
        other=median(others),
        ratio=median(mine / other for mine, other in zip(ours, others, strict=True)),
        target=target,
    )


def plain(
    bench: str,
    store: str,
    what: str,
    values: Sequence[float],
    unit: str,
    target: Target | None = None,
) -> Figure:
    """Summarise values without a comparison."""
    return Figure(
        bench=bench,
        store=store,
        what=what,
        value=median(values),
        unit=unit,
        low=min(values),
        high=max(values),
        target=target,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def number(value: float | None) -> str:
    """Format a number briefly."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"


HEADINGS: Final = ("bench", "store", "what", "measured", "range", "other", "ratio", "target", "")


def line(figure: Figure) -> tuple[str, ...]:
    """Format a figure as the cells of a table row."""
    spread = f"{number(figure.low)}-{number(figure.high)}" if figure.low != figure.high else ""
    verdict = {None: "", True: "ok", False: "MISSED"}[figure.is_met]
    return (
        figure.bench,
        figure.store,
        figure.what,
        f"{number(figure.value)} {figure.unit}",
        spread,
        number(figure.other),
        f"{figure.ratio:.2f}" if figure.ratio is not None else "",
        str(figure.target or ""),
        verdict,
    )


def table(figures: Iterable[Figure]) -> str:
    """Format figures as a plain-text table."""
    lines = [HEADINGS, *(line(figure) for figure in figures)]
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(HEADINGS))]
    right = {3, 4, 5, 6}

    def join(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([join(lines[0]), join(["-" * width for width in widths]), *map(join, lines[1:])])


def append_json(path: Path, figures: Iterable[Figure]) -> None:
    """Add figures to a file, a line each."""
    with path.open("a") as file:
        file.writelines(figure.to_json() + "\n" for figure in figures)
