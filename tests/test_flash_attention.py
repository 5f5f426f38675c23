"""Lesson 6: tiled attention against a float64 oracle, what it reads, how it compiles, CSR tables."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipaged.attention import attention
from minipaged.course.kit.catalogue import ROOT
from minipaged.course.lessons.lesson_06.demos import FourWays, counting
from minipaged.flash_attention import (
    absorb_tile,
    flash_attention,
    flash_attention_triton,
    hbm_traffic,
    key_tiles,
    to_kv_indptr,
)
from minipaged.given import flash_kernel
from minipaged.interpreter import (
    BACKEND,
    DEVICE,
    compile_for,
    poisoned,
    program_order,
    recording,
    signature_of,
)
from tests.kernel_cases import make_batch

recorded = pytest.mark.skipif(BACKEND != "interpreter", reason="the course's interpreter records")
FORMS = {
    "torch": lambda *args, **kw: flash_attention(*args, query_tile=16, key_tile=16, **kw),
    "kernel": lambda *args, **kw: flash_attention_triton(*args, query_tile=16, key_tile=16, **kw),
}
forms = pytest.mark.parametrize("form", FORMS)


def inputs(query_len, seq_len, group_size=1, head_dim=32, dtype=torch.float32, num_kv_heads=2):
    """q, k and v of a sequence, on the device where kernels run."""
    generator = torch.Generator().manual_seed(query_len * 1000 + seq_len)
    q = torch.randn(query_len, num_kv_heads * group_size, head_dim, generator=generator)
    k, v = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator)
    return [x.to(dtype).to(DEVICE) for x in (q, k, v)]


def visible(query_len, seq_len, causal=True, window=None):
    """Which keys each query may see, said the slow way."""
    mask = torch.zeros(query_len, seq_len, dtype=torch.bool)
    for query_idx in range(query_len):
        position = seq_len - query_len + query_idx
        for key_idx in range(seq_len):
            is_past = key_idx <= position and (window is None or key_idx > position - window)
            mask[query_idx, key_idx] = is_past or not causal
    return mask


def exact(q, k, v, scale=None, causal=True, window=None, dtype=torch.float64):
    """out and lse in float64, all scores at once."""
    group_size = q.shape[1] // k.shape[1]
    q, k, v = (x.cpu().to(dtype).transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(group_size, 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = visible(q.shape[1], k.shape[1], causal, window)
    scores = scores.masked_fill(~allowed, float("-inf"))
    out = scores.softmax(-1).nan_to_num(0) @ v if k.shape[1] else torch.zeros_like(q)
    return out.transpose(0, 1), scores.logsumexp(-1).transpose(0, 1)


def assert_right(form, q, k, v, scale=None, **kwargs):
    out, lse = FORMS[form](q, k, v, softmax_scale=scale, return_lse=True, **kwargs)
    due, due_lse = exact(q, k, v, scale, **kwargs)
    assert out.dtype == q.dtype and lse.dtype == torch.float32 and out.shape == q.shape
    assert out.isfinite().all()
    own = exact(q, k, v, scale, dtype=q.dtype, **kwargs)[0].double()
    slack = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[q.dtype]
    bound = 2 * float((own - due).abs().max()) + slack if out.numel() else 0
    assert (out.cpu().double() - due).abs().max() <= bound if out.numel() else True
    loose = 1e-5 if q.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(lse.cpu().double(), due_lse, atol=loose, rtol=loose)


# --- right -------------------------------------------------------------------------------------


@forms
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("query_len", "seq_len"), [(1, 1), (1, 40), (2, 5), (15, 15), (16, 16), (17, 33), (40, 50)]
)
def test_it_is_attention_at_any_length(form, query_len, seq_len, causal):
    assert_right(form, *inputs(query_len, seq_len, 3), causal=causal)


@forms
@pytest.mark.parametrize("group_size", [1, 3, 4, 7])
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_it_serves_any_group_and_head_dim(form, group_size, head_dim):
    assert_right(form, *inputs(9, 20, group_size, head_dim))


@forms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_half_precision_is_as_good_as_pytorchs(form, dtype, causal):
    assert_right(form, *inputs(20, 37, 3, 64, dtype), causal=causal)


@forms
@pytest.mark.parametrize("window", [1, 4, 17, 99])
@pytest.mark.parametrize(("query_len", "seq_len"), [(10, 10), (1, 40), (40, 40)])
def test_a_window_holds_exactly_its_newest_tokens(form, window, query_len, seq_len):
    assert_right(form, *inputs(query_len, seq_len), window=window)


@forms
def test_a_key_outside_a_window_never_counts_and_one_at_its_edge_does(form):
    q, k, _ = inputs(40, 40, head_dim=64)
    v = torch.eye(40, 64, device=DEVICE)[:, None].expand(40, 2, 64)  # key t's value is e_t
    out = FORMS[form](q, k, v, window=4)
    assert torch.equal((out[:, 0, :40] > 0).cpu(), visible(40, 40, window=4))


@forms
def test_the_mask_is_aligned_to_the_last_query(form):
    q, k, v = inputs(40, 40)
    whole = FORMS[form](q, k, v)
    chunks = [FORMS[form](q[:13], k[:13], v[:13]), FORMS[form](q[13:30], k[:30], v[:30])]
    chunks += [FORMS[form](q[30:], k, v)]
    torch.testing.assert_close(torch.cat(chunks), whole)


@forms
def test_scale_large_scores_and_no_keys(form):
    q, k, v = inputs(5, 9)
    assert_right(form, q, k, v, scale=0.7)
    q, k, v = inputs(3, 9, head_dim=128, dtype=torch.float16)
    assert FORMS[form](q.fill_(40), k.fill_(40), v).isfinite().all()  # 204,800 is no float16
    q, k, v = inputs(2, 0)
    out, lse = FORMS[form](q, k, v, causal=False, return_lse=True)
    assert (out == 0).all() and (lse == float("-inf")).all()
    q, k, v = inputs(0, 4)
    assert FORMS[form](q, k, v).shape == (0, 2, 32)


@forms
def test_it_takes_views_of_any_strides(form):
    q, k, v = inputs(7, 20, 3, 24)
    packed = torch.full((20, 10, 30), torch.nan, device=DEVICE)
    packed[:7, :6, :24], packed[:, 6:8, :24], packed[:, 8:, :24] = q, k, v
    views = packed[:7, :6, :24], packed[:, 6:8, :24], packed[:, 8:, :24]
    torch.testing.assert_close(FORMS[form](*views), FORMS[form](q, k, v))
    turned = [x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in (q, k, v)]
    torch.testing.assert_close(FORMS[form](*turned), FORMS[form](q, k, v))


@forms
def test_what_does_not_fit_is_named(form):
    q, k, v = inputs(5, 4)
    with pytest.raises(ValueError, match="5 queries but only 4 keys"):
        FORMS[form](q, k, v)
    with pytest.raises(ValueError, match="got 0"):
        FORMS[form](q[:4], k, v, window=0)
    with pytest.raises(ValueError, match="multiple"):
        FORMS[form](torch.zeros(2, 3, 32), k, v)


@given(st.data())
def test_tiles_of_any_size_agree(data):
    seq_len = data.draw(st.integers(0, 30))
    query_len = data.draw(st.integers(0, seq_len))
    window = data.draw(st.none() | st.integers(1, 12))
    tiles = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    q, k, v = (x.cpu() for x in inputs(query_len, seq_len, 3, 8))
    out, lse = flash_attention(
        q, k, v, None, True, window, query_tile=tiles[0], key_tile=tiles[1], return_lse=True
    )
    due, due_lse = exact(q, k, v, window=window)
    torch.testing.assert_close(out.double(), due, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), due_lse, atol=1e-5, rtol=1e-5)


def test_a_tile_that_a_row_may_not_see_leaves_it_as_it_was():
    q, k, v = (x.cpu().transpose(0, 1) for x in inputs(3, 4))
    top = torch.full((2, 3), float("-inf"))
    nothing = torch.zeros(3, 4, dtype=torch.bool)
    state = absorb_tile(top, torch.zeros(2, 3), torch.zeros(2, 3, 32), q, k, v, nothing)
    assert torch.equal(state[0], top) and not state[1].any() and not state[2].any()
    seen = absorb_tile(*state, q, k, v, ~nothing)
    again = absorb_tile(*seen, q, k, v, nothing)
    for before, after in zip(seen, again, strict=True):
        assert torch.equal(before, after)


# --- through a block table -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tokens first", "heads first", "head major", "dims first"])
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_the_kernel_reads_through_a_block_table(block_size, layout):
    batch = make_batch([0, 45], block_size, 24, layout=layout).to(DEVICE)
    k, v = batch.keys[1].to(DEVICE), batch.values[1].to(DEVICE)
    q = inputs(20, 45, 3, 24)[0]
    out = flash_attention_triton(
        q, batch.k_cache, batch.v_cache, block_table=batch.block_tables[1], seq_len=45,
        query_tile=16, key_tile=16,
    )  # fmt: skip
    torch.testing.assert_close(out.cpu().double(), exact(q, k, v)[0], atol=1e-5, rtol=1e-5)


def test_a_block_outside_the_cache_is_named():
    batch = make_batch([10], 4, 24)
    q = torch.zeros(2, 6, 24)
    table = torch.tensor([0, 99, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="99"):
        flash_attention_triton(q, batch.k_cache, batch.v_cache, block_table=table, seq_len=10)
    with pytest.raises(ValueError, match="cannot have 2 queries"):
        flash_attention_triton(q, batch.k_cache, batch.v_cache, block_table=table, seq_len=1)


@recorded
def test_the_kernel_touches_the_tables_slots_once_a_tile_and_nothing_else():
    batch = make_batch([45], 4, 32, group_size=1, num_kv_heads=1)
    used = batch.k_cache.isfinite()
    with recording() as record, poisoned(batch.k_cache, ~used), poisoned(batch.v_cache, ~used):
        flash_attention_triton(
            inputs(16, 45, num_kv_heads=1)[0], batch.k_cache, batch.v_cache,
            block_table=batch.block_tables[0], seq_len=45, query_tile=16, key_tile=16,
        )  # fmt: skip
    for name in ("k_ptr", "v_ptr"):
        slots = record.indices(name)[:, :2]
        assert len(slots) == 45 * 32
        assert {tuple(slot) for slot in slots.tolist()} == {
            (int(block_id), offset)
            for idx, block_id in enumerate(batch.block_tables[0, :12])
            for offset in range(4)
            if 4 * idx + offset < 45
        }


@recorded
def test_programs_may_run_in_any_order():
    q, k, v = inputs(40, 40, 3)
    with program_order(3):
        shuffled = FORMS["kernel"](q, k, v)
    assert torch.equal(shuffled, FORMS["kernel"](q, k, v))


# --- bytes ---------------------------------------------------------------------------------------


def test_traffic_has_the_syllabus_numbers():
    assert hbm_traffic(1024, 1024, 64, 64, 64, causal=False, element_size=1) == (
        4_456_448,
        2_228_224,
    )
    standard, tiled = hbm_traffic(1, 4096, 64, 64, 64)
    assert 0.030 < 1 - tiled / standard < 0.031


@recorded
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("query_len", "seq_len"), [(64, 64), (1, 100), (33, 70), (20, 90)])
def test_the_kernel_moves_the_bytes_of_the_model(query_len, seq_len, dtype, causal):
    q, k, v = inputs(query_len, seq_len, 1, 48, dtype, num_kv_heads=1)
    with recording() as record:
        FORMS["kernel"](q, k, v, causal=causal)
    size = q.element_size()
    tiled = hbm_traffic(query_len, seq_len, 48, 16, 16, causal, size)[1]
    assert record.num_bytes() - record.num_bytes("lse_ptr") == tiled
    assert record.num_bytes("lse_ptr") == 4 * query_len


@given(st.data())
def test_key_tiles_are_exactly_those_that_hold_a_visible_key(data):
    seq_len = data.draw(st.integers(1, 40))
    query_len = data.draw(st.integers(1, seq_len))
    causal = data.draw(st.booleans())
    window = data.draw(st.none() | st.integers(1, 20)) if causal else None
    query_tile, key_tile = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    mask = visible(query_len, seq_len, causal, window)
    for idx in range(-(-query_len // query_tile)):
        keys = mask[idx * query_tile : (idx + 1) * query_tile].any(0).nonzero().flatten()
        due = int(keys[0]) // key_tile, int(keys[-1]) // key_tile
        assert key_tiles(idx, query_len, seq_len, query_tile, key_tile, causal, window) == due


def test_counting_sees_the_three_operations_of_standard_attention():
    q, k, v = torch.zeros(3, 128, 64)
    with counting() as counted:
        torch.softmax(q @ k.T, dim=-1) @ v
    assert [name for name, *_ in counted.operations] == ["mm", "softmax", "mm"]
    assert counted.num_bytes == hbm_traffic(128, 128, 64, 64, 64, element_size=4)[0]
    assert counted.peak_bytes == 2 * 128 * 128 * 4


@pytest.mark.parametrize("query_len", [None, 1])
def test_four_ways_agree_and_only_the_place_decides_what_is_reserved(query_len):
    ways = FourWays((20, 7), max_seq_len=64)
    moved = ways.table(query_len)
    assert len(moved) == 4 and min(moved.values()) > 0
    assert ways.reserved["paged"] < ways.reserved["contiguous"]
    flash = moved["flash", "contiguous"], moved["flash", "paged"]
    assert flash[0] < flash[1] < moved["naive", "paged"]
    assert moved["naive", "contiguous"] < moved["naive", "paged"]


# --- FlashInfer's form ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=0, max_size=6), st.integers(1, 9))
def test_to_kv_indptr_keeps_lengths_and_blocks(lens, block_size):
    batch = make_batch(lens, block_size, 8)
    indptr, indices, last_page_len = to_kv_indptr(batch.block_tables, batch.seq_lens, block_size)
    assert {x.dtype for x in (indptr, indices, last_page_len)} == {torch.int32}
    assert indptr[0] == 0 and indptr[-1] == len(indices) and len(indptr) == len(lens) + 1
    # as flashinfer.get_seq_lens does
    back = (indptr.diff() - 1).clamp(min=0) * block_size + last_page_len
    assert back.tolist() == lens
    for row, seq_len in enumerate(lens):
        num_blocks = -(-seq_len // block_size)
        due = batch.block_tables[row, :num_blocks].tolist()
        assert indices[indptr[row] : indptr[row + 1]].tolist() == due


# --- through the compiler, and elsewhere -----------------------------------------------------------


class Captured:
    """Stands for a kernel and keeps the arguments of its launch."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.args, self.options = args, options

        return launch


COMPILED = [
    (torch.bfloat16, 128, True, "sm_80"),
    (torch.bfloat16, 128, True, "sm_90"),
    (torch.bfloat16, 128, False, "sm_80"),
    (torch.float32, 128, True, "sm_80"),
    (torch.bfloat16, 256, True, "sm_80"),
    (torch.bfloat16, 128, True, "gfx942"),
]


@pytest.mark.skipif(BACKEND != "interpreter", reason="captures launches of the interpreter's")
@pytest.mark.parametrize(("dtype", "head_dim", "paged", "target"), COMPILED, ids=str)
def test_the_kernel_compiles_within_the_bars(monkeypatch, dtype, head_dim, paged, target):
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    kernel = flash_kernel.flash_forward
    found = Captured(kernel)
    monkeypatch.setattr(flash_kernel, "flash_forward", found)
    q = torch.zeros(200, 8, head_dim, dtype=dtype)
    if paged:
        cache = torch.zeros(32, 16, 2, head_dim, dtype=dtype)
        table = torch.arange(32, dtype=torch.int32)
        flash_attention_triton(q, cache, cache, block_table=table, seq_len=500)
    else:
        k = torch.zeros(500, 2, head_dim, dtype=dtype)
        flash_attention_triton(q, k, k, window=100)
    made = compile_for(
        kernel, *signature_of(kernel, *found.args, **found.options), target,
        num_warps=found.options["num_warps"], num_stages=found.options["num_stages"],
    )  # fmt: skip
    print(made)
    assert made.spills == 0
    if target.startswith("sm_"):
        assert 0 < made.registers <= 128
        assert made.num_cp_async > 0
    if dtype != torch.float32:
        assert made.num_mma > 0


WITH_TRITON = """
import os, torch
os.environ["TRITON_INTERPRET"] = "1"
from minipaged.flash_attention import flash_attention, flash_attention_triton
from minipaged.interpreter import BACKEND, recording
assert BACKEND == "triton interpreter"
for dtype, window in ((torch.float32, None), (torch.bfloat16, 9)):
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, h, 24).to(dtype) for n, h in ((18, 2), (40, 1), (40, 1)))
    out = flash_attention_triton(q, k, v, window=window, query_tile=16, key_tile=16)
    due = flash_attention(q, k, v, window=window)
    torch.testing.assert_close(out, due, atol=1e-5 if dtype == torch.float32 else 8e-3, rtol=1e-2)
    cache_k, cache_v = (x.view(10, 4, 1, 24) for x in (k, v))
    table = torch.arange(10, dtype=torch.int32)
    paged = flash_attention_triton(
        q, cache_k, cache_v, None, True, window, table, 40, query_tile=16, key_tile=16
    )
    torch.testing.assert_close(paged, out)
    with recording() as record:  # by the course's own interpreter, which alone keeps a record
        again = flash_attention_triton(q, k, v, window=window, query_tile=16, key_tile=16)
    torch.testing.assert_close(again, out, atol=8e-3, rtol=1e-2)
    assert record.num_programs == 4 and record.num_bytes("k_ptr") > 0
print("equal")
"""


@pytest.mark.skipif(BACKEND == "gpu", reason="there is a GPU")
def test_tritons_own_interpreter_gives_the_same():
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    done = subprocess.run(
        [sys.executable, "-c", WITH_TRITON], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_flash_agrees_with_pytorchs_own_kernel():
    q, k, v = (x.cpu() for x in inputs(33, 33, 3))
    own = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(flash_attention(q, k, v), own)
    torch.testing.assert_close(attention(q, k, v), own)
