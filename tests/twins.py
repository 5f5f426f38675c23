"""What the kernels do, in PyTorch: each is read beside its kernel and compared with it."""

from collections.abc import Iterable, Iterator

import torch

from minipaged.attention import causal_mask, group_heads
from minipaged.given.validation import validate_batch
from minipaged.interpreter import triton
from minipaged.triton_kernels import merge_two

Tile = tuple[torch.Tensor, torch.Tensor]  # keys and values [tokens, head_dim] of one KV head


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
    """`contiguous_decode` in PyTorch: a sequence in one piece is a sequence in one large block."""
    tables = torch.arange(len(k), device=k.device)[:, None]
    return decode_paged_twin(q, k, v, tables, seq_lens, softmax_scale, tile)


def decode_paged_twin(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """`paged_decode_by_head` in PyTorch."""
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


def paged_attention_walk(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """`paged_attention` the way a kernel does it: block after block, with an online softmax.

    Keeps one partial result and its log-sum-exp, and merges each block into it (`merge_two`), so
    that no more than a block's keys and values are at hand. Slow here; lesson 5 does the same on a
    GPU. Arguments, result and errors are those of `paged_attention`.
    """
    starts, lens, tables = validate_batch(q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
    block_size, num_kv_heads = k_cache.shape[1:3]
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for seq_idx, seq_len in enumerate(lens):
        queries = slice(starts[seq_idx], starts[seq_idx + 1])
        grouped_q = group_heads(q[queries].float() * scale, num_kv_heads)
        mixed = torch.zeros_like(grouped_q)
        lse = mixed.new_full(mixed.shape[:3], float("-inf"))
        allowed = causal_mask(mixed.shape[2], seq_len, q.device)
        for first in range(0, seq_len, block_size):
            block_id = int(tables[seq_idx, first // block_size])
            used = min(block_size, seq_len - first)
            keys = k_cache[block_id, :used].float().permute(1, 2, 0)[:, None]
            values = v_cache[block_id, :used].float().transpose(0, 1)[:, None]
            scores = grouped_q @ keys  # [num_kv_heads, group_size, query_len, used]
            scores = scores.masked_fill(~allowed[:, first : first + used], float("-inf"))
            block_lse = scores.logsumexp(-1)
            weights = torch.exp(scores - block_lse.clamp(min=-1e30)[..., None])
            mixed, lse = merge_two(mixed, lse, weights @ values, block_lse)
        out[queries] = mixed.permute(2, 0, 1, 3).reshape(q[queries].shape).to(q.dtype)
    return out
