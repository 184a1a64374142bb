"""The deterministic simulation: the real engine, many nodes, one virtual clock, one seed, and checkers that watch.

virtual_loop   coroutines on the loop of headway.testing, whose time jumps to the next timer
scenario       what a seed makes of the world: settings, schedules, how much goes wrong
faults         a driver between a node and the store that delays, fails, freezes and crashes
recorder       every change of a row as the database itself reports it, one list per commit
checkers       the promises, looked at after every commit and at the end
child_pool     made-up jobs for real supervisors
actors         nodes, workers and an operator
simulation     puts one run together
__main__       a campaign of many seeds, or the replay of one
"""
