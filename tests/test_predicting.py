"""Predictions: how numbers are read, what each mode prints, and what a locked answer shows."""

import re

import pytest

from minipaged.course.kit import catalogue
from minipaged.course.kit.catalogue import Course, Prediction
from minipaged.course.notebook import mine
from minipaged.course.notebook.predicting import (
    is_right,
    number,
    outcome,
    predict,
    reason_for,
    shown,
)

# ------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" 12 ", 12),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1,024", 1024),
        ("1,048,576", 1048576),
        ("12,345.5", 12345.5),
        ("1_000", 1000),
        ("71%", 0.71),
        ("71 %", 0.71),
        ("1/3", 1 / 3),
        ("-1 / 4", -0.25),
        ("1,000/2", 500.0),
    ],
)
def test_a_number_as_people_type_it(text, value):
    read = number(text)
    assert read == pytest.approx(value)
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "12 blocks", "%", "/", "1/0", "1/2/3", "nan", "inf", "-inf%", "1e999", "--3"]
    + ["0,5", "1,5", "12,34", "1,0240", ",", "1,,024", "²", "0x10", "9" * 5000],
)
def test_what_is_no_number(text):
    assert number(text) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1048576, "1,048,576"), (0.123456, "0.1235"), (True, "True"), ("table", "table"), (2.0, "2")],
)
def test_a_number_as_people_read_it(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("value", [0, 7, -12, 1024, 1048576, 0.5, 2.0, 0.3333])
def test_what_is_shown_is_read_again(value):
    assert number(shown(value)) == value


# ----------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("given", "measured", "tolerance", "right"),
    [
        (13, 13, 0.0, True),
        (13, 14, 0.0, False),
        (13.0, 13, 0.0, True),
        (99, 100, 0.01, True),
        (98, 100, 0.01, False),
        (-99, -100, 0.01, True),
        (0, 0, 0.5, True),
        (1, 0, 0.5, False),
        (0.3333, 1 / 3, 0.0, True),
        (0.33, 1 / 3, 0.0, False),
        (1_000_001, 1_000_000, 0.0, False),
        ("a", "a", 0.0, True),
        ("a", "b", 9.0, False),
        ("1", 1, 9.0, False),
        (True, True, 0.0, True),
        (True, False, 0.0, False),
    ],
)
def test_is_right(given, measured, tolerance, right):
    assert is_right(given, measured, tolerance) is right


BECAUSE = {9: "its place in the sequence", 13: "offset 1 of block 3", "no": "it raises"}


def prediction(name="04.a", because=BECAUSE, choices=False, tolerance=0.0) -> Prediction:
    return Prediction(name, "In which slot?", tuple(because.items()), choices, tolerance)


SLOT, CLOSE = prediction(), prediction("04.b", tolerance=0.1)
CHOICE = prediction("04.c", {"yes": "", "no": "it raises"}, choices=True)
KINDS = prediction("04.d", {"it grows": "", 1024: "", True: ""}, choices=True)


@pytest.fixture(autouse=True)
def course(monkeypatch):
    """A course that asks four questions."""
    course = Course((), (), (SLOT, CLOSE, CHOICE, KINDS), catalogue.course().phrases)
    monkeypatch.setattr(catalogue, "course", lambda: course)
    catalogue.predictions.cache_clear()
    yield
    catalogue.predictions.cache_clear()


@pytest.mark.parametrize(
    ("given", "measured", "text"),
    [
        (13, 13, "You: 13. Measured: 13. Right: offset 1 of block 3."),
        (9, 13, "You: 9. Measured: 13. 9: its place in the sequence. 13: offset 1 of block 3."),
        (8, 13, "You: 8. Measured: 13. 13: offset 1 of block 3."),
        (9, 14, "You: 9. Measured: 14. 9: its place in the sequence."),
        (8, 14, "You: 8. Measured: 14."),
        (14, 14, "You: 14. Measured: 14. Right."),
        ("no", "yes", "You: no. Measured: yes. no: it raises."),
        ("no", "no", "You: no. Measured: no. Right: it raises."),
        (12.9, 13, "You: 12.9. Measured: 13. 13: offset 1 of block 3."),
        (5000, 13, "You: 5,000. Measured: 13. 13: offset 1 of block 3."),
    ],
)
def test_outcome(given, measured, text):
    assert outcome(SLOT, given, measured) == text


def test_within_the_tolerance_is_right():
    assert outcome(CLOSE, 12, 13) == "You: 12. Measured: 13. Right: offset 1 of block 3."


def test_a_reason_is_that_of_the_very_number_or_else_of_one_within_a_hundredth():
    asked = prediction(because={100: "a", 101: "b", 0.5: "half", "x": "text"})
    reasons = [reason_for(asked, value) for value in (100, 101, 100.2, 0.503)]
    assert reasons == ["a", "b", "a", "half"]
    reasons = [reason_for(asked, value) for value in (98, 0.51, "y", "x", 0)]
    assert reasons == ["", "", "", "text", ""]


# --------------------------------------------------------------------------------------- modes


def test_outside_of_a_notebook_the_question_is_printed(monkeypatch, capsys):
    monkeypatch.delenv("MINIPAGED_PREDICT", raising=False)
    predict("04.a", 13)
    assert capsys.readouterr().out == "Predict: In which slot?\n"


def test_print_shows_the_choices(monkeypatch, capsys):
    monkeypatch.setenv("MINIPAGED_PREDICT", "print")
    predict("04.d", 1024)
    assert capsys.readouterr().out == "Predict: In which slot?\nChoices: it grows | 1,024 | True\n"


@pytest.mark.parametrize(
    ("value", "line"),
    [(13, "Measured: 13, offset 1 of block 3"), (14, "Measured: 14"), (0.70999, "Measured: 0.71")],
)
def test_reveal_shows_what_was_measured(monkeypatch, capsys, value, line):
    monkeypatch.setenv("MINIPAGED_PREDICT", "reveal")
    predict("04.a", value)
    assert capsys.readouterr().out == f"Predict: In which slot?\n{line}\n"


@pytest.mark.parametrize("mode", ["Ask", "yes", "off", "1"])
def test_another_mode_is_refused_by_name(monkeypatch, mode):
    monkeypatch.setenv("MINIPAGED_PREDICT", mode)
    with pytest.raises(ValueError, match=f"MINIPAGED_PREDICT is '{mode}'; it can be ask, print or"):
        predict("04.a", 13)


def test_an_unknown_prediction_is_named_with_those_that_there_are():
    message = re.escape("no prediction '04.x'; there are 04.a, 04.b, 04.c, 04.d")
    with pytest.raises(ValueError, match=message):
        predict("04.x", 13)


# -------------------------------------------------------------------------------------- asking


class Asked:
    """The parts of the widget that `predict` showed."""

    def __init__(self, box) -> None:
        self.question, self.field, self.button, self.text = box.children

    def answer(self, value) -> str:
        self.field.value = value
        self.button.click()
        return self.text.value

    @property
    def locked(self) -> bool:
        assert self.field.disabled == self.button.disabled
        return self.button.disabled


@pytest.fixture
def ask(monkeypatch, tmp_path):
    pytest.importorskip("ipywidgets")
    boxes: list = []
    monkeypatch.setattr("IPython.display.display", boxes.append)
    monkeypatch.setenv("MINIPAGED_PREDICT", "ask")
    monkeypatch.setenv("MINIPAGED_MINE", "on")
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "mine")

    def asked(measured=13, name="04.a") -> Asked:
        predict(name, measured)
        return Asked(boxes[-1])

    return asked


def test_nothing_is_shown_before_an_answer_is_locked(ask):
    asked = ask()
    assert (asked.locked, asked.text.value) == (False, "")
    assert "In which slot?" in asked.question.value and "13" not in asked.question.value
    assert asked.answer("9") == outcome(SLOT, 9, 13)
    assert asked.locked


@pytest.mark.parametrize("text", ["", "many", "0,5"])
def test_what_is_no_number_locks_nothing(ask, text):
    asked = ask()
    assert asked.answer(text) == "A number, please: 12, 0.5 or 1,024."
    assert not asked.locked
    assert mine.record() == {}
    assert asked.answer("13").endswith("Right: offset 1 of block 3.")


def test_a_locked_answer_is_shown_again(ask):
    ask().answer("1,024")
    assert mine.record() == {"04.a": {"predicted": 1024}}
    again = ask()
    assert again.locked
    assert again.field.value == "1,024"
    assert again.text.value == "You: 1,024. Measured: 13. 13: offset 1 of block 3."


def test_choices_are_chosen_and_remembered(ask):
    asked = ask("yes", "04.c")
    asked.button.click()
    assert asked.text.value == "Choose one first."
    assert not asked.locked
    assert asked.answer("no") == "You: no. Measured: yes. no: it raises."
    again = ask("yes", "04.c")
    assert (again.locked, again.field.value) == (True, "no")


def test_an_answer_that_is_no_choice_any_more_is_asked_again(ask):
    mine.remember("04.c", predicted="perhaps")
    asked = ask("yes", "04.c")
    assert not asked.locked
    assert asked.field.value is None


def test_with_mine_switched_off_nothing_is_remembered(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_MINE", "off")
    ask().answer("9")
    assert not ask().locked
    assert not (tmp_path / "mine").exists()


def test_zero_is_an_answer(ask):
    ask().answer("0")
    assert ask().locked
