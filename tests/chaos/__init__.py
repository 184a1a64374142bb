"""Real processes under real faults: killed, frozen, cut off. The checks read the database from outside."""
