"""Where the kernels run: on a GPU, or, without one, in a small interpreter in PyTorch.

    from minipaged.interpreter import triton, tl

gives Triton's own `triton` and `triton.language` where there is a GPU, and where TRITON_INTERPRET=1
asks for Triton's own interpreter. Everywhere else, macOS included, `tl` is the part of
triton.language that the course uses, in PyTorch: the programs of a grid run one after the other,
each operation on whole tiles, with Triton's types (an int32 offset overflows here as it does
there). What Triton leaves undefined is an error that says where: a read out of range, a masked read
without `other`. `recording` tells afterwards what each program touched, `poisoned` forbids some of
memory, `compile_for` compiles a kernel for a GPU that need not be there.

Given, and not part of any exercise. Leaves out atomics, scans, tensor descriptors, autotuning and
every operation that no kernel of the course needs; each is refused by name.
"""

from .compiling import Compiled, compile_for, signature_of
from .kernel import BACKEND, DEVICE, Kernel, interpreted, program_order, tl, triton
from .memory import RECORDS, Access, MemoryFault, Record, poisoned, recording

__all__ = [
    "BACKEND",
    "DEVICE",
    "RECORDS",
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
