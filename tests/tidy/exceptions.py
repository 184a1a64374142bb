"""Known violations of the architecture rules. Entries are only removed, never added."""

# Imports that the architecture does not allow.
EXCEPTIONS: dict[str, set[str]] = {}

# Modules, classes and functions that exceed the size limits.
TOO_LARGE: list[str] = []
