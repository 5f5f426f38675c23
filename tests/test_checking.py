"""Judging, the helpers that checks are written with, and what a notebook's check cell prints."""

import builtins
import functools
import linecache
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from minipaged.course.kit.catalogue import ROOT, Exercise
from minipaged.course.notebook.checking import hint, notebook_cells

import minipaged.block_table
from minipaged.course.kit import checking, subject
from minipaged.course.kit.checking import (
    CheckFailed,
    Draw,
    NotDone,
    check_for,
    check_of,
    expect,
    expect_error,
    expect_tensor,
    judge_source,
    poisoned,
    result,
    same,
    show,
)
from minipaged.course.kit.subject import Error, Ref, Reply
from minipaged.course.notebook import mine

RIGHT = """
def slot_of(block_ids, token_idx, block_size):
    return block_ids[token_idx // block_size] * block_size + token_idx % block_size
"""
NO_TABLE = "def slot_of(block_ids, token_idx, block_size):\n    return token_idx\n"
STUB = (
    'def slot_of(block_ids, token_idx, block_size):\n    """Slot."""\n    raise NotImplementedError'
)


def exercise(exercise_id: str, name: str, todo: tuple[str, ...] = ()) -> Exercise:
    return Exercise(
        id=exercise_id,
        lesson=exercise_id[:2],
        module="minipaged.block_table",
        name=name,
        todo=todo,
        minutes=10,
        level="easy",
        points=1,
        title=f"about {name}",
        file=ROOT / "lessons" / "source" / "98_none.md",
        line=1,
    )


SLOT = exercise("98.1", "slot_of")
POOL = exercise("98.2", "BlockPool", ("allocate",))


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Two exercises of a lesson that is not there, and no other check."""
    monkeypatch.setattr(checking, "_checks", {})
    monkeypatch.setattr(checking, "catalogue", lambda: {"98.1": SLOT, "98.2": POOL})
    monkeypatch.setenv("MINIPAGED_MINE", "off")
    seeds = []

    @check_for("98.1", holds="The table is asked.", hints=("one", "two", "three"))
    def check_slot_of(subject, draw):
        seeds.append(draw.getstate())
        ids = draw.sample(range(20), 4)
        for idx in range(12):
            about = f"slot_of({ids}, {idx}, 3)"
            saw = result(subject.call("slot_of", ids, idx, 3), about, {"IndexError": "Too far."})
            due = ids[idx // 3] * 3 + idx % 3
            expect(about, saw, due, lambda saw: "No table." if saw < 12 else "Another.")

    @check_for("98.2", holds="Lowest first.", hints=("one", "two", "three"))
    def check_pool(subject, draw):
        pool = subject.new("BlockPool", 6)
        saw = result(subject.call((pool, "allocate"), 2), "allocate(2)")
        expect("allocate(2)", saw, [0, 1], "The lowest ids come first.")
        expect("num_free", subject.get(pool, "num_free"), 4, "Two are gone.")

    return seeds


def judged(*cells: str, of: Exercise = SLOT, seed: int = 0):
    return judge_source(of, list(cells), seed)[0]


# ----------------------------------------------------------------------------------- verdicts


def test_a_right_solution_passes_with_five_different_draws(registry):
    assert judged(RIGHT).status == "passed"
    assert len(registry) == len(set(registry)) == checking.SEEDS == 5


def test_the_seed_alone_decides_the_draws(registry):
    judged(RIGHT, seed=7)
    judged(RIGHT, seed=7)
    assert registry[:5] == registry[5:]
    judged(RIGHT, seed=1000)
    assert not set(registry[:5]) & set(registry[10:])


def test_each_draw_has_a_fresh_subject():
    subjects = []

    @check_for("98.3", holds="", hints=())
    def look(subject, draw):
        assert subject.host.objects == []
        subjects.append(subject)
        subject.new("minipaged.block_table:BlockPool", 3)

    assert judged(RIGHT, of=exercise("98.3", "slot_of")).status == "passed"
    assert len({id(subject) for subject in subjects}) == 5


def test_a_wrong_solution_fails_and_its_misconception_is_named():
    failure = judged(NO_TABLE).failure
    assert failure.because == "No table."
    assert failure.about.startswith("slot_of([")
    assert failure.saw.isdigit() and failure.due.isdigit()


def test_a_mistake_that_only_one_draw_shows_is_found():
    rare = RIGHT.replace("    return", "    if block_ids[0] > 15: return -1\n    return")
    verdicts = {judged(rare, seed=seed).status for seed in range(0, 50, 5)}
    assert "failed" in verdicts


def test_a_stub_is_not_done_and_so_is_what_runs_into_one():
    assert judged(STUB).status == "not done"
    later = "def slot_of(block_ids, token_idx, block_size):\n    return helper()\n"
    assert judged("def helper(): raise NotImplementedError", later).status == "not done"
    maker = "class BlockPool:\n    def __init__(self, n): raise NotImplementedError\n"
    maker += "    def allocate(self, n): return []"
    assert judged(maker, of=POOL).status == "not done"


def test_an_exception_in_the_learners_code_is_a_failure_with_its_reason():
    failure = judged("def slot_of(ids, idx, size): return ids[idx + 4]").failure
    line = "def slot_of(ids, idx, size): return ids[idx + 4]"
    saw = f"IndexError: list index out of range, in the line `{line}`"
    assert (failure.saw, failure.due) == (saw, "no exception")
    assert failure.because == "Too far."
    failure = judged("def slot_of(ids, idx): return 0").failure
    assert failure.saw.startswith("TypeError: slot_of() takes 2 positional arguments")
    assert (
        failure.because == "Something is called, or computed with, in a way that it does not allow."
    )


def test_an_exception_while_making_or_reading_an_object():
    failure = judged("class BlockPool:\n    def allocate(self, n): return []", of=POOL).failure
    assert failure.about == "making or reading an object"
    assert failure.saw == "TypeError: BlockPool() takes no arguments"
    blind = "class BlockPool:\n    def __init__(self, n): pass\n"
    blind += "    def allocate(self, n): return [0, 1]"
    failure = judged(blind, of=POOL).failure
    assert failure.saw == "AttributeError: 'BlockPool' object has no attribute 'num_free'"


@pytest.mark.parametrize("value", ["None", "'3'", "[0]", "1j", "object()", "3.0", "True"])
def test_a_result_of_any_type_is_a_failure_of_the_learners_not_of_the_check(value):
    failure = judged(f"def slot_of(ids, idx, size): return {value}").failure
    told = "None came back" if value == "None" else "int is due"
    assert told in failure.because or "an object of class" in failure.saw


def test_a_check_that_trips_over_a_strange_result_fails_the_solution():
    @check_for("98.3", holds="", hints=())
    def careless(subject, draw):
        expect("f()", len(subject.call("slot_of").value), 3, "")

    failure = judged("def slot_of(): return 7", of=exercise("98.3", "slot_of")).failure
    assert "TypeError: object of type 'int' has no len()" in failure.saw


def test_an_object_equal_to_everything_does_not_pass():
    forged = "class Anything:\n    def __eq__(self, other): return True\n"
    assert judged(forged, "def slot_of(*a): return Anything()").status == "failed"


def test_an_int_of_a_class_of_its_own_does_not_pass():
    forged = "class Whole(int): pass"
    source = RIGHT.replace("return ", "return Whole(") + ")"
    assert judged(forged, source.replace("\n)", ")")).status == "failed"


def test_a_definition_that_does_not_run_alone():
    failure = judged("def slot_of(a, b, c, d=absent): return 0").failure
    assert failure.about == "running your definition alone, with what it needs"
    assert failure.saw == "NameError: name 'absent' is not defined"


def test_other_exercises_objects_are_the_courses_own():
    wrong = "class BlockPool:\n    pass"
    uses = RIGHT.replace("    return", "    BlockPool(3).allocate(1)\n    return")
    assert judged(wrong, uses).status == "passed"


def test_a_learners_code_is_in_a_file_that_tracebacks_can_show(tmp_path):
    source = RIGHT.replace(
        "    return", "    import inspect\n    inspect.getsource(slot_of)\n    return"
    )
    assert judged(source).status == "passed"


# ---------------------------------------------------------------------------------- registry


def test_two_checks_of_one_exercise_are_refused():
    with pytest.raises(ValueError, match=r"exercise 98\.1 has two checks"):
        check_for("98.1", holds="", hints=())(lambda subject, draw: None)


@pytest.mark.parametrize("wrong", ["98.9", "4.2", "04", "", "04.2.1", "../x", "98.1 "])
def test_an_unknown_exercise_is_named_with_those_that_there_are(wrong):
    message = re.escape(f"no check of exercise {wrong!r}; there are ") + r".*98\.1"
    with pytest.raises(ValueError, match=message):
        check_of(wrong)
    with pytest.raises(ValueError, match=message):
        hint(wrong)
    with pytest.raises(ValueError, match=re.escape(f"no exercise {wrong!r}; there are 98.1, 98.2")):
        checking.check(wrong, None)


def test_hints_and_their_range(capsys):
    hint("98.1")
    hint("98.1", 3)
    assert capsys.readouterr().out == "98.1, hint 1 of 3: one\n98.1, hint 3 of 3: three\n"
    for number in (0, 4, -1):
        with pytest.raises(ValueError, match=rf"98\.1 has hints 1 to 3, not {number}"):
            hint("98.1", number)


# ---------------------------------------------------------------------------- in a notebook


def made(source: str, name: str = "slot_of"):
    """What a cell makes; IPython, too, keeps the text of cells for `inspect`."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    space: dict = {}
    exec(compile(source, file, "exec"), space)
    return space[name]


@pytest.fixture
def notebook(monkeypatch):
    """Cells that count as run, oldest first."""
    ran: list[str] = []
    monkeypatch.setattr(checking, "notebook_cells", lambda: ran)
    return ran


def test_outside_of_ipython_there_are_no_cells():
    assert notebook_cells() == []


def test_without_ipython_there_are_no_cells(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("IPython"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert notebook_cells() == []


def test_a_shells_cells_are_its_history():
    ipython = pytest.importorskip("IPython")
    shell = ipython.core.interactiveshell.InteractiveShell.instance()
    try:
        shell.run_cell("x = 1", store_history=True)
        shell.run_cell("%%time\ny = 2", store_history=True, silent=False)
        cells = notebook_cells()
        assert cells[0] == "" and cells[1].strip() == "x = 1"
        assert "y = 2" in cells[2]
    finally:
        type(shell).clear_instance()


def test_cells_that_were_run_without_a_history_count_too():
    """As nbval runs them; checking is imported while the shell is there, so in a new process."""
    pytest.importorskip("IPython")
    code = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("from minipaged.course.checking import notebook_cells", "x = 1", "%time y = 2"):
    shell.run_cell(cell, store_history=False)
print(shell.user_ns["notebook_cells"]()[-2:])
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout.splitlines()[-1] == "['x = 1', '%time y = 2']"


def test_a_passing_check_gives_the_candidate_and_says_what_holds(notebook, capsys):
    notebook.append(RIGHT)
    theirs = made(RIGHT)
    assert checking.check("98.1", theirs) is theirs
    first = capsys.readouterr().out
    assert first == "98.1 slot_of: passed. The table is asked.\n"
    checking.check("98.1", theirs)
    assert capsys.readouterr().out == first  # no seed, no time


def test_a_failing_check_gives_the_courses_own_and_says_all(notebook, capsys):
    notebook.append(NO_TABLE)
    assert checking.check("98.1", made(NO_TABLE)) is minipaged.block_table.slot_of
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "98.1 slot_of: not right yet. The course's own stands in meanwhile."
    assert lines[1] == "  what holds  The table is asked."
    assert re.fullmatch(r"  tried       slot_of\(\[.*\], \d+, 3\)", lines[2])
    assert re.fullmatch(r"  saw         \d+", lines[3])
    assert re.fullmatch(r"  due         \d+", lines[4])
    assert lines[5] == "  perhaps     No table."
    assert lines[6] == '  hint        one  (More: hint("98.1", 2))'
    assert len(lines) == 7


def test_an_unstarted_exercise_goes_on_with_the_courses_own(notebook, capsys):
    notebook.append(STUB)
    assert checking.check("98.1", made(STUB)) is minipaged.block_table.slot_of
    assert capsys.readouterr().out == ("98.1 slot_of: not done yet. The course's own stands in.\n")


def test_running_the_check_again_on_the_courses_own_object_says_what_to_do(notebook, capsys):
    notebook.append(NO_TABLE)
    stands_in = checking.check("98.1", made(NO_TABLE))
    capsys.readouterr()
    assert checking.check("98.1", stands_in) is stands_in
    assert capsys.readouterr().out == (
        "98.1 slot_of: this is the course's own. Run your cell above first, then this one.\n"
    )


def test_a_cell_that_was_mended_and_run_again_counts(notebook, capsys):
    notebook += [NO_TABLE, "slot_of = check('98.1', slot_of)", RIGHT]
    theirs = made(RIGHT)
    assert checking.check("98.1", theirs) is theirs
    assert "passed" in capsys.readouterr().out


def test_without_a_cell_that_defines_it(notebook, capsys):
    notebook.append("slot_of = 3")
    assert checking.check("98.1", 3) is minipaged.block_table.slot_of
    assert capsys.readouterr().out == (
        "98.1 slot_of: no cell defines slot_of as a function or class.\n"
    )


@pytest.mark.parametrize(
    "other",
    [
        lambda ids, idx, size: 0,
        functools.partial(max, 1),
        made(NO_TABLE),
        made(RIGHT.replace("slot_of", "my_slot_of"), "my_slot_of"),
    ],
)
def test_only_what_the_newest_cell_made_is_checked(notebook, capsys, other):
    notebook += [NO_TABLE, RIGHT]
    assert checking.check("98.1", other) is minipaged.block_table.slot_of
    assert "does not come from the newest cell that defines slot_of" in capsys.readouterr().out


def test_tries_and_passes_are_counted(notebook, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_MINE", "on")
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")
    for source in (STUB, NO_TABLE, RIGHT, NO_TABLE):
        notebook.append(source)
        checking.check("98.1", made(source))
    assert mine.record() == {"98.1": {"status": "passed", "tries": 2}}  # up to the first pass
    capsys.readouterr()
    checking.progress()
    assert capsys.readouterr().out.splitlines() == [
        f"98.1 {'about slot_of':40} passed, 2 tries",
        f"98.2 {'about BlockPool':40} not done",
    ]


def test_what_passes_joins_the_learners_package(notebook, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_MINE", "on")
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")
    notebook.append(RIGHT)
    checking.check("98.1", made(RIGHT))
    assert capsys.readouterr().out.splitlines()[1:] == ["  It joined mine/block_table.py."]
    assert RIGHT.strip() in (tmp_path / "mine" / "block_table.py").read_text()


# ------------------------------------------------------------------- what checks are made of


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (1, 1),
        (0, 0),
        (0.1 + 0.2, 0.3),
        (0.0, -0.0),
        (math.inf, math.inf),
        (math.nan, math.nan),
        ([1, (2.0,)], [1, (2.0,)]),
        ({"a": 1}, {"a": 1}),
        (None, None),
        (Ref(1, "A"), Ref(1, "A")),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
    ],
)
def test_same(saw, due):
    assert same(saw, due)


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (True, 1),
        (0, False),
        (1.0, 1),
        (1, 1.0),
        (0, None),
        ("1", 1),
        (1e-6, 0.0),
        (1.0 + 1e-8, 1.0),
        (math.nan, 0.0),
        (0.0, math.nan),
        (math.inf, -math.inf),
        ((1, 2), [1, 2]),
        ([1], [1, 2]),
        ([1, 2], [1]),
        ([True], [1]),
        ([1, [2.0]], [1, [2]]),
        ({"a": 1}, {"a": True}),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        (Ref(1, "A"), Ref(2, "A")),
        (Anything(), 1),
        ([Anything()], [1]),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1, 2]), [1, 2]),
    ],
)
def test_not_the_same(saw, due):
    assert not same(saw, due)


def test_expect_names_the_types_where_they_differ():
    expect("f()", 3, 3, "never read")
    with pytest.raises(CheckFailed) as caught:
        expect("f()", 3.0, 3, "Divided.")
    assert caught.value.because == "Divided. (Its type is float; int is due.)"
    assert (caught.value.about, caught.value.saw, caught.value.due) == ("f()", "3.0", "3")
    with pytest.raises(CheckFailed) as caught:
        expect("f()", 4, 3, lambda saw: f"One more than {saw - 1}.")
    assert caught.value.because == "One more than 3."
    assert str(caught.value) == "f(): saw 4, due 3. One more than 3."


def failure(saw, due, because="Because.", **more) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        expect_tensor("f()", saw, due, because, **more)
    return caught.value


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (torch.zeros(3), torch.zeros(3)),
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0005, 100.0])),
        (torch.tensor([math.inf, -math.inf]), torch.tensor([math.inf, -math.inf])),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        (torch.tensor([True]), torch.tensor([True])),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.zeros(3, 2).t(), torch.zeros(2, 3)),
    ],
)
def test_tensors_that_agree(saw, due):
    expect_tensor("f()", saw, due, "never read")


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (torch.zeros(3), torch.tensor([0.0, 0.0, 0.5])),
        (torch.tensor([0.0, 1e-4]), torch.zeros(2)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001])),
        (torch.tensor([math.nan]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.nan])),
        (torch.tensor([math.inf]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.inf])),
        (torch.tensor([-math.inf]), torch.tensor([math.inf])),
        (torch.tensor([1.0, 5.0]), torch.tensor([math.inf, 5.0])),
        (torch.tensor([False]), torch.tensor([True])),
        (torch.tensor([1_000_001]), torch.tensor([1_000_000])),
        (torch.tensor([2_000_000, -1]), torch.tensor([2_000_000, 0])),
        (torch.tensor([1.0], dtype=torch.float16), torch.tensor([1.0])),
        (torch.tensor([1], dtype=torch.int32), torch.tensor([1])),
        (torch.ones(1, 3), torch.ones(3)),
        (torch.ones(3, 1), torch.ones(1, 3)),
        (torch.tensor(1.0), torch.ones(3)),
        ([1.0], torch.ones(1)),
        (1.0, torch.tensor(1.0)),
        (None, torch.ones(1)),
        (Anything(), torch.ones(1)),
        (Ref(0, "Parameter"), torch.ones(1)),
    ],
)
def test_tensors_that_do_not(saw, due):
    failure(saw, due)


def test_the_texts_of_a_tensors_failure():
    found = failure(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 3.0]]))
    assert (found.saw, found.due, found.because) == ("2 at [0, 1]", "3 there", "Because.")
    found = failure(torch.ones(2), torch.ones(3), lambda saw: f"{len(saw)} only.")
    assert (found.saw, found.due) == ("shape [2]", "shape [3]")
    assert found.because == "2 only. (The shape.)"
    found = failure(torch.ones(2).half(), torch.ones(2))
    assert (found.saw, found.due) == ("float16", "float32")
    found = failure(poisoned(2), torch.ones(2))
    assert found.because.startswith("Because. (There is NaN in it: from unused memory")
    found = failure(Ref(0, "Parameter"), torch.ones(2))
    assert (found.saw, found.because) == ("an object of class Parameter", "A tensor is due.")


def test_the_tolerance_is_relative_to_the_largest_that_is_due():
    due = torch.tensor([1000.0, 1.0])
    expect_tensor("f()", due + 0.5, due, "", tolerance=1e-3)
    failure(due + 2, due, tolerance=1e-3)
    failure(due + 0.5, due, tolerance=1e-4)
    failure(torch.tensor([1.1, 0.0]), torch.tensor([1.0, math.inf]), tolerance=1e-3)


@pytest.mark.parametrize("because", [lambda saw: saw + 1, lambda saw: [][3], lambda saw: saw.no])
def test_a_reason_that_cannot_be_read_off_is_none(because):
    with pytest.raises(CheckFailed) as caught:
        expect("f()", "x", 3, because)
    assert caught.value.because.strip() == "(Its type is str; int is due.)"


def test_a_missing_return_is_named():
    with pytest.raises(CheckFailed, match="None came back"):
        expect("f()", None, 3, "Because.")
    with pytest.raises(CheckFailed, match="None came back"):
        expect_tensor("f()", None, torch.ones(2), "Because.")


def test_result_passes_values_on_and_tells_of_errors():
    assert result(Reply([3], (), None), "f()") == [3]
    with pytest.raises(NotDone):
        result(Reply(None, (), Error("NotImplementedError", "")), "f()")
    with pytest.raises(CheckFailed) as caught:
        result(Reply(None, (), Error("OSError", "")), "f()", {"IndexError": "Too far."})
    assert (caught.value.saw, caught.value.due) == ("OSError", "no exception")
    assert caught.value.because == "Your code raised an exception."
    with pytest.raises(CheckFailed, match="nothing defines"):  # whatever the exercise is about
        result(Reply(None, (), Error("NameError", "no x")), "f()", "The shapes did not fit.")
    with pytest.raises(CheckFailed, match=r"PageFault: no frame, in the line `x = y`"):
        result(Reply(None, (), Error("Exception", "no frame", "PageFault", "x = y")), "f()")


def test_a_call_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(subject, "CALL_SECONDS", 0.2)
    failure = judged("def slot_of(ids, idx, size):\n    while True: pass").failure
    assert failure.saw.startswith("TimeoutError: did not end within 0.2 seconds")
    assert "what should end its loop" in failure.because
    with pytest.raises(CheckFailed, match="One reason"):
        result(Reply(None, (), Error("KeyError", "x")), "f()", "One reason for all.")


@pytest.mark.parametrize(
    ("reply", "saw"),
    [
        (Reply(3, (), None), "3"),
        (Reply(None, (), Error("KeyError", "block 7")), "KeyError: block 7"),
        (Reply(None, (), Error("ValueError", "bad block")), "ValueError: bad block"),
    ],
)
def test_expect_error_wants_the_kind_and_the_offending_value(reply, saw):
    expect_error("f(7)", Reply(None, (), Error("ValueError", "block 7")), "ValueError", 7, "Why.")
    with pytest.raises(CheckFailed) as caught:
        expect_error("f(7)", reply, "ValueError", 7, "Why.")
    assert caught.value.saw == saw
    with pytest.raises(NotDone):
        expect_error("", Reply(None, (), Error("NotImplementedError", "")), "ValueError", 7, "")


def test_show_is_short():
    assert show(torch.tensor([1, 2])) == "a tensor [2] int64 [1, 2]"
    assert show(torch.zeros(20)) == "a tensor [20] float32"
    assert show(Ref(0, "BlockPool")) == "an object of class BlockPool"
    assert len(show(list(range(1000)))) == 120


def test_draws_are_repeatable_and_never_in_order():
    assert torch.equal(Draw(3).tensor(2, 3), Draw(3).tensor(2, 3))
    assert not torch.equal(Draw(3).tensor(2, 3), Draw(4).tensor(2, 3))
    assert Draw(3).tensor(2, dtype=torch.bfloat16).dtype == torch.bfloat16
    for seed in range(20):
        assert sorted(Draw(seed).permutation(3)) == [0, 1, 2] != Draw(seed).permutation(3)
    assert Draw(0).permutation(1) == [0]
    assert Draw(0).permutation(0) == []
    assert poisoned(2, 3).isnan().all()


def test_an_error_names_the_value_as_a_word_and_not_in_a_list_of_everything():
    def reply(text):
        return Reply(None, (), Error("ValueError", text))

    expect_error("f()", reply("block -1 is unknown"), "ValueError", -1, "")
    for text in ("block 12 is unknown", "block -2", " ".join(map(str, range(40)))):
        with pytest.raises(CheckFailed, match="text names 2"):
            expect_error("f()", reply(text), "ValueError", 2, "")
