"""Responses that are written as a whole: only where nothing is unusual."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headway.server.http_server import _send_whole


def _cycle(**differences: Any) -> Any:
    """Return uvicorn's state of a request, and the list of what is written to its transport."""
    written: list[bytes] = []
    usual = {
        "disconnected": False,
        "keep_alive": True,
        "waiting_for_100_continue": False,
        "flow": SimpleNamespace(write_paused=False),
        "default_headers": [(b"date", b"today")],
        "response_started": False,
        "response_complete": False,
        "transport": SimpleNamespace(write=written.append),
        "message_event": asyncio.Event(),
        "on_response": lambda: None,
        "written": written,
    }
    return SimpleNamespace(**(usual | differences))


def test_head_and_body_are_one_write() -> None:
    cycle = _cycle()
    assert _send_whole(cycle, 200, [(b"content-length", b"2")], b"{}")
    assert cycle.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n{}"]
    assert cycle.response_complete


@pytest.mark.parametrize(
    "differences",
    [
        {"disconnected": True},
        {"keep_alive": False},
        {"waiting_for_100_continue": True},
        {"flow": SimpleNamespace(write_paused=True)},
        {"response_started": True},  # A stream that failed midway.
    ],
)
def test_unusual_responses_are_left_to_uvicorn(differences: dict[str, Any]) -> None:
    cycle = _cycle(**differences)
    assert not _send_whole(cycle, 200, [], b"{}")
    assert (cycle.written, cycle.response_complete) == ([], False)


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r"])
def test_header_injection_is_rejected(end: bytes) -> None:
    cycle = _cycle()
    assert not _send_whole(cycle, 200, [(b"location", b"/" + end + b"set-cookie: mine")], b"{}")
    assert (cycle.written, cycle.response_started) == ([], False)
