"""Locks on etcd, through the JSON gateway that every etcd since 3.4 has beside gRPC.

    headway/NAME    the holder; bound to its own etcd lease, with which it is deleted

A lock is acquired by a transaction that writes the key only if it has not changed since it was read. The revision of
that write is the token: one counter for all of etcd, which only grows. This process keeps no state. A renewal first
checks that the key exists and names the holder, and extends the lease that the key is bound to; so a lock whose key was
deleted is lost, though its lease lives on. After a lost response the request is repeated: the key says whose it is.

etcd counts leases in whole seconds, so they are rounded up, and it has a minimum (by default 2 s). After a change of
its leader it restarts every lease, so the lock of a dead holder can last twice as long then.

With `?prefix=` several Headways share one etcd. A user needs the right to read and write keys of the prefix.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from headway.adapters.adapter_url import AdapterUrl
from headway.adapters.endpoints import EndpointReply, Endpoints, Subscription, in_one_line
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND, Duration

PORT: Final = 2379
PREFIX: Final = "headway/"
QUIET_S: Final = 30.0  # A watch that is silent for this long is opened again: its connection may be dead.
KEYS_PER_READ: Final = 100  # etcd refuses transactions with more than 128 operations.
HAS_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}  # Partitioned servers answer at once.
NOT_LOGGED_IN: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
NO_LOGIN_NEEDED: Final = "authentication is not enabled"

T = TypeVar("T")


class _Key(msgspec.Struct):
    value: bytes = b""
    lease: int = 0
    mod_revision: int = 0


class _Range(msgspec.Struct):
    kvs: list[_Key] = []


class _Response(msgspec.Struct):
    response_range: _Range | None = None

    def key(self) -> _Key | None:
        """Return the key that was read, if it exists."""
        return self.response_range.kvs[0] if self.response_range and self.response_range.kvs else None


class _Header(msgspec.Struct):
    revision: int = 0


class _Transaction(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Lease(msgspec.Struct):
    ID: int = 0
    TTL: int = 0  # Absent for an expired lease.


class _Watched(msgspec.Struct):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    events: list[Any] = []


class _Streamed(msgspec.Struct):
    """One line of a streaming response; an error is an object here, and a string elsewhere."""

    result: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Refusal(msgspec.Struct):
    message: str


class _Token(msgspec.Struct):
    token: str


class EtcdEngine:
    """Locks on one etcd. The port `Engine` says what its methods promise."""

    name: Final = "etcd"

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        address = AdapterUrl.parse(url, port=PORT)
        self._prefix = (address.options.get("prefix") or PREFIX).encode()
        self._user, self._password = address.user, address.password
        self._token: str | None = None
        self._servers = Endpoints(self.name, address, clock=clock, node=node, trouble=_trouble)
        self._subscription = Subscription(self._follow, clock=clock)

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Acquire a lock that is free, has expired or is the holder's own."""
        until = self._servers.deadline(duration)
        (found,) = await self._read([name], until)
        if found is not None and found.value != holder.encode():
            return None
        return await self._take(name, found, holder, duration, until)

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend the locks that are still the holder's; one with a shorter duration is acquired anew."""
        asked = list(names)
        until = self._servers.deadline(duration)
        found = dict(zip(asked, await self._read(asked, until), strict=True))
        ours = {name: key for name, key in found.items() if key is not None and key.value == holder.encode()}
        left = await asyncio.gather(*(self._extend(key.lease, until) for key in ours.values()))
        kept = set()
        for (name, key), seconds in zip(ours.items(), left, strict=True):
            is_enough = seconds >= _whole_seconds(duration)
            if is_enough or (seconds and await self._take(name, key, holder, duration, until)):
                kept.add(name)
        return frozenset(kept)

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Revoke the leases of the holder's locks; their keys are deleted with them."""
        until = self._servers.deadline()
        found = await self._read(list(names), until)
        leases = [key.lease for key in found if key is not None and key.value == holder.encode()]
        await asyncio.gather(*(self._revoke(lease, until) for lease in leases))

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever one of our keys is deleted, and after every gap in listening."""
        self._subscription.start(hear, "etcd locks")

    async def close(self) -> None:
        """Close every connection."""
        await self._subscription.close()
        await self._servers.close()

    async def _read(self, names: Sequence[str], until: float) -> list[_Key | None]:
        """Read linearizably: what a majority of the servers agrees on."""
        keys: list[_Key | None] = []
        for begin in range(0, len(names), KEYS_PER_READ):
            reads = [{"request_range": {"key": self._key(name)}} for name in names[begin : begin + KEYS_PER_READ]]
            answer = await self._ask("/v3/kv/txn", {"success": reads}, _Transaction, until)
            if len(answer.responses) != len(reads):
                raise EngineUnavailable("the server is not etcd: it does not return the requested keys")
            keys += [response.key() for response in answer.responses]
        return keys

    async def _take(self, name: str, found: _Key | None, holder: str, duration: Duration, until: float) -> int | None:
        """Write the key with a new lease, unless it has changed since it was read."""
        key = self._key(name)
        seen = found.mod_revision if found is not None else 0
        lease = (await self._ask("/v3/lease/grant", {"TTL": _whole_seconds(duration)}, _Lease, until)).ID
        answer = await self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": seen}],
                "success": [{"request_put": {"key": key, "value": holder.encode(), "lease": lease}}],
                "failure": [{"request_range": {"key": key}}],
            },
            _Transaction,
            until,
        )
        if answer.succeeded:
            if found is not None and found.lease:
                await self._forget(found.lease, until)  # No key is bound to it any more.
            return answer.header.revision
        now = answer.responses[0].key()
        if now is not None and now.lease == lease:  # The first request succeeded, but its response was lost.
            return now.mod_revision
        await self._forget(lease, until)
        return None

    async def _extend(self, lease: int, until: float) -> int:
        """Renew a lease; return its remaining seconds, 0 if it is gone.

        One request per lease: for several in one request, etcd may answer only the first few.
        """
        answer = await self._answer("/v3/lease/keepalive", msgspec.json.encode({"ID": lease}), until)
        for result in _results(answer.body.splitlines()):
            return _decode(result, _Lease).TTL
        raise EngineUnavailable("etcd does not report whether a lease is alive")

    async def _revoke(self, lease: int, until: float) -> None:
        answer = await self._send("/v3/lease/revoke", msgspec.json.encode({"ID": lease}), until)
        if answer.status != 404:  # It may have expired.
            _check(answer)

    async def _forget(self, lease: int, until: float) -> None:
        """Revoke an unused lease; it would also expire by itself."""
        with suppress(EngineUnavailable):
            await self._revoke(lease, until)

    async def _follow(self, hear: Callable[[], None]) -> None:
        """Watch for deleted keys until the connection is lost."""
        wanted = {"key": self._key(""), "range_end": _end_of(self._prefix), "filters": ["NOPUT"]}
        if self._user is not None and self._token is None:
            await self._log_in(self._servers.deadline())
        async with self._servers.listen(
            "POST",
            "/v3/watch",
            quiet_s=QUIET_S,
            body=msgspec.json.encode({"create_request": wanted}),
            headers=self._headers(),
        ) as response:
            async for line in _lines(response):
                for result in _results([line]):
                    watched = _decode(result, _Watched)
                    if watched.canceled:
                        self._token = None  # The token may have expired.
                        raise EngineUnavailable(f"etcd ends the watch: {watched.cancel_reason}")
                    if watched.created or watched.events:
                        hear()

    async def _ask(self, path: str, question: object, kind: type[T], until: float) -> T:
        return _decode((await self._answer(path, msgspec.json.encode(question), until)).body, kind)

    async def _answer(self, path: str, body: bytes, until: float) -> EndpointReply:
        return _check(await self._send(path, body, until))

    async def _send(self, path: str, body: bytes, until: float) -> EndpointReply:
        """Send a request as the user of the address; fetch a new token if etcd no longer accepts the old one."""
        if self._user is not None and self._token is None:
            await self._log_in(until)
        token = self._token
        answer = await self._servers.ask("POST", path, until=until, body=body, headers=self._headers())
        if self._user is not None and any(words in _refusal(answer) for words in NOT_LOGGED_IN):
            if self._token == token:  # No concurrent request has fetched a new one.
                await self._log_in(until)
            answer = await self._servers.ask("POST", path, until=until, body=body, headers=self._headers())
        return answer

    async def _log_in(self, until: float) -> None:
        body = msgspec.json.encode({"name": self._user, "password": self._password or ""})
        answer = await self._servers.ask("POST", "/v3/auth/authenticate", until=until, body=body, headers=HAS_LEADER)
        self._token = "" if NO_LOGIN_NEEDED in _refusal(answer) else _decode(_check(answer).body, _Token).token

    def _headers(self) -> dict[str, str]:
        return {**HAS_LEADER, "Authorization": self._token} if self._token else HAS_LEADER

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()


def _trouble(answer: EndpointReply) -> str | None:
    """Return why another server should be tried: no leader, or no quorum in time. A refusal is not such a reason."""
    return _refusal(answer) if answer.status >= 500 else None


def _refusal(answer: EndpointReply) -> str:
    """Return the message of a refusal; empty if it is none."""
    if answer.status == 200:
        return ""
    try:
        return in_one_line(msgspec.json.decode(answer.body, type=_Refusal).message)
    except msgspec.MsgspecError:
        return answer.text


def _check(answer: EndpointReply) -> EndpointReply:
    if answer.status != 200:
        raise EngineUnavailable(f"etcd refuses: {_refusal(answer)}")
    return answer


def _decode(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a response. In etcd's JSON, 64-bit numbers are strings and bytes are base64."""
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise EngineUnavailable(f"the server is not etcd: {in_one_line(str(error))}") from error


def _results(lines: Iterable[bytes]) -> Iterator[msgspec.Raw]:
    for line in filter(None, lines):
        streamed = _decode(line, _Streamed)
        if not bytes(streamed.result):
            raise EngineUnavailable(f"etcd refuses: {in_one_line(str(streamed.error))}")
        yield streamed.result


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Split a stream into lines of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _whole_seconds(duration: Duration) -> int:
    return -(-duration // SECOND)


def _end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
