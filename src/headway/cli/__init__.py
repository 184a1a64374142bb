"""The command line. The script `headway` calls `main`; everything else is imported when it is needed."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command of this process and exit with its code."""
    import sys

    from headway.cli.root import run

    sys.exit(run(sys.argv[1:]))
