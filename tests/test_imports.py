"""The package is read from lesson 0 on: its imports run one way, and its examples are true."""

import ast
import doctest
import importlib
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import minipaged
from minipaged import CHAPTERS
from minipaged.course.kit.catalogue import ROOT

PACKAGE = Path(minipaged.__file__).parent
ROOMS = [path for room in ("given", "interpreter") for path in (PACKAGE / room).glob("*.py")]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in [PACKAGE / f"{name}.py" for name in CHAPTERS] + sorted(ROOMS)
}
modules = pytest.mark.parametrize("name", MODULES)


def imported(name: str) -> set[str]:
    """The places of the package that a module imports from, below `minipaged.`, wherever it does."""
    path = MODULES[name]
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {place.removeprefix("minipaged.") for place in found if place.startswith("minipaged.")}


def test_the_chapters_are_all_listed_in_the_order_of_their_lessons() -> None:
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert files == set(CHAPTERS)
    assert list(CHAPTERS.values()) == sorted(CHAPTERS.values())


@pytest.mark.parametrize(("chapter", "lesson"), CHAPTERS.items())
def test_a_chapter_says_which_lesson_it_belongs_to(chapter: str, lesson: str) -> None:
    tree = ast.parse((PACKAGE / f"{chapter}.py").read_text())
    assert (ast.get_docstring(tree) or "").startswith(f"Lesson {int(lesson)}: ")


@modules
def test_imports_run_one_way(name: str) -> None:
    """The course imports chapters, a later chapter an earlier one, and all of them what is given."""
    order = list(CHAPTERS)
    below = name.removeprefix("minipaged.")
    earlier = order[: order.index(below)] if below in order else []
    for place in imported(name):
        home = place.partition(".")[0]
        assert home in ("given", "interpreter", *earlier), f"{name} imports {place}"


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, minipaged; print([m for m in sys.modules if m.startswith(('minipaged.', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@modules
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@modules
def test_public_functions_and_classes_have_a_docstring(name: str) -> None:
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}: {node.name}"
