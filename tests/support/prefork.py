"""A Python process that has imported Headway and forks for every command.

Each command is a separate process with its own folder, environment, output and exit code, as if started normally; only
the imports, which take most of the time of a short command, are done once.
"""

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

RUN_S_MAX = 240.0
ROOT = Path(__file__).parents[2]


class Prefork:
    """Runs Headway commands and Python files, one after the other."""

    def __init__(self, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def headway(self, *arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a Headway command to its end."""
        return self._run({"arguments": arguments}, cwd, env)

    def python(self, file: Path, *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a Python file to its end."""
        return self._run({"file": str(file)}, cwd, env)

    def close(self) -> None:
        """Stop the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()

    def _run(self, order: dict[str, Any], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory(prefix="hw-prefork-") as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            order |= {"cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
            self._server.stdin.write(json.dumps(order).encode() + b"\n")
            self._server.stdin.flush()
            answered = select.select([self._server.stdout], [], [], RUN_S_MAX)[0]
            code = self._server.stdout.readline() if answered else b""
            said, complained = (path.read_text() if path.exists() else "" for path in (out, err))
            command = order.get("arguments") or [order["file"]]
            assert code, f"{command} did not end within {RUN_S_MAX:.0f} s:\n{said}\n{complained}"
            return subprocess.CompletedProcess(command, int(code), said, complained)


@contextlib.contextmanager
def preforked(*modules: str) -> Iterator[Prefork]:
    """Start one for a while, with these modules imported as well."""
    server = Prefork(*modules)
    try:
        yield server
    finally:
        server.close()


def _serve(modules: Sequence[str]) -> None:
    from headway.cli import root

    for module in [*(f"headway.cli.{name}" for name, _ in root.COMMANDS.values()), *modules]:
        import_module(module)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _be(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _be(order: dict[str, Any]) -> NoReturn:
    """Become the requested process."""
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["out"], os.O_WRONLY | os.O_CREAT),
        (2, order["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path.insert(0, order["cwd"])
    if "file" in order:
        sys.argv = [order["file"]]
        runpy.run_path(order["file"], run_name="__main__")
        sys.exit(0)
    sys.argv = ["headway", *order["arguments"]]
    from headway.cli import main

    main()


if __name__ == "__main__":
    _serve(sys.argv[1:])
