"""Nodes and the leases that they hold."""

from dataclasses import dataclass, field

from headway.core.instants import Instant
from headway.core.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A right to act on a name for a time. Its token only ever grows, whoever held the name before."""

    name: str
    holder: str
    token: int
    until: Instant
    holder_name: str = ""
    since: Instant = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One incarnation of a process; a restart makes another node."""

    id: str
    name: str
    roles: tuple[str, ...]
    version: str = ""
    started_at: Instant = 0
    beat_at: Instant = 0
    state: JsonObject = field(default_factory=dict)
    asked: str | None = None
