"""Coordination: leases on roles, leader election, heartbeats, and locks for users."""
