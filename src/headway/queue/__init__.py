"""QUEUE: housekeeping of jobs; promote what is due, clean up after the dead and the past."""
