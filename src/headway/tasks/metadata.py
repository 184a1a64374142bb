"""The metadata of a running job: a dictionary whose changes reach the store."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from headway.core.errors import InvalidTask
from headway.core.jobs import METADATA_BYTES_MAX
from headway.core.json_values import check_finite
from headway.core.validation import check_name, storable


class Metadata(MutableMapping[str, Any]):
    """A dictionary whose changes reach the store."""

    def __init__(self, stored: str | None, changed: Callable[[], None]) -> None:
        self._values: dict[str, Any] = _read_object(stored)
        self._changed = changed
        self._text = ""  # As of the last change made here: a mutable value may change in place.
        self._is_new = False

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._keep({**self._values, check_name(name, "a name in metadata"): value})

    def __delitem__(self, name: str) -> None:
        values = self._values.copy()
        del values[name]
        self._keep(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def take(self) -> str | None:
        """Return all of it as JSON when any of it has changed since the last call."""
        if not self._is_new:
            return None
        self._is_new = False
        return self._text

    def _keep(self, values: dict[str, Any]) -> None:
        try:
            data = msgspec.json.encode(values)
            check_finite(values, data.decode(), "metadata")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidTask(f"metadata must be JSON: {error}") from None
        if len(data) > METADATA_BYTES_MAX:
            raise InvalidTask(f"metadata must have at most {METADATA_BYTES_MAX} bytes as JSON, not {len(data)}")
        self._values, self._text = values, storable(data.decode(), 2 * METADATA_BYTES_MAX)
        self._is_new = True
        self._changed()


def _read_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
