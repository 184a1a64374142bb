"""Nodes and the leases that they hold."""

from dataclasses import dataclass, field
from typing import Final

from headway.core.instants import Instant
from headway.core.json_values import JsonObject

LEASE_MARGIN: Final = 0.2  # The part of a lease in which its holder no longer trusts it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A named lease. Its token is higher than that of every earlier holder."""

    name: str
    holder: str
    token: int
    until: Instant
    holder_name: str = ""
    since: Instant = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One run of a process; a restart creates another node."""

    id: str
    name: str
    roles: tuple[str, ...]
    version: str = ""
    started_at: Instant = 0
    beat_at: Instant = 0
    state: JsonObject = field(default_factory=dict)
    asked: str | None = None
    schema: int = 0  # The schema that its release was written for; 0: a release that does not say so.
