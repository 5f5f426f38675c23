"""Predictions: the learner commits to an answer before the measured one is shown."""

import math
import os
import re
from typing import Any

from ..kit.catalogue import Prediction, predictions, say
from . import mine
from .checking import shell

Answer = int | float | str | bool


def predict(prediction_id: str, measured: Answer) -> None:
    """Ask before the lesson shows.

    The learner's answer is locked, and only then is the measured one shown beside it. Question,
    choices and reasons are in the lesson's text. Without a front end the question is printed.
    MINIPAGED_PREDICT=ask, print or reveal decides where the surroundings do not: reveal prints the
    measured answer too.

    Args:
        prediction_id: "04.a".
        measured: the right answer, computed by the cell that asks.

    Raises:
        ValueError: no prediction has that id.
    """
    if prediction_id not in predictions():
        known = ", ".join(predictions())
        raise ValueError(f"no prediction {prediction_id!r}; there are {known}")
    prediction = predictions()[prediction_id]
    front_end = type(shell()).__name__ == "ZMQInteractiveShell"
    mode = os.environ.get("MINIPAGED_PREDICT") or ("ask" if front_end else "print")
    if mode not in ("ask", "print", "reveal"):
        raise ValueError(f"MINIPAGED_PREDICT is {mode!r}; it can be ask, print or reveal")
    if mode == "ask":
        ask(prediction, measured)
        return
    print(f"{say('predict')} {prediction.question}")
    if prediction.choices:
        print(say("choices", choices=" | ".join(shown(answer) for answer, _ in prediction.answers)))
    if mode == "reveal":
        reason = reason_for(prediction, measured)
        print(say("measured", value=shown(measured), reason=reason and f", {reason}"))


def shown(value: Answer) -> str:
    """A number as people read it."""
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}"


def reason_for(prediction: Prediction, value: Answer) -> str:
    """The reason that belongs to an answer; numbers within a hundredth count as the same."""
    for known, reason in prediction.answers:
        if known == value and isinstance(known, str) == isinstance(value, str):
            return reason
    for known, reason in prediction.answers:
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


def outcome(prediction: Prediction, given: Answer, measured: Answer) -> str:
    """What is said once an answer is locked."""
    wrong, right = reason_for(prediction, given), reason_for(prediction, measured)
    told = say("you and measured", given=shown(given), measured=shown(measured))
    if is_right(given, measured, prediction.tolerance):
        reason = right or wrong
        return f"{told} {say('right')}{reason and ': ' + reason}."
    parts = [told]
    if wrong and wrong != right:
        parts.append(f"{shown(given)}: {wrong}.")
    if right:
        parts.append(f"{shown(measured)}: {right}.")
    return " ".join(parts)


def ask(prediction: Prediction, measured: Answer) -> None:
    """Show the widget; an answer that was locked before is shown again."""
    import ipywidgets as widgets
    from IPython.display import display

    choices = [answer for answer, _ in prediction.answers] if prediction.choices else None
    field: Any = (
        widgets.RadioButtons(options=[(shown(choice), choice) for choice in choices], index=None)
        if choices
        else widgets.Text(placeholder=say("a number"))
    )
    button = widgets.Button(description=say("lock it in"))
    text = widgets.Label()
    text.style.text_color = "#333333"

    def lock(given: Answer) -> None:
        field.disabled = button.disabled = True
        text.value = outcome(prediction, given, measured)

    def clicked(_: Any) -> None:
        given = field.value if choices else number(field.value)
        if given is None:
            text.value = say("choose first") if choices else say("a number, please")
            return
        mine.remember(prediction.id, predicted=given)
        lock(given)

    button.on_click(clicked)
    head = widgets.HTML(f"<b>{say('predict').rstrip(':')}</b> {prediction.question}")
    display(widgets.VBox([head, field, button, text]))
    before = mine.record().get(prediction.id, {}).get("predicted")
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
