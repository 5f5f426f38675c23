"""Lesson 4: decode attention over blocks, made fast on a CPU.

Follows `block_table.py`; `paged_attention` hands it every sequence that has one query. Given, and
worth a read after the lesson. Leaves out the GPU, where a kernel does better: lesson 5.
"""

import torch

SCRATCH = 1 << 17  # elements copied together at a time: few enough to stay in the CPU's cache


def decode_with_scratch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One query each of some sequences, whose blocks are copied together piece by piece.

    A copy of a whole sequence would go through main memory twice more. A piece of SCRATCH elements
    is used up while it is still in the CPU's cache, and its place is used again for the next one.

    Args:
        q: [num_seqs, num_query_heads, head_dim].
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; quickest where memory holds
            head after head, as in `PagedKVCache`.
        v_cache: like k_cache.
        block_tables: [num_seqs, max_num_blocks], padded.
        seq_lens: [num_seqs], may be 0.

    Returns:
        float32 [num_seqs, num_query_heads, head_dim]; zeros where seq_len is 0.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    k_rows, v_rows, rows = head_rows(k_cache, v_cache, block_tables, seq_lens)
    step = max(1, SCRATCH // k_cache[0].numel())  # blocks in a piece
    scratch = k_rows.new_empty(step * num_kv_heads, block_size * head_dim)

    def copied(source: torch.Tensor, piece: torch.Tensor, num_tokens: int) -> torch.Tensor:
        place = scratch[: piece.numel()]
        torch.index_select(source, 0, piece.reshape(-1), out=place)
        return place.view(num_kv_heads, -1, head_dim)[:, :num_tokens].float()

    grouped_q = (q.float() * scale).view(num_seqs, num_kv_heads, group_size, head_dim)
    out = torch.zeros_like(grouped_q)
    for seq_idx, seq_len in enumerate(seq_lens.tolist()):
        if seq_len == 0:
            continue
        pieces = rows[seq_idx, :, : -(-seq_len // block_size)].split(step, dim=1)
        lens = [step * block_size] * (len(pieces) - 1)
        lens.append(seq_len - sum(lens))
        scores = [
            torch.bmm(grouped_q[seq_idx], copied(k_rows, piece, num_tokens).transpose(1, 2))
            for piece, num_tokens in zip(pieces, lens, strict=True)
        ]
        weights = torch.softmax(torch.cat(scores, dim=2), dim=2).split(lens, dim=2)
        for piece, num_tokens, part in zip(pieces, lens, weights, strict=True):
            out[seq_idx].baddbmm_(part, copied(v_rows, piece, num_tokens))
    return out.view(q.shape)


def head_rows(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The caches as rows, each what one head keeps of one block, and the rows of each sequence.

    Where memory holds head after head, the rows are views. Otherwise the blocks of these sequences
    are put in that order first.

    Returns:
        keys and values, each [num_rows, block_size * head_dim]; and int64
        [num_seqs, num_kv_heads, max_num_blocks], which rows are a sequence's.
    """
    tables = block_tables.long()
    by_head = [cache.permute(2, 0, 1, 3) for cache in (k_cache, v_cache)]
    if not all(heads.is_contiguous() for heads in by_head):
        starts = torch.arange(tables.shape[1], device=tables.device) * k_cache.shape[1]
        block_ids = tables[starts < seq_lens[:, None]].unique()
        tables = torch.searchsorted(block_ids, tables)
        by_head = [heads[:, block_ids].contiguous() for heads in by_head]
    num_kv_heads, num_blocks, block_size, head_dim = by_head[0].shape
    first_rows = torch.arange(num_kv_heads, device=tables.device)[:, None] * num_blocks
    shape = (num_kv_heads * num_blocks, block_size * head_dim)
    k_rows, v_rows = (heads.view(shape) for heads in by_head)
    return k_rows, v_rows, tables[:, None] + first_rows
