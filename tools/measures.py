"""Measures of the package's code: `python tools/measures.py [FOLDER]`, from the root of the repository.

Lines by folder, and how fragmented the code is: functions of one statement, private functions that are used once,
dataclasses that are made in one place, protocols with fewer than two implementations, numbers that have a name.
"""

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(node: ast.expr) -> str:
    """Return the last name of an expression such as ``typing.Protocol`` or ``dataclass(frozen=True)``."""
    node = node.func if isinstance(node, ast.Call) else node
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def statements(function: Function) -> int:
    """Return how many statements a function has: all of its body, without its docstring."""
    inside = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    return len(inside) - (ast.get_docstring(function) is not None)


def is_number(node: ast.expr | None) -> bool:
    """Return whether an expression is made of numbers alone."""
    kinds = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
    parts = [] if node is None else list(ast.walk(node))
    held = [part.value for part in parts if isinstance(part, ast.Constant)]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in held)
    return bool(held) and numbers and all(isinstance(part, kinds) for part in parts)


def constants(tree: ast.Module) -> int:
    """Return how many names of a module stand for numbers."""
    places = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    return sum(
        len(place.targets[0].elts) if isinstance(place, ast.Assign) and isinstance(place.targets[0], ast.Tuple) else 1
        for place in places
        if is_number(place.value)
    )


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions and methods of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def measures(folder: Path) -> dict[str, object]:
    """Return the measures of all files of a folder."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
    used = Counter(name for path in trees for name in re.findall(r"\w+", path.read_text()))
    made = Counter(
        name_of(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)
    ) + Counter(name_of(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Subscript))
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = Counter(name_of(base) for node in classes for base in node.bases)
    protocols = [node for node in classes if any(name_of(base) == "Protocol" for base in node.bases)]
    every = [node for tree in trees.values() for node in functions(tree)]
    abstract = {id(node) for protocol in protocols for node in functions(protocol)}
    bodies = [statements(node) for node in every if id(node) not in abstract]
    private = [node.name for node in every if node.name.startswith("_") and not node.name.endswith("__")]
    data = [node for node in classes if any(name_of(each) == "dataclass" for each in node.decorator_list)]
    lines = Counter[str]()
    for path in trees:
        part = path.relative_to(folder).parts
        lines["/".join(part[:-1]) or "(top)"] += len(path.read_text().splitlines())
    return {
        **{f"lines of {name}": count for name, count in sorted(lines.items())},
        "lines": lines.total(),
        "files": len(trees),
        "functions": len(every),
        "median statements": statistics.median(bodies),
        "one statement, %": round(100 * sum(body <= 1 for body in bodies) / len(bodies)),
        "private functions used once": sum(used[name] == 2 for name in private),
        "classes": len(classes),
        "dataclasses": len(data),
        "dataclasses made in one place": sum(made[node.name] + bases[node.name] <= 1 for node in data),
        "protocols": len(protocols),
        "copies in __post_init__": sum(node.name == "__post_init__" for node in every),
        "numbers with a name": sum(constants(tree) for tree in trees.values()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("pymc_dp"))
    for name, value in measures(parser.parse_args().folder).items():
        print(f"{name:<32}{value:>8}")
