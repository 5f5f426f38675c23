"""Every exercise's check: the reference passes, the stub does not, no wrong solution does."""

import importlib
import inspect
import pkgutil

import pytest
from minipaged.course.kit.catalogue import catalogue
from minipaged.course.notebook.checking import reference

from minipaged.course.authoring.cutting import cut
from minipaged.course.kit import mistakes as wrong
from minipaged.course.kit.checking import check_of, judge_source
from minipaged.course.kit.mistakes import Wrong, given_names

EXERCISES = sorted(catalogue())
BANK: list[Wrong] = [
    item
    for module in pkgutil.iter_modules(wrong.__path__)
    for item in importlib.import_module(f"tests.wrong.{module.name}").WRONG
]


def source_of(exercise_id: str) -> str:
    return inspect.getsource(reference(catalogue()[exercise_id]))


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_reference_passes(exercise_id: str) -> None:
    cells = [given_names(exercise_id), source_of(exercise_id)]
    for seed in (0, 1000, 2000):
        verdict, _ = judge_source(catalogue()[exercise_id], cells, seed)
        assert verdict.status == "passed", verdict.failure


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_untouched_stub_is_not_done(exercise_id: str) -> None:
    exercise = catalogue()[exercise_id]
    cells = [
        given_names(exercise_id),
        cut(source_of(exercise_id), exercise.name, exercise.todo).stub,
    ]
    verdict, _ = judge_source(exercise, cells, seed=0)
    assert verdict.status == "not done"


@pytest.mark.parametrize("item", BANK, ids=lambda item: f"{item.exercise} {item.name}")
def test_wrong_solution_is_caught_and_named(item: Wrong, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        verdict, _ = judge_source(catalogue()[item.exercise], item.cells(), seed)
        assert verdict.status == "failed", seed
        assert verdict.failure is not None
        assert item.says in f"{verdict.failure.about} {verdict.failure.because}", seed


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_exercise_has_a_bank_and_hints(exercise_id: str) -> None:
    bank = [item for item in BANK if item.exercise == exercise_id]
    assert 6 <= len(bank) <= 12
    assert len({item.name for item in bank}) == len(bank)
    assert len(check_of(exercise_id).hints) == 3
