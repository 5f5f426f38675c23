"""The known wrong solutions of an exercise, as code.

A lesson's `mistakes.py` lists them; what a learner is told of each is in the lesson's text, under the
same name. Tests prove that every one is caught, and a diagnosis runs them beside the learner's code.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from .catalogue import Exercise


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong solution.

    Attributes:
        exercise: "04.1".
        name: what it does wrong, in a few words; the lesson's text says more under this name.
        edit: (old, new) pairs that make it out of the reference's source; each old is in it.
        source: the whole definition, where it is not an edit.
        also: imports and helpers that it needs.
    """

    exercise: str
    name: str
    edit: tuple[tuple[str, str], ...] = ()
    source: str = ""
    also: str = ""

    def cells(self, exercise: Exercise) -> list[str]:
        """The notebook cells of a learner who wrote this."""
        text = self.source or inspect.getsource(reference(exercise))
        for old, new in self.edit:
            if old not in text:
                raise ValueError(f"{self.exercise} {self.name}: the reference has no {old!r}")
            text = text.replace(old, new)
        return [given_names(exercise), self.also, text]


def mistakes_of(exercise: Exercise) -> list[Mistake]:
    """The known wrong solutions of an exercise."""
    lesson = importlib.import_module(f"minipaged.course.lessons.lesson_{exercise.lesson}.mistakes")
    return [mistake for mistake in lesson.MISTAKES if mistake.exercise == exercise.id]


def reference(exercise: Exercise) -> Any:
    """The course's own object."""
    return getattr(importlib.import_module(exercise.module), exercise.name)


def given_names(exercise: Exercise) -> str:
    """Imports of everything else that the exercise's module has, as a lesson's first cells give it."""
    names = vars(importlib.import_module(exercise.module))
    return "\n".join(
        f"from {exercise.module} import {name}"
        for name in names
        if not name.startswith("_") and name != exercise.name
    )
