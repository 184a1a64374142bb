"""Quotas of one tenant, in virtual time."""

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from headway.core.settings import Settings
from headway.operations.caller import Principal
from headway.operations.tenant_counts import TenantCounts
from headway.server import quotas as quota_module
from headway.server.quotas import TenantQuotas
from headway.server.refusals import Refused
from tests.simulation.stage import Stage
from tests.simulation.virtual_loop import virtual

SETTINGS = replace(Settings(), tenant_requests=10, tenant_streams=2, tenant_jobs=5, tenant_schedules=1)
ACME = Principal("ci", "acme", "operator")
GLOBEX = Principal("ci", "globex", "operator")
ADMIN = Principal("root", "*", "admin")


def _asked(quotas: TenantQuotas, principal: Principal, times: int) -> int:
    answered = 0
    for _ in range(times):
        with suppress(Refused):
            quotas.request(principal)
            answered += 1
    return answered


@virtual
async def test_request_quota_refills_and_is_per_tenant() -> None:
    async with Stage() as stage:
        seat = stage.seat("node_a")
        quotas = TenantQuotas(TenantCounts(seat.store), SETTINGS, seat.clock)
        assert _asked(quotas, ACME, 30) == 10
        with pytest.raises(Refused, match="10 requests a second") as refused:
            quotas.request(ACME)
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
        assert _asked(quotas, GLOBEX, 3) == 3
        assert _asked(quotas, ADMIN, 100) == 100
        await asyncio.sleep(0.5)
        assert _asked(quotas, ACME, 30) == 5
        await asyncio.sleep(60)
        assert _asked(quotas, ACME, 30) == 10  # Unused time is not saved up beyond the burst.
        free = TenantQuotas(TenantCounts(seat.store), replace(SETTINGS, tenant_requests=0), seat.clock)
        assert _asked(free, ACME, 1_000) == 1_000


@virtual
async def test_refused_requests_cost_nothing() -> None:
    """A tenant that always sends too much gets what it may send, not less."""
    async with Stage() as stage:
        seat = stage.seat("node_a")
        quotas = TenantQuotas(TenantCounts(seat.store), SETTINGS, seat.clock)
        assert _asked(quotas, ACME, 30) == 10
        answered = 0
        for _ in range(50):
            await asyncio.sleep(0.04)
            answered += _asked(quotas, ACME, 1)
        assert 19 <= answered <= 20


@virtual
async def test_open_streams_are_counted() -> None:
    async with Stage() as stage:
        seat = stage.seat("node_a")
        quotas = TenantQuotas(TenantCounts(seat.store), SETTINGS, seat.clock)
        with quotas.stream(ACME), quotas.stream(ACME), quotas.stream(GLOBEX):
            with pytest.raises(Refused, match="2 open streams"), quotas.stream(ACME):
                pass
            with quotas.stream(ADMIN), quotas.stream(ADMIN), quotas.stream(ADMIN):
                pass
        with quotas.stream(ACME):
            pass


@virtual
async def test_tenant_with_most_streams_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_module, "FOLLOWERS_MAX", 100)
    monkeypatch.setattr(quota_module, "STREAMS_RESERVED", 10)
    monkeypatch.setattr(quota_module, "STREAMS_FEW", 4)
    free = replace(SETTINGS, tenant_streams=0)
    viewer = Principal("board", "*", "viewer", "tok_1")
    neighbour = Principal("other board", "*", "viewer", "tok_2")
    async with Stage() as stage:
        seat = stage.seat("node_a")
        quotas = TenantQuotas(TenantCounts(seat.store), free, seat.clock)
        with ExitStack() as open_streams:

            def opened(principal: Principal, times: int) -> int:
                places = 0
                for _ in range(times):
                    with suppress(Refused):
                        open_streams.enter_context(quotas.stream(principal))
                        places += 1
                return places

            assert opened(viewer, 200) == 90
            with pytest.raises(Refused) as refused, quotas.stream(viewer):
                pass
            assert (refused.value.status, refused.value.code) == (503, "too_many_followers")
            assert [opened(other, 5) for other in (ACME, neighbour, GLOBEX)] == [4, 4, 2]  # Now all places are taken.
        with quotas.stream(viewer), quotas.stream(ACME):
            pass
        assert quotas._streams == {}


@virtual
async def test_large_bodies_in_flight_are_bounded_per_tenant_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_module, "BODIES_BYTES_MAX", 1_000)
    monkeypatch.setattr(quota_module, "BODIES_BYTES_OF_ONE_MAX", 400)
    viewers = [Principal("board", "*", "viewer", f"tok_{number}") for number in range(3)]
    async with Stage() as stage:
        seat = stage.seat("node_a")
        quotas = TenantQuotas(TenantCounts(seat.store), SETTINGS, seat.clock)
        with quotas.body(ACME, 300), quotas.body(ACME, 100), quotas.body(GLOBEX, 400):
            with pytest.raises(Refused, match="at once") as refused, quotas.body(ACME, 1):
                pass
            assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
            with quotas.body(viewers[0], 200), pytest.raises(Refused) as refused, quotas.body(viewers[1], 1):
                pass
            assert (refused.value.status, refused.value.code) == (503, "busy")
        with quotas.body(ACME, 400):
            pass
        assert quotas._bodies == {}
