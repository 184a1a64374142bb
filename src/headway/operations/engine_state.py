"""What nodes report about the servers beside the store: for leases, live values and job announcements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.json_values import JsonObject

# By its name in the state of a node: a phrase for messages, and what happens while it is unavailable.
PARTS: Final = {
    "coordination": ("", "the store grants leases instead"),
    "live": ("for live values ", "followers see what the store has, twice a second"),
    "transport": ("for announcements ", "notifications wake the workers instead"),
}


class Stated(Protocol):
    """A node that reports its state."""

    @property
    def state(self) -> JsonObject:
        """The state that the node reports."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """One engine as its nodes see it: how many use it, and the errors of those that cannot reach it."""

    part: str
    name: str
    nodes: int
    troubles: tuple[tuple[str, str], ...]  # The name of each node, if known, and its error.
    falls_back: bool

    @property
    def words(self) -> str:
        """The state of the engine, without host names."""
        if not self.troubles:
            return "ok"
        absent = len(self.troubles)
        some = "any node" if absent == self.nodes else f"{absent} of {self.nodes} nodes"
        return f"{self.name} {PARTS[self.part][0]}does not answer {some}"

    @property
    def meanwhile(self) -> str:
        """What replaces the engine while it does not answer."""
        return PARTS[self.part][1] if self.falls_back else "leases wait until it is back"


def engines_of(nodes: Iterable[Stated]) -> list[EngineSeen]:
    """Sum up the reports of live nodes; a node of another version may report nothing, or other fields."""
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
