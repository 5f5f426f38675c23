"""What checks are written with: each helper compares one thing, and fails in the learner's words.

A failure carries what was seen, what was expected, and the key of a sentence: a rule of the exercise,
from the lesson's text, or a phrase of the kit. What was tried is recorded elsewhere
(`transcript.py`), so no check describes its own calls.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .subject import Ref, Reply

MOST_NUMBERS = 12  # that an error's text may name; more is a list in which any value stands


Phrases = Mapping[str, Mapping[str, str]]  # by key, what each is filled in with


UNKNOWN = object()  # in place of what came back


class CheckFailed(Exception):
    """What a check found.

    Attributes:
        saw: what came back.
        due: what should have; not shown by the grader.
        rule: the key of the exercise's rule that was broken, or "".
        phrases: keys of the kit's phrases that say more, and what they are filled in with.
        seen: the very object that came back.
    """

    def __init__(
        self,
        saw: str,
        due: str,
        rule: str = "",
        phrases: Phrases | None = None,
        seen: Any = UNKNOWN,
    ) -> None:
        super().__init__(f"saw {saw}, expected {due} ({rule})")
        self.saw, self.due, self.rule, self.phrases = saw, due, rule, phrases or {}
        self.seen = seen


class NotDone(Exception):
    """The exercise has not been worked on."""


_surveys: list[list[tuple]] = []  # of each that is under way, the failures it has seen


@contextmanager
def surveying() -> Iterator[None]:
    """In what runs inside, a check goes on after a failure."""
    _surveys.append([])
    try:
        yield
    finally:
        _surveys.pop()


def failures() -> list[tuple]:
    """The failures that the survey under way has seen: of each the rule and the phrases' keys."""
    return _surveys[-1] if _surveys else []


def has_failed() -> bool:
    """Whether the survey under way has seen a failure, so that slow questions can be left out."""
    return bool(failures())


def fail(
    saw: Any, due: Any, rule: str = "", phrases: Phrases | None = None, seen: Any = UNKNOWN
) -> None:
    """Fail with values as a learner reads them; `seen` came back, where `saw` is words about it."""
    if not _surveys:
        raise CheckFailed(show(saw), show(due), rule, phrases, saw if seen is UNKNOWN else seen)
    _surveys[-1].append((rule, tuple(phrases or ())))


class Words(str):
    """A text that is shown as it is, not as a string of Python."""


def show(value: Any) -> str:
    """A value as a learner reads it."""
    if isinstance(value, Words):
        return str(value)
    if isinstance(value, torch.Tensor):
        head = f"a tensor {list(value.shape)} {short(value.dtype)}"
        return head if value.numel() > 12 else f"{head} {value.tolist()}"
    if isinstance(value, Ref):
        return f"an object of class {value.kind}"
    if isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value):
        parts = ", ".join(map(show, value))
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def short(dtype: torch.dtype) -> str:
    """A dtype's name."""
    return str(dtype).removeprefix("torch.")


# what an exception says whatever the exercise is about
SLIPS = {"NameError", "UnboundLocalError", "TimeoutError", "RecursionError"}
MISUSES = {"TypeError", "AttributeError", "IndexError", "KeyError"}


def value(reply: Reply, rule: str | Mapping[str, str] = "") -> Any:
    """The value of a reply; fails where the call raised.

    Args:
        rule: what an exception breaks: one rule, or one for each built-in exception's name.
    """
    if reply.error is None:
        return reply.value
    kind = reply.error.kind
    if kind == "NotImplementedError":
        raise NotDone
    key = rule if isinstance(rule, str) else rule.get(kind, "")
    phrase = kind if kind in SLIPS or (not key and kind in MISUSES) else "" if key else "Exception"
    told: Phrases = {f"raised {phrase}": {}} if phrase else {}
    fail(Words(reply.error), Words("no exception"), "" if kind in SLIPS else key, told)
    return None


def expect(saw: Any, due: Any, rule: str = "") -> None:
    """Fail unless a plain value has exactly the expected type and value."""
    if same(saw, due):
        return
    told: dict[str, Mapping[str, str]] = {}
    if saw is None:
        told["nothing came back"] = {}
    elif type(saw) is not type(due) and not isinstance(saw, Ref):
        told["another type"] = {"saw": type(saw).__name__, "due": type(due).__name__}
    fail(saw, due, rule, told)


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
        same_form = saw.shape == due.shape and saw.dtype == due.dtype
        return same_form and bool(agrees(saw, due, 0.0).all())
    return bool(saw == due)


def expect_tensor(saw: Any, due: torch.Tensor, rule: str = "", tolerance: float = 1e-5) -> None:
    """Fail unless a tensor has the expected shape and dtype, is finite where it should be, and is
    within `tolerance` times the largest expected magnitude, or 1 if that is more. Integers must be
    equal.
    """
    if not isinstance(saw, torch.Tensor):
        told = "nothing came back" if saw is None else "no tensor"
        return fail(saw, due, rule, {told: {}})
    if saw.shape != due.shape:
        shapes = (f"shape {list(tensor.shape)}" for tensor in (saw, due))
        return fail(Words(next(shapes)), Words(next(shapes)), rule, {"another shape": {}}, saw)
    if saw.dtype != due.dtype:
        told = "another dtype"
        return fail(Words(short(saw.dtype)), Words(short(due.dtype)), "", {told: {}}, saw)
    wrong = ~agrees(saw, due, tolerance)
    if not bool(wrong.any()):
        return None
    told = "not a number" if bool((saw.isnan() & ~due.isnan()).any()) else ""
    where = tuple(wrong.nonzero()[0].tolist())
    place = f"at {list(where)}" if where else ""
    return fail(
        Words(f"{float(saw[where]):.6g} {place}".rstrip()),
        Words(f"{float(due[where]):.6g} there" if place else f"{float(due):.6g}"),
        rule,
        {told: {}} if told else {},
        saw,
    )


def agrees(saw: torch.Tensor, due: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Where two tensors of one shape agree, element by element."""
    difference = (saw.double() - due.double()).abs()
    allowed = tolerance * max(1.0, largest(due)) if due.is_floating_point() else 0.0
    return (difference <= allowed) | (saw == due) | (saw.isnan() & due.isnan())


def largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude in a tensor; 0 where there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.double().abs().max()) if finite.numel() else 0.0


def expect_error(reply: Reply, kind: str, names: Any, rule: str = "") -> None:
    """Fail unless a call raised `kind` with a text that names the offending value."""
    if reply.error is None:
        return fail(reply.value, Words(f"a {kind}"), rule)
    if reply.error.kind == "NotImplementedError":
        raise NotDone
    if reply.error.kind != kind:
        return fail(Words(reply.error), Words(f"a {kind}"), rule)
    told = re.findall(r"-?\d+", reply.error.text)
    as_word = rf"(?<![\w-]){re.escape(str(names))}(?!\w)"
    if not re.search(as_word, reply.error.text) or len(told) > MOST_NUMBERS:
        due = Words(f"a {kind} whose text names {names}")
        return fail(Words(reply.error), due, phrases={"an error names": {}})
    return None
