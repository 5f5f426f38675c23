"""Every exercise's check: the reference passes, the stub does not, every known mistake is named."""

import ast
import importlib
import inspect

import pytest

from minipaged.course import judge_cells
from minipaged.course.authoring.cutting import cut
from minipaged.course.kit import verdicts
from minipaged.course.kit.catalogue import Exercise, catalogue
from minipaged.course.kit.mistakes import Mistake, given_names, mistakes_of, reference

EXERCISES = list(catalogue().values())
BANK = [mistake for exercise in EXERCISES for mistake in mistakes_of(exercise)]
by_id = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


@by_id
def test_the_reference_passes(exercise: Exercise) -> None:
    cells = [given_names(exercise), inspect.getsource(reference(exercise))]
    for seed in (0, 1000, 2000):
        verdict = judge_cells(exercise.id, cells, seed)
        assert verdict.status == "passed", verdict


@by_id
def test_an_untouched_stub_is_not_done(exercise: Exercise) -> None:
    stub = cut(inspect.getsource(reference(exercise)), exercise.name, exercise.todo).stub
    assert judge_cells(exercise.id, [given_names(exercise), stub], 0).status == "not done"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis takes what it takes, on a busy machine too; nothing smaller is looked for."""
    monkeypatch.setattr(verdicts, "SEARCH_SECONDS", 300.0)
    monkeypatch.setattr(verdicts, "SLOW_SECONDS", 300.0)
    monkeypatch.setattr(verdicts, "SMALLEST", 0.0)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("mistake", BANK, ids=lambda mistake: f"{mistake.exercise} {mistake.name}")
def test_a_mistake_is_caught_and_named(mistake: Mistake, seeds: tuple[int, ...]) -> None:
    exercise = catalogue()[mistake.exercise]
    for seed in seeds:
        verdict = judge_cells(exercise.id, mistake.cells(exercise), seed)
        assert verdict.status == "failed", seed
        assert verdict.mistake is not None, verdict
        assert mistake.name in verdict.mistake.split(" or "), verdict
        assert exercise.mistakes[mistake.name] in verdict.because


@by_id
def test_the_text_tells_of_each_mistake_and_of_nothing_else(exercise: Exercise) -> None:
    names = [mistake.name for mistake in mistakes_of(exercise)]
    assert len(names) >= 6
    assert sorted(names) == sorted(exercise.mistakes)
    assert all(exercise.mistakes.values())
    assert not any(" or " in name for name in names)


@pytest.mark.parametrize("lesson", sorted({exercise.lesson for exercise in EXERCISES}))
def test_every_rule_is_named_by_a_check_and_every_name_is_a_rule(lesson: str) -> None:
    module = importlib.import_module(f"minipaged.course.lessons.lesson_{lesson}.checks")
    tree = ast.parse(inspect.getsource(module))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    rules = {rule for exercise in EXERCISES if exercise.lesson == lesson for rule in exercise.rules}
    assert rules <= texts
