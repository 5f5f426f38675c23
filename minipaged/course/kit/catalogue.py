"""What the course consists of: lessons, exercises and predictions, with every word said of them.

The builder writes `minipaged/data/catalogue.json` out of the lessons' texts; checks, predictions,
the grader and an installed package read it here. Nothing but the builder reads a lesson's text.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

import minipaged

PACKAGE = Path(minipaged.__file__).resolve().parent
ROOT = PACKAGE.parent
LESSONS = ROOT / "lessons"
SOLUTIONS = ROOT / "solutions"
FILE = PACKAGE / "data" / "catalogue.json"


class Exercise(msgspec.Struct, frozen=True):
    """One exercise, and what is said of it.

    Attributes:
        id: "04.1".
        lesson: "04".
        module, name: where the object is: "minipaged.block_table", "BlockPool".
        todo: the methods left to the learner; empty for a function, whose whole body is left.
        minutes: what it takes.
        level: easy, medium or hard.
        holds: one sentence: what a right solution does.
        hints: three: the concept, the invariant, nearly the code.
        rules: what has to hold, by the key that a check names.
        mistakes: what is said of a known wrong solution, by its name.
        shown: (module, name) of what the lesson's cells use of the package before this exercise.
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
    holds: str
    hints: tuple[str, ...]
    rules: dict[str, str]
    mistakes: dict[str, str]
    shown: tuple[tuple[str, str], ...]


class Prediction(msgspec.Struct, frozen=True):
    """A question that a learner answers before the lesson does.

    Attributes:
        id: "04.a".
        answers: what may be answered, and the reason for it; "" where there is nothing to say.
        choices: whether the answers are what can be chosen; else a number is typed.
        tolerance: how far off, relative to the right answer, still counts as right.
    """

    id: str
    question: str
    answers: tuple[tuple[int | float | str | bool, str], ...]
    choices: bool
    tolerance: float


class Lesson(msgspec.Struct, frozen=True):
    """One lesson.

    Attributes:
        id: "04".
        notebook: the name of its notebook, "04_block_tables".
        title: "Block tables".
        minutes: what it takes.
    """

    id: str
    notebook: str
    title: str
    minutes: int


class Course(msgspec.Struct, frozen=True):
    """All of it, in order; `phrases` are the sentences that belong to no lesson, by key."""

    lessons: tuple[Lesson, ...]
    exercises: tuple[Exercise, ...]
    predictions: tuple[Prediction, ...]
    phrases: dict[str, str]


@cache
def course() -> Course:
    """The catalogue, read once."""
    text = files("minipaged").joinpath("data", "catalogue.json").read_bytes()
    return msgspec.json.decode(text, type=Course)


@cache
def catalogue() -> dict[str, Exercise]:
    """Every exercise by its id, in order."""
    return {exercise.id: exercise for exercise in course().exercises}


@cache
def predictions() -> dict[str, Prediction]:
    """Every prediction by its id, in order."""
    return {prediction.id: prediction for prediction in course().predictions}


def exercise_of(exercise_id: str) -> Exercise:
    """The exercise of that id; ValueError names those that there are."""
    if exercise_id not in catalogue():
        raise ValueError(f"no exercise {exercise_id!r}; there are {', '.join(catalogue())}")
    return catalogue()[exercise_id]


def say(key: str, **values: object) -> str:
    """A sentence of the kit, filled in."""
    return course().phrases[key].format(**values)
