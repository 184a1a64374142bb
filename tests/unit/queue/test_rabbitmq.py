"""Errors of the RabbitMQ client are mapped by kind, so that a lost connection ends no node."""

from types import SimpleNamespace
from typing import Any

import pytest

from headway.adapters.rabbitmq import RabbitTransport
from headway.core.clock import Clock


async def test_interrupted_write_is_a_lost_connection() -> None:
    async def publish(*_: Any, **__: Any) -> None:
        raise Exception

    link: Any = SimpleNamespace(telling=SimpleNamespace(default_exchange=SimpleNamespace(publish=publish)))
    transport = RabbitTransport("amqp://127.0.0.1:1", clock=Clock())
    with pytest.raises(ConnectionError, match="the connection was lost"):
        await transport._publish(link, {"default": ["job_1"]})
