"""What the exercises of the course are, read from the fence lines of lessons/source/*.md.

An exercise is a fence without code below a bold line that gives its title:

    **Exercise 04.1 · a pool of blocks** · easy · 10 minutes

    ```python exercise="04.1" object="minipaged.block_table:BlockPool" todo=["free"] minutes=10 ...
    ```

The fence is the one place that says what an exercise is. It is read strictly: whatever is not
understood is a `SourceError` that names file and line.
"""

import ast
import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .cutting import Function, find_definition, methods

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
SOURCES = LESSONS / "source"
SOLUTIONS = ROOT / "solutions"

LEVELS = ("easy", "medium", "hard")
TAGS = ("check", "predict", "nbval-ignore-output")
TEXT_LANGUAGES = ("", "text", "console", "json", "diff", "c", "cpp", "cuda", "yaml", "toml")

_REQUIRED = {"exercise": str, "object": str, "minutes": int, "level": str}
_OPTIONAL = {"todo": list, "points": int}
_KEYS = {**_REQUIRED, **_OPTIONAL, "tags": list}

_TITLE = re.compile(r"\*\*Exercise (\S+) · ([^*]+)\*\*(.*)")
_DIRECTIVE = re.compile(
    r"\b(exercise|object|todo|tags)\s*=\s*[\"\[]|^\s*<!--\s*#(end)?(region|md|raw)"
)


class SourceError(ValueError):
    """Something in a source is wrong. The message starts `file:line: `."""

    def __init__(self, file: Path, line: int, message: str, root: Path = ROOT) -> None:
        name = file.relative_to(root) if file.is_relative_to(root) else file
        super().__init__(f"{name.as_posix()}:{line}: {message}")


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise.

    Attributes:
        id: "04.1".
        lesson: "04".
        module, name: where the object stands: "minipaged.block_table", "BlockPool".
        todo: the methods left to the learner; empty for a function, whose whole body is left.
        file, line: the fence in the lesson's source.
    """

    id: str
    lesson: str
    module: str
    name: str
    todo: tuple[str, ...]
    minutes: int
    level: str
    points: int
    title: str
    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class Fence:
    """A code cell of a lesson's source; its code begins on the line after `line`."""

    line: int
    code: str
    tags: tuple[str, ...]
    exercise: Exercise | None


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson's source: `text` is the Markdown as jupytext is to read it, line for line."""

    file: Path
    root: Path
    text: str
    fences: tuple[Fence, ...]

    @property
    def id(self) -> str:
        return self.file.name[:2]

    def error(self, line: int, message: str) -> SourceError:
        return SourceError(self.file, line, message, self.root)


def module_file(root: Path, module: str) -> Path | None:
    """Where a module's source stands below the root, if it does."""
    path = root.joinpath(*module.split("."))
    candidates = (path.with_name(path.name + ".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def lesson_files(sources: Path = SOURCES) -> list[Path]:
    """The sources of lessons, in order."""
    return sorted(sources.glob("[0-9][0-9]_*.md"))


@cache
def catalogue(sources: Path = SOURCES) -> dict[str, Exercise]:
    """Every exercise by its id, in order. Read once."""
    return collect(map(read_lesson, lesson_files(sources)))


def objects() -> dict[str, Exercise]:
    """The same exercises by the names of their objects."""
    return {exercise.name: exercise for exercise in catalogue().values()}


def collect(lessons: Iterable[Lesson]) -> dict[str, Exercise]:
    """The exercises of lessons by id.

    Raises:
        SourceError: when an id or an object stands twice.
    """
    by_id: dict[str, Exercise] = {}
    by_name: dict[str, Exercise] = {}
    for lesson in lessons:
        for exercise in (fence.exercise for fence in lesson.fences if fence.exercise):
            for key, seen in ((exercise.id, by_id), (exercise.name, by_name)):
                if key in seen:
                    first = f"{seen[key].file.name}:{seen[key].line}"
                    what = "exercise" if seen is by_id else "object"
                    raise lesson.error(exercise.line, f"{what} {key!r} stands already at {first}")
                seen[key] = exercise
    return dict(sorted(by_id.items(), key=lambda item: _order(item[0])))


def _order(exercise_id: str) -> tuple[int, int]:
    lesson, number = exercise_id.split(".")
    return int(lesson), int(number)


def read_lesson(file: Path) -> Lesson:
    """Read a lesson's source, `root/lessons/source/NN_name.md`.

    Raises:
        SourceError: for anything that is not understood.
    """
    return _Reader(file).read()


class _Reader:
    def __init__(self, file: Path) -> None:
        self.file = file.resolve()
        self.root = self.file.parents[2]
        self.lines = file.read_text(encoding="utf-8").split("\n")
        self.titles: list[tuple[int, str, str, str]] = []  # line, id, title, what follows

    def error(self, line: int, message: str) -> SourceError:
        return SourceError(self.file, line, message, self.root)

    def read(self) -> Lesson:
        self._blank_front_matter()
        fences: list[Fence] = []
        number = 0
        while number < len(self.lines):
            number += 1
            text = self.lines[number - 1]
            if title := _TITLE.match(text):
                self.titles.append((number, title[1], title[2], title[3]))
            if not self._opens_fence(number, text):
                continue
            close = self._closing(number)
            if text.startswith("```python"):
                fences.append(self._fence(number, "\n".join(self.lines[number : close - 1])))
            number = close
        self._match(fences)
        return Lesson(self.file, self.root, "\n".join(self.lines), tuple(fences))

    def _blank_front_matter(self) -> None:
        """Jupytext's header may stand at the top; it has no say, so it is blanked."""
        if self.lines[0] != "---":
            return
        if "---" not in self.lines[1:]:
            raise self.error(1, "the header is not closed by a line ---")
        end = self.lines.index("---", 1)
        for line, text in enumerate(self.lines[1:end], 2):
            if not re.match(r"\s|jupyter:", text):
                raise self.error(line, f"the header may hold `jupyter:` only, not {text!r}")
        self.lines[: end + 1] = [""] * (end + 1)

    def _opens_fence(self, line: int, text: str) -> bool:
        found = re.match(r"( *)(`{2,}|~{3,})( *)([^\s`]*)(.*)", text)
        if found is None or (found[2] == "``" and not found[4].startswith("python")):
            if _DIRECTIVE.search(text):
                raise self.error(line, f"a directive that is not in a ```python fence: {text!r}")
            return False
        indent, ticks, gap, language, rest = found.groups()
        if language == "python" and (indent or gap or ticks != "```"):
            raise self.error(line, "a code cell opens with ```python at the start of the line")
        if indent:
            return False
        if ticks != "```":
            raise self.error(line, f"a fence opens with three backticks, not {ticks!r}")
        if language != "python" and (language not in TEXT_LANGUAGES or rest.strip()):
            known = ", ".join(filter(None, TEXT_LANGUAGES))
            raise self.error(line, f"fence {text!r}: use ```python for a cell, or one of {known}")
        return True

    def _closing(self, line: int) -> int:
        for number in range(line + 1, len(self.lines) + 1):
            if self.lines[number - 1].startswith("```"):
                if self.lines[number - 1].rstrip() == "```":
                    return number
                break
        raise self.error(line, "this fence is not closed")

    def _fence(self, line: int, code: str) -> Fence:
        keys = self._keys(line, self.lines[line - 1].removeprefix("```python"))
        tags = keys.pop("tags", [])
        for tag in tags:
            if tag not in TAGS:
                raise self.error(line, f"unknown tag {tag!r}; known are {', '.join(TAGS)}")
        exercise = self._exercise(line, keys) if keys else None
        if exercise and (code.strip() or tags):
            raise self.error(line, "the fence of an exercise holds no code and has no tags")
        if not exercise and not code.strip():
            raise self.error(line, "this code cell is empty")
        return Fence(line, code, tuple(tags), exercise)

    def _keys(self, line: int, text: str) -> dict[str, Any]:
        """The `key=value` pairs of a fence line; values are JSON."""
        keys: dict[str, Any] = {}
        while text.strip():
            found = re.match(r"\s+([\w-]+)=(?=\S)", text)
            if found is None:
                raise self.error(line, f"expected key=value, found {text.strip()!r}")
            key, text = found[1], text[found.end() :]
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, 1)
                hint = f"; is it {near[0]!r}?" if near else f"; known are {', '.join(_KEYS)}"
                raise self.error(line, f"unknown key {key!r}{hint}")
            if key in keys:
                raise self.error(line, f"key {key!r} stands twice")
            try:
                value, end = json.JSONDecoder().raw_decode(text)
            except json.JSONDecodeError:
                raise self.error(line, f"the value of {key!r} is not JSON: {text!r}") from None
            is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
            if type(value) is not _KEYS[key] or (_KEYS[key] is list and not is_list):
                kind = {str: "a string", int: "a whole number", list: "a list of strings"}
                raise self.error(line, f"{key!r} must be {kind[_KEYS[key]]}, not {value!r}")
            keys[key], text = value, text[end:]
        return keys

    def _exercise(self, line: int, keys: dict[str, Any]) -> Exercise:
        for key in _REQUIRED:
            if key not in keys:
                raise self.error(line, f"this exercise has no {key!r}")
        lesson = self.file.name[:2]
        if not re.fullmatch(rf"{lesson}\.[1-9]\d*", keys["exercise"]):
            raise self.error(line, f"exercise {keys['exercise']!r} is no id of lesson {lesson}")
        if keys["level"] not in LEVELS:
            raise self.error(line, f"level {keys['level']!r} is none of {', '.join(LEVELS)}")
        if keys["minutes"] < 1 or keys.get("points", 1) < 1:
            raise self.error(line, "minutes and points are at least 1")
        module, colon, name = keys["object"].partition(":")
        if not (colon and module and name):
            raise self.error(line, f"object {keys['object']!r} is not module:name")
        todo = tuple(keys.get("todo", ()))
        self._resolve(line, module, name, todo)
        title = self._title(line, keys)
        return Exercise(
            id=keys["exercise"],
            lesson=lesson,
            module=module,
            name=name,
            todo=todo,
            minutes=keys["minutes"],
            level=keys["level"],
            points=keys.get("points", 1),
            title=title,
            file=self.file,
            line=line,
        )

    def _resolve(self, line: int, module: str, name: str, todo: tuple[str, ...]) -> None:
        file = module_file(self.root, module)
        if file is None:
            raise self.error(line, f"there is no module {module!r}")
        try:
            node = find_definition(ast.parse(file.read_text(encoding="utf-8")), name)
        except SyntaxError as error:
            raise self.error(line, f"module {module!r} has a syntax error: {error}") from None
        if node is None:
            raise self.error(line, f"{module!r} has no function or class {name!r}")
        if isinstance(node, Function):
            if todo:
                raise self.error(line, f"{name!r} is a function: it has no 'todo'")
            return
        if not todo:
            raise self.error(line, f"{name!r} is a class: 'todo' must list methods")
        for method in todo:
            if not methods(node, method):
                raise self.error(line, f"class {name!r} has no method {method!r}")

    def _title(self, line: int, keys: dict[str, Any]) -> str:
        exercise_id = keys["exercise"]
        if not self.titles:
            raise self.error(line, f"no line **Exercise {exercise_id} · ...** stands above")
        above, found, title, rest = self.titles[-1]
        if found != exercise_id:
            raise self.error(above, f"the title of {found} stands above exercise {exercise_id}")
        minutes = re.search(r"(\d+) min", rest)
        level = re.search(r"\b(" + "|".join(LEVELS) + r")\b", rest)
        for key, stated in (("minutes", minutes), ("level", level)):
            if stated and stated[1] != str(keys[key]):
                raise self.error(above, f"says {stated[1]}, the fence {key}={keys[key]}")
        return title.strip()

    def _match(self, fences: list[Fence]) -> None:
        """Each title has its exercise, and each exercise its check right behind."""
        ids = {fence.exercise.id for fence in fences if fence.exercise}
        for line, exercise_id, *_ in self.titles:
            if exercise_id not in ids:
                raise self.error(line, f"exercise {exercise_id} has a title and no cell")
        for before, fence in zip([None, *fences], [*fences, None], strict=True):
            exercise = before.exercise if before else None
            is_check = fence is not None and "check" in fence.tags
            if exercise is None:
                if fence and is_check:
                    raise self.error(fence.line, "a check cell stands right after its exercise")
                continue
            due = f'{exercise.name} = check("{exercise.id}", {exercise.name})'
            if not is_check or fence is None:
                raise self.error(exercise.line, f'no ```python tags=["check"] with {due} follows')
            if not _same_code(fence.code, due):
                raise self.error(fence.line + 1, f"this check cell must hold {due}")


def _same_code(code: str, due: str) -> bool:
    try:
        return ast.dump(ast.parse(code)) == ast.dump(ast.parse(due))
    except SyntaxError:
        return False
