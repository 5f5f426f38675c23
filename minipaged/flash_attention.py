"""Lesson 6: FlashAttention's forward pass in PyTorch, tile by tile, and what it saves.

Follows `attention.py`, whose result it gives without ever holding all scores. The same in Triton
is `given/flash_kernel.py`, exported from here. Also what crosses a GPU's main memory (HBM) in
standard and in tiled attention, and FlashInfer's form of the block tables. Leaves out the backward
pass.
"""

import torch

from .attention import group_heads
from .given.flash_kernel import flash_attention_triton, flash_forward
from .given.validation import validate_attention_inputs, validate_window

__all__ = [
    "absorb_tile",
    "flash_attention",
    "flash_attention_triton",
    "flash_forward",
    "hbm_traffic",
    "key_tiles",
    "to_kv_indptr",
]

# --- tiles ----------------------------------------------------------------------------------


def absorb_tile(
    top: torch.Tensor,
    total: torch.Tensor,
    mixed: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    allowed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take one tile of keys and values into a running softmax: FlashAttention's inner loop.

    Args:
        top: float32 [..., rows], the largest score so far, -inf before the first.
        total: like top, the sum of exp(score - top) so far.
        mixed: float32 [..., rows, head_dim], the sum of exp(score - top) * value so far.
        q: float32 [..., rows, head_dim], multiplied by softmax_scale already.
        k: float32 [..., tile, head_dim].
        v: like k.
        allowed: bool [rows, tile], which keys a row may see; perhaps none.

    Returns:
        top, total and mixed with the tile in them.
    """
    scores = (q @ k.transpose(-1, -2)).masked_fill(~allowed, float("-inf"))  # [..., rows, tile]
    new_top = torch.maximum(top, scores.amax(-1))
    base = torch.where(new_top == float("-inf"), 0.0, new_top)  # of a row that has seen nothing
    # the sums so far were measured from the old maximum: exp(score - top) * shrink is what
    # exp(score - base) would have been
    shrink = torch.exp(top - base)
    weights = torch.exp(scores - base[..., None])
    total = total * shrink + weights.sum(-1)
    mixed = mixed * shrink[..., None] + weights @ v
    return new_top, total, mixed


def key_tiles(
    query_tile_idx: int,
    query_len: int,
    seq_len: int,
    query_tile: int,
    key_tile: int,
    causal: bool = True,
    window: int | None = None,
) -> tuple[int, int]:
    """The first and the last tile of keys that a tile of queries needs, as well as all between.

    The queries are the sequence's last `query_len` tokens.

    Args:
        query_tile_idx: which tile of queries, from 0.
        query_len, seq_len: queries, and keys (at least as many where causal).
        query_tile, key_tile: queries and keys in a tile; the last tile may be shorter.
        causal: a query sees no later token.
        window: a query sees its `window` newest tokens, itself among them; None: all. Only causal.

    Returns:
        The indices of both tiles, from 0.

    >>> key_tiles(0, query_len=6, seq_len=10, query_tile=3, key_tile=2)
    (0, 3)
    """
    if not causal:
        return 0, -(-seq_len // key_tile) - 1
    context_len = seq_len - query_len
    first_position = context_len + query_tile_idx * query_tile
    last_position = context_len + min((query_tile_idx + 1) * query_tile, query_len) - 1
    first_key = 0 if window is None else max(0, first_position - window + 1)
    return first_key // key_tile, last_position // key_tile


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    query_tile: int = 64,
    key_tile: int = 64,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`attention`, tile by tile: at no time more than query_tile x key_tile scores of a head.

    Args:
        q: [query_len, num_query_heads, head_dim], the sequence's last tokens.
        k: [seq_len, num_kv_heads, head_dim].
        v: like k.
        softmax_scale: what scores are multiplied by; None is head_dim ** -0.5.
        causal: a query sees no later token.
        window: a query sees its `window` newest tokens, itself among them; None: all.
        query_tile, key_tile: queries and keys in a tile.
        return_lse: also return the natural log of the sum of exp(score).

    Returns:
        [query_len, num_query_heads, head_dim] in q's dtype, zeros where there are no keys; with
        return_lse also float32 [query_len, num_query_heads], -inf where there are no keys.

    Raises:
        ValueError: shapes that do not fit together, a window below 1 or not causal.

    >>> flash_attention(torch.ones(1, 6, 8), torch.ones(5, 2, 8), torch.full((5, 2, 8), 3.0))[0, 0, 0]
    tensor(3.)
    """
    validate_attention_inputs(q, k, v, causal)
    validate_window(window, causal)
    query_len, seq_len, num_kv_heads = q.shape[0], k.shape[0], k.shape[1]
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:2], float("-inf"), device=q.device)
    for tile_idx in range(-(-query_len // query_tile)):
        rows = slice(tile_idx * query_tile, min((tile_idx + 1) * query_tile, query_len))
        tile_q = group_heads(q[rows].float() * scale, num_kv_heads)  # [kv heads, group, rows, dim]
        top = torch.full(tile_q.shape[:3], float("-inf"), device=q.device)
        total, mixed = torch.zeros_like(top), torch.zeros_like(tile_q)
        positions = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
        positions = positions + seq_len - query_len
        first, last = key_tiles(
            tile_idx, query_len, seq_len, query_tile, key_tile, causal=causal, window=window
        )
        for start in range(first * key_tile, (last + 1) * key_tile, key_tile):
            tokens = torch.arange(start, min(start + key_tile, seq_len), device=q.device)[None]
            allowed = (tokens <= positions) if causal else torch.ones_like(tokens >= positions)
            if window is not None:
                allowed = allowed & (tokens > positions - window)
            keys = k[start : start + key_tile].float().transpose(0, 1)[:, None]
            values = v[start : start + key_tile].float().transpose(0, 1)[:, None]
            top, total, mixed = absorb_tile(top, total, mixed, tile_q, keys, values, allowed)
        # where a row saw a key total is at least 1, the largest score's exp(0); 0 / 1e-30 is 0
        mixed = mixed / total.clamp(min=1e-30)[..., None]
        out[rows] = mixed.permute(2, 0, 1, 3).reshape(q[rows].shape).to(q.dtype)
        lse[rows] = (top + total.log()).permute(2, 0, 1).reshape(lse[rows].shape)
    return (out, lse) if return_lse else out


# --- what crosses HBM ----------------------------------------------------------------------------


def hbm_traffic(
    query_len: int,
    seq_len: int,
    head_dim: int,
    query_tile: int,
    key_tile: int,
    causal: bool = True,
    element_size: int = 2,
) -> tuple[int, int]:
    """Bytes that one head's attention reads from and writes to HBM: standard, and tiled.

    Standard attention is three operations, each of which reads its inputs and writes its result:
    the scores of all pairs, masked on the way; their softmax; the weighted values. Tiled attention
    is `flash_forward`: whatever it computes between reading q and writing out stays on the chip.

    Args:
        query_len, seq_len, head_dim: of q, and of k and v.
        query_tile, key_tile: of the tiled one; the last tile may be shorter.
        causal: the tiled one skips tiles that no query of a tile may see.
        element_size: bytes of an element, scores and weights included.

    Returns:
        Bytes of the standard one, and of the tiled one.
    """
    outside = 2 * query_len * head_dim  # q is read and out is written
    standard = outside + 2 * seq_len * head_dim + 4 * query_len * seq_len
    tiled = outside
    for tile_idx in range(-(-query_len // query_tile)):
        first, last = key_tiles(tile_idx, query_len, seq_len, query_tile, key_tile, causal=causal)
        num_keys = min((last + 1) * key_tile, seq_len) - first * key_tile
        tiled += 2 * num_keys * head_dim
    return standard * element_size, tiled * element_size


# --- FlashInfer's block tables -------------------------------------------------------------------


def to_kv_indptr(
    block_tables: torch.Tensor, seq_lens: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block tables in FlashInfer's form, where the rows follow each other without padding.

    Args:
        block_tables: int32 [num_seqs, max_num_blocks]; ids past a length are not looked at.
        seq_lens: int32 [num_seqs], may be 0.
        block_size: tokens in a block (FlashInfer: page_size).

    Returns:
        kv_indptr: int32 [num_seqs + 1]; row i is kv_indices[kv_indptr[i] : kv_indptr[i + 1]].
        kv_indices: int32 [kv_indptr[-1]], block ids.
        kv_last_page_len: int32 [num_seqs], tokens in a row's last block; 0 for an empty row.

    >>> tables = torch.tensor([[12, 5, 3], [7, -1, -1]], dtype=torch.int32)
    >>> to_kv_indptr(tables, torch.tensor([10, 4], dtype=torch.int32), 4)[1].tolist()
    [12, 5, 3, 7]
    """
    num_blocks = (seq_lens + block_size - 1) // block_size
    kv_indptr = torch.zeros(len(seq_lens) + 1, dtype=torch.int32, device=seq_lens.device)
    kv_indptr[1:] = num_blocks.cumsum(0)
    columns = torch.arange(block_tables.shape[1], device=seq_lens.device)
    kv_indices = block_tables[columns < num_blocks[:, None]].int()
    last_page_len = seq_lens - (num_blocks - 1).clamp(min=0) * block_size
    return kv_indptr, kv_indices, last_page_len.int()
