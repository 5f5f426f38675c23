"""Lesson 4: the pool of blocks, and the table that ties a sequence to its blocks.

Follows `paging.py`: a block is a frame, a block table a page table. Plain Python integers; the
tensors are in `paged_cache.py`. Leaves out sharing a prefix between requests, which is lesson 8.
"""

import heapq
from collections import Counter

import torch


class BlockPool:
    """Knows which blocks are free and how many owners each of the others has.

    Blocks are numbered 0 ... num_blocks - 1.

    Attributes:
        num_blocks: blocks in all.
        free_ids: the ids of free blocks, as a heap (`heapq`): the lowest id comes out first.
        ref_counts: owners of each block; 0 is free.

    >>> pool = BlockPool(6)
    >>> pool.allocate(2), pool.allocate(5), pool.num_free
    ([0, 1], None, 4)
    >>> pool.free([0]); pool.allocate(2)
    [0, 2]
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least 1 block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self.free_ids)

    def allocate(self, n: int) -> list[int] | None:
        """Take n different free blocks, lowest ids first, each with one owner.

        Args:
            n: how many; 0 gives [].

        Returns:
            Their ids in ascending order, or None when fewer than n are free. A refusal takes
            nothing.

        Raises:
            ValueError: naming n, when it is negative.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} blocks")
        if n > self.num_free:
            return None
        block_ids = [heapq.heappop(self.free_ids) for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def free(self, block_ids: list[int]) -> None:
        """Take one owner away from each block; a block whose last owner is gone is free again.

        Args:
            block_ids: in any order.

        Raises:
            ValueError: naming a block that is unknown, or that would lose more owners than it
                has. Then nothing has changed.
        """
        for block_id, times in Counter(block_ids).items():
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(f"block {block_id} is not in a pool of {self.num_blocks}")
            if times > self.ref_counts[block_id]:
                raise ValueError(f"block {block_id} is freed more often than it has owners")
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] == 0:
                heapq.heappush(self.free_ids, block_id)

    def share(self, block_ids: list[int]) -> None:
        """Add an owner to each block.

        Raises:
            ValueError: naming a block that is unknown or free. Then nothing has changed.
        """
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks or self.ref_counts[block_id] == 0:
                raise ValueError(f"block {block_id} is not in use, so it cannot be shared")
        for block_id in block_ids:
            self.ref_counts[block_id] += 1


def slot_of(block_ids: list[int], token_idx: int, block_size: int) -> int:
    """Find the place in memory of a token's keys and values.

    Slots number the places of the whole memory: block 0 has slots 0 ... block_size - 1, block 1 the
    next block_size, and so on.

    Args:
        block_ids: the sequence's blocks, in the order of its tokens.
        token_idx: which token of the sequence, from 0.
        block_size: tokens in a block.

    Returns:
        The token's slot.
    """
    return block_ids[token_idx // block_size] * block_size + token_idx % block_size


class BlockTable:
    """Ties the tokens of one sequence to blocks.

    Attributes:
        block_size: tokens in a block.
        block_ids: physical blocks, in the order of the tokens they hold.
        num_tokens: tokens of the sequence that have a slot.

    >>> table = BlockTable.of([12, 5, 3], num_tokens=10, block_size=4)
    >>> table.num_empty
    2
    """

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.block_ids: list[int] = []
        self.num_tokens = 0

    @classmethod
    def of(cls, block_ids: list[int], num_tokens: int, block_size: int) -> "BlockTable":
        """A table of blocks that have already been taken.

        Raises:
            ValueError: when the tokens need more or fewer blocks than there are.
        """
        table = cls(block_size)
        if num_tokens < 0 or len(block_ids) != -(-num_tokens // block_size):
            raise ValueError(
                f"{num_tokens} tokens in blocks of {block_size} do not make {len(block_ids)} blocks"
            )
        table.block_ids, table.num_tokens = list(block_ids), num_tokens
        return table

    @property
    def num_empty(self) -> int:
        """Slots of the last block that hold no token yet."""
        return len(self.block_ids) * self.block_size - self.num_tokens

    def slot(self, token_idx: int) -> int:
        """The slot of one token; ValueError where the sequence has no such token."""
        if not 0 <= token_idx < self.num_tokens:
            raise ValueError(f"token {token_idx} of a sequence of {self.num_tokens} tokens")
        return slot_of(self.block_ids, token_idx, self.block_size)

    def append(self, n: int, pool: BlockPool) -> list[int] | None:
        """Make room for n more tokens, taking blocks from the pool only where none is half empty.

        Args:
            n: how many tokens arrive; 0 gives [].
            pool: where new blocks come from.

        Returns:
            The new tokens' slots, in the order of the tokens; or None when the pool has too few
            blocks, and then neither table nor pool has changed.

        Raises:
            ValueError: naming n, when it is negative.
        """
        if n < 0:
            raise ValueError(f"cannot append {n} tokens")
        num_new_blocks = -(-(n - self.num_empty) // self.block_size)
        new_ids = pool.allocate(max(0, num_new_blocks))
        if new_ids is None:
            return None
        self.block_ids.extend(new_ids)
        self.num_tokens += n
        return [self.slot(idx) for idx in range(self.num_tokens - n, self.num_tokens)]

    def release(self, pool: BlockPool) -> None:
        """Give every block back; the table is empty afterwards."""
        pool.free(self.block_ids)
        self.block_ids, self.num_tokens = [], 0


def pad_block_tables(tables: list[BlockTable] | list[list[int]]) -> torch.Tensor:
    """The tables of a batch as one tensor.

    Args:
        tables: block tables, or bare lists of block ids.

    Returns:
        int32 [num_seqs, max_num_blocks], each row padded with -1 at its end.

    >>> pad_block_tables([[12, 5, 3], [7]]).tolist()
    [[12, 5, 3], [7, -1, -1]]
    """
    rows = [table.block_ids if isinstance(table, BlockTable) else table for table in tables]
    padded = torch.full((len(rows), max(map(len, rows), default=0)), -1, dtype=torch.int32)
    for row, block_ids in zip(padded, rows, strict=True):
        row[: len(block_ids)] = torch.tensor(block_ids, dtype=torch.int32)
    return padded
