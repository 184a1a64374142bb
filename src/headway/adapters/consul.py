"""Locks on Consul: an entry of its key-value store per lock, held by a session of its own.

    headway/NAME    the holder; it goes with its session

A lock is taken by a transaction that Consul refuses while another session has the entry. The entry's modify index is
the token: the number of that transaction in Consul's log, so it only grows, also where an entry went and was made
again (its lock index would begin anew then). Nothing is kept in this process. Whoever renews looks first whether the
entry says his name, and renews the session that has it; so one that was taken away by hand is lost. An answer that
never came is made good by asking again: the entry says whose it is.

Consul keeps a silent session for twice its time, on purpose. So half of the lease is asked for, and a lock of a dead
holder is free when the lease is over. But Consul refuses less than `session_ttl_min`, which is 10 s unless the server
says otherwise: with that, locks last 20 s or more, however short the lease. The delay after a lost lock, 15 s
otherwise, is not asked for (the store refuses what a late holder writes), nor is the health of the node that the
session is made at: another endpoint of the same Consul does as well.

With `?prefix=` several Headways share one Consul. A token needs `write` on the keys of the prefix and on sessions.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from headway.adapters.adapter_url import AdapterUrl
from headway.adapters.endpoints import EndpointReply, Endpoints, Subscription, in_one_line
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, EngineUnavailable
from headway.core.instants import HOUR, MILLISECOND, SECOND, Duration, parse_duration

PORT: Final = 8500
TLS_PORT: Final = 8501
PREFIX: Final = "headway/"
OPERATIONS_MAX: Final = 64  # Consul refuses transactions with more.
TTL_MULTIPLIER: Final = 2  # How long Consul waits, in times of what is asked for.
TTL_MIN: Final = 10 * SECOND  # Where the server does not say what its own is.
TTL_MAX: Final = 24 * HOUR
TTL_REFUSED: Final = "Invalid Session TTL"
WAIT_S: Final = 20  # A question about changes is answered after so long if there are none,
QUIET_S: Final = 30.0  # and a little later, which Consul adds lest all ask at once.
ASK_AGAIN_S: Final = 0.05  # Many changes at once are asked for once.

T = TypeVar("T")


class _Entry(msgspec.Struct):
    Key: str
    ModifyIndex: int
    Value: bytes | None = None
    Session: str = ""


class _Result(msgspec.Struct):
    KV: _Entry


class _Error(msgspec.Struct):
    OpIndex: int
    What: str


class _Outcome(msgspec.Struct):
    Results: list[_Result] | None = None
    Errors: list[_Error] | None = None


class _Session(msgspec.Struct):
    ID: str
    TTL: str = ""


class ConsulEngine:
    """Locks on one Consul. The port `Engine` says what its methods promise."""

    name: Final = "consul"

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        address = AdapterUrl.parse(url, port=TLS_PORT if url.startswith("consuls:") else PORT)
        self._prefix = (address.options.get("prefix") or PREFIX).lstrip("/")
        token = address.password or address.user
        self._headers = {"X-Consul-Token": token} if token else {}
        self._servers = Endpoints(self.name, address, clock=clock, node=node, trouble=_trouble)
        self._subscription = Subscription(self._follow, clock=clock)
        self._clock = clock
        self._node = node
        self._ttl_min: Duration = 0  # Until the server refuses one.

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Take a lock that is free, has run out or is the holder's own."""
        until = self._servers.deadline(duration)
        found = (await self._read([name], until)).get(name)
        if found is not None and found.Session and found.Value != holder.encode():
            return None
        return await self._take(name, found, holder, duration, until)

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend those locks that are still the holder's; one that was taken for another time is taken anew."""
        until = self._servers.deadline(duration)
        ours = await self._read_ours(names, holder, until)
        left = await asyncio.gather(*(self._extend(entry.Session, until) for entry in ours.values()))
        kept = set()
        for (name, entry), ttl in zip(ours.items(), left, strict=True):
            if ttl is None:
                continue
            if ttl == self._ttl(duration) or await self._take(name, entry, holder, duration, until):
                kept.add(name)
        return frozenset(kept)

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Destroy the sessions of those locks that are the holder's: the entries go with them."""
        until = self._servers.deadline()
        ours = await self._read_ours(names, holder, until)
        await asyncio.gather(*(self._destroy(entry.Session, until) for entry in ours.values()))

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever an entry of ours goes or has no session any more, and after every pause in listening."""
        self._subscription.start(hear, "consul locks")

    async def close(self) -> None:
        """Give back every connection."""
        await self._subscription.close()
        await self._servers.close()

    async def _read_ours(self, names: Iterable[str], holder: str, until: float) -> dict[str, _Entry]:
        found = await self._read(list(names), until)
        return {name: entry for name, entry in found.items() if entry.Session and entry.Value == holder.encode()}

    async def _read(self, names: Sequence[str], until: float) -> dict[str, _Entry]:
        """Read the entries that are there."""
        entries: dict[str, _Entry] = {}
        for begin in range(0, len(names), OPERATIONS_MAX):
            asked = list(names[begin : begin + OPERATIONS_MAX])
            outcome = await self._transact([{"Verb": "get", "Key": self._prefix + name} for name in asked], until)
            if outcome.Errors:  # Then Consul tells only what is not there.
                missing = {error.OpIndex for error in outcome.Errors}
                entries |= await self._read([name for at, name in enumerate(asked) if at not in missing], until)
            else:
                found = [result.KV for result in outcome.Results or ()]
                entries |= {entry.Key.removeprefix(self._prefix): entry for entry in found}
        return entries

    async def _take(self, name: str, found: _Entry | None, holder: str, duration: Duration, until: float) -> int | None:
        """Have the entry held by a session of its own, unless another one has it by now."""
        key = self._prefix + name
        session = await self._create(duration, until)
        before = found.Session if found is not None else ""
        unlock = [{"Verb": "unlock", "Key": key, "Value": holder.encode(), "Session": before}] if before else []
        lock = {"Verb": "lock", "Key": key, "Value": holder.encode(), "Session": session}
        outcome = await self._transact([*unlock, lock], until)
        if outcome.Results:
            if before:
                await self._forget(before, until)
            return outcome.Results[-1].KV.ModifyIndex
        now = (await self._read([name], until)).get(name)
        if now is not None and now.Session == session:  # Done the first time, by a server that then did not answer.
            return now.ModifyIndex
        await self._forget(session, until)
        return None

    async def _create(self, duration: Duration, until: float) -> str:
        answer = await self._create_once(duration, until)
        if TTL_REFUSED in answer.text:
            self._ttl_min = _shortest(answer.text)
            answer = await self._create_once(duration, until)
        return _decode(_check(answer), _Session).ID

    async def _create_once(self, duration: Duration, until: float) -> EndpointReply:
        wanted = {
            "Name": f"headway {self._node}",
            "TTL": self._ttl(duration),
            "LockDelay": "0s",
            "Behavior": "delete",
            "NodeChecks": [],
        }
        return await self._ask("PUT", "/v1/session/create", wanted, until)

    async def _extend(self, session: str, until: float) -> str | None:
        """Let a session begin anew; return the time that was asked for when it was made, None if it is gone."""
        answer = await self._ask("PUT", f"/v1/session/renew/{session}", None, until)
        if answer.status == 404:
            return None
        return _decode(_check(answer), list[_Session])[0].TTL

    async def _destroy(self, session: str, until: float) -> None:
        _check(await self._ask("PUT", f"/v1/session/destroy/{session}", None, until))  # Also one that is gone.

    async def _forget(self, session: str, until: float) -> None:
        """Destroy a session that nothing needs; it would run out, too."""
        with suppress(EngineUnavailable):
            await self._destroy(session, until)

    async def _transact(self, operations: Sequence[dict[str, Any]], until: float) -> _Outcome:
        """Do all of it or nothing; what was in the way is in the outcome."""
        answer = await self._ask("PUT", "/v1/txn", [{"KV": operation} for operation in operations], until)
        outcome = _decode(answer if answer.status == 409 else _check(answer), _Outcome)
        for error in outcome.Errors or ():
            if "denied" in error.What:
                raise EngineUnavailable(f"consul refuses: {in_one_line(error.What)}")
        return outcome

    async def _ask(self, method: str, path: str, question: object, until: float) -> EndpointReply:
        body = b"" if question is None else msgspec.json.encode(question)
        return await self._servers.ask(method, path, until=until, body=body, headers=self._headers)

    async def _follow(self, hear: Callable[[], None]) -> None:
        """Ask for the entries whenever they have changed, until the connection is lost."""
        path = f"/v1/kv/{quote(self._prefix)}?recurse=true&wait={WAIT_S}s&index="
        index, held = 0, set[tuple[str, str]]()
        hear_now = True  # What came free before is known to nobody.
        while True:
            async with self._servers.listen(
                "GET", f"{path}{index}", quiet_s=QUIET_S, headers=self._headers
            ) as response:
                answer = EndpointReply(response.status, await response.read())
                entries = [] if answer.status == 404 else _decode(_check(answer), list[_Entry])
                said = _index(response.headers.get("X-Consul-Index"))
            index = said if said > index else 0  # After a restored snapshot it says the old one once more.
            before, held = held, {(entry.Key, entry.Session) for entry in entries if entry.Session}
            if hear_now or before - held:
                hear()
            hear_now = False
            await self._clock.rest(ASK_AGAIN_S, asyncio.Event())

    def _ttl(self, duration: Duration) -> str:
        ttl = min(max(duration // TTL_MULTIPLIER, self._ttl_min, MILLISECOND), TTL_MAX)
        return f"{-(-ttl // MILLISECOND)}ms"


def _trouble(answer: EndpointReply) -> str | None:
    """Tell a server without a leader from a refusal."""
    return answer.text if answer.status >= 500 and TTL_REFUSED not in answer.text else None


def _check(answer: EndpointReply) -> EndpointReply:
    if answer.status != 200:
        raise EngineUnavailable(f"consul refuses: {answer.text or answer.status}")
    return answer


def _decode(answer: EndpointReply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise EngineUnavailable(f"what answers is not Consul: {in_one_line(str(error))}") from error


def _index(text: str | None) -> int:
    try:
        return max(1, int(text or ""))  # Consul would not wait for changes after 0.
    except ValueError:
        raise EngineUnavailable("what answers is not Consul: it counts no changes") from None


def _shortest(refusal: str) -> Duration:
    """Read the shortest time that the server allows from what it says: `… must be between [10s=24h0m0s]`."""
    said = re.search(r"\[([0-9a-z.]+)=", refusal)
    try:
        return parse_duration(said[1]) if said is not None else TTL_MIN
    except DefinitionError:
        return TTL_MIN
