"""Judging a definition, explaining what is wrong with it, and what a notebook's check cell prints."""

import builtins
import functools
import linecache
import os
import re
import subprocess
import sys
import time

import pytest
import torch

import minipaged.block_table
from minipaged.course import drawn, judge_cells
from minipaged.course.kit import catalogue as kept
from minipaged.course.kit import checks, diagnosing
from minipaged.course.kit.catalogue import ROOT, Course, Exercise
from minipaged.course.kit.checks import check_for, check_of
from minipaged.course.kit.expecting import expect, expect_tensor, value
from minipaged.course.kit.mistakes import Mistake
from minipaged.course.kit.subject import LocalSubject
from minipaged.course.kit.verdicts import SEEDS, Verdict, try_check
from minipaged.course.notebook import checking, mine
from minipaged.course.notebook.checking import hint, notebook_cells

RIGHT = """
def slot_of(block_ids, token_idx, block_size):
    return block_ids[token_idx // block_size] * block_size + token_idx % block_size
"""
NO_TABLE = "def slot_of(block_ids, token_idx, block_size):\n    return token_idx\n"
STUB = (
    'def slot_of(block_ids, token_idx, block_size):\n    """Slot."""\n    raise NotImplementedError'
)
MISTAKES = [
    Mistake("98.1", "asks no table", source=NO_TABLE),
    Mistake(
        "98.1",
        "gives the block",
        source=RIGHT.replace(" * block_size + token_idx % block_size", ""),
    ),
    Mistake(
        "98.1",
        "gives block 3 for 4",
        source=RIGHT.replace(
            "    return", "    block_ids = [3 if b == 4 else b for b in block_ids]\n    return"
        ),
    ),
]


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
        holds="The table is asked.",
        hints=("one", "two", "three"),
        rules={"far": "Too far.", "table": "Through the table.", "lowest": "Lowest first."},
        mistakes={m.name: f"It {m.name}." for m in MISTAKES},
        shown=(),
    )


SLOT, POOL = exercise("98.1", "slot_of"), exercise("98.2", "BlockPool", ("allocate",))
MORE = exercise("98.3", "slot_of")


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Three exercises of a lesson that does not exist, and checks of the first two."""
    course = Course((), (SLOT, POOL, MORE), (), kept.course().phrases)
    monkeypatch.setattr(kept, "course", lambda: course)
    monkeypatch.setattr(checks, "_checks", {})
    monkeypatch.setattr(diagnosing, "_modules", {})
    monkeypatch.setattr(
        diagnosing, "mistakes_of", lambda of: [m for m in MISTAKES if m.exercise == of.id]
    )
    monkeypatch.setattr(checking, "_rungs", {})
    monkeypatch.setenv("MINIPAGED_MINE", "off")
    kept.catalogue.cache_clear()
    seeds = []

    @check_for("98.1", needs=("minipaged.block_table:BlockPool.free",))
    def check_slot_of(subject, draw):
        seeds.append(draw.getstate())
        ids = draw.sample(range(20), 4)
        for idx in range(12):
            saw = value(subject.call("slot_of", ids, idx, 3), {"IndexError": "far"})
            expect(saw, ids[idx // 3] * 3 + idx % 3, "table")

    @check_for("98.2")
    def check_pool(subject, draw):
        pool = subject.new("BlockPool", 6)
        expect(value(subject.call((pool, "allocate"), 2)), [0, 1], "lowest")
        expect(subject.get(pool, "num_free"), 4, "lowest")

    yield seeds
    kept.catalogue.cache_clear()


def judged(*cells: str, of: Exercise = SLOT, seed: int = 0) -> Verdict:
    return judge_cells(of.id, list(cells), seed)


# ----------------------------------------------------------------------------------- verdicts


def test_a_right_solution_passes_with_five_different_draws(registry):
    assert judged(RIGHT) == Verdict("passed")
    assert len(registry) == len(set(registry)) == SEEDS == 5


def test_the_seed_alone_decides_the_draws(registry):
    judged(RIGHT, seed=7)
    judged(RIGHT, seed=7)
    assert registry[:5] == registry[5:]
    judged(RIGHT, seed=1000)
    assert not set(registry[:5]) & set(registry[10:])


def test_without_a_seed_each_judging_draws_afresh(registry):
    judge_cells("98.1", [RIGHT])
    judge_cells("98.1", [RIGHT])
    assert len(set(registry)) == 10


def test_each_draw_has_a_fresh_subject():
    subjects = []

    @check_for("98.3")
    def look(subject, draw):
        assert subject.subject.host.objects == []
        subjects.append(subject)
        subject.new("minipaged.block_table:BlockPool", 3)

    assert judged(RIGHT, of=MORE).status == "passed"
    assert len({id(subject) for subject in subjects}) == 5


def test_a_mistake_that_only_one_draw_shows_is_found():
    rare = RIGHT.replace("    return", "    if block_ids[0] > 15: return -1\n    return")
    verdicts = {judged(rare, seed=seed).status for seed in range(0, 50, 5)}
    assert "failed" in verdicts


def test_a_stub_is_not_done_and_so_is_what_runs_into_one():
    assert judged(STUB) == Verdict("not done")
    later = "def slot_of(block_ids, token_idx, block_size):\n    return helper()\n"
    assert judged("def helper(): raise NotImplementedError", later).status == "not done"
    maker = "class BlockPool:\n    def __init__(self, n): raise NotImplementedError\n"
    maker += "    def allocate(self, n): return []"
    assert judged(maker, of=POOL).status == "not done"


def test_no_definition_is_not_done_and_says_what_there_is():
    verdict = judged("x = 1")
    assert verdict.status == "not done"
    assert verdict.because == "no cell defines slot_of as a function or class."


def test_an_exception_in_the_learners_code_is_a_failure_with_the_rule_that_it_breaks():
    line = "def slot_of(ids, idx, size): return ids[idx + 4]"
    verdict = judged(line)
    assert verdict.saw == f"IndexError: list index out of range, in the line `{line}`"
    assert (verdict.due, verdict.because) == ("no exception", "Too far.")
    verdict = judged("def slot_of(ids, idx): return 0")
    assert verdict.saw.startswith("TypeError: slot_of() takes 2 positional arguments")
    assert (
        verdict.because == "Something is called, or computed with, in a way that it does not allow."
    )


def test_an_exception_while_making_or_reading_an_object():
    verdict = judged("class BlockPool:\n    def allocate(self, n): return []", of=POOL)
    assert verdict.about == "again = BlockPool(6)"
    assert verdict.saw == "TypeError: BlockPool() takes no arguments"
    blind = "class BlockPool:\n    def __init__(self, n): pass\n"
    blind += "    def allocate(self, n): return [0, 1]"
    verdict = judged(blind, of=POOL)
    assert verdict.saw == "AttributeError: 'BlockPool' object has no attribute 'num_free'"
    assert verdict.about == "pool = BlockPool(6)\npool.allocate(2)\nagain = pool.num_free"


@pytest.mark.parametrize("given", ["None", "'3'", "[0]", "1j", "object()", "3.0", "True"])
def test_a_result_of_any_type_is_a_failure_of_the_learners_not_of_the_check(given):
    verdict = judged(f"def slot_of(ids, idx, size): return {given}")
    told = "None came back" if given == "None" else "int is expected"
    assert told in verdict.because or "an object of class" in verdict.saw


def test_a_check_that_trips_over_a_strange_result_fails_the_solution():
    @check_for("98.3")
    def careless(subject, draw):
        expect(len(subject.call("slot_of").value), 3)

    verdict = judged("def slot_of(): return 7", of=MORE)
    assert "TypeError: object of type 'int' has no len()" in verdict.saw


def test_an_object_equal_to_everything_does_not_pass():
    forged = "class Anything:\n    def __eq__(self, other): return True\n"
    assert judged(forged, "def slot_of(*a): return Anything()").status == "failed"


def test_an_int_of_a_class_of_its_own_does_not_pass():
    forged = "class Whole(int): pass"
    source = RIGHT.replace("return ", "return Whole(") + ")"
    assert judged(forged, source.replace("\n)", ")")).status == "failed"


def test_a_definition_that_does_not_run_alone():
    verdict = judged("def slot_of(a, b, c, d=absent): return 0")
    assert verdict.about == "running your definition alone, with what it needs"
    assert verdict.saw == "NameError: name 'absent' is not defined"


def test_other_exercises_objects_are_the_courses_own():
    wrong = "class BlockPool:\n    pass"
    uses = RIGHT.replace("    return", "    BlockPool(3).allocate(1)\n    return")
    assert judged(wrong, uses).status == "passed"


def test_a_learners_code_is_in_a_file_that_tracebacks_can_show():
    source = RIGHT.replace(
        "    return", "    import inspect\n    inspect.getsource(slot_of)\n    return"
    )
    assert judged(source).status == "passed"


def test_a_call_without_an_end_is_stopped(monkeypatch):
    source = {"slot_of": lambda *a: [None for _ in iter(int, 1)]}
    module = type(re)("endless")
    vars(module).update(source)
    start = time.monotonic()
    verdict = try_check(SLOT, lambda: LocalSubject(module, 0.2), 0)
    assert verdict.saw.startswith("TimeoutError: did not end within 0.2 seconds")
    assert "what should end its loop" in verdict.because
    assert time.monotonic() - start < 2


# ------------------------------------------------------------------------------- explanations


def test_a_known_mistake_is_named():
    for mistake in MISTAKES[:2]:
        renamed = mistake.source.replace("token_idx", "idx").replace("return ", "return 0 + ")
        verdict = judged(renamed)
        assert verdict.mistake == mistake.name
        assert verdict.because == f"It {mistake.name}."


def test_nothing_is_guessed_where_no_mistake_acts_alike():
    for source in (NO_TABLE.replace("return ", "return 1 + "), NO_TABLE + "    raise ValueError"):
        source = source.replace("    return token_idx\n    raise", "    raise")
        verdict = judged(source)
        assert verdict.mistake is None
    assert judged(NO_TABLE.replace("return ", "return 1 + ")).because == "Through the table."


def test_a_mistake_must_act_alike_in_every_draw():
    """Only in draws with block 4 does this one differ from the right solution."""
    sometimes = MISTAKES[2].source.replace("3 if b == 4", "3 if b == 4 and len(block_ids) < 9")
    assert judged(sometimes).mistake == "gives block 3 for 4"
    other = MISTAKES[2].source.replace("3 if b == 4", "3 if b in (4, *range(6, 12))")
    assert {judged(other, seed=seed).mistake for seed in range(0, 50, 10)} == {None}


def test_two_that_act_alike_are_named_as_either_or(monkeypatch):
    twin = Mistake("98.1", "gives the block", source=NO_TABLE)
    monkeypatch.setattr(diagnosing, "mistakes_of", lambda of: [MISTAKES[0], twin])
    verdict = judged(NO_TABLE)
    assert verdict.mistake == "asks no table or gives the block"
    assert verdict.because == "Either: It asks no table. Or: It gives the block."


def test_what_fails_is_code_that_can_be_pasted():
    for source in (NO_TABLE, RIGHT.replace("% block_size", "% 2")):
        verdict = judged(source)
        space: dict = {}
        exec(source + verdict.about, space)
        assert repr(space["again"]) == verdict.saw != verdict.due


def test_the_input_shown_is_among_the_smallest():
    @check_for("98.3")
    def lists(subject, draw):
        ids = [draw.randrange(100) for _ in range(draw.randint(1, 30))]
        expect(value(subject.call("slot_of", ids)), sum(ids), "table")

    verdict = judged("def slot_of(ids): return -1", of=MORE)
    assert re.fullmatch(r"again = slot_of\(\[\d+(, \d+){0,3}\]\)", verdict.about)


def test_a_large_tensor_is_drawn_again_by_a_call():
    @check_for("98.3")
    def tensors(subject, draw):
        pool = subject.new("minipaged.block_table:BlockPool", 3)
        x, y = draw.tensor(5, 7), draw.tensor(2)
        expect_tensor(value(subject.call("slot_of", x, y)), x * 2, "table")
        expect_tensor(value(subject.call("slot_of", x, pool)), x * 2, "table")

    once = "def slot_of(x, y): return x * 2 if isinstance(y, torch.Tensor) else x"
    for source in (once, "def slot_of(x, y): return x"):
        verdict = judged("import torch", source, of=MORE)
        space: dict = {"slot_of": lambda x, y: x, "torch": torch}
        exec(verdict.about, space)
        assert space["again"].shape == (5, 7)
        assert f"{float(space['again'].flatten()[0]):.6g} at [0, 0]" == verdict.saw
        assert "drawn(" in verdict.about and verdict.about.count("\n") <= 3
    with pytest.raises(ValueError, match=r"98\.3 makes no request 7 with the seed 0"):
        drawn("98.3", 0, 7)


def test_what_changes_its_arguments_shows_them_again():
    @check_for("98.3")
    def appends(subject, draw):
        reply = subject.call("slot_of", [draw.randint(1, 9)], 7)
        expect(value(reply), None)
        expect(reply.args_after[0][1:], [7], "table")

    verdict = judged("def slot_of(ids, x): ids.append(8)", of=MORE)
    space: dict = {"slot_of": lambda ids, x: ids.append(8)}
    exec(verdict.about, space)
    assert space["again"][0] is None and space["again"][1][0][1:] == [8]
    assert verdict.saw == "[8]"
    verdict = judged("def slot_of(ids, x): return ids.append(7) or 5", of=MORE)
    assert (verdict.saw, verdict.about.splitlines()[-1]) == ("5", "again = slot_of(*args), args")


@pytest.mark.parametrize("given, shown", [("5", "slot_of(space)"), ("7", "allocator.num_free")])
def test_the_code_shown_gives_what_was_seen_through_other_objects_and_exceptions(given, shown):
    @check_for("98.3")
    def writes(subject, draw):
        frames = subject.new("minipaged.paging:FrameAllocator", 3)
        space = subject.new("minipaged.paging:AddressSpace", [None] * 6, frames, 2)
        for address in (-1, 0):
            subject.call((space, "write"), address, "x")
        saw = value(subject.call("slot_of", space))
        left = subject.get(frames, "num_free")
        expect(saw, 7, "table")
        expect(left, 3, "table")

    source = f"def slot_of(space): return {given}"
    verdict = judged(source, of=MORE)
    space: dict = {}
    exec(f"{source}\n{verdict.about}", space)
    assert repr(space["again"]) == verdict.saw
    assert verdict.about.splitlines()[-1] == f"again = {shown}"


def test_a_mistake_that_does_not_load_or_end_is_not_named(monkeypatch):
    broken = Mistake("98.1", "does not load", source="def slot_of(a=absent): return 0")
    monkeypatch.setattr(diagnosing, "mistakes_of", lambda of: [broken, MISTAKES[0]])
    assert judged(NO_TABLE).mistake == "asks no table"


def test_an_explanation_ends_in_time(monkeypatch):
    many = [Mistake("98.1", f"{n}", source=NO_TABLE) for n in range(3)]
    monkeypatch.setattr(diagnosing, "mistakes_of", lambda of: many)
    module = type(re)("slow")
    module.slot_of = lambda *a: time.sleep(0.02)  # type: ignore[attr-defined]
    start = time.monotonic()
    verdict = try_check(SLOT, lambda: LocalSubject(module), 0, seconds=0.5)
    assert verdict.mistake is None
    assert time.monotonic() - start < 2


# ---------------------------------------------------------------------------------- registry


def test_two_checks_of_one_exercise_are_refused():
    with pytest.raises(ValueError, match=r"exercise 98\.1 has two checks"):
        check_for("98.1")(lambda subject, draw: None)


def test_what_a_check_needs_is_known():
    assert checks.needs("98.1") == {("minipaged.block_table", "BlockPool")}
    assert checks.needs("98.2") == frozenset()


@pytest.mark.parametrize("wrong", ["98.9", "4.2", "04", "", "04.2.1", "../x", "98.1 "])
def test_an_unknown_exercise_is_named_with_those_that_there_are(wrong):
    message = re.escape(f"no exercise {wrong!r}; there are 98.1, 98.2, 98.3")
    for ask in (
        check_of,
        hint,
        lambda name: checking.check(name, None),
        lambda n: judge_cells(n, []),
    ):
        with pytest.raises(ValueError, match=message):
            ask(wrong)


def test_hints_come_rung_by_rung_or_as_asked(capsys):
    for number in (None, None, None, None, 1, None):
        hint("98.1", number)
    numbers = re.findall(r"98\.1, hint (\d) of 3: (\w+)\n", capsys.readouterr().out)
    assert numbers == [
        ("1", "one"), ("2", "two"), ("3", "three"), ("3", "three"), ("1", "one"), ("2", "two")
    ]  # fmt: skip
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
for cell in ("from minipaged.course.notebook.checking import notebook_cells", "x = 1", "%time y = 2"):
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
    assert lines[0] == "98.1 slot_of: not right yet. The course's own is used for now."
    assert lines[1] == "  what holds  The table is asked."
    assert re.fullmatch(r"  run again   again = slot_of\(\[.*\], \d+, 3\)", lines[2])
    assert re.fullmatch(r"  saw         \d+", lines[3])
    assert re.fullmatch(r"  expected    \d+", lines[4])
    assert lines[5] == "  your code   It asks no table."
    assert lines[6] == "  hint        one"
    assert len(lines) == 8 and lines[7].startswith(
        '  More: hint("98.1"). To run it again, run your'
    )


def test_the_first_hint_is_shown_once_and_what_is_not_known_is_the_rule(notebook, capsys):
    unknown = NO_TABLE.replace("return ", "return 1 + ")
    notebook.append(unknown)
    checking.check("98.1", made(unknown))
    checking.check("98.1", made(unknown))
    out = capsys.readouterr().out
    assert out.count("  hint        one\n") == 1
    assert out.count("  must hold   Through the table.\n") == 2
    hint("98.1")
    assert "hint 2 of 3: two" in capsys.readouterr().out


def test_a_slow_check_says_that_it_runs(notebook, capsys):
    check_for("98.3", slow=True)(lambda subject, draw: None)
    notebook.append(RIGHT)
    checking.check("98.3", made(RIGHT))
    assert capsys.readouterr().out.startswith("98.3 slot_of: running your kernel")


def test_an_unstarted_exercise_goes_on_with_the_courses_own(notebook, capsys):
    notebook.append(STUB)
    assert checking.check("98.1", made(STUB)) is minipaged.block_table.slot_of
    assert capsys.readouterr().out == (
        "98.1 slot_of: not done yet. The course's own is used for now.\n"
    )


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
        f"98.3 {'about slot_of':40} not done",
    ]


def test_what_passes_joins_the_learners_package(notebook, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_MINE", "on")
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")
    notebook.append(RIGHT)
    checking.check("98.1", made(RIGHT))
    assert capsys.readouterr().out.splitlines()[1:] == ["  It joined mine/block_table.py."]
    assert RIGHT.strip() in (tmp_path / "mine" / "block_table.py").read_text()


def test_the_first_check_reads_the_catalogue_and_little_else():
    """In a new process, where nothing is in any cache; calls are those of the package's functions."""
    code = f"""
import sys
import minipaged.block_table, minipaged.course
from minipaged.course.notebook import checking
stub = {STUB!r}
space = {{}}
exec(stub, space)
checking.notebook_cells = lambda: [stub]
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call" and "/minipaged/" in frame.f_code.co_filename
sys.setprofile(count)
minipaged.course.check("04.2", space["slot_of"])
sys.setprofile(None)
print(calls)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert 10 < int(done.stdout.splitlines()[-1]) <= 500
