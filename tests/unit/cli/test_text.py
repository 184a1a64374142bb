"""Text for people: times, durations, and data with control characters."""

import pytest

from headway.cli.output import to_json
from headway.cli.text import away, clean, count, is_fine, local, local_text, span, utc, utc_beside
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, parse_instant
from headway.core.zones import zone

HOSTILE = {
    "esc": "\x1b[2J\x1b]0;owned\x07",
    "line ends": "a\r\nb",
    "c1": "\x9b31m",
    "del": "\x7f",
    "separators": "\u2028\u2029",
    "bidi": "\u202egnp.exe\u202c\u2066x\u2069\u200f",
    "zero width": "a\u200bb\ufeff",
    "lone surrogate": "\udc80",
    "tag": "\U000e0041",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_unprintable_survives_cleaning(text: str) -> None:
    cleaned = clean(f"before {text} after")
    assert cleaned.isprintable()
    assert cleaned.isascii()
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")


def test_cleaning_keeps_normal_text() -> None:
    for text in ("plain", "Grüße, 世界 ✓ 🚆", "a  b", ""):
        assert clean(text) == text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("indent", [None, 2])
def test_json_keeps_its_value_without_unprintable_characters(text: str, indent: int | None) -> None:
    import json

    value = {"name": text, text: [text]}
    written = to_json(value, indent=indent)
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == value


def test_json_keeps_normal_text() -> None:
    assert to_json({"k": "Grüße ✓"}) == '{"k": "Grüße ✓"}'


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (43_210, "43ms"),
        (200_000, "0.2s"),
        (2 * SECOND, "2s"),
        (12 * SECOND + 400_000, "12s"),
        (MINUTE, "1m"),
        (3 * MINUTE + 12 * SECOND, "3m 12s"),
        (2 * HOUR, "2h"),
        (3 * HOUR + 2 * MINUTE + 59 * SECOND, "3h 2m"),
        (DAY + 6 * HOUR, "1d 6h"),
        (-2 * SECOND, "-2s"),
    ],
)
def test_span_shows_the_two_largest_units(duration: int, text: str) -> None:
    assert span(duration) == text


def test_relative_times_are_past_or_future() -> None:
    assert away(10 * MINUTE, 7 * MINUTE - 12 * SECOND) == "in 3m 12s"
    assert away(0, 2 * HOUR) == "2h ago"
    assert away(50_000, 0) == "now"


def test_local_times_show_their_offset_and_a_differing_utc_date() -> None:
    berlin = parse_instant("2027-03-28T01:00:00Z")
    moment = local(berlin, zone("Europe/Berlin"))
    assert (local_text(moment), utc_beside(berlin, moment)) == ("2027-03-28 03:00 +02:00", "01:00Z")
    kathmandu = parse_instant("2026-12-31T18:15:00Z")
    moment = local(kathmandu, zone("Asia/Kathmandu"))
    assert local_text(moment) == "2027-01-01 00:00 +05:45"
    assert utc_beside(kathmandu, moment) == "2026-12-31 18:15Z"


def test_seconds_are_shown_for_all_times_or_none() -> None:
    full, odd = parse_instant("2027-01-01T00:00:00Z"), parse_instant("2027-01-01T00:00:30Z")
    assert not is_fine([full])
    assert is_fine([full, odd])
    assert [utc(instant, fine=True) for instant in (full, odd)] == ["2027-01-01 00:00:00Z", "2027-01-01 00:00:30Z"]
    assert utc(full) == "2027-01-01 00:00Z"


def test_count_handles_singular_and_plural() -> None:
    assert (count(1, "job"), count(0, "job"), count(1204, "job")) == ("1 job", "0 jobs", "1,204 jobs")
