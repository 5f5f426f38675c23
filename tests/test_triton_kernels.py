"""Lesson 5's kernels against a float64 oracle, in poisoned memory, and through the compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minipaged import triton_kernels
from minipaged.block_table import BlockPool
from minipaged.generation import generate
from minipaged.given.launches import (
    choose_num_splits,
    contiguous_decode,
    copy_by_kernel,
    merge_by_kernel,
    paged_decode_by_head,
)
from minipaged.given.model import Model, ModelConfig
from minipaged.interpreter import (
    BACKEND,
    DEVICE,
    compile_for,
    poisoned,
    program_order,
    recording,
    signature_of,
)
from minipaged.paged_cache import PagedKVCache, write_kv
from minipaged.triton_kernels import (
    decode_contiguous,
    decode_paged,
    kernel_attention,
    masked_copy,
    merge_splits,
    merge_two,
    paged_decode,
    store_kv,
)
from tests.kernel_cases import Batch, error_bound, make_batch, oracle, results
from tests.twins import (
    decode_contiguous_twin,
    decode_grouped_twin,
    decode_paged_twin,
    decode_split_twin,
    masked_copy_twin,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
recorded = pytest.mark.skipif(BACKEND != "interpreter", reason="the course's interpreter records")


def assert_right(batch: Batch, num_splits: int | None = None) -> None:
    out, lse = paged_decode(*batch.to(DEVICE).arguments, num_splits=num_splits, return_lse=True)
    due, due_lse = oracle(batch)
    assert out.dtype == batch.q.dtype and lse.dtype == torch.float32
    assert out.isfinite().all()
    assert (out.cpu().double() - due).abs().max() <= error_bound(batch)
    torch.testing.assert_close(lse.cpu().double(), due_lse, atol=2e-2, rtol=1e-2)
    if batch.q.dtype == torch.float32:
        torch.testing.assert_close(lse.cpu().double(), due_lse, atol=1e-5, rtol=1e-5)


# --- right -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_decode_is_right_at_any_block_size(block_size, dtype):
    lens = [0, 1, block_size, block_size + 1, max(block_size - 1, 0), 37]
    assert_right(make_batch(lens, block_size, dtype=dtype, seed=block_size), num_splits=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [32, 80, 96, 128, 256])
def test_decode_is_right_at_any_head_dim(head_dim, dtype):
    assert_right(make_batch([0, 5, 77], 16, head_dim, dtype=dtype, seed=head_dim))


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("group_size", [1, 3, 7, 16])
def test_decode_is_right_for_any_group(group_size, num_splits):
    assert_right(make_batch([70, 0, 9], 4, group_size=group_size, seed=group_size), num_splits)


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("layout", ["heads first", "head major", "dims first", "wider"])
def test_decode_takes_views_of_any_strides(layout, num_splits):
    batch = make_batch([33, 2, 0], 3, layout=layout, packed=True)
    assert not batch.k_cache.is_contiguous() and not batch.q.is_contiguous()
    assert_right(batch, num_splits)


def test_decode_takes_k_and_v_laid_out_apart_and_queries_in_another_dtype():
    batch = make_batch([33, 2, 0], 3)
    other = make_batch([33, 2, 0], 3, layout="head major")
    batch.v_cache = other.v_cache
    assert batch.k_cache.stride() != batch.v_cache.stride()
    assert_right(batch)
    half = make_batch([33, 2, 0], 3, dtype=torch.float16)
    half.q = half.q.float()
    assert_right(half)


@pytest.mark.parametrize("num_splits", [2, 3, 8, 64])
def test_splits_agree_with_one_piece_and_lse_is_natural(num_splits):
    batch = make_batch([0, 1, 33, 150], 16, dtype=torch.float32).to(DEVICE)
    whole, whole_lse = paged_decode(*batch.arguments, num_splits=1, return_lse=True)
    split, split_lse = paged_decode(*batch.arguments, num_splits=num_splits, return_lse=True)
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(split_lse, whole_lse)
    torch.testing.assert_close(split_lse.cpu().double(), oracle(batch)[1], atol=1e-5, rtol=1e-5)


def test_softmax_scale_and_large_scores_in_half_precision():
    batch = make_batch([20, 3], head_dim=128, dtype=torch.float16)
    out = paged_decode(*batch.to(DEVICE).arguments, softmax_scale=0.5)
    assert (out.cpu().double() - oracle(batch, scale=0.5)[0]).abs().max() < 5e-3
    batch = make_batch([20, 3], head_dim=128, dtype=torch.float16)
    batch.q.fill_(40)
    for table, seq_len in zip(batch.block_tables, [20, 3], strict=True):
        for block in table[: -(-seq_len // 16)]:
            batch.k_cache[block] = 40  # the dot product, 204800, is no float16
    out = paged_decode(*batch.to(DEVICE).arguments)
    assert out.isfinite().all()


def test_an_empty_batch_and_a_batch_of_empty_sequences():
    batch = make_batch([]).to(DEVICE)
    assert paged_decode(*batch.arguments).shape == (0, 6, 32)
    batch = make_batch([0, 0]).to(DEVICE)
    for num_splits in (None, 1, 4):
        out, lse = paged_decode(*batch.arguments, num_splits=num_splits, return_lse=True)
        assert (out == 0).all() and (lse == float("-inf")).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_step_agrees_with_its_twin(dtype):
    batch = make_batch([0, 3, 70], 4, 24, dtype=dtype)
    on_device = batch.to(DEVICE)
    bound = error_bound(batch)

    def close(kernel: torch.Tensor, twin: torch.Tensor) -> None:
        assert (kernel.cpu().double() - twin.cpu().double()).abs().max() <= bound

    close(
        paged_decode_by_head(decode_paged, *on_device.arguments, tile=16),
        decode_paged_twin(*batch.arguments),
    )
    grouped, lse = decode_grouped_twin(*batch.arguments)
    out, out_lse = paged_decode(*on_device.arguments, num_splits=1, return_lse=True)
    close(out, grouped)
    torch.testing.assert_close(out_lse.cpu(), lse, atol=1e-2, rtol=1e-2)
    close(paged_decode(*on_device.arguments, num_splits=2),
          merge_splits(*decode_split_twin(*batch.arguments, 2))[0])  # fmt: skip
    k = torch.full((3, 71, 2, 24), torch.nan, dtype=dtype)
    v = k.clone()
    for idx, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        k[idx, : len(keys)], v[idx, : len(values)] = keys, values
    contiguous = (batch.q, k, v, batch.seq_lens)
    by_kernel = contiguous_decode(decode_contiguous, *(x.to(DEVICE) for x in contiguous), tile=16)
    close(by_kernel, decode_contiguous_twin(*contiguous))
    close(by_kernel, oracle(batch)[0])


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100])
def test_masked_copy_copies_any_length(n):
    x = torch.rand(n, device=DEVICE)
    assert torch.equal(copy_by_kernel(masked_copy, x, tile=16), x)
    assert torch.equal(masked_copy_twin(x.cpu(), 16), x.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["tokens first", "heads first", "head major", "dims first"])
def test_store_writes_what_write_kv_writes(layout, dtype):
    batch = make_batch([9, 4], 3, 20, dtype=dtype, layout=layout)
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 5, 2, 20, generator=generator).to(dtype)
    slots = torch.tensor([4, -1, 0, 17, -1])
    due = [batch.k_cache.clone(), batch.v_cache.clone()]
    write_kv(*due, k, v, slots)
    moved = batch.to(DEVICE)
    store_kv(moved.k_cache, moved.v_cache, *(x.to(DEVICE) for x in (k, v, slots)))
    assert torch.equal(moved.k_cache.cpu().nan_to_num(7), due[0].nan_to_num(7))
    assert torch.equal(moved.v_cache.cpu().nan_to_num(7), due[1].nan_to_num(7))


def test_store_takes_caches_laid_out_apart_slices_and_no_tokens():
    k_cache = torch.zeros(4, 3, 2, 8, device=DEVICE)
    v_cache = torch.zeros(2, 4, 3, 8, device=DEVICE).permute(1, 2, 0, 3)
    kv = torch.rand(5, 3, 2, 8, device=DEVICE)
    slots = torch.tensor([1, 11, 6, -1, 0], device=DEVICE)
    store_kv(k_cache, v_cache, kv[:, 0], kv[:, 2], slots)
    due = [torch.zeros(4, 3, 2, 8), torch.zeros(4, 3, 2, 8)]
    write_kv(*due, kv[:, 0].cpu(), kv[:, 2].cpu(), slots.cpu())
    assert torch.equal(k_cache.cpu(), due[0]) and torch.equal(v_cache.cpu(), due[1])
    store_kv(k_cache, v_cache, kv[:0, 0], kv[:0, 2], slots[:0])


def test_merge_joins_any_number_of_pieces_empty_ones_too():
    generator = torch.Generator().manual_seed(3)
    outs = torch.randn(4, 2, 3, 5, generator=generator)
    lses = torch.randn(4, 2, 3, generator=generator) * 30
    lses[1] = float("-inf")
    lses[:, 1, 2] = float("-inf")
    outs = torch.where(lses[..., None] == float("-inf"), 0.0, outs)
    due = (torch.zeros(2, 3, 5), torch.full((2, 3), float("-inf")))
    for out, lse in zip(outs, lses, strict=True):
        due = merge_two(*due, out, lse)
    torch.testing.assert_close(merge_splits(outs, lses), due)
    assert merge_splits(outs, lses)[1][1, 2] == float("-inf")
    merged = merge_by_kernel(
        triton_kernels.merge_splits_kernel, outs.to(DEVICE), lses.to(DEVICE), torch.float32
    )
    torch.testing.assert_close(merged[0].cpu(), due[0])
    # the log of nothing: the kernel's -1e30 + log(0)
    torch.testing.assert_close(merged[1].cpu(), due[1])


def test_splits_fill_the_device_and_stop_there():
    assert choose_num_splits(1, 8, 32768, num_processors=132) * 8 >= 2 * 132 - 8
    for num_seqs in (64, 100, 1000):
        assert choose_num_splits(num_seqs, 8, 10**6, num_processors=132) == 1
    assert choose_num_splits(1, 1, 200, num_processors=132) == 1
    assert choose_num_splits(1, 1, 10**6, num_processors=132) == 64
    assert choose_num_splits(0, 8, 0, num_processors=132) == 1


def test_wrong_arguments_are_named():
    batch = make_batch([5, 6]).to(DEVICE)
    q, k_cache, v_cache, tables, lens = batch.arguments
    with pytest.raises(ValueError, match="5"):
        paged_decode(q[:, :5], *batch.arguments[1:])
    with pytest.raises(ValueError, match="num_splits"):
        paged_decode(*batch.arguments, num_splits=0)
    with pytest.raises(ValueError, match="31"):
        paged_decode(q[..., :31], *batch.arguments[1:])
    if DEVICE == "cpu":
        bad = tables.clone()
        bad[1, 0] = 99
        with pytest.raises(ValueError, match="99"):
            paged_decode(q, k_cache, v_cache, bad, lens)
        with pytest.raises(ValueError, match="seq_len 500"):
            paged_decode(q, k_cache, v_cache, tables, lens + 494)
        with pytest.raises(ValueError, match="slot 1000"):
            store_kv(k_cache, v_cache, q[:, :2], q[:, :2], torch.tensor([0, 1000]))
    with pytest.raises(ValueError, match="1, 2, 32"):
        store_kv(k_cache, v_cache, q[:, :2], q[:, :2], lens[:1])


def test_kernels_enter_the_cache_of_lesson_4():
    config = ModelConfig(num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8,
                         hidden_size=48, vocab_size=32, max_seq_len=64)  # fmt: skip
    by_kernel, plain = (
        PagedKVCache(config, 8, 4, device=DEVICE, **functions)
        for functions in ({"attention_fn": kernel_attention, "store_fn": store_kv}, {})
    )
    generator = torch.Generator().manual_seed(0)
    outs = []
    for cache in (by_kernel, plain):
        generator.manual_seed(0)
        sequence = cache.sequence(BlockPool(8))
        for n in (6, 1, 1):
            assert sequence.extend(n)
            q = torch.randn(n, 6, 8, generator=generator).to(DEVICE)
            k, v = torch.randn(2, n, 2, 8, generator=generator).to(DEVICE)
            outs.append(sequence.attend(1, q, k, v))
    for ours, due in zip(outs[:3], outs[3:], strict=True):
        torch.testing.assert_close(ours, due, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(BACKEND == "triton interpreter", reason="too slow there")
def test_the_model_generates_the_same_text_with_kernels():
    model = Model.load(device=DEVICE)
    prompt = "Once upon a time"
    texts = []
    for functions in ({}, {"attention_fn": kernel_attention, "store_fn": store_kv}):
        cache = PagedKVCache(model.config, 16, 4, device=DEVICE, **functions)
        sequence = cache.sequence(BlockPool(16))
        texts.append(generate(model, prompt, sequence, max_new_tokens=6))
    assert texts[0] == texts[1]


# --- what is touched ---------------------------------------------------------------------------


@recorded
@pytest.mark.parametrize("num_splits", [1, 3])
def test_every_slot_needed_is_read_once_and_no_other(num_splits):
    batch = make_batch([0, 5, 130], 4, 32, group_size=3, layout="heads first")
    with recording() as record:
        paged_decode(*batch.arguments, num_splits=num_splits)
    assert record.num_programs == 3 * 2 * num_splits
    due = {
        (int(row[token // 4]), token % 4, head, dim)
        for row, seq_len in zip(batch.block_tables, [0, 5, 130], strict=True)
        for token in range(seq_len)
        for head in range(2)
        for dim in range(32)
    }
    for name in ("k_cache_ptr", "v_cache_ptr"):
        read = [tuple(index) for index in record.indices(name).tolist()]
        assert len(read) == len(due) and set(read) == due
        assert record.num_bytes(name) == 135 * 2 * 32 * 4
    entries = {tuple(index) for index in record.indices("block_tables_ptr").tolist()}
    assert entries == {(1, 0), (1, 1)} | {(2, block) for block in range(33)}
    assert {seen.kind for seen in record.of("k_cache_ptr", "store")} == set()
    written = record.indices("out_ptr", "store").tolist()  # nothing but the result, each once
    assert len(written) == len({tuple(index) for index in written}) == num_splits * 3 * 6 * 32


@recorded
def test_one_program_a_group_reads_a_third_of_what_one_a_head_reads():
    batch = make_batch([40, 9], 4, 32, group_size=3)
    with recording() as by_head:
        paged_decode_by_head(decode_paged, *batch.arguments)
    with recording() as grouped:
        paged_decode(*batch.arguments, num_splits=1)
    assert by_head.num_bytes("k_cache_ptr") == 3 * grouped.num_bytes("k_cache_ptr")
    for record in (by_head, grouped):
        for seen in record.of("k_cache_ptr"):
            blocks = set(seen.indices[:, 0].tolist())
            row = batch.block_tables[seen.program[0]].tolist()
            assert blocks <= set(row[: -(-[40, 9][seen.program[0]] // 4)])


@recorded
def test_kernels_run_in_memory_where_all_else_is_poisoned():
    batch = make_batch([5, 0, 14], 4, 32)
    used = torch.zeros(batch.k_cache.shape[:2], dtype=torch.bool)
    padding = torch.ones_like(batch.block_tables, dtype=torch.bool)
    for idx, seq_len in enumerate([5, 0, 14]):
        for token in range(seq_len):
            used[batch.block_tables[idx, token // 4], token % 4] = True
            padding[idx, token // 4] = False
    free = ~used[:, :, None, None]
    with (
        poisoned(batch.k_cache, free),
        poisoned(batch.v_cache, free),
        poisoned(batch.block_tables, padding),
    ):
        assert_right(batch, num_splits=1)
        assert_right(batch, num_splits=2)
        paged_decode_by_head(decode_paged, *batch.arguments)
    slots = torch.tensor([2, -1])
    others = torch.ones(batch.k_cache.shape[0] * 4, dtype=torch.bool)
    others[2] = False
    others = others.reshape(-1, 4, 1, 1)
    k = torch.rand(2, 2, 32)
    with poisoned(batch.k_cache, others), poisoned(batch.v_cache, others):
        store_kv(batch.k_cache, batch.v_cache, k, k, slots)


@recorded
def test_results_do_not_depend_on_the_order_of_programs():
    batch = make_batch([40, 3, 0], 4)
    due = paged_decode(*batch.arguments, num_splits=2)
    for seed in range(3):
        with program_order(seed):
            assert torch.equal(paged_decode(*batch.arguments, num_splits=2), due)


@pytest.mark.parametrize("layout", ["blocks", "heads"])
def test_pools_of_more_than_2_to_the_31_elements(layout):
    """Only pages that are touched take memory: the last block, or the last head."""
    if layout == "blocks":
        num_blocks = 2**31 // (16 * 2 * 64) + 3
        pool = torch.empty(num_blocks, 16, 2, 64, dtype=torch.float16, device=DEVICE)
    else:  # one KV head starts at 3 * 2**30
        num_blocks = 2**30 // (16 * 64)
        pool = torch.empty(4, num_blocks, 16, 64, dtype=torch.float16, device=DEVICE)
        pool = pool.permute(1, 2, 0, 3)
    assert (num_blocks - 1) * pool.stride(0) + pool.stride(2) * (pool.shape[2] - 1) > 2**31
    num_heads = pool.shape[2]
    kv = torch.randn(7, num_heads, 64, generator=torch.Generator().manual_seed(0)).half()
    slots = (num_blocks - 1) * 16 + torch.arange(7, device=DEVICE)
    store_kv(pool, pool, kv.to(DEVICE), kv.to(DEVICE), slots)
    assert torch.equal(pool[-1, :7].cpu(), kv)
    q = torch.randn(1, num_heads * 2, 64, generator=torch.Generator().manual_seed(1)).half()
    table = torch.tensor([[num_blocks - 1]], dtype=torch.int32)
    lens = torch.tensor([7], dtype=torch.int32)
    batch = Batch(q, pool, pool, table, lens, [kv], [kv])
    arguments = (q.to(DEVICE), pool, pool, table.to(DEVICE), lens.to(DEVICE))
    due = oracle(batch)[0]
    for out in (
        paged_decode(*arguments, num_splits=1),
        paged_decode(*arguments, num_splits=2),
        paged_decode_by_head(decode_paged, *arguments),
    ):
        assert (out.cpu().double() - due).abs().max() < 2e-3


# --- Triton's own interpreter ------------------------------------------------------------------


@recorded
def test_kernels_give_the_same_in_tritons_own_interpreter(tmp_path):
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    environment = os.environ | {"TRITON_INTERPRET": "1", "MINIPAGED_MINE": "off"}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernel_cases", str(tmp_path / "theirs.pt")],
        check=True, env=environment, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    theirs, ours = torch.load(tmp_path / "theirs.pt"), results()
    assert theirs.keys() == ours.keys()
    for name, due in theirs.items():
        # it truncates where it stores bfloat16, and computes the low-precision products in float32
        tolerance = 2e-2 if "bfloat16" in name else 2e-3 if "float16" in name else 2e-6
        torch.testing.assert_close(ours[name], due, atol=tolerance, rtol=tolerance, msg=name)


# --- the compiler ------------------------------------------------------------------------------


class Captured:
    """Stands in for a kernel, and keeps what it was launched with."""

    def __init__(self, kernel):
        self.fn, self.kernel = kernel.fn, kernel
        self.args, self.options = (), {}

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.args, self.options = args, options

        return launch

    def compile_for(self, target):
        options = {
            name: self.options[name] for name in ("num_warps", "num_stages") if name in self.options
        }
        types = signature_of(self.kernel, *self.args, **self.options)
        return compile_for(self.kernel, *types, target, **options)


def captured(monkeypatch, kernel: str, dtype: torch.dtype, head_dim: int = 128) -> Captured:
    """A kernel with the arguments that the course launches it with, Llama's shape by default."""
    batch = make_batch([40, 20], 16, head_dim, group_size=4, dtype=dtype)
    found = Captured(getattr(triton_kernels, kernel))
    monkeypatch.setattr(triton_kernels, kernel, found)
    if kernel == "masked_copy":
        copy_by_kernel(found, batch.q)
    elif kernel == "store_kv_kernel":
        store_kv(batch.k_cache, batch.v_cache, batch.q[:, :2], batch.q[:, :2], batch.seq_lens)
    elif kernel == "decode_contiguous":
        kv = torch.empty(2, 40, 2, head_dim, dtype=dtype)
        contiguous_decode(found, batch.q, kv, kv, batch.seq_lens)
    elif kernel == "decode_paged":
        paged_decode_by_head(found, *batch.arguments)
    elif kernel == "merge_splits_kernel":
        outs = torch.zeros(32, *batch.q.shape)
        merge_by_kernel(found, outs, outs[..., 0].contiguous(), dtype)
    else:
        paged_decode(*batch.arguments, num_splits=1 if kernel == "decode_grouped" else 2)
    assert found.args
    return found


FIRST_STEPS = [
    "masked_copy", "store_kv_kernel", "decode_contiguous", "decode_paged", "merge_splits_kernel",
]  # fmt: skip
FINAL = ["decode_grouped", "decode_split"]
bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
COMPILED = [
    *((name, bf16, 128, target) for target in ("sm_80", "sm_90") for name in FIRST_STEPS + FINAL),
    *((name, bf16, 128, "gfx942") for name in ("store_kv_kernel", "decode_grouped")),
    ("decode_grouped", fp32, 128, "sm_80"),
    ("decode_split", fp16, 80, "sm_80"),
    ("decode_grouped", bf16, 256, "sm_90"),
]


@pytest.mark.skipif(BACKEND != "interpreter", reason="captures launches of the interpreter's")
@pytest.mark.parametrize(("kernel", "dtype", "head_dim", "target"), COMPILED, ids=str)
def test_kernels_compile_within_the_bars(monkeypatch, kernel, dtype, head_dim, target):
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    made = captured(monkeypatch, kernel, dtype, head_dim).compile_for(target)
    print(made)
    assert made.spills == 0
    assert made.num_ld_global > 0
    if target.startswith("sm_"):  # a gfx942 has four times as many
        assert 0 < made.registers <= 128
    if kernel in FINAL and dtype != fp32:
        assert made.num_mma > 0
        if target.startswith("sm_"):  # keys and values on their way while others are computed
            assert made.num_cp_async > 0
