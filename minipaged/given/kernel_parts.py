"""Given: what the kernels of `triton_kernels.py` call: rows, groups, the inner loop.

A jit function may call others; the compiler puts all of them into one kernel.
"""
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-untyped-def"

from ..interpreter import tl, triton

# a GPU computes 2**x, and e**x by way of it: scores multiplied by log2(e) beforehand save a product
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_row(row_ptr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr):
    """A row of HEAD_DIM elements as float32 [DIM_TILE], zeros at its end."""
    dims = tl.arange(0, DIM_TILE)
    return tl.load(row_ptr + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)


@triton.jit
def store_row(row_ptr, row, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr):
    """Store the first HEAD_DIM elements of a [DIM_TILE] row."""
    dims = tl.arange(0, DIM_TILE)
    tl.store(row_ptr + dims, row.to(row_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def load_group(
    q_ptr, q_stride_head, GROUP_SIZE: tl.constexpr, GROUP_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The queries of a KV head as [GROUP_TILE, DIM_TILE]; rows past the group are zeros."""
    heads = tl.arange(0, GROUP_TILE)
    dims = tl.arange(0, DIM_TILE)
    is_cell = (heads < GROUP_SIZE)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + heads[:, None] * q_stride_head + dims[None, :], mask=is_cell, other=0.0)
    return q.to(tl.float32) if UPCAST else q


@triton.jit
def attend_tiles(
    q, k_ptr, v_ptr, table_ptr, first, last, softmax_scale,
    k_stride_block, k_stride_token, k_stride_dim, v_stride_block, v_stride_token, v_stride_dim,
    BLOCK_SIZE: tl.constexpr, GROUP_TILE: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend with a group to the tokens first .. last - 1 of a KV head.

    Returns float32 out [GROUP_TILE, DIM_TILE] and its log-sum-exp [GROUP_TILE], natural; 0 and -inf
    where there are no tokens.
    """
    dims = tl.arange(0, DIM_TILE)
    in_head = dims < HEAD_DIM
    dims = dims.to(tl.int64)  # as all offsets: a cache may have more than 2**31 elements
    top = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_TILE], tl.float32)
    mixed = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for start in tl.range(first, last, TILE):
        tokens = start + tl.arange(0, TILE)
        is_token = tokens < last
        block_ids = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
        offsets = (tokens % BLOCK_SIZE).to(tl.int64)
        k_cells = (block_ids * k_stride_block + offsets * k_stride_token)[None, :]
        v_cells = (block_ids * v_stride_block + offsets * v_stride_token)[:, None]
        k_cells += (dims * k_stride_dim)[:, None]  # [DIM_TILE, TILE]: keys as columns
        v_cells += (dims * v_stride_dim)[None, :]
        k = tl.load(k_ptr + k_cells, mask=is_token[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_ptr + v_cells, mask=is_token[:, None] & in_head[None, :], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        # "ieee": float32 is otherwise rounded to the 10 bits of TF32
        scores = tl.dot(q, k, input_precision="ieee") * (softmax_scale * LOG2_E)
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        # every tile has a token, so new_top is finite, and nothing below is -inf - -inf
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink, weights = tl.exp2(top - new_top), tl.exp2(scores - new_top[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        # rounded to v's type for the matrix unit; the sums stay in float32
        mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
        top = new_top
    # where there are tokens total is at least 1, the largest score's 2**0; else 0 / 1e-30 is 0
    return mixed / tl.maximum(total, 1e-30)[:, None], (top + tl.log2(total)) * LN_2


@triton.jit
def store_group(
    out_ptr, lse_ptr, first_row, out, lse, GROUP_SIZE: tl.constexpr, GROUP_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    """Store a group's results from first_row on, in contiguous [rows, head_dim] and [rows]."""
    heads = tl.arange(0, GROUP_TILE)
    dims = tl.arange(0, DIM_TILE)
    rows = first_row + heads
    is_head = heads < GROUP_SIZE
    is_cell = is_head[:, None] & (dims < HEAD_DIM)[None, :]
    cells = rows[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + cells, out.to(out_ptr.dtype.element_ty), mask=is_cell)
    tl.store(lse_ptr + rows, lse, mask=is_head)
