"""Warnings about unencrypted connections and an API without tokens; local traffic needs none."""

import pytest

from headway.cli.doctor_network import open_api, plain_servers, plain_store
from headway.core.settings import Settings


@pytest.mark.parametrize(
    ("url", "is_encrypted", "is_safe", "words"),
    [
        ("postgresql://u:p@127.0.0.1:5432/app", False, True, "on this machine"),
        ("postgresql://u@localhost,[::1]:5433/app", False, True, "on this machine"),
        ("postgresql://u@/app?host=/var/run/postgresql", False, True, "on this machine"),
        ("postgresql://u@%2Fvar%2Frun/app", False, True, "on this machine"),
        ("postgresql://u:p@db-1/app", False, False, "sslmode=verify-full"),
        ("postgresql://u:p@127.0.0.1,db-2/app", False, False, "is not encrypted"),
        ("postgresql://u:p@db-1/app", True, False, "with sslmode=prefer the server is not verified"),
        ("postgresql://u:p@db-1/app?sslmode=require", True, False, "with sslmode=require"),
        ("postgresql://u:p@db-1/app?sslmode=verify-full", True, True, "the certificate is checked"),
    ],
)
def test_connection_to_the_store(url: str, is_encrypted: bool, is_safe: bool, words: str) -> None:
    found, said = plain_store(url, is_encrypted)
    assert (found, words in said) == (is_safe, True), said
    assert "u:p" not in said


def test_connections_to_other_servers() -> None:
    far = Settings(
        coordination="etcd://u:secret@etcd-1:2379,etcd-2", redis="redis://10.0.0.7/0", transport="amqp://rabbit/"
    )
    coordination, redis, transport = plain_servers(far)
    assert "HEADWAY_COORDINATION etcd://***@etcd-1:2379,etcd-2 is not encrypted" in coordination
    assert (redis.split("use ")[1], transport.split("use ")[1]) == ("rediss://", "amqps://")
    near = Settings(coordination="zookeeper://127.0.0.1", redis="redis://localhost:6379/0", transport="store")
    safe = Settings(coordination="consuls://consul", redis="rediss://redis", transport="amqps://rabbit")
    assert [*plain_servers(near), *plain_servers(safe), *plain_servers(Settings())] == []


@pytest.mark.parametrize(
    ("settings", "has_token", "is_shut", "words"),
    [
        (Settings(), False, False, "anyone who can reach 127.0.0.1:8480 has full access"),
        (Settings(), True, True, "requires a token"),
        (Settings(token="hw_secret"), False, True, "requires a token"),
        (Settings(host="0.0.0.0"), True, False, "plain HTTP"),
        (Settings(host="0.0.0.0", trusted_proxies=("10.0.0.1",)), True, True, "requires a token"),
    ],
)
def test_api_without_tokens(settings: Settings, has_token: bool, is_shut: bool, words: str) -> None:
    found, said = open_api(settings, has_token=has_token)
    assert (found, words in said) == (is_shut, True), said
    assert "hw_secret" not in said
