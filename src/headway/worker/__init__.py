"""RUN: workers take ready jobs, run them in child processes, keep their leases and settle them."""
