"""Send test messages to webhooks from a process that delivers no others."""

from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.core.webhooks import Delivery, Endpoint
from headway.store import Store


class OneOffSender:
    """A `WebhookSender` for the command line on a store."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock

    async def test(self, endpoint: Endpoint, url: str) -> Delivery:
        """Send a test message to an endpoint, once, and return the outcome."""
        from headway.server.webhook_sender import Deliverer  # Imported here, since it imports an HTTP client.

        deliverer = Deliverer(self._store.webhooks, self._store.feed, self._settings, self._clock)
        try:
            return await deliverer.test(endpoint, url)
        finally:
            await deliverer.close()

    def wake(self) -> None:
        """Do nothing: the store wakes the processes that deliver."""
