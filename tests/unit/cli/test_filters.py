"""Flags that select jobs: parsed once, and sent as the API defines them."""

import asyncio
import inspect
from dataclasses import fields
from typing import Any, cast

import pytest

from headway.cli.filters import Chosen, filtered
from headway.client.jobs import JobFilters
from headway.core.clock import Clock
from headway.core.errors import DefinitionError
from headway.core.instants import parse_instant
from headway.operations.caller import Caller, Principal
from headway.operations.job_reads import chosen_by
from headway.store import Store
from headway.wire.job_requests import JobFilter

TIMES = ("created_after", "created_before", "finished_after", "finished_before")
NOW = parse_instant("2027-01-31T06:00:00Z")


def test_flags_become_a_filter() -> None:
    typed = {"status": "failed", "type": "report", "q": "x", "created_after": "2h", "finished_before": "2027-01-01"}
    read = Chosen.of({**typed, "rerun_of": "01m7", "tag": None}).read(NOW)
    assert read.given() == {
        "status": "FAILED",
        "type": "report",
        "q": "x",
        "created_after": "2027-01-31T04:00:00Z",
        "finished_before": "2027-01-01T00:00:00Z",
        "rerun_of": "job_01m7",
    }


def test_invalid_value_error_names_the_flag() -> None:
    with pytest.raises(DefinitionError, match="--status must be one of"):
        Chosen.of({"status": "gone"})
    with pytest.raises(DefinitionError, match="--finished-after"):
        Chosen.of({"finished_after": "soon"}).read(NOW)


def test_every_filter_exists_in_every_command_and_route() -> None:
    """A forgotten filter would be ignored, and more jobs would be cancelled than intended."""

    @filtered
    def command(session: object, chosen: Chosen) -> Chosen:
        return chosen

    flags = [name for name in inspect.signature(command).parameters if name != "session"]
    assert {*flags} == set(JobFilter.__struct_fields__) == set(JobFilters.__annotations__)
    given: dict[str, Any] = dict.fromkeys(flags, None)
    assert command(None, **given).given == {}
    assert command(None, **{**given, "type": "t"}).given == {"type": "t"}


def test_every_filter_reaches_the_store() -> None:
    """Each filter changes the store's query."""
    caller = Caller(Principal("ada", "*", "viewer"), "", cast("Store", None), Clock(node="here"))
    values: dict[str, Any] = {name: f"the {name}" for name in JobFilter.__struct_fields__}
    values |= {name: f"2027-01-0{day}T00:00:00Z" for day, name in enumerate(TIMES, 1)}
    values["batch"] = "batch_1"  # An id; a name would be looked up.
    chosen = asyncio.run(chosen_by(caller, JobFilter(**values)))
    assert chosen is not None
    said = [getattr(chosen, field.name) for field in fields(chosen)]
    assert len(set(said)) == len(said) == len(values)
    assert None not in said
