"""Locks on Consul: an entry of its key-value store per lock, held by a session of its own.

    headway/NAME    the holder; it goes with its session

A lock is acquired by a transaction that Consul refuses while another session has the entry. The entry's modify index is
the token: the number of that transaction in Consul's log, so it only grows, even if the entry was deleted and created
again (its lock index would start over then). This process keeps no state. A renewal first checks that the entry names
the holder, and renews the session that has it; so a lock that was deleted by hand is lost. After a lost response the
request is repeated: the entry says whose it is.

Consul keeps a silent session for twice its TTL, by design. So the TTL is half of the lease, and the lock of a dead
holder is free when the lease is over. But Consul refuses a TTL below `session_ttl_min`, by default 10 s: with that,
locks last 20 s or more, however short the lease. The lock delay (by default 15 s) is set to zero, since the store
rejects late writes of an old holder. Sessions have no health checks, so any endpoint of the same Consul will do.

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
OPERATIONS_MAX: Final = 64  # Consul refuses larger transactions.
TTL_MULTIPLIER: Final = 2  # How long Consul keeps a silent session, as a multiple of its TTL.
TTL_MIN: Final = 10 * SECOND  # Used if the server does not report its own.
TTL_MAX: Final = 24 * HOUR
TTL_REFUSED: Final = "Invalid Session TTL"
WAIT_S: Final = 20  # A blocking query returns after this time if there are no changes,
QUIET_S: Final = 30.0  # plus jitter, which Consul adds against a thundering herd.
ASK_AGAIN_S: Final = 0.05  # Batches many changes into one query.

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
        self._ttl_min: Duration = 0  # Raised when the server refuses one.

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Acquire a lock that is free, has expired or is the holder's own."""
        until = self._servers.deadline(duration)
        found = (await self._read([name], until)).get(name)
        if found is not None and found.Session and found.Value != holder.encode():
            return None
        return await self._take(name, found, holder, duration, until)

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend the locks that are still the holder's; one with another duration is acquired anew."""
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
        """Destroy the sessions of the holder's locks; their entries are deleted with them."""
        until = self._servers.deadline()
        ours = await self._read_ours(names, holder, until)
        await asyncio.gather(*(self._destroy(entry.Session, until) for entry in ours.values()))

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever one of our entries is deleted or loses its session, and after every gap in listening."""
        self._subscription.start(hear, "consul locks")

    async def close(self) -> None:
        """Close every connection."""
        await self._subscription.close()
        await self._servers.close()

    async def _read_ours(self, names: Iterable[str], holder: str, until: float) -> dict[str, _Entry]:
        found = await self._read(list(names), until)
        return {name: entry for name, entry in found.items() if entry.Session and entry.Value == holder.encode()}

    async def _read(self, names: Sequence[str], until: float) -> dict[str, _Entry]:
        """Read the existing entries."""
        entries: dict[str, _Entry] = {}
        for begin in range(0, len(names), OPERATIONS_MAX):
            asked = list(names[begin : begin + OPERATIONS_MAX])
            outcome = await self._transact([{"Verb": "get", "Key": self._prefix + name} for name in asked], until)
            if outcome.Errors:  # Then Consul reports only the missing ones.
                missing = {error.OpIndex for error in outcome.Errors}
                entries |= await self._read([name for at, name in enumerate(asked) if at not in missing], until)
            else:
                found = [result.KV for result in outcome.Results or ()]
                entries |= {entry.Key.removeprefix(self._prefix): entry for entry in found}
        return entries

    async def _take(self, name: str, found: _Entry | None, holder: str, duration: Duration, until: float) -> int | None:
        """Acquire the entry with a new session, unless another session has it by now."""
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
        if now is not None and now.Session == session:  # The first request succeeded, but its response was lost.
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
        """Renew a session; return the TTL that it was created with, None if it is gone."""
        answer = await self._ask("PUT", f"/v1/session/renew/{session}", None, until)
        if answer.status == 404:
            return None
        return _decode(_check(answer), list[_Session])[0].TTL

    async def _destroy(self, session: str, until: float) -> None:
        _check(await self._ask("PUT", f"/v1/session/destroy/{session}", None, until))  # Also if it is gone.

    async def _forget(self, session: str, until: float) -> None:
        """Destroy an unused session; it would also expire by itself."""
        with suppress(EngineUnavailable):
            await self._destroy(session, until)

    async def _transact(self, operations: Sequence[dict[str, Any]], until: float) -> _Outcome:
        """Run a transaction; the outcome has the conflicts."""
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
        """Long-poll for changes of the entries until the connection is lost."""
        path = f"/v1/kv/{quote(self._prefix)}?recurse=true&wait={WAIT_S}s&index="
        index, held = 0, set[tuple[str, str]]()
        hear_now = True  # Locks may have been released before we listened.
        while True:
            async with self._servers.listen(
                "GET", f"{path}{index}", quiet_s=QUIET_S, headers=self._headers
            ) as response:
                answer = EndpointReply(response.status, await response.read())
                entries = [] if answer.status == 404 else _decode(_check(answer), list[_Entry])
                said = _index(response.headers.get("X-Consul-Index"))
            index = said if said > index else 0  # After a restored snapshot it reports the old index again.
            before, held = held, {(entry.Key, entry.Session) for entry in entries if entry.Session}
            if hear_now or before - held:
                hear()
            hear_now = False
            await self._clock.rest(ASK_AGAIN_S, asyncio.Event())

    def _ttl(self, duration: Duration) -> str:
        ttl = min(max(duration // TTL_MULTIPLIER, self._ttl_min, MILLISECOND), TTL_MAX)
        return f"{-(-ttl // MILLISECOND)}ms"


def _trouble(answer: EndpointReply) -> str | None:
    """Return why another server should be tried: this one has no leader. A refusal is not such a reason."""
    return answer.text if answer.status >= 500 and TTL_REFUSED not in answer.text else None


def _check(answer: EndpointReply) -> EndpointReply:
    if answer.status != 200:
        raise EngineUnavailable(f"consul refuses: {answer.text or answer.status}")
    return answer


def _decode(answer: EndpointReply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise EngineUnavailable(f"the server is not Consul: {in_one_line(str(error))}") from error


def _index(text: str | None) -> int:
    try:
        return max(1, int(text or ""))  # Consul does not block for index 0.
    except ValueError:
        raise EngineUnavailable("the server is not Consul: it sends no index") from None


def _shortest(refusal: str) -> Duration:
    """Parse the minimum TTL from the server's message: `… must be between [10s=24h0m0s]`."""
    said = re.search(r"\[([0-9a-z.]+)=", refusal)
    try:
        return parse_duration(said[1]) if said is not None else TTL_MIN
    except DefinitionError:
        return TTL_MIN
