"""Lesson 4: decode attention over blocks, made fast on a CPU.

Follows `block_table.py`; `paged_attention` hands it every sequence that has one query. Given, and
worth a read after the lesson: no keys or values are copied, the blocks are read where they lie.
Leaves out the GPU, where a kernel does better: lesson 5.
"""

from collections.abc import Iterator

import torch

MIN_RUN = 16  # blocks side by side that are worth an operation of their own
MAX_RUN = 1024  # blocks at a time: what is made of them stays in the CPU's cache


def decode_in_place(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One query each of some sequences, the blocks read where they lie.

    Copying keys and values together first costs as much as attending to them. So the work is
    turned round: every block gets a copy of its sequence's query, which is small, and the blocks
    are visited in the order of memory, whoever owns them. Each gives its scores and its share of
    the sum of values; the shares of a sequence are added up.

    Args:
        q: [num_seqs, num_query_heads, head_dim].
        block_tables: [num_seqs, max_num_blocks], padded.
        seq_lens: [num_seqs], at least 1.

    Returns:
        float32 [num_seqs, num_query_heads, head_dim].
    """
    num_seqs, num_query_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    width = -(-int(seq_lens.max()) // block_size)
    used = seq_lens[:, None] - torch.arange(0, width * block_size, block_size, device=q.device)
    places = (used > 0).flatten().nonzero()[:, 0]  # seq_idx * width + column
    block_ids, order = block_tables[:, :width].flatten()[places].long().sort()
    places = places[order]
    owners = places // width
    runs = memory_runs(block_ids)
    is_partial = used.flatten()[places] < block_size
    any_partial = bool(is_partial.any())

    # a row of scores for each block [num_query_heads * block_size], then one for each query
    rows = torch.empty(len(places), num_query_heads * block_size, device=q.device)
    scaled_q = q.flatten(1).float() * scale
    for start, stop, keys in visit_blocks(k_cache, block_ids, runs):
        queries = scaled_q.index_select(0, owners[start:stop]).view(-1, group_size, head_dim)
        torch.bmm(
            queries, keys.transpose(1, 2), out=rows[start:stop].view(-1, group_size, block_size)
        )
    scores = rows.new_full((num_seqs * width, rows.shape[1]), float("-inf"))
    scores.index_copy_(0, places, rows)
    scores = scores.view(num_seqs, width, num_query_heads, block_size).transpose(1, 2).flatten(2)
    if any_partial:
        token_idx = torch.arange(width * block_size, device=q.device)
        scores.masked_fill_((token_idx >= seq_lens[:, None])[:, None], float("-inf"))
    weights = torch.softmax(scores, dim=2).unflatten(2, (width, block_size)).transpose(1, 2)
    rows = weights.reshape(num_seqs * width, -1).index_select(0, places)

    mixed = torch.zeros_like(scaled_q)
    for start, stop, values in visit_blocks(v_cache, block_ids, runs):
        shares = torch.bmm(rows[start:stop].view(-1, group_size, block_size), values)
        shares = shares.view(stop - start, -1)
        if any_partial:
            shares.masked_fill_(is_partial[start:stop, None], 0.0)
        mixed.index_add_(0, owners[start:stop], shares)
    if any_partial:  # weight 0 does not silence NaN behind a length: these from a copy with zeros
        last = is_partial.nonzero()[:, 0]
        values = v_cache[block_ids[last]].float().transpose(1, 2)
        token_idx = torch.arange(block_size, device=q.device)
        unused = token_idx >= used.flatten()[places[last], None]
        values = values.masked_fill(unused[:, None, :, None], 0.0)
        shares = rows[last].view(-1, num_kv_heads, group_size, block_size) @ values
        mixed.index_add_(0, owners[last], shares.flatten(1))
    return mixed.view(q.shape)


def memory_runs(block_ids: torch.Tensor) -> list[tuple[int, int, bool]]:
    """Cut ascending block ids into stretches: (start, stop, whether the ids follow one another).

    No stretch is longer than MAX_RUN. Stretches shorter than MIN_RUN are joined to one with gaps.

    >>> memory_runs(torch.tensor([*range(40), 50, 60]))
    [(0, 40, True), (40, 42, False)]
    """
    gaps = (block_ids.diff() != 1).nonzero()[:, 0] + 1
    bounds = [0, *gaps.tolist(), len(block_ids)]
    runs: list[tuple[int, int, bool]] = []
    for first, last in zip(bounds, bounds[1:]):
        for start in range(first, last, MAX_RUN):
            stop = min(start + MAX_RUN, last)
            adjacent = stop - start >= MIN_RUN
            if not adjacent and runs and not runs[-1][2] and stop - runs[-1][0] <= MAX_RUN:
                start = runs.pop()[0]
            runs.append((start, stop, adjacent))
    return runs


def visit_blocks(
    cache: torch.Tensor, block_ids: torch.Tensor, runs: list[tuple[int, int, bool]]
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield stretches of blocks: a view where they are adjacent, else a copy. Reads each once.

    Yields:
        start, stop, and the blocks block_ids[start:stop] as float32
        [(stop - start) * num_kv_heads, block_size, head_dim].
    """
    for start, stop, adjacent in runs:
        if adjacent:
            first = int(block_ids[start])
            blocks = cache[first : first + stop - start]
        else:
            blocks = cache.index_select(0, block_ids[start:stop])
        yield start, stop, blocks.transpose(1, 2).flatten(0, 1).float()
