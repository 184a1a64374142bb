"""Authentication: who is admitted, and how long an answer of the store stays valid. Real store, virtual clock."""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headway.core.access import Token
from headway.core.clock import Clock
from headway.core.errors import InvalidConfig, StoreUnavailable
from headway.core.events import AccessRefused, EngineEvent, subscribed
from headway.core.instants import SECOND, Duration, parse_instant
from headway.operations.caller import Principal
from headway.server import auth as gates
from headway.server.auth import ANONYMOUS, Authenticator, is_loopback, require_credential
from headway.server.refusals import Refused
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import SqliteDriver
from headway.store.transaction import Rows, StatementCall

HERE, THERE = "127.0.0.1", "198.51.100.7"
SECRET = "0123456789-environment"


class World:
    """A store, and a clock that the test advances; counts the queries."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.asked: list[str] = []
        self.is_gone = False
        self.clock = Clock(monotonic=lambda: self.passed_s, wall=self.now)
        self.driver = SqliteDriver(":memory:", synchronous="normal", now=self.now)
        self.store = Store.on(self.driver, self.clock)
        fetch = self.driver.fetch

        async def counted(statement: StatementCall) -> Rows:
            self.asked.append(statement.statement)
            if self.is_gone:
                raise StoreUnavailable
            return await fetch(statement)

        self.driver.fetch = counted  # type: ignore[method-assign]

    def now(self) -> int:
        return START + round(self.passed_s * SECOND)

    def gate(self, *, is_loopback: bool = True, token: str | None = None) -> Authenticator:
        return Authenticator(self.store.tokens, self.store.sessions, self.clock, is_loopback=is_loopback, token=token)

    async def token(
        self, name: str = "ci", tenant: str = "acme", role: str = "viewer", lifetime: Duration | None = None
    ) -> tuple[Token, str]:
        token, value = await self.store.tokens.create(
            name=name, tenant=tenant, role=role, lifetime=lifetime, actor="test", origin=""
        )
        return token, f"Bearer {value}"

    async def revoke(self, token: Token) -> None:
        await self.store.tokens.revoke(token.id, actor="test", origin="")


START = parse_instant("2027-06-16T09:00:00Z")


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    world = World()
    try:
        await migrate(world.driver)
        yield world
    finally:
        await world.store.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as world:
        yield world


async def refusal(gate: Authenticator, authorization: str | None, client: str = HERE) -> Refused:
    with pytest.raises(Refused) as refused:
        await gate.admit(authorization, client)
    return refused.value


# Admission


async def test_token_determines_name_tenant_and_role(world: World) -> None:
    token, header = await world.token("ada", "acme", "operator")
    found = await world.gate().admit(header, THERE)
    assert found == Principal("ada", "acme", "operator", token.id)


async def test_scheme_is_case_insensitive(world: World) -> None:
    _, header = await world.token()
    value = header.partition(" ")[2]
    for written in (f"bearer {value}", f"BEARER {value}", f"Bearer   {value} "):
        assert (await world.gate().admit(written, HERE)).name == "ci"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YWRhOng=",
        "hw_x",
        "Bearer hw_",
        "Bearer hw_" + "x" * 43,
        "Bearer é",
        "Bearer *",
        "Bearer " + "x" * 100_000,
        "Bearer hw_\udce9",
        "Bearer HEADWAY_TOKEN",
        "Bearer None",
        "Bearer \x00",
    ],
    ids=lambda text: ascii(text[:16]),
)
async def test_malformed_credentials_are_rejected(world: World, authorization: str) -> None:
    await world.token()
    for gate in (world.gate(), world.gate(token=SECRET), world.gate(is_loopback=False)):
        refused = await refusal(gate, authorization)
        assert (refused.status, refused.code) == (401, "unauthorized")
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")


async def test_almost_correct_token_is_rejected(world: World) -> None:
    _, header = await world.token()
    for wrong in (header + "x", header[:-1], header.swapcase(), header.replace("hw_", ""), header + " x"):
        assert (await refusal(world.gate(), wrong)).status == 401


async def test_environment_token_has_full_access(world: World) -> None:
    gate = world.gate(is_loopback=False, token=SECRET)
    found = await gate.admit(f"Bearer {SECRET}", THERE)
    assert (found.tenant, found.role) == ("*", "admin")
    assert (await refusal(gate, f"Bearer {SECRET[:-1]}")).status == 401
    assert (await refusal(gate, None)).status == 401
    world.is_gone = True  # It does not need the store, so an operator can look even during an outage.
    assert await gate.admit(f"Bearer {SECRET}", THERE) == found
    assert await gate.still_valid(found) is True


async def test_token_set_in_code_equals_an_environment_token(world: World) -> None:
    for weak in ("changeme", "CHANGE-ME-to-32-random-characters"):
        with pytest.raises(InvalidConfig, match="the setting token must be an unguessable secret"):
            world.gate(token=weak)


async def test_stored_token_in_the_environment_keeps_its_role(world: World) -> None:
    token, header = await world.token(role="viewer")
    gate = world.gate(token=header.partition(" ")[2])
    assert (await gate.admit(header, HERE)).role == "viewer"
    await world.revoke(token)
    world.passed_s += 3
    assert (await refusal(gate, header)).status == 401


# Without credentials


async def test_loopback_is_open_until_the_first_token_exists(world: World) -> None:
    gate = world.gate()
    assert await gate.admit(None, HERE) == ANONYMOUS
    assert await gate.still_valid(ANONYMOUS) is True
    token, header = await world.token()
    world.passed_s += 5
    assert (await refusal(gate, None)).status == 401
    assert await gate.still_valid(ANONYMOUS) is False  # Streams that were opened before also end.
    assert (await gate.admit(header, HERE)).name == "ci"
    await world.revoke(token)
    world.passed_s += 5
    assert (await refusal(gate, None)).status == 401  # Once closed, it stays closed.


async def test_remote_clients_need_a_token(world: World) -> None:
    assert (await refusal(world.gate(is_loopback=False), None)).status == 401
    assert (await refusal(world.gate(token=SECRET), None)).status == 401
    assert (await refusal(world.gate(), None, THERE)).status == 401  # A local proxy forwarded a remote client.
    assert await world.gate().admit(None, "::1") == ANONYMOUS
    assert world.asked.count("any_token") == 1  # The others were rejected without a query.


async def test_store_outage_admits_nobody(world: World) -> None:
    _, header = await world.token()
    gate = world.gate()
    await gate.admit(header, HERE)
    world.is_gone = True
    for authorization in (header, None, "Bearer hw_other"):
        world.passed_s += 3
        with pytest.raises(StoreUnavailable):
            await gate.admit(authorization, HERE)
    world.is_gone = False
    assert (await gate.admit(header, HERE)).name == "ci"


# Caching


async def test_revoked_token_is_rejected_within_five_seconds_also_on_streams(world: World) -> None:
    token, header = await world.token()
    gate = world.gate()
    principal = await gate.admit(header, HERE)
    assert await gate.still_valid(principal) is True
    await world.revoke(token)
    world.passed_s += 5 - gates.CHECK_EVERY_S  # A check every two seconds notices it within five.
    assert await gate.still_valid(principal) is False
    refused = await refusal(gate, header)
    assert (refused.status, str(refused)) == (401, "the token was revoked")


async def test_expired_token_is_rejected_at_once_even_if_cached(world: World) -> None:
    _, header = await world.token(lifetime=10 * SECOND)
    gate = world.gate()
    world.passed_s = 9.9
    principal = await gate.admit(header, HERE)
    assert await gate.still_valid(principal) is True
    world.passed_s = 10.1
    assert await gate.still_valid(principal) is False
    refused = await refusal(gate, header)
    assert (refused.status, str(refused)) == (401, "the token has expired")


async def test_busy_client_costs_one_query_in_two_seconds(world: World) -> None:
    _, header = await world.token()
    gate = world.gate()
    for _ in range(20):
        await asyncio.gather(*(gate.admit(header, HERE) for _ in range(50)))
        world.passed_s += 0.5
    assert world.asked.count("token_by_hash") == 5
    principal = await gate.admit(header, HERE)
    await asyncio.gather(*(gate.still_valid(principal) for _ in range(500)))
    assert world.asked.count("token_by_id") == 1


async def test_stream_survives_a_store_outage_up_to_its_limit(world: World) -> None:
    _, header = await world.token(lifetime=60 * SECOND)
    gate = world.gate()
    principal = await gate.admit(header, HERE)
    assert await gate.still_valid(principal) is True
    world.is_gone = True
    world.passed_s += 30
    assert await gate.still_valid(principal) is True
    world.passed_s += 31
    assert await gate.still_valid(principal) is False


async def test_cancelled_request_does_not_fail_the_shared_lookup(world: World) -> None:
    _, header = await world.token()
    gate = world.gate()
    first = asyncio.create_task(gate.admit(header, HERE))
    second = asyncio.create_task(gate.admit(header, HERE))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "ci"


# Rate limit of wrong tokens


async def fail(gate: Authenticator, times: int, client: str = THERE) -> None:
    for number in range(times):
        assert (await refusal(gate, f"Bearer hw_wrong-{number}", client)).status == 401


async def test_address_is_rate_limited_after_ten_wrong_tokens(world: World) -> None:
    gate = world.gate()
    await fail(gate, 10)
    refused = await refusal(gate, "Bearer hw_wrong", THERE)
    assert (refused.status, refused.headers) == (429, {"Retry-After": "60"})
    await fail(gate, 1, "198.51.100.8")  # Other addresses are not limited.
    world.passed_s += 45.5
    assert (await refusal(gate, "Bearer hw_wrong", THERE)).headers == {"Retry-After": "15"}
    world.passed_s += 15
    await fail(gate, 10)
    assert (await refusal(gate, "Bearer hw_wrong", THERE)).status == 429


async def test_flood_of_wrong_tokens_does_not_reach_the_store(world: World) -> None:
    gate = world.gate()
    await fail(gate, 10)
    world.asked.clear()
    for number in range(1_000):
        assert (await refusal(gate, f"Bearer hw_flood-{number}", THERE)).status == 429
        assert (await refusal(gate, f"Bearer flood-{number}", THERE)).status == 429
    assert world.asked == ["token_by_hash"] * gates.LOOKS_A_SECOND
    world.passed_s += 1
    _, header = await world.token()
    assert (await gate.admit(header, THERE)).name == "ci"


async def test_rate_limit_recovers_after_a_minute(world: World) -> None:
    gate = world.gate()
    for _ in range(5):
        await fail(gate, 9)
        world.passed_s += 61


async def test_revoked_token_always_gets_401_not_429(world: World) -> None:
    token, header = await world.token()
    await world.revoke(token)
    gate = world.gate(token=SECRET)
    told: list[EngineEvent] = []
    with subscribed(told.append):
        for _ in range(100):
            refused = await refusal(gate, header, THERE)
            assert (refused.status, str(refused)) == (401, "the token was revoked")
    assert len(told) == 10  # The log stays readable.
    assert token.id in str(told[0])
    assert (await gate.admit(f"Bearer {SECRET}", THERE)).role == "admin"  # Others at this address are not limited.


async def test_valid_tokens_are_not_limited_by_others_at_their_address(world: World) -> None:
    _, known = await world.token()
    token, revoked = await world.token("old")
    _, new = await world.token("new")
    gate = world.gate()
    await gate.admit(known, THERE)
    await gate.admit(revoked, THERE)
    await fail(gate, 10)
    world.passed_s += 3  # The cache is stale: it is queried again.
    assert (await gate.admit(new, THERE)).name == "new"
    for number in range(gates.LOOKS_A_SECOND):
        await refusal(gate, f"Bearer hw_flood-{number}", THERE)
    assert (await gate.admit(known, THERE)).name == "ci"
    await world.revoke(token)
    world.passed_s += 3
    assert (await refusal(gate, revoked, THERE)).status == 401


@pytest.mark.parametrize("secret", [SECRET, f"hw_{SECRET}"])
async def test_valid_token_is_admitted_from_a_rate_limited_address(world: World, secret: str) -> None:
    gate = world.gate(token=secret)
    _, header = await world.token()
    await fail(gate, 10)
    for number in range(50):
        assert (await refusal(gate, f"Bearer hw_flood-{number}", THERE)).status == 429
        assert (await refusal(gate, f"Bearer flood-{number}", THERE)).status == 429
    assert (await gate.admit(f"Bearer {secret}", THERE)).role == "admin"
    assert (await gate.admit(header, THERE)).name == "ci"
    assert (await refusal(gate, f"Bearer {secret}x", THERE)).status == 429  # The limit still applies.


async def test_requests_without_a_token_are_not_rate_limited(world: World) -> None:
    gate = world.gate(is_loopback=False)
    assert [(await refusal(gate, None, THERE)).status for _ in range(30)] == [401] * 30


async def test_ipv6_network_counts_as_one_client(world: World) -> None:
    gate = world.gate()
    for number in range(10):
        await fail(gate, 1, f"2001:db8:0:7::{number:x}")
    assert (await refusal(gate, "Bearer hw_wrong", "2001:db8:0:7:ffff::1")).status == 429
    await fail(gate, 1, "2001:db8:0:8::1")
    await fail(gate, 10, "::ffff:198.51.100.9")
    assert (await refusal(gate, "Bearer hw_wrong", "198.51.100.9")).status == 429


async def test_caches_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CLIENTS_MAX", 100)
    monkeypatch.setattr(gates, "TOKENS_MAX", 3)
    gate = world.gate()
    first = ipaddress.IPv4Address("10.0.0.0")
    for number in range(300):
        await fail(gate, 1, str(first + number))
    assert len(gate._failures._clients) == 100
    assert len(gate._by_hash._found) == 0
    headers = [(await world.token(f"t{number}"))[1] for number in range(5)]
    for header in headers * 2:
        await gate.admit(header, HERE)
    assert len(gate._by_hash._found) == 3
    assert not gate._by_hash._loading


async def test_failures_are_logged_without_the_token(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gate = world.gate()
    told: list[EngineEvent] = []
    with subscribed(told.append), caplog.at_level(logging.DEBUG):
        for number in range(15):
            await refusal(gate, f"Bearer hw_do-not-tell-{number}", THERE)
        await refusal(gate, "Basic do-not-tell", "198.51.100.8")
    assert len(told) == 11  # Rate-limited requests are not reported one by one.
    assert [event.is_limited for event in told if isinstance(event, AccessRefused)] == [False] * 9 + [True, False]
    assert {event.client for event in told if isinstance(event, AccessRefused)} == {THERE, "198.51.100.8"}
    assert "do-not-tell" not in f"{told}{caplog.text}"


# Addresses to listen on


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "2001:db8::1", "no such host", "10.0.0.1"])
def test_addresses_that_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


async def test_listening_to_other_machines_requires_a_token(world: World) -> None:
    await require_credential(world.store.tokens, host="127.0.0.1", token=None)
    await require_credential(world.store.tokens, host="0.0.0.0", token=SECRET)
    with pytest.raises(InvalidConfig, match=r"0\.0\.0\.0.*no token yet.*headway tokens create.*HEADWAY_TOKEN"):
        await require_credential(world.store.tokens, host="0.0.0.0", token=None)
    token, _ = await world.token()
    await require_credential(world.store.tokens, host="0.0.0.0", token=None)
    await world.revoke(token)
    with pytest.raises(InvalidConfig, match="every token has expired or was revoked"):
        await require_credential(world.store.tokens, host="::", token=None)
