"""The helpers that checks are written with."""

import math

import pytest
import torch

from minipaged.course.kit.checks import Draw, poisoned
from minipaged.course.kit.expecting import (
    CheckFailed,
    NotDone,
    Words,
    expect,
    expect_error,
    expect_tensor,
    fail,
    has_failed,
    same,
    show,
    surveying,
    value,
)
from minipaged.course.kit.subject import Error, Ref, Reply


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (1, 1),
        (0, 0),
        (0.1 + 0.2, 0.3),
        (0.0, -0.0),
        (math.inf, math.inf),
        (math.nan, math.nan),
        ([1, (2.0,)], [1, (2.0,)]),
        ({"a": 1}, {"a": 1}),
        (None, None),
        (Ref(1, "A"), Ref(1, "A")),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
    ],
)
def test_same(saw, due):
    assert same(saw, due)


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (True, 1),
        (0, False),
        (1.0, 1),
        (1, 1.0),
        (0, None),
        ("1", 1),
        (1e-6, 0.0),
        (1.0 + 1e-8, 1.0),
        (math.nan, 0.0),
        (0.0, math.nan),
        (math.inf, -math.inf),
        ((1, 2), [1, 2]),
        ([1], [1, 2]),
        ([1, 2], [1]),
        ([True], [1]),
        ([1, [2.0]], [1, [2]]),
        ({"a": 1}, {"a": True}),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        (Ref(1, "A"), Ref(2, "A")),
        (Anything(), 1),
        ([Anything()], [1]),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1, 2]), [1, 2]),
    ],
)
def test_not_the_same(saw, due):
    assert not same(saw, due)


def test_expect_names_the_rule_and_the_types_where_they_differ():
    expect(3, 3, "never")
    with pytest.raises(CheckFailed) as caught:
        expect(3.0, 3, "whole")
    assert (caught.value.saw, caught.value.due, caught.value.rule) == ("3.0", "3", "whole")
    assert caught.value.phrases == {"another type": {"saw": "float", "due": "int"}}
    with pytest.raises(CheckFailed) as caught:
        expect(4, 3, "whole")
    assert caught.value.phrases == {}
    assert str(caught.value) == "saw 4, expected 3 (whole)"


def test_in_a_survey_a_check_goes_on_after_a_failure():
    with surveying():
        assert not has_failed()
        expect(3, 4)
        with surveying():
            assert not has_failed()
            fail(Words("x"), Words("y"), "two")
        assert has_failed()
        assert value(Reply(None, (), Error("KeyError", "7"))) is None
        with pytest.raises(NotDone):
            value(Reply(None, (), Error("NotImplementedError", "")))
    with pytest.raises(CheckFailed):
        expect(3, 4)


def failure(saw, due, **more) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        expect_tensor(saw, due, "rule", **more)
    return caught.value


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (torch.zeros(3), torch.zeros(3)),
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0005, 100.0])),
        (torch.tensor([math.inf, -math.inf]), torch.tensor([math.inf, -math.inf])),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        (torch.tensor([True]), torch.tensor([True])),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.zeros(3, 2).t(), torch.zeros(2, 3)),
    ],
)
def test_tensors_that_agree(saw, due):
    expect_tensor(saw, due, "never")


@pytest.mark.parametrize(
    ("saw", "due"),
    [
        (torch.zeros(3), torch.tensor([0.0, 0.0, 0.5])),
        (torch.tensor([0.0, 1e-4]), torch.zeros(2)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001])),
        (torch.tensor([math.nan]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.nan])),
        (torch.tensor([math.inf]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.inf])),
        (torch.tensor([-math.inf]), torch.tensor([math.inf])),
        (torch.tensor([1.0, 5.0]), torch.tensor([math.inf, 5.0])),
        (torch.tensor([False]), torch.tensor([True])),
        (torch.tensor([1_000_001]), torch.tensor([1_000_000])),
        (torch.tensor([2_000_000, -1]), torch.tensor([2_000_000, 0])),
        (torch.tensor([1.0], dtype=torch.float16), torch.tensor([1.0])),
        (torch.tensor([1], dtype=torch.int32), torch.tensor([1])),
        (torch.ones(1, 3), torch.ones(3)),
        (torch.ones(3, 1), torch.ones(1, 3)),
        (torch.tensor(1.0), torch.ones(3)),
        ([1.0], torch.ones(1)),
        (1.0, torch.tensor(1.0)),
        (None, torch.ones(1)),
        (Anything(), torch.ones(1)),
        (Ref(0, "Parameter"), torch.ones(1)),
    ],
)
def test_tensors_that_do_not(saw, due):
    failure(saw, due)


def test_the_texts_of_a_tensors_failure():
    found = failure(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 3.0]]))
    assert (found.saw, found.due, found.rule) == ("2 at [0, 1]", "3 there", "rule")
    assert found.phrases == {}
    found = failure(torch.ones(2), torch.ones(3))
    assert (found.saw, found.due, found.rule) == ("shape [2]", "shape [3]", "rule")
    assert list(found.phrases) == ["another shape"]
    found = failure(torch.ones(2).half(), torch.ones(2))
    assert (found.saw, found.due, *found.phrases) == ("float16", "float32", "another dtype")
    assert list(failure(poisoned(2), torch.ones(2)).phrases) == ["not a number"]
    found = failure(Ref(0, "Parameter"), torch.ones(2))
    assert (found.saw, *found.phrases) == ("an object of class Parameter", "no tensor")
    assert list(failure(None, torch.ones(2)).phrases) == ["nothing came back"]


def test_the_tolerance_is_relative_to_the_largest_that_is_due():
    due = torch.tensor([1000.0, 1.0])
    expect_tensor(due + 0.5, due, tolerance=1e-3)
    failure(due + 2, due, tolerance=1e-3)
    failure(due + 0.5, due, tolerance=1e-4)
    failure(torch.tensor([1.1, 0.0]), torch.tensor([1.0, math.inf]), tolerance=1e-3)


def test_value_passes_values_on_and_tells_of_errors():
    def told(error: Error, rule="") -> CheckFailed:
        with pytest.raises(CheckFailed) as caught:
            value(Reply(None, (), error), rule)
        return caught.value

    assert value(Reply([3], (), None)) == [3]
    with pytest.raises(NotDone):
        value(Reply(None, (), Error("NotImplementedError", "")))
    found = told(Error("OSError", ""), {"IndexError": "far"})
    assert (found.saw, found.due, found.rule) == ("OSError", "no exception", "")
    assert list(found.phrases) == ["raised Exception"]
    assert told(Error("IndexError", ""), {"IndexError": "far"}).rule == "far"
    assert told(Error("KeyError", "x"), "one rule for all").rule == "one rule for all"
    assert list(told(Error("KeyError", "x")).phrases) == ["raised KeyError"]
    found = told(Error("NameError", "no x"), "shapes")  # whatever the exercise is about
    assert (found.rule, *found.phrases) == ("", "raised NameError")
    found = told(Error("Exception", "no frame", "PageFault", "x = y"))
    assert found.saw == "PageFault: no frame, in the line `x = y`"


@pytest.mark.parametrize(
    ("reply", "saw"),
    [
        (Reply(3, (), None), "3"),
        (Reply(None, (), Error("KeyError", "block 7")), "KeyError: block 7"),
        (Reply(None, (), Error("ValueError", "bad block")), "ValueError: bad block"),
    ],
)
def test_expect_error_wants_the_kind_and_the_offending_value(reply, saw):
    expect_error(Reply(None, (), Error("ValueError", "block 7")), "ValueError", 7, "why")
    with pytest.raises(CheckFailed) as caught:
        expect_error(reply, "ValueError", 7, "why")
    assert caught.value.saw == saw
    with pytest.raises(NotDone):
        expect_error(Reply(None, (), Error("NotImplementedError", "")), "ValueError", 7)


def test_show_is_short():
    assert show(torch.tensor([1, 2])) == "a tensor [2] int64 [1, 2]"
    assert show(torch.zeros(20)) == "a tensor [20] float32"
    assert show(Ref(0, "BlockPool")) == "an object of class BlockPool"
    assert len(show(list(range(1000)))) == 120


def test_draws_are_repeatable_and_never_in_order():
    assert torch.equal(Draw(3).tensor(2, 3), Draw(3).tensor(2, 3))
    assert not torch.equal(Draw(3).tensor(2, 3), Draw(4).tensor(2, 3))
    assert Draw(3).tensor(2, dtype=torch.bfloat16).dtype == torch.bfloat16
    for seed in range(20):
        assert sorted(Draw(seed).permutation(3)) == [0, 1, 2] != Draw(seed).permutation(3)
    assert Draw(0).permutation(1) == [0]
    assert Draw(0).permutation(0) == []
    assert poisoned(2, 3).isnan().all()


def test_an_error_names_the_value_as_a_word_and_not_in_a_list_of_everything():
    def reply(text):
        return Reply(None, (), Error("ValueError", text))

    expect_error(reply("block -1 is unknown"), "ValueError", -1)
    for text in ("block 12 is unknown", "block -2", " ".join(map(str, range(40)))):
        with pytest.raises(CheckFailed, match="text names 2"):
            expect_error(reply(text), "ValueError", 2)
