"""Lesson 4: a KV cache in blocks, and attention that reads through the block table.

Follows `block_table.py` and `attention.py`. One memory serves all sequences; `slot_mapping` says
where new tokens are written, `block_tables` where old ones lie. Shapes are the field's:

    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim], one layer
    slot_mapping       [num_tokens], slot = block_id * block_size + offset, -1 writes nothing
    block_tables       [num_seqs, max_num_blocks], padded with -1

Leaves out the Triton kernels (lesson 5) and who is served when (lesson 7).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .attention import attention, causal_mask, check_attention_inputs, group_heads
from .block_table import BlockPool, BlockTable, pad_block_tables
from .cpu_decode import decode_by_pieces
from .model import ModelConfig


def write_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write the keys and values of new tokens into their slots, in place.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides.
        v_cache: like k_cache.
        k: [num_tokens, num_kv_heads, head_dim].
        v: like k.
        slot_mapping: int64 [num_tokens], the slot of each token; a token with slot -1 is not
            written. No slot stands twice.

    Raises:
        ValueError: naming a slot outside the cache. Then nothing has been written.
    """
    check_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block_ids, offsets = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[block_ids, offsets] = k[written].to(k_cache.dtype)
    v_cache[block_ids, offsets] = v[written].to(v_cache.dtype)


def check_slots(slot_mapping: torch.Tensor, num_slots: int) -> None:
    """Raise ValueError naming a slot that is neither -1 nor one of `num_slots`."""
    wrong = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)]
    if wrong.numel():
        raise ValueError(f"slot {int(wrong[0])} is outside a cache of {num_slots} slots")


def gather_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: Sequence[int], seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy the keys and values of one sequence out of its blocks, in the order of its tokens.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides.
        v_cache: like k_cache.
        block_table: ids of the sequence's blocks. Ids behind those that `seq_len` needs may be
            padding and are not looked at.
        seq_len: tokens of the sequence; the rest of its last block is not its own.

    Returns:
        k and v, each [seq_len, num_kv_heads, head_dim].

    Raises:
        ValueError: naming a table too short for seq_len, or a block outside the cache.
    """
    block_ids = covered_blocks(block_table, seq_len, k_cache.shape[0], k_cache.shape[1])
    index = torch.tensor(block_ids, dtype=torch.int64, device=k_cache.device)
    k = k_cache.index_select(0, index).flatten(0, 1)  # [slots of those blocks, heads, head_dim]
    v = v_cache.index_select(0, index).flatten(0, 1)
    return k[:seq_len], v[:seq_len]


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


def paged_attention_one(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: Sequence[int],
    seq_len: int,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of one sequence whose keys and values lie in blocks.

    Args:
        q: [query_len, num_query_heads, head_dim], the sequence's last tokens.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        v_cache: like k_cache.
        block_table: ids of the sequence's blocks.
        seq_len: tokens of the sequence, those of q included.
        softmax_scale: what scores are multiplied by; None is head_dim ** -0.5.

    Returns:
        [query_len, num_query_heads, head_dim] in q's dtype.
    """
    k, v = gather_kv(k_cache, v_cache, block_table, seq_len)
    return attention(q, k, v, softmax_scale)


def merge_two(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over some keys with attention over others into attention over both.

    The log-sum-exp of the scores is all that must be kept of the keys behind a partial result. It
    is -inf, and the partial result 0, where there were no keys.

    Args:
        out_a: float32 [..., head_dim], attention over the first keys alone.
        lse_a: float32 [...], natural log of the sum of exp(score) over the first keys.
        out_b: like out_a, over the other keys.
        lse_b: like lse_a.

    Returns:
        out [..., head_dim] and lse [...] over all keys.
    """
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == float("-inf"), 0.0, top)
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]
    return out / total.clamp(min=1e-30)[..., None], top + torch.log(total)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of a batch whose keys and values lie in blocks.

    Sequences with one query (decode) are attended together; the others (prefill, chunks of it)
    one by one. Whatever lies in free blocks, and in slots behind a length, cannot reach the result.

    Args:
        q: [num_tokens, num_query_heads, head_dim], the queries of all sequences in a row.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides, float32, float16
            or bfloat16.
        v_cache: like k_cache.
        block_tables: int32 [num_seqs, max_num_blocks], padded with -1.
        seq_lens: int32 [num_seqs], tokens of each sequence, its queries included; may be 0.
        cu_seqlens_q: int32 [num_seqs + 1], where each sequence's queries start, and at last
            num_tokens; None: one query a sequence.
        softmax_scale: what scores are multiplied by; None is head_dim ** -0.5.

    Returns:
        [num_tokens, num_query_heads, head_dim] in q's dtype; zeros where seq_len is 0.

    Raises:
        ValueError: naming what does not fit together.
    """
    starts, lens, tables = check_batch(q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    if starts == list(range(len(lens) + 1)):
        return decode_by_pieces(q, k_cache, v_cache, tables, lens, scale).to(q.dtype)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    decoding = []
    for seq_idx, seq_len in enumerate(lens):
        queries = slice(starts[seq_idx], starts[seq_idx + 1])
        if queries.stop - queries.start == 1:
            decoding.append(seq_idx)
        elif seq_len > 0 and queries.stop > queries.start:
            out[queries] = paged_attention_one(
                q[queries], k_cache, v_cache, tables[seq_idx].tolist(), seq_len, scale
            )
    if decoding:
        rows = [starts[seq_idx] for seq_idx in decoding]
        decoding_lens = [lens[seq_idx] for seq_idx in decoding]
        out[rows] = decode_by_pieces(
            q[rows], k_cache, v_cache, tables[decoding], decoding_lens, scale
        ).to(q.dtype)
    return out


def check_batch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
) -> tuple[list[int], list[int], np.ndarray]:
    """Raise ValueError where a batch does not fit together.

    Returns:
        Where each sequence's queries start, and at last their number; seq_lens; and block_tables:
        all on the CPU, where they are looked at.
    """
    if k_cache.dim() != 4:
        raise ValueError(
            "k_cache must be [num_blocks, block_size, num_kv_heads, head_dim], "
            f"got {list(k_cache.shape)}"
        )
    check_attention_inputs(q, k_cache[0], v_cache[0], causal=False)
    if block_tables.dim() != 2 or block_tables.shape[0] != seq_lens.shape[0]:
        raise ValueError(
            f"block_tables {list(block_tables.shape)} must have a row for each of "
            f"{seq_lens.shape[0]} seq_lens"
        )
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
    starts, lens, tables = check_batch(q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
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


def copy_blocks(
    k_cache: torch.Tensor, v_cache: torch.Tensor, copies: list[tuple[int, int]]
) -> None:
    """Copy whole blocks inside a cache; a copy-on-write of lesson 8 asks for it.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place.
        v_cache: like k_cache.
        copies: (source, destination) block ids; every source is read before anything is written.

    Raises:
        ValueError: naming a block outside the cache, or a destination that stands twice. Then
            nothing has been copied.
    """
    destinations = [destination for _, destination in copies]
    for block_id in {block_id for pair in copies for block_id in pair}:
        if not 0 <= block_id < k_cache.shape[0]:
            raise ValueError(f"block {block_id} is outside a cache of {k_cache.shape[0]} blocks")
        if destinations.count(block_id) > 1:
            raise ValueError(f"block {block_id} is the destination of two copies")
    sources = [source for source, _ in copies]
    k_cache[destinations] = k_cache[sources]
    v_cache[destinations] = v_cache[sources]


class PagedKVCache:
    """The keys and values of many sequences, in blocks of one memory.

    The memory holds head after head, which a CPU reads quickest; `k_cache` and `v_cache` are views
    of it in the field's order.

    Args:
        config: gives num_layers, num_kv_heads and head_dim.
        num_blocks: blocks in all.
        block_size: tokens in a block.
        dtype, device: of what is stored.
        attention_fn, store_fn: `paged_attention` and `write_kv`, or a kernel with their arguments.

    Attributes:
        k_cache, v_cache: per layer a view [num_blocks, block_size, num_kv_heads, head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention_fn: Callable[..., torch.Tensor] = paged_attention,
        store_fn: Callable[..., None] = write_kv,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"no cache of {num_blocks} blocks of {block_size} tokens")
        shape = (config.num_layers, config.num_kv_heads, num_blocks, block_size, config.head_dim)
        memory = torch.zeros(2, *shape, dtype=dtype, device=device)
        self.k_cache = list(memory[0].permute(0, 2, 3, 1, 4))
        self.v_cache = list(memory[1].permute(0, 2, 3, 1, 4))
        self.num_blocks, self.block_size = num_blocks, block_size
        self.device = torch.device(device)
        self.attention_fn, self.store_fn = attention_fn, store_fn

    @property
    def num_bytes(self) -> int:
        """Memory reserved for keys and values."""
        return 2 * len(self.k_cache) * self.k_cache[0].numel() * self.k_cache[0].element_size()

    def step(
        self,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> "PagedStep":
        """What the model needs to know for one forward pass over a batch.

        Args:
            block_tables: int32 [num_seqs, max_num_blocks], padded with -1.
            seq_lens: int32 [num_seqs], this pass's tokens included.
            cu_seqlens_q: int32 [num_seqs + 1], where each sequence's tokens of this pass start.
            slot_mapping: int64 [num_tokens], where each is written; -1 nowhere.

        Returns:
            An object whose `attend` the model calls in each layer.

        Raises:
            ValueError: naming a slot or block outside the cache, or what does not fit together.
        """
        check_slots(slot_mapping, self.num_blocks * self.block_size)
        k_cache = self.k_cache[0]
        queries = k_cache.new_empty(len(slot_mapping), k_cache.shape[2], k_cache.shape[3])
        check_batch(queries, k_cache, k_cache, block_tables, seq_lens, cu_seqlens_q)
        return PagedStep(self, block_tables, seq_lens, cu_seqlens_q, slot_mapping)

    def sequence(self, pool: BlockPool) -> "PagedSequence":
        """A cache for one sequence, fed from the pool, for `generate`."""
        if pool.num_blocks > self.num_blocks:
            raise ValueError(
                f"the pool hands out {pool.num_blocks} blocks, the cache has {self.num_blocks}"
            )
        return PagedSequence(self, pool)


@dataclass(slots=True)
class PagedStep:
    """One forward pass over a batch; made by `PagedKVCache.step`."""

    cache: PagedKVCache
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    slot_mapping: torch.Tensor

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write this pass's k and v into their slots, then attend through the tables.

        Args:
            layer_idx: which layer, from 0.
            q: [num_tokens, num_query_heads, head_dim].
            k: [num_tokens, num_kv_heads, head_dim].
            v: like k.

        Returns:
            [num_tokens, num_query_heads, head_dim].
        """
        k_cache, v_cache = self.cache.k_cache[layer_idx], self.cache.v_cache[layer_idx]
        self.cache.store_fn(k_cache, v_cache, k, v, self.slot_mapping)
        is_decode = len(q) == len(self.seq_lens)
        return self.cache.attention_fn(
            q,
            k_cache,
            v_cache,
            self.block_tables,
            self.seq_lens,
            **({} if is_decode else {"cu_seqlens_q": self.cu_seqlens_q}),
        )


class PagedSequence:
    """One sequence of a `PagedKVCache`, with the interface of the caches of lessons 1 and 2."""

    def __init__(self, cache: PagedKVCache, pool: BlockPool) -> None:
        self.cache, self.pool = cache, pool
        self.table = BlockTable(cache.block_size)
        self._step: PagedStep | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that have a slot."""
        return self.table.num_tokens

    def extend(self, n: int) -> bool:
        """Find slots for n more tokens; False when the pool is too small, and nothing changes."""
        slots = self.table.append(n, self.pool)
        if slots is None:
            return False
        device = self.cache.device
        self._step = self.cache.step(
            pad_block_tables([self.table]).to(device),
            torch.tensor([self.num_tokens], dtype=torch.int32, device=device),
            torch.tensor([0, n], dtype=torch.int32, device=device),
            torch.tensor(slots, dtype=torch.int64, device=device),
        )
        return True

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """As `PagedStep.attend`, for the tokens announced by `extend`."""
        if self._step is None or len(q) != len(self._step.slot_mapping):
            raise ValueError(f"attend got {len(q)} tokens that extend was not told of")
        return self._step.attend(layer_idx, q, k, v)

    def release(self) -> None:
        """End the sequence: its blocks are free for others."""
        self.table.release(self.pool)
        self._step = None
