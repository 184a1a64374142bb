"""What nodes say of the servers beside the store that grant their leases."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headway.model import JsonObject


class Stated(Protocol):
    """A node, as far as it says how it is."""

    @property
    def state(self) -> JsonObject:
        """What it says of itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """One engine as all nodes see it that use it: how many they are, and what those say whom it does not answer."""

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
        return f"{self.name} does not answer {some}"


def engines_of(nodes: Iterable[Stated]) -> list[EngineSeen]:
    """Sum up what living nodes say; one of another version may say nothing, or something else."""
    found: dict[str, list[tuple[str, JsonObject]]] = {}
    for node in nodes:
        said = node.state.get("coordination")
        if isinstance(said, dict):
            found.setdefault(str(said.get("engine")), []).append((str(getattr(node, "name", "")), said))
    return [
        EngineSeen(
            name=name,
            nodes=len(sayings),
            troubles=tuple((node, str(said["trouble"])) for node, said in sayings if said.get("trouble")),
            falls_back=all(said.get("fallback") != "stop" for _, said in sayings),
        )
        for name, sayings in sorted(found.items())
    ]
