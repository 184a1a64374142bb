"""Put the loops, the store and the adapters together into processes."""
