"""The checks of the lessons, by exercise, and the random draws that they are made of."""

import importlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .catalogue import exercise_of
from .subject import Subject


class Draw(random.Random):
    """Fresh random inputs, all from one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.generator = torch.Generator().manual_seed(seed & 0xFFFF_FFFF)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape, generator=self.generator).to(dtype)

    def permutation(self, n: int) -> list[int]:
        """The numbers 0 ... n - 1 in a random order, never the ascending one if n > 1."""
        numbers = list(range(n))
        while n > 1 and numbers == sorted(numbers):
            self.shuffle(numbers)
        return numbers


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of NaN: memory that nobody has written."""
    return torch.full(shape, math.nan, dtype=dtype)


CheckFunction = Callable[[Subject, Draw], None]


@dataclass(frozen=True, slots=True)
class Check:
    """A check as registered.

    Attributes:
        run: tries a subject with one draw; raises `CheckFailed` through the helpers of `expecting`.
        needs: what it calls for besides the exercise's object, "minipaged.block_table:BlockPool".
        slow: it runs kernels in the interpreter, so a search may take longer.
    """

    run: CheckFunction
    needs: tuple[str, ...]
    slow: bool


_checks: dict[str, Check] = {}


def check_for(
    exercise_id: str, *, needs: tuple[str, ...] = (), slow: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function as the check of an exercise; see `Check`."""

    def register(run: CheckFunction) -> CheckFunction:
        if exercise_id in _checks:
            raise ValueError(f"exercise {exercise_id} has two checks")
        _checks[exercise_id] = Check(run, needs, slow)
        return run

    return register


def check_of(exercise_id: str) -> Check:
    """The check of an exercise; ValueError names the exercises that there are."""
    if exercise_id not in _checks:
        lesson = exercise_of(exercise_id).lesson
        importlib.import_module(f"minipaged.course.lessons.lesson_{lesson}.checks")
    return _checks[exercise_id]


def needs(exercise_id: str) -> frozenset[tuple[str, str]]:
    """The (module, name) pairs of the package that an exercise's check calls for."""
    pairs = (target.split(":") for target in check_of(exercise_id).needs)
    return frozenset((module, name.split(".")[0]) for module, name in pairs)
