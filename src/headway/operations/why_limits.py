"""Explain why a ready job waits for a limit, or for its tenant's turn."""

from typing import Any

from headway.core.instants import SECOND, Instant, isoformat, span
from headway.core.jobs import Job
from headway.store.limit_reads import Hold, UsedShare


def held_words(hold: Hold, now: Instant, evidence: dict[str, Any], *, is_for_tenant: bool = False) -> str:
    """Name the limit, what it allows, and who holds it; a tenant learns of its own jobs only."""
    limit, holder = hold.limit, hold.holder
    evidence |= {
        "limit": hold.gate,
        "defined_as": hold.defined_as,
        "concurrency": limit.concurrency,
        "rate": limit.rate_text,
    }
    if holder is not None:
        evidence |= {"holder": holder.job_id, "holder_since": isoformat(holder.since)}
    if hold.look_at is not None:
        evidence["next_at"] = isoformat(hold.look_at)
        soon = f"in {span(hold.look_at - now)}" if hold.look_at > now else "any moment"
        return f"limit {hold.gate} allows {limit.rate_text}; the next may start {soon}"
    held = "" if holder is None else f"; {holder.job_id} holds it for {span(max(0, now - holder.since))}"
    if is_for_tenant:
        return f"limit {hold.gate} allows {limit.concurrency} at a time" + held
    evidence["running"] = hold.running
    others = f", and {hold.running:,} run" if hold.running > 1 else ""
    oldest = held.replace(" holds it for ", " has run longest, for ") if hold.running > 1 else held
    return f"limit {hold.gate} allows {limit.concurrency} at a time{others}{oldest}"


def share_words(job: Job, share: UsedShare | None, evidence: dict[str, Any], *, is_for_tenant: bool = False) -> str:
    """Say what the tenant has used, and how many tenants are served before it, which a tenant does not learn."""
    if share is None:
        return ""
    evidence |= {"tenant_used_seconds": round(share.used / SECOND, 3), "tenant_weight": share.weight}
    if is_for_tenant or not share.others:
        return ""
    evidence["tenants_ahead"] = share.others
    noun = "tenant has" if share.others == 1 else "tenants have"
    return f"; tenant {job.tenant} has used {span(share.used)} of the queue, {share.others:,} {noun} used less"
