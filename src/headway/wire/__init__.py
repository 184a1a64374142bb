"""JSON: every resource as HTTP, the command line, webhooks and streams show it."""
