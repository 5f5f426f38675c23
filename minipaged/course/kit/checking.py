"""Checks: how they are written, run, and told to the learner.

A check is a function of a subject and of random draws. It raises `CheckFailed` through the
helpers here. `judge` runs it with several seeds and gives a verdict; `check` is what a notebook
calls.
"""

import ast
import atexit
import importlib
import importlib.util
import inspect
import math
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..notebook import mine
from .catalogue import Exercise, catalogue
from .source import Extracted, NotFound, extract, is_stub
from .subject import LocalSubject, Ref, Reply, Subject, SubjectError

SEEDS = 5


class CheckFailed(Exception):
    """What a check found.

    Attributes:
        about: what was done, "allocate(3) on a pool of 8".
        saw: what came back.
        due: what should have; not shown by the grader.
        because: the misconception that this points to.
    """

    def __init__(self, about: str, saw: str, due: str, because: str) -> None:
        super().__init__(f"{about}: saw {saw}, due {due}. {because}")
        self.about, self.saw, self.due, self.because = about, saw, due, because


class NotDone(Exception):
    """The exercise has not been worked on."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check as registered: its exercise, the sentence that must hold, hints, and the function."""

    id: str
    holds: str
    hints: tuple[str, ...]
    run: Callable[[Subject, "Draw"], None]


_checks: dict[str, Check] = {}


def check_for(
    exercise_id: str, *, holds: str, hints: tuple[str, ...]
) -> Callable[[Callable[[Subject, "Draw"], None]], Callable[[Subject, "Draw"], None]]:
    """Register a function as the check of an exercise.

    Args:
        exercise_id: "04.1".
        holds: one sentence that says what a right solution does.
        hints: three of them: the concept, the invariant, nearly the code.
    """

    def register(run: Callable[[Subject, Draw], None]) -> Callable[[Subject, Draw], None]:
        if exercise_id in _checks:
            raise ValueError(f"exercise {exercise_id} has two checks")
        _checks[exercise_id] = Check(exercise_id, holds, hints, run)
        return run

    return register


def check_of(exercise_id: str) -> Check:
    """The check of an exercise; ValueError names the exercises that there are."""
    name = f"minipaged.course.checks.lesson_{str(exercise_id)[:2]}"
    if re.fullmatch(r"\d\d\.\d+", str(exercise_id)) and importlib.util.find_spec(name):
        importlib.import_module(name)
    if exercise_id not in _checks:
        known = ", ".join(sorted({*catalogue(), *_checks}))
        raise ValueError(f"no check of exercise {exercise_id!r}; there are {known}")
    return _checks[exercise_id]


# --- what checks are written with --------------------------------------------------------------


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


def show(value: Any) -> str:
    """A value as a learner reads it."""
    if isinstance(value, torch.Tensor):
        head = f"a tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        return head if value.numel() > 12 else f"{head} {value.tolist()}"
    if isinstance(value, Ref):
        return f"an object of class {value.kind}"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def result(reply: Reply, about: str, because: str | Mapping[str, str] = "") -> Any:
    """The value of a reply; fails where the call raised.

    Args:
        because: the misconception that an exception points to, or one per built-in exception name.
    """
    if reply.error is None:
        return reply.value
    if reply.error.kind == "NotImplementedError":
        raise NotDone(about)
    if isinstance(because, str):
        reason = SLIPS.get(reply.error.kind, because)
    else:
        reason = because.get(reply.error.kind) or SLIPS.get(reply.error.kind, "")
    reason = reason or MISUSES.get(reply.error.kind, "Your code raised an exception.")
    raise CheckFailed(about, str(reply.error), "no exception", reason)


# what an exception says whatever the exercise is
SLIPS = {
    "NameError": "A name is used that nothing defines.",
    "UnboundLocalError": "A name is used before it has a value.",
    "TimeoutError": "The call went on and on: what should end its loop?",
    "RecursionError": "The function calls itself without an end.",
}
MISUSES = {
    "TypeError": "Something is called, or computed with, in a way that it does not allow.",
    "AttributeError": "An object is asked for something that it does not have.",
    "IndexError": "A place is asked for that is not there.",
    "KeyError": "A key is asked for that is not there.",
}


def expect(about: str, saw: Any, due: Any, because: str | Callable[[Any], str]) -> None:
    """Fail unless a plain value has exactly the type and value that are due.

    Args:
        because: the misconception, or a function that reads it off what was seen.
    """
    if same(saw, due):
        return
    reason = reason_for(because, saw)
    if type(saw) is not type(due) and not isinstance(saw, Ref):
        reason += NOTHING if saw is None else TYPES.format(type(saw).__name__, type(due).__name__)
    raise CheckFailed(about, show(saw), show(due), reason)


NOTHING = " (None came back. Where that is not meant, a return is missing.)"
TYPES = " (Its type is {}; {} is due.)"


def reason_for(because: str | Callable[[Any], str], saw: Any) -> str:
    """The misconception behind what was seen; "" where it cannot be read off that."""
    if isinstance(because, str):
        return because
    try:
        return because(saw)
    except Exception:  # written for values of the right type, and this one may have any
        return ""


def same(saw: Any, due: Any) -> bool:
    """Equal in value and in exact type, all the way down. Floats to a relative 1e-9, NaN to NaN."""
    if type(saw) is not type(due):
        return False
    if isinstance(due, list | tuple):
        return len(saw) == len(due) and all(map(same, saw, due))
    if isinstance(due, dict):
        return same(list(saw.items()), list(due.items()))
    if isinstance(due, float):
        both_nan = math.isnan(saw) and math.isnan(due)
        return both_nan or math.isclose(saw, due, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(due, torch.Tensor):
        return saw.dtype == due.dtype and torch.equal(saw, due)
    return bool(saw == due)


def expect_tensor(
    about: str,
    saw: Any,
    due: torch.Tensor,
    because: str | Callable[[torch.Tensor], str],
    tolerance: float = 1e-5,
) -> None:
    """Fail unless a tensor has the shape and dtype that are due, is finite where it should be, and
    lies within `tolerance` times the largest magnitude that is due, or 1 if that is more. Integers
    must be equal.

    Args:
        because: the misconception, or a function that reads it off the tensor seen.
    """
    if not isinstance(saw, torch.Tensor):
        reason = f"A tensor is due.{NOTHING if saw is None else ''}"
        raise CheckFailed(about, show(saw), show(due), reason)
    if saw.shape != due.shape:
        reason = reason_for(because, saw)
        raise CheckFailed(
            about, f"shape {list(saw.shape)}", f"shape {list(due.shape)}", f"{reason} (The shape.)"
        )
    if saw.dtype != due.dtype:
        was, should = (str(t.dtype).removeprefix("torch.") for t in (saw, due))
        reason = "The result must keep the dtype that the contract names."
        raise CheckFailed(about, was, should, reason)
    difference = (saw.double() - due.double()).abs()
    allowed = tolerance * max(1.0, largest(due)) if due.is_floating_point() else 0.0
    agrees = (difference <= allowed) | (saw == due) | (saw.isnan() & due.isnan())
    if bool(agrees.all()):
        return
    reason = reason_for(because, saw)
    if bool((saw.isnan() & ~due.isnan()).any()):
        reason += " (There is NaN in it: from unused memory, or a softmax over nothing.)"
    where = tuple((~agrees).nonzero()[0].tolist())
    raise CheckFailed(
        about,
        f"{float(saw[where]):.6g} at {list(where)}",
        f"{float(due[where]):.6g} there",
        reason,
    )


def largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude in a tensor; 0 where there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.double().abs().max()) if finite.numel() else 0.0


MOST_NUMBERS = 12  # that an error's text may name; more is a list in which any value stands


def expect_error(about: str, reply: Reply, kind: str, names: Any, because: str) -> None:
    """Fail unless a call raised `kind` with a text that names the offending value."""
    if reply.error is None:
        raise CheckFailed(about, show(reply.value), f"a {kind}", because)
    if reply.error.kind == "NotImplementedError":
        raise NotDone(about)
    if reply.error.kind != kind:
        raise CheckFailed(about, str(reply.error), f"a {kind}", because)
    told = re.findall(r"-?\d+", reply.error.text)
    as_word = rf"(?<![\w-]){re.escape(str(names))}(?!\w)"
    if not re.search(as_word, reply.error.text) or len(told) > MOST_NUMBERS:
        raise CheckFailed(
            about,
            str(reply.error),
            f"a {kind} whose text names {names}",
            "An error must name the value that is wrong, so that its reader can find it.",
        )


# --- judging -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What judging came to: "passed", "failed" or "not done", and the failure if there was one."""

    status: str
    failure: CheckFailed | None = None


def judge(exercise_id: str, new_subject: Callable[[], Subject], seed: int) -> Verdict:
    """Run an exercise's check, with a fresh subject and fresh draws for each of several seeds."""
    check = check_of(exercise_id)
    for offset in range(SEEDS):
        try:
            check.run(new_subject(), Draw(seed + offset))
        except NotDone:
            return Verdict("not done")
        except CheckFailed as failure:
            return Verdict("failed", failure)
        except SubjectError as error:
            if error.error.kind == "NotImplementedError":
                return Verdict("not done")
            about = "making or reading an object"
            return Verdict("failed", CheckFailed(about, str(error), "no exception", ""))
        except Exception as error:  # a value of a wrong type that the check computed with
            saw = f"something that led to {type(error).__name__}: {error}"
            reason = "Look at the types of what your code gives back."
            due = "values of the types that the exercise names"
            return Verdict("failed", CheckFailed("using your result", saw, due, reason))
    return Verdict("passed")


_loaded = 0


def load(exercise: Exercise, extracted: Extracted) -> ModuleType:
    """Write extracted source to a file of its own and import it; see `Extracted`."""
    global _loaded
    _loaded += 1
    folder = Path(tempfile.mkdtemp(prefix="minipaged-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = f"exercise_{exercise.id.replace('.', '_')}_{_loaded}"
    path = folder / f"{name}.py"
    path.write_text(extracted.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def judge_source(exercise: Exercise, cells: list[str], seed: int) -> tuple[Verdict, Extracted]:
    """Judge the definition of an exercise's object in some cells, in this process."""
    given = {e.name: e.module for e in catalogue().values() if e.id != exercise.id}
    extracted = extract(cells, exercise.name, given)
    if is_stub_source(extracted, exercise):
        return Verdict("not done"), extracted
    try:
        module = load(exercise, extracted)
    except Exception as error:
        failure = CheckFailed(
            "running your definition alone, with what it needs",
            f"{type(error).__name__}: {error}",
            "no exception",
            "Your cell uses something that no cell defines by an import, def, class or constant.",
        )
        return Verdict("failed", failure), extracted
    return judge(exercise.id, lambda: LocalSubject(module), seed), extracted


def is_stub_source(extracted: Extracted, exercise: Exercise) -> bool:
    """Whether the learner has not begun."""
    return is_stub(ast.parse(extracted.target).body[0], exercise.todo)


# --- in a notebook -----------------------------------------------------------------------------


def reference(exercise: Exercise) -> Any:
    """The course's own object."""
    return getattr(importlib.import_module(exercise.module), exercise.name)


def shell() -> Any:
    """The IPython shell that this runs in, or None."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


_run: list[str] = []  # cells run since this module was imported

if shell():
    shell().events.register("post_run_cell", lambda done: _run.append(done.info.raw_cell))


def notebook_cells() -> list[str]:
    """The cells that were run in this notebook, oldest first; [] outside of one."""
    if not shell():
        return []
    history = list(shell().history_manager.input_hist_raw)
    return history if any(history) else _run  # nbval runs cells without keeping a history


def is_made_by(candidate: Any, name: str, cells: list[str]) -> bool:
    """Whether an object is what the last definition of `name` in some cells made, as far as its name
    and, for a function, its text tell.

    Raises:
        NotFound: when no cell defines it.
    """
    definition = extract(cells, name, {}).target
    made = getattr(candidate, "fn", candidate)  # a kernel is a function with something around it
    if getattr(made, "__name__", None) != name:
        return False
    try:
        source = inspect.getsource(made)
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # none of a notebook's class, another's at odd lines
        return True
    return ast.dump(tree) == ast.dump(ast.parse(definition))


def check(exercise_id: str, candidate: Any) -> Any:
    """Check an exercise and say what holds and what does not.

    Args:
        exercise_id: "04.1".
        candidate: the learner's object.

    Returns:
        The candidate if it passes, else the course's own object, so that the lesson goes on.
    """
    exercises = catalogue()
    if exercise_id not in exercises:
        raise ValueError(f"no exercise {exercise_id!r}; there are {', '.join(exercises)}")
    exercise = exercises[exercise_id]
    ours = reference(exercise)
    label = f"{exercise.id} {exercise.name}"
    if candidate is ours:
        print(f"{label}: this is the course's own. Run your cell above first, then this one.")
        return ours
    cells = notebook_cells()
    try:
        if not is_made_by(candidate, exercise.name, cells):
            print(
                f"{label}: this object does not come from the newest cell that defines "
                f"{exercise.name}, and only that is checked. Write your solution there, under this "
                "name, run it, then run this cell."
            )
            return ours
        seed = random.SystemRandom().randrange(1 << 30)
        verdict, extracted = judge_source(exercise, cells, seed)
    except NotFound as error:
        print(f"{label}: {error}")
        return ours
    if verdict.status == "not done":
        print(f"{label}: not done yet. The course's own stands in.")
        return ours
    mine.count(exercise.id, verdict.status)
    if verdict.failure:
        print(explain(exercise, verdict.failure))
        return ours
    print(f"{label}: passed. {check_of(exercise.id).holds}")
    for line in mine.accept(exercise, extracted):
        print(line)
    return candidate


def explain(exercise: Exercise, failure: CheckFailed) -> str:
    """What a learner reads when a check fails."""
    found = check_of(exercise.id)
    lines = [
        f"{exercise.id} {exercise.name}: not right yet. The course's own stands in meanwhile.",
        f"  what holds  {found.holds}",
        f"  tried       {failure.about}",
        f"  saw         {failure.saw}",
        f"  due         {failure.due}",
    ]
    if failure.because:
        lines.append(f"  perhaps     {failure.because}")
    lines.append(f'  hint        {found.hints[0]}  (More: hint("{exercise.id}", 2))')
    return "\n".join(lines)


def hint(exercise_id: str, number: int = 1) -> None:
    """Print one of an exercise's hints: 1 the concept, 2 what must hold, 3 nearly the code."""
    hints = check_of(exercise_id).hints
    if not 1 <= number <= len(hints):
        raise ValueError(f"exercise {exercise_id} has hints 1 to {len(hints)}, not {number}")
    print(f"{exercise_id}, hint {number} of {len(hints)}: {hints[number - 1]}")


def progress() -> None:
    """Print what is done, exercise by exercise."""
    record = mine.record()
    for exercise in catalogue().values():
        entry = record.get(exercise.id, {})
        tries = f", {entry['tries']} tries" if entry.get("tries") else ""
        print(f"{exercise.id} {exercise.title:40} {entry.get('status', 'not done')}{tries}")
