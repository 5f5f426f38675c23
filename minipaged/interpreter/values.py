"""The tiles and scalars inside a kernel, with Triton's types.

Types matter: an int32 offset that overflows on a GPU overflows here, bfloat16 is computed as such.
Leaves out unsigned integers and 8-bit floats.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

# --- types -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
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
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"


def is_constexpr(annotation: Any) -> bool:
    """Whether an annotation is `tl.constexpr`: Triton's class or this module's, or its name."""
    return "constexpr" in str(annotation)


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
    if not is_division and isinstance(a, Value) and isinstance(b, Value) and a.dtype is b.dtype:
        return a.dtype
    weak = [not isinstance(item, Value) for item in (a, b)]
    first, second = (scalar_type(x) if w else x.dtype for x, w in zip((a, b), weak, strict=True))
    if weak[0] != weak[1]:
        number, tensor = (first, second) if weak[0] else (second, first)
        if number.kind <= tensor.kind:
            first = second = tensor
    if first is FLOAT64 or second is FLOAT64:
        return FLOAT64
    if is_division and (first.kind == 2 or second.kind == 2):
        return FLOAT32
    for dtype in (FLOAT32, FLOAT16):
        if first is dtype or second is dtype:
            return dtype
    if first is BFLOAT16 or second is BFLOAT16:
        return BFLOAT16 if first is second else FLOAT32
    return first if first.bits > second.bits else second


# --- values ----------------------------------------------------------------------------------


def unsupported(what: str) -> str:
    """What is said of an operation outside the subset."""
    return f"{what} is not in the subset of triton.language that the course's interpreter knows"


def as_tensor(item: Any, dtype: DType) -> torch.Tensor:
    """A value or number as a tensor of that type; a number that does not fit is an error."""
    if isinstance(item, Value):
        return item.data if item.dtype is dtype else item.data.to(dtype.torch)
    return constant(item, dtype, str(item))


@lru_cache(maxsize=1024)
def constant(number: Any, dtype: DType, text: str) -> torch.Tensor:
    """A number as a tensor; its text tells 0.0, -0.0 and 0 apart."""
    if dtype.kind == 1 and not -(2 ** (dtype.bits - 1)) <= number < 2 ** (dtype.bits - 1):
        raise ValueError(f"the number {number} is out of range for {dtype}")
    return torch.tensor(number, dtype=dtype.torch)


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
        if isinstance(a, Address) or isinstance(b, Address):
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


class Address:
    """Base of the interpreter's pointers: what + and - of values leave to the other side."""

    __slots__ = ()


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
    __eq__ = binary("==", torch.eq, compares=True)[0]
    __ne__ = binary("!=", torch.ne, compares=True)[0]
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
            raise TypeError(f"{self!r} is not an integer")
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
        if self.data.dim() != 2:
            raise ValueError(f".T takes a tile with two axes, not {list(self.shape)}")
        return Value(self.data.T, self.dtype)

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
