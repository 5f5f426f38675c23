"""What the tests of grading share: a sandbox, notebooks, and submissions out of a few lines."""

import atexit
import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minipaged.course.authoring.cutting import cut
from minipaged.course.grading.channel import Limits, SandboxError
from minipaged.course.grading.marking import Outcome, mark_exercise
from minipaged.course.grading.sandbox import Sandbox
from minipaged.course.grading.submissions import Cell, Contents
from minipaged.course.kit.catalogue import ROOT, catalogue
from minipaged.course.kit.mistakes import given_names

LIMITS = Limits(seconds=20, call_seconds=8, cpu_seconds=15, memory=1 << 30)


@cache
def _sandbox() -> Sandbox | str:
    try:
        sandbox = Sandbox("bubblewrap", LIMITS)
    except SandboxError as error:
        return str(error)
    atexit.register(sandbox.close)
    return sandbox


def sandbox() -> Sandbox:
    """The one sandbox of a test run; without namespaces the test is skipped."""
    found = _sandbox()
    if isinstance(found, str):
        pytest.skip(f"no bubblewrap sandbox here: {found}")
    return found


def module_text(exercise_id: str) -> str:
    """The module of an exercise's object."""
    module = catalogue()[exercise_id].module
    return (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def given(exercise_id: str) -> str:
    """What a lesson gives before an exercise."""
    return given_names(catalogue()[exercise_id])


def source(exercise_id: str) -> str:
    """The reference."""
    exercise = catalogue()[exercise_id]
    return cut(module_text(exercise_id), exercise.name, exercise.todo).source


def stub(exercise_id: str) -> str:
    """What a learner finds."""
    exercise = catalogue()[exercise_id]
    return cut(module_text(exercise_id), exercise.name, exercise.todo).stub


def contents(*texts: str) -> Contents:
    """A submission of some code cells without metadata."""
    cells = [Cell(f"cell {n}", textwrap.dedent(text), None) for n, text in enumerate(texts, 1)]
    return Contents(cells=cells)


def marked(exercise_id: str, *texts: str) -> Outcome:
    """The outcome of one exercise, its given names in a first cell."""
    exercise = catalogue()[exercise_id]
    return mark_exercise(exercise, contents(given(exercise_id), *texts), sandbox())


def code_cell(text: str, exercise_id: str | None = None, **extra: Any) -> dict[str, Any]:
    """A code cell as the builder makes them."""
    metadata: dict[str, Any] = {}
    if exercise_id:
        grade_id = f"ex-{exercise_id.replace('.', '-')}"
        metadata = {"minipaged": {"exercise": exercise_id}, "nbgrader": {"grade_id": grade_id}}
    cell = {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": []}
    return {**cell, "source": text, **extra}


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A notebook of some cells."""
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def lesson_cells(lesson: str, **instead: str) -> list[dict[str, Any]]:
    """A solved lesson's cells; e04_1="..." puts another text in the place of a solution."""
    cells = []
    for exercise in catalogue().values():
        if exercise.lesson == lesson:
            text = instead.get(f"e{exercise.id.replace('.', '_')}", source(exercise.id))
            cells.append(code_cell(given(exercise.id)))
            cells.append(code_cell(text, exercise.id))
            check = f'{exercise.name} = check("{exercise.id}", {exercise.name})'
            cells.append(code_cell(check))
    return cells


def write(path: Path, cells: list[dict[str, Any]]) -> Path:
    """Write a notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook(cells)), encoding="utf-8")
    return path
