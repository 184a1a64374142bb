"""Benchmarks: Headway against the bare database, for the same writes in the same run.

    python -m bench                      all of them, on both databases (some fifteen minutes)
    python -m bench decide enqueue       some of them
    python -m bench --quick              seconds, to check that they work; the figures mean little
    python -m bench drain latency --peers top        beside other job queues, after bench/peers/setup

Absolute figures depend on the machine, ratios on the code: both sides are measured alternately, several times, and the
median of the ratios counts. PostgreSQL runs with its default durability, SQLite with `synchronous=full`, both
on a disk; a file system in memory would flatter both.
"""
