"""Banks of wrong solutions: what learners and real systems get wrong, exercise by exercise."""

import inspect
from dataclasses import dataclass

from ..notebook.checking import reference
from .catalogue import catalogue


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong solution.

    Attributes:
        exercise: "04.1".
        name: what it does wrong, in a few words.
        says: words that the message of the failing check must contain: its misconception.
        edit: (old, new) pairs that make it out of the reference's source; each old stands there.
        source: the whole definition, where it is not an edit.
        also: imports and helpers that it needs.
    """

    exercise: str
    name: str
    says: str
    edit: tuple[tuple[str, str], ...] = ()
    source: str = ""
    also: str = ""

    def cells(self) -> list[str]:
        """The notebook cells of a learner who wrote this."""
        exercise = catalogue()[self.exercise]
        text = self.source or inspect.getsource(reference(exercise))
        for old, new in self.edit:
            if old not in text:
                raise ValueError(f"{self.exercise} {self.name}: the reference has no {old!r}")
            text = text.replace(old, new)
        return [given_names(self.exercise), self.also, text]


def given_names(exercise_id: str) -> str:
    """Imports of everything that the exercise's module has, as a lesson's first cells give it."""
    exercise = catalogue()[exercise_id]
    module = inspect.getmodule(reference(exercise))
    lines = [
        f"from {exercise.module} import {name}"
        for name in vars(module)
        if not name.startswith("_") and name != exercise.name
    ]
    return "\n".join(lines)
