"""Adapters for external systems, one file or folder each: coordination engines, transports and live progress."""
