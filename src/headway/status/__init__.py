"""SHOW: the HTTP API, live streams, webhooks and metrics. What they tell comes from the store and from nowhere else."""
