"""WHO: leases on roles, and the heartbeat that tells nodes of one another."""
