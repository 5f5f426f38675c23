"""What the builder reads in code: names, imports, and solution lines that a lesson still has."""

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

    That is what they import, however deep; and once they import the course, the lesson's own
    modules, which it finds by the lesson's number. The catalogue does not count: it changes with
    every word of any lesson.
    """
    package = root / PACKAGE
    data = package.glob("data/**/*")
    files = {file for file in data if file.is_file() and file.name != "catalogue.json"}
    waiting = [module for cell in cells for module in _imported(plain_python(cell), "")]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module.split(".")[0] != PACKAGE:
            continue
        seen.add(module)
        above = module.rpartition(".")[0]
        waiting.append(above)
        if module == f"{PACKAGE}.course":
            own = f"lessons/lesson_{lesson}"
            waiting += [
                f"{module}.{own.replace('/', '.')}.{file.stem}"
                for file in (package / "course" / own).glob("*.py")
            ]
        if file := module_file(root, module):
            files.add(file)
            inside = module if file.name == "__init__.py" else above
            try:
                waiting += _imported(file.read_text(encoding="utf-8"), inside)
            except SyntaxError as error:
                raise SourceError(file, error.lineno or 1, error.msg, root) from None
    return sorted(files)


def _imported(code: str, package: str) -> Iterator[str]:
    """Modules that a text imports, those that `from x import y` may mean included."""
    for module, name, _ in imports(ast.parse(code), package):
        yield from (module, f"{module}.{name}")


# ------------------------------------------------------------------------------------- leaks


@dataclass(frozen=True, slots=True)
class Leak:
    """A solution line in a lesson: where it is, whose it is, and its text."""

    cell_id: str | None  # None: in the notebook's own metadata
    place: str
    owner: str  # the exercise cell's id
    module_line: int
    text: str


def leaks(lesson: NotebookNode, cuts: dict[str, Cut]) -> list[Leak]:
    """Lines of cut bodies that are somewhere in the lesson's notebook.

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
