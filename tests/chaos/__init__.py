"""Real processes under real faults: killed, frozen, disconnected. The checks read the database from outside."""
