#!/usr/bin/env python3
"""Build the dashboard, from dashboard/ into the package: `build_dashboard.py [--if-needed]`.

It uses the installed Node.js and npm. Without them it installs a Python package of Node.js into the environment that
runs this script (scripts/node.lock pins it). `--if-needed` does nothing if the build is newer than its sources, and
only warns if it cannot build: everything but the dashboard works without it.

The build hook of the package, hatch_build.py, uses this too.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "dashboard"
BUILT = ROOT / "src" / "headway" / "server" / "static" / "dashboard"
FILES = ("index.html", "app.js", "plot.js", "app.css", "icon.svg")
NOT_SOURCES = {"node_modules", "build", "test"}
NODE_MIN = 18
NODE_LOCK = ROOT / "scripts" / "node.lock"


class CannotBuild(Exception):
    """The build cannot be made here; the message says why."""


def needs_build() -> bool:
    """Say whether the build is missing or older than what it is made of."""
    try:
        built_at = min((BUILT / name).stat().st_mtime_ns for name in FILES)
    except OSError:
        return True
    return any(path.stat().st_mtime_ns > built_at for path in _sources(SOURCES))


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name not in NOT_SOURCES:
                yield from _sources(path)
        else:
            yield path


def find_node() -> Path | None:
    """Return the folder with Node.js and npm that are new enough: the machine's, or this environment's."""
    for folder in (*map(Path, os.get_exec_path()), Path(sys.executable).parent):
        if (folder / "npm").exists() and (found := shutil.which("node", path=str(folder))) and _is_new_enough(found):
            return folder
    return None


def _is_new_enough(node: str) -> bool:
    try:
        told = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        return int(told.strip().removeprefix("v").partition(".")[0]) >= NODE_MIN
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def install_node() -> Path | None:
    """Put Node.js into this environment, as a package for Python."""
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        print("There is no Node.js here: getting one for the dashboard (60 MB).", file=sys.stderr)
        install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--require-hashes", "-r", NODE_LOCK]
        _run(install, os.environ)
    return find_node()


def build(*, may_install: bool) -> None:
    """Build; what is needed for it is installed by npm, exactly as locked."""
    folder = find_node() or (install_node() if may_install else None)
    if folder is None:
        raise CannotBuild(f"Node.js {NODE_MIN} or newer, with npm, is needed")
    environment = {**os.environ, "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])}
    if _needs_packages():
        _run([folder / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], environment)
    _run([folder / "node", "build.mjs"], environment)


def _needs_packages() -> bool:
    lock, installed = SOURCES / "package-lock.json", SOURCES / "node_modules" / ".package-lock.json"
    return not installed.exists() or installed.stat().st_mtime_ns < lock.stat().st_mtime_ns


def _run(command: list[str | Path], environment: "os._Environ[str] | dict[str, str]") -> None:
    # Its output goes to stderr: a program may read the stdout of a build frontend.
    ended = subprocess.run(command, cwd=SOURCES, env=environment, stdout=sys.stderr, check=False)
    if ended.returncode:
        raise CannotBuild(f"`{' '.join(Path(part).name for part in map(str, command[:2]))}` has failed")


def main() -> int:
    """Build, as the command line says."""
    is_optional = "--if-needed" in sys.argv[1:]
    if is_optional and not (SOURCES.exists() and needs_build()):
        return 0
    try:
        build(may_install=True)
    except CannotBuild as problem:
        print(f"The dashboard is not built: {problem}. `make dashboard` tries again.", file=sys.stderr)
        return 0 if is_optional else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
