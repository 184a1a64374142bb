"""WHAT: tasks, their options, the context that they are called with, and their definitions in a file."""
