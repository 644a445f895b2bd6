"""How large the project is and how entangled: one table, and a failure where a number is above its limit.

``make shape`` prints it. The limits stand in ``shape.toml``; ``make shape ARGS=--lower`` lowers them to the
numbers of today. ``ARGS=--list`` names what is counted, such as the long functions.
"""

import argparse
import ast
import io
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
LIMITS: Final = Path(__file__).with_name("shape.toml")
PACKAGE: Final = "unstable_stream"
LONG_MODULE: Final = 500
LONG_FUNCTION: Final = 60
MANY_FIELDS: Final = 15
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


class Module:
    """One file: its text, its syntax tree, and which of its lines are code."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)

    @cached_property
    def code(self) -> set[int]:
        """The numbers of the lines that are neither blank nor a comment nor of a docstring."""
        lines = {number for number, line in enumerate(self.text.splitlines(), 1) if line.strip()}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                lines -= set(_lines(node))
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                lines.discard(token.start[0])
        return lines

    def imported(self, modules: dict[str, "Module"]) -> Iterator[str]:
        """Yield the modules that the file imports anywhere, lazy and typing ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in modules)
            elif isinstance(node, ast.ImportFrom) and node.module in modules:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in modules else node.module


def is_record(klass: ast.ClassDef) -> bool:
    """Return whether objects of a class only hold values: an event, a row, a section of the configuration."""
    made = [ast.unparse(each) for each in klass.decorator_list if "dataclass" in ast.unparse(each)]
    own = any(isinstance(each, Functions) and each.name == "__init__" for each in klass.body)
    return not own and all("frozen=True" in each for each in made)


def fields_of(klass: ast.ClassDef) -> set[str]:
    """Return the names annotated in the body of the class or assigned to ``self`` in ``__init__``."""
    names = {
        node.target.id
        for node in klass.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if "ClassVar" not in ast.unparse(node.annotation)
    }
    for method in klass.body:
        if isinstance(method, Functions) and method.name == "__init__":
            for node in ast.walk(method):
                match node:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                        names.add(name)
    return names


def circles_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of two modules or more of which each imports each, over others or not."""
    reach = {module: set[str]() for module in imports}
    for module, seen in reach.items():
        todo = list(imports[module])
        while todo:
            if (imported := todo.pop()) not in seen:
                seen.add(imported)
                todo += imports[imported]
    groups = {
        frozenset(other for other in reach[module] if module in reach[other]) | {module} for module in reach
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def measured() -> dict[str, list[str] | int]:
    """Return what is counted, by the name of its limit: a number, or the names of what is counted."""
    modules = {module.name: module for module in map(Module, sorted((ROOT / PACKAGE).rglob("*.py")))}
    tests = [Module(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
    functions, many_fields, homes = list[str](), list[str](), defaultdict[str, set[str]](set)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, Functions) and len(module.code.intersection(_lines(node))) > LONG_FUNCTION:
                functions.append(f"{module.name}.{node.name}")
            elif isinstance(node, ast.ClassDef):
                homes[node.name].add(module.name)
                if not is_record(node) and len(fields_of(node)) > MANY_FIELDS:
                    many_fields.append(f"{module.name}.{node.name}")
    top = [module for module in modules.values() if module.name.count(".") == 1]
    circles = circles_of({name: {*module.imported(modules)} - {name} for name, module in modules.items()})
    return {
        "code lines of the package": sum(len(module.code) for module in modules.values()),
        "code lines of the tests": sum(len(module.code) for module in tests),
        "packages at the root": [module.name for module in top if module.is_package],
        "modules at the root": [module.name for module in top if not module.is_package],
        f"modules above {LONG_MODULE} lines": [
            module.name for module in modules.values() if module.text.count("\n") > LONG_MODULE
        ],
        f"functions above {LONG_FUNCTION} code lines": functions,
        f"classes above {MANY_FIELDS} fields": many_fields,
        "circles of files": [" ".join(circle) for circle in circles],
        "class names in two modules or more": sorted(name for name, where in homes.items() if len(where) > 1),
    }


def main() -> None:
    """Print the table; exit with 1 where a number is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name what is counted")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the numbers of today")
    options = parser.parse_args()
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    counted = measured()
    numbers = {name: value if isinstance(value, int) else len(value) for name, value in counted.items()}
    for name, number in numbers.items():
        above = name in limits and number > limits[name]
        print(f"{name:38}{number:8}{limits.get(name, number):8}{'  above its limit' if above else ''}")
        if isinstance(names := counted[name], list) and (options.list or above):
            print("".join(f"    {item}\n" for item in names), end="")
    if options.lower:
        lines = (f'"{name}" = {min(number, limits.get(name, number))}\n' for name, number in numbers.items())
        LIMITS.write_text("".join(lines), encoding="utf-8")
    elif any(number > limits.get(name, -1) for name, number in numbers.items()):
        raise SystemExit(f"Above a limit of {LIMITS.name}: make it smaller, or argue for a higher limit.")


if __name__ == "__main__":
    main()
