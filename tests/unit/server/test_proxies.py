"""Trusted proxies: the client's address, and detection of forwarded requests."""

import pytest

from headway.core.errors import InvalidConfig
from headway.core.settings import Settings
from headway.server.proxies import TrustedProxies, is_forwarded

PROXY, OUTER, CLIENT = "10.0.0.1", "192.0.2.1", "198.51.100.7"
TRUSTED = TrustedProxies(("10.0.0.0/8", "192.0.2.1", "2001:db8::/32"))


def client_of(said: str | None, peer: str = PROXY, trusted: TrustedProxies = TRUSTED) -> str:
    headers = [(b"host", b"web.example")]
    return trusted.client_of(peer, headers if said is None else [*headers, (b"x-forwarded-for", said.encode())])


@pytest.mark.parametrize(
    ("said", "client"),
    [
        (CLIENT, CLIENT),
        (f"{CLIENT}, {OUTER}", CLIENT),
        (f"203.0.113.9, {CLIENT}, {OUTER}", CLIENT),  # Values sent by the client itself are further left.
        (f"127.0.0.1, {CLIENT}", CLIENT),
        (f"{CLIENT}:4711", CLIENT),
        ("[2001:db9::7]:4711", "2001:db9::7"),
        ("2001:db9::7", "2001:db9::7"),
        (f"::ffff:{CLIENT}", CLIENT),
        (f"{OUTER}, 10.1.1.1", OUTER),  # Only proxies: the outermost counts.
        ("unknown", PROXY),
        (f"{CLIENT}, nonsense", PROXY),
        (f"{CLIENT}, nonsense, {OUTER}", OUTER),
        ("", PROXY),
        (None, PROXY),
        (",".join([CLIENT] + [OUTER] * 10_000), OUTER),  # Too many hops: not evaluated.
    ],
)
def test_client_is_the_rightmost_address_that_is_not_a_trusted_proxy(said: str | None, client: str) -> None:
    assert client_of(said) == client


def test_header_counts_only_from_trusted_proxies() -> None:
    assert client_of(CLIENT, peer="203.0.113.5") == "203.0.113.5"
    assert client_of(CLIENT, peer="127.0.0.1") == "127.0.0.1"
    assert client_of(CLIENT, peer="") == ""
    assert client_of(CLIENT, peer="2001:db8::5") == CLIENT
    assert client_of(CLIENT, peer="::ffff:10.0.0.1") == CLIENT
    assert client_of(CLIENT, trusted=TrustedProxies(())) == PROXY


def test_repeated_headers_are_joined() -> None:
    headers = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", CLIENT.encode())]
    assert TRUSTED.client_of(PROXY, headers) == CLIENT


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-forwarded-proto", "forwarded", "x-real-ip", "via"])
def test_forwarded_request_is_detected(name: str) -> None:
    assert is_forwarded({b"host": b"localhost", name.encode(): b"x"})
    assert not is_forwarded({b"host": b"localhost", b"accept": b"*/*", b"x-request-id": b"x"})


@pytest.mark.parametrize("value", ["proxy.internal", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.1;10.0.0.2"])
def test_trusted_proxies_must_be_addresses_or_networks(value: str) -> None:
    with pytest.raises(InvalidConfig, match="HEADWAY_TRUSTED_PROXIES must be addresses or networks"):
        Settings.load(environ={"HEADWAY_TRUSTED_PROXIES": value})
