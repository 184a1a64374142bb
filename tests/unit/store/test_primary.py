"""Which server is the primary: the hosts of a URL, and how soon every connection leaves the old one."""

import pytest

from headway.store.primary import (
    CHECK_EVERY_S,
    IDENTIFY_S_MAX,
    SCOUT_EVERY_S,
    SCOUT_S_MAX,
    SPARE_S,
    SUSPECT_S,
    ServerIdentity,
    hosts_of,
)

BUDGET_S = 5.0


def test_writes_in_flight_end_within_five_seconds() -> None:
    """A standby is promoted during a check that just missed it; the next check finds it."""
    assert (SCOUT_S_MAX + SPARE_S) + SUSPECT_S + (SCOUT_S_MAX + SPARE_S) <= BUDGET_S


def test_new_connections_find_the_new_primary_within_five_seconds() -> None:
    """The last known primary is tried first and does not answer; then all hosts are."""
    assert (SCOUT_S_MAX + SPARE_S) + (SCOUT_S_MAX + SPARE_S) <= BUDGET_S


def test_reads_leave_the_old_primary_within_five_seconds() -> None:
    """The old primary says that it is a standby, does not answer, or does not know it."""
    assert CHECK_EVERY_S + IDENTIFY_S_MAX + SCOUT_S_MAX + SPARE_S <= BUDGET_S
    checks = -(-SCOUT_EVERY_S // CHECK_EVERY_S)  # The other hosts are checked when a connection is checked.
    assert checks * CHECK_EVERY_S + SCOUT_S_MAX + SPARE_S <= BUDGET_S


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://db1,db2/app", [("db1", None), ("db2", None)]),
        ("postgresql://u:p%40ss@db1:5433,db2:5434/app?sslmode=require", [("db1", 5433), ("db2", 5434)]),
        ("postgresql://u@[::1]:5433,[fe80::1]/app", [("::1", 5433), ("fe80::1", None)]),
        ("postgresql://%2Fvar%2Frun,db2/app", [("/var/run", None), ("db2", None)]),
        ("postgresql:///app", []),
        ("postgresql://u:[secret@db1,db2/app", []),
    ],
)
def test_hosts_of_a_url(url: str, hosts: list[tuple[str, int | None]]) -> None:
    assert hosts_of(url) == hosts


def test_latest_timeline_wins_then_latest_start() -> None:
    ranks = [ServerIdentity(timeline, started).rank for timeline, started in ((1, 50), (1, 60), (2, 10))]
    assert ranks == sorted(ranks)
