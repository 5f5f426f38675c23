"""Verdicts of the grader: the notebook's own, and none that a submission could see or make."""

import re
from typing import Any

import pytest
import torch

from minipaged import CHAPTERS
from minipaged.course import judge_cells
from minipaged.course.grading.channel import inspect_tree
from minipaged.course.grading.marking import exercises_of, mark_exercise
from minipaged.course.grading.view import view
from minipaged.course.grading.words import clean, masked
from minipaged.course.kit import verdicts
from minipaged.course.kit.catalogue import catalogue
from minipaged.course.kit.mistakes import Mistake, mistakes_of
from minipaged.course.kit.subject import Message, MessageSubject, decode, encode
from tests.grading_tools import contents, given, marked, sandbox, source, stub

EXERCISES = list(catalogue())
BANK = [mistake for exercise in catalogue().values() for mistake in mistakes_of(exercise)]
FIRST = list({mistake.exercise: mistake for mistake in reversed(BANK)}.values())


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_reference_gets_full_marks(exercise_id: str) -> None:
    outcome = marked(exercise_id, source(exercise_id))
    assert outcome.status == "passed", (outcome.full, outcome.because)
    assert outcome.points == outcome.max_points


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_untouched_stub_gets_none(exercise_id: str) -> None:
    outcome = marked(exercise_id, stub(exercise_id))
    assert (outcome.status, outcome.points) == ("not done", 0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mistake" in metafunc.fixturenames:
        bank = BANK if metafunc.config.getoption("--all") else FIRST
        metafunc.parametrize("mistake", bank, ids=lambda item: f"{item.exercise} {item.name}")


def test_grader_and_notebook_agree_on_wrong_solutions(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEARCH_SECONDS", "SLOW_SECONDS"):
        monkeypatch.setattr(verdicts, name, 15.0)
    monkeypatch.setattr(verdicts, "SMALLEST", 0.0)
    exercise = catalogue()[mistake.exercise]
    cells = mistake.cells(exercise)
    outcome = mark_exercise(exercise, contents(*cells), sandbox(), seed=0)
    verdict = judge_cells(exercise.id, cells, 0)
    assert (outcome.status, outcome.points) == ("failed", 0)
    assert (verdict.status, outcome.mistake) == ("failed", verdict.mistake)
    assert outcome.because == verdict.because != ""
    assert outcome.full is not None
    file = re.compile(r"(exercise_\d\d_\d+)_\d+")  # the name differs
    assert file.sub(r"\1", outcome.full.saw) == file.sub(r"\1", clean(verdict.saw, 5000))
    assert (outcome.full.about, outcome.full.due) == (verdict.about, verdict.due)


@pytest.mark.parametrize("seed", range(3))
def test_each_run_draws_afresh_and_reports_its_seed(seed: int) -> None:
    seeds = {marked("04.2", source("04.2")).seed for _ in range(2)}
    assert len(seeds) == 2
    assert None not in seeds


UNUSUAL = {
    "a lambda in a class": (
        "04.2",
        """
        class Place:
            find = staticmethod(lambda ids, t, size: ids[t // size] * size + t % size)

        def slot_of(block_ids, token_idx, block_size):
            return Place.find(block_ids, token_idx, block_size)
        """,
    ),
    "recursion, other names and star arguments": (
        "04.2",
        """
        def walk(ids, left, size):
            first, *rest = ids
            return first * size + left if left < size else walk(rest, left - size, size)

        def slot_of(*args, **kwargs):
            return walk(*args, **kwargs)
        """,
    ),
    "numpy's arithmetic turned into an int": (
        "04.2",
        """
        import numpy as np
        def slot_of(block_ids, token_idx, block_size):
            places = np.asarray(block_ids)[:, None] * block_size + np.arange(block_size)
            return int(places.ravel()[token_idx])
        """,
    ),
    "a decorator of one's own, a print and an assertion": (
        "04.2",
        """
        import functools

        def traced(function):
            @functools.wraps(function)
            def inner(*args):
                print("called with", args)
                return function(*args)
            return inner

        @traced
        def slot_of(block_ids, token_idx, block_size):
            assert block_size > 0
            block, offset = divmod(token_idx, block_size)
            return block_ids[block] * block_size + offset
        """,
    ),
    "a subclass of an earlier exercise's class": (
        "04.2",
        """
        from minipaged.block_table import BlockPool

        class Mine(BlockPool):
            pass

        def slot_of(block_ids, token_idx, block_size):
            pool = Mine(1000)
            assert pool.allocate(2) == [0, 1]
            block, offset = divmod(token_idx, block_size)
            return block_ids[block] * block_size + offset
        """,
    ),
    "threads": (
        "04.2",
        """
        from concurrent.futures import ThreadPoolExecutor

        def slot_of(block_ids, token_idx, block_size):
            with ThreadPoolExecutor(2) as pool:
                block, offset = pool.map(divmod, [token_idx] * 2, [block_size] * 2).__next__()
            return block_ids[block] * block_size + offset
        """,
    ),
    "annotations that are not evaluated, a star import, constants that calls make": (
        "04.2",
        """
        from __future__ import annotations
        from math import *
        from collections import namedtuple

        Place = namedtuple("Place", "block offset")
        FIRST = int("0")

        class Finder:
            def to(self, idx: Index, size: int) -> Finder:
                self.place = Place(floor(idx / size), idx % size)
                return self

        def slot_of(block_ids: Ids, token_idx: Index, block_size: int) -> Slot:
            block, offset = Finder().to(token_idx, block_size).place
            return FIRST + block_ids[block] * block_size + offset
        """,
    ),
    "a loop in the place of indexing": (
        "04.5",
        """
        def gather_kv(k_cache, v_cache, block_table, seq_len):
            size = k_cache.shape[1]
            check = covered_blocks(block_table, seq_len, k_cache.shape[0], size)
            k = [k_cache[check[t // size], t % size] for t in range(seq_len)]
            v = [v_cache[check[t // size], t % size] for t in range(seq_len)]
            if not k:
                empty = k_cache.new_empty(0, *k_cache.shape[2:])
                return empty, empty.clone()
            return torch.stack(k), torch.stack(v)
        """,
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_but_right_gets_full_marks(name: str) -> None:
    exercise_id, text = UNUSUAL[name]
    outcome = marked(exercise_id, text)
    assert outcome.status == "passed", (outcome.full, outcome.because)


ZERO_IS_NONE = {
    "03.1": ("virtual_address < 0", "virtual_address <= 0"),
    "03.2": ("virtual_address < 0", "virtual_address <= 0"),
    "04.4": ("slot_mapping >= 0", "slot_mapping > 0"),
}


@pytest.mark.parametrize("exercise_id", ZERO_IS_NONE)
def test_the_first_address_or_slot_is_one(exercise_id: str) -> None:
    text, wrong = source(exercise_id), ZERO_IS_NONE[exercise_id]
    assert wrong[0] in text
    assert marked(exercise_id, text).status == "passed"
    assert marked(exercise_id, text.replace(*wrong)).status == "failed"


def test_a_pool_whose_blocks_stand_in_its_class_fails() -> None:
    text = source("04.1").replace("self.free_ids", "BlockPool.free_ids")
    outcome = marked("04.1", text)
    assert outcome.status == "failed"
    assert "of its own" in outcome.because


class Forger(MessageSubject):
    """A subject that answers every request with the same value, and leaves arguments alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def exchange(self, request: Message) -> Message:
        _, _, args, _ = decode(request, lambda ref: ref)
        value = args[0] if self.value == "echo" and args else self.value
        if self.value == "last" and args:
            value = args[-1]
        return encode((value, args, None), MessageSubject.refuse)


FORGERS = [None, True, 0, 1, -1, 0.0, "", [], [0], (), {}, "echo", "last", torch.zeros(1)]


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_no_constant_reply_passes_a_check(exercise_id: str) -> None:
    exercise = catalogue()[exercise_id]
    for value in FORGERS:
        verdict = verdicts.try_check(exercise, lambda value=value: Forger(value), 7, seconds=0)
        assert verdict.status != "passed", value


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_view_holds_no_answer_of_this_or_a_later_exercise(exercise_id: str) -> None:
    seen = "\n".join(view(exercise_id).values())
    squeezed = {" ".join(line.split()) for line in seen.split("\n")}
    number = EXERCISES.index(exercise_id)
    earlier = "\n".join(source(earlier) for earlier in EXERCISES[:number])
    known = {" ".join(line.split()) for line in earlier.split("\n")}
    for later in EXERCISES[number:]:
        kept = {" ".join(line.split()) for line in stub(later).split("\n")}
        answer = {" ".join(line.split()) for line in source(later).split("\n")} - kept
        telling = {line for line in answer - known if len(line) >= 30}
        shared = telling & squeezed  # a line or two may stand in given code too
        assert len(shared) <= len(telling) / 3, (later, shared)


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_view_holds_earlier_lessons_whole_and_no_later_module(exercise_id: str) -> None:
    exercise = catalogue()[exercise_id]
    for path, text in view(exercise_id).items():
        *rooms, file = path.removeprefix("minipaged/").removesuffix(".py").split("/")
        if not rooms and file != "__init__":
            assert CHAPTERS[file] <= exercise.lesson
        assert rooms in ([], ["given"], ["interpreter"])
        compile(text, path, "exec")
    for earlier in EXERCISES[: EXERCISES.index(exercise_id)]:
        other = catalogue()[earlier]
        text = view(exercise_id)[f"{other.module.replace('.', '/')}.py"]
        assert source(earlier) in text


@pytest.mark.parametrize("exercise_id", {e[:2]: e for e in EXERCISES}.values())
def test_every_module_of_a_view_can_be_imported(exercise_id: str) -> None:
    modules = [path.removesuffix(".py").replace("/", ".") for path in view(exercise_id)]
    lines = [f"import {m.removesuffix('.__init__')}" for m in modules]
    probe = "\n".join(f"    {line}" for line in [*lines, "raise ValueError('all imported')"])
    name = catalogue()[exercise_id].name
    outcome = marked(
        exercise_id, f"def probe():\n{probe}\n\n\n@probe()\nclass {name}:\n    x = 1\n"
    )
    assert outcome.full and "all imported" in outcome.full.saw, outcome.full


HOSTILE_TREES = [
    ["int", "1e5"],
    ["int", 5],
    ["int", "9" * 5000],
    ["float", "garbage"],
    ["float", 1.0],
    ["tensor", 0, "float32", [1 << 50], [0], 0],
    ["tensor", 0, "float32", [4], [1], 1],
    ["tensor", 0, "float32", [4], [-1], 3],
    ["tensor", 1, "float32", [1], [1], 0],
    ["tensor", -1, "float32", [1], [1], 0],
    ["tensor", True, "float32", [1], [1], 0],
    ["tensor", 0, "float32", [1 << 30], [0], 0],
    ["tensor", 0, "float32", [1 << 20], [0], 0],
    ["tensor", 0, "load", [1], [1], 0],
    ["tensor", 0, "qint8", [1], [1], 0],
    ["tensor", 0, "bool", [4], [1], 0],
    ["tensor", 0, "float32", [True], [1], 0],
    ["dtype", "load"],
    ["dtype", "_C"],
    ["ref", "x", "BlockPool"],
    ["ref", True, "BlockPool"],
    ["pickle", "cos\nsystem\n(S'true'\ntR."],
    ["list", {"a": 1}],
    ["dict", [["a"]]],
    ["dict", {"a": 1}],
    {"a": 1},
    1,
    1.5,
    [],
]


@pytest.mark.parametrize("tree", HOSTILE_TREES, ids=str)
def test_reply_that_the_codec_would_not_have_made_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError):
        inspect_tree(["tuple", [tree, ["tuple", []], None]], [bytes([2] * 16)])


def test_reply_too_deep_or_too_long_is_refused() -> None:
    deep: Any = None
    for _ in range(100):
        deep = ["list", [deep]]
    with pytest.raises(ValueError, match="deep"):
        inspect_tree(deep, [])
    with pytest.raises(ValueError, match="large"):
        inspect_tree(["list", [None] * 400_000], [])


def test_what_the_codec_makes_is_let_through() -> None:
    base = torch.randn(6, 4)
    value = (1, -2, 0.5, float("nan"), float("inf"), -0.0, 5e-324, 1.5e300, True, None, "x")
    tensors = [base, base.t(), base[1:, ::2], base.bfloat16(), base > 0, torch.empty(0, 3)]
    tensors += [torch.tensor(3), base[0].expand(5, 4), torch.tensor([1 + 2j]), base.int()]
    message = encode((value, tensors, {"a": (1,)}, torch.float16), MessageSubject.refuse)
    inspect_tree(message.tree, message.storages)


def test_words_lose_drawn_numbers() -> None:
    assert masked("pool.free([3, 12]); k_cache2 at (4, 5), 1.5e-3, float32") == (
        "pool.free(…); k_cache2 at […], …, float32"
    )


def test_words_lose_what_a_terminal_or_a_file_would_choke_on() -> None:
    text = clean("\x1b[31mred\x1b]0;title\x07 \ud800 \u202e\x00\x9b31m end")
    assert text == "red ? 31m end"
    assert len(clean("x" * 10_000)) == 500


def test_a_lesson_without_exercises_is_named() -> None:
    with pytest.raises(ValueError, match="'77'"):
        exercises_of(["77"])
    assert {exercise.lesson for exercise in exercises_of(["4"])} == {"04"}


def test_the_maximum_comes_from_the_course() -> None:
    for text in (source("04.2"), "x = 1", ""):
        outcome = marked("04.2", text)
        assert outcome.max_points == catalogue()["04.2"].points


def test_names_that_only_a_demonstration_gives_fail_and_say_so() -> None:
    text = "def slot_of(a, b, c, extra=undefined_name):\n    return 1"
    outcome = marked("04.2", text, "undefined_name = make()")
    assert outcome.status == "failed"
    assert "undefined_name" in outcome.saw
    assert given("04.2")


def test_an_import_of_what_may_not_be_used_says_so() -> None:
    cell = "from minipaged.paged_cache import paged_attention\n"
    text = "def slot_of(a, b, c):\n    return paged_attention"
    outcome = marked("04.2", cell, text)
    assert outcome.status == "failed"
    assert "may not use" in outcome.because
