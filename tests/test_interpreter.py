"""The interpreter of lesson 5: Triton's types and answers, refusals by name, faults, the record."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minipaged.interpreter import (
    BACKEND,
    MemoryFault,
    compile_for,
    interpreted,
    poisoned,
    program_order,
    recording,
    signature_of,
)
from minipaged.interpreter.kernel import tl_small as tl
from minipaged.interpreter.kernel import triton_small as triton
from minipaged.interpreter.memory import RUNNING

HERE = Path(__file__).parent
SCALE = tl.constexpr(3)
PLAIN = 3


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def row_sums(out_ptr, x_ptr, num_columns, stride, TILE: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([TILE], tl.float32)
    for first in range(0, num_columns, TILE):
        columns = first + tl.arange(0, TILE)
        x = tl.load(x_ptr + row * stride + columns, mask=columns < num_columns, other=0.0)
        total = plus(total, x.to(tl.float32))
    tl.store(out_ptr + row, tl.sum(total, axis=0))


@triton.jit
def many_operations(out_ptr, x_ptr, n, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A line an operation; each result goes into a row of its own."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    y = tl.load(x_ptr + columns)
    i = columns - 3
    place = out_ptr + columns
    tl.store(place, tl.sum(x, axis=0))
    tl.store(place + COLUMNS, tl.max(x, axis=0))
    tl.store(place + 2 * COLUMNS, tl.exp(y) + tl.exp2(y) * scale)
    tl.store(place + 3 * COLUMNS, tl.log(tl.maximum(y, 0.5)) - tl.log2(tl.abs(y) + 1))
    tl.store(place + 4 * COLUMNS, i // 2 + i % 2 * 10 + (i >> 1) + (i & 5) + (i | 1) - (i ^ 3))
    tl.store(place + 5 * COLUMNS, tl.where((y > 0) & (i != 2) | (i == 0), y / 3, i * 0.5))
    tl.store(place + 6 * COLUMNS, tl.minimum(y, n) + tl.cdiv(n, 3) + tl.num_programs(0))
    product = tl.dot(x, tl.trans(x), input_precision="ieee")
    product = tl.dot(x, x.T, product * 2, input_precision="ieee")
    tl.store(out_ptr + 7 * COLUMNS + rows, tl.sum(product, axis=1))
    total = tl.full([COLUMNS], 1.0, tl.float32)
    for _ in tl.range(0, n, 2):
        total = total * 0.5 + y
    for k in tl.static_range(3):
        total += k
    if n > 5:
        total = -total
    tl.store(place + 8 * COLUMNS, total + SCALE, mask=columns < n)
    tl.store(place + 9 * COLUMNS, (y.to(tl.float16) * 3 + 1).to(tl.float32))


def run_many_operations(jit=None) -> torch.Tensor:
    """Their results; test_triton_kernels.py compares them with Triton's own interpreter's."""
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    out = torch.zeros(10, 16)
    kernel = many_operations if jit is None else jit(many_operations.fn)
    kernel[(1,)](out, x, 9, 0.25, ROWS=16, COLUMNS=16)
    return out


# --- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_an_ordinary_kernel_runs_with_loops_masks_and_calls(dtype):
    x = (torch.randn(5, 40) * 9).to(dtype)[:, :37]
    out = torch.empty(5)
    row_sums[(5,)](out, x, 37, x.stride(0), TILE=16, num_warps=4)
    torch.testing.assert_close(out, x.float().sum(1))
    row_sums[lambda meta: (meta["TILE"] // 4,)](out[:4], x, 37, 40, 16)


def test_operations_mean_what_they_mean_in_torch():
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    out, y, i = run_many_operations(), x[0], torch.arange(16) - 3
    due = [
        x.sum(0), x.amax(0), y.exp() + torch.exp2(y) * 0.25,
        y.clamp(min=0.5).log() - (y.abs() + 1).log2(),
        i.div(2, rounding_mode="trunc") + i.fmod(2) * 10 + (i >> 1) + (i & 5) + (i | 1) - (i ^ 3),
        torch.where(((y > 0) & (i != 2)) | (i == 0), y / 3, i * 0.5),
        y.clamp(max=9) + 4, 3 * (x @ x.T).sum(1),
    ]  # fmt: skip
    for row, expected in zip(out, due, strict=False):
        torch.testing.assert_close(row, expected.float(), rtol=1e-5, atol=1e-4)
    total = torch.ones(16)
    for _ in range(5):
        total = total * 0.5 + y
    torch.testing.assert_close(out[8], torch.where(i + 3 < 9, 3 - (total + 3), 0))
    assert torch.equal(out[9], (y.half() * 3 + 1).float())


@triton.jit
def in_bfloat16(out_ptr, x_ptr, y_ptr, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    cells = rows * N + columns
    x, y = tl.load(x_ptr + cells), tl.load(y_ptr + cells)
    tl.store(out_ptr + cells, tl.dot(x, y))
    tl.store(out_ptr + N * N + cells, x + y)
    tl.store(out_ptr + 2 * N * N + cells, x * y)
    tl.store(out_ptr + 3 * N * N + cells, tl.maximum(x, y))
    tl.store(out_ptr + 4 * N * N + cells, x / y)
    tl.store(out_ptr + 5 * N * N + tl.arange(0, N), tl.sum(x.to(tl.float32), axis=1))


def test_bfloat16_is_right():
    x, y = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.zeros(6, 16, 16, dtype=torch.bfloat16)
    in_bfloat16[(1,)](out, x, y, N=16)
    a, b = x.float(), y.float()
    for saw, due in zip(out, [a @ b, a + b, a * b, torch.maximum(a, b), a / b], strict=False):
        assert torch.equal(saw, due.bfloat16())
    torch.testing.assert_close(out[5, 0].float(), a.sum(1), rtol=1e-2, atol=1e-2)


@triton.jit
def dot_both_ways(out_ptr, x_ptr, N: tl.constexpr):
    cells = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + cells)
    tl.store(out_ptr + cells, tl.dot(x, x))
    tl.store(out_ptr + N * N + cells, tl.dot(x, x, input_precision="ieee"))


def test_float32_products_are_tf32_unless_ieee_is_asked_for():
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    out = torch.zeros(2, 16, 16)
    dot_both_ways[(1,)](out, x, N=16)
    due = x.double() @ x.double()
    errors = [float((saw - due).abs().max()) for saw in out]
    assert 1e-4 < errors[0] < 2e-2 and errors[1] < 1e-5


@triton.jit
def multiply_ids(out_ptr, ids_ptr, stride, WIDE: tl.constexpr):
    block_id = tl.load(ids_ptr + tl.program_id(0))
    if WIDE:
        block_id = block_id.to(tl.int64)
    tl.store(out_ptr + tl.program_id(0), block_id * stride)


def test_int32_offsets_overflow_as_on_a_gpu():
    out, ids = torch.zeros(1, dtype=torch.int64), torch.tensor([70_000], dtype=torch.int32)
    multiply_ids[(1,)](out, ids, 2**16, WIDE=False)
    assert out.item() == 70_000 * 2**16 - 2**32
    multiply_ids[(1,)](out, ids, 2**16, WIDE=True)
    assert out.item() == 70_000 * 2**16


@triton.jit
def largest(out_ptr, x_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.max(tl.load(x_ptr + tl.arange(0, N)), axis=0))


def test_max_passes_over_nan_as_a_gpu_does():
    out = torch.zeros(1)
    largest[(1,)](out, torch.tensor([1.0, torch.nan, 3.0, float("-inf")]), N=4)
    assert out.item() == 3
    largest[(1,)](out, torch.full((4,), torch.nan), N=4)
    assert out.isnan()


# --- refusals ----------------------------------------------------------------------------------


@triton.jit
def use_atomic(x_ptr):
    tl.atomic_add(x_ptr, 1.0)


@triton.jit
def use_method(x_ptr):
    tl.load(x_ptr).item()


@triton.jit
def use_torch(x_ptr):
    torch.sum(x_ptr)


@triton.jit
def use_builtin(x_ptr):
    sum(x_ptr)


@triton.jit
def use_global(x_ptr):
    tl.store(x_ptr, PLAIN)


@triton.jit
def use_three(x_ptr):
    tl.arange(0, 3)


@triton.jit
def use_runtime_shape(x_ptr):
    tl.arange(0, tl.num_programs(0))


@triton.jit
def use_no_other(x_ptr):
    tl.load(x_ptr + tl.arange(0, 4), mask=tl.arange(0, 4) < 3)


@triton.jit
def use_positional_mask(x_ptr):
    tl.load(x_ptr + tl.arange(0, 4), tl.arange(0, 4) < 3, 0.0)


@triton.jit
def use_index(x_ptr):
    tl.load(x_ptr + tl.arange(0, 4))[0]


@triton.jit
def use_truth(x_ptr):
    if tl.arange(0, 4) < 3:
        pass


@triton.jit
def use_bare_shape(x_ptr):
    tl.zeros(8, tl.float32)


@triton.jit
def use_bare_full(x_ptr):
    tl.full(8, 0.0, tl.float32)


@triton.jit
def use_low_exp(x_ptr):
    tl.exp(tl.load(x_ptr).to(tl.float16))


@triton.jit
def use_float_offset(x_ptr):
    tl.load(x_ptr + 1.0)


@triton.jit
def use_hint(x_ptr):
    tl.load(x_ptr, padding_option="zero")


@pytest.mark.parametrize(
    ("kernel", "error", "says"),
    [
        (use_atomic, AttributeError, "tl.atomic_add is not in the subset"),
        (use_method, AttributeError, "'.item' of a tile"),
        (use_torch, TypeError, "module torch"),
        (use_builtin, TypeError, r"Python's sum\(\)"),
        (use_global, NameError, "global PLAIN"),
        (use_three, ValueError, "powers of 2, not 3"),
        (use_runtime_shape, TypeError, "constexpr"),
        (use_bare_shape, TypeError, "shape is a list, .* not 8"),
        (use_bare_full, TypeError, "shape is a list, .* not 8"),
        (use_no_other, TypeError, "needs other="),
        (use_positional_mask, TypeError, "by name"),
        (use_index, TypeError, "':' and None only"),
        (use_truth, TypeError, "neither true nor false"),
        (use_low_exp, TypeError, "tl.exp takes float32"),
        (use_float_offset, TypeError, "moves by integers"),
        (use_hint, TypeError, "padding_option= of tl.load"),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_what_lies_outside_the_subset_is_refused_by_name(kernel, error, says):
    with pytest.raises(error, match=says) as raised:
        kernel[(1,)](torch.zeros(8))
    if kernel not in (use_torch, use_global):  # refused before any program runs
        assert "program (0, 0, 0)" in raised.value.__notes__[0]


def test_launches_are_checked():
    x, out = torch.zeros(4, 8), torch.zeros(4)
    with pytest.raises(TypeError, match="row_sums: missing a required argument: 'TILE'"):
        row_sums[(4,)](out, x, 8, 8)
    with pytest.raises(ValueError, match="at least one program"):
        row_sums[(0,)](out, x, 8, 8, TILE=8)
    with pytest.raises(TypeError, match="list"):
        row_sums[(4,)](out, [1.0], 8, 8, TILE=8)
    with pytest.raises(TypeError, match=r"complex64 .x_ptr."):
        row_sums[(4,)](out, x.to(torch.complex64), 8, 8, TILE=8)
    with pytest.raises(RuntimeError, match="launch it with plus"):
        plus(1, 2)
    with pytest.raises(RuntimeError, match="inside a kernel"):
        tl.program_id(0)
    with pytest.raises(AttributeError, match=r"triton.autotune"):
        _ = triton.autotune
    assert not hasattr(tl, "atomic_add")


def test_a_kernel_left_to_the_learner_is_not_done_yet():
    @triton.jit
    def stub(x_ptr):
        """To be written."""
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        stub[(1,)](torch.zeros(1))


# --- faults ------------------------------------------------------------------------------------


@triton.jit
def copy_at(out_ptr, x_ptr, start, N: tl.constexpr):
    idx = start + tl.arange(0, N)
    x = tl.load(x_ptr + idx)
    tl.store(out_ptr + tl.arange(0, N) + tl.program_id(0) * N, x)


def test_reads_and_writes_out_of_range_name_program_tensor_offset_and_line():
    x, out = torch.zeros(2, 8), torch.zeros(8)
    for start, wrong in ((9, 16), (-1, -1), (2**30, 2**30)):
        with pytest.raises(MemoryFault) as raised:
            copy_at[(1,)](out, x, start, N=8)
        said = str(raised.value)
        assert said.startswith("copy_at, program (0, 0, 0), loads x_ptr out of range")
        assert f"offset {wrong} " in said and "[2, 8]" in said
        assert "test_interpreter.py:" in said and "x = tl.load(x_ptr + idx)" in said
    with pytest.raises(IndexError, match=r"program \(1, 0, 0\), stores to out_ptr"):
        copy_at[(2,)](out, x, 0, N=8)
    assert not RUNNING


def test_what_lies_between_the_rows_of_a_view_is_out_of_range():
    memory = torch.arange(32.0).reshape(4, 8)
    out = torch.zeros(4)
    copy_at[(1,)](out, memory[:, 4:], 0, N=4)
    assert out.tolist() == [4, 5, 6, 7]
    with pytest.raises(MemoryFault, match="offset 4 "):
        copy_at[(1,)](out, memory[:, 4:], 1, N=4)
    copy_at[(1,)](out, memory.T, 1, N=4)  # all of it belongs to the transposed view
    assert out.tolist() == [1, 2, 3, 4]


def test_poisoned_reads_name_the_index_through_any_view():
    memory = torch.zeros(4, 8)
    where = torch.zeros(4, 8, dtype=torch.bool)
    where[1, 2] = True
    out = torch.zeros(8)
    with poisoned(memory, where):
        copy_at[(1,)](out, memory, 2, N=8)
        with pytest.raises(MemoryFault, match=r"loads x_ptr\[1, 2\], which is poisoned"):
            copy_at[(1,)](out, memory, 3, N=8)
        with pytest.raises(MemoryFault, match=r"loads x_ptr\[0, 2\], which is poisoned"):
            copy_at[(1,)](out, memory[1:], 0, N=4)
        with pytest.raises(MemoryFault, match="stores to out_ptr"):
            copy_at[(1,)](memory, torch.zeros(16), 0, N=16)
        with poisoned(memory, ~where), pytest.raises(MemoryFault):
            copy_at[(1,)](out, memory, 0, N=2)
    copy_at[(1,)](out, memory, 3, N=8)


# --- the record --------------------------------------------------------------------------------


def test_the_record_says_what_each_program_touched():
    x, out = torch.rand(3, 20).T, torch.empty(3)
    with recording() as record:
        row_sums[(3,)](out, x.T, 10, 20, TILE=8)
    assert record.num_programs == 3
    loads = record.of("x_ptr")
    assert [(seen.program[0], seen.num_bytes) for seen in loads] == [
        (row, size) for row in range(3) for size in (32, 8)
    ]
    assert loads[3].indices.tolist() == [[1, 8], [1, 9]]
    assert record.num_bytes("x_ptr") == 3 * 10 * 4 == record.num_bytes(kind="load")
    assert record.indices("out_ptr", "store").tolist() == [[0], [1], [2]]
    source = Path(__file__).read_text().splitlines()
    assert {source[seen.line - 1].strip()[:11] for seen in loads} == {"x = tl.load"}
    row_sums[(3,)](out, x.T, 10, 20, TILE=8)
    assert record.num_programs == 3


@triton.jit
def append(out_ptr, count_ptr):
    place = tl.load(count_ptr)
    tl.store(out_ptr + place, tl.program_id(0) + 10 * tl.program_id(1))
    tl.store(count_ptr, place + 1)


def test_programs_run_in_order_or_in_another():
    def order() -> list[int]:
        out, count = torch.zeros(6, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        append[(3, 2)](out, count)
        return out.tolist()

    assert order() == [0, 1, 2, 10, 11, 12]
    with program_order(seed=1):
        shuffled = order()
    assert shuffled != order() and sorted(shuffled) == order()


# --- which triton, and the compiler ------------------------------------------------------------


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True,
        env=os.environ | environment, cwd=HERE.parent, check=False,
    )  # fmt: skip


@pytest.mark.skipif(BACKEND == "gpu", reason="here it imports Triton")
def test_without_a_gpu_the_package_imports_no_triton():
    told = run(
        "import sys, minipaged.triton_kernels, minipaged.interpreter as i\n"
        "print(i.BACKEND, 'triton' in sys.modules)", TRITON_INTERPRET="0",
    )  # fmt: skip
    assert told.stdout.split() == ["interpreter", "False"], told.stderr


def test_asking_for_tritons_interpreter_too_late_is_an_error_that_says_so():
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    told = run(
        "import os, triton\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "import minipaged.interpreter", TRITON_INTERPRET="0",
    )  # fmt: skip
    assert "set it before Python starts" in told.stderr


@triton.jit
def share_of_a_sum(out_ptr, n):
    total = 0.0
    for _ in range(n):
        total += 2.0
    tl.store(out_ptr, tl.where(total > 0, 1 / tl.maximum(total, 1.0), -1.0))


def test_a_condition_may_be_about_a_sum_whose_loop_never_ran():
    out = torch.zeros(1)
    for n, due in ((2, 0.25), (0, -1.0)):
        share_of_a_sum[(1,)](out, n)
        assert out.item() == due


@triton.jit
def changes_type(out_ptr, n):
    total = 0
    for _ in range(n):
        total = total + 0.5
    tl.store(out_ptr, total)


def test_what_only_the_interpreter_lets_pass_the_compiler_rejects():
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    out = torch.zeros(1)
    changes_type[(1,)](out, 4)
    assert out.item() == 2
    with pytest.raises(Exception, match="total"):
        compile_for(changes_type, {"out_ptr": "*fp32", "n": "i32"}, {}, "sm_80")


def test_the_same_object_compiles_for_gpus_that_are_not_there():
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    arguments = (torch.zeros(5), torch.zeros(5, 48)[:, :32], 32, 48)
    signature, constexprs = signature_of(row_sums, *arguments, TILE=16, num_warps=4)
    assert signature == {"out_ptr": "*fp32:16", "x_ptr": "*fp32:16", "num_columns": "i32:16",
                         "stride": "i32:16"}  # fmt: skip
    assert constexprs == {"TILE": 16}
    for target in ("sm_80", "sm_90", "gfx942"):
        made = compile_for(row_sums, signature, constexprs, target)
        assert (made.kernel, made.target) == ("row_sums", target)
        assert made.registers > 0 and made.spills == 0 and made.num_ld_global > 0
        assert f"{made.registers} registers" in repr(made)
    row_sums[(5,)](*arguments, TILE=16)  # and still runs here
    with pytest.raises(ValueError, match="sm_50"):
        compile_for(row_sums, signature, constexprs, "sm_50")
    with pytest.raises(ValueError, match=r"\['TILE'\] have neither .* \['nonsense'\] are not"):
        compile_for(row_sums, signature | {"nonsense": "i32"}, {}, "sm_80")
    assert interpreted(row_sums) is row_sums


def test_a_signature_follows_tritons_rules_for_integers():
    signature, constexprs = signature_of(row_sums, torch.zeros(5), torch.zeros(9)[1:], 1, 2**31, 16)
    assert signature == {"out_ptr": "*fp32:16", "x_ptr": "*fp32", "stride": "i64:16"}
    assert constexprs == {"num_columns": 1, "TILE": 16}


def test_triton_compiles_nothing_where_its_interpreter_is_asked_for(monkeypatch):
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        compile_for(changes_type, {"out_ptr": "*fp32", "n": "i32"}, {}, "sm_80")
