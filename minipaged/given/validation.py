"""Given: inputs that do not fit together end in a ValueError that names the value.

Attention, caches and kernels call these before they touch anything.
"""

from collections.abc import Sequence

import numpy as np
import torch


def validate_attention_inputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> None:
    """Raise ValueError, naming the value, where q, k and v do not fit together."""
    if q.dim() != 3 or k.dim() != 3:
        raise ValueError(
            f"q and k must be [tokens, heads, head_dim], got {list(q.shape)} and {list(k.shape)}"
        )
    if k.shape != v.shape:
        raise ValueError(f"k {list(k.shape)} and v {list(v.shape)} must have one shape")
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"head_dim of q is {q.shape[2]}, of k {k.shape[2]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"num_query_heads {q.shape[1]} is not a multiple of num_kv_heads {k.shape[1]}"
        )
    if causal and q.shape[0] > k.shape[0]:
        raise ValueError(
            f"{q.shape[0]} queries but only {k.shape[0]} keys: the queries are the sequence's last "
            "tokens, so their own keys must be among k"
        )


def validate_slots(slot_mapping: torch.Tensor, num_slots: int) -> None:
    """Raise ValueError naming a slot that is neither -1 nor one of `num_slots`."""
    wrong = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)]
    if wrong.numel():
        raise ValueError(f"slot {int(wrong[0])} is outside a cache of {num_slots} slots")


def covered_blocks(
    block_table: Sequence[int], seq_len: int, num_blocks: int, block_size: int
) -> list[int]:
    """The ids that `seq_len` tokens need, checked: ValueError names what is wrong."""
    needed = -(-seq_len // block_size)
    if seq_len < 0 or needed > len(block_table):
        raise ValueError(
            f"seq_len {seq_len} needs {needed} blocks of {block_size}, "
            f"the block table has {len(block_table)}"
        )
    block_ids = [int(block_id) for block_id in block_table[:needed]]
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise ValueError(f"block {block_id} is outside a cache of {num_blocks} blocks")
    return block_ids


def validate_shapes(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Raise ValueError where a batch's shapes do not fit together; no values are looked at."""
    if k_cache.dim() != 4:
        raise ValueError(
            "k_cache must be [num_blocks, block_size, num_kv_heads, head_dim], "
            f"got {list(k_cache.shape)}"
        )
    validate_attention_inputs(q, k_cache[0], v_cache[0], causal=False)
    if block_tables.dim() != 2 or block_tables.shape[0] != seq_lens.shape[0]:
        raise ValueError(
            f"block_tables {list(block_tables.shape)} must have a row for each of "
            f"{seq_lens.shape[0]} seq_lens"
        )


def validate_batch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
) -> tuple[list[int], list[int], np.ndarray]:
    """Raise ValueError where a batch's shapes or values do not fit together.

    Args:
        q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q: as in `paged_attention`.

    Returns:
        Where each sequence's queries start, and at last their number; seq_lens; and block_tables:
        all on the CPU, where they are looked at.
    """
    validate_shapes(q, k_cache, v_cache, block_tables, seq_lens)
    num_seqs = seq_lens.shape[0]
    starts = list(range(num_seqs + 1)) if cu_seqlens_q is None else cu_seqlens_q.tolist()
    if len(starts) != num_seqs + 1 or starts[0] != 0 or starts[-1] != q.shape[0]:
        raise ValueError(
            f"cu_seqlens_q {starts} must lead from 0 to {q.shape[0]} queries in {num_seqs} steps"
        )
    lens = seq_lens.tolist()
    for start, end, seq_len in zip(starts, starts[1:], lens):
        if end < start or seq_len < 0 or (end - start > seq_len and seq_len > 0):
            raise ValueError(f"a sequence of {seq_len} tokens cannot have {end - start} queries")
    num_blocks, block_size = k_cache.shape[:2]
    longest = max(lens, default=0)
    if longest > block_tables.shape[1] * block_size:
        raise ValueError(
            f"seq_len {longest} needs more than the {block_tables.shape[1]} blocks of {block_size} "
            "in a row of block_tables"
        )
    table = block_tables.numpy(force=True)
    covered = np.arange(table.shape[1]) * block_size < np.array(lens, dtype=np.int64)[:, None]
    block_ids = table[covered]
    if block_ids.size:
        for block_id in (int(block_ids.min()), int(block_ids.max())):
            if not 0 <= block_id < num_blocks:
                raise ValueError(f"block {block_id} is outside a cache of {num_blocks} blocks")
    return starts, lens, table


def validate_window(window: int | None, causal: bool) -> None:
    """Raise ValueError where a window is not a positive number, or attention not causal."""
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"a window is of at least 1 token and causal, got {window}, {causal=}")
