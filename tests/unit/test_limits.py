"""Limits: names and rates as people write them, which limit holds for a name, and how many jobs a rate lets start."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidLimit
from headway.core.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Duration, Instant
from headway.core.limits import (
    CONCURRENCY_MAX,
    PER_MAX,
    PIECES_MAX,
    RATE_MAX,
    Lane,
    Limit,
    Rules,
    check_limit_key,
    is_ahead_of_clock,
    kind_of,
    parse_rate,
    rate_after,
    rate_allows,
    value_of,
)

START: Instant = 1_900_000_000 * SECOND


# --- definitions


@pytest.mark.parametrize(
    ("text", "starts", "per"),
    [
        ("10/s", 10, SECOND),
        (" 100 / m ", 100, MINUTE),
        ("5/30s", 5, 30 * SECOND),
        ("1/1h30m", 1, 90 * MINUTE),
        ("7/h", 7, HOUR),
        ("1000000/d", 1_000_000, DAY),
        ("3/250ms", 3, 250 * MILLISECOND),
    ],
)
def test_rates_as_people_write_them(text: str, starts: int, per: Duration) -> None:
    assert parse_rate(text) == (starts, per)


@given(st.integers(1, RATE_MAX), st.integers(1, PER_MAX // MILLISECOND))
@example(1, 1)
@example(10, 1_500)
@example(1, 31 * 86_400_000)
def test_rate_is_shown_as_it_can_be_written(starts: int, milliseconds: int) -> None:
    limit = Limit(name="a", rate=starts, per=milliseconds * MILLISECOND)
    assert parse_rate(limit.rate_text) == (starts, limit.per)


@pytest.mark.parametrize(
    "text", ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/0s", "10/32d", "9" * 8 + "/s", 10, None]
)
def test_bad_rates_are_rejected(text: object) -> None:
    with pytest.raises(InvalidLimit):
        parse_rate(text)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({}, 'give it concurrency=5, rate="10/s", or both'),
        ({"concurrency": 0}, "to stop a queue, pause it"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "10000"),
        ({"concurrency": True}, "whole number"),
        ({"concurrency": 1, "burst": 5}, "needs a rate"),
        ({"rate": "10/s", "burst": 0}, "whole number"),
        ({"rate": "ten a second"}, "such as 10/s"),
    ],
)
def test_bad_definitions_name_the_cure(options: dict[str, object], cure: str) -> None:
    with pytest.raises(InvalidLimit, match=cure):
        Limit.build("account-*", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a*b", "*a", "queue:", "task:", "tenant:", "a\nb", 5, "x" * 1_000])
def test_bad_names_are_rejected(name: object) -> None:
    with pytest.raises(InvalidLimit):
        Limit.build(name, concurrency=1)


@pytest.mark.parametrize("key", ["queue:media", "task:*", "tenant:acme", "account-*"])
def test_job_cannot_name_limits_of_other_kinds(key: str) -> None:
    with pytest.raises(InvalidLimit):
        check_limit_key(key)


def test_names_of_ones_own_may_have_colons() -> None:
    assert check_limit_key("account:42") == "account:42"
    assert (kind_of("account:42"), value_of("account:42")) == ("key", "account:42")
    assert (kind_of("queue:media"), value_of("queue:media")) == ("queue", "media")
    assert (kind_of("tenant:*"), value_of("tenant:a:b")) == ("tenant", "a:b")
    assert kind_of("queue-media") == "key"


# --- which limit holds

VALUES = st.text(alphabet="ab", max_size=4)
KIND = st.sampled_from(["queue:", "task:", "tenant:", "", "q"])
NAMES = st.builds(lambda kind, value: kind + value, KIND, VALUES).filter(lambda name: bool(value_of(name)))
LIMITS = st.lists(st.tuples(NAMES, st.booleans()), max_size=12)


@given(LIMITS, NAMES)
def test_exact_limit_holds_then_the_longest_prefix_of_the_same_kind(given: list[tuple[str, bool]], name: str) -> None:
    limits = [Limit(name=one + "*" * is_pattern, concurrency=1) for one, is_pattern in given]
    found = Rules(limits).find(name)
    exact = [limit for limit in limits if limit.name == name]
    prefixes = [
        limit
        for limit in limits
        if limit.is_pattern and kind_of(limit.name) == kind_of(name) and name.startswith(limit.name[:-1])
    ]
    if exact:
        assert found == exact[0]
    elif prefixes:
        assert found is not None
        assert found.name == max((limit.name for limit in prefixes), key=len)
    else:
        assert found is None


def test_kinds_never_mix() -> None:
    rules = Rules([Limit(name=name, concurrency=1) for name in ("*", "tenant:*", "task:report")])
    assert rules.find("queue:media") is None
    assert rules.find("task:other") is None
    assert [found.name for found in map(rules.find, ("account-1", "tenant:a", "task:report")) if found] == [
        "*",
        "tenant:*",
        "task:report",
    ]


def test_gates_of_a_lane() -> None:
    rules = Rules([Limit(name=name, concurrency=1) for name in ("queue:media", "tenant:*", "task:report", "account-*")])
    assert rules.gates("media", Lane("acme", "account-7", "report")) == (
        "queue:media",
        "tenant:acme",
        "task:report",
        "account-7",
    )
    assert rules.gates("other", Lane("acme", "other-7", "")) == ("tenant:acme",)
    assert rules.bits == 15
    assert Rules([Limit(name="queue:a", rate=1, per=1), Limit(name="queue:b", rate=1, per=1)]).bits == 1


@pytest.mark.parametrize(
    ("name", "queues"),
    [
        ("queue:media", {"media"}),
        ("queue:*", {"*"}),
        ("queue:me*", {"*"}),
        ("task:report", {"*"}),
        ("tenant:default", {"*"}),
        ("tenant:*", {"*"}),
        ("tenant:def*", {"*"}),
        ("tenant:acme", set()),
        ("account-*", set()),
    ],
)
def test_queues_whose_plain_claims_must_look_at_limits(name: str, queues: set[str]) -> None:
    assert Rules([Limit(name=name, concurrency=1)]).limited_queues() == queues


# --- rates


class Starts:
    """A rate with the state that the store keeps, and an exact log of its starts in real time.

    The clock of the store may be set back; real time only goes on.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.state = ""
        self.real: Instant = START
        self.offset = 0
        self.log: list[tuple[Instant, int]] = []

    @property
    def now(self) -> Instant:
        return self.real + self.offset

    def ask(self, wanted: int) -> Instant | None:
        """Start as many as are granted, as a claim does; return when the next one may start."""
        allowed = rate_allows(self.limit, self.state, self.now, wanted)
        assert 0 <= allowed.granted <= wanted
        assert (allowed.next_at is None) is (allowed.granted == wanted)
        if allowed.granted or is_ahead_of_clock(self.limit, self.state, self.now):
            self.state = rate_after(self.limit, self.state, self.now, allowed.granted)
        if allowed.granted:
            self.log.append((self.real, allowed.granted))
        return allowed.next_at

    def must_go_on(self, next_at: Instant) -> None:
        """One more is granted when the rate said so, and not a moment earlier."""
        assert next_at > self.now
        assert rate_allows(self.limit, self.state, next_at - 1, 1).granted == 0
        assert rate_allows(self.limit, self.state, next_at, 1).granted == 1

    def started(self, since: Instant, until: Instant) -> int:
        return sum(count for at, count in self.log if since < at <= until)


PER = 1_000
STEPS = st.lists(
    st.tuples(st.one_of(st.integers(0, 60), st.integers(0, 2 * PER), st.integers(-5 * PER, -1)), st.integers(0, 12)),
    max_size=100,
)


@given(st.integers(1, 200), STEPS)
def test_never_more_starts_in_any_window(rate: int, steps: list[tuple[int, int]]) -> None:
    starts = Starts(Limit(name="a", rate=rate, per=PER))
    for step, wanted in steps:
        if step < 0:
            starts.offset += step  # The clock of the store is set back.
        else:
            starts.real += step
        next_at = starts.ask(wanted)
        assert starts.started(starts.real - PER, starts.real) <= rate
        if next_at is not None:
            starts.must_go_on(next_at)
        assert len(starts.state.split()) <= PIECES_MAX


@given(st.integers(1, 50), st.integers(1, 30))
def test_rate_with_few_starts_is_used_in_full(rate: int, rounds: int) -> None:
    """As long as no pieces of the log are merged, nothing is lost: exactly the rate in each window."""
    starts = Starts(Limit(name="a", rate=rate, per=PER))
    for _ in range(rounds):
        next_at = starts.ask(rate + 1)
        assert next_at == starts.now + PER
        starts.real += PER
    assert sum(count for _, count in starts.log) == rate * rounds


@given(st.integers(65, 300), st.integers(1, 12))
@settings(max_examples=20)
def test_merging_delays_starts_but_never_stops_them(rate: int, step: int) -> None:
    """One start at a time: the log has more starts than pieces, and the rate still gets at least half of its starts."""
    starts = Starts(Limit(name="a", rate=rate, per=PER))
    for _ in range(3 * PER // step):
        starts.ask(1)
        starts.real += step
    times = [at for at, _ in starts.log]
    assert all(later - earlier >= PER for earlier, later in zip(times, times[rate:], strict=False))
    assert len(times) >= min(rate * 3, 3 * PER // step) // 2


def test_clock_that_is_set_back_stops_no_rate() -> None:
    for burst in (None, 3):
        starts = Starts(Limit(name="a", rate=2, per=SECOND, burst=burst))
        assert starts.ask(10) is not None
        starts.offset -= DAY
        next_at = starts.ask(1)
        assert next_at is not None
        assert next_at <= starts.now + SECOND
        starts.must_go_on(next_at)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 3_000), STEPS)
def test_bucket_never_gives_more_than_its_burst_and_its_rate(
    rate: int, burst: int, per: int, steps: list[tuple[int, int]]
) -> None:
    starts = Starts(Limit(name="a", rate=rate, per=per, burst=burst))
    for step, wanted in steps:
        if step < 0:
            starts.offset += step
        else:
            starts.real += step
        next_at = starts.ask(wanted)
        if next_at is not None:
            starts.must_go_on(next_at)
        total = 0
        for since, count in reversed(starts.log):
            total += count
            assert total * per <= burst * per + rate * (starts.real - since)


@given(st.integers(1, 1_000_000), st.integers(1, 1_000_000), st.integers(1_000, PER_MAX))
def test_bucket_is_full_at_first_and_refills(rate: int, burst: int, per: int) -> None:
    limit = Limit(name="a", rate=rate, per=per, burst=burst)
    allowed = rate_allows(limit, "", START, burst + 1)
    assert allowed.granted == burst
    assert allowed.next_at is not None
    state = rate_after(limit, "", START, burst)
    assert rate_allows(limit, state, allowed.next_at, 1).granted == 1
    assert rate_allows(limit, state, START + -(-burst * per // rate) + 1, burst).granted == burst


@pytest.mark.parametrize("state", ["nonsense", "1:x", ":", "1", "12:3 x", "5:1:2"])
@pytest.mark.parametrize("burst", [None, 4])
def test_state_of_another_kind_counts_as_none(state: str, burst: int | None) -> None:
    limit = Limit(name="a", rate=4, per=SECOND, burst=burst)
    assert rate_allows(limit, state, START, 9).granted == 4
    assert rate_allows(limit, rate_after(limit, state, START, 4), START, 9).granted == 0


def test_lowered_rate_starts_nothing_until_enough_have_left_the_window() -> None:
    before, after = Limit(name="a", rate=10, per=SECOND), Limit(name="a", rate=2, per=SECOND)
    state = ""
    for number in range(10):
        state = rate_after(before, state, START + number, 1)
    allowed = rate_allows(after, state, START + 100, 5)
    assert allowed.granted == 0
    assert allowed.next_at == START + 8 + SECOND  # Nine of ten have left.
    assert rate_allows(after, state, allowed.next_at, 5).granted == 1
