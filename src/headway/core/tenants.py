"""Tenants: the owners of jobs and schedules."""

from typing import Final

from headway.core.errors import InvalidTask
from headway.core.validation import check_name

DEFAULT_TENANT: Final = "default"
ALL_TENANTS: Final = "*"  # The tenant of a credential that sees all of them.


def check_tenant(value: object, what: str) -> str:
    """Return the name of one tenant; refuse `*`, which stands for all of them."""
    if value == "*":
        raise InvalidTask(f"{what} must be one tenant; * stands for all of them")
    return check_name(value, what)
