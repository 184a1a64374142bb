"""Peers: other people's queues, measured in the same run as Headway, on the same servers, with the same job.

    bench/peers/setup                       makes their environments (apart from ours) in .peers/ or $HEADWAY_PEERS
    python -m bench drain latency --peers top

`catalogue` says who there is, `stage` gives each a fresh store and watches its processes, and `with_*` is the program
that uses one library as its documentation recommends. `with_headway` is one more such program, under the same rules.
"""
