"""Housekeeping of jobs: promote due jobs, rescue jobs of dead workers, prune history, announce ready jobs."""
