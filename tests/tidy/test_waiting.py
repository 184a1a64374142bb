"""Reject patterns that make a test depend on the speed of the machine, as far as static analysis can find them.

A line that must break a rule gives the reason in a comment that begins with `short:`, for instance where the timeout
itself is tested, or where a pause on a slow machine can only make a test weaker, never fail it.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if path.parent != TESTS / "tidy")
SAFETY_NET_S = 30
CLOCKS = {"time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.time"}
LIMITS = {"timeout", "within_s", "connect_timeout", "seconds_max", "limit_s"}
Located = ast.expr | ast.stmt
VIRTUAL = {"simulation", "unit"}  # Time may be virtual there, or stand still.


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def excused(path: Path, node: Located) -> bool:
    """Return whether a comment on the lines of a node, or on the line above it, gives a reason."""
    lines = lines_of(path)[max(node.lineno - 2, 0) : node.end_lineno]
    return any("# short:" in line for line in lines)


def constants(path: Path) -> dict[str, float]:
    """Return the numeric constants of a module."""
    found = {}
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = number(node.value, {})
            if value is not None:
                found[node.targets[0].id] = value
    return found


def number(node: ast.expr | None, names: dict[str, float]) -> float | None:
    """Return the value of a number, a named constant, or a sum or product of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = number(node.left, names), number(node.right, names)
        if left is not None and right is not None:
            return left + right if isinstance(node.op, ast.Add) else left * right
    return None


def reads_clock(node: ast.AST) -> bool:
    """Return whether an expression reads a clock of the operating system."""
    return any(isinstance(part, ast.Call) and ast.unparse(part.func) in CLOCKS for part in ast.walk(node))


def elapsed_times(path: Path) -> Iterator[ast.Compare]:
    """Yield the assertions that elapsed time is below a limit."""
    for function in ast.walk(tree_of(path)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = constants(path)
        measured = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
            if isinstance(node.value.op, ast.Sub) and reads_clock(node.value.left)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                for part in ast.walk(node.test):
                    if isinstance(part, ast.Compare) and _is_quick(part, measured, names):
                        yield part


def _is_quick(node: ast.Compare, measured: set[str], names: dict[str, float]) -> bool:
    terms = [node.left, *node.comparators]
    for left, operator, right in zip(terms, node.ops, terms[1:], strict=False):
        small, large = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
        if not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            continue
        is_passed = isinstance(small, ast.BinOp) and isinstance(small.op, ast.Sub) and reads_clock(small.left)
        if is_passed or (isinstance(small, ast.Name) and small.id in measured):
            limit = number(large, names)
            return limit is None or limit < SAFETY_NET_S
    return False


def no_upper_bound_on_elapsed_time() -> Iterator[str]:
    for path in FILES:
        for node in elapsed_times(path):
            if not excused(path, node):
                yield f"{where(path, node)}: an upper bound on elapsed time: show that it happens, or count something"


def timeouts_are_safety_nets() -> Iterator[str]:
    for path in FILES:
        if path.relative_to(TESTS).parts[0] in VIRTUAL:
            continue
        names = constants(path)
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call) or (limit := _limit(node, names)) is None:
                continue
            if 0.1 < limit < SAFETY_NET_S and not excused(path, node):
                yield f"{where(path, node)}: waits {limit:g} s at most: a safety net has {SAFETY_NET_S} s or more"


def _limit(node: ast.Call, names: dict[str, float]) -> float | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for keyword in node.keywords:
        if keyword.arg in LIMITS:
            return number(keyword.value, names)
    if name in {"wait", "join", "result", "timeout"} and len(node.args) == 1:
        return number(node.args[0], names)
    if name == "wait_for" and len(node.args) == 2:
        return number(node.args[1], names)
    return None


def deadlines_are_safety_nets() -> Iterator[str]:
    for path in FILES:
        names = constants(path)
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and reads_clock(node.left):
                limit = number(node.right, names)
                if limit is not None and limit < SAFETY_NET_S and not excused(path, node):
                    yield f"{where(path, node)}: a deadline of {limit:g} s: use wait_until of tests/support/waiting.py"


def ports_come_from_free_port() -> Iterator[str]:
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and "free_port" in node.name and path.name != "server.py":
                yield f"{where(path, node)}: use free_port of tests/support/server.py, which reserves the port"


def no_stderr_is_discarded() -> Iterator[str]:
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Popen", "create_subprocess_exec")):
                for keyword in node.keywords:
                    if keyword.arg == "stderr" and "DEVNULL" in ast.unparse(keyword.value) and not excused(path, node):
                        yield f"{where(path, node)}: a failure could not be explained: use evidence.log_file"


def where(path: Path, node: Located) -> str:
    return f"{path.relative_to(TESTS.parent)}:{node.lineno}"


RULES = [
    no_upper_bound_on_elapsed_time,
    timeouts_are_safety_nets,
    deadlines_are_safety_nets,
    ports_come_from_free_port,
    no_stderr_is_discarded,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tests_do_not_depend_on_speed(rule: Callable[[], Iterator[str]]) -> None:
    problems = list(rule())
    assert not problems, "\n" + "\n".join(problems)


BAD = {
    no_upper_bound_on_elapsed_time: "def test():\n    took = time.monotonic() - began\n    assert took < 2",
    timeouts_are_safety_nets: "SOON_S = 5\ndef test():\n    process.wait(SOON_S)",
    deadlines_are_safety_nets: "def test():\n    deadline = time.monotonic() + 10",
    ports_come_from_free_port: "def free_port():\n    pass",
    no_stderr_is_discarded: "subprocess.Popen(command, stderr=subprocess.DEVNULL)",
}
GOOD = {
    no_upper_bound_on_elapsed_time: "def test():\n    took = time.monotonic() - began\n    assert 2 < took < 60",
    timeouts_are_safety_nets: "NET_S = 30 * 2\nprocess.wait(NET_S)\nevent.wait(1)  # short: retried.",
    deadlines_are_safety_nets: "def test():\n    deadline = time.monotonic() + 10 * 9",
    ports_come_from_free_port: "port = free_port()",
    no_stderr_is_discarded: "subprocess.Popen(command, stderr=log)",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules_detect_violations(
    rule: Callable[[], Iterator[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, source in (("bad.py", BAD[rule]), ("good.py", GOOD[rule])):
        path = tmp_path / "tests" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        monkeypatch.setattr(f"{__name__}.FILES", [path])
        monkeypatch.setattr(f"{__name__}.TESTS", path.parent)
        found[name] = len(list(rule()))
    assert found == {"bad.py": 1, "good.py": 0}
