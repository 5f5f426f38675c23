"""Compile a kernel for a GPU that need not be there, and read what came out.

Triton's wheel brings the whole compiler, so a laptop can say how many registers a kernel takes on
an A100 (sm_80), an H100 or H200 (sm_90) or an MI300 (gfx942), and refuse what the interpreter let
pass. Leaves out running it: only a GPU tells how fast it is.
"""

import inspect
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import torch

from .kernel import OPTIONS, Kernel, SmallTriton
from .language import Language
from .values import DType, constexpr, is_constexpr

TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
}  # fmt: skip
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
# the instructions of `Compiled`: loads, products of matrices, copies into shared memory
PTX = (
    r"\bld\.global",
    r"\b(?:wg)?mma\.(?:sync|mma_async)\.",
    r"\bcp\.async\.(?:c[ag]|bulk)\.",
)
AMDGCN = (
    r"\b(?:global|buffer|flat)_load_",
    r"\bv_mfma_",
    r"\bglobal_load_lds|\bbuffer_load\w* .*\blds",
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of a kernel.

    Attributes:
        kernel, target: its name, and for which GPU.
        registers: a thread's.
        spills: bytes of registers put into memory for want of registers, stores and loads.
        shared_bytes: of a program's shared memory.
        num_ld_global, num_mma, num_cp_async: instructions that read global memory into registers,
            that multiply matrices, that copy global memory into shared memory meanwhile.
        text: PTX, or AMD's assembly.
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared_bytes: int
    num_ld_global: int
    num_mma: int
    num_cp_async: int
    text: str

    def __repr__(self) -> str:
        return (
            f"{self.kernel} for {self.target}: {self.registers} registers, {self.spills} bytes "
            f"spilled, {self.shared_bytes} bytes shared; {self.num_ld_global} ld.global, "
            f"{self.num_mma} mma, {self.num_cp_async} cp.async"
        )


def compile_for(
    kernel: Any,
    signature: dict[str, str],
    constexprs: dict[str, Any],
    target: str,
    num_warps: int = 4,
    num_stages: int = 2,
) -> Compiled:
    """Compile a jit function, the interpreter's or Triton's own, with no GPU at hand.

    Args:
        kernel: decorated with `triton.jit`.
        signature: Triton's type of each parameter that is not a constexpr: "*bf16", "i32", "fp32",
            followed by ":16" where value or address is a multiple of 16; see `signature_of`.
        constexprs: the values of the others.
        target: "sm_80", "sm_90" or "gfx942".
        num_warps, num_stages: as at a launch.

    Raises:
        ValueError: an unknown target, or parameters without type and value, or of another name.
        ModuleNotFoundError: Triton 3.3 or later is not installed (there is no wheel for macOS).
        RuntimeError: TRITON_INTERPRET=1 is set. Triton's own errors, where it rejects the kernel.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is none of {', '.join(TARGETS)}")
    if find_spec("triton") is None:
        raise ModuleNotFoundError("compiling needs Triton, which has wheels for Linux only")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("Triton compiles nothing where TRITON_INTERPRET=1 is set")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if tuple(int(n) for n in triton.__version__.split(".")[:2]) < (3, 3):
        raise ModuleNotFoundError(f"compiling needs Triton 3.3 or later, not {triton.__version__}")
    function = real_kernel(kernel, {})
    names = function.arg_names
    given = set(signature) | set(constexprs)
    if set(names) != given:
        missing, unknown = sorted(set(names) - given), sorted(given - set(names))
        raise ValueError(
            f"{function.__name__}: {missing} have neither type nor value, "
            f"{unknown} are not parameters"
        )
    types = {name: signature.get(name, "constexpr").split(":")[0] for name in names}
    types |= dict.fromkeys(constexprs, "constexpr")
    aligned = [idx for idx, name in enumerate(names) if signature.get(name, "").endswith(":16")]
    source = ASTSource(
        function,
        types,
        {(names.index(name),): value for name, value in constexprs.items()},
        {(idx,): [["tt.divisibility", 16]] for idx in aligned},
    )
    made = triton.compile(
        source,
        target=GPUTarget(*TARGETS[target]),
        options={"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True},
    )
    is_amd = target.startswith("gfx")
    text = made.asm["amdgcn" if is_amd else "ptx"]
    registers, spills = amd_resources(text) if is_amd else nvidia_resources(text)
    loads, products, copies = (
        len(re.findall(pattern, text)) for pattern in (AMDGCN if is_amd else PTX)
    )
    shared = made.metadata.shared
    return Compiled(
        function.__name__, target, registers, spills, shared, loads, products, copies, text
    )


def signature_of(kernel: Any, *args: Any, **options: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The signature and constexprs with which a launch `kernel[grid](*args, **options)` compiles.

    As in Triton, an integer 1 becomes a constant and multiples of 16 are marked; each combination
    of these is a compilation of its own.
    """
    fn = inspect.signature(kernel.fn)
    bound = fn.bind(*args, **{k: value for k, value in options.items() if k not in OPTIONS})
    bound.apply_defaults()
    signature, constexprs = {}, {}
    for name, value in bound.arguments.items():
        value = getattr(value, "value", value)
        is_one = type(value) is int and value == 1
        if is_constexpr(fn.parameters[name].annotation) or value is None or is_one:
            constexprs[name] = value
        elif isinstance(value, torch.Tensor):
            aligned = value.data_ptr() % 16 == 0
            signature[name] = f"*{TYPES[value.dtype]}{':16' if aligned else ''}"
        elif isinstance(value, bool):
            signature[name] = "i1"
        elif isinstance(value, int):
            width = "i32" if -(2**31) <= value < 2**31 else "i64"
            signature[name] = width + (":16" if value % 16 == 0 else "")
        else:
            signature[name] = "fp32"
    return signature, constexprs


def real_kernel(kernel: Any, made: dict[Any, Any]) -> Any:
    """Triton's own jit function of a Python function, and of those that it calls.

    Args:
        kernel: a jit function, the interpreter's or Triton's own, which is given back as it is.
        made: those made so far, by Python function; added to.
    """
    from triton.runtime.jit import JITFunction

    if isinstance(kernel, JITFunction):
        return kernel
    fn = kernel.fn
    if fn in made:
        return made[fn]
    scope: dict[str, Any] = dict(fn.__globals__)
    cells = tuple(CellType() for _ in fn.__closure__ or ())
    copy = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, cells or None)
    copy.__kwdefaults__, copy.__doc__ = fn.__kwdefaults__, fn.__doc__
    copy.__module__, copy.__qualname__ = fn.__module__, fn.__qualname__
    copy.__annotations__ = {
        name: "constexpr" if is_constexpr(item) else item
        for name, item in fn.__annotations__.items()
    }
    made[fn] = jit = JITFunction(copy)
    for name, item in fn.__globals__.items():
        # annotations name tl too, and the compiler reads them, but they are not among co_names
        if name in fn.__code__.co_names or isinstance(item, Language | SmallTriton):
            scope[name] = real_item(item, made)
    for new, old in zip(cells, fn.__closure__ or (), strict=True):
        new.cell_contents = real_item(old.cell_contents, made)
    return jit


def real_item(item: Any, made: dict[Any, Any]) -> Any:
    """Triton's own counterpart of something that a kernel of the interpreter uses."""
    import triton
    import triton.language as tl

    match item:
        case Kernel():
            return real_kernel(item, made)
        case constexpr():
            return tl.constexpr(item.value)
        case DType():
            return getattr(tl, item.name)
        case Language():
            return tl
        case SmallTriton():
            return triton
    return item


def nvidia_resources(ptx: str) -> tuple[int, int]:
    """Registers of a thread and bytes spilled, as ptxas reports them."""
    import triton

    arch = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert arch, "PTX names its target"
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        for ptxas in (tools / "ptxas", tools / "ptxas-blackwell"):  # the second reads newer PTX
            command = [
                str(ptxas), "-v", f"--gpu-name={arch[1]}", str(source), "-o", f"{folder}/out",
            ]  # fmt: skip
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                break
        else:
            raise RuntimeError(f"ptxas failed: {run.stderr.strip()}")
    registers = re.search(r"Used (\d+) registers", run.stderr)
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", run.stderr)]
    return int(registers[1]) if registers else 0, sum(spilled)


def amd_resources(text: str) -> tuple[int, int]:
    """Vector registers of a thread and bytes spilled, from the metadata that follows the code."""
    registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
    spilled = re.search(r"\.vgpr_spill_count:\s*(\d+)", text)
    return int(registers[1]) if registers else 0, 4 * int(spilled[1]) if spilled else 0
