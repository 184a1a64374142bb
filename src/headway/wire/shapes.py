"""JSON objects that are not structs yet."""

from typing import Any

from headway.wire.base import stamp as stamp

Shape = dict[str, Any]
