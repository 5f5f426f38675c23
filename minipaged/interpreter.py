"""Lesson 5: where the kernels run: on a GPU, or, without one, in a small interpreter in PyTorch.

    from minipaged.interpreter import triton, tl

gives Triton's own `triton` and `triton.language` where there is a GPU, and where TRITON_INTERPRET=1
asks for Triton's own interpreter. Everywhere else, macOS included, `tl` is the part of
triton.language that the course uses, in PyTorch: the programs of a grid run one after the other,
each operation on whole tiles, with Triton's types (an int32 offset overflows here as it does
there). What Triton leaves undefined is an error that says where: a read out of range, a masked read
without `other`. `recording` tells afterwards what each program touched, `poisoned` forbids some of
memory, `compile_for` (compiling.py) compiles a kernel for a GPU that need not be there.

Given, and not part of any exercise. Leaves out atomics, scans, tensor descriptors, autotuning and
every operation that no kernel of the course needs; each is refused by name.
"""

import dis
import inspect
import itertools
import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from importlib.util import find_spec
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from .compiling import Compiled, compile_for, signature_of

__all__ = [
    "BACKEND",
    "DEVICE",
    "Access",
    "Compiled",
    "Kernel",
    "MemoryFault",
    "Record",
    "compile_for",
    "interpreted",
    "poisoned",
    "program_order",
    "recording",
    "signature_of",
    "tl",
    "triton",
]  # fmt: skip

# --- types -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DType:
    """An element type of triton.language, such as `tl.float32`."""

    name: str
    torch: torch.dtype
    kind: int  # 0 bool, 1 integer, 2 floating point
    bits: int

    def __repr__(self) -> str:
        return self.name

    def is_floating(self) -> bool:
        return self.kind == 2

    @property
    def primitive_bitwidth(self) -> int:
        return self.bits


@dataclass(frozen=True, slots=True)
class PointerType:
    """The type of a pointer; `element_ty` is what it points to."""

    element_ty: DType


INT1 = DType("int1", torch.bool, 0, 1)
INT8 = DType("int8", torch.int8, 1, 8)
INT16 = DType("int16", torch.int16, 1, 16)
INT32 = DType("int32", torch.int32, 1, 32)
INT64 = DType("int64", torch.int64, 1, 64)
FLOAT16 = DType("float16", torch.float16, 2, 16)
BFLOAT16 = DType("bfloat16", torch.bfloat16, 2, 16)
FLOAT32 = DType("float32", torch.float32, 2, 32)
FLOAT64 = DType("float64", torch.float64, 2, 64)
DTYPES = {
    dtype.torch: dtype
    for dtype in (INT1, INT8, INT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
}


class constexpr:
    """A value known when a kernel is compiled: an annotation, or a wrapper of a global."""

    def __init__(self, value: Any) -> None:
        self.value = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"


def scalar_type(number: Any) -> DType:
    """The type that Triton gives to a number."""
    if isinstance(number, bool):
        return INT1
    if isinstance(number, int):
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{number} does not fit into 64 bits")
        return INT32 if -(2**31) <= number < 2**31 else INT64
    if isinstance(number, float):
        return FLOAT32
    raise TypeError(f"a kernel cannot compute with {type(number).__name__} {number!r}")


def common_type(a: Any, b: Any, is_division: bool = False) -> DType:
    """The type in which Triton computes `a op b`; numbers give way to tensors of their kind."""
    weak = [not isinstance(item, Value) for item in (a, b)]
    first, second = (scalar_type(x) if w else x.dtype for x, w in zip((a, b), weak, strict=True))
    if weak[0] != weak[1]:
        number, tensor = (first, second) if weak[0] else (second, first)
        if number.kind <= tensor.kind:
            first = second = tensor
    pair = {first, second}
    if FLOAT64 in pair:
        return FLOAT64
    if is_division and (first.kind == 2 or second.kind == 2):
        return FLOAT32
    for dtype in (FLOAT32, FLOAT16):
        if dtype in pair:
            return dtype
    if BFLOAT16 in pair:
        return BFLOAT16 if pair == {BFLOAT16} else FLOAT32
    return first if first.bits > second.bits else second


# --- values ------------------------------------------------------------------------------------


def unsupported(what: str) -> str:
    return f"{what} is no part of the subset of triton.language that the course's interpreter knows"


def as_tensor(item: Any, dtype: DType) -> torch.Tensor:
    """A value or number as a tensor of that type; a number that does not fit is an error."""
    if isinstance(item, Value):
        return item.data if item.dtype is dtype else item.data.to(dtype.torch)
    if dtype.kind == 1 and not -(2 ** (dtype.bits - 1)) <= item < 2 ** (dtype.bits - 1):
        raise ValueError(f"the number {item} is out of range for {dtype}")
    return torch.tensor(item, dtype=dtype.torch)


def binary(
    name: str,
    operation: Callable[..., torch.Tensor],
    *,
    is_division: bool = False,
    integers_only: bool = False,
    compares: bool = False,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator of two values, and the same with the operands swapped."""

    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, Pointer) or isinstance(b, Pointer):
            return NotImplemented
        dtype = common_type(a, b, is_division)
        if integers_only and dtype.kind == 2:
            raise TypeError(f"{name} takes integers, not {dtype}")
        if name == "/" and dtype.kind != 2:
            dtype = FLOAT32
        result = operation(as_tensor(a, dtype), as_tensor(b, dtype))
        return Value(result, INT1 if compares else dtype)

    return apply, lambda b, a: apply(a, b)


def trunc_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divide integers as C and Triton do: towards zero."""
    return torch.div(a, b, rounding_mode="trunc")


class Value:
    """A tile or scalar inside a kernel."""

    __slots__ = ("data", "dtype")

    def __init__(self, data: torch.Tensor, dtype: DType) -> None:
        self.data, self.dtype = data, dtype

    __add__, __radd__ = binary("+", torch.add)
    __sub__, __rsub__ = binary("-", torch.sub)
    __mul__, __rmul__ = binary("*", torch.mul)
    __truediv__, __rtruediv__ = binary("/", torch.div, is_division=True)
    __floordiv__, __rfloordiv__ = binary("//", trunc_divide, is_division=True, integers_only=True)
    __mod__, __rmod__ = binary("%", torch.fmod, is_division=True)
    __and__, __rand__ = binary("&", torch.bitwise_and, integers_only=True)
    __or__, __ror__ = binary("|", torch.bitwise_or, integers_only=True)
    __xor__, __rxor__ = binary("^", torch.bitwise_xor, integers_only=True)
    __lshift__, __rlshift__ = binary("<<", torch.bitwise_left_shift, integers_only=True)
    __rshift__, __rrshift__ = binary(">>", torch.bitwise_right_shift, integers_only=True)
    __lt__, __le__ = (
        binary("<", torch.lt, compares=True)[0],
        binary("<=", torch.le, compares=True)[0],
    )
    __gt__, __ge__ = (
        binary(">", torch.gt, compares=True)[0],
        binary(">=", torch.ge, compares=True)[0],
    )
    __eq__ = binary("==", torch.eq, compares=True)[0]  # type: ignore[assignment]
    __ne__ = binary("!=", torch.ne, compares=True)[0]  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> "Value":
        return Value(-self.data, self.dtype)

    def __invert__(self) -> "Value":
        if self.dtype.kind == 2:
            raise TypeError(f"~ takes integers, not {self.dtype}")
        return Value(~self.data, self.dtype)

    def __bool__(self) -> bool:
        if self.data.dim():
            raise TypeError(
                f"a tile of shape {list(self.shape)} is neither true nor false; join masks with & "
                "and |, choose with tl.where"
            )
        return bool(self.data)

    def __index__(self) -> int:
        if self.data.dim() or self.dtype.kind == 2:
            raise TypeError(f"{self!r} is no integer")
        return int(self.data)

    def __getitem__(self, key: Any) -> "Value":
        return Value(new_axes(self.data, key), self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("tiles have no elements to assign to; use tl.where")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a kernel cannot walk through the elements of a tile")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unsupported(f"'.{name}' of a tile"))

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.data.tolist()}"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def T(self) -> "Value":
        return tl_small.trans(self)

    def to(self, dtype: DType) -> "Value":
        if not isinstance(dtype, DType):
            raise TypeError(f".to takes a type such as tl.float32, not {dtype!r}")
        return self if dtype is self.dtype else Value(self.data.to(dtype.torch), dtype)


def new_axes(data: torch.Tensor, key: Any) -> torch.Tensor:
    """Index with `:` and None, all that Triton allows."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(item is None or item == slice(None) for item in keys):
        raise TypeError(f"tiles are indexed with ':' and None only, not {key!r}")
    if sum(item is not None for item in keys) != data.dim():
        raise TypeError(f"{len(keys)} places index a tile of shape {list(data.shape)}")
    return data[keys]


# --- memory ------------------------------------------------------------------------------------


class MemoryFault(IndexError):
    """A program touched what it must not; the text names program, tensor, index and line."""


class Memory:
    """A tensor that a kernel was given: what of its storage belongs to it, and what is poisoned."""

    __slots__ = ("axes", "element", "flat", "is_dense", "name", "poison", "span", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise TypeError(f"{name} lies on {tensor.device}; the interpreter reads CPU memory")
        if tensor.dtype not in DTYPES:
            raise TypeError(unsupported(f"a tensor of {tensor.dtype} ({name})"))
        self.name, self.tensor, self.element = name, tensor, DTYPES[tensor.dtype]
        sizes = list(zip(tensor.shape, tensor.stride(), strict=True))
        self.span = 1 + sum((n - 1) * s for n, s in sizes) if tensor.numel() else 0
        self.flat = tensor.detach().as_strided((self.span,), (1,), tensor.storage_offset())
        self.is_dense = self.span == tensor.numel()
        places = [(s, n, axis) for axis, (n, s) in enumerate(sizes) if n > 1 and s > 0]
        self.axes: list[tuple[int, int, int]] | None = sorted(places, reverse=True)
        for (outer, _, _), (inner, n, _) in itertools.pairwise(self.axes):
            if outer < inner * n:  # elements overlap: no index of their own
                self.axes = None
                break
        self.poison = [
            flags[tensor.storage_offset() :]
            for flags in POISON.get(tensor.untyped_storage().data_ptr(), [])
        ]

    def locate(self, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices [n, dim] of elements, and which of them belong to the tensor at all."""
        inside = (offsets >= 0) & (offsets < self.span)
        if self.axes is None:
            return offsets[:, None], inside
        indices = torch.zeros(len(offsets), max(1, self.tensor.dim()), dtype=torch.int64)
        rest = offsets
        for stride, size, axis in self.axes:
            indices[:, axis] = rest // stride
            inside &= indices[:, axis] < size
            rest = rest % stride
        return indices, inside & (rest == 0)

    def check(self, offsets: torch.Tensor, verb: str) -> None:
        """Raise where an element does not belong to the tensor, or is poisoned."""
        if not offsets.numel():
            return
        low, high = (int(end) for end in torch.aminmax(offsets))
        if low < 0 or high >= self.span or not self.is_dense:
            inside = self.locate(offsets)[1]
            if not bool(inside.all()):
                wrong = int(offsets[~inside][0])
                fault(
                    f"{verb} {self.name} out of range: offset {wrong} is no element of a tensor of "
                    f"shape {list(self.tensor.shape)}, strides {list(self.tensor.stride())}"
                )
        for flags in self.poison:
            hit = flags[offsets]
            if bool(hit.any()):
                index = self.locate(offsets[hit][:1])[0][0].tolist()
                fault(f"{verb} {self.name}{index}, which is poisoned")


POISON: dict[int, list[torch.Tensor]] = {}  # by the address of a storage, a flag per element


@contextmanager
def poisoned(tensor: torch.Tensor, where: torch.Tensor) -> Iterator[None]:
    """Forbid part of a tensor to every kernel: touching it raises `MemoryFault`.

    Args:
        tensor: a tensor, or a view; kernels may reach the memory through other views too.
        where: bool, of the tensor's shape or broadcast to it; True is forbidden.
    """
    storage = tensor.untyped_storage()
    flags = torch.zeros(storage.size() // tensor.element_size(), dtype=torch.bool)
    flags.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(where)
    found = POISON.setdefault(storage.data_ptr(), [])
    found.append(flags)
    try:
        yield
    finally:
        found[:] = [kept for kept in found if kept is not flags]
        if not found:
            POISON.pop(storage.data_ptr(), None)


class Pointer:
    """One address or a tile of them: a memory and offsets in elements."""

    __slots__ = ("memory", "offsets")

    def __init__(self, memory: Memory, offsets: torch.Tensor) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, other: Any) -> "Pointer":
        if isinstance(other, Value) and other.dtype.kind == 2 or isinstance(other, float | Pointer):
            raise TypeError(f"a pointer moves by integers, not by {other!r}")
        step = other.data.to(torch.int64) if isinstance(other, Value) else other
        return Pointer(self.memory, self.offsets + step)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Pointer":
        return self + (-other)

    def __getitem__(self, key: Any) -> "Pointer":
        return Pointer(self.memory, new_axes(self.offsets, key))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unsupported(f"'.{name}' of a pointer"))

    @property
    def dtype(self) -> PointerType:
        return PointerType(self.memory.element)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.offsets.shape)


# --- the record --------------------------------------------------------------------------------


@dataclass(slots=True)
class Access:
    """One tl.load or tl.store of one program.

    Attributes:
        kernel, program: which kernel, and the program's ids along the three axes.
        tensor: the kernel's parameter.
        kind: "load" or "store".
        line: in the kernel's file.
        num_bytes: of the lanes that the mask let through.
    """

    kernel: str
    program: tuple[int, int, int]
    tensor: str
    kind: str
    line: int
    num_bytes: int
    _memory: Memory = field(repr=False)
    _offsets: torch.Tensor = field(repr=False)

    @property
    def indices(self) -> torch.Tensor:
        """int64 [n, dim]: the index of each element that was touched, in the tensor's own axes."""
        return self._memory.locate(self._offsets)[0]


@dataclass(slots=True)
class Record:
    """What kernels touched, in order; made by `recording`."""

    accesses: list[Access] = field(default_factory=list)
    num_programs: int = 0

    def of(self, tensor: str, kind: str = "load") -> list[Access]:
        """The accesses of a kernel's parameter."""
        return [seen for seen in self.accesses if (seen.tensor, seen.kind) == (tensor, kind)]

    def indices(self, tensor: str, kind: str = "load") -> torch.Tensor:
        """int64 [n, dim]: all their elements, in order, one that was touched twice twice."""
        return torch.cat([seen.indices for seen in self.of(tensor, kind)] or [torch.zeros(0, 1)])

    def num_bytes(self, tensor: str | None = None, kind: str | None = None) -> int:
        """Bytes moved, of all tensors or one, by loads and stores or one of them."""
        return sum(
            seen.num_bytes
            for seen in self.accesses
            if tensor in (None, seen.tensor) and kind in (None, seen.kind)
        )


@contextmanager
def recording() -> Iterator[Record]:
    """Record what the kernels that run inside the `with` touch (small interpreter only)."""
    record = Record()
    RECORDS.append(record)
    try:
        yield record
    finally:
        RECORDS.remove(record)


RECORDS: list[Record] = []
ORDER: list[int] = []  # a seed, where programs run in a shuffled order


@contextmanager
def program_order(seed: int) -> Iterator[None]:
    """Run the programs of a grid in a shuffled order: a GPU promises none."""
    ORDER.append(seed)
    try:
        yield
    finally:
        ORDER.pop()


# --- triton.language ---------------------------------------------------------------------------


def unary(name: str, operation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Value]:
    """A function of floating-point tiles; Triton takes float32 and float64 only."""

    def apply(self: "Language", x: Any) -> Value:
        x = x if isinstance(x, Value) else Value(as_tensor(x, scalar_type(x)), scalar_type(x))
        if x.dtype not in (FLOAT32, FLOAT64):
            raise TypeError(
                f"tl.{name} takes float32 or float64, not {x.dtype}: use .to(tl.float32)"
            )
        return Value(operation(x.data), x.dtype)

    apply.__name__ = name
    return apply


def static_shape(shape: Any) -> list[int]:
    """The shape of a new tile, which must be known to the compiler, in powers of two."""
    sizes = list(shape) if isinstance(shape, list | tuple) else [shape]
    for size in sizes:
        if isinstance(size, Value) or not isinstance(size, int):
            raise TypeError(f"a tile's shape must be tl.constexpr, not {size!r}")
        if size < 1 or size & (size - 1):
            raise ValueError(f"a tile's sizes are powers of 2, not {size}")
    return sizes


class Language:
    """The subset of `triton.language`."""

    constexpr = constexpr
    int1, int8, int16, int32, int64 = INT1, INT8, INT16, INT32, INT64
    float16, bfloat16, float32, float64 = FLOAT16, BFLOAT16, FLOAT32, FLOAT64
    exp, exp2 = unary("exp", torch.exp), unary("exp2", torch.exp2)
    log, log2 = unary("log", torch.log), unary("log2", torch.log2)
    sqrt = unary("sqrt", torch.sqrt)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unsupported(f"tl.{name}"))

    def program_id(self, axis: int) -> Value:
        return Value(torch.tensor(running().program[axis], dtype=torch.int32), INT32)

    def num_programs(self, axis: int) -> Value:
        return Value(torch.tensor(running().grid[axis], dtype=torch.int32), INT32)

    def arange(self, start: int, end: int) -> Value:
        if not (isinstance(start, int) and isinstance(end, int)):
            raise TypeError("tl.arange takes tl.constexpr bounds, known to the compiler")
        static_shape([end - start])
        return Value(torch.arange(start, end, dtype=torch.int32), INT32)

    def full(self, shape: Any, value: Any, dtype: DType) -> Value:
        number = as_tensor(value, dtype)
        return Value(number.expand(static_shape(shape)).clone(), dtype)

    def zeros(self, shape: Any, dtype: DType) -> Value:
        return Value(torch.zeros(static_shape(shape), dtype=dtype.torch), dtype)

    def range(self, start: Any, end: Any = None, step: Any = 1, **hints: Any) -> Iterator[Value]:
        """Python's range with int32 numbers; hints (num_stages, ...) are the compiler's."""
        first, last = (0, start) if end is None else (start, end)
        wide = any(isinstance(x, Value) and x.dtype is INT64 for x in (first, last, step))
        dtype = INT64 if wide else INT32
        for number in range(first, last, step):
            yield Value(torch.tensor(number, dtype=dtype.torch), dtype)

    def static_range(self, start: int, end: int | None = None, step: int = 1) -> range:
        bounds = (0, start, step) if end is None else (start, end, step)
        if any(isinstance(bound, Value) for bound in bounds):
            raise TypeError("tl.static_range takes tl.constexpr bounds, known to the compiler")
        return range(*bounds)

    def load(
        self, pointer: Any, *misplaced: Any, mask: Any = None, other: Any = None, **hints: str
    ) -> Value:
        check_access("load", pointer, misplaced, hints)
        if mask is not None and other is None:
            raise TypeError(
                "tl.load with mask= needs other=: on a GPU the lanes masked off are undefined"
            )
        if mask is None and other is not None:
            raise TypeError("tl.load with other= needs mask=")
        memory, offsets, dtype = pointer.memory, pointer.offsets, pointer.memory.element
        allowed = lanes(offsets, mask)
        touched = touch("load", memory, offsets if allowed is None else offsets[allowed])
        if allowed is None:
            return Value(memory.flat[offsets], dtype)
        data = as_tensor(other, dtype).expand(offsets.shape).clone()
        data[allowed] = memory.flat[touched]
        return Value(data, dtype)

    def store(
        self, pointer: Any, value: Any, *misplaced: Any, mask: Any = None, **hints: str
    ) -> None:
        check_access("store", pointer, misplaced, hints)
        memory, offsets = pointer.memory, pointer.offsets
        data = as_tensor(value, memory.element).expand(offsets.shape)
        allowed = lanes(offsets, mask)
        if allowed is not None:
            offsets, data = offsets[allowed], data[allowed]
        memory.flat[touch("store", memory, offsets)] = data

    def dot(
        self,
        a: Value,
        b: Value,
        acc: Value | None = None,
        input_precision: str | None = None,
        out_dtype: DType = FLOAT32,
    ) -> Value:
        """Multiply matrices, products and sums in float32 whatever the tiles' type.

        On Nvidia the compiler rounds float32 tiles to TF32 unless input_precision is "ieee" (or
        nearly so with "tf32x3"); so does this.
        """
        if a.dtype != b.dtype or a.dtype.kind != 2:
            raise TypeError(f"tl.dot takes two tiles of one type, not {a.dtype} and {b.dtype}")
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"tl.dot cannot multiply {list(a.shape)} by {list(b.shape)}")
        if input_precision not in (None, "ieee", "tf32", "tf32x3"):
            raise ValueError(unsupported(f"input_precision {input_precision!r}"))
        left, right = (as_tensor(x, FLOAT64 if x.dtype is FLOAT64 else FLOAT32) for x in (a, b))
        if a.dtype is FLOAT32 and input_precision in (None, "tf32"):
            left, right = to_tf32(left), to_tf32(right)
        product = Value(left @ right, FLOAT32 if a.dtype is not FLOAT64 else FLOAT64)
        if acc is None:
            return product.to(out_dtype)
        if acc.shape != product.shape:
            raise ValueError(f"acc {list(acc.shape)} must be {list(product.shape)}")
        return (product + acc).to(acc.dtype)

    def maximum(self, a: Any, b: Any) -> Value:
        dtype = common_type(a, b)
        return Value(torch.fmax(as_tensor(a, dtype), as_tensor(b, dtype)), dtype)

    def minimum(self, a: Any, b: Any) -> Value:
        dtype = common_type(a, b)
        return Value(torch.fmin(as_tensor(a, dtype), as_tensor(b, dtype)), dtype)

    def where(self, condition: Value, a: Any, b: Any) -> Value:
        dtype = common_type(a, b)
        return Value(
            torch.where(condition.data.bool(), as_tensor(a, dtype), as_tensor(b, dtype)), dtype
        )

    def max(self, x: Value, axis: int | None = None) -> Value:
        """The largest along an axis, or of all; NaN is passed over, as on a GPU."""
        if x.dtype.bits < 32:
            x = x.to(FLOAT32 if x.dtype.kind == 2 else INT32)
        data = x.data
        if x.dtype.kind == 2 and bool(data.isnan().any()):
            none = data.isnan().all() if axis is None else data.isnan().all(axis, keepdim=True)
            data = torch.where(
                none, data, data.nan_to_num(float("-inf"), float("inf"), -float("inf"))
            )
        return Value(data.amax() if axis is None else data.amax(axis), x.dtype)

    def min(self, x: Value, axis: int | None = None) -> Value:
        return -self.max(-x, axis)

    def sum(self, x: Value, axis: int | None = None) -> Value:
        dtype = x.dtype if x.dtype.kind == 2 or x.dtype.bits >= 32 else INT32
        dims: Any = () if axis is None else (axis,)
        total = x.data.sum(dtype=dtype.torch) if not dims else x.data.sum(dims, dtype=dtype.torch)
        return Value(total, dtype)

    def abs(self, x: Value) -> Value:
        return Value(x.data.abs(), x.dtype)

    def trans(self, x: Value) -> Value:
        if len(x.shape) != 2:
            raise ValueError(f"tl.trans takes a tile with two axes, not {list(x.shape)}")
        return Value(x.data.T, x.dtype)

    def cdiv(self, a: Any, b: Any) -> Any:
        return (a + b - 1) // b

    def multiple_of(self, x: Any, values: Any) -> Any:
        """A promise to the compiler; here it is believed."""
        return x

    def static_assert(self, condition: Any, text: str = "") -> None:
        if not condition:
            raise AssertionError(text)


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Round float32 to the 10 bits of mantissa that TF32 has; infinities and NaN stay."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


HINTS = {"cache_modifier", "eviction_policy", "volatile"}


def check_access(verb: str, pointer: Any, misplaced: tuple, hints: dict[str, Any]) -> None:
    """Refuse what the course's manner of loading and storing doesn't allow."""
    if misplaced:
        raise TypeError(f"tl.{verb} takes mask= and other= by name")
    if not isinstance(pointer, Pointer):
        raise TypeError(f"tl.{verb} needs a pointer, not {pointer!r}")
    for name in hints:
        if name not in HINTS:
            raise TypeError(unsupported(f"{name}= of tl.{verb}"))


def lanes(offsets: torch.Tensor, mask: Any) -> torch.Tensor | None:
    """Which lanes of a tile of addresses take part; None: all."""
    if mask is None or mask is True:
        return None
    if not isinstance(mask, Value) or mask.dtype is not INT1:
        raise TypeError(
            f"a mask is a comparison's result, int1, not {getattr(mask, 'dtype', mask)}"
        )
    if mask.data.dim() > offsets.dim():
        raise ValueError(f"a mask of shape {list(mask.shape)} for addresses {list(offsets.shape)}")
    return mask.data.expand(offsets.shape)


def touch(kind: str, memory: Memory, offsets: torch.Tensor) -> torch.Tensor:
    """Check and record an access; give back its offsets in one row."""
    row = offsets.reshape(-1) if kind == "load" else offsets
    flat = row.reshape(-1)
    memory.check(flat, "loads" if kind == "load" else "stores to")
    if RECORDS:
        launch = running()
        size = flat.numel() * memory.tensor.element_size()
        line = launch.place()[1]
        access = Access(
            launch.kernel, launch.program, memory.name, kind, line, size, memory, flat.clone()
        )
        for record in RECORDS:
            record.accesses.append(access)
    return row


# --- kernels -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Launch:
    """A kernel that is running."""

    kernel: str
    grid: tuple[int, int, int]
    program: tuple[int, int, int] = (0, 0, 0)
    functions: dict[FunctionType, FunctionType] = field(default_factory=dict)
    codes: set[CodeType] = field(default_factory=set)

    def bind(self, fn: Any) -> FunctionType:
        """A copy of a jit function that sees the small language, and nothing that kernels can't."""
        if fn not in self.functions:
            names = {
                step.argval for step in dis.get_instructions(fn) if step.opname == "LOAD_GLOBAL"
            }
            scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": fn.__module__}
            cells = tuple(CellType() for _ in fn.__closure__ or ())
            copy = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, cells or None)
            copy.__kwdefaults__ = fn.__kwdefaults__
            self.functions[fn] = copy
            self.codes.add(fn.__code__)
            for name in names & fn.__globals__.keys():
                scope[name] = self.translate(name, fn.__globals__[name])
            for name, new, old in zip(fn.__code__.co_freevars, cells, fn.__closure__ or ()):
                new.cell_contents = self.translate(name, old.cell_contents)
        return self.functions[fn]

    def translate(self, name: str, item: Any) -> Any:
        """What a kernel sees of a global of its module."""
        home = type(item).__module__.split(".")[0]
        if isinstance(item, Kernel) or (home == "triton" and hasattr(item, "fn")):
            return self.bind(item.fn)
        if item is tl_small or (
            isinstance(item, ModuleType) and item.__name__ == "triton.language"
        ):
            return tl_small
        if item is triton_small or (isinstance(item, ModuleType) and item.__name__ == "triton"):
            return triton_small
        if isinstance(item, constexpr) or (home == "triton" and type(item).__name__ == "constexpr"):
            return item.value
        if isinstance(item, DType | Language):
            return item
        if isinstance(item, ModuleType) and any(isinstance(x, Kernel) for x in vars(item).values()):
            return item
        if isinstance(item, bool | int | float):
            raise NameError(
                f"a kernel cannot read the global {name}; pass it as an argument, or make it "
                "tl.constexpr(...)"
            )
        what = "module" if isinstance(item, ModuleType) else "Python object"
        raise TypeError(f"a kernel cannot use the {what} {name}; only tl and jit functions")

    def place(self) -> tuple[str, int]:
        """The file and line of the kernel that is running now."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code not in self.codes:
            frame = frame.f_back  # type: ignore[assignment]
        return (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)


RUNNING: list[Launch] = []


def running() -> Launch:
    if not RUNNING:
        raise RuntimeError("tl's operations work inside a kernel that was launched, nowhere else")
    return RUNNING[-1]


def fault(text: str) -> None:
    """Raise MemoryFault, naming program and line."""
    launch = running()
    file, line = launch.place()
    source = linecache.getline(file, line).strip()
    raise MemoryFault(
        f"{launch.kernel}, program {launch.program}, {text} ({Path(file).name}:{line}: {source})"
    )


def refuse(name: str) -> Callable[..., Any]:
    """A builtin of Python that kernels have not."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"Python's {name}() is not available in a kernel")

    return refused


OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


class Kernel:
    """A jit function of the small interpreter: `kernel[grid](*args, num_warps=4, TILE=64)`.

    Attributes:
        fn: the Python function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        update_wrapper(self, fn)
        self.signature = inspect.signature(fn)

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not RUNNING:
            raise RuntimeError(
                f"{self.fn.__name__} is a kernel: launch it with {self.fn.__name__}[grid](...), or "
                "call it from a kernel"
            )
        return running().bind(self.fn)(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(grid, args, kwargs)

    def launch(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """Run every program of the grid, one after the other."""
        given = {name: value for name, value in kwargs.items() if name not in OPTIONS}
        try:
            bound = self.signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{self.fn.__name__}: {error}") from None
        bound.apply_defaults()
        sizes = grid(dict(bound.arguments)) if callable(grid) else grid
        sizes = tuple(int(n) for n in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
        if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
            raise ValueError(f"a grid has one to three axes of at least one program, not {sizes}")
        values = {
            name: self.argument(name, value, self.signature.parameters[name].annotation)
            for name, value in bound.arguments.items()
        }
        launch = Launch(self.fn.__name__, (*sizes, 1, 1)[:3])
        function = launch.bind(self.fn)
        x, y, z = (range(n) for n in launch.grid)
        programs = [(i, j, k) for k in z for j in y for i in x]
        if ORDER:
            random.Random(ORDER[-1]).shuffle(programs)
        RUNNING.append(launch)
        try:
            with torch.no_grad():
                for launch.program in programs:
                    function(**values)
        except Exception as error:
            if not isinstance(error, MemoryFault):
                error.add_note(f"in kernel {launch.kernel}, program {launch.program}")
            raise
        finally:
            RUNNING.pop()
        for record in RECORDS:
            record.num_programs += len(programs)

    def argument(self, name: str, value: Any, annotation: Any) -> Any:
        """What a kernel sees of an argument."""
        if "constexpr" in str(annotation):
            return value.value if isinstance(value, constexpr) else value
        if isinstance(value, torch.Tensor):
            return Pointer(Memory(name, value), torch.zeros((), dtype=torch.int64))
        if value is None:
            return None
        dtype = scalar_type(value)
        return Value(torch.tensor(value, dtype=dtype.torch), dtype)


class SmallTriton:
    """What the course uses of `triton` itself."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unsupported(f"triton.{name}"))

    @property
    def language(self) -> "Language":
        return tl_small

    @staticmethod
    def jit(fn: Callable[..., Any]) -> Kernel:
        return Kernel(fn)

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        return 1 << (n - 1).bit_length() if n > 0 else 0


tl_small, triton_small = Language(), SmallTriton()
ALLOWED = {"float", "int", "isinstance", "len", "print", "NotImplementedError", "AssertionError"}
BUILTINS: dict[str, Any] = {
    name: item if name in ALLOWED or not callable(item) else refuse(name)
    for name, item in vars(__import__("builtins")).items()
} | {"range": tl_small.range, "min": tl_small.minimum, "max": tl_small.maximum}


def interpreted(kernel: Any) -> Kernel:
    """A kernel for the small interpreter, whatever `triton.jit` it was made with."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel.fn)


# --- which one ---------------------------------------------------------------------------------


def choose() -> tuple[str, Any, Any]:
    """The backend's name ("gpu", "triton interpreter" or "interpreter"), triton and tl."""
    asked = os.environ.get("TRITON_INTERPRET") == "1"
    installed = find_spec("triton") is not None
    if asked and not installed:
        raise ModuleNotFoundError(
            "TRITON_INTERPRET=1 asks for Triton's own interpreter, but triton is not installed; "
            "unset it, and the course's interpreter runs the kernels"
        )
    if not installed or not (asked or torch.cuda.is_available()):
        return "interpreter", triton_small, tl_small
    import triton as real
    from triton import language

    if asked and type(language.cdiv).__name__ == "JITFunction":
        raise RuntimeError(
            "TRITON_INTERPRET=1 was set after triton had been imported, too late for its own "
            "functions; set it before Python starts"
        )
    return ("triton interpreter" if asked else "gpu"), real, language


triton: Any
tl: Any
BACKEND, triton, tl = choose()
DEVICE = "cuda" if BACKEND == "gpu" else "cpu"
