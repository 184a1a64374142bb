"""Measure the size and the structure of Headway's source tree; ADR 38 quotes the figures.

python scripts/measure_house.py              measure this checkout
python scripts/measure_house.py PATH         measure another checkout, such as an older commit
"""

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULE_LINES_MAX = 500
CLASS_METHODS_MAX = 30
PARAMETERS_MAX = 8
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code: no blank lines, comments or docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    return lines - set(docstring_lines(tree))


def docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def sql_lines(source: str) -> int:
    """Count the lines of SQL that are neither blank nor comments."""
    return sum(1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--"))


def parameters(function: Function) -> int:
    """Count the parameters of a function without `self` and `cls`."""
    listed = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(1 for parameter in listed if parameter.arg not in ("self", "cls"))


def length(function: Function, lines: set[int]) -> int:
    """Count the lines of code of a function, with its signature."""
    return sum(1 for line in range(function.lineno, (function.end_lineno or function.lineno) + 1) if line in lines)


def imported(module: str, path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the full name of everything that a module imports, also inside functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """Return the package of a module: `core` for headway.core.cron."""
    return [*module.split("."), "headway"][1]


def declared_directions(root: Path) -> dict[str, set[str]]:
    """Read MAY_IMPORT from tests/tidy/test_tidy.py of the measured checkout."""
    names: dict[str, Any] = {}
    for node in ast.parse((root / "tests" / "tidy" / "test_tidy.py").read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(targets[0], ast.Name):
            if targets[0].id in ("ROOT", "PACKAGE", "TESTS"):
                continue
            exec(ast.unparse(node), names)  # The rules of our own tests are sets of names.
            if targets[0].id == "MAY_IMPORT":
                break
    found: dict[str, set[str]] = names["MAY_IMPORT"]
    return found


def broken_edges(root: Path, modules: dict[str, Path], trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yield each import that breaks the declared direction, whether or not a list of exceptions allows it."""
    may_import = declared_directions(root)
    for module, tree in trees.items():
        allowed = may_import.get(part_of(module), set())
        targets = {
            name if name in modules else name.rpartition(".")[0] or name
            for name in imported(module, modules[module], tree)
            if name.partition(".")[0] == "headway"
        }
        for target in sorted(targets):
            if not {target, part_of(target)} & allowed:
                yield f"{module} -> {target}"


def measure(root: Path) -> None:
    """Print the figures of one checkout."""
    package = root / "src" / "headway"
    modules = {
        ".".join(("headway", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }
    sources = {module: path.read_text() for module, path in modules.items()}
    trees = {module: ast.parse(source) for module, source in sources.items()}

    code = {module: code_lines(sources[module], tree) for module, tree in trees.items()}
    lines: Counter[str] = Counter()
    for module, numbers in code.items():
        lines[part_of(module)] += len(numbers)
    print("Code lines (Python, without blank lines, comments and docstrings)")
    for part, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"  {part:<14} {count:>6,}")
    print(f"  {'total':<14} {lines.total():>6,}")
    sql = sum(sql_lines(path.read_text()) for path in package.rglob("*.sql"))
    print(f"SQL lines (without blank lines and comments): {sql:,}")

    tell(f"Modules over {MODULE_LINES_MAX} lines", large_modules(modules, sources))
    tell(f"Classes over {CLASS_METHODS_MAX} methods", large_classes(trees))
    tell(f"Functions over {PARAMETERS_MAX} parameters outside of cli/", wide_functions(trees))

    lengths = sorted(
        length(node, code[module])
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    )
    middle, p95 = statistics.median(lengths), lengths[round(0.95 * (len(lengths) - 1))]
    print(f"Function length in lines of code: median {middle:g}, p95 {p95}, longest {lengths[-1]}")
    tell("Imports that break the declared direction", broken_edges(root, modules, trees))


def large_modules(modules: dict[str, Path], sources: dict[str, str]) -> Iterator[str]:
    sizes = {module: len(sources[module].splitlines()) for module in modules}
    for module, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size > MODULE_LINES_MAX:
            yield f"{module} {size:,}"


def large_classes(trees: dict[str, ast.Module]) -> Iterator[str]:
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(member, Function) for member in node.body)
                if methods > CLASS_METHODS_MAX:
                    yield f"{module}.{node.name} {methods}"


def wide_functions(trees: dict[str, ast.Module]) -> Iterator[str]:
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Function) and part_of(module) != "cli" and parameters(node) > PARAMETERS_MAX:
                yield f"{module}.{node.name} {parameters(node)}"


def tell(title: str, found: Iterator[str]) -> None:
    """Print how many there are, and each on a line of its own."""
    listed = list(found)
    print(f"{title}: {len(listed)}")
    for entry in listed:
        print(f"  {entry}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the size and the structure of the source tree.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT, help="a checkout; this one by default")
    measure(parser.parse_args().path)
