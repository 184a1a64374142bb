"""What nodes say of the servers beside the store: those that grant leases, carry live values, or announce jobs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.json_values import JsonObject

# What a node says of each is in its state under this name; and what is said of an absent one.
PARTS: Final = {
    "coordination": ("", "the store grants leases instead"),
    "live": ("for live values ", "followers see what the store has, twice a second"),
    "transport": ("for announcements ", "notifications wake the workers instead"),
}


class Stated(Protocol):
    """A node, as far as it says how it is."""

    @property
    def state(self) -> JsonObject:
        """What it says of itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """One engine as all nodes see it that use it: how many they are, and what those say whom it does not answer."""

    part: str
    name: str
    nodes: int
    troubles: tuple[tuple[str, str], ...]  # The name of each node, where it is known, and what it says.
    falls_back: bool

    @property
    def words(self) -> str:
        """How it is, without the names of machines."""
        if not self.troubles:
            return "ok"
        absent = len(self.troubles)
        some = "any node" if absent == self.nodes else f"{absent} of {self.nodes} nodes"
        return f"{self.name} {PARTS[self.part][0]}does not answer {some}"

    @property
    def meanwhile(self) -> str:
        """Say who does its part while it does not answer."""
        return PARTS[self.part][1] if self.falls_back else "leases wait until it is back"


def engines_of(nodes: Iterable[Stated]) -> list[EngineSeen]:
    """Sum up what living nodes say; one of another version may say nothing, or something else."""
    found: dict[tuple[str, str], list[tuple[str, JsonObject]]] = {}
    for node in nodes:
        for part in PARTS:
            said = node.state.get(part)
            if isinstance(said, dict):
                name = str(said.get("name", said.get("engine")))
                found.setdefault((part, name), []).append((str(getattr(node, "name", "")), said))
    return [
        EngineSeen(
            part=part,
            name=name,
            nodes=len(sayings),
            troubles=tuple((node, str(said["trouble"])) for node, said in sayings if said.get("trouble")),
            falls_back=all(said.get("fallback") != "stop" for _, said in sayings),
        )
        for (part, name), sayings in sorted(found.items())
    ]
