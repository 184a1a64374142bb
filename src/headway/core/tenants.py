"""Tenants: the owners of jobs and schedules, and how they share queues."""

from typing import Final

import msgspec

from headway.core.errors import DefinitionError, InvalidLimit, InvalidTask
from headway.core.instants import Duration, DurationLike, parse_duration
from headway.core.validation import check_int, check_name

DEFAULT_TENANT: Final = "default"
ALL_TENANTS: Final = "*"  # The tenant of a credential that sees all of them.
WEIGHT_DEFAULT: Final = 1
WEIGHT_MAX: Final = 1_000


def check_tenant(value: object, what: str) -> str:
    """Return the name of one tenant; refuse `*`, which stands for all of them."""
    if value == "*":
        raise InvalidTask(f"{what} must be one tenant; * stands for all of them")
    return check_name(value, what)


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """How a tenant shares queues: twice the weight is twice the time. `wait_slo` is how long its jobs may wait."""

    name: str
    weight: int = WEIGHT_DEFAULT
    wait_slo: Duration | None = None

    @classmethod
    def build(cls, name: object, *, weight: object = WEIGHT_DEFAULT, wait_slo: DurationLike | None = None) -> "Tenant":
        """Check a definition; raise `InvalidLimit` with the reason. A `wait_slo` of 0 means none."""
        try:
            checked = check_tenant(name, "tenant")
            return cls(
                name=checked,
                weight=check_int(weight, f"weight of {checked!r}", 1, WEIGHT_MAX),
                wait_slo=None
                if wait_slo is None
                else parse_duration(wait_slo, what=f"wait_slo of {checked!r}") or None,
            )
        except DefinitionError as error:
            raise InvalidLimit(str(error)) from None
