"""Pool and tables keep their invariants, whatever is asked of them."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minipaged.block_table import BlockPool, BlockTable, pad_block_tables, slot_of

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """Sequences that grow, share, and end, in a pool of 12 blocks."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[BlockTable] = []
        self.block_size = 4

    @rule(block_size=st.integers(1, 5))
    def begin(self, block_size):
        self.tables.append(BlockTable(block_size))

    @rule(data=st.data(), n=st.integers(0, 20))
    def grow(self, data, n):
        if self.tables:
            table = data.draw(st.sampled_from(self.tables))
            ids, tokens, free = list(table.block_ids), table.num_tokens, self.pool.num_free
            slots = table.append(n, self.pool)
            needed = max(0, -(-(tokens + n) // table.block_size) - len(ids))
            if slots is None:
                assert needed > free
                assert (table.block_ids, table.num_tokens) == (ids, tokens)
                assert self.pool.num_free == free
            else:
                assert needed <= free and table.block_ids[: len(ids)] == ids
                assert slots == [table.slot(i) for i in range(tokens, tokens + n)]

    @rule(data=st.data())
    def end(self, data):
        if self.tables:
            table = data.draw(st.sampled_from(self.tables))
            table.release(self.pool)
            assert table.block_ids == [] and table.num_tokens == 0
            self.tables.remove(table)

    @rule(data=st.data())
    def fork(self, data):
        if self.tables:
            table = data.draw(st.sampled_from(self.tables))
            if table.num_empty == 0:  # a half-empty block needs copy on write: lesson 8
                self.pool.share(table.block_ids)
                args = (table.block_ids, table.num_tokens, table.block_size)
                self.tables.append(BlockTable.of(*args))

    @rule(data=st.data())
    def misuse(self, data):
        free = [b for b in range(NUM_BLOCKS) if self.pool.ref_counts[b] == 0]
        bad = data.draw(st.sampled_from([*free, -1, NUM_BLOCKS]))
        used = [b for b in range(NUM_BLOCKS) if self.pool.ref_counts[b]]
        counts = list(self.pool.ref_counts)
        for call in (self.pool.free, self.pool.share):
            with pytest.raises(ValueError, match=str(bad)):
                call([*used, bad])
        assert self.pool.ref_counts == counts

    @invariant()
    def every_block_has_as_many_owners_as_tables_hold_it(self):
        held = [block_id for table in self.tables for block_id in table.block_ids]
        assert self.pool.ref_counts == [held.count(b) for b in range(NUM_BLOCKS)]
        assert sorted(self.pool.free_ids) == [b for b in range(NUM_BLOCKS) if b not in held]
        assert self.pool.num_free + len(set(held)) == NUM_BLOCKS

    @invariant()
    def no_slot_belongs_to_two_unshared_tokens(self):
        blocks = [b for t in self.tables for b in t.block_ids if self.pool.ref_counts[b] == 1]
        assert len(blocks) == len(set(blocks))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=30)


def test_pool_hands_out_the_lowest_ids_and_reuses_freed_ones_in_order():
    pool = BlockPool(6)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.free([3, 0])
    assert pool.allocate(3) == [0, 3, 4]


def test_refused_allocation_takes_nothing():
    pool = BlockPool(3)
    assert pool.allocate(5) is None and pool.num_free == 3


def test_double_free_in_one_call_changes_nothing():
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(ValueError, match="block 1"):
        pool.free([0, 1, 1])
    assert pool.ref_counts == [1, 1, 0] and pool.num_free == 1


def test_blocks_are_taken_when_a_token_arrives_and_not_before():
    pool, table = BlockPool(9), BlockTable(4)
    table.append(8, pool)
    assert len(table.block_ids) == 2
    assert table.append(1, pool) == [8] and len(table.block_ids) == 3
    assert table.append(0, pool) == []


def test_the_running_example():
    table = BlockTable.of([12, 5, 3], num_tokens=10, block_size=4)
    assert table.slot(9) == 13 and slot_of([12, 5, 3], 0, 4) == 48
    assert table.num_empty == 2


@pytest.mark.parametrize("bad", [-1, 10, 11])
def test_slot_of_a_token_that_is_not_there_raises(bad):
    with pytest.raises(ValueError, match=f"token {bad} "):
        BlockTable.of([12, 5, 3], 10, 4).slot(bad)


@pytest.mark.parametrize("num_tokens", [8, 13, -1])
def test_table_whose_blocks_do_not_fit_its_tokens_is_refused(num_tokens):
    with pytest.raises(ValueError, match=f"{num_tokens} tokens"):
        BlockTable.of([12, 5, 3], num_tokens, 4)


def test_numbers_below_their_limits_are_named():
    for call in (lambda: BlockPool(0), lambda: BlockTable(0)):
        with pytest.raises(ValueError, match="0"):
            call()
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="-2"):
        pool.allocate(-2)
    with pytest.raises(ValueError, match="-2"):
        BlockTable(4).append(-2, pool)


def test_padded_tables_are_int32_and_a_shorter_row_ends_in_padding():
    padded = pad_block_tables([BlockTable.of([4, 2, 7, 1], 16, 4), [3]])
    assert padded.dtype == torch.int32
    assert padded.tolist() == [[4, 2, 7, 1], [3, -1, -1, -1]]
    assert pad_block_tables([]).shape == (0, 0)
