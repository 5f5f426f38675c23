"""The builder: strict sources, cuts as text, nothing leaked, rebuilding changes nothing."""

import copy
import json
import os
import textwrap
from pathlib import Path

import nbformat
import pytest

from minipaged.course.authoring import builder, lesson_text
from minipaged.course.authoring.builder import as_text, build_lesson, check, main, render, write
from minipaged.course.authoring.cutting import cut
from minipaged.course.authoring.execution import WIDGET, CellFailed, execute, refuse_outputs
from minipaged.course.authoring.lesson_text import SourceError, read_course, read_lesson
from minipaged.course.authoring.reading import free_names, leaks, reached_files
from minipaged.course.kit.catalogue import LESSONS, SOLUTIONS, Lesson, Prediction

POOL = '''"""Lesson 4: a pool."""

import heapq

from .base import START


class Pool:
    """Knows what is free.

    >>> Pool(3).take(2)
    [0, 1]
    """

    def __init__(self, n: int) -> None:
        self.free_ids = list(range(START, n))  # lowest id first

    def take(self, n: int) -> list[int] | None:
        """Take n ids."""
        # None when there are too few of them
        if n > len(self.free_ids):
            return None
        return [heapq.heappop(self.free_ids) for _ in range(n)]

    def give(self, ids: list[int]) -> None:
        """Give ids back."""
        for one in ids:
            heapq.heappush(self.free_ids, one)


def double(x: int) -> int:
    return x + x + START + START + START
'''

LESSON = """---
notebook: 04_pool
---

# 4 · A pool

Words about pools. **Time** 20 minutes.


More words, in a cell of their own.

```python
import heapq

from minipaged.base import START

def check(exercise_id, found):
    print(exercise_id, "passes")
    return found

def predict(prediction_id, measured):
    print(measured)
```

**Exercise 04.1 · a pool of ids** · easy · 10 minutes

- `take(n)` takes.

```python exercise="04.1" object="minipaged.pool:Pool" todo=["take", "give"] minutes=10 level="easy"
```

```python tags=["check"]
Pool = check("04.1", Pool)     # yours if it passes
```

```check 04.1
What is free
is known.

lowest => The lowest id
  comes first.
none => None => too few.
```

```hints 04.1
One.

Two
lines.

Three.
```

```mistakes 04.1
takes too many => More than there are.
```

Guess.

```prediction 04.a choices tolerance=0.5
What
comes?

1_000 => many
[0, 1] => these
0.5 =>
```

```python
predict("04.a", Pool(4).take(2))
```

**Exercise 04.2 · twice** · medium · 5 minutes

```python exercise="04.2" object="minipaged.pool:double" minutes=5 level="medium" points=3
```

```python tags=["check"]
double = check("04.2", double)
```

```check 04.2
Twice.
```

```hints 04.2
1

2

3
```

```mistakes 04.2
```

1. Why?

```answers
1. Because.
```
"""

FENCE = '```python exercise="04.1" object="minipaged.pool:Pool" todo=["take", "give"] minutes=10'


def line_of(text: str) -> int:
    return LESSON[: LESSON.index(text)].count("\n") + 1


LINE, SECOND = line_of(FENCE), line_of('```python exercise="04.2"')
PLACE = "minipaged/course/lessons/lesson_04/lesson.md"


def project(folder: Path, lesson: str = LESSON, pool: str = POOL) -> Path:
    """A small course in a folder; returns the lesson's text."""
    package = folder / "minipaged"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""A small package."""\n')
    (package / "base.py").write_text("START = 0\n")
    (package / "unused.py").write_text("X = 0\n")
    (package / "pool.py").write_text(pool)
    source = folder / PLACE
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(lesson)
    return source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return project(tmp_path)


def stub_of(text: str, name: str, *todo: str) -> str:
    return cut(textwrap.dedent(text).lstrip("\n"), name, todo).stub


# --------------------------------------------------------------------------------- sources


def test_the_catalogue_holds_what_the_text_says(source: Path) -> None:
    course = read_course(source.parents[1])
    assert course.lessons == (Lesson("04", "04_pool", "A pool", 20),)
    pool, double = course.exercises
    assert (pool.id, pool.lesson, pool.module, pool.name) == (
        "04.1",
        "04",
        "minipaged.pool",
        "Pool",
    )
    assert (pool.todo, pool.minutes, pool.level, pool.points) == (("take", "give"), 10, "easy", 1)
    assert (pool.title, pool.holds) == ("a pool of ids", "What is free is known.")
    assert pool.rules == {"lowest": "The lowest id comes first.", "none": "None => too few."}
    assert pool.hints == ("One.", "Two lines.", "Three.")
    assert pool.mistakes == {"takes too many": "More than there are."}
    assert (double.todo, double.title, double.points) == ((), "twice", 3)
    answers = ((1000, "many"), ("[0, 1]", "these"), (0.5, ""))
    assert course.predictions == (Prediction("04.a", "What comes?", answers, True, 0.5),)


def test_what_a_lesson_shows_before_an_exercise_is_known(tmp_path: Path) -> None:
    used = LESSON.replace(
        "import START\n", "import START\nfrom minipaged.pool import double as d\n"
    )
    shown = "```python\nprint(START, d)\n```\n\n**Exercise 04.2"
    course = read_course(project(tmp_path, used.replace("**Exercise 04.2", shown)).parents[1])
    pool, double = course.exercises
    assert pool.shown == ()
    assert double.shown == (("minipaged.base", "START"), ("minipaged.pool", "double"))


def test_what_the_catalogue_takes_is_not_in_the_notebook(source: Path) -> None:
    text = as_text(render(read_lesson(source)).stubs)
    for word in ("known", "lowest id comes", "Two", "More than", "comes?", "many", "tolerance"):
        assert word not in text
    assert "<details>" in text and "1. Because." in text


BAD_FENCES = {
    "an unknown key": (" colour=3", "unknown key 'colour'"),
    "a misspelt key": (' exersise="04.1"', "unknown key 'exersise'; is it 'exercise'?"),
    "a key twice": (" minutes=3", "key 'minutes' is given twice"),
    "a bare word": (" hard", "expected key=value, found 'hard level"),
    "no JSON": (" points=many", "the value of 'points' is not JSON"),
    "a wrong kind": (' points="3"', "'points' must be a whole number"),
    "no number": (" points=true", "'points' must be a whole number"),
    "no points": (" points=0", "at least 1"),
    "an unknown tag": (' tags=["solo"]', "unknown tag 'solo'"),
    "a tag": (' tags=["check"]', "holds no code and has no tags"),
}


@pytest.mark.parametrize(("extra", "message"), BAD_FENCES.values(), ids=BAD_FENCES)
def test_a_fence_that_is_not_understood_is_an_error(
    tmp_path: Path, extra: str, message: str
) -> None:
    source = project(tmp_path, LESSON.replace(FENCE, FENCE + extra))
    expect(source, LINE, message)


CALL = 'predict("04.a", Pool(4).take(2))'
ASKED = f"```python\n{CALL}"
BAD_TEXTS = {
    "misspelt exercise": ('python exercise="04.1"', 'python excercise="04.1"', 0, "'excercise'"),
    "unknown module": ("minipaged.pool:Pool", "minipaged.pond:Pool", 0, "no module"),
    "unknown object": ("minipaged.pool:Pool", "minipaged.pool:Pond", 0, "no function or class"),
    "no object": ("minipaged.pool:Pool", "minipaged.pool", 0, "is not module:name"),
    "unknown method": ('"give"]', '"lend"]', 0, "has no method 'lend'"),
    "class without todo": (' todo=["take", "give"]', "", 0, "'todo' must list methods"),
    "no minutes": (" minutes=10 level", " level", 0, "has no 'minutes'"),
    "no level": (' minutes=10 level="easy"', " minutes=10", 0, "has no 'level'"),
    "unknown level": ('level="easy"', 'level="mild"', 0, "level 'mild'"),
    "id of another lesson": (
        'exercise="04.1"',
        'exercise="05.1"',
        0,
        "is not an exercise of lesson 04",
    ),
    "code in an exercise": ('level="easy"\n', 'level="easy"\nx = 1\n', 0, "holds no code"),
    "unclosed exercise": ('level="easy"\n```\n', 'level="easy"\n', 0, "not closed"),
    "no check": ('tags=["check"]\nPool', "\nPool", 0, "follows"),
    "check of another": ('check("04.1", Pool)', 'check("04.2", Pool)', 4, "must hold Pool = check"),
    "other minutes": ("easy · 10 minutes", "easy · 12 minutes", -4, "says 12"),
    "other level": ("easy · 10 minutes", "hard · 10 minutes", -4, "says hard"),
    "other title": ("Exercise 04.1 ·", "Exercise 04.3 ·", -4, "04.3 is above exercise 04.1"),
    "four backticks": (FENCE, "`" + FENCE, 0, "opens with ```"),
    "two backticks": (FENCE, FENCE[1:], 0, "not in a fence"),
    "tildes": (FENCE, FENCE.replace("```", "~~~"), 0, "opens with ```"),
    "a gap": (FENCE, FENCE.replace("```", "``` "), 0, "opens with ```"),
    "indented": (FENCE, "  " + FENCE, 0, "opens with ```"),
    "no fence": (FENCE, FENCE.replace("```python ", ""), 0, "not in a fence"),
    "another language": (FENCE, FENCE.replace("python", "Python", 1), 0, "use ```python"),
    "region marker": ("- `take(n)` takes.", "<!-- #region -->", -2, "not in a fence"),
    "no check fence": ("```check 04.1", "```text", 0, "no fence ```check 04.1"),
    "no hints": ("```hints 04.1", "```text", 0, "no fence ```hints 04.1"),
    "two hints": ("Three.\n", "", "```hints", "three hints, not 2"),
    "hints of another": ("hints 04.1", "hints 04.7", "```hints", "no exercise '04.7' above"),
    "a rule twice": ("none => None", "lowest => N", "none =>", "'lowest' is given twice"),
    "no arrow": ("none => None => too few.", "none", "none =>", "expected `key => text`"),
    "no sentence": ("What is free\nis known.\n", "", "```check", "begins with a sentence"),
    "odd option": ("choices tolerance=0.5", "choice", "```prediction", "no option 'choice'"),
    "odd prediction": ("prediction 04.a", "prediction 05.a", "```prediction", "not a new"),
    "asked of another": ('t("04.a"', 't("04.b"', ASKED, "no ```prediction 04.b"),
    "not asked": (CALL, "7", "```prediction", "no cell asks predict('04.a'"),
    "asked beside": (CALL, f"x = 1\n{CALL}", ASKED, "nothing else"),
}


@pytest.mark.parametrize(("old", "new", "offset", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_wrong_source_is_named_with_file_and_line(
    tmp_path: Path, old: str, new: str, offset: int | str, message: str
) -> None:
    assert old in LESSON
    source = project(tmp_path, LESSON.replace(old, new, 1))
    expect(source, line_of(offset) if isinstance(offset, str) else LINE + offset, message)


def expect(source: Path, line: int, message: str) -> None:
    with pytest.raises(SourceError) as error:
        render(read_lesson(source))
    assert str(error.value).startswith(f"{PLACE}:{line}: ")
    assert message in str(error.value)


def test_errors_further_down_are_named_too(tmp_path: Path) -> None:
    expect(project(tmp_path, LESSON.rstrip("`\n")), LESSON.count("\n") - 2, "not closed")
    code = LESSON + "\n```python\n\n```\n"
    expect(project(tmp_path, code), LESSON.count("\n") + 2, "this code cell is empty")
    code = LESSON + "\n```python\nx = 1\ny = (\n```\n"
    expect(project(tmp_path, code), LESSON.count("\n") + 4, "never closed")
    stray = LESSON + '\n```python tags=["check"]\nx = 1\n```\n'
    expect(project(tmp_path, stray), LESSON.count("\n") + 2, "right after its exercise")
    title = LESSON + "\n**Exercise 04.3 · none** · easy\n"
    expect(project(tmp_path, title), LESSON.count("\n") + 2, "has a title and no cell")
    header = LESSON.replace("notebook:", "title:")
    expect(project(tmp_path, header), 2, "the header is `notebook: NN_name`")
    expect(project(tmp_path, LESSON.replace("04_pool", "05_pool")), 1, "`notebook: 04_name`")
    expect(
        project(tmp_path, LESSON.replace("# 4", "# 5")), 1, "first heading must be `# 4 · Title`"
    )
    expect(project(tmp_path, LESSON.replace("**Time**", "Time")), 1, "must say **Time** N minutes")
    function = LESSON.replace(':double"', ':double" todo=["x"]')
    expect(project(tmp_path, function), SECOND, "it has no 'todo'")


def test_an_exercise_needs_a_title(tmp_path: Path) -> None:
    lesson = LESSON.replace("**Exercise 04.1 · a pool of ids** · easy · 10 minutes", "Build it.")
    expect(project(tmp_path, lesson), LINE, "no line **Exercise 04.1 · ...** above")


def test_an_id_or_an_object_that_is_used_twice_is_an_error(tmp_path: Path) -> None:
    source = project(tmp_path, LESSON.replace('exercise="04.2"', 'exercise="04.1"'))
    expect(source, SECOND, f"exercise '04.1' is already at line {LINE}")
    source.write_text(LESSON)
    other = source.parents[1] / "lesson_05" / "lesson.md"
    other.parent.mkdir()
    other.write_text(LESSON.replace("04", "05").replace("# 4", "# 5"))
    with pytest.raises(
        SourceError, match=rf"lesson_05/lesson.md:{LINE}: object 'Pool' .* lesson_04:"
    ):
        read_course(source.parents[1])
    assert any("lesson_05" in line and "Pool" in line for line in check(source.parents[1]))


# --------------------------------------------------------------------------------- cutting


def test_a_method_is_cut_behind_its_docstring() -> None:
    result = cut(POOL, "Pool", ("take", "give"))
    assert result.source in POOL
    assert result.line == 8
    assert result.stub.endswith(
        '        """Take n ids."""\n        raise NotImplementedError\n\n'
        "    def give(self, ids: list[int]) -> None:\n"
        '        """Give ids back."""\n        raise NotImplementedError'
    )
    assert ">>> Pool(3).take(2)" in result.stub
    assert "# lowest id first" in result.stub
    assert "too few" not in result.stub
    assert (19, "        # None when there are too few of them") not in result.removed
    assert (20, "        # None when there are too few of them") in result.removed


CUTS = {
    "a function without a docstring": (
        """
        def f(x: int) -> int:
            # first
            return x  # last
            # after

        # the next one's
        def g(): ...
        """,
        "def f(x: int) -> int:\n    raise NotImplementedError",
    ),
    "a kernel with a long signature": (
        """
        @triton.jit
        def f(
            x_ptr,  # [n]
            size: tl.constexpr = (lambda: 3)(),
        ) -> dict[str, int]:  # a comment of the body
            tl.store(x_ptr, 0)
        """,
        """@triton.jit
def f(
    x_ptr,  # [n]
    size: tl.constexpr = (lambda: 3)(),
) -> dict[str, int]:
    raise NotImplementedError""",
    ),
    "a body on the line of the signature": (
        "def f(x): return {1: x}[1:2]",
        "def f(x):\n    raise NotImplementedError",
    ),
    "a docstring on the line of the signature": (
        "def f(x): 'é'; return 1",
        "def f(x): 'é'; raise NotImplementedError",
    ),
    "a nested function with a decorator": (
        """
        def f(x):

            @wraps(x)
            def g():
                '''No docstring of f.'''
            return g
        """,
        "def f(x):\n    raise NotImplementedError",
    ),
    "strings over lines": (
        '''
        def f(x):
            """One: 1.

            # not a comment
            """  # é

            return """
        def g():
        # no comment
        """
        ''',
        'def f(x):\n    """One: 1.\n\n    # not a comment\n    """\n    raise NotImplementedError',
    ),
    "a docstring only": (
        "async def f(x):\n    'é'\n",
        "async def f(x):\n    'é'\n    raise NotImplementedError",
    ),
}


@pytest.mark.parametrize(("text", "stub"), CUTS.values(), ids=CUTS)
def test_a_function_is_cut_as_text(text: str, stub: str) -> None:
    assert stub_of(text, "f") == stub
    compile(stub, "stub", "exec")


def test_class_and_static_methods_and_properties_are_cut() -> None:
    text = """
    @dataclass
    class A:
        n: int = 0

        @classmethod
        def of(cls): return cls()

        @staticmethod
        def two():
            return 2

        @property
        def size(self):
            '''Size.'''
            return self.n
            # cut

        @size.setter
        def size(self, n):
            self.n = n
        # kept: it stands on the class's level

        def last(self):
            return 3
            # cut
    """
    gone = "raise NotImplementedError"
    stub = stub_of(text, "A", "of", "two", "size", "last")
    assert stub == textwrap.dedent(f"""
    @dataclass
    class A:
        n: int = 0

        @classmethod
        def of(cls):
            {gone}

        @staticmethod
        def two():
            {gone}

        @property
        def size(self):
            '''Size.'''
            {gone}

        @size.setter
        def size(self, n):
            {gone}
        # kept: it stands on the class's level

        def last(self):
            {gone}""").lstrip("\n")


# ------------------------------------------------------------------------------- notebooks


def test_a_lesson_has_stubs_and_its_solution_the_source(source: Path) -> None:
    pair = render(read_lesson(source))
    stub, solved = (book.cells[4] for book in (pair.stubs, pair.solved))
    assert solved.source in POOL
    assert stub.source == cut(POOL, "Pool", ("take", "give")).stub
    assert [cell.id for cell in pair.stubs.cells] == [f"04-{idx:03d}" for idx in range(12)]
    assert [cell.id for cell in pair.stubs.cells] == [cell.id for cell in pair.solved.cells]
    assert pair.stubs.cells[1].source == "More words, in a cell of their own."
    assert stub.metadata["minipaged"] == {"exercise": "04.1"}
    assert pair.stubs.metadata.minipaged.lesson == "04"
    assert set(pair.stubs.metadata) == {"kernelspec", "language_info", "minipaged"}
    assert not any(cell.get("outputs") for cell in pair.stubs.cells)
    nbformat.validate(pair.stubs)
    for cell in (*pair.stubs.cells, *pair.solved.cells):
        assert set(cell.metadata) <= {"tags", "minipaged", "nbgrader"}
        if "predict" in cell.metadata.get("tags", []):
            assert cell.metadata["tags"] == ["predict", "nbval-ignore-output"]


def test_nbgrader_finds_its_cells(source: Path) -> None:
    pair = render(read_lesson(source))
    found = {
        cell.metadata["nbgrader"]["grade_id"]: dict(cell.metadata["nbgrader"])
        for cell in pair.stubs.cells
        if "nbgrader" in cell.metadata
    }
    assert list(found) == ["ex-04-1", "check-04-1", "ex-04-2", "check-04-2"]
    given = {"schema_version": 3, "task": False}
    assert found["ex-04-1"] == given | {
        "grade_id": "ex-04-1",
        "grade": False,
        "solution": True,
        "locked": False,
    }
    assert found["check-04-2"] == given | {
        "grade_id": "check-04-2",
        "grade": True,
        "solution": False,
        "locked": True,
        "points": 3,
        "cell_type": "code",
    }
    assert not any("nbgrader" in cell.metadata for cell in pair.solved.cells)


def test_a_name_that_no_earlier_cell_binds_is_named(tmp_path: Path) -> None:
    source = project(tmp_path, LESSON.replace("import heapq\n", "import math\n"))
    expect(source, LINE, "exercise 04.1 uses 'heapq' (minipaged/pool.py:23)")


@pytest.mark.parametrize(
    "code",
    [
        "def f(x: Missing): ...",
        "def f(x) -> 'list' | Missing: ...",
        "def f(x=Missing): ...",
        "@Missing.jit\ndef f(x): ...",
        "def f(x):\n    def g():\n        return [Missing for _ in x]\n    return g",
        "class A:\n    x: int = Missing",
        "class A(Missing): ...",
    ],
)
def test_free_names_are_found_everywhere(code: str) -> None:
    names = free_names(code)
    assert set(names.used) - names.bound == {"Missing"}


def test_bound_names_are_found() -> None:
    names = free_names("%matplotlib inline\nimport a.b as c, d.e\nfrom f import g\nx: int = 1\n")
    assert names.bound == {"c", "d", "g", "x"}


# ------------------------------------------------------------------------------------ leaks

TAKEN = "[heapq.heappop(self.free_ids) for _ in range(n)]"
LEAKS = {
    "in Markdown": "The line is\n\n`return [heapq.heappop(self.free_ids)   for _ in range(n)]`.",
    "over two lines": "The line is\n\nreturn [heapq.heappop(self.free_ids)\nfor _ in range(n)].",
    "in code": f"```python\ndef cheat(self, n):\n    return {TAKEN}\n```",
    "in a comment": f"```python\n# here:\n#  return {TAKEN}\n```",
    "in a string": f'```python\nprint(\n    "return {TAKEN}")\n```',
    "a comment": "```python\n# I say:\n# None when there are too few of them\n```",
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS)
def test_a_solution_line_left_in_the_source_is_named(tmp_path: Path, text: str) -> None:
    line = LESSON.count("\n") + 4
    expect(project(tmp_path, f"{LESSON}\n{text}\n"), line, "a solution line of exercise 04.1 is")


def test_a_solution_line_in_a_docstring_is_named(tmp_path: Path) -> None:
    text = POOL.replace("    [0, 1]\n", f"    [0, 1]\n\n    return {TAKEN}\n")
    expect(project(tmp_path, pool=text), LINE, "(minipaged/pool.py:25)")


def test_a_line_that_the_uncut_code_has_too_is_given(tmp_path: Path) -> None:
    text = POOL.replace("START, n))  #", f"START, n))\n        self.first = {TAKEN}  #")
    text = text.replace(f"return {TAKEN}", f"self.first = {TAKEN}")
    pair = render(read_lesson(project(tmp_path, LESSON + f"\nself.first = {TAKEN}\n", text)))
    assert TAKEN in as_text(pair.stubs)


def test_a_solution_line_is_found_in_metadata_outputs_and_attachments(source: Path) -> None:
    pair = render(read_lesson(source))
    cuts = {"04-004": cut(POOL, "Pool", ("take", "give"))}
    assert leaks(pair.stubs, cuts) == []
    line = "heapq.heappush(self.free_ids, one)"
    for place in ("metadata", "attachments", "outputs"):
        stubs = copy.deepcopy(pair.stubs)
        stubs.cells[2][place] = {"deep": [{"text": f"x\n  {line}"}]}
        (leak,) = leaks(stubs, cuts)
        assert (leak.cell_id, leak.place, leak.text) == ("04-002", place, line)
        assert POOL.split("\n")[leak.module_line - 1].strip() == line
    stubs = copy.deepcopy(pair.stubs)
    stubs.metadata["x"] = {line: 1}
    assert [leak.cell_id for leak in leaks(stubs, cuts)] == [None]


# -------------------------------------------------------------------- reached, built, compared


def test_a_solution_depends_on_the_modules_its_cells_reach(tmp_path: Path) -> None:
    source = project(tmp_path)
    package = tmp_path / "minipaged"
    for name, text in {
        "course/__init__": "from .notebook.checking import check\n",
        "course/notebook/checking": "def check():\n    from ...unused import X\n",
        "course/authoring/builder": "",
        "course/lessons/lesson_04/checks": "",
        "course/lessons/lesson_04/figures": "from ..lesson_03.figures import arrow\n",
        "course/lessons/lesson_03/figures": "",
        "course/lessons/lesson_03/checks": "",
    }.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (package / "data").mkdir(exist_ok=True)
    (package / "data" / "catalogue.json").write_text("{}")
    (package / "data" / "model").write_text("")

    def names(*cells: str) -> list[str]:
        files = reached_files(tmp_path, "04", cells)
        return [file.relative_to(package).as_posix() for file in files]

    assert names("import math") == ["data/model"]
    assert names("%pip list\nfrom minipaged.pool import Pool") == [
        "__init__.py",
        "base.py",
        "data/model",
        "pool.py",
    ]
    assert names("from minipaged.course import check") == [
        "__init__.py",
        "course/__init__.py",
        "course/lessons/lesson_03/figures.py",
        "course/lessons/lesson_04/checks.py",
        "course/lessons/lesson_04/figures.py",
        "course/notebook/checking.py",
        "data/model",
        "unused.py",
    ]
    (package / "course" / "lessons" / "lesson_04" / "checks.py").write_text("x =\n")
    with pytest.raises(SourceError, match=r"lesson_04/checks\.py:1: invalid syntax"):
        names("from minipaged.course import check")
    before = render(read_lesson(source)).solved.metadata.minipaged.built_from
    (tmp_path / "minipaged" / "unused.py").write_text("X = 1\n")
    assert render(read_lesson(source)).solved.metadata.minipaged.built_from == before
    (tmp_path / "minipaged" / "base.py").write_text("START = 1\n")
    assert render(read_lesson(source)).solved.metadata.minipaged.built_from != before


def test_building_again_changes_nothing_and_hand_edits_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = project(tmp_path)
    sources = source.parents[1]
    stubs, solved = tmp_path / "lessons/04_pool.ipynb", tmp_path / "solutions/04_pool.ipynb"
    advice = f"edit {PLACE} or minipaged/pool.py"
    run = "run make notebooks"
    differs = f"lessons/04_pool.ipynb differs from what {PLACE} builds"
    assert check(sources) == [
        f"{differs}: {advice}, then {run}",
        f"solutions/04_pool.ipynb is not built yet: {run}; to change it, {advice}",
        f"catalogue.json differs from what the lessons' texts say: {run}",
    ]
    assert main([], sources) == 0
    assert check(sources) == []
    book = nbformat.read(solved, as_version=4)
    assert [cell.execution_count for cell in book.cells if cell.cell_type == "code"] == [
        *range(1, 7)
    ]
    assert book.cells[5].outputs[0].text == "04.1 passes\n"
    assert set(book.metadata) == {"kernelspec", "language_info", "minipaged"}
    assert book.metadata.language_info == {"name": "python"}
    assert all("execution" not in cell.metadata for cell in book.cells)

    monkeypatch.setattr(builder, "execute", None)  # from here on nothing may be executed
    texts = [file.read_bytes() for file in (stubs, solved)]
    times = [file.stat().st_mtime_ns for file in (stubs, solved)]
    assert main(["04"], sources) == 0
    assert [file.read_bytes() for file in (stubs, solved)] == texts
    assert [file.stat().st_mtime_ns for file in (stubs, solved)] == times
    assert all(text.endswith(b"}\n") for text in texts)

    def problem(file: Path, edit: str, value: str) -> str:
        text = file.read_text()
        assert edit in text
        file.write_text(text.replace(edit, value, 1))
        assert main(["--check"], sources) == 1
        (line,) = check(sources)
        assert line in capsys.readouterr().err
        file.write_text(text)
        assert line.startswith(file.relative_to(tmp_path).as_posix())
        assert advice in line and run in line
        return line

    assert "differs" in problem(stubs, "Words about", "Word about")
    assert "differs" in problem(stubs, "raise NotImplementedError", "pass")
    assert "other cells" in problem(solved, "Words about", "Word about")
    assert "other cells" in problem(solved, '"id": "04-003"', '"id": "04-999"')
    assert "other cells" in problem(solved, '"predict"', '"check"')
    assert "outputs edited by hand" in problem(solved, "04.1 passes", "04.1 fails")
    assert "not executed" in problem(solved, '"execution_count": 2', '"execution_count": null')
    assert "other metadata" in problem(solved, '"display_name": "Python 3"', '"display_name": "P"')
    assert "is no notebook" in problem(solved, "{", "[")
    assert "is no notebook" in problem(solved, '"outputs": [', '"outlets": [')
    assert "is no notebook" in problem(solved, '"cells": [', '"sells": [')
    assert "package changed" in problem(solved, '"built_from": "', '"built_from": "0')
    cleared = json.loads(solved.read_text())
    for cell in cleared["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    solved.write_text(json.dumps(cleared))
    assert "has no outputs" in check(sources)[0]
    solved.write_bytes(texts[1])
    stray = tmp_path / "solutions" / "05_gone.ipynb"
    stray.write_text("{}")
    assert check(sources) == [
        "solutions/05_gone.ipynb is not built from any lesson's text: remove it"
    ]


def test_a_cell_that_fails_is_named_by_its_line(tmp_path: Path) -> None:
    source = project(tmp_path, LESSON + "\n```python\nx = 1\nx / 0\n```\n")
    line = LESSON.count("\n") + 4
    message = rf"lesson.md:{line}: cell 04-012 of the solution fails: ZeroDivisionError: division"
    with pytest.raises(SourceError, match=message):
        build_lesson(source)
    assert not (tmp_path / "solutions" / "04_pool.ipynb").exists()


def test_a_solution_runs_in_its_folder_with_the_course_s_settings(tmp_path: Path) -> None:
    where = "import os\nos.path.basename(os.getcwd()), os.environ['MINIPAGED_MINE'], "
    where += "os.environ['MINIPAGED_PREDICT'], os.environ['OMP_NUM_THREADS']"
    show = "from IPython.display import display\n"
    show += f"display({{'{WIDGET}': {{}}, 'text/plain': 'x'}}, raw=True)"
    cells = [nbformat.v4.new_code_cell(code) for code in (where, show)]
    metadata = {"kernelspec": builder.KERNELSPEC, "minipaged": {"lesson": "04"}}
    book = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    done = execute(book, tmp_path, tmp_path)
    assert (
        done.cells[0].outputs[0].data["text/plain"] == f"('{tmp_path.name}', 'off', 'reveal', '1')"
    )
    assert done.cells[1].outputs == []
    assert not any(cell.get("outputs") for cell in book.cells)


def test_warnings_and_large_pictures_are_refused() -> None:
    warning = nbformat.v4.new_output("stream", name="stderr", text="be\ncareful\n")
    cell = nbformat.v4.new_code_cell("x", outputs=[warning])
    with pytest.raises(CellFailed, match="writes to stderr: careful"):
        refuse_outputs(cell)
    cell.metadata["tags"] = ["nbval-ignore-output"]
    refuse_outputs(cell)
    png = {"image/png": "A" * 500_000}
    cell.outputs.append(nbformat.v4.new_output("display_data", data=png))
    with pytest.raises(CellFailed, match="makes a PNG of 375,000 B"):
        refuse_outputs(cell)


def test_a_file_is_written_in_one_step_and_only_if_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "x.txt"
    assert write(file, "é\n")
    os.utime(file, ns=(0, 0))
    assert not write(file, "é\n")
    assert file.stat().st_mtime_ns == 0
    assert write(file, "e\n")
    assert [item.name for item in file.parent.iterdir()] == ["x.txt"]


# ------------------------------------------------------------------------- the course itself


def test_the_built_notebooks_are_what_their_sources_build() -> None:
    assert check() == []


def test_the_course_has_lessons_and_each_has_both_notebooks() -> None:
    lessons = lesson_text.read_course().lessons
    assert [lesson.id for lesson in lessons] == [f"{idx:02d}" for idx in range(len(lessons))] != []
    for folder in (LESSONS, SOLUTIONS):
        built = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
        assert built == [f"{lesson.notebook}.ipynb" for lesson in lessons]
