"""The codec, and subjects that see the same through calls in this process and through messages."""

import base64
import enum
import json
import time
import types

import pytest
import torch

from minipaged.block_table import BlockPool
from minipaged.course.kit.subject import (
    Error,
    Host,
    LocalSubject,
    Message,
    MessageSubject,
    Ref,
    SubjectError,
    decode,
    encode,
)


def refuse(item: object) -> Ref:
    raise AssertionError(f"{item!r} was to be kept")


def there_and_back(value):
    """Through JSON, as between two processes."""
    message = encode(value, refuse)
    return decode(through_json(message), lambda ref: ref)


def through_json(message: Message) -> Message:
    wire = json.dumps(
        [message.tree, [base64.b64encode(part).decode() for part in message.storages]]
    )
    tree, parts = json.loads(wire)
    return Message(tree, [base64.b64decode(part) for part in parts])


# ------------------------------------------------------------------------------------- the codec


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -7,
        10**40,
        0.1,
        -0.0,
        5e-324,
        float("inf"),
        "",
        "ü \u2028 \x00 'quoted'",
        [],
        (),
        {},
        [1, True, 1.0, "1", None],
        ([1], (2, [3])),
        {"a": [1], 2: (3,), None: {}, True + 4: 1.5},
        torch.int32,
        torch.bfloat16,
        Ref(3, "BlockPool"),
    ],
    ids=repr,
)
def test_values_come_back_with_their_exact_types(value):
    back = there_and_back(value)
    assert repr(back) == repr(value)
    assert type(back) is type(value)


def test_bool_and_int_stay_apart():
    back = there_and_back([True, 1, False, 0])
    assert [type(item) for item in back] == [bool, int, bool, int]


def test_nan_comes_back():
    back = there_and_back(float("nan"))
    assert type(back) is float
    assert back != back


def test_the_order_of_a_dict_stays():
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]


class Count(int):
    pass


class Name(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1


class Rows(list):
    pass


class Anything:
    """Equal to everything, as a forged result would be."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@pytest.mark.parametrize(
    "item",
    [
        Count(3),
        Name("a"),
        Colour.RED,
        Rows([1]),
        Anything(),
        range(3),
        {1, 2},
        b"bytes",
        1j,
        torch.nn.Parameter(torch.zeros(2)),
        torch.zeros(2).numpy()[0],
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_everything_else_becomes_a_handle(item):
    kept = []

    def keep(thing: object) -> Ref:
        kept.append(thing)
        return Ref(7, "its class")

    message = through_json(encode([item], keep))
    assert len(kept) == 1 and kept[0] is item
    assert decode(message, lambda ref: ref) == [Ref(7, "its class")]


def test_a_size_is_a_tuple():
    assert there_and_back(torch.zeros(2, 3).shape) == (2, 3)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_each_dtype(dtype):
    tensor = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    back = there_and_back(tensor)
    assert back.dtype == dtype
    assert back.shape == (2, 3)
    assert torch.equal(back, tensor)


def test_float16_and_float32_stay_apart():
    half, single = there_and_back([torch.ones(2, dtype=torch.float16), torch.ones(2)])
    assert (half.dtype, single.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t[:, 1:3],
        lambda t: t[::2, ::3],
        lambda t: t[3],
        lambda t: t[2, 2],
        lambda t: t[:0],
        lambda t: t[:1].expand(5, 6),
        lambda t: t.t().contiguous().t(),
    ],
)
def test_strides_and_offset_stay(view):
    tensor = view(torch.arange(24.0).reshape(4, 6))
    back = there_and_back(tensor)
    assert torch.equal(back, tensor)
    assert back.shape == tensor.shape
    assert back.stride() == tensor.stride()


def test_nan_and_infinities_stay_bit_for_bit():
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    back = there_and_back(tensor)
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_tensors_without_elements_or_dimensions(shape):
    back = there_and_back(torch.ones(shape, dtype=torch.int32))
    assert (back.shape, back.dtype) == (shape, torch.int32)
    assert back.sum() == torch.ones(shape).sum()


def test_views_share_memory_afterwards_and_others_do_not():
    base = torch.zeros(4)
    first, second, other = there_and_back([base, base[2:], torch.zeros(4)])
    first[2] = 5
    assert second[0] == 5
    assert other[2] == 0
    assert base[2] == 0


def test_a_tensor_with_a_gradient_or_a_lazy_conjugate_comes_as_its_numbers():
    grown = torch.ones(2, requires_grad=True)
    assert torch.equal(there_and_back(grown * 2), torch.tensor([2.0, 2.0]))
    turned = torch.tensor([1 + 2j]).conj()
    assert there_and_back(turned)[0] == 1 - 2j


def test_a_megabyte_takes_no_time_to_speak_of():
    start = time.perf_counter()
    there_and_back(torch.zeros(250_000))
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "tree",
    [
        ["unknown"],
        ["int", 3],
        ["int", "three"],
        3,
        2.5,
        [],
        ["float", "x"],
        ["list", "abc"],
        ["dict", [[["int", "1"]]]],
        ["dict", [[["list", []], None]]],
        ["dtype", "load"],
        ["ref", "0", "A"],
        ["tensor", 4, "float32", [1], [1], 0],
        ["tensor", 0, "float32", [9], [1], 0],
        ["tensor", 0, "float32", ["a"], [1], 0],
        ["tensor", 0, "nothing", [1], [1], 0],
    ],
    ids=str,
)
def test_malformed_messages_are_refused(tree):
    with pytest.raises(ValueError, match=r"."):
        decode(Message(tree, [bytes(8)]), lambda ref: ref)


# ------------------------------------------------------------------------------------ subjects

LEARNERS = '''
import torch

NOTHING = None


class OutOfBlocks(KeyError):
    """Known to the learner alone."""


class Pool:
    def __init__(self, n):
        if n < 1:
            raise ValueError(f"a pool of {n}")
        self.ids = list(range(n))
        self.last = None

    @classmethod
    def of(cls, ids):
        pool = cls(len(ids))
        pool.ids = ids
        return pool

    @property
    def broken(self):
        raise ZeroDivisionError("no such luck")

    def take(self, n):
        taken, self.ids = self.ids[:n], self.ids[n:]
        return taken

    def itself(self):
        return self


def double(x):
    return x * 2


def spoil(ids, table):
    ids.append(99)
    table[0] = -1
    return len(ids)


def spoil_and_fail(ids):
    ids.clear()
    raise OutOfBlocks("block 7")


def not_yet():
    raise NotImplementedError


def fail():
    raise RuntimeError


def room(pool):
    return len(pool.ids)


def forged():
    class Anything:
        def __eq__(self, other):
            return True
    return Anything()


def true_number():
    return True


def circle():
    ring = []
    ring.append(ring)
    return ring


class Kernel:
    def __getitem__(self, grid):
        def run(out, *rest):
            for program in range(grid[0]):
                out[program] += program
        return run


kernel = Kernel()
'''


class WireSubject(MessageSubject):
    """A subject behind a wire: all that passes is JSON."""

    def __init__(self, module: types.ModuleType) -> None:
        self.host = Host(module)

    def exchange(self, request: Message) -> Message:
        return through_json(self.host.serve(through_json(request)))


def new_module() -> types.ModuleType:
    module = types.ModuleType("learners")
    exec(LEARNERS, module.__dict__)
    return module


@pytest.fixture(params=[LocalSubject, WireSubject])
def subject(request) -> MessageSubject:
    return request.param(new_module())


def test_a_call_gives_its_value_and_no_error(subject):
    assert subject.call("double", 4).value == 8
    assert subject.call("double", 4).error is None
    assert torch.equal(subject.call("double", torch.ones(3)).value, torch.full((3,), 2.0))


def test_objects_are_handles_and_their_methods_are_called(subject):
    pool = subject.new("Pool", 5)
    assert isinstance(pool, Ref)
    assert pool.kind == "Pool"
    assert subject.call((pool, "take"), 2).value == [0, 1]
    assert subject.get(pool, "ids") == [2, 3, 4]
    assert subject.call("room", pool).value == 3


def test_the_same_object_has_the_same_handle_and_another_another(subject):
    pool = subject.new("Pool", 5)
    assert subject.call((pool, "itself")).value == pool
    assert subject.new("Pool", 5) != pool
    forged = subject.call("forged").value
    assert len({pool, forged, subject.call("forged").value, subject.new("Pool", 5)}) == 4


def test_dotted_targets_and_the_packages_own(subject):
    pool = subject.call("Pool.of", [4, 2]).value
    assert subject.get(pool, "ids") == [4, 2]
    theirs = subject.new("minipaged.block_table:BlockPool", 3)
    assert theirs.kind == BlockPool.__name__
    assert subject.call((theirs, "allocate"), 2).value == [0, 1]


def test_what_a_call_changed_shows_in_args_after_alone(subject):
    ids, table = [1, 2], torch.tensor([5, 6])
    reply = subject.call("spoil", ids, table)
    assert reply.value == 3
    assert reply.args_after[0] == [1, 2, 99]
    assert reply.args_after[1].tolist() == [-1, 6]
    assert (ids, table.tolist()) == ([1, 2], [5, 6])


def test_args_after_shows_what_a_failed_call_changed(subject):
    reply = subject.call("spoil_and_fail", [1, 2])
    assert reply.args_after == ([],)


@pytest.mark.parametrize(
    ("target", "args", "error"),
    [
        ("spoil_and_fail", ([],), Error("KeyError", "'block 7'")),
        ("not_yet", (), Error("NotImplementedError", "")),
        ("fail", (), Error("RuntimeError", "")),
        ("absent", (), Error("AttributeError", "module 'learners' has no attribute 'absent'")),
        ("NOTHING", (), Error("TypeError", "'NoneType' object is not callable")),
    ],
)
def test_errors_become_built_in_names_and_texts(subject, target, args, error):
    reply = subject.call(target, *args)
    assert reply.error == error
    assert reply.value is None


def test_new_and_get_raise_what_was_raised(subject):
    with pytest.raises(SubjectError, match="ValueError: a pool of 0") as caught:
        subject.new("Pool", 0)
    assert caught.value.error == Error("ValueError", "a pool of 0")
    pool = subject.new("Pool", 1)
    with pytest.raises(SubjectError, match="ZeroDivisionError: no such luck"):
        subject.get(pool, "broken")
    with pytest.raises(SubjectError, match="gave no object"):
        subject.new("double", 3)


def test_an_object_equal_to_everything_comes_as_a_handle(subject):
    value = subject.call("forged").value
    assert value != 3
    assert type(value) is Ref


def test_a_true_for_a_1_is_seen(subject):
    assert subject.call("true_number").value is True


def test_a_list_that_holds_itself_is_an_error_of_the_call(subject):
    reply = subject.call("circle")
    assert reply.error is not None
    assert reply.error.kind == "RecursionError"


def test_unknown_objects_are_refused_by_name(subject):
    with pytest.raises(TypeError, match="BlockPool cannot be sent to a subject"):
        subject.call("double", BlockPool(3))
    with pytest.raises(TypeError, match="Count cannot be sent to a subject"):
        subject.call("double", [Count(3)])


def test_launch_runs_a_kernel_over_a_grid(subject):
    reply = subject.launch("kernel", (3,), torch.zeros(4))
    assert reply.error is None
    assert reply.args_after[0].tolist() == [0, 1, 2, 0]


def test_a_reply_of_another_form_is_refused():
    class Strange(LocalSubject):
        def exchange(self, request: Message) -> Message:
            return encode([1, 2], self.host.keep)

    with pytest.raises(ValueError, match="malformed reply"):
        Strange(new_module()).call("double", 1)
