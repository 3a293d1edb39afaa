"""The shape of the house: how long functions and modules are, and that no modules import each other in a circle."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.docs.pages import SOURCE

FUNCTION_LINES, LONG_SHARE = 50, 0.02
MODULE_LINES = 600
SMALL_LINES, SMALL_MODULES_MAX = 50, 40
ROOT_MODULES_MAX, PACKAGE_MODULES_MAX = 12, 20
# The client's types describe the same JSON as the models in wire/, for programs that cannot afford pydantic.
SHARED_WITH_WIRE = {"CancelledSchedule", "OutputLine", "ScheduleDetail", "SchedulePage", "TaskDetail", "TaskPage"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def test_no_module_is_too_long() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}

    assert {name: length for name, length in lengths.items() if length > MODULE_LINES} == {}


def test_no_package_holds_too_many_modules() -> None:
    sizes = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")

    assert sizes.pop(SOURCE) <= ROOT_MODULES_MAX
    assert {package: size for package, size in sizes.items() if size > PACKAGE_MODULES_MAX} == {}


def test_few_modules_are_very_small() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES.values()
        if path.name != "__init__.py"
    }

    assert sum(length < SMALL_LINES for length in lengths.values()) <= SMALL_MODULES_MAX


def test_no_class_name_stands_for_two_things() -> None:
    names = Counter(node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))

    assert {name for name, count in names.items() if count > 1} == SHARED_WITH_WIRE


def test_at_most_a_few_functions_are_long() -> None:
    lengths = {
        f"{name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    long = {name: length for name, length in lengths.items() if length > FUNCTION_LINES}

    assert len(long) <= LONG_SHARE * len(lengths), long


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle_in({name: imported(name) - {name} for name in MODULES}) == []


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imported(name: str) -> set[str]:
    """The modules of ours that one imports, also inside functions and for the type checker alone."""
    found: set[str] = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module, not all that the package's own file imports.
            found |= inside & set(MODULES) or {node.module}
    return found & set(MODULES)
