"""What live workers offer to jobs with needs, as they describe it in their heartbeats."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headway.core.instants import MINUTE, Duration
from headway.core.json_values import JsonObject
from headway.core.needs import Needs, Offer, numbers
from headway.core.nodes import Node

KEEPERS_DOUBLE: Final = 20  # 2^20 workers are more than there are.


class WorkerOffer(msgspec.Struct, frozen=True):
    """What a live worker offers, and from which queues it takes jobs."""

    node: str
    offer: Offer
    queues: frozenset[str] = frozenset()  # Empty: all.

    def takes(self, queue: str) -> bool:
        """Return whether the worker takes jobs from a queue."""
        return not self.queues or queue in self.queues


def offer_state(offer: Offer, free: Mapping[str, int]) -> JsonObject:
    """Describe an offer, and what of it is free, for the state of a node."""
    return {
        "offer": numbers(offer.amounts),
        "offer_free": numbers({name: max(0, free.get(name, 0)) for name in offer.amounts}),
        "labels": offer.labels,
        "app_version": offer.version,
    }


def offer_of(worker: Mapping[str, Any]) -> Offer:
    """Read the offer of a worker from its state; a worker of an older release offers nothing."""
    return Offer.read(worker.get("offer"), worker.get("labels"), worker.get("app_version"))


def offers_of(nodes: Iterable[Node]) -> list[WorkerOffer]:
    """Return what the live workers offer that take jobs."""
    found = []
    for node in nodes:
        worker = node.state.get("worker")
        if isinstance(worker, dict) and not worker.get("draining") and node.asked != "drain":
            queues = worker.get("queues")
            names = frozenset(map(str, queues)) if isinstance(queues, list) and "*" not in queues else frozenset()
            found.append(WorkerOffer(node.id, offer_of(worker), names))
    return found


def keeps_place(node: str, peers: Sequence[WorkerOffer], queue: str, needs: Needs, waited: Duration) -> bool:
    """Return whether this worker keeps room for a job that waits: one worker at first, twice as many each minute.

    All workers that could run it decide alike, by a hash, so that they need not talk about it.
    """
    able = [peer.node for peer in peers if peer.node != node and peer.takes(queue) and peer.offer.covers(needs)]
    text = needs.text

    def place(one: str) -> tuple[int, str]:
        return zlib.crc32(f"{queue} {text} {one}".encode()), one

    before = sum(place(one) < place(node) for one in able)
    return before < 1 << min(waited // MINUTE, KEEPERS_DOUBLE)
