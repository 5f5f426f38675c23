"""Lesson 5: the steps on the way to `paged_decode`, each in PyTorch and each launched alone.

Follows `triton_kernels.py`. A twin does in PyTorch what a kernel's programs do, tile by tile, so
that a kernel can be read beside it and held against it; `paged_cache.write_kv` is the twin of
`store_kv`, `triton_kernels.merge_splits` that of its kernel. Leaves out speed.
"""

from collections.abc import Iterable, Iterator

import torch

from .interpreter import triton
from .triton_kernels import decode_contiguous, decode_paged, masked_copy

Tile = tuple[torch.Tensor, torch.Tensor]  # keys and values [tokens, head_dim] of one KV head


# --- launching the first steps -------------------------------------------------------------------


def copy_by_kernel(x: torch.Tensor, tile: int = 1024) -> torch.Tensor:
    """Launch `masked_copy`: a copy of a contiguous tensor of fewer than 2**31 elements."""
    out = torch.empty_like(x)
    if x.numel():
        masked_copy[(triton.cdiv(x.numel(), tile),)](out, x, x.numel(), TILE=tile)
    return out


def contiguous_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """Launch `decode_contiguous`.

    Args:
        q: [num_seqs, num_query_heads, head_dim], the dims of a row side by side, as in k and v.
        k: [num_seqs, max_seq_len, num_kv_heads, head_dim].
        v: like k, with the same strides.
        seq_lens: int32 [num_seqs].

    Returns:
        [num_seqs, num_query_heads, head_dim] in q's dtype; zeros where seq_len is 0.

    Raises:
        ValueError: strides that the kernel cannot walk.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    check_strides(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_contiguous[(num_seqs, num_query_heads)](
        out, q, k, v, seq_lens, head_dim**-0.5 if softmax_scale is None else softmax_scale,
        q.stride(0), q.stride(1), *k.stride()[:3], GROUP_SIZE=num_query_heads // k.shape[2],
        HEAD_DIM=head_dim, DIM_TILE=triton.next_power_of_2(head_dim), TILE=tile,
    )  # fmt: skip
    return out


def paged_decode_by_head(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """Launch `decode_paged`.

    Arguments and result as `paged_decode`; strides as `contiguous_decode`.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    check_strides(q, k_cache, v_cache)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_paged[(num_seqs, num_query_heads)](
        out, q, k_cache, v_cache, block_tables, seq_lens,
        head_dim**-0.5 if softmax_scale is None else softmax_scale,
        q.stride(0), q.stride(1), block_tables.stride(0), *k_cache.stride()[:3],
        BLOCK_SIZE=k_cache.shape[1], GROUP_SIZE=num_query_heads // k_cache.shape[2],
        HEAD_DIM=head_dim, DIM_TILE=triton.next_power_of_2(head_dim), TILE=tile,
    )  # fmt: skip
    return out


def check_strides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError where a row's dims don't lie side by side, or k and v are laid out apart."""
    if not q.stride(-1) == k.stride(-1) == 1:
        raise ValueError(f"strides of q {q.stride()} and k {k.stride()} must end in 1")
    if k.stride() != v.stride():
        raise ValueError(f"k and v must have the same strides, not {k.stride()} and {v.stride()}")


# --- twins ---------------------------------------------------------------------------------------


def masked_copy_twin(x: torch.Tensor, tile: int) -> torch.Tensor:
    """What the programs of `masked_copy` do to a row of elements."""
    out = torch.empty_like(x)
    for program in range(-(-len(x) // tile)):
        idx = program * tile + torch.arange(tile)
        inside = idx[idx < len(x)]
        out[inside] = x[inside]
    return out


def attend_tiles_twin(
    q: torch.Tensor, tiles: Iterable[Tile], softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with some queries to the keys and values of a KV head, tile by tile.

    Args:
        q: [rows, head_dim].

    Returns:
        float32 out [rows, head_dim] and lse [rows]; 0 and -inf without any tile.
    """
    top = torch.full(q.shape[:1], float("-inf"), device=q.device)
    total, mixed = torch.zeros_like(top), torch.zeros(q.shape, device=q.device)
    for k, v in tiles:
        scores = q.float() @ k.float().T * softmax_scale  # [rows, tokens]
        new_top = torch.maximum(top, scores.amax(1))
        shrink, weights = torch.exp(top - new_top), torch.exp(scores - new_top[:, None])
        total = total * shrink + weights.sum(1)
        mixed = mixed * shrink[:, None] + weights @ v.float()
        top = new_top
    return mixed / total.clamp(min=1e-30)[:, None], top + total.log()


def contiguous_tiles(k: torch.Tensor, v: torch.Tensor, seq_len: int, tile: int) -> Iterator[Tile]:
    """The tiles of keys and values [max_seq_len, head_dim] that lie in one piece."""
    for first in range(0, seq_len, tile):
        yield k[first : min(first + tile, seq_len)], v[first : min(first + tile, seq_len)]


def paged_tiles(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, first: int, last: int,
    tile: int,
) -> Iterator[Tile]:  # fmt: skip
    """The tiles of tokens first .. last - 1; the caches are one KV head's, [blocks, tokens, dim]."""
    block_size = k_cache.shape[1]
    for start in range(first, last, tile):
        tokens = torch.arange(start, min(start + tile, last), device=k_cache.device)
        block_ids = block_table[tokens // block_size].long()
        yield k_cache[block_ids, tokens % block_size], v_cache[block_ids, tokens % block_size]


def decode_contiguous_twin(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """`contiguous_decode` in PyTorch."""
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group_size = q.shape[1] // k.shape[2]
    for seq_idx, seq_len in enumerate(seq_lens.tolist()):
        for head in range(q.shape[1]):
            kv_head = head // group_size
            tiles = contiguous_tiles(k[seq_idx, :, kv_head], v[seq_idx, :, kv_head], seq_len, tile)
            row = q[seq_idx, head : head + 1]
            out[seq_idx, head] = attend_tiles_twin(row, tiles, scale)[0][0].to(q.dtype)
    return out


def decode_paged_twin(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """`paged_decode_by_head` in PyTorch: only where the tiles come from differs."""
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group_size = q.shape[1] // k_cache.shape[2]
    for seq_idx, seq_len in enumerate(seq_lens.tolist()):
        for head in range(q.shape[1]):
            k, v = k_cache[:, :, head // group_size], v_cache[:, :, head // group_size]
            tiles = paged_tiles(k, v, block_tables[seq_idx], 0, seq_len, tile)
            row = q[seq_idx, head : head + 1]
            out[seq_idx, head] = attend_tiles_twin(row, tiles, scale)[0][0].to(q.dtype)
    return out


def decode_grouped_twin(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`decode_grouped` in PyTorch: out in q's dtype and lse; a tile serves a whole group."""
    arguments = (q, k_cache, v_cache, block_tables, seq_lens)
    outs, lses = decode_split_twin(*arguments, 1, softmax_scale, tile)
    return outs[0].to(q.dtype), lses[0]


def decode_split_twin(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    num_splits: int,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`decode_split` in PyTorch.

    Returns:
        float32 outs [num_splits, num_seqs, num_query_heads, head_dim] and lses [num_splits,
        num_seqs, num_query_heads], for `merge_splits`.
    """
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    outs = torch.empty(num_splits, *q.shape, device=q.device)
    lses = torch.empty(outs.shape[:3], device=q.device)
    group_size = q.shape[1] // k_cache.shape[2]
    for seq_idx, seq_len in enumerate(seq_lens.tolist()):
        piece = triton.cdiv(triton.cdiv(seq_len, num_splits), tile) * tile
        for split in range(num_splits):
            first, last = split * piece, min(split * piece + piece, seq_len)
            for kv_head in range(k_cache.shape[2]):
                k, v = k_cache[:, :, kv_head], v_cache[:, :, kv_head]
                tiles = paged_tiles(k, v, block_tables[seq_idx], first, last, tile)
                heads = slice(kv_head * group_size, (kv_head + 1) * group_size)
                out, lse = attend_tiles_twin(q[seq_idx, heads], tiles, scale)
                outs[split, seq_idx, heads], lses[split, seq_idx, heads] = out, lse
    return outs, lses
