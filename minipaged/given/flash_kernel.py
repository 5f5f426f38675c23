"""Given: FlashAttention's forward pass as a Triton kernel, for lesson 6.

The loop is that of `kernel_parts.py`, with a tile of many queries of one head in place of one query
of each head of a group. How attention is computed is one question, where keys and values are is
another: the kernel reads them out of one piece, or through a block table. Leaves out the backward
pass, dropout, several sequences in a launch, and packing the queries of a group into a tile (each
query head reads its KV head's keys for itself).
"""
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-untyped-def"

import torch

from ..interpreter import BACKEND, RECORDS, interpreted, tl, triton
from .kernel_parts import LN_2, LOG2_E
from .validation import covered_blocks, validate_attention_inputs, validate_window


@triton.jit
def flash_forward(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, table_ptr, query_len, seq_len, softmax_scale,
    q_stride_token, q_stride_head, k_stride_block, k_stride_token, k_stride_head, k_stride_dim,
    v_stride_block, v_stride_token, v_stride_head, v_stride_dim,
    BLOCK_SIZE: tl.constexpr, GROUP_SIZE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of queries of one head to every key that one of them may see.

    Grid: (cdiv(query_len, QUERY_TILE), num_query_heads). A program reads its queries once and
    the keys and values of its `key_tiles`. BLOCK_SIZE 0: k and v are in one piece; else in blocks
    that the table names. WINDOW 0: none. out and lse are contiguous.
    """
    tile_idx = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)  # offsets in elements may pass 2**31
    kv_head = head // GROUP_SIZE
    queries = tile_idx * QUERY_TILE + tl.arange(0, QUERY_TILE)
    dims = tl.arange(0, DIM_TILE)
    in_head = dims < HEAD_DIM
    is_row = (queries < query_len)[:, None] & in_head[None, :]
    rows = queries.to(tl.int64)[:, None]
    q_cells = rows * q_stride_token + head * q_stride_head + dims[None, :]
    q = tl.load(q_ptr + q_cells, mask=is_row, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    # the queries are the sequence's last tokens
    positions = (seq_len - query_len + queries)[:, None]
    first, last = 0, seq_len
    if CAUSAL:  # keys that are later than the tile's last query are not even read
        last = tl.minimum(seq_len, seq_len - query_len + (tile_idx + 1) * QUERY_TILE)
    if WINDOW:
        # from the tile of keys that the first query's window begins in; CAUSAL is given with WINDOW
        first_position = seq_len - query_len + tile_idx * QUERY_TILE
        first = tl.maximum(first_position - WINDOW + 1, 0) // KEY_TILE * KEY_TILE
    top = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_TILE], tl.float32)
    mixed = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    for start in tl.range(first, last, KEY_TILE):
        tokens = start + tl.arange(0, KEY_TILE)
        is_token = tokens < seq_len
        if BLOCK_SIZE:
            blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
            offsets = (tokens % BLOCK_SIZE).to(tl.int64)
            k_cells = (blocks * k_stride_block + offsets * k_stride_token)[None, :]
            v_cells = (blocks * v_stride_block + offsets * v_stride_token)[:, None]
        else:
            k_cells = (tokens.to(tl.int64) * k_stride_token)[None, :]
            v_cells = (tokens.to(tl.int64) * v_stride_token)[:, None]
        k_cells += kv_head * k_stride_head + (dims * k_stride_dim)[:, None]  # keys are columns
        v_cells += kv_head * v_stride_head + (dims * v_stride_dim)[None, :]
        k = tl.load(k_ptr + k_cells, mask=is_token[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_ptr + v_cells, mask=is_token[:, None] & in_head[None, :], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * (softmax_scale * LOG2_E)
        allowed = is_token[None, :]
        if CAUSAL:
            allowed = allowed & (tokens[None, :] <= positions)
        if WINDOW:
            allowed = allowed & (tokens[None, :] > positions - WINDOW)
        scores = tl.where(allowed, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        # of a row that has seen no key yet -inf - -inf would be NaN; from 0, its weights are 0
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        # shrink moves what was summed from the old maximum to the new one
        shrink, weights = tl.exp2(top - base), tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
        top = new_top
    # a row that saw a key has a total of at least 1, the largest score's 2**0; any other gives 0
    mixed = mixed / tl.maximum(total, 1e-30)[:, None]
    out_rows = rows * tl.num_programs(1) + head
    out_cells = out_rows * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_cells, mixed.to(out_ptr.dtype.element_ty), mask=is_row)
    lse_cells = queries.to(tl.int64) * tl.num_programs(1) + head
    tl.store(lse_ptr + lse_cells, (top + tl.log2(total)) * LN_2, mask=queries < query_len)


def flash_attention_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    block_table: torch.Tensor | None = None,
    seq_len: int | None = None,
    query_tile: int | None = None,
    key_tile: int = 32,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`flash_attention` by kernel; keys and values in one piece, or in blocks.

    Tensors on a GPU are Triton's, those on the CPU an interpreter's.

    Args:
        q, softmax_scale, causal, window, return_lse: as in `flash_attention`.
        k, v: likewise; with a block_table caches [num_blocks, block_size, num_kv_heads, head_dim].
            Any strides.
        block_table: int32 [max_num_blocks], one sequence's; ids past seq_len are not looked at.
        seq_len: tokens of the sequence, those of q included; with a block_table only.
        query_tile, key_tile: powers of 2, at least 16; query_tile None: 64 where its results
            fit into 128 registers a thread, else 32.

    Returns:
        As `flash_attention`.

    Raises:
        ValueError: naming what does not fit together.
    """
    if block_table is None:
        seq_len = k.shape[0]
        validate_attention_inputs(q, k, v, causal)
    else:
        seq_len = 0 if seq_len is None else seq_len
        validate_attention_inputs(q, k[0], v[0], causal=False)
        if q.shape[0] > seq_len:
            raise ValueError(f"a sequence of {seq_len} tokens cannot have {q.shape[0]} queries")
        if q.device.type == "cpu":
            covered_blocks(block_table.tolist(), seq_len, *k.shape[:2])
        block_table = block_table.contiguous()
    validate_window(window, causal)
    query_len, num_query_heads, head_dim = q.shape
    q = q if q.stride(-1) == 1 else q.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    if query_tile is None:
        widest = 64 if window else 128
        query_tile = 64 if q.element_size() == 2 and head_dim <= widest else 32
    no_block_stride = (0,) if block_table is None else ()
    # the course's own interpreter, also where Triton's would run: it alone keeps a record
    own = q.device.type == "cpu" and (BACKEND == "gpu" or RECORDS)
    kernel = interpreted(flash_forward) if own else flash_forward
    if out.numel():
        kernel[(triton.cdiv(query_len, query_tile), num_query_heads)](
            out, lse, q, k, v, block_table, query_len, seq_len,
            head_dim**-0.5 if softmax_scale is None else softmax_scale, q.stride(0), q.stride(1),
            *no_block_stride, *k.stride(), *no_block_stride, *v.stride(),
            BLOCK_SIZE=0 if block_table is None else k.shape[1],
            GROUP_SIZE=num_query_heads // k.shape[-2], CAUSAL=causal, WINDOW=window or 0,
            HEAD_DIM=head_dim, DIM_TILE=max(16, triton.next_power_of_2(head_dim)),
            QUERY_TILE=query_tile, KEY_TILE=key_tile,
            UPCAST=q.dtype != k.dtype or BACKEND == "triton interpreter",
            num_warps=8, num_stages=2,
        )  # fmt: skip
    return (out, lse) if return_lse else out
