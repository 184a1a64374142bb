"""HTTP: routes, authentication, streams, webhooks, metrics and the dashboard."""
