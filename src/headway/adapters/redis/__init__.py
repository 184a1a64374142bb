"""Redis as a coordination engine, as a transport and for live progress."""
