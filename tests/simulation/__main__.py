"""`python -m tests.simulation`: a campaign of many seeds, or the replay of one."""

from tests.simulation.campaign import main

if __name__ == "__main__":
    main()
