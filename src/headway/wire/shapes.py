"""Schedules, decisions and previews as JSON objects: the same for the HTTP API, the command line and webhooks.

Times are ISO 8601 with `Z`. Secrets are masked by their names, so that no output forgets it.
"""

from typing import Any

from headway.wire.base import stamp as stamp

# What can be written as a date in every zone.

Shape = dict[str, Any]
