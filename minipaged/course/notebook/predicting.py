"""Predictions: the learner commits to an answer before the measured one is shown."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import mine

Answer = int | float | str | bool


def predict(
    prediction_id: str,
    question: str,
    answer: Callable[[], Answer],
    because: Mapping[Answer, str] | None = None,
    choices: Sequence[Answer] | None = None,
    tolerance: float = 0.0,
) -> None:
    """Ask before the lesson shows.

    The learner's answer is locked, and only then is the right one worked out and shown beside it.
    Without a front end the question is printed. MINIPAGED_PREDICT=ask, print or reveal decides
    where the surroundings do not: reveal prints the measured answer too.

    Args:
        prediction_id: "04.a".
        question: one sentence that asks for a number or a choice.
        answer: works out the right answer by running code.
        because: what an answer, right or wrong, comes from.
        choices: the answers to choose from; None: a number.
        tolerance: how far off, relative to the right answer, still counts as right.
    """
    because = because or {}
    mode = os.environ.get("MINIPAGED_PREDICT") or ("ask" if has_front_end() else "print")
    if mode not in ("ask", "print", "reveal"):
        raise ValueError(f"MINIPAGED_PREDICT is {mode!r}; it can be ask, print or reveal")
    if mode == "ask":
        ask(prediction_id, question, answer, because, choices, tolerance)
        return
    print(f"Predict: {question}")
    if choices:
        print("Choices: " + " | ".join(map(shown, choices)))
    if mode == "reveal":
        measured = answer()
        reason = lookup(because, measured)
        print(f"Measured: {shown(measured)}{reason and ', ' + reason}")


def has_front_end() -> bool:
    """Whether this runs in a kernel that shows widgets."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def shown(value: Answer) -> str:
    """A number as people read it."""
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}"


def lookup(because: Mapping[Answer, str], value: Answer) -> str:
    """The reason that belongs to an answer; numbers within a hundredth count as the same."""
    if value in because:
        return because[value]
    for known, reason in because.items():
        if isinstance(known, int | float) and isinstance(value, int | float):
            if abs(known - value) <= 0.01 * max(abs(known), abs(value)):
                return reason
    return ""


def is_right(given: Answer, measured: Answer, tolerance: float) -> bool:
    """Whether an answer counts as right."""
    if isinstance(given, str) or isinstance(measured, str):
        return given == measured
    if isinstance(given, float) and shown(given) == shown(measured):
        return True  # nobody types all the digits
    return abs(given - measured) <= max(tolerance, 1e-9) * abs(measured)


def outcome(
    given: Answer,
    measured: Answer,
    because: Mapping[Answer, str],
    tolerance: float,
) -> str:
    """What is said once an answer is locked."""
    if is_right(given, measured, tolerance):
        reason = lookup(because, measured) or lookup(because, given)
        return f"You: {shown(given)}. Measured: {shown(measured)}. Right{reason and ': ' + reason}."
    parts = [f"You: {shown(given)}. Measured: {shown(measured)}."]
    wrong, right = lookup(because, given), lookup(because, measured)
    if wrong and wrong != right:
        parts.append(f"{shown(given)}: {wrong}.")
    if right:
        parts.append(f"{shown(measured)}: {right}.")
    return " ".join(parts)


def ask(
    prediction_id: str,
    question: str,
    answer: Callable[[], Answer],
    because: Mapping[Answer, str],
    choices: Sequence[Answer] | None,
    tolerance: float,
) -> None:
    """Show the widget; an answer that was locked before is shown again."""
    import ipywidgets as widgets
    from IPython.display import display

    field: Any = (
        widgets.RadioButtons(options=[(shown(choice), choice) for choice in choices], index=None)
        if choices
        else widgets.Text(placeholder="a number")
    )
    button = widgets.Button(description="Lock it in")
    text = widgets.Label()
    text.style.text_color = "#333333"

    def lock(given: Answer) -> None:
        field.disabled = button.disabled = True
        text.value = outcome(given, answer(), because, tolerance)

    def clicked(_: Any) -> None:
        given = field.value if choices else number(field.value)
        if given is None:
            text.value = "Choose one first." if choices else "A number, please: 12, 0.5 or 1,024."
            return
        mine.remember(prediction_id, predicted=given)
        lock(given)

    button.on_click(clicked)
    display(widgets.VBox([widgets.HTML(f"<b>Predict</b> {question}"), field, button, text]))
    before = mine.record().get(prediction_id, {}).get("predicted")
    if before is not None and (not choices or before in choices):
        field.value = before if choices else shown(before)
        lock(before)


def number(text: str) -> int | float | None:
    """A number as people type it: with commas, a per-cent sign or a fraction; None otherwise."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.strip().replace("_", ""))
    try:
        value: int | float
        if text.endswith("%"):
            value = float(text[:-1]) / 100
        elif text.count("/") == 1:
            above, below = text.split("/")
            value = float(above) / float(below)
        else:
            value = int(text) if text.lstrip("+-").isdigit() else float(text)
        return value if math.isfinite(value) else None
    except (ValueError, OverflowError, ZeroDivisionError):
        return None
