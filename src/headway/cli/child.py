"""The entry of a child process of a worker: `python -m headway.cli.child APP SOCKET COUNTERS KIND WIDTH`.

Not a command for people. It imports the app, reports to the supervisor what is in it, and runs the jobs that arrive.
"""

import sys

from headway.app import Headway, file_app
from headway.cli.app_path import load_app
from headway.core.errors import InvalidConfig
from headway.wiring.child_process import run_child


def main(app_path: str, socket_number: str, counters_number: str, kind: str, width: str) -> None:
    """Run jobs until the supervisor ends this process."""

    def load() -> Headway:
        app = load_app(app_path) if app_path else file_app()
        if app is None:
            raise InvalidConfig("headway.toml defines no tasks any more")
        return app

    run_child(load, int(socket_number), int(counters_number), kind, int(width))


if __name__ == "__main__":
    main(*sys.argv[1:])
