"""Explain why a ready job waits for what it needs: nobody offers it, or what is offered is in use."""

from collections.abc import Sequence
from typing import Any

from headway.core.needs import Needs, missing_words, parse_needs, shown_needs
from headway.operations.worker_state import Worker


def needs_words(
    text: str, workers: Sequence[Worker], evidence: dict[str, Any], *, is_for_tenant: bool = False
) -> str | None:
    """Name what none of these workers offers; a tenant does not learn how much they offer."""
    amounts, labels, version = shown_needs(text)
    evidence["needs"] = amounts
    evidence |= {"labels": labels} if labels else {}
    evidence |= {"pinned_to": version} if version else {}
    needs = parse_needs(text)
    if needs is None:
        return "needs that cannot be read, so nobody offers them"
    words = missing_words(needs, [worker.offer for worker in workers], says_most=not is_for_tenant)
    if words is not None:
        evidence["missing"] = words
        evidence |= {} if is_for_tenant else {"cure": _cure(needs)}
    return words


def _cure(needs: Needs) -> str:
    offer, _, version = shown_needs(needs.text)
    words = ["headway worker --app MODULE:APP"]
    if offer:
        words.append("--offer " + ",".join(f"{name}={amount}" for name, amount in offer.items()))
    words += [f"--label {name}={value}" for name, value in needs.labels.items()]
    return " ".join([f"HEADWAY_APP_VERSION={version}", *words] if version else words)


def busy_words(text: str, workers: Sequence[Worker], evidence: dict[str, Any]) -> str | None:
    """Say that what a job needs is in use on all workers that offer it."""
    needs = parse_needs(text)
    if needs is None:
        return None
    able = [worker for worker in workers if worker.offer.covers(needs)]
    if any(worker.has_free(needs) for worker in able):
        return None
    evidence["offered_by"] = len(able)
    evidence["offer_free"] = [dict(worker.offer_free) for worker in able[:5]]
    who = "the worker that offers it has" if len(able) == 1 else f"the {len(able):,} workers that offer it have"
    return f"needs {', '.join(needs.parts())}, and {who} too little free"
