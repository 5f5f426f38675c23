"""Given: decode attention over blocks, made fast on a CPU.

`paged_attention` of lesson 4 hands it every sequence that has one query; worth a read after the
lesson. Small whole numbers are computed in NumPy, where an operation costs a fraction of PyTorch's.
Leaves out the GPU, where a kernel does better: lesson 5.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

PIECE = 1 << 17  # numbers copied together at a time: few enough to stay in a CPU's cache


def decode_by_pieces(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: np.ndarray,
    seq_lens: Sequence[int],
    scale: float,
) -> torch.Tensor:
    """One query each of some sequences, whose blocks are copied together piece by piece.

    A copy of a whole batch would go through main memory twice more. A piece of a sequence is used
    up while it is still in the CPU's cache, and the next one takes its place there.

    Args:
        q: [num_seqs, num_query_heads, head_dim].
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; quickest where memory holds
            head after head, as in `PagedKVCache`.
        v_cache: like k_cache.
        block_tables: whole numbers [num_seqs, max_num_blocks], padded.
        seq_lens: tokens of each sequence, may be 0.
        scale: what scores are multiplied by.

    Returns:
        float32 [num_seqs, num_query_heads, head_dim]; zeros where seq_len is 0.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    grouped_q = (q.float() * scale).view(num_seqs, num_kv_heads, group_size, head_dim)
    out = torch.zeros_like(grouped_q)
    k_rows, v_rows, tables = head_rows(k_cache, v_cache, block_tables, seq_lens)
    step = max(1, PIECE // k_cache[0].numel())  # blocks in a piece
    place = scratch(step * k_cache[0].numel(), k_cache.dtype, threading.get_ident())
    place = place.view(step * num_kv_heads, block_size * head_dim)
    views: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def copied(source: torch.Tensor, rows: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Some rows as float32 [num_kv_heads, num_tokens, head_dim], valid until the next call."""
        size = len(rows), num_tokens
        if size not in views:
            part = place[: len(rows)]
            views[size] = part, part.view(num_kv_heads, -1, head_dim)[:, :num_tokens]
        part, tokens = views[size]
        torch.index_select(source, 0, rows, out=part)
        return tokens.float()

    for seq_len, table, seq_q, seq_out in zip(
        seq_lens, tables, grouped_q.unbind(), out.unbind(), strict=True
    ):
        pieces = cut_pieces(table, seq_len, block_size, step)
        scores = [torch.bmm(seq_q, copied(k_rows, *piece).transpose(1, 2)) for piece in pieces]
        if len(pieces) == 1:
            torch.bmm(torch.softmax(scores[0], dim=2), copied(v_rows, *pieces[0]), out=seq_out)
        elif pieces:
            lens = [num_tokens for _, num_tokens in pieces]
            weights = torch.softmax(torch.cat(scores, dim=2), dim=2)
            for piece, part in zip(pieces, torch.split(weights, lens, dim=2), strict=True):
                seq_out.baddbmm_(part, copied(v_rows, *piece))
    return out.view(q.shape)


def cut_pieces(
    table: np.ndarray, seq_len: int, block_size: int, step: int
) -> list[tuple[torch.Tensor, int]]:
    """Cut one sequence into pieces of at most `step` blocks.

    Args:
        table: int64 [num_kv_heads, max_num_blocks], the rows of each head's blocks.
        seq_len: tokens of the sequence.
        block_size: tokens in a block.
        step: blocks in a piece.

    Returns:
        For each piece its rows, int64, head after head; and the tokens that they hold.
    """
    num_blocks = -(-seq_len // block_size)
    return [
        (
            torch.from_numpy(table[:, first : min(first + step, num_blocks)].reshape(-1)),
            min(step * block_size, seq_len - first * block_size),
        )
        for first in range(0, num_blocks, step)
    ]


def head_rows(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: np.ndarray, seq_lens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """The caches as rows, each what one head keeps of one block, and the rows of each sequence.

    Where memory holds head after head, the rows are views. Otherwise the blocks of these sequences
    are put in that order first.

    Returns:
        keys and values, each [num_rows, block_size * head_dim]; and int64
        [num_seqs, num_kv_heads, max_num_blocks], which rows are a sequence's.
    """
    by_head = [cache.permute(2, 0, 1, 3) for cache in (k_cache, v_cache)]
    if not all(heads.is_contiguous() for heads in by_head):
        starts = np.arange(block_tables.shape[1]) * k_cache.shape[1]
        block_ids = np.unique(block_tables[starts < np.asarray(seq_lens)[:, None]])
        block_tables = np.searchsorted(block_ids, block_tables)
        index = torch.from_numpy(block_ids).long()
        by_head = [heads[:, index].contiguous() for heads in by_head]
    num_kv_heads, num_blocks, block_size, head_dim = by_head[0].shape
    first_rows = np.arange(num_kv_heads, dtype=np.int64)[:, None] * num_blocks
    shape = (num_kv_heads * num_blocks, block_size * head_dim)
    k_rows, v_rows = (heads.view(shape) for heads in by_head)
    return k_rows, v_rows, block_tables[:, None] + first_rows


@lru_cache(maxsize=4)
def scratch(num_elements: int, dtype: torch.dtype, thread_id: int) -> torch.Tensor:
    """A thread's place for copies. It is kept: new memory would cost more than the copy."""
    return torch.empty(num_elements, dtype=dtype)
