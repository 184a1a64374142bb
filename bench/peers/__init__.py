"""Peers: other job queues, measured in the same run as Headway, on the same servers, with the same job.

    bench/peers/setup                       create their separate environments in .peers/ or $HEADWAY_PEERS
    python -m bench drain latency --peers top

`catalogue` lists the peers, `stage` gives each a fresh store and measures its processes, and each `with_*` program uses
one library as its documentation recommends. `with_headway` is one more such program, under the same rules.
"""
