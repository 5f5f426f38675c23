"""The part of triton.language that the course uses, in PyTorch: `tl` where there is no GPU.

What is not here is refused by name.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .memory import check_access, lanes, running, touch
from .values import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT1,
    INT8,
    INT16,
    INT32,
    INT64,
    DType,
    Value,
    as_tensor,
    common_type,
    constexpr,
    scalar_type,
    unsupported,
)


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
    if not isinstance(shape, list | tuple):
        raise TypeError(f"a tile's shape is a list, as in tl.zeros([8], tl.float32), not {shape!r}")
    for size in shape:
        if isinstance(size, Value) or not isinstance(size, int):
            raise TypeError(f"a tile's shape must be tl.constexpr, not {size!r}")
        if size < 1 or size & (size - 1):
            raise ValueError(f"a tile's sizes are powers of 2, not {size}")
    return list(shape)


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

    def static_range(self, start: int, end: int | None = None, step: int = 1) -> Iterable[int]:
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
        return Value(data.masked_scatter_(allowed, memory.flat[touched]), dtype)

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
        total: Value = product + acc
        return total.to(acc.dtype)

    def maximum(self, a: Any, b: Any) -> Value:
        dtype = common_type(a, b)
        return Value(torch.fmax(as_tensor(a, dtype), as_tensor(b, dtype)), dtype)

    def minimum(self, a: Any, b: Any) -> Value:
        dtype = common_type(a, b)
        return Value(torch.fmin(as_tensor(a, dtype), as_tensor(b, dtype)), dtype)

    def where(self, condition: Any, a: Any, b: Any) -> Value:
        """Choose element by element; a sum whose loop never ran is still a Python number."""
        dtype = common_type(a, b)
        chosen = as_tensor(condition, INT1).bool()
        return Value(torch.where(chosen, as_tensor(a, dtype), as_tensor(b, dtype)), dtype)

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


tl_small = Language()
