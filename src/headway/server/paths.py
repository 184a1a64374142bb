"""Match a path to its routes."""

from collections.abc import Iterable, Mapping

from starlette.routing import compile_path
from starlette.types import Scope

from headway.server.web import Route


class Paths:
    """Finds the routes of a path: by lookup if it is fixed, else by trying those with parameters in order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._fixed = {path: methods for path, methods in by_path.items() if "{" not in path}
        with_parameters = [path for path in by_path if "{" in path]
        # A parameter that may contain slashes matches nearly everything, so it comes last.
        with_parameters.sort(key=lambda path: ":path}" in path and path.endswith("}"))
        self._patterns = [(compile_path(path)[0], by_path[path]) for path in with_parameters]

    def find(self, scope: Scope) -> tuple[Mapping[str, Route] | None, dict[str, str]]:
        """Return the routes of a request by method, and the parameters in its path."""
        path = path_of(scope)
        if not path and scope.get("root_path"):
            path = "/"  # People leave out the slash after the prefix of a mounted app.
        routes = self._fixed.get(path)
        if routes is not None:
            return routes, {}
        for pattern, methods in self._patterns:
            if found := pattern.match(path):
                return methods, found.groupdict()
        return None, {}


def path_of(scope: Scope) -> str:
    """Return the path below the mount point."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
