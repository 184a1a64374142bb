"""Override constants of Headway in processes that a test starts.

Constants such as the timeout of a command for Redis are not settings: users need not know them. On a slow machine they
would decide the outcome of a test. `tuned` writes a `sitecustomize.py`, which Python runs at the start of every process
that has its folder in PYTHONPATH. It changes a module when that is imported, and imports nothing by itself.
"""

from collections.abc import Mapping
from pathlib import Path

HOOK = """\
import importlib.machinery
import sys

VALUES = {values!r}


class Tuner:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in VALUES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for constant, value in VALUES[name].items():
                assert hasattr(module, constant), f"{{name}} has no {{constant}}"
                setattr(module, constant, value)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Tuner)
"""


def tuned(folder: Path, values: Mapping[str, float]) -> str:
    """Make processes with this folder in PYTHONPATH use these values; they are named `module.CONSTANT`."""
    modules: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        modules.setdefault(module, {})[constant] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HOOK.format(values=modules))
    return str(folder)
