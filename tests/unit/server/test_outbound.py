"""SSRF protection of outbound requests: address rules, DNS rebinding, and real connections to this host."""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.core.clock import Clock
from headway.core.errors import DefinitionError
from headway.core.instants import DAY, HOUR, SECOND
from headway.core.urls import Allowed, NotAllowed, check_url, target_of, vetted
from headway.server.outbound import READ_BYTES_MAX, Sender, SendResult, _socket
from headway.server.webhook_messages import headers_for, sign
from headway.server.webhook_sender import BACKOFF_FIRST, BACKOFF_MOST, PATIENCE, judge
from headway.store.webhooks import new_secret
from tests.support.targets import Endless, Rude, Silent, Target
from tests.support.waiting import DEADLINE_S

REFUSED = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": [
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "fd00:ec2::254",
        "fc00::1",
    ],
    "shared": ["100.64.0.1", "100.127.255.255", "100.100.100.200"],
    "link-local": ["169.254.169.254", "169.254.0.1", "fe80::1", "febf::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.192", "4000::1", "5f00::1", "100::1", "2001:10::1"],
    "documentation": ["192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1", "3fff::1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255"],
    "cloud": ["168.63.129.16"],
    "inside of IPv6": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:10.0.0.1", "::127.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1", "192.88.99.1"],
    "private (site-local)": ["fec0::1"],
}
PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.0.1"]
PUBLIC += ["11.0.0.1", "9.255.255.255", "128.0.0.1", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001::1"]


@pytest.mark.parametrize(("why", "address"), [(why, address) for why, all_ in REFUSED.items() for address in all_])
def test_blocked_addresses(why: str, address: str) -> None:
    found = Allowed().refusal(ipaddress.ip_address(address))
    assert found is not None
    assert why.partition(" (")[0] in found or why in ("shared", "cloud")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert Allowed().refusal(ipaddress.ip_address(address)) is None


def test_allowed_by_settings() -> None:
    allowed = Allowed.read(["10.1.0.0/16", "fd00::/8", "127.0.0.1", "Hooks.internal."])
    for text, is_allowed in {
        "10.1.2.3": True,
        "10.2.0.1": False,
        "fd12::1": True,
        "127.0.0.1": True,
        "127.0.0.2": False,
        "::ffff:10.1.2.3": False,  # Another notation of the same host was not allowed.
        "64:ff9b::a01:203": False,
    }.items():
        assert (allowed.refusal(ipaddress.ip_address(text)) is None) == is_allowed, text
    assert vetted("hooks.internal", ["192.168.0.9"], allowed)
    with pytest.raises(NotAllowed):
        vetted("hooks.internal.evil.example", ["192.168.0.9"], allowed)


def test_one_blocked_address_blocks_the_name() -> None:
    with pytest.raises(NotAllowed, match="private"):
        vetted("mixed.example", ["8.8.8.8", "10.0.0.1"], Allowed())
    with pytest.raises(NotAllowed, match="link-local"):
        vetted("zone.example", ["fe80::1%eth0"], Allowed())
    with pytest.raises(OSError, match="nowhere"):
        vetted("empty.example", [], Allowed())
    assert vetted("good.example", ["8.8.8.8", "8.8.8.8"], Allowed()) == (ipaddress.ip_address("8.8.8.8"),)


# --- URLs


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("https://example.org", "https://example.org/"),
        ("HTTPS://Example.ORG:443/Hook?a=1#part", "https://example.org/Hook?a=1"),
        ("http://example.org.:8080/x", "http://example.org:8080/x"),
        ("http://bücher.example/ü", "http://xn--bcher-kva.example/%C3%BC"),
        ("http://[2606:4700::1111]/", "http://[2606:4700::1111]/"),
        ("http://[::FFFF:127.0.0.1]:80/", "http://[::ffff:7f00:1]/"),
        ("http://2130706433/", "http://2130706433/"),  # It is checked after resolution.
    ],
)
def test_urls_are_normalised(text: str, plain: str) -> None:
    assert check_url(text) == plain
    assert check_url(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "example.org",
            "ftp://example.org/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "gopher://x/",
            "http://",
        ),
        *("https://user:pass@example.org/", "https://user@example.org/", "http://@example.org/"),
        *("http://example.org:0/", "http://example.org:99999/", "http://example.org:x/", "http://exa mple.org/"),
        *("http://example.org\\@127.0.0.1/", "http://example.org/\r\nX: y", "http://ex\x00ample.org/", "http://a..b/"),
        *("http://[fe80::1%25eth0]/", "http://[::1/", "http://-a.example/", "http://example.org/?token=***"),
        "https://example.org/" + "x" * 2_000,
    ],
)
def test_invalid_urls_are_rejected(text: str) -> None:
    with pytest.raises(DefinitionError, match="callback_url"):
        check_url(text, "callback_url")


def test_error_does_not_show_a_password() -> None:
    with pytest.raises(DefinitionError) as refused:
        check_url("https://ada:sesame@example.org/")
    assert "sesame" not in str(refused.value)


def test_targets() -> None:
    assert target_of("https://example.org/a/b?c") == "https://example.org/"
    assert target_of("http://[::1]:8080/a") == "http://[::1]:8080/"


# --- signatures


def test_signature_of_the_example_in_the_specification() -> None:
    """The example from the test suites of Standard Webhooks libraries."""
    signed = sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_secret_signs() -> None:
    secrets = [new_secret(), new_secret()]
    headers = headers_for("msg_1", 1_800_000_000 * SECOND + 999_999, b"{}", secrets)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_1", "1800000000")
    expected = [
        "v1,"
        + base64.b64encode(
            hmac.new(base64.b64decode(secret[6:]), b"msg_1.1800000000.{}", hashlib.sha256).digest()
        ).decode()
        for secret in secrets
    ]
    assert headers["webhook-signature"].split(" ") == expected
    assert all(len(base64.b64decode(secret.removeprefix("whsec_"))) == 32 for secret in secrets)


# --- after an attempt


def test_delays_grow_and_end() -> None:
    age, tries, waits = 0, 0, []
    while True:
        tries += 1
        verdict = judge(SendResult(took_ms=1, code=500), tries=tries, age=age, spread=0.5)
        if verdict.delay is None:
            break
        waits.append(verdict.delay)
        age += verdict.delay
    assert (verdict.status, age) == ("FAILED", PATIENCE)
    assert waits[0] == BACKOFF_FIRST
    assert waits[:-1] == sorted(waits[:-1])
    assert max(waits) <= BACKOFF_MOST * 5 // 4
    assert 12 <= tries <= 20


@pytest.mark.parametrize(
    ("answer", "status", "least", "most"),
    [
        (SendResult(took_ms=1, code=200), "DELIVERED", None, None),
        (SendResult(took_ms=1, code=299), "DELIVERED", None, None),
        (SendResult(took_ms=1, code=301), "WAITING", 3, 7),
        (SendResult(took_ms=1, code=404), "WAITING", 3, 7),
        (SendResult(took_ms=1, error="no answer"), "WAITING", 3, 7),
        (SendResult(took_ms=1, code=429, retry_after_s=600), "WAITING", 600, 600),
        (SendResult(took_ms=1, code=503, retry_after_s=999_999), "WAITING", 10_800, 10_800),
        (SendResult(took_ms=1, code=410), "FAILED", None, None),
        (SendResult(took_ms=1, error="private", is_final=True), "FAILED", None, None),
    ],
)
def test_verdicts(answer: SendResult, status: str, least: int | None, most: int | None) -> None:
    for spread in (0.0, 0.999):
        verdict = judge(answer, tries=1, age=0, spread=spread)
        assert verdict.status == status
        if least is None or most is None:
            assert verdict.delay is None
        else:
            assert verdict.delay is not None
            assert least * SECOND <= verdict.delay <= most * SECOND


def test_last_attempt_is_at_the_end_of_the_retry_window() -> None:
    assert judge(SendResult(took_ms=1, code=500), tries=15, age=DAY - HOUR, spread=0.9).delay == HOUR
    assert judge(SendResult(took_ms=1, code=500), tries=15, age=DAY + HOUR, spread=0.9).status == "FAILED"


# --- real connections


class FakeNames:
    """A DNS resolver that the test controls; counts its lookups."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def sender(names: FakeNames, *allow: str, **options: Any) -> Sender:
    return Sender(Clock(), allow, resolve=names, **{"seconds_max": DEADLINE_S, **options})


async def post(mine: Sender, url: str) -> SendResult:
    try:
        return await mine.post(url, b'{"a":1}', {"Content-Type": "application/json", "webhook-id": "msg_1"})
    finally:
        mine.close()


async def test_connection_uses_the_vetted_address() -> None:
    """DNS rebinding: a name whose second lookup differs is not looked up twice."""
    async with Target().listening() as target:
        names = FakeNames(["127.0.0.1"], ["127.0.0.2"])
        answer = await post(sender(names, "127.0.0.1"), f"http://rebind.example:{target.port}/hook?a=1")
    assert (answer.code, answer.is_good, names.asked) == (204, True, ["rebind.example"])
    head = target.requests[0].decode()
    assert head.startswith("POST /hook?a=1 HTTP/1.1\r\n")
    assert f"Host: rebind.example:{target.port}\r\n" in head
    assert "webhook-id: msg_1\r\n" in head
    assert head.endswith('\r\n\r\n{"a":1}')


async def test_nothing_is_sent_to_a_blocked_address() -> None:
    async with Target().listening() as target:
        for host, found in {
            "plain.example": ["127.0.0.1"],
            "mixed.example": ["8.8.8.8", "127.0.0.1"],
            "mapped.example": ["::ffff:127.0.0.1"],
            "nat64.example": ["64:ff9b::7f00:1"],
            "metadata.example": ["169.254.169.254"],
        }.items():
            answer = await post(sender(FakeNames(found)), f"http://{host}:{target.port}/")
            assert answer.code is None
            assert "nothing is sent" in str(answer.error)
            assert "127.0.0.1" not in str(answer.error)
            assert not answer.is_final  # A name may resolve differently tomorrow.
        assert target.requests == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "169.254.169.254", "0.0.0.0", "[64:ff9b::7f00:1]"]
)
async def test_nothing_is_sent_to_a_blocked_literal_address(host: str) -> None:
    async with Target().listening() as target:
        names = FakeNames(["8.8.8.8"])
        answer = await post(sender(names), f"http://{host}:{target.port}/")
        assert "nothing is sent" in str(answer.error)
        assert (answer.is_final, names.asked, target.requests) == (True, [], [])


def test_sockets_are_opened_only_for_vetted_addresses() -> None:
    """A second line of defence, in case the HTTP library parses a URL differently."""
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
    with pytest.raises(NotAllowed):
        _socket(info, (ipaddress.ip_address("8.8.8.8"),))
    _socket(info, (ipaddress.ip_address("127.0.0.1"),)).close()


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.1", "0177.0.0.1", "localhost"])
async def test_other_notations_of_loopback_are_blocked(host: str) -> None:
    """The system resolver accepts these, and its result is vetted like any other."""
    async with Target().listening() as target:
        answer = await post(Sender(Clock(), seconds_max=DEADLINE_S), check_url(f"http://{host}:{target.port}/"))
        assert answer.code is None
        assert "nothing is sent" in str(answer.error) or "not known" in str(answer.error)
        assert target.requests == []


async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Target().listening() as proxy, Target().listening() as target:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.0/8"), f"http://a.example:{target.port}/")
    assert (answer.code, len(target.requests), proxy.requests) == (204, 1, [])


async def test_redirects_are_not_followed() -> None:
    async with Target().listening() as secret:
        place = f"http://127.0.0.1:{secret.port}/"
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        async with Target(moved).listening() as target:
            answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.1"), f"http://a.example:{target.port}/")
    assert (answer.code, answer.is_good, secret.requests) == (307, False, [])


async def test_only_the_beginning_of_a_huge_response_is_read() -> None:
    async with Endless().listening() as target:
        answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.1"), f"http://a.example:{target.port}/")
    assert answer.code == 200
    assert target.taken < 200 * READ_BYTES_MAX  # The socket buffers of the system count here, too.


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nX: y\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
async def test_hanging_server_times_out(said: bytes) -> None:
    async with Silent(said).listening() as target:
        mine = sender(FakeNames(["127.0.0.1"]), "127.0.0.1", seconds_max=0.2)
        answer = await asyncio.wait_for(post(mine, f"http://a.example:{target.port}/"), DEADLINE_S)
    assert (answer.code, answer.error) == (None, "no answer within 0.2 s")


async def test_hanging_dns_lookup_times_out() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    mine = Sender(Clock(), resolve=never, seconds_max=0.2)
    answer = await asyncio.wait_for(post(mine, "http://a.example/"), DEADLINE_S)
    assert answer.error == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "target",
    [Rude(), Target(b""), Target(b"SSH-2.0-OpenSSH\r\n"), Target(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000)],
)
async def test_malformed_responses(target: Target) -> None:
    async with target.listening():
        answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.1"), f"http://a.example:{target.port}/")
    assert answer.code is None
    assert answer.error
    assert "127.0.0.1" not in answer.error


async def test_connection_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.1"), f"http://a.example:{port}/")
    assert answer.error == "connection refused"


async def test_unknown_host_name() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    answer = await post(Sender(Clock(), resolve=unknown), "http://a.example/")
    assert answer.error == "the host name cannot be resolved"


async def test_retry_after_is_returned() -> None:
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n"
    async with Target(busy).listening() as target:
        answer = await post(sender(FakeNames(["127.0.0.1"]), "127.0.0.1"), f"http://a.example:{target.port}/")
    assert (answer.code, answer.retry_after_s) == (503, 120)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a self-signed certificate for good.example."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=good.example", "-addext", "subjectAltName=DNS:good.example"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    return folder


async def test_certificate_is_checked_against_the_name_not_the_address(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    async with Target().listening(context) as target:
        names = FakeNames(["127.0.0.1"])
        good = await post(sender(names, "127.0.0.1", trust=trust), f"https://good.example:{target.port}/")
        other = await post(sender(names, "127.0.0.1", trust=trust), f"https://other.example:{target.port}/")
        unknown = await post(sender(names, "127.0.0.1"), f"https://good.example:{target.port}/")
    assert (good.code, len(target.requests), asked[0]) == (204, 1, "good.example")
    assert other.error == unknown.error == "the TLS certificate of the host is not trusted"
