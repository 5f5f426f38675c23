"""The built notebooks run: solutions give the outputs they show, lessons run untouched."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minipaged.course.kit.catalogue import LESSONS, ROOT, SOLUTIONS

SOLVED = sorted(SOLUTIONS.glob("*.ipynb"))
UNTOUCHED = sorted(LESSONS.glob("*.ipynb"))


def name(path: Path) -> str:
    return path.stem


def run_nbval(path: Path, *options: str) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MINIPAGED_MINE": "off",
        "MINIPAGED_PREDICT": "reveal",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # one timeout a cell, and the kernel of this environment whatever kernelspecs there are
    command += ["--nbval-current-env", "--nbval-cell-timeout", "60", "-c", os.devnull, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("path", SOLVED, ids=name)
def test_solution_gives_the_outputs_it_shows(path: Path) -> None:
    run_nbval(path, "--nbval")


@pytest.mark.parametrize("path", UNTOUCHED, ids=name)
def test_untouched_lesson_runs_to_its_end(path: Path) -> None:
    run_nbval(path, "--nbval-lax")


@pytest.mark.parametrize("path", SOLVED, ids=name)
def test_solution_has_outputs_to_compare(path: Path) -> None:
    """A cleared notebook passes nbval, since there is nothing to compare."""
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    tags = [set(cell.metadata.get("tags", [])) for cell in cells]
    assert all(cell.execution_count for cell in cells)
    for cell, cell_tags in zip(cells, tags):
        if "check" in cell_tags:
            assert ": passed." in cell.outputs[0].text, cell.source
        if "figures." in cell.source and "nbval-ignore-output" not in cell_tags:
            assert cell.outputs, cell.source
    compared = [c for c, t in zip(cells, tags) if c.outputs and "nbval-ignore-output" not in t]
    assert len(compared) >= 8


@pytest.mark.parametrize("path", UNTOUCHED, ids=name)
def test_lesson_carries_no_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


def test_every_lesson_has_both_notebooks() -> None:
    assert SOLVED
    assert [path.name for path in SOLVED] == [path.name for path in UNTOUCHED]
