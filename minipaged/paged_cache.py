"""Lesson 4: a KV cache in blocks, and attention that reads through the block table.

Follows `block_table.py` and `attention.py`. One memory serves all sequences; `slot_mapping` says
where new tokens are written, `block_tables` where old ones are. Shapes are the field's:

    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim], one layer
    slot_mapping       [num_tokens], slot = block_id * block_size + offset, -1 writes nothing
    block_tables       [num_seqs, max_num_blocks], padded with -1

Leaves out the Triton kernels (lesson 5) and who is served when (lesson 7).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .attention import attention
from .block_table import BlockPool, BlockTable, pad_block_tables
from .given.checkpoint import ModelConfig
from .given.cpu_decode import decode_by_pieces
from .given.validation import covered_blocks, validate_batch, validate_slots


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
            written. No slot appears twice.

    Raises:
        ValueError: naming a slot outside the cache. Then nothing has been written.
    """
    validate_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block_ids, offsets = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[block_ids, offsets] = k[written].to(k_cache.dtype)
    v_cache[block_ids, offsets] = v[written].to(v_cache.dtype)


def gather_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: Sequence[int], seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy the keys and values of one sequence out of its blocks, in the order of its tokens.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides.
        v_cache: like k_cache.
        block_table: ids of the sequence's blocks. Ids past those that `seq_len` needs may be
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


def paged_attention_one(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: Sequence[int],
    seq_len: int,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of one sequence whose keys and values are in blocks.

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


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of a batch whose keys and values are in blocks.

    Sequences with one query (decode) are attended together; the others (prefill, chunks of it)
    one by one. What free blocks hold, or slots past a length, cannot reach the result.

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
    starts, lens, tables = validate_batch(q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
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


def copy_blocks(
    k_cache: torch.Tensor, v_cache: torch.Tensor, copies: list[tuple[int, int]]
) -> None:
    """Copy whole blocks inside a cache; a copy-on-write of lesson 8 asks for it.

    Args:
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place.
        v_cache: like k_cache.
        copies: (source, destination) block ids; every source is read before anything is written.

    Raises:
        ValueError: naming a block outside the cache, or a destination named twice. Then
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
        return sum(int(cache.nbytes) for cache in self.k_cache + self.v_cache)

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
        validate_slots(slot_mapping, self.num_blocks * self.block_size)
        k_cache = self.k_cache[0]
        queries = k_cache.new_empty(len(slot_mapping), k_cache.shape[2], k_cache.shape[3])
        validate_batch(queries, k_cache, k_cache, block_tables, seq_lens, cu_seqlens_q)
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
