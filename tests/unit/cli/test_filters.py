"""The flags that say which jobs: read once, and written as the API has them."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

from headway.cli.filters import Chosen, filtered, in_api
from headway.client.jobs import JobFilters
from headway.core.errors import DefinitionError
from headway.core.instants import HOUR, parse_instant
from headway.server.routes.bulk import FilterBody
from headway.server.routes.jobs import JOB_FILTERS
from headway.store.job_filter import JobFilter

NOW = parse_instant("2027-01-31T06:00:00Z")


def test_what_is_typed_becomes_a_filter_of_the_store_and_of_the_api() -> None:
    typed = {"status": "failed", "task": "report", "words": "x", "since": "2h", "finished_before": "2027-01-01"}
    read = Chosen.of({**typed, "rerun_of": "01m7", "tag": None}).read(NOW)
    assert JobFilter(**read) == JobFilter(
        status="FAILED",
        task="report",
        words="x",
        since=NOW - 2 * HOUR,
        finished_before=parse_instant("2027-01-01T00:00:00Z"),
        rerun_of="job_01m7",
    )
    assert in_api(read) == {
        "status": "FAILED",
        "type": "report",
        "q": "x",
        "created_after": "2027-01-31T04:00:00Z",
        "finished_before": "2027-01-01T00:00:00Z",
        "rerun_of": "job_01m7",
    }


def test_what_is_wrong_is_refused_by_the_name_of_its_flag() -> None:
    with pytest.raises(DefinitionError, match="--status must be one of"):
        Chosen.of({"status": "gone"})
    with pytest.raises(DefinitionError, match="--finished-after"):
        Chosen.of({"finished_after": "soon"}).read(NOW)


def test_every_filter_is_known_everywhere() -> None:
    """A filter that one of them forgets would be ignored, and more jobs would be cancelled than were meant."""

    @filtered
    def command(session: object, chosen: Chosen) -> Chosen:
        return chosen

    flags = [name for name in inspect.signature(command).parameters if name != "session"]
    assert sorted(flags) == sorted(field.name for field in fields(JobFilter))
    given: dict[str, Any] = dict.fromkeys(flags, None)
    assert command(None, **given).given == {}
    assert command(None, **{**given, "task": "t"}).given == {"task": "t"}
    names = {param.name for param in JOB_FILTERS}
    assert set(FilterBody.__struct_fields__) == names == set(JobFilters.__annotations__)
    assert set(in_api({name: 0 if name in ("since", "until") else None for name in flags})) <= names
