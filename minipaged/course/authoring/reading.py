"""What the builder reads in code: names, imports, and solution lines that a lesson still holds."""

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from ..kit.source import BUILTINS, Names, global_names, imports, plain_python
from .cutting import Cut, tokens
from .lesson_text import SourceError, module_file

PACKAGE = "minipaged"
# Files of the course that no cell runs, unless a cell or another file imports them.
BUILD_ONLY = (
    "bench.py",
    "builder.py",
    "cli.py",
    "cutting.py",
    "execution.py",
    "installing.py",
    "reading.py",
)
LEAK_LENGTH = 20  # characters of a line; shorter ones say too little

_IPYTHON = {"display", "get_ipython"}
_IGNORED = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


# ------------------------------------------------------------------------------------- names


def free_names(code: str) -> Names:
    """The global names of a cell, builtins and those of IPython apart; see `global_names`.

    Raises:
        SyntaxError: when the code is not Python.
    """
    code = plain_python(code)
    names = global_names(ast.parse(code), code)
    hidden = BUILTINS | _IPYTHON
    return Names(names.bound, {n: line for n, line in names.used.items() if n not in hidden})


# ----------------------------------------------------------------------------------- imports


def reached_files(root: Path, lesson: str, cells: Iterable[str]) -> list[Path]:
    """Every file of the package that a notebook's cells can reach, data included.

    The course loads its own modules by name, when they are used, so one import of it reaches all
    of them; of the files of single lessons those up to this one.
    """
    package = root / PACKAGE
    files = {file for file in package.glob("data/**/*") if file.is_file()}
    waiting = [name for cell in cells for name in _imports(plain_python(cell), "")]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module.split(".")[0] != PACKAGE:
            continue
        seen.add(module)
        waiting.append(module.rpartition(".")[0])
        if module == f"{PACKAGE}.course":
            waiting += _course_modules(package / "course", lesson)
        if file := module_file(root, module):
            files.add(file)
            inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
            try:
                waiting += _imports(file.read_text(encoding="utf-8"), inside)
            except SyntaxError as error:
                raise SourceError(file, error.lineno or 1, error.msg, root) from None
    return sorted(files)


def _course_modules(course: Path, lesson: str) -> Iterator[str]:
    for file in sorted(course.glob("**/*.py")):
        parts = file.relative_to(course).with_suffix("").parts
        number = re.fullmatch(r"lesson_(\d\d).*", parts[-1])
        if file.name in BUILD_ONLY or "grading" in parts or (number and number[1] > lesson):
            continue
        yield ".".join((PACKAGE, "course", *parts)).removesuffix(".__init__")


def _imports(code: str, package: str) -> Iterator[str]:
    """Modules that a text imports, those that `from x import y` may mean included."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            prefix = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*prefix, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


# ------------------------------------------------------------------------------------- leaks


@dataclass(frozen=True, slots=True)
class Leak:
    """A solution line in a lesson: where it stands, whose it is, and its text."""

    cell_id: str | None  # None: in the notebook's own metadata
    place: str
    owner: str  # the exercise cell's id
    module_line: int
    text: str


def leaks(lesson: NotebookNode, cuts: dict[str, Cut]) -> list[Leak]:
    """Lines of cut bodies that stand somewhere in the lesson's notebook.

    A line does not count when it is short, or when the uncut code of the exercises has it too, as
    code: a comment or a docstring gives nothing free.
    """
    uncut = "\n".join(cut.stub for cut in cuts.values())
    given = "\0".join(["", *_code(uncut), ""])
    comments = {item.string for item in tokens(uncut) if item.type == tokenize.COMMENT}
    needles: list[tuple[str, int, str, re.Pattern[str]]] = []
    for owner, cut in cuts.items():
        for line, text in cut.removed:
            for part in _parts(text):
                if len(part) < LEAK_LENGTH or part in comments:
                    continue
                code = _code(part)
                if not code or "\0".join(["", *code, ""]) not in given:
                    pattern = rf"(?<!\w){re.escape(squeeze(part))}(?!\w)"
                    needles.append((owner, line, part, re.compile(pattern)))
    found = []
    for cell_id, place, text in _strings(lesson):
        text = squeeze(text)
        found += [
            Leak(cell_id, place, owner, line, part)
            for owner, line, part, pattern in needles
            if pattern.search(text)
        ]
    return found


def squeeze(text: str) -> str:
    """The text with each run of white space made one space."""
    return " ".join(text.split())


def _code(text: str) -> list[str]:
    """The tokens of a text that are code."""
    return [item.string for item in tokens(text) if item.type not in (*_IGNORED, tokenize.COMMENT)]


def _parts(text: str) -> list[str]:
    """A line's code and its comment."""
    text = text.strip()
    for item in tokens(text):
        if item.type == tokenize.COMMENT:
            return [text[: item.start[1]].strip(" ;"), item.string]
    return [text.strip(" ;")]


def _strings(lesson: NotebookNode) -> Iterator[tuple[str | None, str, str]]:
    for cell in lesson.cells:
        for key, value in cell.items():
            place = cell.cell_type if key == "source" else key
            yield from ((cell.id, place, text) for text in _texts(value))
    yield from ((None, "metadata", text) for text in _texts(lesson.metadata))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
