"""Operations: each query and each operator action, once, for HTTP, the command line and the Python API."""
