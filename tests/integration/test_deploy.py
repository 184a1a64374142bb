"""The files in deploy/ match the product: commands, options, settings, ports, probes, metrics, and shutdown times."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.version import Version

from headway.cli import root
from headway.core.instants import SECOND
from headway.core.settings import PORT_DEFAULT, Settings
from headway.server.api import ROUTES
from scripts import make_sbom as sbom
from tests.support import evidence
from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
CONTAINERFILE = DEPLOY / "Containerfile"
ENV_EXAMPLE = DEPLOY / "headway.env.example"
PAGES = [*sorted((ROOT / "docs" / "deploy").glob("*.md")), ROOT / "docs" / "sizing.md"]
PROGRAM = "/srv/app/.venv/bin/headway"
RUNS_JOBS = {"worker", "serve"}
HAND_BACK_S = 10  # A worker may need this long after its grace, and longer on a slow machine.
ENGINE_METRICS = {"headway_engine_up", "headway_engine_cut_off_nodes"}  # Absent where only the store grants leases.


def unit(path: Path) -> ConfigParser:
    """Parse a systemd unit; of repeated keys the last one counts."""
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(path)
    return parser


def documents() -> Iterator[dict[str, Any]]:
    """Yield every object of every manifest."""
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def objects(kind: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of a kind by name."""
    return {found["metadata"]["name"]: found for found in documents() if found.get("kind") == kind}


def pod(found: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a deployment or a job."""
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def container(found: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of a deployment or a job."""
    [only] = pod(found)["containers"]
    assert isinstance(only, dict)
    return only


def example_variables() -> dict[str, str]:
    """Return the variables of the environment file, also those that are commented out."""
    return dict(re.findall(r"^#?(HEADWAY_\w+)=(.+)$", ENV_EXAMPLE.read_text(), re.MULTILINE))


def cluster_variables() -> dict[str, str]:
    """Return the variables that every pod gets."""
    data = objects("ConfigMap")["headway"]["data"]
    return {**data, **objects("Secret")["headway"]["stringData"]}


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction in the Containerfile."""
    return re.findall(rf"^{name} (.+)$", CONTAINERFILE.read_text(), re.MULTILINE)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield every deployed command line of Headway, and its file."""
    for path in UNITS:
        program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program == PROGRAM
        yield path.name, arguments
    for kind in ("Deployment", "Job"):
        for name, found in objects(kind).items():
            assert "command" not in container(found), "the entry point of the image forwards signals"
            yield name, container(found)["args"]
    [entry], [command] = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry)[-1] == "headway"
    yield CONTAINERFILE.name, json.loads(command)


def test_every_command_and_option_exists() -> None:
    group = root._root()
    lines = list(command_lines())
    assert {arguments[0] for _, arguments in lines} == {"serve", "scheduler", "worker", "api", "migrate"}
    for where, (name, *arguments) in lines:
        command = group.get_command(None, name)
        assert command is not None, f"{where}: headway {name}"
        known = {option for parameter in command.params for option in parameter.opts}
        used = {argument for argument in arguments if argument.startswith("--")}
        assert used <= known, f"{where}: headway {name} {used - known}"


def test_every_setting_exists_and_is_valid() -> None:
    known = {f"HEADWAY_{setting.name.upper()}" for setting in fields(Settings)}
    for path in (*UNITS, *MANIFESTS, CONTAINERFILE, ENV_EXAMPLE, *PAGES):
        named = set(re.findall(r"HEADWAY_[A-Z_]*[A-Z]", path.read_text()))
        assert named <= known | {"HEADWAY_SERVER", "HEADWAY_CHAOS_FULL"}, path
    for variables in (example_variables(), cluster_variables()):
        assert Settings.load(environ=variables, file=Path("none")).app == "jobs:app"
    secret = objects("Secret")["headway"]["stringData"]
    assert secret == {"HEADWAY_STORE": "", "HEADWAY_TOKEN": ""}, "an unedited secret must not grant access"


def test_units_leave_time_for_jobs_to_end() -> None:
    grace_s = Settings.load(environ=example_variables(), file=Path("none")).grace / SECOND
    for path in UNITS:
        service = unit(path)["Service"]
        role = shlex.split(service["ExecStart"])[1]
        if role in RUNS_JOBS:
            assert service["KillMode"] == "mixed", "children must not get the signal of their supervisor"
            assert int(service["TimeoutStopSec"]) >= grace_s + HAND_BACK_S, path.name
        assert service["EnvironmentFile"] == "/etc/headway/headway.env"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("headway"))
    for path in UNITS:
        copy = tmp_path / path.name.replace("@", "@1")
        copy.write_text(path.read_text().replace(PROGRAM, str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_pods_leave_time_for_jobs_to_end() -> None:
    grace_s = Settings.load(environ=cluster_variables(), file=Path("none")).grace / SECOND
    for name, found in objects("Deployment").items():
        period_s = pod(found)["terminationGracePeriodSeconds"]
        if container(found)["args"][0] in RUNS_JOBS:
            assert period_s >= grace_s + HAND_BACK_S, name
        stop = container(found).get("lifecycle", {}).get("preStop")
        if stop is not None:
            [word, seconds] = stop["exec"]["command"]
            assert (word, period_s >= int(seconds) + HAND_BACK_S) == ("sleep", True), name


def test_ports_and_probes_match_the_product() -> None:
    assert instructions("EXPOSE") == [str(PORT_DEFAULT)]
    assert example_variables()["HEADWAY_PORT"] == str(PORT_DEFAULT)
    open_paths = {route.path for route in ROUTES if route.role is None and route.method == "GET"}
    api = container(objects("Deployment")["headway-api"])
    [port] = api["ports"]
    assert port["containerPort"] == PORT_DEFAULT
    assert api["args"][api["args"].index("--port") + 1] == str(PORT_DEFAULT)
    probes = {name: api[name]["httpGet"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert {probe["path"] for probe in probes.values()} <= open_paths
    assert (probes["livenessProbe"]["path"], probes["readinessProbe"]["path"]) == ("/livez", "/readyz")
    [served] = objects("Service")["headway-api"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]


def test_references_in_the_cluster_resolve() -> None:
    deployments = objects("Deployment")
    labels = {name: found["spec"]["template"]["metadata"]["labels"] for name, found in deployments.items()}
    for name, found in deployments.items():
        assert found["spec"]["selector"]["matchLabels"] == labels[name]
    budgets = objects("PodDisruptionBudget")
    assert budgets.keys() == deployments.keys()
    for name, found in budgets.items():
        assert found["spec"]["selector"]["matchLabels"] == labels[name]
    [scaler] = objects("HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in deployments
    assert "replicas" not in deployments[scaler["spec"]["scaleTargetRef"]["name"]]["spec"], "the autoscaler sets it"
    for found in (*deployments.values(), *objects("Job").values()):
        sources = [(kind, *ref.values()) for source in container(found)["envFrom"] for kind, ref in source.items()]
        assert sources == [("configMapRef", "headway"), ("secretRef", "headway")]


def test_autoscaler_metric_is_offered_by_the_adapter() -> None:
    [scaler] = objects("HorizontalPodAutoscaler").values()
    [metric] = [found["external"]["metric"] for found in scaler["spec"]["metrics"]]
    [adapter] = [found for found in documents() if "rules" in found]
    [rule] = adapter["rules"]["external"]
    assert rule["seriesQuery"] == rule["name"]["as"] == metric["name"]
    assert metric["selector"]["matchLabels"].keys() == {"queue"}


def test_pods_have_minimal_rights() -> None:
    for found in (*objects("Deployment").values(), *objects("Job").values()):
        assert pod(found)["automountServiceAccountToken"] is False
        for key, expected in {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }.items():
            assert pod(found)["securityContext"][key] == expected
        assert container(found)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container(found)["resources"]["limits"]
    assert instructions("USER") == ["10001"]


def test_image_is_built_from_locked_versions() -> None:
    first, *others = [line.split()[0] for line in instructions("FROM")]
    assert re.fullmatch(r"[a-z0-9./]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", first)
    assert set(others) == {"base"}
    own = [line for line in instructions("RUN") if "pip" in line and "/srv/app/requirements.txt" not in line]
    assert own
    for line in own:
        assert "--require-hashes" in line or (
            "--no-deps" in line and ("--no-index" in line or "--no-build-isolation" in line)
        )
    locked = sbom.pins(ROOT / "requirements.lock").keys()
    image = sbom.pins(DEPLOY / "requirements.lock")
    assert image.keys() <= locked, "make lock"
    assert all(hashes for hashes in image.values())
    named = {re.match("[a-z0-9-]+", line)[0] for line in requirements()}  # type: ignore[index]
    assert named - {"headway"} <= {name for name, _ in image}


def requirements() -> Iterator[str]:
    """Yield the requirements of pyproject.toml, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


# The first releases without the advisories known when this was written.
SAFE_SINCE = {
    "aiohttp": "3.14.3",
    "anyio": "4.14.2",
    "click": "8.3.3",
    "idna": "3.15",
    "pygments": "2.20",
    "starlette": "1.3.1",
}


def test_no_minimum_version_has_a_known_advisory() -> None:
    floors = dict(re.findall(r"^([a-z-]+)(?:\[\w+\])?>=([0-9.]+)", "\n".join(requirements()), re.MULTILINE))
    for name, version in SAFE_SINCE.items():
        assert Version(floors[name]) >= Version(version), name
    for name, version in sbom.pins(ROOT / "requirements.lock"):
        assert Version(version) >= Version(floors.get(name, "0")), name


def test_sbom_names_all_locked_packages(tmp_path: Path) -> None:
    written = tmp_path / "dist" / "headway.cdx.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "make_sbom.py", written], timeout=DEADLINE_S, check=True)
    bill = json.loads(written.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch("urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    by_purl = {found["purl"]: found for found in bill["components"]}
    assert len(by_purl) == len(bill["components"])
    for name, version in sbom.pins(ROOT / "requirements.lock"):
        assert by_purl[f"pkg:pypi/{name}@{version}"]["version"] == version
    shipped = {found["name"] for found in bill["components"] if found["scope"] == "required"}
    assert shipped == {name for name, _ in sbom.pins(DEPLOY / "requirements.lock")} | {"preact", "uplot"}
    assert all(found["hashes"] for found in bill["components"])
    assert bill == sbom.bill()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_manifests_can_be_built() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    built = [found for found in yaml.safe_load_all(done.stdout) if found["kind"] == "Deployment"]
    assert {container(found)["image"] for found in built} == {"registry.example/headway-app:1"}
    assert {found["metadata"]["namespace"] for found in built} == {"headway"}


def test_every_metric_exists(tmp_path: Path) -> None:
    named = {
        name
        for path in (*MANIFESTS, *PAGES)
        for name in re.findall(r"\bheadway_[a-z_]+(?:total|seconds|depth|up|slots|nodes|leases)\b", path.read_text())
    }
    assert "headway_queue_depth" in named
    with api_process(f"sqlite:///{tmp_path}/headway.db") as api, api.client() as client:
        told = set(re.findall(r"^# TYPE (\w+) ", client.get("/metrics").text, re.MULTILINE))
    assert named - ENGINE_METRICS <= told
    assert named & ENGINE_METRICS <= set(re.findall(r"`(headway_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))


# Runs a command with everything but one folder mounted read-only, as in a container, temporary folders included.
READ_ONLY = """
set -e
state=$1; shift
mount --make-rprivate /
mount --bind "$state" "$state"
for place in / /tmp /var/tmp /home; do
    if mountpoint -q "$place"; then mount -o remount,bind,ro "$place"; fi
done
exec "$@"
"""


def read_only(state: Path, *command: object) -> list[str]:
    """Return a command line that runs another one with one writable folder only."""
    alone = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    return [*alone, "sh", "-c", READ_ONLY, "sh", str(state), *map(str, command)]


def may_mount(folder: Path) -> bool:
    try:
        return (
            subprocess.run(read_only(folder, "true"), capture_output=True, timeout=DEADLINE_S, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


JOBS = """
import os, sys, tempfile
from headway import Every, Headway
app = Headway()

@app.task
def look() -> list[str]:
    print("looking")
    return [place for place in (os.getcwd(), "/tmp", "/var/tmp") if os.access(place, os.W_OK)]

app.command("greet", ["echo", "hello"])
app.schedule("look", look, Every("1h"))
"""


def test_node_needs_no_writable_folder(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    if not may_mount(state):
        pytest.skip("this system lets nobody make mounts of their own")
    (tmp_path / "jobs.py").write_text(JOBS)
    store = f"sqlite:///{state}/headway.db"
    variables = {"HEADWAY_STORE": store, "HEADWAY_APP": "jobs:app", "HEADWAY_PORT": "0", "TMPDIR": str(tmp_path)}
    written = evidence.log_file("headway serve, read-only")
    program = str(Path(sys.executable).with_name("headway"))
    with written.open("wb") as output:
        process = subprocess.Popen(
            read_only(state, program, "serve"), cwd=tmp_path, stderr=output, env={**os.environ, **variables}
        )
    try:
        wait_until(lambda: "listening" in written.read_text() or process.poll() is not None, "the node to listen")
        for task, expected in (("look", []), ("greet", {"exit_code": 0})):
            asked = [program, "enqueue", task, "--store", store, "--wait", "--timeout", "90s", "--json"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
            assert (done.returncode, json.loads(done.stdout)["result"]) == (0, expected), done.stderr
        demo = subprocess.run(
            read_only(state, program, "demo"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (demo.returncode, "set TMPDIR" in demo.stderr) == (2, True), "only the demo needs one, and says so"
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    assert "line=looking" in written.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.py", "state"]
