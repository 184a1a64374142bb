"""Parse server-sent events incrementally from chunks of bytes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headway.core.errors import StoreError

PENDING_BYTES_MAX: Final = 64 << 20
RETRY_MS_MAX: Final = 60_000
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Message:
    """One event: its kind, its data, and the id to resume after."""

    event: str
    data: str
    id: str


class EventReader:
    """Turns bytes into messages; comments (the heartbeat) are skipped."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id  # The id of the last complete event; an incomplete one must come again.
        self._id = last_id
        self.retry_s: float | None = None
        self._pending = bytearray()
        self._is_first = True
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Message]:
        """Add bytes; return the messages that they complete."""
        self._pending += chunk
        if len(self._pending) + self._size > PENDING_BYTES_MAX:
            raise StoreError("the server sends an event that is too large")
        return [message for line in self._lines() if (message := self._take(line)) is not None]

    def _lines(self) -> Iterator[str]:
        at = 0
        for end in _LINE_END.finditer(self._pending):
            if end.group() == b"\r" and end.end() == len(self._pending):
                break  # Perhaps half of \r\n.
            line = self._pending[at : end.start()].decode("utf-8", "replace")
            at = end.end()
            yield line.removeprefix("\ufeff") if self._is_first else line
            self._is_first = False
        del self._pending[:at]

    def _take(self, line: str) -> Message | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
            self._size += len(value)
        elif name == "id" and "\x00" not in value:
            self._id = value
        elif name == "retry" and re.fullmatch("[0-9]{1,9}", value):
            self.retry_s = min(int(value), RETRY_MS_MAX) / 1000
        return None

    def _complete(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self._size = "", [], 0
        self.last_id = self._id
        return Message(event, "\n".join(data), self.last_id) if data else None
