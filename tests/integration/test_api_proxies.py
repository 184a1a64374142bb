"""Behind a reverse proxy: client addresses, rate limits, and no anonymous admin through a proxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from headway import Headway
from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.wiring.api import new_api

SECRET = "4f9ac2d07b16e8354f9a-proxied"
PROXY = "10.0.0.1"


@asynccontextmanager
async def api_behind(folder: Path, settings: Settings, peer: str) -> AsyncIterator[httpx.AsyncClient]:
    settings = replace(settings, store=f"sqlite:///{folder}/headway.db")
    api = new_api(Headway(settings=settings).store, settings, Clock())
    transport = httpx.ASGITransport(app=api, client=(peer, 4711))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        await api.close()


async def codes(client: httpx.AsyncClient, token: str, address: str, times: int = 1) -> list[int]:
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
    return [(await client.get("/api/me", headers=headers)).status_code for _ in range(times)]


async def test_trusted_proxy_passes_on_client_addresses(tmp_path: Path) -> None:
    settings = Settings(token=SECRET, trusted_proxies=("10.0.0.0/8",))
    async with api_behind(tmp_path, settings, PROXY) as client:
        assert await codes(client, "hw_wrong", "198.51.100.7", 12) == [401] * 10 + [429] * 2
        assert await codes(client, "hw_wrong", "198.51.100.8") == [401]  # Other clients are not rate-limited.
        assert await codes(client, "hw_wrong", "203.0.113.9, 198.51.100.7") == [429]  # A forged address does not help.
        assert await codes(client, SECRET, "198.51.100.7") == [200]
        signed_in = await client.post(
            "/api/session", json={"token": SECRET}, headers={"X-Forwarded-For": "198.51.100.9"}
        )
        assert signed_in.status_code == 201
        audit = await client.get("/api/trail", headers={"Authorization": f"Bearer {SECRET}"})
        assert "198.51.100.9" in {item["origin"] for item in audit.json()["items"]}


async def test_forwarded_header_of_an_untrusted_peer_is_ignored(tmp_path: Path) -> None:
    async with api_behind(tmp_path, Settings(token=SECRET), PROXY) as client:
        answers = [await codes(client, "hw_wrong", f"198.51.100.{number}") for number in range(11)]
        assert answers == [[401]] * 10 + [[429]]
        assert await codes(client, SECRET, "198.51.100.7") == [200]  # All share the address of the proxy.


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
async def test_proxied_requests_are_never_anonymous_admins(tmp_path: Path, trusted: tuple[str, ...]) -> None:
    async with api_behind(tmp_path, Settings(trusted_proxies=trusted), "127.0.0.1") as client:
        assert (await client.get("/api/me")).json()["role"] == "admin"
        for name, value in (
            ("X-Forwarded-For", "127.0.0.1"),
            ("X-Forwarded-For", "198.51.100.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "localhost"),
            ("X-Real-IP", "127.0.0.1"),
            ("Forwarded", "for=127.0.0.1"),
            ("Via", "1.1 proxy"),
        ):
            for method, path in (("GET", "/api/jobs"), ("POST", "/api/jobs"), ("GET", "/metrics")):
                answer = await client.request(method, path, headers={name: value}, json={"type": "x"})
                assert answer.status_code in (401, 403), (name, path)
        passed_on = await client.get("/api/me", headers={"X-Forwarded-Proto": "https"})
        assert "headway tokens create" in passed_on.json()["error"]["hint"]
        assert (await client.get("/livez", headers={"X-Forwarded-For": "198.51.100.7"})).status_code == 200
