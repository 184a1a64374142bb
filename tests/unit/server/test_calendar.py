"""The calendar of a schedule: local days, also with 23 and 25 hours, and records that span days."""

from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.instants import DAY, HOUR, SECOND, Duration, Instant, parse_instant, to_datetime
from headway.core.zones import zone
from headway.operations.calendar import RUNS_MAX, YEAR_MAX, YEAR_MIN, _begins, _spread, _stretches, calendar, year_of

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca"]


class Ledger:
    """Returns made-up rows, and records its calls."""

    def __init__(self, counts: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
        self.answer = counts, runs
        self.stretches: list[tuple[Instant, Instant, Duration]] = []

    async def calendar(
        self, name: str, since: Instant, before: Instant, stretches: list[Any], *, limit: int, runs_limit: int
    ) -> Any:
        """Return the rows."""
        self.stretches = stretches
        return self.answer


def day(text: str) -> int:
    return parse_instant(f"{text}T00:00:00Z") // DAY


def count(text: str, outcome: str, decisions: int, status: str | None = None) -> dict[str, Any]:
    return {"day": day(text), "outcome": outcome, "status": status, "decisions": decisions}


def run(first: str, last: str, number: int) -> dict[str, Any]:
    return {"instant": parse_instant(first), "until": parse_instant(last), "count": number, "outcome": "paused"}


async def year(counts: list[dict[str, Any]], runs: list[dict[str, Any]], tz: str = "UTC") -> dict[str, Any]:
    found = await calendar(Ledger(counts, runs), "s", 2027, tz)  # type: ignore[arg-type]
    return dict(msgspec.to_builtins(found))


async def test_days_have_outcomes_and_final_states() -> None:
    found = await year(
        [
            count("2027-01-31", "fired", 2, "COMPLETED"),
            count("2027-01-31", "fired", 1, "FAILED"),
            count("2027-01-31", "fired", 4, "RUNNING"),
            count("2027-01-31", "skipped", 1),
            count("2027-01-02", "missed", 1),
        ],
        [run("2027-01-31T01:00:00Z", "2027-01-31T03:00:00Z", 3)],
    )
    assert found == {
        "year": 2027,
        "tz": "UTC",
        "days": [
            {"day": "2027-01-02", "outcomes": {"missed": 1}, "ended": {}},
            {
                "day": "2027-01-31",
                "outcomes": {"fired": 7, "skipped": 1, "paused": 3},
                "ended": {"COMPLETED": 2, "FAILED": 1},
            },
        ],
        "truncated": False,
    }


async def test_truncated_calendar_is_marked() -> None:
    assert (await year([count("2027-01-31", "fired", 99_999)], []))["truncated"] is False
    assert (await year([count("2027-01-31", "fired", 100_000)], []))["truncated"] is True
    many = [run("2027-01-31T01:00:00Z", "2027-01-31T03:00:00Z", 3)] * RUNS_MAX
    assert (await year([], many))["truncated"] is True


@pytest.mark.parametrize("tz", ZONES)
@pytest.mark.parametrize("number", [1970, 2011, 2026, 2027, 2199])
def test_every_moment_of_a_year_is_in_one_stretch_and_on_its_local_day(tz: str, number: int) -> None:
    begins = _begins(date(number, 1, 1), date(number + 1, 1, 1), tz)
    assert len(begins) == (date(number + 1, 1, 1) - date(number, 1, 1)).days + 1
    assert begins == sorted(begins)
    stretches = list(_stretches(begins[0], begins[-1], tz))
    assert (stretches[0][0], stretches[-1][1]) == (begins[0], begins[-1])
    assert [ends for _, ends, _ in stretches[:-1]] == [starts for starts, _, _ in stretches[1:]]
    for starts, ends, ahead in stretches:
        for moment in (starts, (starts + ends) // 2, ends - 1):
            local = to_datetime(moment).astimezone(zone(tz))
            assert (moment + ahead) // DAY == (local.date() - date(1970, 1, 1)).days
            index = (local.date() - date(number, 1, 1)).days
            assert begins[index] <= moment < begins[index + 1]


async def test_day_may_have_25_hours() -> None:
    hours = run("2027-10-30T22:00:00Z", "2027-10-31T22:00:00Z", 25)
    [found] = (await year([], [hours], "Europe/Berlin"))["days"]
    assert found == {"day": "2027-10-31", "outcomes": {"paused": 25}, "ended": {}}


async def test_record_that_spans_days_counts_on_each() -> None:
    found = await year([], [run("2027-01-01T06:00:00Z", "2027-01-10T06:00:00Z", 10)])
    assert [entry["outcomes"] for entry in found["days"]] == [{"paused": 1}] * 10


async def test_only_the_part_of_a_record_within_the_year_counts() -> None:
    found = await year([], [run("2026-12-31T00:00:00Z", "2027-01-02T00:00:00Z", 49)])
    assert [(entry["day"], entry["outcomes"]["paused"]) for entry in found["days"]] == [
        ("2027-01-01", 24),
        ("2027-01-02", 1),
    ]


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(0, 20 * DAY),
    length=st.integers(0, 30 * DAY),
    number=st.integers(1, 10**6),
)
def test_no_instant_of_a_record_is_lost_or_counted_twice(start: int, length: int, number: int) -> None:
    begins = [index * DAY for index in range(60)]
    spread = list(_spread({"instant": start, "until": start + length, "count": number}, begins))
    assert sum(part for _, part in spread) == number
    assert all(part > 0 for _, part in spread)
    assert len({index for index, _ in spread}) == len(spread)


def test_year_is_local_and_bounded() -> None:
    eve = parse_instant("2026-12-31T23:30:00Z")
    assert (year_of(eve, "UTC"), year_of(eve, "Europe/Berlin")) == (2026, 2027)
    assert year_of(-HOUR, "UTC") == YEAR_MIN
    assert year_of(parse_instant("2500-01-01T00:00:00Z") + SECOND, "UTC") == YEAR_MAX
