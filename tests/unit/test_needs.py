"""What jobs need and workers offer: one text for equal needs, exact sums, and what is missing in words."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidTask
from headway.core.instants import MINUTE, SECOND
from headway.core.needs import (
    AMOUNT_MAX,
    NEEDS_LENGTH_MAX,
    Needs,
    Offer,
    amount_words,
    missing_words,
    needs_text,
    numbers,
    parse_amount,
    parse_needs,
    read_amounts,
    read_labels,
    times,
)
from headway.core.worker_offers import WorkerOffer, keeps_place

names = st.sampled_from(["cpu", "gpu", "memory", "a", "b", "nvidia.com/gpu-2", "x_1"])
values = st.text("aZ0._/:+-=", min_size=1, max_size=6).map(lambda text: f"v{text.replace('=', '')}")
amounts = st.dictionaries(names, st.integers(1, AMOUNT_MAX * 1000), max_size=4)
needs = st.builds(Needs, amounts, st.dictionaries(names, values, max_size=3), st.none() | values)


@given(needs)
def test_text_says_everything_and_equal_needs_have_equal_texts(one: Needs) -> None:
    assert parse_needs(one.text) == one
    shuffled = Needs(dict(reversed(one.amounts.items())), dict(reversed(one.labels.items())), one.version)
    assert shuffled.text == one.text


@given(needs, needs)
def test_different_needs_have_different_texts(one: Needs, other: Needs) -> None:
    assert (one.text == other.text) == (one == other)


@pytest.mark.parametrize(
    "same",
    [
        ["4G", "4GB", "4GiB", "4g", " 4 G ", 4294967296, "4294967296", 4294967296.0, "4096M", "0.00390625T"],
        [2, 2.0, "2", "2.0", "02"],
        [0.5, "0.5", "0.500"],
    ],
)
def test_equal_amounts_are_one_class(same: list[Any]) -> None:
    assert len({needs_text(read_amounts({"memory": one}, "needs"), {}) for one in same}) == 1
    assert len({needs_text(read_amounts({"memory": one, "cpu": 1}, "needs"), {"zone": "eu"}) for one in same}) == 1


def test_canonical_text() -> None:
    given = read_amounts({"memory": "4G", "cpu": 0.5}, "needs")
    assert needs_text(given, {"zone": "eu"}, "1.4") == "cpu=0.5 memory=4294967296 zone:eu @1.4"
    assert needs_text({}, {}) == ""
    assert numbers(given) == {"cpu": 0.5, "memory": 4294967296}
    assert read_amounts("memory=4G, cpu=0.5", "--need") == given


@pytest.mark.parametrize(
    "bad",
    [-1, 0, 0.0, "0", -0.5, float("nan"), float("inf"), 1e300, 10**400, 10**15 + 1, "1025T", "4X", "500m", "1e3", "",
     "nan", "-3", "+3", "4 4", "0x10", "1,5", 0.0001, True, None, [], {}, "²", "१"],
)  # fmt: skip
def test_amount_that_makes_no_sense_is_refused_with_the_way_to_write_it(bad: Any) -> None:
    with pytest.raises(InvalidTask, match=r"needs: cpu must"):
        read_amounts({"cpu": bad}, "needs")


@pytest.mark.parametrize(
    "bad", ["cpu", "cpu=1,cpu=2", "=1", "CPU=1", "1cpu=1", 5, ["cpu"], {"a b": 1}, {1: 1}, {"": 1}]
)
def test_names_that_make_no_sense_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidTask, match="needs"):
        read_amounts(bad, "needs")


@pytest.mark.parametrize(
    "bad", [{"zone": "e u"}, {"zone": ""}, {"zone": 5}, {"zone": "x" * 81}, "zone", {"Zone": "eu"}]
)
def test_labels_that_make_no_sense_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidTask, match="labels"):
        read_labels(bad, "labels")


def test_needs_are_bounded() -> None:
    with pytest.raises(InvalidTask, match="at most 16"):
        read_amounts({f"a{number}": 1 for number in range(17)}, "needs")
    with pytest.raises(InvalidTask, match=str(NEEDS_LENGTH_MAX)):
        needs_text({}, {f"a{number}": "x" * 80 for number in range(6)})


@pytest.mark.parametrize(
    "bad", ["cpu", "cpu=0", "b=1 a=1", "cpu=1  x=1", "cpu=1.0", ":x", "@", "@1 @2", "a=1 a=2", "x\x00"]
)
def test_text_that_is_not_canonical_is_nobodys(bad: str) -> None:
    assert parse_needs(bad) is None
    assert not Offer({"cpu": 10**9}).covers(parse_needs(bad))


@given(st.integers(1, AMOUNT_MAX * 1000))
def test_words_of_amounts_can_be_read_again(amount: int) -> None:
    assert parse_amount(amount_words(amount), "x") == amount


@given(needs, st.dictionaries(names, st.integers(0, 10**6), max_size=4), st.integers(0, 20))
def test_as_many_fit_as_their_sum_allows(one: Needs, free: dict[str, int], most: int) -> None:
    count = times(one, free, most)
    assert 0 <= count <= most
    assert all(amount * count <= free.get(name, 0) or count == 0 for name, amount in one.amounts.items())
    if count < most:
        assert any(amount * (count + 1) > free.get(name, 0) for name, amount in one.amounts.items())


@given(needs, st.lists(needs, max_size=3))
def test_something_is_missing_exactly_if_no_worker_offers_all(one: Needs, others: list[Needs]) -> None:
    offers = [Offer(other.amounts, other.labels, other.version) for other in others]
    is_covered = one == Needs() or any(offer.covers(one) for offer in offers)
    assert (missing_words(one, offers) is None) == is_covered
    assert missing_words(one, [*offers, Offer(one.amounts, one.labels, one.version)]) is None


def _missing(text: str, *offers: Offer, says_most: bool = True) -> str | None:
    found = parse_needs(text)
    assert found is not None
    return missing_words(found, offers, says_most=says_most)


def test_missing_part_is_named() -> None:
    small = Offer(read_amounts("cpu=2,memory=1G", "offer"), {"zone": "us"}, "1.3")
    big = Offer(read_amounts("cpu=8", "offer"), {"zone": "eu"})
    assert _missing("gpu=1", small, big) == "needs gpu=1, nobody offers it"
    assert _missing("cpu=16", small, big) == "needs cpu=16, the most that a worker offers is 8"
    assert _missing("cpu=16", small, big, says_most=False) == "needs cpu=16, nobody offers so much"
    assert _missing("zone:asia", small, big) == "needs the label zone=asia, no worker has it"
    assert _missing("@1.4", small, big) == "needs version 1.4, no worker runs it"
    assert _missing("cpu=4 memory=1073741824", small, big) == (
        "needs cpu=4 and memory=1G of one worker, no worker offers all of it"
    )
    assert _missing("cpu=1 gpu=1 zone:x", small) == "needs gpu=1, nobody offers it; the label zone=x, no worker has it"
    assert _missing("cpu=8 zone:eu", small, big) is None


def test_offer_of_another_process_that_cannot_be_read_offers_nothing() -> None:
    assert Offer.read({"cpu": 8}, {"zone": "eu"}, "1") == Offer({"cpu": 8000}, {"zone": "eu"}, "1")
    for bad in ({"cpu": -1}, "cpu", 5, {"cpu": "many"}):
        assert not Offer.read(bad, {}, None)
    assert not Offer.read(None, None, None)
    assert not Offer.read({}, {"zone": 5}, None)


def test_workers_decide_alike_who_keeps_room_and_more_of_them_later() -> None:
    wanted = Needs({"cpu": 4000})
    able = [WorkerOffer(f"node_{number}", Offer({"cpu": 8000})) for number in range(9)]
    others = [
        WorkerOffer("small", Offer({"cpu": 2000})),
        WorkerOffer("elsewhere", Offer({"cpu": 8000}), frozenset({"mail"})),
    ]

    def keepers(waited: int) -> set[str]:
        return {one.node for one in able if keeps_place(one.node, [*able, *others], "default", wanted, waited)}

    found = [keepers(waited) for waited in (10 * SECOND, MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE, 10**15)]
    assert [len(each) for each in found] == [1, 2, 4, 8, 9, 9]
    assert all(earlier <= later for earlier, later in itertools.pairwise(found))
    assert keeps_place("node_0", [], "default", wanted, 0)
