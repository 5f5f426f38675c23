"""Reads a lesson's text, `lessons/lesson_NN/lesson.md`: a fence for each kind of thing.

    ```python                    a cell
    ```python exercise="04.1" object="minipaged.block_table:BlockPool" todo=["free"] minutes=10 ...
    ```check 04.1                what holds, a blank line, then the rules: `key => sentence`
    ```hints 04.1                three paragraphs
    ```mistakes 04.1             what is said of each known mistake: `name => sentence`
    ```prediction 04.a choices   the question, a blank line, then the answers: `answer => reason`
    ```answers                   to the closing questions; folded in the notebook
    ```phrases                   (in phrases.md) the sentences of the kit: `key => sentence`

The text is read strictly: whatever is not understood is a `SourceError` that names file and line.
"""

import ast
import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ..kit.catalogue import PACKAGE, ROOT, Course, Exercise, Lesson, Prediction
from ..kit.source import Function, find_definition, global_names, imports, plain_python
from .cutting import methods

SOURCES = PACKAGE / "course" / "lessons"

LEVELS = ("easy", "medium", "hard")
IGNORE = "nbval-ignore-output"
TAGS = ("check", IGNORE)
TEXT_LANGUAGES = ("", "text", "console", "json", "diff", "c", "cpp", "cuda", "yaml", "toml")
KINDS = ("check", "hints", "mistakes", "prediction", "answers", "phrases")

_REQUIRED = {"exercise": str, "object": str, "minutes": int, "level": str}
_OPTIONAL = {"todo": list, "points": int}
_KEYS = {**_REQUIRED, **_OPTIONAL, "tags": list}

_TITLE = re.compile(r"\*\*Exercise (\S+) · ([^*]+)\*\*(.*)")
_DIRECTIVE = re.compile(
    r"\b(exercise|object|todo|tags)\s*=\s*[\"\[]|^\s*<!--\s*#(end)?(region|md|raw)"
    rf"|^\s*`+ *(python|{'|'.join(KINDS)}) "
)
_FOLDED = "<details>\n<summary>Answers</summary>\n\n{}\n\n</details>"


class SourceError(ValueError):
    """Something in a source is wrong. The message starts `file:line: `."""

    def __init__(self, file: Path, line: int, message: str, root: Path = ROOT) -> None:
        name = file.relative_to(root) if file.is_relative_to(root) else file
        super().__init__(f"{name.as_posix()}:{line}: {message}")


@dataclass(frozen=True, slots=True)
class Fence:
    """A code cell of a lesson's text; its code begins on the line after `line`."""

    line: int
    code: str
    tags: tuple[str, ...]
    exercise: Exercise | None


@dataclass(frozen=True, slots=True)
class LessonText:
    """A lesson as it was read.

    Attributes:
        root: the folder that the package is in.
        about: id, name of the notebook, title and minutes.
        markdown: the text as jupytext is to read it: without what the catalogue takes.
        lines: where each exercise's and each prediction's fence is, by id.
    """

    file: Path
    root: Path
    about: Lesson
    markdown: str
    fences: tuple[Fence, ...]
    exercises: tuple[Exercise, ...]
    predictions: tuple[Prediction, ...]
    lines: dict[str, int]

    def error(self, line: int, message: str) -> SourceError:
        """An error in this text."""
        return SourceError(self.file, line, message, self.root)


def module_file(root: Path, module: str) -> Path | None:
    """The file of a module below the root, if there is one."""
    path = root.joinpath(*module.split("."))
    candidates = (path.with_name(path.name + ".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def lesson_files(sources: Path = SOURCES) -> list[Path]:
    """The texts of the lessons, in order."""
    return sorted(sources.glob("lesson_[0-9][0-9]/lesson.md"))


def read_course(sources: Path = SOURCES) -> Course:
    """Everything that the texts say, as the catalogue holds it.

    Raises:
        SourceError: for anything that is not understood, and when an id, an object or a notebook
            is used twice.
    """
    return collect(map(read_lesson, lesson_files(sources)), read_phrases(sources / "phrases.md"))


def collect(lessons: Iterable[LessonText], phrases: dict[str, str]) -> Course:
    """The same, of lessons that were read."""
    lessons = list(lessons)
    seen: dict[tuple[str, str], str] = {}
    for lesson in lessons:
        first = {("notebook", lesson.about.notebook): 1}
        first |= {("exercise", e.id): lesson.lines[e.id] for e in lesson.exercises}
        first |= {("object", e.name): lesson.lines[e.id] for e in lesson.exercises}
        first |= {("prediction", p.id): lesson.lines[p.id] for p in lesson.predictions}
        for (what, key), line in first.items():
            if (what, key) in seen:
                raise lesson.error(line, f"{what} {key!r} is already at {seen[what, key]}")
            seen[what, key] = f"{lesson.file.parent.name}:{line}"
    return Course(
        lessons=tuple(lesson.about for lesson in lessons),
        exercises=tuple(exercise for lesson in lessons for exercise in lesson.exercises),
        predictions=tuple(prediction for lesson in lessons for prediction in lesson.predictions),
        phrases=phrases,
    )


def read_lesson(file: Path) -> LessonText:
    """Read a lesson's text, `root/minipaged/course/lessons/lesson_NN/lesson.md`.

    Raises:
        SourceError: for anything that is not understood.
    """
    return _Lesson(file).read()


def read_phrases(file: Path) -> dict[str, str]:
    """The sentences of the kit by key; {} where there is no such file."""
    if not file.exists():
        return {}
    text = _Text(file)
    return {
        key: said
        for block in text.blocks
        if block.kind == "phrases"
        for key, said in text.pairs(block.line, block.lines).items()
    }


@dataclass(frozen=True, slots=True)
class Block:
    """A fence: its kind is `python`, one of `KINDS`, or "" for text that is shown as it is."""

    kind: str
    rest: str
    line: int
    lines: list[str]

    @property
    def last(self) -> int:
        """The line that closes it."""
        return self.line + len(self.lines) + 1


class _Text:
    """The fences of a Markdown file, and what their bodies are made of."""

    def __init__(self, file: Path) -> None:
        self.file = file.resolve()
        self.root = self.file.parents[4] if self.file.name == "lesson.md" else ROOT
        self.lines = file.read_text(encoding="utf-8").split("\n")
        self.header = self.read_header()
        self.blocks = list(self.read_blocks())

    def error(self, line: int, message: str) -> SourceError:
        return SourceError(self.file, line, message, self.root)

    def read_header(self) -> dict[str, str]:
        """The `key: value` lines between two lines --- at the top; they are blanked."""
        if self.lines[0] != "---":
            return {}
        if "---" not in self.lines[1:]:
            raise self.error(1, "the header is not closed by a line ---")
        end = self.lines.index("---", 1)
        header = {}
        for line, text in enumerate(self.lines[1:end], 2):
            found = re.fullmatch(r"notebook: (\d\d_\w+)", text)
            if found is None:
                raise self.error(line, f"the header is `notebook: NN_name`, not {text!r}")
            header["notebook"] = found[1]
        self.lines[: end + 1] = [""] * (end + 1)
        return header

    def read_blocks(self) -> Iterator[Block]:
        for token in MarkdownIt("commonmark").parse("\n".join(self.lines)):
            if token.map is None or token.type not in (
                "fence",
                "inline",
                "code_block",
                "html_block",
            ):
                continue
            first, end = token.map
            if token.type != "fence":
                self.refuse_directives(first, end)
                continue
            yield self.block(token, first + 1, end)

    def refuse_directives(self, first: int, end: int) -> None:
        for line in range(first, end):
            text = self.lines[line]
            if _DIRECTIVE.search(text):
                raise self.error(line + 1, f"a directive that is not in a fence: {text!r}")

    def block(self, token: Token, line: int, end: int) -> Block:
        opening = self.lines[line - 1]
        kind, _, rest = token.info.strip().partition(" ")
        ours = kind == "python" or kind in KINDS
        if not opening.startswith("```") or token.markup != "```" or token.info[:1] == " ":
            if ours or not opening.startswith(" "):
                raise self.error(
                    line, f"a fence opens with ``` at the start of a line: {opening!r}"
                )
        if self.lines[end - 1].strip() != token.markup or end == line:
            raise self.error(line, "this fence is not closed")
        body = self.lines[line : end - 1]
        for number, text in enumerate(body, line + 1):
            if re.match(r"```", text):
                raise self.error(line, f"this fence is not closed: line {number} opens another")
        if not ours and (kind not in TEXT_LANGUAGES or rest.strip()):
            known = ", ".join(filter(None, (*KINDS, *TEXT_LANGUAGES)))
            raise self.error(
                line, f"fence {opening!r}: use ```python for a cell, or one of {known}"
            )
        return Block(kind if ours else "", rest.strip(), line, body)

    def pairs(self, line: int, lines: list[str]) -> dict[str, str]:
        """Lines `key => text`; a line that begins with two spaces goes on with the text before.

        Args:
            line: where the lines begin, less one.
        """
        found: dict[str, str] = {}
        key = ""
        for number, text in enumerate(lines, line + 1):
            if not text.strip():
                continue
            if text.startswith("  ") and key:
                found[key] = f"{found[key]} {text.strip()}".strip()
                continue
            key, arrow, said = (part.strip() for part in text.partition(" =>"))
            if not key or not arrow:
                raise self.error(number, f"expected `key => text`, found {text!r}")
            if key in found:
                raise self.error(number, f"{key!r} is given twice")
            found[key] = said
        return found

    def paragraph_and_pairs(self, block: Block) -> tuple[str, dict[str, str]]:
        """The first paragraph of a fence, and the pairs below it."""
        end = next((n for n, text in enumerate(block.lines) if not text.strip()), len(block.lines))
        paragraph = " ".join(text.strip() for text in block.lines[:end])
        if not paragraph:
            raise self.error(block.line, f"this {block.kind} fence begins with a sentence")
        return paragraph, self.pairs(block.line + end, block.lines[end:])


@dataclass(slots=True)
class _Draft:
    """What is known of an exercise; its words come later in the text."""

    line: int
    keys: dict[str, Any]
    title: str
    said: dict[str, Any]


class _Lesson(_Text):
    """A lesson's text on its way to a `LessonText`."""

    def read(self) -> LessonText:
        about = self.about()
        self.titles = self.read_titles()
        self.drafts: dict[str, _Draft] = {}
        self.predictions: dict[str, Prediction] = {}
        self.where: dict[str, int] = {}
        cells: list[tuple[Block, tuple[str, ...], str | None]] = []
        for block in self.blocks:
            if block.kind == "python":
                cells.append(self.cell(block))
            elif block.kind == "prediction":
                self.predict(block)
            elif block.kind in ("check", "hints", "mistakes"):
                self.words(block)
            elif block.kind == "phrases":
                raise self.error(block.line, "phrases belong into phrases.md")
        exercises = {key: self.exercise(key, draft, cells) for key, draft in self.drafts.items()}
        fences = tuple(
            Fence(block.line, "\n".join(block.lines), tags, exercises[key] if key else None)
            for block, tags, key in cells
        )
        self.match_checks(fences)
        self.match_predictions(fences)
        return LessonText(
            file=self.file,
            root=self.root,
            about=about,
            markdown=self.markdown(),
            fences=fences,
            exercises=tuple(exercises.values()),
            predictions=tuple(self.predictions.values()),
            lines=self.where,
        )

    @property
    def number(self) -> str:
        return self.file.parent.name.removeprefix("lesson_")

    def about(self) -> Lesson:
        """What the top of the text says of the lesson."""
        notebook = self.header.get("notebook", "")
        if not notebook.startswith(f"{self.number}_"):
            raise self.error(1, f"the header must say `notebook: {self.number}_name`")
        text = "\n".join(self.lines)
        title = re.search(r"(?m)^# (\d+) · (.+)$", text)
        if title is None or int(title[1]) != int(self.number):
            raise self.error(1, f"the first heading must be `# {int(self.number)} · Title`")
        minutes = re.search(r"\*\*Time\*\* (\d+) minutes", text)
        if minutes is None:
            raise self.error(1, "the text must say **Time** N minutes")
        return Lesson(self.number, notebook, title[2].strip(), int(minutes[1]))

    def read_titles(self) -> list[tuple[int, re.Match[str]]]:
        inside = {n for block in self.blocks for n in range(block.line, block.last + 1)}
        found = ((n, _TITLE.match(text)) for n, text in enumerate(self.lines, 1) if n not in inside)
        return [(line, title) for line, title in found if title]

    def markdown(self) -> str:
        """The text without the fences that the catalogue takes, and with the answers folded."""
        lines = list(self.lines)
        for block in reversed(self.blocks):
            start, end = block.line - 1, block.last
            if block.kind == "answers":
                lines[start:end] = _FOLDED.format("\n".join(block.lines).strip()).split("\n")
            elif block.kind in KINDS:
                while end < len(lines) and not lines[end].strip():
                    end += 1
                lines[start:end] = []
        return "\n".join(lines).strip("\n") + "\n"

    # --- code cells

    def cell(self, block: Block) -> tuple[Block, tuple[str, ...], str | None]:
        keys = self.keys(block.line, block.rest)
        tags = keys.pop("tags", [])
        code = "\n".join(block.lines).strip()
        for tag in tags:
            if tag not in TAGS:
                raise self.error(block.line, f"unknown tag {tag!r}; known are {', '.join(TAGS)}")
        if keys and (code or tags):
            raise self.error(block.line, "the fence of an exercise holds no code and has no tags")
        if not keys and not code:
            raise self.error(block.line, "this code cell is empty")
        if not keys:
            return block, tuple([*tags, "predict", IGNORE] if _asks(code) else tags), None
        for key in _REQUIRED:
            if key not in keys:
                raise self.error(block.line, f"this exercise has no {key!r}")
        name = keys["exercise"]
        if not re.fullmatch(rf"{self.number}\.[1-9]\d*", name):
            raise self.error(block.line, f"{name!r} is not an exercise of lesson {self.number}")
        if keys["level"] not in LEVELS:
            raise self.error(block.line, f"level {keys['level']!r} is none of {', '.join(LEVELS)}")
        if keys["minutes"] < 1 or keys.get("points", 1) < 1:
            raise self.error(block.line, "minutes and points are at least 1")
        if name in self.drafts:
            raise self.error(block.line, f"exercise {name!r} is already at line {self.where[name]}")
        self.where[name] = block.line
        self.drafts[name] = _Draft(block.line, keys, self.title(block.line, keys), {})
        return block, (), name

    def keys(self, line: int, text: str) -> dict[str, Any]:
        """The `key=value` pairs of a fence line; values are JSON."""
        keys: dict[str, Any] = {}
        text = text and f" {text}"
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
                raise self.error(line, f"key {key!r} is given twice")
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

    def title(self, line: int, keys: dict[str, Any]) -> str:
        exercise_id = keys["exercise"]
        above = [(at, title) for at, title in self.titles if at < line]
        if not above:
            raise self.error(line, f"there is no line **Exercise {exercise_id} · ...** above")
        at, title = above[-1]
        if title[1] != exercise_id:
            raise self.error(at, f"the title of {title[1]} is above exercise {exercise_id}")
        minutes = re.search(r"(\d+) min", title[3])
        level = re.search(r"\b(" + "|".join(LEVELS) + r")\b", title[3])
        for key, stated in (("minutes", minutes), ("level", level)):
            if stated and stated[1] != str(keys[key]):
                raise self.error(at, f"says {stated[1]}, the fence {key}={keys[key]}")
        return title[2].strip()

    def exercise(self, name: str, draft: _Draft, cells: list) -> Exercise:
        line, keys = draft.line, draft.keys
        module, colon, object_name = keys["object"].partition(":")
        if not (colon and module and object_name):
            raise self.error(line, f"object {keys['object']!r} is not module:name")
        todo = tuple(keys.get("todo", ()))
        self.resolve(line, module, object_name, todo)
        for kind in ("holds", "hints", "mistakes"):
            if kind not in draft.said:
                fence = "check" if kind == "holds" else kind
                raise self.error(line, f"exercise {name} has no fence ```{fence} {name}")
        before = [
            plain_python("\n".join(b.lines)) for b, _, key in cells if b.line < line and not key
        ]
        return Exercise(
            id=name,
            lesson=self.number,
            module=module,
            name=object_name,
            todo=todo,
            minutes=keys["minutes"],
            level=keys["level"],
            points=keys.get("points", 1),
            title=draft.title,
            shown=tuple(sorted(shown(self.parsed(text) for text in before))),
            **draft.said,
        )

    def parsed(self, text: str) -> ast.Module:
        try:
            return ast.parse(text)
        except SyntaxError:  # the builder names it
            return ast.Module([], [])

    def resolve(self, line: int, module: str, name: str, todo: tuple[str, ...]) -> None:
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

    # --- what is said

    def words(self, block: Block) -> None:
        """The fence of an exercise's check, hints or mistakes."""
        draft = self.drafts.get(block.rest)
        if draft is None:
            raise self.error(block.line, f"there is no exercise {block.rest!r} above")
        if block.kind == "check":
            holds, rules = self.paragraph_and_pairs(block)
            said: dict[str, Any] = {"holds": holds, "rules": rules}
        elif block.kind == "mistakes":
            said = {"mistakes": self.pairs(block.line, block.lines)}
        else:
            text = "\n".join(block.lines).strip()
            hints = tuple(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
            if len(hints) != 3:
                raise self.error(block.line, f"there are three hints, not {len(hints)}")
            said = {"hints": hints}
        if draft.said.keys() & said.keys():
            raise self.error(block.line, f"exercise {block.rest} has two {block.kind} fences")
        draft.said |= said

    def predict(self, block: Block) -> None:
        """The fence of a prediction."""
        name, *options = block.rest.split()
        if not re.fullmatch(rf"{self.number}\.[a-z]", name) or name in self.predictions:
            raise self.error(
                block.line, f"{name!r} is not a new prediction of lesson {self.number}"
            )
        choices, tolerance = "choices" in options, 0.0
        for option in options:
            found = re.fullmatch(r"tolerance=(\d*\.?\d+)", option)
            if found:
                tolerance = float(found[1])
            elif option != "choices":
                raise self.error(block.line, f"a prediction has no option {option!r}")
        question, answers = self.paragraph_and_pairs(block)
        self.where[name] = block.line
        self.predictions[name] = Prediction(
            name,
            question,
            tuple((_answer(k), said) for k, said in answers.items()),
            choices,
            tolerance,
        )

    # --- what belongs together

    def match_checks(self, fences: tuple[Fence, ...]) -> None:
        """Each title has its exercise, and each exercise its check right after it."""
        for line, title in self.titles:
            if title[1] not in self.drafts:
                raise self.error(line, f"exercise {title[1]} has a title and no cell")
        for before, fence in zip([None, *fences], [*fences, None], strict=True):
            exercise = before.exercise if before else None
            is_check = fence is not None and "check" in fence.tags
            if exercise is None:
                if fence and is_check:
                    raise self.error(fence.line, "a check cell comes right after its exercise")
                continue
            due = f'{exercise.name} = check("{exercise.id}", {exercise.name})'
            if not is_check or fence is None:
                line = self.where[exercise.id]
                raise self.error(line, f'no ```python tags=["check"] with {due} follows')
            if not _same_code(fence.code, due):
                raise self.error(fence.line + 1, f"this check cell must hold {due}")

    def match_predictions(self, fences: tuple[Fence, ...]) -> None:
        """Each prediction has one cell, which asks it and does nothing else, and the other way round."""
        asked: dict[str, int] = {}
        for fence in fences:
            name = _asks(fence.code)
            if name is None:
                if re.search(r"(?m)^predict\(", fence.code):
                    message = (
                        'a prediction\'s cell holds predict("NN.x", measured value), nothing else'
                    )
                    raise self.error(fence.line, message)
                continue
            if name not in self.predictions or name in asked:
                raise self.error(
                    fence.line, f"there is no ```prediction {name} for this cell alone"
                )
            asked[name] = fence.line
        for name in self.predictions:
            if name not in asked:
                raise self.error(self.where[name], f"no cell asks predict({name!r}, ...)")


def _asks(code: str) -> str | None:
    """The id of the prediction that a cell asks; None where it does anything else."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return None
    match body:
        case [ast.Expr(ast.Call(ast.Name("predict"), [ast.Constant(str(name)), _], []))]:
            return name
    return None


def _answer(text: str) -> int | float | str | bool:
    """An answer: a number or a bool as Python writes it, or else a text."""
    try:
        value = ast.literal_eval(text.replace(",", "_") if re.fullmatch(r"[\d,]+", text) else text)
    except (SyntaxError, ValueError):
        return text
    return value if isinstance(value, int | float | str) else text


def shown(cells: Iterable[ast.Module]) -> set[tuple[str, str]]:
    """What cells import of the package by name and use: (module, name) pairs."""
    trees = list(cells)
    used = {name for tree in trees for name in global_names(tree).used}
    found = {item for tree in trees for item in imports(tree) if item[0].startswith("minipaged.")}
    return {(module, name) for module, name, local in found if name and local in used}


def as_json(course: Course) -> str:
    """The catalogue as it is in its file."""
    return msgspec.json.format(msgspec.json.encode(course), indent=1).decode() + "\n"


def _same_code(code: str, due: str) -> bool:
    try:
        return ast.dump(ast.parse(code)) == ast.dump(ast.parse(due))
    except SyntaxError:
        return False
