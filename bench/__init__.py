"""Benchmarks: what Headway does, against what the bare database does for the same writes in the same run.

    python -m bench                      all of them, on both databases (some fifteen minutes)
    python -m bench decide enqueue       some of them
    python -m bench --quick              seconds, to see that they work; the figures mean little
    python -m bench drain latency --peers top        beside other people's queues, after bench/peers/setup

Absolute figures belong to a machine. A ratio belongs to the code: both sides are measured in turn, several times, and
the median of the ratios counts. PostgreSQL runs with its default durability, SQLite with `synchronous=full`, both
on a disk; a file system in memory would flatter both.
"""
