"""Small helpers of the demonstrations: two requests in an aged pool, and what damage does to them.

Everything here starts from a pool that has been in use: other requests hold its blocks, and each
time somebody needs a block, one of those requests ends. So blocks lie scattered, as in a server.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from minipaged.block_table import BlockPool, BlockTable, pad_block_tables
from minipaged.course.lessons.lesson_00.demos import LILY, PIP
from minipaged.generation import greedy
from minipaged.given.model import Model
from minipaged.paged_cache import PagedKVCache, gather_kv, paged_attention, write_kv


def two_requests(
    turns: int = 10, pool_class: type = BlockPool, table_class: type = BlockTable
) -> tuple[BlockPool, BlockTable, BlockTable]:
    """A pool of 16 blocks of 4 and the tables of A and B, which grow by a token each in turn.

    Args:
        turns: A's tokens; B stops at 7.
        pool_class, table_class: the learner's, if they are ready.
    """
    pool, tables = pool_class(16), (table_class(4), table_class(4))
    pool.allocate(16)
    endings = iter((12, 7, 5, 9, 3))
    for turn in range(turns):
        for table in tables if turn < 7 else tables[:1]:
            take_slot(table, pool, endings)
    return pool, *tables


def take_slot(table: BlockTable, pool: BlockPool, endings: Iterator[int]) -> None:
    """Append one token; where no block is free, an older request ends first."""
    while table.append(1, pool) is None:
        pool.free([next(endings)])


class TwoStories:
    """A tells of Pip and B of Lily, by turns, in one memory of 64 blocks of 4 tokens.

    Args:
        model: tells the stories.
        poisoned: unwritten memory is NaN; else it holds an older story's keys and values.
        pool_class, table_class, store_fn, attention_fn: the learner's, if they are ready.

    Attributes:
        pool, cache: what both share.
        tables: of A and of B.
        token_ids: of A and of B, the prompts included; the last one of each is not fed yet.
    """

    def __init__(
        self,
        model: Model,
        poisoned: bool = False,
        pool_class: type = BlockPool,
        table_class: type = BlockTable,
        store_fn: Callable[..., None] = write_kv,
        attention_fn: Callable[..., torch.Tensor] = paged_attention,
    ) -> None:
        self.model = model
        self.cache = PagedKVCache(
            model.config, 64, block_size=4, attention_fn=attention_fn, store_fn=store_fn
        )
        self.fill_memory(poisoned)
        self.pool = pool_class(64)
        self.pool.allocate(64)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(4)).tolist()
        self.endings = iter(order)
        self.tables = [table_class(4), table_class(4)]
        self.token_ids = [model.tokenizer.encode(prompt) for prompt in (PIP, LILY)]

    def fill_memory(self, poisoned: bool) -> None:
        """What earlier requests have left in the blocks."""
        if poisoned:
            for layer in (*self.cache.k_cache, *self.cache.v_cache):
                layer.fill_(float("nan"))
            return
        ids = (self.model.tokenizer.encode(LILY.replace("Lily", "Sam")) * 256)[:256]
        older = self.cache.sequence(BlockPool(64))
        older.extend(256)
        self.model(ids, list(range(256)), older, logit_rows=[-1])

    def logits(
        self, who: int, block_ids: Sequence[int] | None = None, seq_len: int | None = None
    ) -> torch.Tensor:
        """Feed what is not fed yet, or the last token again.

        Args:
            who: 0 for A, 1 for B.
            block_ids: a table to read through instead of the true one.
            seq_len: a length to claim instead of the true one.

        Returns:
            The next token's logits [1, vocab_size].
        """
        table, ids = self.tables[who], self.token_ids[who]
        fed = list(range(min(table.num_tokens, len(ids) - 1), len(ids)))
        while table.num_tokens < len(ids):
            take_slot(table, self.pool, self.endings)
        step = self.cache.step(
            pad_block_tables([table.block_ids if block_ids is None else list(block_ids)]),
            torch.tensor([len(ids) if seq_len is None else seq_len], dtype=torch.int32),
            torch.tensor([0, len(fed)], dtype=torch.int32),
            torch.tensor([table.slot(idx) for idx in fed]),
        )
        return self.model([ids[idx] for idx in fed], fed, step, logit_rows=[-1])

    def tell(self, who: int, num_tokens: int) -> str:
        """Go on with one story; returns what was added."""
        start = len(self.token_ids[who])
        for _ in range(num_tokens):
            self.token_ids[who].append(greedy(self.logits(who)))
        return self.model.tokenizer.decode(self.token_ids[who][start:])

    def tell_both(self, num_tokens: int) -> None:
        """Go on with both, a token each in turn."""
        for _ in range(num_tokens):
            self.tell(0, 1)
            self.tell(1, 1)


def decode_rate(
    decode_step: Callable[..., list[int]], model: Model, batch_size: int, num_steps: int = 20
) -> float:
    """Tokens a second of a batch whose sequences hold 128 tokens each; the best of three tries.

    Args:
        decode_step: (model, cache, pool, tables, token_ids) -> the next token ids.
    """
    num_blocks = batch_size * 16
    pool, cache = BlockPool(num_blocks), PagedKVCache(model.config, num_blocks, block_size=16)
    tables = [BlockTable(16) for _ in range(batch_size)]
    best, token_ids = float("inf"), [5] * batch_size
    for table in tables:
        table.append(128, pool)  # what they hold does not matter to the clock
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(num_steps):
            token_ids = decode_step(model, cache, pool, tables, token_ids)
        best = min(best, time.perf_counter() - start)
    return batch_size * num_steps / best


def read_times(block_size: int, seq_len: int = 1024) -> tuple[float, float]:
    """Microseconds to copy keys and values of a sequence out of a slab, and out of its blocks."""
    num_blocks = 4 * seq_len // block_size
    cache = torch.zeros(2, num_blocks, block_size, 2, 32)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    table = order[: -(-seq_len // block_size)]
    slab = cache.view(2, -1, 2, 32)[:, :seq_len]
    return best_of(lambda: slab.clone()), best_of(
        lambda: gather_kv(cache[0], cache[1], table, seq_len)
    )


def best_of(work: Callable[[], object], repeats: int = 50) -> float:
    """Microseconds of the quickest of many runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e6
