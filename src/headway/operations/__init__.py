"""ASK, DO: every question and every operator verb once, for HTTP, the command line and the Python API."""
