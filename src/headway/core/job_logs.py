"""Lines of a job's log: their limits, streams and levels."""

from typing import Final

LOG_BYTES_MAX: Final = 1024 * 1024
LOG_LINE_OVERHEAD: Final = 40  # Bytes that a line takes beside its text, roughly.
LOG_LINE_LENGTH_MAX: Final = 4_096
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_STREAM_LEVELS: Final = {"stderr": "warning"}


def log_stream(level: str, logger: str) -> str:
    """Return the stream of a line with this level and logger."""
    return f"{level}:{logger}"


def read_stream(text: str) -> tuple[str, str, str | None]:
    """Return stream, level and logger of a line; printed lines have no logger."""
    level, colon, logger = text.partition(":")
    if colon and level in LOG_LEVELS:
        return "log", level, logger
    return text, _STREAM_LEVELS.get(text, "info"), None
