"""Lesson 5: the kernels: storing into blocks, and decode attention through the block table.

Follows `paged_cache.py`, whose arguments and shapes they keep, so that they enter its cache as
`PagedKVCache(..., attention_fn=kernel_attention, store_fn=store_kv)`. Each kernel is a small step
from the one before:

    masked_copy         program ids, offsets, masks
    store_kv_kernel     new keys and values into their slots
    decode_contiguous   one program for each query head, keys in one piece, an online softmax
    decode_paged        the same through the block table
    decode_grouped      one program for the query heads of a KV head: keys are read once
    decode_split        a long sequence in pieces, for `merge_splits` to join

`paged_decode` is what others call. A tile (TILE tokens) is what a program handles at a time, a
block is what is allocated, and neither knows of the other. `given/kernel_parts.py` holds what
several kernels call, among it the loop of the last two, and `given/launches.py` launches them.
Leaves out prefill (lesson 6).
"""
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-untyped-def"

import torch

from .given.kernel_parts import attend_tiles, load_group, load_row, store_group, store_row
from .given.launches import grouped_decode, merge_by_kernel, plan_splits
from .given.validation import validate_batch, validate_shapes, validate_slots
from .interpreter import tl, triton
from .paged_cache import paged_attention

# --- a first kernel, and the store ---------------------------------------------------------------


@triton.jit
def masked_copy(out_ptr, x_ptr, num_elements, TILE: tl.constexpr):
    """Copy num_elements elements in a row; each program copies TILE of them, the last one fewer.

    Grid: (cdiv(num_elements, TILE),). Moves 2 * num_elements elements.
    """
    idx = tl.program_id(0) * TILE + tl.arange(0, TILE)
    is_inside = idx < num_elements
    tl.store(out_ptr + idx, tl.load(x_ptr + idx, mask=is_inside, other=0.0), mask=is_inside)


@triton.jit
def store_kv_kernel(
    k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, slot_mapping_ptr,
    cache_stride_block, cache_stride_token, cache_stride_head, cache_stride_dim,
    kv_stride_token, kv_stride_head,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    """Write one head of one new token into its slot; slot -1 writes nothing.

    Grid: (num_tokens, num_kv_heads). Reads and writes 2 * head_dim elements a program. k_cache and
    v_cache have the same strides, and so have k and v, whose dims are adjacent in memory.
    DIM_TILE is HEAD_DIM rounded up to a power of 2.
    """
    # 64 bits: a cache may have more than 2**31 elements, and 32-bit products would wrap round
    token_idx = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token_idx).to(tl.int64)
    if slot >= 0:
        dims = tl.arange(0, DIM_TILE)
        in_head = dims < HEAD_DIM
        source = token_idx * kv_stride_token + head * kv_stride_head + dims
        target = (slot // BLOCK_SIZE) * cache_stride_block + head * cache_stride_head
        target += (slot % BLOCK_SIZE) * cache_stride_token + dims * cache_stride_dim
        k = tl.load(k_ptr + source, mask=in_head, other=0.0)
        v = tl.load(v_ptr + source, mask=in_head, other=0.0)
        tl.store(k_cache_ptr + target, k, mask=in_head)
        tl.store(v_cache_ptr + target, v, mask=in_head)


def store_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """`write_kv` of lesson 4, by a kernel.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides.
        v_cache: like k_cache.
        k: [num_tokens, num_kv_heads, head_dim].
        v: like k.
        slot_mapping: int64 [num_tokens]; -1 writes nothing.

    Raises:
        ValueError: naming a slot outside the cache (on the CPU; a GPU would have to be waited for).

    >>> cache = torch.zeros(2, 4, 2, 1, 8)  # k and v: 4 blocks of 2 tokens
    >>> store_kv(*cache, torch.ones(2, 1, 8), torch.ones(2, 1, 8), torch.tensor([5, -1]))
    >>> cache[0, :, :, 0, 0].tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    if not k.shape == v.shape == (len(slot_mapping), num_kv_heads, head_dim):
        raise ValueError(
            f"k {list(k.shape)} and v {list(v.shape)} must be "
            f"{[len(slot_mapping), num_kv_heads, head_dim]}"
        )
    if k_cache.device.type == "cpu":
        validate_slots(slot_mapping, num_blocks * block_size)
    k, v = k.contiguous(), v.contiguous()
    pairs = [(k_cache, v_cache, k, v)]
    if k_cache.stride() != v_cache.stride():  # the kernel takes one set: a launch for each cache
        pairs = [(k_cache, k_cache, k, k), (v_cache, v_cache, v, v)]
    for pair in pairs if len(slot_mapping) else []:
        store_kv_kernel[(len(slot_mapping), num_kv_heads)](
            *pair, slot_mapping.contiguous(), *pair[0].stride(), k.stride(0), k.stride(1),
            BLOCK_SIZE=block_size, HEAD_DIM=head_dim, DIM_TILE=triton.next_power_of_2(head_dim),
            num_warps=1,
        )  # fmt: skip


# --- decode attention, one query head a program --------------------------------------------------


@triton.jit
def decode_contiguous(
    out_ptr, q_ptr, k_ptr, v_ptr, seq_lens_ptr, softmax_scale,
    q_stride_seq, q_stride_head, kv_stride_seq, kv_stride_token, kv_stride_head,
    GROUP_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend with one query head of one sequence, whose keys and values are in one piece.

    Grid: (num_seqs, num_query_heads). Reads 2 * seq_len * head_dim elements a program and writes
    head_dim. out is contiguous; k and v [num_seqs, max_seq_len, num_kv_heads, head_dim] have the
    same strides; a row's dims are adjacent in memory. Everything is computed in float32.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq_idx)
    dims = tl.arange(0, DIM_TILE)
    q = load_row(q_ptr + seq_idx * q_stride_seq + head * q_stride_head, HEAD_DIM, DIM_TILE)
    # the largest score so far, the sum of exp(score - top) and that of exp(score - top) * value;
    # from -inf, the first tile's shrink is exp(-inf) = 0
    top, total = float("-inf"), 0.0
    mixed = tl.zeros([DIM_TILE], tl.float32)
    for first in range(0, seq_len, TILE):
        tokens = first + tl.arange(0, TILE)
        is_token = tokens < seq_len
        rows = seq_idx * kv_stride_seq + tokens.to(tl.int64) * kv_stride_token
        cells = (rows + head // GROUP_SIZE * kv_stride_head)[:, None] + dims[None, :]
        is_cell = is_token[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + cells, mask=is_cell, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + cells, mask=is_cell, other=0.0).to(tl.float32)
        # -inf, not 0: exp turns it into a weight of 0, whereas a score of 0 counts like any other
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1) * softmax_scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        # exp(score - old) * exp(old - new) = exp(score - new): shrink moves what was summed to the
        # new maximum, without which exp would overflow
        shrink, weights = tl.exp(top - new_top), tl.exp(scores - new_top)
        total = total * shrink + tl.sum(weights, axis=0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    # where there are keys total is at least 1, the largest score's exp(0); without, 0 / 1e-30 is 0
    out_row = out_ptr + (seq_idx * tl.num_programs(1) + head) * HEAD_DIM
    store_row(out_row, mixed / tl.maximum(total, 1e-30), HEAD_DIM, DIM_TILE)


@triton.jit
def decode_paged(
    out_ptr, q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, seq_lens_ptr, softmax_scale,
    q_stride_seq, q_stride_head, table_stride_seq,
    cache_stride_block, cache_stride_token, cache_stride_head,
    BLOCK_SIZE: tl.constexpr, GROUP_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend with one query head of one sequence, whose keys and values are in blocks.

    As `decode_contiguous`, except that the block table says where a token's row is.
    k_cache and v_cache [num_blocks, block_size, num_kv_heads, head_dim] have the same strides.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq_idx)
    dims = tl.arange(0, DIM_TILE)
    q = load_row(q_ptr + seq_idx * q_stride_seq + head * q_stride_head, HEAD_DIM, DIM_TILE)
    top, total = float("-inf"), 0.0
    mixed = tl.zeros([DIM_TILE], tl.float32)
    for first in range(0, seq_len, TILE):
        tokens = first + tl.arange(0, TILE)
        is_token = tokens < seq_len
        # a tile may span several blocks, so every lane asks the table; where there is no token the
        # entry is padding, and must not be followed
        entries = block_tables_ptr + seq_idx * table_stride_seq + tokens // BLOCK_SIZE
        block_ids = tl.load(entries, mask=is_token, other=0).to(tl.int64)
        # 64 bits again: block_id * stride passes 2**31 in a large cache
        rows = block_ids * cache_stride_block + (tokens % BLOCK_SIZE) * cache_stride_token
        cells = (rows + head // GROUP_SIZE * cache_stride_head)[:, None] + dims[None, :]
        is_cell = is_token[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_cache_ptr + cells, mask=is_cell, other=0.0).to(tl.float32)
        v = tl.load(v_cache_ptr + cells, mask=is_cell, other=0.0).to(tl.float32)
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1) * softmax_scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        shrink, weights = tl.exp(top - new_top), tl.exp(scores - new_top)
        total = total * shrink + tl.sum(weights, axis=0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    out_row = out_ptr + (seq_idx * tl.num_programs(1) + head) * HEAD_DIM
    store_row(out_row, mixed / tl.maximum(total, 1e-30), HEAD_DIM, DIM_TILE)


# --- decode attention, the query heads of a KV head together -------------------------------------


@triton.jit
def decode_grouped(
    out_ptr, lse_ptr, q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, seq_lens_ptr,
    softmax_scale, q_stride_seq, q_stride_head, table_stride_seq,
    k_stride_block, k_stride_token, k_stride_head, k_stride_dim,
    v_stride_block, v_stride_token, v_stride_head, v_stride_dim,
    BLOCK_SIZE: tl.constexpr, GROUP_SIZE: tl.constexpr, GROUP_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend with all query heads of a KV head, whose keys and values are then read only once.

    Grid: (num_seqs, num_kv_heads). Reads 2 * seq_len * head_dim elements a program.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    q = load_group(
        q_ptr + seq_idx * q_stride_seq + kv_head * GROUP_SIZE * q_stride_head, q_stride_head,
        GROUP_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE, UPCAST,
    )  # fmt: skip
    out, lse = attend_tiles(
        q, k_cache_ptr + kv_head * k_stride_head, v_cache_ptr + kv_head * v_stride_head,
        block_tables_ptr + seq_idx * table_stride_seq, 0, tl.load(seq_lens_ptr + seq_idx),
        softmax_scale, k_stride_block, k_stride_token, k_stride_dim,
        v_stride_block, v_stride_token, v_stride_dim,
        BLOCK_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE, TILE, UPCAST,
    )  # fmt: skip
    row = (seq_idx * tl.num_programs(1) + kv_head) * GROUP_SIZE
    store_group(out_ptr, lse_ptr, row, out, lse, GROUP_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE)


@triton.jit
def decode_split(
    out_ptr, lse_ptr, q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, seq_lens_ptr,
    softmax_scale, q_stride_seq, q_stride_head, table_stride_seq,
    k_stride_block, k_stride_token, k_stride_head, k_stride_dim,
    v_stride_block, v_stride_token, v_stride_head, v_stride_dim,
    BLOCK_SIZE: tl.constexpr, GROUP_SIZE: tl.constexpr, GROUP_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """As `decode_grouped`, for one of several pieces of the sequence, in whole tiles.

    Grid: (num_seqs, num_kv_heads, num_splits). Writes float32 outs [num_splits, num_seqs,
    num_query_heads, head_dim] and lses without the last axis; 0 and -inf where a piece is empty.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq_idx)
    # found here, not by the host, which then never waits for the lengths; in whole tiles, so that
    # only a sequence's last tile is partly empty
    piece = tl.cdiv(tl.cdiv(seq_len, tl.num_programs(2)), TILE) * TILE
    q = load_group(
        q_ptr + seq_idx * q_stride_seq + kv_head * GROUP_SIZE * q_stride_head, q_stride_head,
        GROUP_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE, UPCAST,
    )  # fmt: skip
    out, lse = attend_tiles(
        q, k_cache_ptr + kv_head * k_stride_head, v_cache_ptr + kv_head * v_stride_head,
        block_tables_ptr + seq_idx * table_stride_seq,
        split * piece, tl.minimum(split * piece + piece, seq_len),
        softmax_scale, k_stride_block, k_stride_token, k_stride_dim,
        v_stride_block, v_stride_token, v_stride_dim,
        BLOCK_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE, TILE, UPCAST,
    )  # fmt: skip
    row = split.to(tl.int64) * tl.num_programs(0) + seq_idx
    row = (row * tl.num_programs(1) + kv_head) * GROUP_SIZE
    store_group(out_ptr, lse_ptr, row, out, lse, GROUP_SIZE, GROUP_TILE, HEAD_DIM, DIM_TILE)


# --- joining the pieces --------------------------------------------------------------------------


def merge_two(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over some keys with attention over others into attention over both.

    The log-sum-exp of the scores is all that must be kept of the keys of a partial result. It is
    -inf, and the partial result 0, where there were no keys.

    Args:
        out_a: float32 [..., head_dim], attention over the first keys alone.
        lse_a: float32 [...], natural log of the sum of exp(score) over the first keys.
        out_b: like out_a, over the other keys.
        lse_b: like lse_a.

    Returns:
        out [..., head_dim] and lse [...] over all keys.
    """
    top = torch.maximum(lse_a, lse_b)
    # without keys on either side -inf - -inf would be NaN; from 0, both weights are exp(-inf) = 0
    top = torch.where(top == float("-inf"), 0.0, top)
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]
    return out / total.clamp(min=1e-30)[..., None], top + torch.log(total)


def merge_splits(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over the pieces of each sequence into attention over all of it.

    `merge_two` (05.1), for any number of pieces, each with the log-sum-exp of its scores.

    Args:
        outs: float32 [num_splits, num_seqs, num_query_heads, head_dim].
        lses: float32 [num_splits, num_seqs, num_query_heads], natural log; -inf, and 0 in outs,
            where a piece has no keys.

    Returns:
        out [num_seqs, num_query_heads, head_dim] and lse [num_seqs, num_query_heads]; 0 and -inf
        where no piece has keys.

    >>> outs = torch.tensor([1.0, 5.0]).reshape(2, 1, 1, 1)
    >>> out, lse = merge_splits(outs, torch.tensor([0.0, 3.0]).log().reshape(2, 1, 1))
    >>> out.item(), round(lse.exp().item(), 4)
    (5.0, 3.0)
    """
    top = lses.amax(0)
    # where no piece has keys -inf - -inf would be NaN; from 0, every weight is exp(-inf) = 0
    finite_top = torch.where(top == float("-inf"), 0.0, top)
    weights = torch.exp(lses - finite_top)  # [num_splits, num_seqs, num_query_heads]
    total = weights.sum(0)
    out = (weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[..., None]
    return out, finite_top + torch.log(total)


@triton.jit
def merge_splits_kernel(
    out_ptr, lse_ptr, outs_ptr, lses_ptr, num_splits, HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, SPLIT_TILE: tl.constexpr,
):  # fmt: skip
    """`merge_splits` in one launch, for a GPU: grid (num_seqs * num_query_heads,)."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLIT_TILE)
    dims = tl.arange(0, DIM_TILE)
    is_split, in_head = splits < num_splits, dims < HEAD_DIM
    rows = splits * tl.num_programs(0) + row
    lses = tl.load(lses_ptr + rows, mask=is_split, other=float("-inf"))
    top = tl.maximum(tl.max(lses, axis=0), -1e30)  # finite: -inf - top is not NaN
    weights = tl.exp(lses - top)
    is_cell = is_split[:, None] & in_head[None, :]
    outs = tl.load(outs_ptr + rows[:, None] * HEAD_DIM + dims[None, :], mask=is_cell, other=0.0)
    total = tl.sum(weights, axis=0)
    out = tl.sum(weights[:, None] * outs, axis=0) / tl.maximum(total, 1e-30)
    tl.store(out_ptr + row * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty), mask=in_head)
    tl.store(lse_ptr + row, top + tl.log(total))


# --- what others call ----------------------------------------------------------------------------


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    num_splits: int | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of one new query a sequence over keys and values in blocks.

    Args:
        q: [num_seqs, num_query_heads, head_dim], any strides.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides, float32, float16
            or bfloat16.
        v_cache: like k_cache.
        block_tables: int32 [num_seqs, max_num_blocks]; ids past a length are not looked at.
        seq_lens: int32 [num_seqs]; may be 0.
        softmax_scale: what scores are multiplied by; None is head_dim ** -0.5.
        num_splits: pieces to cut each sequence into; None: chosen from the longest length (on a
            GPU, which would have to be waited for, from the tables' width) and the device.
        return_lse: the natural log of the sum of exp(score) too.

    Returns:
        out [num_seqs, num_query_heads, head_dim] in q's dtype, zeros where seq_len is 0; with
        return_lse also lse, float32 [num_seqs, num_query_heads], -inf where seq_len is 0.

    Raises:
        ValueError: naming what does not fit together; on the CPU also blocks outside the cache.
    """
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"num_splits must be at least 1, got {num_splits}")
    arguments = (q, k_cache, v_cache, block_tables, seq_lens)
    if q.is_cuda:
        validate_shapes(*arguments)
    else:
        validate_batch(*arguments, None)
    num_splits = num_splits or plan_splits(q, k_cache, block_tables, seq_lens)
    kernel = decode_grouped if num_splits == 1 else decode_split
    pieces = grouped_decode(kernel, *arguments, num_splits, softmax_scale)
    out, lse = join_pieces(*pieces, q.dtype)
    return (out, lse) if return_lse else out


def join_pieces(
    outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`merge_splits`, the quickest way there is: one piece needs none, and a GPU one launch."""
    if len(outs) == 1:
        return outs[0], lses[0]
    if outs.is_cuda:
        return merge_by_kernel(merge_splits_kernel, outs, lses, dtype)
    out, lse = merge_splits(outs, lses)
    return out.to(dtype), lse


def kernel_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """`paged_attention` with decode by kernel, for `PagedKVCache`; prefill stays in PyTorch."""
    arguments = (q, k_cache, v_cache, block_tables, seq_lens)
    if cu_seqlens_q is not None:
        return paged_attention(*arguments, cu_seqlens_q, softmax_scale)
    out = paged_decode(*arguments, softmax_scale)
    assert isinstance(out, torch.Tensor)
    return out
