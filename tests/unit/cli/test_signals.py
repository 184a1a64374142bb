"""Signals: the first stops cleanly, the second exits at once."""

import asyncio
import os
import signal

import pytest

from headway.cli.log import EventLog
from headway.wiring.processes import INTERRUPTED, stopped_by_signals
from tests.support.waiting import DEADLINE_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_first_signal_stops_and_second_exits(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, left = asyncio.Event(), asyncio.Event()
    codes: list[int] = []
    lines: list[str] = []

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    monkeypatch.setattr(os, "_exit", leave)
    with stopped_by_signals(stopping, EventLog(lines.append, look="plain")):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(DEADLINE_S):
            await stopping.wait()
        assert codes == []
        os.kill(os.getpid(), number)
        async with asyncio.timeout(DEADLINE_S):
            await left.wait()
    assert codes == [INTERRUPTED]
    assert lines[0].endswith(f"info stopping signal={number.name}")
