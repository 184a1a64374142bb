#!/usr/bin/env python3
"""Write a software bill of materials in CycloneDX JSON: `make_sbom.py [FILE]`, to stdout without a file.

It lists every package of requirements.lock and of the dashboard's package-lock.json with its version, its package URL
and the hashes of its files. Packages that are part of the product (deploy/requirements.lock, the dependencies of the
dashboard) are `required`, tools for building and testing are `excluded`. The same locks give the same text.
"""

import base64
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
IMAGE_LOCK = ROOT / "deploy" / "requirements.lock"
NODE_LOCK = ROOT / "dashboard" / "package-lock.json"
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pins(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the packages of a requirements file, by name and version, with the hashes of their files."""
    found: dict[tuple[str, str], list[str]] = {}
    hashes: list[str] = []
    for line in path.read_text().splitlines():
        if pin := PIN.match(line):
            hashes = found.setdefault((pin["name"], pin["version"]), [])
        hashes += HASH.findall(line)
    return found


def python_components() -> Iterator[dict[str, Any]]:
    """Yield the packages for Python."""
    shipped = pins(IMAGE_LOCK)
    for (name, version), hashes in sorted(pins(LOCK).items()):
        yield component(
            f"pkg:pypi/{name}@{version}",
            name,
            version,
            is_shipped=(name, version) in shipped,
            hashes=[{"alg": "SHA-256", "content": value} for value in sorted(set(hashes))],
        )


def dashboard_components() -> Iterator[dict[str, Any]]:
    """Yield the packages from which the dashboard is built."""
    for path, package in sorted(json.loads(NODE_LOCK.read_text())["packages"].items()):
        if not path:
            continue  # The dashboard itself.
        name, version = path.rpartition("node_modules/")[2], package["version"]
        algorithm, _, digest = package["integrity"].partition("-")
        yield component(
            f"pkg:npm/{name.replace('@', '%40')}@{version}",
            name,
            version,
            is_shipped=not package.get("dev", False),
            hashes=[{"alg": f"SHA-{algorithm.removeprefix('sha')}", "content": base64.b64decode(digest).hex()}],
        )


def component(purl: str, name: str, version: str, *, is_shipped: bool, hashes: list[dict[str, str]]) -> dict[str, Any]:
    """Describe one package."""
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "required" if is_shipped else "excluded",
        "hashes": hashes,
    }


def bill() -> dict[str, Any]:
    """Make the whole document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [*python_components(), *dashboard_components()]
    shipped = [found["bom-ref"] for found in components if found["scope"] == "required"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": project["name"],
                "version": project["version"],
                "purl": purl,
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": shipped}],
    }


def main() -> None:
    """Write the document to a file, or to stdout."""
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) < 2:
        sys.stdout.write(text)
        return
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"Written: {path}")


if __name__ == "__main__":
    main()
