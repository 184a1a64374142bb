"""Names of schedules: the key in the store, the label on the command line, and the reference."""

from typing import Final, NamedTuple

from headway.core.tenants import DEFAULT_TENANT

# Separates tenant and name in a key. It is not printable, so no name contains it.
_IN_KEY: Final = "\x1f"


def schedule_key(tenant: str, name: str, *, qualified: bool = False) -> str:
    """Return the key of a schedule: its name, prefixed with the tenant unless that is the default tenant.

    The key identifies the schedule in the ledger, in its jobs and its locks, and never changes. A schedule from before
    names were unique per tenant has its bare name as key, whatever its tenant; a schedule of the default tenant with
    the same name is then `qualified`. So only the store knows the key of an existing schedule.
    """
    return f"{tenant}{_IN_KEY}{name}" if qualified or tenant != DEFAULT_TENANT else name


def schedule_name(key: str) -> str:
    """Return the name in a key; a bare name is returned unchanged."""
    return key.rpartition(_IN_KEY)[2]


def schedule_label(tenant: str, name: str) -> str:
    """Return the label of a schedule: its name for the default tenant, else `tenant/name`.

    A name with a slash always has its tenant, so that no two labels are equal.
    """
    return name if tenant == DEFAULT_TENANT and "/" not in name else f"{tenant}/{name}"


def key_label(key: str) -> str:
    """Return the label of the schedule with this key, as far as the key shows it."""
    tenant, _, name = key.rpartition(_IN_KEY)
    return schedule_label(tenant or DEFAULT_TENANT, name)


class ScheduleRef(NamedTuple):
    """A reference to a schedule: tenant and name. Its text is the label."""

    tenant: str
    name: str

    def __str__(self) -> str:
        return schedule_label(self.tenant, self.name)
