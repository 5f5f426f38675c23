"""Build lessons/*.ipynb, solutions/*.ipynb and the catalogue from the lessons' texts and the package.

    python -m minipaged.course.authoring.builder [--check] [--execute] [LESSON ...]

A lesson and the catalogue are pure functions of the sources. A solution is executed, and executed again only when
what it is built from has changed, or with --execute. With --check nothing is written or executed:
each built file that differs from what the sources build is named, with the file to edit.
"""

import argparse
import copy
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode, v4

from ..kit import catalogue
from ..kit.catalogue import Exercise
from .cutting import Cut, cut
from .execution import CellFailed, execute, outputs_digest
from .lesson_text import (
    SOURCES,
    LessonText,
    SourceError,
    as_json,
    lesson_files,
    module_file,
    read_course,
    read_lesson,
)
from .reading import free_names, leaks, reached_files, squeeze

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE_INFO = {"name": "python"}


@dataclass(frozen=True, slots=True)
class Pair:
    """What one source builds; `lines` has the source's line of each code cell, by the cell's id."""

    lesson: LessonText
    stubs: NotebookNode
    solved: NotebookNode
    lines: dict[str, int]

    @property
    def stubs_file(self) -> Path:
        return self.lesson.root / "lessons" / f"{self.lesson.about.notebook}.ipynb"

    @property
    def solved_file(self) -> Path:
        return self.lesson.root / "solutions" / f"{self.lesson.about.notebook}.ipynb"


# ---------------------------------------------------------------- from the sources to notebooks


def render(lesson: LessonText) -> Pair:
    """Both notebooks of a lesson, nothing executed.

    Raises:
        SourceError: when a cell is no Python, when a solution line is left in the lesson, or when
            an exercise cell uses a name that no earlier cell binds.
    """
    for fence in lesson.fences:
        try:
            free_names(fence.code)  # it reads the whole cell
        except SyntaxError as error:
            raise lesson.error(fence.line + (error.lineno or 1), f"{error.msg}") from None
    read = jupytext.reads(lesson.markdown, fmt="md").cells
    code = [cell.source.strip() for cell in read if cell.cell_type == "code"]
    if code != [fence.code.strip() for fence in lesson.fences]:
        raise lesson.error(1, "jupytext finds other code cells than the fences of this text")
    fences, stubs, solved, lines = iter(lesson.fences), [], [], {}
    cuts: dict[str, Cut] = {}
    before: Exercise | None = None
    for idx, cell in enumerate(read):
        cell_id = f"{lesson.about.id}-{idx:03d}"
        if cell.cell_type != "code":
            stubs.append(v4.new_markdown_cell(cell.source, id=cell_id))
            solved.append(v4.new_markdown_cell(cell.source, id=cell_id))
            continue
        fence = next(fences)
        lines[cell_id] = fence.line
        metadata: dict[str, Any] = {}
        if fence.tags:
            metadata["tags"] = list(fence.tags)
        stub = source = fence.code
        if fence.exercise:
            cuts[cell_id] = _cut(lesson, fence.exercise)
            stub, source = cuts[cell_id].stub, cuts[cell_id].source
            metadata["minipaged"] = {"exercise": fence.exercise.id}
        solved.append(v4.new_code_cell(source, id=cell_id, metadata=metadata))
        nbgrader = _nbgrader(fence.exercise, before)
        stubs.append(v4.new_code_cell(stub, id=cell_id, metadata={**metadata, **nbgrader}))
        before = fence.exercise
    pair = Pair(lesson, _notebook(lesson, stubs), _notebook(lesson, solved, True), lines)
    _refuse_unbound_names(pair, cuts)
    _refuse_leaks(pair, cuts)
    return pair


def _cut(lesson: LessonText, exercise: Exercise) -> Cut:
    file = module_file(lesson.root, exercise.module)
    assert file is not None  # read_lesson has found the module
    return cut(file.read_text(encoding="utf-8"), exercise.name, exercise.todo)


def _nbgrader(exercise: Exercise | None, before: Exercise | None) -> dict[str, Any]:
    """nbgrader's metadata of an exercise's cell, and of its check, the code cell behind it."""
    given: dict[str, Any] = {"schema_version": 3, "task": False}
    if exercise:
        name = f"ex-{exercise.id.replace('.', '-')}"
        given |= {"grade_id": name, "grade": False, "solution": True, "locked": False}
    elif before:
        name = f"check-{before.id.replace('.', '-')}"
        given |= {"grade_id": name, "grade": True, "solution": False, "locked": True}
        given |= {"points": before.points, "cell_type": "code"}
    return {"nbgrader": given} if exercise or before else {}


def _notebook(lesson: LessonText, cells: list[NotebookNode], solved: bool = False) -> NotebookNode:
    digest = hashlib.sha256(json.dumps(cells, sort_keys=True).encode())
    if solved:
        sources = [cell.source for cell in cells if cell.cell_type == "code"]
        for file in reached_files(lesson.root, lesson.about.id, sources):
            digest.update(file.relative_to(lesson.root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    own = {"lesson": lesson.about.id, "built_from": digest.hexdigest()}
    metadata = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO, "minipaged": own}
    notebook = v4.new_notebook(cells=cells, metadata=metadata)
    notebook.nbformat_minor = 5
    nbformat.validate(notebook)
    return notebook


def free_names_unbound(notebook: NotebookNode) -> list[tuple[str, int, str]]:
    """Names that an exercise cell uses and neither it nor an earlier cell binds.

    Returns:
        The cell's id, the line in the cell, and the name, for each.
    """
    bound: set[str] = set()
    unbound = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        names = free_names(cell.source)
        bound |= names.bound
        if "exercise" in cell.metadata.get("minipaged", {}):
            missing = sorted((line, name) for name, line in names.used.items() if name not in bound)
            unbound += [(cell.id, line, name) for line, name in missing]
    return unbound


def _refuse_unbound_names(pair: Pair, cuts: dict[str, Cut]) -> None:
    lesson = pair.lesson
    by_line = {fence.line: fence for fence in lesson.fences}
    for cell_id, line, name in free_names_unbound(pair.solved):
        exercise = by_line[pair.lines[cell_id]].exercise
        assert exercise is not None
        file = module_file(lesson.root, exercise.module)
        assert file is not None
        where = f"{file.relative_to(lesson.root).as_posix()}:{cuts[cell_id].line + line - 1}"
        message = f"exercise {exercise.id} uses {name!r} ({where}); no earlier cell binds it"
        raise lesson.error(lesson.lines[exercise.id], message)


def _refuse_leaks(pair: Pair, cuts: dict[str, Cut]) -> None:
    lesson = pair.lesson
    exercises = {fence.line: fence.exercise for fence in lesson.fences if fence.exercise}
    for leak in leaks(pair.stubs, cuts):
        exercise = exercises[pair.lines[leak.owner]]
        module = exercise.module.replace(".", "/") + ".py"
        line = _line_of(lesson, leak.text) or pair.lines.get(leak.cell_id or "", 1)
        message = f"a solution line of exercise {exercise.id} is left in {leak.place}"
        raise lesson.error(line, f"{message}: {leak.text!r} ({module}:{leak.module_line})")


def _line_of(lesson: LessonText, text: str) -> int | None:
    """The source's line where a text begins; it may run over a few lines."""
    lines = lesson.file.read_text(encoding="utf-8").split("\n")
    text = squeeze(text)
    for height in range(1, 6):
        for idx in range(len(lines)):
            if text in squeeze("\n".join(lines[idx : idx + height])):
                return idx + 1
    return None


# ----------------------------------------------------------------------- compare and write


def as_text(notebook: NotebookNode) -> str:
    """A notebook as it stands in its file: keys sorted, a newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def solution_problem(pair: Pair) -> str | None:
    """Why the solution's file is not what its sources build, or None."""
    try:
        text = pair.solved_file.read_text(encoding="utf-8")
        found = nbformat.reads(text, as_version=4)
        nbformat.validate(found)
    except FileNotFoundError:
        return "is not built yet"
    except (ValueError, AttributeError, TypeError, nbformat.ValidationError):
        return "is no notebook"
    expected = copy.deepcopy(pair.solved)
    own = found.metadata.get("minipaged", {})
    by_id = {cell.get("id"): cell for cell in found.cells if cell.cell_type == "code"}
    for cell in expected.cells:
        if cell.cell_type == "code" and cell.id in by_id:
            cell.outputs = by_id[cell.id].outputs
            cell.execution_count = by_id[cell.id].execution_count
    if [_as_dict(cell) for cell in found.cells] != [_as_dict(cell) for cell in expected.cells]:
        return "has other cells than its sources build"
    if own.get("built_from") != expected.metadata.minipaged.built_from:
        return "was executed before the package changed"
    if not all(cell.execution_count for cell in by_id.values()):
        return "has cells that were not executed"
    if by_id and not any(cell.outputs for cell in by_id.values()):
        return "has no outputs"
    if own.get("outputs") != outputs_digest(found):
        return "has outputs edited by hand"
    expected.metadata.minipaged.outputs = own["outputs"]
    return None if text == as_text(expected) else "has other metadata than its sources build"


def _as_dict(cell: NotebookNode) -> dict[str, Any]:
    return json.loads(json.dumps(cell))  # type: ignore[no-any-return]


def check(sources: Path = SOURCES) -> list[str]:
    """What differs between the built files and what the sources build, in words."""
    problems: list[str] = []
    root, known = sources.resolve().parents[2], set()
    for file in lesson_files(sources):
        try:
            lesson = read_lesson(file)
            known.add(lesson.about.notebook)
            problems += _differences(render(lesson))
        except SourceError as error:
            problems.append(str(error))
    if problem := catalogue_problem(sources):
        problems.append(problem)
    for file in sorted([*root.glob("lessons/*"), *root.glob("solutions/*.ipynb")]):
        if file.stem not in known and file.name != ".ipynb_checkpoints":
            name = file.relative_to(root).as_posix()
            problems.append(f"{name} is not built from any lesson's text: remove it")
    return problems


def catalogue_file(sources: Path) -> Path:
    """Where the catalogue of some texts is."""
    return sources.resolve().parents[2] / catalogue.FILE.relative_to(catalogue.ROOT)


def catalogue_problem(sources: Path) -> str | None:
    """Why the catalogue's file is not what the texts say, or None."""
    try:
        text = as_json(read_course(sources))
    except SourceError as error:
        return str(error)
    file = catalogue_file(sources)
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return None
    return f"{file.name} differs from what the lessons' texts say: run make notebooks"


def _differences(pair: Pair) -> list[str]:
    root, source = pair.lesson.root, pair.lesson.file.relative_to(pair.lesson.root).as_posix()
    modules = sorted({fence.exercise.module for fence in pair.lesson.fences if fence.exercise})
    files = "".join(f" or {module.replace('.', '/')}.py" for module in modules)
    advice = f"edit {source}{files}, then run make notebooks"
    stubs = pair.stubs_file
    problems = []
    if not stubs.exists() or stubs.read_text(encoding="utf-8") != as_text(pair.stubs):
        name = stubs.relative_to(root).as_posix()
        problems.append(f"{name} differs from what {source} builds: {advice}")
    if problem := solution_problem(pair):
        name = pair.solved_file.relative_to(root).as_posix()
        problems.append(f"{name} {problem}: run make notebooks; to change it, edit {source}{files}")
    return problems


def write(file: Path, text: str) -> bool:
    """Write a file in one step, and only if it differs."""
    if file.exists() and file.read_bytes() == text.encode():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}.{os.getpid()}")
    half.write_bytes(text.encode())
    half.replace(file)
    return True


def solve(pair: Pair) -> NotebookNode:
    """Execute the solution.

    Raises:
        SourceError: when a cell fails.
    """
    pair.solved_file.parent.mkdir(exist_ok=True)
    try:
        return execute(pair.solved, pair.solved_file.parent, pair.lesson.root)
    except CellFailed as error:
        line = pair.lines[error.cell.id]
        line += 0 if "minipaged" in error.cell.metadata else error.line
        message = f"cell {error.cell.id} of the solution {error}"
        raise pair.lesson.error(line, message) from None


def build_lesson(file: Path, always: bool = False) -> list[str]:
    """Build one lesson and its solution; returns a line on each."""
    pair = render(read_lesson(file))
    log, name = [], pair.solved_file.name
    written = write(pair.stubs_file, as_text(pair.stubs))
    log.append(f"lessons/{pair.stubs_file.name}: {'written' if written else 'unchanged'}")
    if always or solution_problem(pair):
        start = time.monotonic()
        write(pair.solved_file, as_text(solve(pair)))
        log.append(f"solutions/{name}: executed in {time.monotonic() - start:.0f} s")
    else:
        log.append(f"solutions/{name}: unchanged")
    return log


def main(argv: Sequence[str] | None = None, sources: Path = SOURCES) -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.course.authoring.builder")
    parser.add_argument("lesson", nargs="*", help="a lesson's number, such as 04")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    parser.add_argument("--execute", action="store_true", help="execute every solution again")
    args = parser.parse_args(argv)
    if args.check:
        problems = check(sources)
        print("".join(f"{problem}\n" for problem in problems), end="", file=sys.stderr)
        return int(bool(problems))
    files = {file.parent.name.removeprefix("lesson_"): file for file in lesson_files(sources)}
    for number in args.lesson or files or [""]:
        if number not in files:
            parser.error(
                f"there is no lesson {number!r} in {sources}; there are {', '.join(files)}"
            )
    failed = False
    try:
        written = write(catalogue_file(sources), as_json(read_course(sources)))
        print(f"{catalogue.FILE.name}: {'written' if written else 'unchanged'}", flush=True)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    for number in args.lesson or files:
        try:
            print("\n".join(build_lesson(files[number], args.execute)), flush=True)
        except SourceError as error:
            print(error, file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
