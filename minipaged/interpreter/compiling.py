"""Lesson 5: compile a kernel for a GPU that need not be there, and read what came out.

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

TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
}  # fmt: skip
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}


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
        signature: Triton's type of each parameter that is no constexpr: "*bf16", "i32", "fp32",
            with ":16" behind it where value or address is a multiple of 16; see `signature_of`.
        constexprs: the values of the others.
        target: "sm_80", "sm_90" or "gfx942".
        num_warps, num_stages: as at a launch.

    Raises:
        ValueError: a target that is not known, or parameters that are neither here nor there.
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
            f"{function.__name__}: {missing} have neither type nor value, {unknown} are no parameters"
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
    counted = (
        (
            r"\b(?:global|buffer|flat)_load_",
            r"\bv_mfma_",
            r"\bglobal_load_lds|\bbuffer_load\w* .*\blds",
        )
        if is_amd
        else (
            r"\bld\.global",
            r"\b(?:wg)?mma\.(?:sync|mma_async)\.",
            r"\bcp\.async\.(?:c[ag]|bulk)\.",
        )
    )
    loads, products, copies = (len(re.findall(pattern, text)) for pattern in counted)
    shared = made.metadata.shared
    return Compiled(
        function.__name__, target, registers, spills, shared, loads, products, copies, text
    )


def signature_of(kernel: Any, *args: Any, **options: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The signature and constexprs with which a launch `kernel[grid](*args, **options)` compiles.

    An integer 1 becomes a constant, multiples of 16 are marked, as Triton does; a new combination
    of these is a new compilation.
    """
    fn = inspect.signature(kernel.fn)
    launch = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
    given = {name: value for name, value in options.items() if name not in launch}
    bound = fn.bind(*args, **given)
    bound.apply_defaults()
    signature, constexprs = {}, {}
    for name, value in bound.arguments.items():
        value = getattr(value, "value", value)
        is_constexpr = "constexpr" in str(fn.parameters[name].annotation)
        if is_constexpr or value is None or (type(value) is int and value == 1):
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


def real_kernel(kernel: Any, made: dict[int, Any]) -> Any:
    """Triton's own jit function of the same Python function, and of those that it calls."""
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if isinstance(kernel, JITFunction):
        return kernel
    fn = kernel.fn
    if id(fn) in made:
        return made[id(fn)]

    def translate(item: Any) -> Any:
        name = type(item).__name__
        if not type(item).__module__.startswith("minipaged."):
            return item
        if name == "Kernel":
            return real_kernel(item, made)
        if name == "constexpr":
            return tl.constexpr(item.value)
        if name == "DType":
            return getattr(tl, item.name)
        return {"Language": tl, "SmallTriton": triton}.get(name, item)

    scope: dict[str, Any] = dict(fn.__globals__)
    cells = tuple(CellType() for _ in fn.__closure__ or ())
    copy = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, cells or None)
    copy.__kwdefaults__, copy.__doc__ = fn.__kwdefaults__, fn.__doc__
    copy.__module__, copy.__qualname__ = fn.__module__, fn.__qualname__
    copy.__annotations__ = {
        name: "constexpr" if "constexpr" in str(item) else item
        for name, item in fn.__annotations__.items()
    }
    made[id(fn)] = jit = JITFunction(copy)
    used = set(fn.__code__.co_names)
    for name, item in fn.__globals__.items():
        if name in used or type(item).__name__ in ("Language", "SmallTriton"):
            scope[name] = translate(item)
    for new, old in zip(cells, fn.__closure__ or (), strict=True):
        new.cell_contents = translate(old.cell_contents)
    return jit


def nvidia_resources(ptx: str) -> tuple[int, int]:
    """Registers of a thread and bytes spilled, as ptxas tells them."""
    import triton

    arch = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert arch, "PTX names its target"
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        for ptxas in (tools / "ptxas", tools / "ptxas-blackwell"):  # the second reads newer PTX
            command = [
                str(ptxas),
                "-v",
                f"--gpu-name={arch[1]}",
                str(source),
                "-o",
                f"{folder}/out",
            ]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                break
        else:
            raise RuntimeError(f"ptxas failed: {run.stderr.strip()}")
    told = run.stderr
    registers = re.search(r"Used (\d+) registers", told)
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", told)]
    return int(registers[1]) if registers else 0, sum(spilled)


def amd_resources(text: str) -> tuple[int, int]:
    """Vector registers of a thread and bytes spilled, from the metadata behind the code."""
    registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
    spilled = re.search(r"\.vgpr_spill_count:\s*(\d+)", text)
    return int(registers[1]) if registers else 0, 4 * int(spilled[1]) if spilled else 0
