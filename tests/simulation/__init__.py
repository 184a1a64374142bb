"""The deterministic simulation: the real engine, many nodes, one virtual clock, one seed, and checkers.

virtual_loop   coroutines on the loop of headway.testing, whose time jumps to the next timer
scenario       what a seed determines: settings, schedules, the rate of faults
faults         a driver between a node and the store that delays, fails, freezes and crashes
recorder       every change of a row as the database itself reports it, one list per commit
checkers       the promises, checked after every commit and at the end
child_pool     simulated jobs for real supervisors
actors         nodes, workers and an operator
simulation     assembles one run
__main__       a campaign of many seeds, or the replay of one
"""
