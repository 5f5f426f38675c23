"""The memory that a kernel touches in the interpreter: pointers, faults, the record.

A pointer knows its tensor, so that an offset past the end, or one between the rows of a view, is
found and named. Leaves out caches and speed.
"""

import itertools
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from .values import DTYPES, INT1, Address, PointerType, Value, new_axes, unsupported

# --- the running kernel ----------------------------------------------------------------------


@dataclass(slots=True)
class Launch:
    """A kernel that is running."""

    kernel: str
    grid: tuple[int, int, int]
    program: tuple[int, int, int] = (0, 0, 0)
    functions: dict[FunctionType, FunctionType] = field(default_factory=dict)
    codes: set[CodeType] = field(default_factory=set)

    def place(self) -> tuple[str, int]:
        """The file and line of the kernel that is running now."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code not in self.codes:
            frame = frame.f_back  # type: ignore[assignment]
        return (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)


RUNNING: list[Launch] = []


def running() -> Launch:
    """The launch that is under way; RuntimeError outside of a kernel."""
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


# --- memory ----------------------------------------------------------------------------------


class MemoryFault(IndexError):
    """A program touched what it must not; the text names program, tensor, index and line."""


class Memory:
    """A tensor that a kernel was given: what of its storage belongs to it, and what is poisoned."""

    __slots__ = ("axes", "element", "flat", "is_dense", "name", "poison", "span", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise TypeError(f"{name} is on {tensor.device}; the interpreter reads CPU memory")
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


class Pointer(Address):
    """One address or a tile of them: a memory and offsets in elements."""

    __slots__ = ("memory", "offsets")

    def __init__(self, memory: Memory, offsets: torch.Tensor) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, other: Any) -> "Pointer":
        is_float = isinstance(other, Value) and other.dtype.kind == 2
        if is_float or isinstance(other, float | Pointer):
            raise TypeError(f"a pointer moves by integers, not by {other!r}")
        step = other.data.to(torch.int64) if isinstance(other, Value) else other
        return Pointer(self.memory, self.offsets + step)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Pointer":
        return self.__add__(-other)

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


# --- the record ------------------------------------------------------------------------------


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
        """int64 [n, dim]: all their elements, in order; one touched twice appears twice."""
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


HINTS = {"cache_modifier", "eviction_policy", "volatile"}


def check_access(
    verb: str, pointer: Any, misplaced: tuple[Any, ...], hints: dict[str, Any]
) -> None:
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
