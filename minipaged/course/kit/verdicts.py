"""Verdicts: a check is run with several draws, and a failure is explained.

An explanation is the smallest failing input that a short search finds, as code, and the known mistake
that acts as this code does, where there is one. Otherwise it is the rule that was broken.
"""

import ast
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .catalogue import Exercise, catalogue, exercise_of, say
from .checks import Check, Draw, check_of
from .diagnosing import diagnose
from .expecting import CheckFailed, NotDone, surveying
from .loading import load
from .source import Cells, Extracted, NotFound, extract, is_stub
from .subject import LocalSubject, Subject, SubjectError, decode, encode
from .transcript import Recorder

SEEDS = 5
SEARCH_SECONDS, SLOW_SECONDS = 2.0, 10.0  # that an explanation may take; under the interpreter
SMALLEST = 0.2  # of that, for a smaller input


@dataclass(frozen=True, slots=True)
class Verdict:
    """What judging came to.

    Attributes:
        status: "passed", "failed" or "not done".
        about: code that runs the failing input again.
        saw: what came back.
        due: what should have.
        mistake: the name of the known mistake that acts as this code does; two are joined by " or ".
        because: what is said of it; without a mistake, the rule that was broken.
    """

    status: str
    about: str = ""
    saw: str = ""
    due: str = ""
    mistake: str | None = None
    because: str = ""


def judge_cells(exercise_id: str, cells: list[str], seed: int | None = None) -> Verdict:
    """Judge the definition of an exercise's object in some notebook cells, in this process.

    Args:
        exercise_id: "04.1".
        cells: their texts, in the order in which they count.
        seed: of the first draw; None draws afresh.

    Raises:
        ValueError: no exercise has that id.
    """
    exercise = exercise_of(exercise_id)
    try:
        return judge_source(exercise, cells, fresh_seed() if seed is None else seed)[0]
    except NotFound as error:
        return Verdict("not done", because=str(error))


def fresh_seed() -> int:
    """A seed that nobody knows beforehand."""
    return random.SystemRandom().randrange(1 << 30)


def judge_source(exercise: Exercise, cells: Cells, seed: int) -> tuple[Verdict, Extracted]:
    """The same, with what was taken out of the cells."""
    given = {e.name: e.module for e in catalogue().values() if e.id != exercise.id}
    extracted = extract(cells, exercise.name, given)
    if is_stub_source(extracted, exercise):
        return Verdict("not done"), extracted
    try:
        module = load(exercise, extracted)
    except Exception as error:
        verdict = Verdict(
            "failed",
            about=say("running alone"),
            saw=f"{type(error).__name__}: {error}",
            due=say("no exception"),
            because=say("it does not load"),
        )
        return verdict, extracted
    return try_check(exercise, lambda: LocalSubject(module), seed), extracted


def is_stub_source(extracted: Extracted, exercise: Exercise) -> bool:
    """Whether the learner has not begun."""
    return is_stub(ast.parse(extracted.target).body[0], exercise.todo)


def try_check(
    exercise: Exercise,
    new_subject: Callable[[], Subject],
    seed: int,
    seconds: float | None = None,
) -> Verdict:
    """Run an exercise's check with a fresh subject and fresh draws for each of several seeds.

    Args:
        seconds: that explaining a failure may take; None is what a learner may wait.
    """
    check = check_of(exercise.id)
    if seconds is None:
        seconds = SLOW_SECONDS if check.slow else SEARCH_SECONDS
    for number in range(SEEDS):
        found = attempt(exercise, check, new_subject(), seed + number)
        if found is None:
            continue
        if found.failure is None:
            return Verdict("not done")
        return explain(exercise, check, new_subject, seed + number, found, seconds)
    return Verdict("passed")


@dataclass(frozen=True, slots=True)
class Found:
    """A failure and the code that leads to it; without a failure, nothing was written yet."""

    failure: CheckFailed | None
    code: str

    @property
    def size(self) -> tuple[int, int]:
        """Lines and characters to read."""
        return self.code.count("\n"), len(self.code)


def attempt(exercise: Exercise, check: Check, subject: Subject, seed: int) -> Found | None:
    """One draw; None where nothing fails."""
    recorder = Recorder(subject, exercise.id, seed)
    try:
        check.run(recorder, Draw(seed))
        return None
    except NotDone:
        return Found(None, "")
    except CheckFailed as error:
        failure = error
    except SubjectError as error:
        if error.error.kind == "NotImplementedError":
            return Found(None, "")
        failure = CheckFailed(str(error), say("no exception"), phrases={"raised Exception": {}})
    except Exception as error:  # a value of a wrong type that the check computed with
        saw = say("it led to", error=f"{type(error).__name__}: {error}")
        failure = CheckFailed(saw, say("values of other types"), phrases={"using your result": {}})
    return Found(failure, "\n".join(recorder.code(failure.seen)) if recorder.steps else "")


def explain(
    exercise: Exercise,
    check: Check,
    new_subject: Callable[[], Subject],
    seed: int,
    found: Found,
    seconds: float,
) -> Verdict:
    """The verdict on a failure: its smallest input, and the mistake behind it."""
    start = time.monotonic()
    names: list[str] = []
    if found.failure is not None and "raised TimeoutError" not in found.failure.phrases and seconds:
        number = 0
        while time.monotonic() < start + SMALLEST * seconds and number < 10 * SEEDS:
            number += 1
            other = attempt(exercise, check, new_subject(), seed + number)
            if other is not None and other.failure is not None and other.size < found.size:
                found = other
        names = diagnose(exercise, new_subject, seed, start + seconds)
    failure = found.failure
    assert failure is not None
    texts = list(dict.fromkeys(exercise.mistakes[name] for name in names))
    if len(texts) == 1:
        because, mistake = texts[0], " or ".join(names)
    elif len(texts) == 2:
        because, mistake = say("either", one=texts[0], other=texts[1]), " or ".join(names)
    else:
        told = [exercise.rules[failure.rule]] if failure.rule else []
        told += [say(key, **values) for key, values in failure.phrases.items()]
        because, mistake = " ".join(told), None
    return Verdict("failed", found.code, failure.saw, failure.due, mistake, because)


class _Reached(BaseException):
    """The request that was looked for."""


class _Seeker(Recorder):
    """Runs the reference up to a request, and takes its arguments."""

    def __init__(self, subject: Subject, step: int) -> None:
        super().__init__(subject, "", 0)
        self.step = step
        self.args: tuple = ()

    def note(self, target: str, args: tuple | None) -> Any:
        """Stop where it was asked for."""
        if len(self.steps) == self.step:
            self.args = args or ()
            raise _Reached
        return super().note(target, args)


def drawn(exercise_id: str, seed: int, step: int) -> list[Any]:
    """The arguments of one request that a check made, drawn again.

    Args:
        exercise_id: "04.5".
        seed, step: as a failing check prints them.

    Raises:
        ValueError: the check makes no such request.
    """
    exercise = exercise_of(exercise_id)
    seeker = _Seeker(LocalSubject(importlib.import_module(exercise.module)), step)
    try:
        with surveying():
            check_of(exercise_id).run(seeker, Draw(seed))
    except _Reached:
        message = encode(seeker.args, keep=_same)
        return list(decode(message, find=_same))
    raise ValueError(f"the check of {exercise_id} makes no request {step} with the seed {seed}")


def _same(item: Any) -> Any:
    return item
