"""JSON: the resources of HTTP, the command line, webhooks and streams as msgspec structs."""
