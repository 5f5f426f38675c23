"""The package is read from lesson 0 on: its imports run one way, and its examples are true."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from minipaged.course.kit.catalogue import ROOT

PACKAGE = ROOT / "minipaged"
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def lesson_of(path: Path) -> int:
    found = re.match(r"Lesson (\d+):", ast.get_docstring(ast.parse(path.read_text())) or "")
    assert found, f"{path.name}: its docstring must open 'Lesson N:'"
    return int(found[1])


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, also in the middle of a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minipaged"):
            found.add((node.module or "").removeprefix("minipaged").strip("."))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("minipaged.")
                for alias in node.names
                if alias.name.startswith("minipaged.")
            }
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_run_from_later_lessons_to_earlier_ones(path: Path) -> None:
    for name in imported(path):
        assert not name.startswith("course"), f"{path.name} imports the course"
        assert lesson_of(PACKAGE / f"{name}.py") <= lesson_of(path), f"{path.name} imports {name}"


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, minipaged; print([m for m in sys.modules if m.startswith(('minipaged.', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_in_docstrings_are_true(path: Path) -> None:
    result = doctest.testmod(importlib.import_module(f"minipaged.{path.stem}"))
    assert result.failed == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_public_functions_and_classes_have_a_docstring(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name}"
