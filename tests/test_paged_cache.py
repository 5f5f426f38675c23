"""Attention through block tables against plain attention, in poisoned memory."""

import itertools

import pytest
import torch

from minipaged.attention import attention
from minipaged.block_table import BlockPool, pad_block_tables, slot_of
from minipaged.given import cpu_decode
from minipaged.given.model import ModelConfig
from minipaged.paged_cache import (
    PagedKVCache,
    copy_blocks,
    gather_kv,
    paged_attention,
    paged_attention_one,
    write_kv,
)
from minipaged.triton_kernels import merge_two
from tests.twins import paged_attention_walk

FORMS = [paged_attention, paged_attention_walk]
CONFIG = ModelConfig(
    num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8, hidden_size=48, vocab_size=32,
    max_seq_len=64,
)  # fmt: skip


class Batch:
    """A batch in memory full of NaN, and the results that are due."""

    def __init__(self, lens, query_lens, block_size=4, group_size=3, dtype=torch.float32,
                 layout="heads first", shuffled=True, num_kv_heads=2, head_dim=8, seed=0):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        num_blocks = sum(-(-n // block_size) for n in lens) + 5
        if layout == "heads first":
            memory = torch.full((2, num_blocks, num_kv_heads, block_size, head_dim), torch.nan)
            self.k_cache, self.v_cache = memory.to(dtype).transpose(2, 3)
        elif layout == "head major":
            memory = torch.full((2, num_kv_heads, num_blocks, block_size, head_dim), torch.nan)
            self.k_cache, self.v_cache = memory.to(dtype).permute(0, 2, 3, 1, 4)
        elif layout == "wider":  # a slice of a larger cache
            memory = torch.full(
                (2, num_blocks, block_size, num_kv_heads + 1, head_dim + 3), torch.nan
            )
            self.k_cache, self.v_cache = memory.to(dtype)[..., :num_kv_heads, :head_dim]
        else:
            memory = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), torch.nan)
            self.k_cache, self.v_cache = memory.to(dtype)
        order = (
            torch.randperm(num_blocks, generator=generator)
            if shuffled
            else torch.arange(num_blocks)
        )
        ids = iter(order.tolist())
        self.tables = [list(itertools.islice(ids, -(-n // block_size))) for n in lens]
        due = []
        qs = []
        for table, seq_len, query_len in zip(self.tables, lens, query_lens):
            k, v = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator).to(dtype)
            q = torch.randn(query_len, num_kv_heads * group_size, head_dim, generator=generator)
            slots = torch.tensor([slot_of(table, i, block_size) for i in range(seq_len)])
            write_kv(self.k_cache, self.v_cache, k, v, slots.long())
            due.append(attention(q, k, v) if seq_len else torch.zeros_like(q))
            qs.append(q)
        self.q, self.due = torch.cat(qs), torch.cat(due)
        self.seq_lens = torch.tensor(lens, dtype=torch.int32)
        self.cu_seqlens_q = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
        self.block_tables = pad_block_tables(self.tables)

    def run(self, form, **options):
        return form(self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens,
                    self.cu_seqlens_q, **options)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["heads first", "head major", "field", "wider"])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("group_size", [1, 3, 4])
def test_mixed_batches_equal_plain_attention(form, layout, block_size, group_size):
    bs = block_size
    batch = Batch([1, 0, bs, bs + 1, 3 * bs - 1, 7, 9], [1, 0, 1, 1, 1, 7, 3], bs, group_size,
                  layout=layout)  # fmt: skip
    torch.testing.assert_close(batch.run(form), batch.due, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_storage_is_read_exactly(form, dtype):
    batch = Batch([5, 9, 2], [1, 2, 1], dtype=dtype)
    torch.testing.assert_close(batch.run(form), batch.due, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("piece", [1, 40, 10**6])
@pytest.mark.parametrize("head_major", [True, False])
def test_decode_is_the_same_in_pieces_of_any_size_and_either_layout(piece, head_major, monkeypatch):
    monkeypatch.setattr(cpu_decode, "PIECE", piece)
    batch = Batch([40, 0, 3, 17, 64], [1, 1, 1, 1, 1])
    if head_major:
        for name in ("k_cache", "v_cache"):
            by_head = getattr(batch, name).permute(2, 0, 1, 3).contiguous()
            setattr(batch, name, by_head.permute(1, 2, 0, 3))
    torch.testing.assert_close(batch.run(paged_attention), batch.due, atol=1e-5, rtol=1e-5)


def test_two_sequences_may_share_blocks():
    batch = Batch([8, 8], [1, 1])
    batch.block_tables[1] = batch.block_tables[0]
    q = batch.q[:1].repeat(2, 1, 1)
    out = paged_attention(q, batch.k_cache, batch.v_cache, batch.block_tables, batch.seq_lens)
    torch.testing.assert_close(out[0], out[1])
    torch.testing.assert_close(out[0], batch.due[0])


@pytest.mark.parametrize("form", FORMS)
def test_ids_behind_the_length_are_never_read(form):
    batch = Batch([5, 9], [1, 1])
    batch.block_tables = torch.cat([batch.block_tables, torch.full((2, 2), 2**30)], 1).int()
    batch.block_tables[0, 2:] = -7
    torch.testing.assert_close(batch.run(form), batch.due, atol=1e-5, rtol=1e-5)


def test_non_contiguous_queries_and_scale():
    batch = Batch([5, 9, 3], [1, 1, 1])
    packed = torch.randn(3, 100)
    q = packed[:, 7:55].view(3, 6, 8)
    args = (batch.k_cache, batch.v_cache, batch.block_tables, batch.seq_lens)
    out = paged_attention(q, *args, softmax_scale=0.3)
    for row, (table, seq_len) in enumerate(zip(batch.tables, (5, 9, 3))):
        k, v = gather_kv(batch.k_cache, batch.v_cache, table, seq_len)
        torch.testing.assert_close(out[row], attention(q[row : row + 1], k, v, 0.3)[0])


def test_batches_without_keys_or_without_sequences():
    batch = Batch([0, 0], [1, 1])
    assert batch.run(paged_attention).abs().max() == 0
    empty = Batch([3], [1])
    out = paged_attention(empty.q[:0], empty.k_cache, empty.v_cache, empty.block_tables[:0],
                          empty.seq_lens[:0])  # fmt: skip
    assert out.shape == (0, 6, 8)


def test_gather_cuts_the_tail_and_keeps_the_order():
    batch = Batch([10], [10])
    k, v = gather_kv(batch.k_cache, batch.v_cache, [*batch.tables[0], -1], 10)
    assert k.shape == (10, 2, 8) and torch.isfinite(k).all() and torch.isfinite(v).all()
    torch.testing.assert_close(attention(batch.q, k, v), batch.due)
    one = paged_attention_one(batch.q, batch.k_cache, batch.v_cache, batch.tables[0], 10)
    torch.testing.assert_close(one, batch.due)


def test_slot_minus_one_writes_nothing():
    k_cache = torch.zeros(3, 4, 2, 8)
    v_cache = torch.zeros(3, 4, 2, 8)
    k = torch.ones(3, 2, 8)
    write_kv(k_cache, v_cache, k, k, torch.tensor([5, -1, -1]))
    assert k_cache[1, 1].min() == 1 and k_cache.sum() == v_cache.sum() == 16


@pytest.mark.parametrize("bad", [12, -2])
def test_slot_outside_the_cache_is_named_and_nothing_is_written(bad):
    k_cache, v_cache = torch.zeros(2, 3, 4, 2, 8)
    ones = torch.ones(2, 2, 8)
    with pytest.raises(ValueError, match=f"slot {bad} "):
        write_kv(k_cache, v_cache, ones, ones, torch.tensor([0, bad]))
    assert k_cache.abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda b: b.block_tables.fill_(99), "block 99 "),
        (lambda b: b.block_tables.fill_(-1), "block -1 "),
        (lambda b: b.seq_lens.fill_(40), "seq_len 40 needs"),
        (lambda b: b.cu_seqlens_q.fill_(1), "cu_seqlens_q"),
        (lambda b: setattr(b, "q", b.q[:, :5]), "num_query_heads 5"),
        (lambda b: setattr(b, "block_tables", b.block_tables[:1]), "block_tables"),
        (lambda b: setattr(b, "seq_lens", torch.tensor([1, 1], dtype=torch.int32)), "1 tokens"),
        (lambda b: setattr(b, "k_cache", b.k_cache[0]), "k_cache must be"),
    ],
)
def test_batches_that_do_not_fit_are_named(form, damage, words):
    batch = Batch([5, 9], [1, 2])
    damage(batch)
    with pytest.raises(ValueError, match=words):
        batch.run(form)


def test_gather_names_a_table_that_is_too_short():
    batch = Batch([9], [1])
    with pytest.raises(ValueError, match="seq_len 13 needs 4 blocks"):
        gather_kv(batch.k_cache, batch.v_cache, batch.tables[0], 13)


def test_merging_partial_results_equals_attention_over_all_keys():
    q, k, v = torch.randn(1, 8, dtype=torch.double), *torch.randn(2, 11, 8, dtype=torch.double)

    def part(keys, values):
        scores = q @ keys.T
        return scores.softmax(-1) @ values, scores.logsumexp(-1)

    out, lse = merge_two(*part(k[:4], v[:4]), *part(k[4:], v[4:]))
    torch.testing.assert_close((out, lse), part(k, v))
    empty = (torch.zeros(1, 8).double(), torch.full((1,), -torch.inf).double())
    torch.testing.assert_close(merge_two(*part(k, v), *empty), part(k, v))
    torch.testing.assert_close(merge_two(*empty, *empty), empty)


def test_copy_blocks_reads_before_it_writes():
    k_cache = torch.arange(4.0)[:, None, None, None].expand(4, 2, 1, 3).clone()
    v_cache = -k_cache
    copy_blocks(k_cache, v_cache, [(0, 1), (1, 2)])
    assert k_cache[:, 0, 0, 0].tolist() == [0, 0, 1, 3] and torch.equal(v_cache, -k_cache)
    for copies, words in (([(0, 9)], "block 9"), ([(0, 2), (1, 2)], "block 2")):
        before = k_cache.clone()
        with pytest.raises(ValueError, match=words):
            copy_blocks(k_cache, v_cache, copies)
        assert torch.equal(k_cache, before)


def test_cache_of_no_blocks_and_a_pool_too_large_are_refused():
    with pytest.raises(ValueError, match="0 blocks"):
        PagedKVCache(CONFIG, 0)
    cache = PagedKVCache(CONFIG, 4, 4)
    with pytest.raises(ValueError, match="5 blocks"):
        cache.sequence(BlockPool(5))
    assert cache.k_cache[1].shape == (4, 4, 2, 8) and cache.num_bytes == 2 * 2 * 4 * 4 * 2 * 8 * 4


def test_step_refuses_bad_slots_before_anything_is_written():
    cache = PagedKVCache(CONFIG, 4, 4)
    ints = {"dtype": torch.int32}
    with pytest.raises(ValueError, match="slot 16"):
        cache.step(torch.tensor([[0]], **ints), torch.tensor([1], **ints),
                   torch.tensor([0, 1], **ints), torch.tensor([16]))  # fmt: skip
