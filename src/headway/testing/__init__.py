"""Virtual time for your own tests: the engine of production, no server, no sleeping.

with virtual(app, start="2027-03-27T00:00Z", seed=7) as world:
    world.advance(hours=26)
    assert [found.outcome for found in world.occurrences("daily-report")] == ["fired", "fired"]
    world.assert_promises()
"""

from headway.testing.world import Decision, World, virtual

__all__ = ["Decision", "World", "virtual"]
