"""Lesson 4: decode attention over blocks, made fast on a CPU.

Follows `block_table.py`; `paged_attention` hands it every sequence that has one query. Given, and
worth a read after the lesson. Leaves out the GPU, where a kernel does better: lesson 5.
"""

import torch

PIECE = 1 << 17  # numbers copied together at a time: few enough to stay in a CPU's cache


def decode_by_pieces(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
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
        block_tables: [num_seqs, max_num_blocks], padded.
        seq_lens: [num_seqs], may be 0.

    Returns:
        float32 [num_seqs, num_query_heads, head_dim]; zeros where seq_len is 0.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    grouped_q = (q.float() * scale).view(num_seqs, num_kv_heads, group_size, head_dim)
    out = torch.zeros_like(grouped_q)
    k_rows, v_rows, rows = head_rows(k_cache, v_cache, block_tables, seq_lens)
    step = max(1, PIECE // k_cache[0].numel())  # blocks in a piece
    pieces = cut_pieces(rows, seq_lens, block_size, step)
    scratch = k_rows.new_empty(step * num_kv_heads, block_size * head_dim)
    places = {}  # by number of rows: where they are copied to, and the same as tokens

    def copied(source: torch.Tensor, piece: torch.Tensor, num_tokens: int) -> torch.Tensor:
        num_rows = len(piece)
        if num_rows not in places:
            place = scratch[:num_rows]
            places[num_rows] = place, place.view(num_kv_heads, -1, head_dim)
        place, side = places[num_rows]
        torch.index_select(source, 0, piece, out=place)
        return side.float() if side.shape[1] == num_tokens else side[:, :num_tokens].float()

    for seq_q, seq_pieces, seq_out in zip(grouped_q.unbind(), pieces, out.unbind(), strict=True):
        scores = [
            torch.bmm(seq_q, copied(k_rows, piece, num_tokens).transpose(1, 2))
            for piece, num_tokens in seq_pieces
        ]
        if not scores:
            continue
        joined = scores[0] if len(scores) == 1 else torch.cat(scores, dim=2)
        weights = torch.softmax(joined, dim=2).split([part.shape[2] for part in scores], dim=2)
        for (piece, num_tokens), part in zip(seq_pieces, weights, strict=True):
            seq_out.baddbmm_(part, copied(v_rows, piece, num_tokens))
    return out.view(q.shape)


def cut_pieces(
    rows: torch.Tensor, seq_lens: torch.Tensor, block_size: int, step: int
) -> list[list[tuple[torch.Tensor, int]]]:
    """Cut each sequence into pieces of at most `step` blocks.

    Args:
        rows: [num_seqs, num_kv_heads, max_num_blocks], as `head_rows` gives them.

    Returns:
        For each sequence its pieces: the rows, head after head, and the tokens that they hold.
    """
    lens = seq_lens.tolist()
    pieces: list[list[tuple[torch.Tensor, int]]] = [[] for _ in lens]
    starts = torch.arange(rows.shape[2], device=rows.device) * block_size
    covered = (starts < seq_lens[:, None])[:, None].expand(rows.shape)
    for first in range(0, -(-max(lens, default=0) // block_size), step):
        columns = slice(first, first + step)
        most = step * block_size
        tokens = [min(max(seq_len - first * block_size, 0), most) for seq_len in lens]
        sizes = [-(-num_tokens // block_size) * rows.shape[1] for num_tokens in tokens]
        chosen = rows[:, :, columns][covered[:, :, columns]].split(sizes)
        for seq_pieces, piece, num_tokens in zip(pieces, chosen, tokens, strict=True):
            if num_tokens:
                seq_pieces.append((piece, num_tokens))
    return pieces


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
