"""Name a schedule: its key in the store, its label on the command line, and its reference."""

from typing import Final, NamedTuple

from headway.core.tenants import DEFAULT_TENANT

# Between tenant and name in the key of a schedule. No name has it, since names are printable.
_IN_KEY: Final = "\x1f"


def schedule_key(tenant: str, name: str, *, qualified: bool = False) -> str:
    """Return the key of a schedule: its name, of other tenants than the default with the tenant before it.

    The key names the schedule within the store: in the ledger, in its jobs and its locks, for ever. One that was made
    before names were unique per tenant has its name for a key, whosever it is, and the default tenant's of the same
    name is then `qualified`, too. So only the store knows the key of a schedule that exists.
    """
    return f"{tenant}{_IN_KEY}{name}" if qualified or tenant != DEFAULT_TENANT else name


def schedule_name(key: str) -> str:
    """Return the name of the schedule with this key; a name is returned as it is."""
    return key.rpartition(_IN_KEY)[2]


def schedule_label(tenant: str, name: str) -> str:
    """Return what the command line calls a schedule: its name, and `tenant/name` of other tenants than the default.

    A name of the default tenant that has a slash is also written with its tenant, so that no two labels are equal.
    """
    return name if tenant == DEFAULT_TENANT and "/" not in name else f"{tenant}/{name}"


def key_label(key: str) -> str:
    """Return what the command line calls the schedule with this key, as far as the key tells."""
    tenant, _, name = key.rpartition(_IN_KEY)
    return schedule_label(tenant or DEFAULT_TENANT, name)


class ScheduleRef(NamedTuple):
    """Which schedule: a name, and whose. As text it is what the command line calls it."""

    tenant: str
    name: str

    def __str__(self) -> str:
        return schedule_label(self.tenant, self.name)
