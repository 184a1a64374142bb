"""Enforce the architecture and the code conventions. Each failure says what to do instead.

The rules are few and have reasons. If one is in the way, change it here instead of working around it.
"""

import ast
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tidy.exceptions import EXCEPTIONS, TOO_LARGE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headway"
TESTS = ROOT / "tests"

# What each package may import: other packages by name, single modules by their full name.
MAY_IMPORT: dict[str, set[str]] = {
    "core": {"core"},
    "tasks": {"core", "tasks"},
    "scheduling": {"core", "scheduling"},
    "coordination": {"core", "coordination"},
    "queue": {"core", "queue"},
    "worker": {"core", "tasks", "worker"},
    "adapters": {"core", "adapters"},
    "store": {"core", "store", "headway.scheduling.planner"},  # The planner is pure.
    "wire": {"core", "wire"},
    "operations": {"core", "tasks", "scheduling", "store", "wire", "operations"},
    "client": {"core", "wire", "operations", "client"},
    "server": {"core", "wire", "operations", "server"},
    "wiring": {"core", "tasks", "scheduling", "coordination", "queue", "worker", "adapters", "store"}
    | {"wire", "operations", "client", "server", "wiring"},
    "app": {"core", "tasks", "coordination", "wire", "operations", "client", "wiring", "app", "headway"},
    "testing": {"core", "tasks", "scheduling", "worker", "store", "operations", "wiring", "app", "testing"},
    "cli": {"core", "tasks", "wire", "operations", "client", "wiring", "app", "cli", "headway"},
    "__main__": {"cli"},
    "headway": {"core", "tasks", "coordination", "app", "headway"},
}
STDLIB_ONLY = {"core", "scheduling"}

BANNED = {
    **dict.fromkeys(("time.time", "time.time_ns", "datetime.datetime.now"), "clock.now()"),
    **dict.fromkeys(("datetime.datetime.utcnow", "datetime.datetime.today"), "clock.now()"),
    **dict.fromkeys(("time.monotonic", "time.monotonic_ns", "time.perf_counter"), "clock.monotonic()"),
    **dict.fromkeys(("time.sleep", "asyncio.sleep"), "clock.sleep()"),
    "datetime.date.today": "clock.now().date()",
}
MAY_READ_TIME = {"headway.core.clock"}
SHARED_RANDOMNESS = re.compile(r"random\.(?!Random$|SystemRandom$)\w+")

# Which modules may use which HTTP client. Importing aiohttp takes 0.2 s and 12 MiB, so blocking scripts and the child
# processes of workers use the standard library, which also survives a fork and needs no event loop.
HTTP_CLIENTS = {
    **{name: set[str]() for name in ("httpx", "requests", "urllib3", "urllib.request")},
    "http.client": {"headway.client.transport", "headway.worker.http"},
    "aiohttp": {
        *("headway.client.transport", "headway.server.outbound"),
        *("headway.adapters.endpoints", "headway.adapters.etcd"),
    },
}

# Statements on our own tables; statements of drivers on a session (begin, pragma, catalogues) do not count.
TABLE = r"from\s+(?!pg_|sqlite_|information_schema)\w+\b(?!\s*\()"
SQL = re.compile(
    rf"\s*(select\s.*\s{TABLE}|insert\s+into\s+\w|update\s+\w+\s+set\s|delete\s+{TABLE}|with\s+\w+\s+as\s"
    r"|(create|alter|drop)\s+(unique\s+)?(table|index|view)\s)",
    re.DOTALL,
)
LINES_MAX = 500
METHODS_MAX = 30
FUNCTION_LINES_MAX = 60  # A command of the command line is longer by its options.
PARAMETERS_MAX = 8  # Without `self`; a command of the command line has one parameter for each option.
LATER = re.compile(r"\b(FIXM[E]|TOD[O]|XX[X])\b")

# Methods that a library calls: typer, uvicorn, asyncio.
CALLED_BY_LIBRARIES = {
    *("format_commands", "capture_signals", "send_400_response", "_process_events", "_write_to_self"),
}

MODULES = {
    ".".join(("headway", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text(), str(path)) for module, path in MODULES.items()}


def package_of(module: str) -> str:
    """Return the package of a module: `core` for headway.core.cron."""
    return [*module.split("."), "headway"][1]


def imports(module: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, full name and local name of every import of a module, lazy ones included."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}", alias.asname or alias.name


def names_used(module: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each imported name that a module uses, whatever its alias."""
    names = {local: name for _, name, local in imports(module)}
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute | ast.Name):
            head, dot, rest = ast.unparse(node).partition(".")
            if head in names:
                yield node.lineno, names[head] + dot + rest


def is_sql(text: str) -> bool:
    """Distinguish SQL, in lower or upper case, from a sentence, which begins with one capital."""
    return bool(SQL.match(text) or SQL.match(text.swapcase()))


def where(module: str, line: int = 1) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{line}"


def imports_follow_declared_direction() -> Iterator[str]:
    for module in MODULES:
        part = package_of(module)
        if part not in MAY_IMPORT:
            yield f"{where(module)}: `{part}` is a new package: declare its imports in MAY_IMPORT (tests/tidy)"
            continue
        for line, name, _ in imports(module):
            if name.partition(".")[0] == "headway":
                target = name if name in MODULES else name.rpartition(".")[0] or name
                if not {target, package_of(target)} & (MAY_IMPORT[part] | EXCEPTIONS.get(module, set())):
                    yield (
                        f"{where(module, line)}: {part} may not import {target}: use a protocol of `ports`, "
                        "and pass the implementation in from wiring/"
                    )
            elif part in STDLIB_ONLY and name.partition(".")[0] not in {*sys.stdlib_module_names, "msgspec"}:
                yield f"{where(module, line)}: {part} uses the standard library and msgspec only, not {name}"


def exceptions_are_still_needed() -> Iterator[str]:
    for module, targets in EXCEPTIONS.items():
        used = {name if name in MODULES else name.rpartition(".")[0] for _, name, _ in imports(module)}
        for target in sorted(targets - used):
            yield f"tests/tidy/exceptions.py: {module} no longer imports {target}: remove the exception"


def sizes(module: str) -> Iterator[tuple[str, int, str]]:
    """Yield full name, line and problem of each oversized part of a module: the module, its classes, its functions."""
    if (lines := len(MODULES[module].read_text().splitlines())) > LINES_MAX:
        yield module, 1, f"{lines} lines: split it by subject below {LINES_MAX}"
    left: list[tuple[str, ast.AST]] = [(module, TREES[module])]
    while left:
        name, parent = left.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                left.append((name, node))
                continue
            full = f"{name}.{node.name}"
            left.append((full, node))
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
                if methods > METHODS_MAX:
                    yield full, node.lineno, f"{methods} methods: split it, {METHODS_MAX} are enough"
                continue
            if package_of(module) == "cli":
                continue
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX:
                yield full, node.lineno, f"{lines} lines: split it, {FUNCTION_LINES_MAX} are enough"
            if (given := parameters(node)) > PARAMETERS_MAX:
                yield full, node.lineno, f"{given} parameters: pass an object, {PARAMETERS_MAX} are enough"


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters of a function without `self` and `cls`."""
    names = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(name.arg not in {"self", "cls"} for name in names)


def modules_classes_and_functions_are_small() -> Iterator[str]:
    large = {full: (where(module, line), problem) for module in MODULES for full, line, problem in sizes(module)}
    for full, (place, problem) in large.items():
        if full not in TOO_LARGE:
            yield f"{place}: {full} has {problem}"
    for full in TOO_LARGE:
        if full not in large:
            yield f"tests/tidy/exceptions.py: {full} is small enough: remove it from TOO_LARGE"
    if sorted(TOO_LARGE) != TOO_LARGE:
        yield "tests/tidy/exceptions.py: sort TOO_LARGE"


def one_class_has_a_name() -> Iterator[str]:
    """A public class name means one thing.

    A struct of `wire` may have the name of the class that it shows, and a group of `client` that of the operations that
    it sends.
    """
    homes: dict[str, list[str]] = {}
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    for name, modules in homes.items():
        parts = [package_of(module) for module in modules]
        if sorted(parts) != ["client", "operations"] and len(parts) - ("wire" in parts) > 1:
            yield f"{', '.join(sorted(modules))}: {name} is the name of {len(modules)} classes: give each its own"


def only_the_clock_reads_time() -> Iterator[str]:
    for module in MODULES:
        if module not in MAY_READ_TIME and package_of(module) != "cli":
            for line, name in names_used(module):
                if name in BANNED:
                    yield f"{where(module, line)}: `{name}` is banned here, use `{BANNED[name]}`"
                elif SHARED_RANDOMNESS.fullmatch(name):
                    yield f"{where(module, line)}: `{name}` is banned here, pass in a random.Random"


def http_clients_are_declared() -> Iterator[str]:
    for module in MODULES:
        for line, name, _ in imports(module):
            library = next((known for known in HTTP_CLIENTS if f"{name}.".startswith(f"{known}.")), None)
            if library is not None and module not in HTTP_CLIENTS[library]:
                yield f"{where(module, line)}: imports {library}: use aiohttp in an adapter, or add it to HTTP_CLIENTS"


def sql_lives_in_sql_files() -> Iterator[str]:
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(text := node.value, str) and is_sql(text):
                yield f"{where(module, node.lineno)}: SQL in Python: give it a `-- name:` in store/sql"


def every_statement_is_used() -> Iterator[str]:
    store = [tree for module, tree in TREES.items() if package_of(module) == "store"]
    strings = {node.value for tree in store for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for path in sorted((PACKAGE / "store" / "sql").rglob("*.sql")):
        for name in re.findall(r"^-- name:\s*(\S+)", path.read_text(), re.MULTILINE):
            if name not in strings:
                yield f"{path.relative_to(ROOT)}: nothing in store/ calls `{name}`: remove it"


def no_definition_is_unused() -> Iterator[str]:
    folders = [ROOT / folder for folder in ("src", "tests", "bench", "examples", "docs")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".md"}]
    mentioned = Counter(word for path in files for word in re.findall(r"\w+", path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [(module, node) for module, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, kinds)]
    times = Counter(node.name for _, node in defined)
    for module, node in defined:
        is_called_by_library = bool(node.decorator_list) or node.name in CALLED_BY_LIBRARIES or node.name[:2] == "__"
        if mentioned[node.name] <= times[node.name] and not is_called_by_library:
            yield f"{where(module, node.lineno)}: nothing mentions `{node.name}`: remove it"


def exceptions_are_not_tested_for_truth() -> Iterator[str]:
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and isinstance(node.values[0], ast.Name):
                name = node.values[0].id
                if any(ast.unparse(other) == f"type({name}).__name__" for other in node.values[1:]):
                    yield f"{where(module, node.lineno)}: an exception is never false: write `str({name}) or …`"


def every_module_has_a_docstring() -> Iterator[str]:
    for module, tree in TREES.items():
        if not ast.get_docstring(tree):
            yield f"{where(module)}: no docstring: describe its responsibility and its guarantees"


def public_names_exist_and_are_documented() -> Iterator[str]:
    headway = importlib.import_module("headway")
    if "headway.app" in MODULES and not hasattr(headway, "__all__"):
        yield f"{where('headway')}: no __all__: list the public names"
    for name in getattr(headway, "__all__", []):
        value = getattr(headway, name, None)
        doc = inspect.getdoc(value) or ""
        if value is None:
            yield f"headway.{name} is in __all__ but does not exist: import it or remove it"
        # The docstring of a dataclass without one is its signature.
        elif (inspect.isclass(value) or inspect.isroutine(value)) and (not doc or doc.startswith(f"{name}(")):
            yield f"headway.{name} has no docstring: one sentence about its effect or its reason"


def no_open_todo_comments() -> Iterator[str]:
    for folder in ("src", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            for line, text in enumerate(path.read_text().splitlines() if path.suffix in {".py", ".sql"} else ()):
                if LATER.search(text):
                    yield f"{path.relative_to(ROOT)}:{line + 1}: do it now, or document that it is not done"


def architecture_page_names_existing_code() -> Iterator[str]:
    page = ROOT / "docs" / "architecture.md"
    for file, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", page.read_text()):
        tree: ast.AST | None = TREES.get("headway." + file.removesuffix(".py").replace("/", "."))
        for part in name.split("."):
            found = [node for node in getattr(tree, "body", ()) if getattr(node, "name", None) == part]
            tree = found[0] if found else None
        if tree is None:
            yield f"docs/architecture.md: {file} has no {name}: update the walk"


def every_test_folder_has_tests() -> Iterator[str]:
    for folder in sorted({path.parent for path in TESTS.glob("*/*.py")} - {TESTS / "support"}):
        if not any(folder.rglob("test_*.py")):
            yield f"{folder.relative_to(ROOT)}: no test_*.py: pytest finds nothing here"


RULES = [
    imports_follow_declared_direction,
    exceptions_are_still_needed,
    modules_classes_and_functions_are_small,
    one_class_has_a_name,
    only_the_clock_reads_time,
    http_clients_are_declared,
    sql_lives_in_sql_files,
    every_statement_is_used,
    no_definition_is_unused,
    exceptions_are_not_tested_for_truth,
    every_module_has_a_docstring,
    public_names_exist_and_are_documented,
    no_open_todo_comments,
    every_test_folder_has_tests,
    architecture_page_names_existing_code,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tidy(rule: Callable[[], Iterator[str]]) -> None:
    problems = list(rule())
    assert not problems, "\n" + "\n".join(problems)
