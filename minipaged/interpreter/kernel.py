"""Running a kernel, program by program, as a copy of it that sees the small language.

Also the choice, made once, of where `triton` and `tl` come from; see the package.
"""

import dis
import inspect
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from importlib.util import find_spec
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from .language import Language, tl_small
from .memory import RECORDS, RUNNING, Launch, Memory, MemoryFault, Pointer, running
from .values import DType, Value, constexpr, is_constexpr, scalar_type, unsupported

# --- kernels ---------------------------------------------------------------------------------


def bind(launch: Launch, fn: Any) -> FunctionType:
    """A copy of a jit function that sees the small language, and nothing that kernels can't use."""
    if fn not in launch.functions:
        names = {step.argval for step in dis.get_instructions(fn) if step.opname == "LOAD_GLOBAL"}
        scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": fn.__module__}
        cells = tuple(CellType() for _ in fn.__closure__ or ())
        copy = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, cells or None)
        copy.__kwdefaults__ = fn.__kwdefaults__
        launch.functions[fn] = copy
        launch.codes.add(fn.__code__)
        for name in names & fn.__globals__.keys():
            scope[name] = translate(launch, name, fn.__globals__[name])
        for name, new, old in zip(fn.__code__.co_freevars, cells, fn.__closure__ or ()):
            new.cell_contents = translate(launch, name, old.cell_contents)
    return launch.functions[fn]


def translate(launch: Launch, name: str, item: Any) -> Any:
    """What a kernel sees of a global of its module."""
    home = type(item).__module__.split(".")[0]
    if isinstance(item, Kernel) or (home == "triton" and hasattr(item, "fn")):
        return bind(launch, item.fn)
    if item is tl_small or (isinstance(item, ModuleType) and item.__name__ == "triton.language"):
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


ORDER: list[int] = []  # a seed, where programs run in a shuffled order


@contextmanager
def program_order(seed: int) -> Iterator[None]:
    """Run the programs of a grid in a shuffled order: a GPU promises none."""
    ORDER.append(seed)
    try:
        yield
    finally:
        ORDER.pop()


def refuse(name: str) -> Callable[..., Any]:
    """A builtin of Python that kernels do not have."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"Python's {name}() is not available in a kernel")

    return refused


# of a launch: arguments of the compiler, not of the kernel
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
        return bind(running(), self.fn)(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(grid, args, kwargs)

    def launch(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run every program of the grid, one after the other."""
        try:
            given = {name: value for name, value in kwargs.items() if name not in OPTIONS}
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
        function = bind(launch, self.fn)
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
        if is_constexpr(annotation):
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


triton_small = SmallTriton()
ALLOWED = {"float", "int", "isinstance", "len", "print", "NotImplementedError", "AssertionError"}
BUILTINS: dict[str, Any] = {
    name: item if name in ALLOWED or not callable(item) else refuse(name)
    for name, item in vars(__import__("builtins")).items()
} | {"range": tl_small.range, "min": tl_small.minimum, "max": tl_small.maximum}


def interpreted(kernel: Any) -> Kernel:
    """A kernel for the small interpreter, whatever `triton.jit` it was made with."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel.fn)


# --- which one -------------------------------------------------------------------------------


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

    if asked and isinstance(language.cdiv, real.JITFunction):
        raise RuntimeError(
            "TRITON_INTERPRET=1 was set after triton had been imported, too late for its own "
            "functions; set it before Python starts"
        )
    return ("triton interpreter" if asked else "gpu"), real, language


triton: Any
tl: Any
BACKEND, triton, tl = choose()
DEVICE = "cuda" if BACKEND == "gpu" else "cpu"
