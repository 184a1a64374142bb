"""WHAT: tasks, their options, the context of a running task, and task definitions in a file."""
