"""Which known mistake a learner made: the one that does what the learner's code does.

The known wrong solutions of the exercise are run on the very inputs that the learner's code got. One
whose every reply equals the learner's, in every draw, is named; otherwise nothing is. So a diagnosis
states what was seen to be so.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from .catalogue import Exercise
from .checks import CheckFunction, Draw, check_of
from .expecting import agrees, failures, surveying
from .loading import load
from .mistakes import Mistake, mistakes_of
from .source import extract
from .subject import Error, LocalSubject, Ref, Reply, Subject, SubjectError

DRAWS, MORE_DRAWS = 5, 10  # to name a mistake; to tell two of them apart
CALL_SECONDS = 2.0


def diagnose(
    exercise: Exercise, new_subject: Callable[[], Subject], seed: int, deadline: float
) -> list[str]:
    """The names of the mistakes that act as the learner's code does; [] where none does.

    Args:
        seed: of a draw at which the learner's code fails.
        deadline: of time.monotonic(); what is not certain by then is not said.
    """
    check = check_of(exercise.id).run
    left = mistakes_of(exercise)
    for number in range(MORE_DRAWS):
        if number >= DRAWS and len({exercise.mistakes[mistake.name] for mistake in left}) < 2:
            break
        if not left or time.monotonic() > deadline:
            break
        told = replies(check, new_subject(), seed + number)
        left = [
            mistake
            for mistake in left
            if time.monotonic() > deadline
            or acts_alike(exercise, check, mistake, told, seed + number)
        ]
    return [mistake.name for mistake in left] if time.monotonic() <= deadline else []


class Keeper:
    """A `Subject` that passes everything on and keeps what came back."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.kept: list[Any] = []

    def keep(self, item: Any) -> Any:
        """Take one reply."""
        self.kept.append(item)
        return item

    def new(self, cls: str, *args: Any) -> Ref:
        """Make an object."""
        return self.keep(self.asked(self.subject.new, cls, *args))  # type: ignore[no-any-return]

    def call(self, target: "str | tuple[Ref, str]", *args: Any) -> Reply:
        """Call a function or a method."""
        return self.keep(self.subject.call(target, *args))  # type: ignore[no-any-return]

    def get(self, ref: Ref, name: str) -> Any:
        """Read an attribute."""
        return self.keep(self.asked(self.subject.get, ref, name))

    def launch(self, kernel: str, grid: tuple[int, ...], *args: Any) -> Reply:
        """Run a kernel over a grid."""
        return self.keep(self.subject.launch(kernel, grid, *args))  # type: ignore[no-any-return]

    def asked(self, ask: Callable[..., Any], *args: Any) -> Any:
        """What a request gives that may raise; what it raises is kept too."""
        try:
            return ask(*args)
        except SubjectError as error:
            self.keep(error.error)
            raise


class Differs(BaseException):
    """A reply is not the one that was expected; no check may catch it."""


class Comparer(Keeper):
    """A `Subject` that raises `Differs` at the first reply that differs from those of another."""

    def __init__(self, subject: Subject, told: list[Any]) -> None:
        super().__init__(subject)
        self.told, self.likeness = told, Likeness()

    def keep(self, item: Any) -> Any:
        """Compare one reply."""
        place = len(self.kept)
        if place >= len(self.told) or not self.likeness.of(item, self.told[place]):
            raise Differs
        return super().keep(item)


def replies(check: CheckFunction, subject: Subject, seed: int) -> list[Any]:
    """All that a subject says in a check that does not stop at a failure, and the failures."""
    keeper = Keeper(subject)
    with surveying():
        with suppress(Exception):  # what came before it is told
            check(keeper, Draw(seed))
        keeper.keep(failures())
    return keeper.kept


def acts_alike(
    exercise: Exercise, check: CheckFunction, mistake: Mistake, told: list[Any], seed: int
) -> bool:
    """Whether a mistake gives the same replies to the same requests."""
    module = module_of(exercise, mistake)
    if module is None:
        return False
    comparer = Comparer(LocalSubject(module, CALL_SECONDS), told)
    with surveying():
        try:
            with suppress(Exception):
                check(comparer, Draw(seed))
            comparer.keep(failures())
        except Differs:
            return False
    return len(comparer.kept) == len(told)


_modules: dict[tuple[str, str], ModuleType | None] = {}


def module_of(exercise: Exercise, mistake: Mistake) -> ModuleType | None:
    """A mistake as a module; None where it does not even load, as a learner's would not."""
    key = exercise.id, mistake.name
    if key not in _modules:
        try:
            _modules[key] = load(exercise, extract(mistake.cells(exercise), exercise.name, {}))
        except Exception:
            _modules[key] = None
    return _modules[key]


def words_of(error: Error) -> str:
    """What can be compared of an exception's text: the interpreter's words, up to the place in the
    code that follows in brackets, PyTorch's and Python's. A learner's own words are free."""
    if error.name == "MemoryFault":
        return error.text.rpartition(" (")[0]
    return error.text if error.kind in ("RuntimeError", "TypeError") else ""


class Likeness:
    """Whether replies are the same: exceptions by their kind, numbers up to rounding, objects by the
    part that they play, since two subjects count their handles differently."""

    def __init__(self) -> None:
        self.partners: dict[tuple[str, int], int] = {}

    def of(self, one: Any, other: Any) -> bool:
        """Compare a reply of one subject with one of the other, in the order of their replies."""
        if type(one) is not type(other):
            return False
        if isinstance(one, Reply):
            pairs = ((one.value, other.value), (one.args_after, other.args_after))
            return self.of(one.error, other.error) and all(self.of(*pair) for pair in pairs)
        if isinstance(one, Error):
            return bool(one.kind == other.kind and words_of(one) == words_of(other))
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(self.of, one, other))
        if isinstance(one, dict):
            return self.of(list(one.items()), list(other.items()))
        if isinstance(one, float):
            return self.of(torch.tensor(one), torch.tensor(other))
        if isinstance(one, torch.Tensor):
            same_form = one.shape == other.shape and one.dtype == other.dtype
            equal = same_form and torch.equal(one, other)
            rounding = 1e-5 if one.dtype.itemsize > 2 else 1e-2
            return equal or (same_form and bool(agrees(one, other, rounding).all()))
        if isinstance(one, Ref):
            first = self.partners.setdefault(("one", one.handle), other.handle)
            second = self.partners.setdefault(("other", other.handle), one.handle)
            return bool(one.kind == other.kind and (first, second) == (other.handle, one.handle))
        return bool(one == other)
