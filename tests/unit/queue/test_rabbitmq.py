"""What the client of RabbitMQ raises is told by its kind, so that a lost connection ends no node."""

from types import SimpleNamespace
from typing import Any

import pytest

from headway.adapters.rabbitmq import RabbitTransport
from headway.core.clock import Clock


async def test_a_write_that_is_cut_off_is_a_lost_connection() -> None:
    async def publish(*_: Any, **__: Any) -> None:
        raise Exception

    link: Any = SimpleNamespace(telling=SimpleNamespace(default_exchange=SimpleNamespace(publish=publish)))
    transport = RabbitTransport("amqp://127.0.0.1:1", clock=Clock())
    with pytest.raises(ConnectionError, match="lost during a write"):
        await transport._publish(link, {"default": ["job_1"]})
