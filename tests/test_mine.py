"""The learner's own package: what joins it, what does not, and the record beside it."""

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from minipaged.course.kit.catalogue import ROOT, Exercise
from minipaged.course.kit.source import Extracted, extract
from minipaged.course.notebook import mine

MODULE = '''"""A module."""

import heapq

from .base import START

LIMIT = 9


class Pool:
    """Free ids."""

    def take(self):
        return START


def slot_of(ids, idx):
    """Where."""
    return ids[idx]  # the table


def last():
    return slot_of([LIMIT], 0)
'''


def exercise(exercise_id: str = "04.2", name: str = "slot_of", module: str = "minipaged.pool"):
    return Exercise(
        id=exercise_id,
        lesson=exercise_id[:2],
        module=module,
        name=name,
        todo=(),
        minutes=10,
        level="easy",
        points=1,
        title=name,
        holds="",
        hints=(),
        rules={},
        mistakes={},
        shown=(),
    )


def taken(*cells: str, name: str = "slot_of", given: dict[str, str] | None = None) -> Extracted:
    return extract([textwrap.dedent(cell) for cell in cells], name, given or {})


def splice(*cells: str, text: str = MODULE, of: Exercise | None = None) -> str | None:
    of = of or exercise()
    return mine.splice(text, of, taken(*cells, name=of.name), MODULE)


def space_of(text: str) -> dict:
    """What a module's text defines, its relative import apart."""
    space: dict = {}
    exec(text.replace("from .base import START", "START = 0"), space)
    return space


MINE = "def slot_of(ids, idx):\n    return -ids[idx]"


# ----------------------------------------------------------------------------------- splicing


def test_the_learners_definition_takes_the_place_of_the_courses():
    before, after = MODULE.split("def slot_of")[0], "\n\n\ndef last():"
    assert splice(MINE) == (
        f"{before}# yours: 04.2\n{MINE}\n# end of 04.2{after}{MODULE.split(after)[1]}"
    )
    assert space_of(splice(MINE))["last"]() == -9


def test_the_decorators_of_the_old_one_go_with_it():
    text = MODULE.replace("def slot_of", "@staticmethod\ndef slot_of")
    assert "staticmethod" not in splice(MINE, text=text)


def test_a_class_is_replaced_too():
    mended = splice("class Pool:\n    room = 3", of=exercise("04.1", "Pool"))
    assert space_of(mended)["Pool"].room == 3
    assert mended.count("class Pool") == 1


@pytest.mark.parametrize(
    "same",
    [
        'def slot_of(ids, idx):\n    """Where."""\n    return ids[idx]',
        'def slot_of(\n    ids,\n    idx,\n):\n\n    "Where."\n    return (ids[idx])  # differs',
    ],
)
def test_the_courses_own_source_is_not_the_learners(same):
    assert splice(same) is None


def test_another_docstring_makes_it_the_learners():
    assert "# yours" in splice('def slot_of(ids, idx):\n    """There."""\n    return ids[idx]')


def test_helpers_imports_classes_and_constants_come_along():
    mended = splice(
        "import math\nimport heapq\nFACTOR = 2",
        "class Scale:\n    by = FACTOR",
        "def scaled(x): return math.floor(x) * Scale.by + len(heapq.nlargest(1, [x]))",
        "def slot_of(ids, idx): return scaled(ids[idx])",
    )
    assert space_of(mended)["last"]() == 19
    block = mended.split("# yours: 04.2\n")[1].split("# end of 04.2")[0]
    assert [type(node).__name__ for node in ast.parse(block).body] == [
        "Import",
        "Assign",
        "ClassDef",
        "FunctionDef",
        "FunctionDef",
    ]
    assert mended.count("import heapq") == 1


def test_annotations_that_are_not_evaluated_stay_so():
    cells = ("from __future__ import annotations\nif True:\n    def late(x): return x",)
    text = splice(*cells, "def slot_of(ids: Later, idx) -> Later:\n    return late(-ids[idx])")
    assert space_of(text)["slot_of"]([3], 0) == -3
    assert splice(*cells, "def slot_of(ids: Later, idx):\n    return late(0)", text=text)
    with pytest.raises(ValueError, match="another last"):
        splice("if True:\n    def last(): pass", "def slot_of(ids, idx):\n    return last()")


def test_a_star_import_comes_along():
    text = splice("from math import *", "def slot_of(ids, idx): return floor(ids[idx] / 2)")
    assert space_of(text)["last"]() == 4


def test_a_helper_that_counts_in_a_global_may_serve_two_exercises():
    counter = "COUNT = 0\ndef helper():\n    global COUNT\n    COUNT += 1\n    return COUNT"
    once = splice(counter, "def slot_of(ids, idx): return helper()")
    pool = exercise("04.1", "Pool")
    twice = splice(counter, "class Pool:\n    first = helper()", text=once, of=pool)
    assert space_of(twice)["Pool"].first == 1


def test_imports_of_the_module_itself_are_left_out():
    mended = splice(
        "from minipaged.pool import Pool, LIMIT", "def slot_of(ids, idx): return Pool, LIMIT"
    )
    assert "minipaged.pool" not in mended
    space = space_of(mended)
    assert space["slot_of"]([], 0) == (space["Pool"], 9)


def test_a_second_try_takes_the_place_of_the_first():
    once = splice("def helper(x): return -x", "def slot_of(ids, idx): return helper(ids[idx])")
    twice = splice("def slot_of(ids, idx): return 5", text=once)
    assert "helper" not in twice
    assert twice.count("# yours: 04.2") == twice.count("def slot_of") == 1
    assert space_of(twice)["last"]() == 5
    assert splice("def slot_of(ids, idx): return 5", text=twice) == twice


def test_two_exercises_of_one_module_stand_side_by_side():
    once = splice(MINE)
    twice = splice("class Pool:\n    room = 3", text=once, of=exercise("04.1", "Pool"))
    space = space_of(twice)
    assert (space["Pool"].room, space["last"]()) == (3, -9)
    again = splice("def slot_of(ids, idx): return 5", text=twice)
    assert space_of(again)["Pool"].room == 3


def test_both_may_need_the_same_helper():
    helper = "def helper(): return 3"
    once = splice(helper, "def slot_of(ids, idx): return helper()")
    twice = splice(
        helper, "class Pool:\n    room = helper()", text=once, of=exercise("04.1", "Pool")
    )
    assert space_of(twice)["Pool"].room == 3
    without = splice("def slot_of(ids, idx): return 5", text=twice)
    assert space_of(without)["Pool"].room == 3


def test_a_helper_with_the_name_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"minipaged\.pool has another Pool: rename yours"):
        splice("class Pool: pass", "def slot_of(ids, idx): return Pool()")
    with pytest.raises(ValueError, match="another LIMIT"):
        splice("LIMIT = 1", "def slot_of(ids, idx): return LIMIT")
    once = splice("def helper(): return 3", "def slot_of(ids, idx): return helper()")
    with pytest.raises(ValueError, match="another helper"):
        splice(
            "def helper(): return 4",
            "class Pool:\n    room = helper()",
            text=once,
            of=exercise("04.1", "Pool"),
        )


@pytest.mark.parametrize("mark", ["\u2028", "\x0c", "\x85"])
def test_characters_that_only_some_take_for_line_ends(mark):
    once = splice(f"def slot_of(ids, idx): return 'a{mark}b'")
    twice = splice("class Pool: pass", text=once, of=exercise("04.1", "Pool"))
    assert space_of(twice)["last"]() == f"a{mark}b"


def test_a_mark_without_its_end_is_named():
    broken = splice(MINE).replace("# end of 04.2", "")
    with pytest.raises(ValueError, match=r"'# yours: 04\.2' has no line '# end of 04\.2'"):
        splice(MINE, text=broken)


# ------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A project of one module, whose mine/ is not there yet."""
    (tmp_path / "minipaged").mkdir()
    (tmp_path / "minipaged" / "pool.py").write_text(MODULE)
    monkeypatch.setattr(mine, "ROOT", tmp_path)
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")
    monkeypatch.delenv("MINIPAGED_MINE", raising=False)
    return tmp_path / "mine"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_what_is_accepted_lies_in_mine_and_the_course_stays(folder):
    assert mine.accept(exercise(), taken(MINE)) == ["  It joined mine/pool.py."]
    assert MINE in (folder / "pool.py").read_text()
    assert (folder.parent / "minipaged" / "pool.py").read_text() == MODULE
    assert files(folder) == ["pool.py"]


def test_the_next_one_joins_the_first(folder):
    mine.accept(exercise(), taken(MINE))
    mine.accept(exercise("04.1", "Pool"), taken("class Pool:\n    room = 3", name="Pool"))
    space = space_of((folder / "pool.py").read_text())
    assert (space["Pool"].room, space["last"]()) == (3, -9)


def test_the_courses_own_source_writes_nothing(folder):
    own = 'def slot_of(ids, idx):\n    """Where."""\n    return ids[idx]'
    told = mine.accept(exercise(), taken(own))
    assert told == ["  It is the same code as the course's, so mine/pool.py needs no change."]
    assert files(folder) == []


def test_a_clash_is_told_and_writes_nothing(folder):
    lines = mine.accept(exercise(), taken("LIMIT = 1", "def slot_of(ids, idx): return LIMIT"))
    assert lines == [
        "  It did not join mine/: minipaged.pool has another LIMIT: rename yours, check again."
    ]
    assert files(folder) == []


def test_a_broken_module_in_mine_is_named_and_left_as_it_is(folder):
    folder.mkdir()
    (folder / "pool.py").write_text("x = 1\ndef slot_of(:\n")
    (line,) = mine.accept(exercise(), taken(MINE))
    assert line.startswith("  It did not join mine/: mine/pool.py, line 2: ")
    assert (folder / "pool.py").read_text() == "x = 1\ndef slot_of(:\n"


def test_switched_off_nothing_is_written_or_read(folder, monkeypatch):
    mine.remember("04.a", predicted=3)
    before = (folder / "progress.json").read_text()
    monkeypatch.setenv("MINIPAGED_MINE", "off")
    assert mine.accept(exercise(), taken(MINE)) == []
    mine.remember("04.a", predicted=4)
    mine.count("04.2", "passed")
    assert mine.record() == {}
    assert files(folder) == ["progress.json"]
    assert (folder / "progress.json").read_text() == before


def test_an_interrupted_write_leaves_the_old_file(folder, monkeypatch):
    mine.remember("04.a", predicted=3)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mine.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine.remember("04.a", predicted=4)
    assert mine.record() == {"04.a": {"predicted": 3}}


# ------------------------------------------------------------------------------------ record


def test_without_a_file_the_record_is_empty(folder):
    assert mine.record() == {}
    assert files(folder) == []


def test_the_record_grows(folder):
    mine.remember("04.a", predicted=1.5)
    mine.remember("04.b", predicted="so")
    mine.remember("04.a", at=2)
    assert mine.record() == {"04.a": {"predicted": 1.5, "at": 2}, "04.b": {"predicted": "so"}}
    assert files(folder) == ["progress.json"]


def test_an_exercise_once_passed_stays_passed(folder):
    for status in ("failed", "passed", "failed"):
        mine.count("04.2", status)
    assert mine.record() == {"04.2": {"status": "passed", "tries": 2}}


@pytest.mark.parametrize("broken", [b"{", b"", b"[1]", b'{"04.1": 3}', b"\xff\xfe", b"null"])
def test_an_unreadable_record_is_put_aside_and_said(folder, broken, capsys):
    folder.mkdir()
    (folder / "progress.json").write_bytes(broken)
    mine.count("04.2", "passed")
    assert capsys.readouterr().out == (
        "mine/progress.json could not be read. It is kept as mine/progress-unreadable-1.json; "
        "a new one begins.\n"
    )
    assert (folder / "progress-unreadable-1.json").read_bytes() == broken
    assert mine.record() == {"04.2": {"status": "passed", "tries": 1}}
    (folder / "progress.json").write_bytes(b"again")
    assert mine.record() == {}
    assert (folder / "progress-unreadable-2.json").read_bytes() == b"again"
    assert (folder / "progress-unreadable-1.json").read_bytes() == broken


def test_the_record_is_readable_json(folder):
    mine.remember("04.a", predicted=3)
    assert json.loads((folder / "progress.json").read_text()) == {"04.a": {"predicted": 3}}


# ----------------------------------------------------------------------------------- use_mine


def test_use_mine_binds_the_courses_imports_to_the_accepted_code(tmp_path, monkeypatch):
    """block_table.slot_of passes; then paged_cache's relative import is the learner's."""
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")
    monkeypatch.delenv("MINIPAGED_MINE", raising=False)
    real = exercise(module="minipaged.block_table")
    cells = (
        "import math",
        "CALLS = []",
        "def place(block, size): return math.prod((block, size))",
        "def slot_of(block_ids: list[int], token_idx: int, block_size: int) -> int:\n"
        "    CALLS.append(token_idx)\n"
        "    return place(block_ids[token_idx // block_size], block_size) + token_idx % block_size",
    )
    given = {"BlockPool": "minipaged.block_table"}
    assert mine.accept(real, taken(*cells, given=given)) == ["  It joined mine/block_table.py."]
    code = textwrap.dedent(f"""
        import minipaged
        minipaged.use_mine({str(tmp_path / "mine")!r})
        import minipaged.paged_cache as later
        import minipaged.block_table as own
        print(own.__file__)
        print(later.__file__)
        print(later.BlockTable is own.BlockTable)
        table = own.BlockTable.of([12, 5, 3], num_tokens=10, block_size=4)
        print(table.slot(9), own.CALLS)
    """)
    env = {key: value for key, value in os.environ.items() if key != "MINIPAGED_MINE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [
        "yours: block_table",
        str(tmp_path / "mine" / "block_table.py"),
        str(ROOT / "minipaged" / "paged_cache.py"),
        "True",
        "13 [9]",
    ]
