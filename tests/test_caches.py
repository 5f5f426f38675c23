"""The same text and logits from every cache, and what a cache does when it is full."""

import pytest
import torch

from minipaged.block_table import BlockPool
from minipaged.contiguous_cache import ContiguousKVCache
from minipaged.generation import generate
from minipaged.given.model import Model
from minipaged.naive_cache import NaiveKVCache
from minipaged.paged_cache import PagedKVCache
from tests.twins import paged_attention_walk

OPENING = "Once upon a time there was a little girl named Lily."
BLOCK_SIZES = [1, 3, 4, 16]


@pytest.fixture(scope="module")
def model():
    return Model.load()


def paged(model, block_size, num_tokens=128, **options):
    num_blocks = -(-num_tokens // block_size)
    pool = BlockPool(num_blocks)
    aged = pool.allocate(num_blocks)  # every other block first: no table is in order
    pool.free(aged[1::2])
    cache = PagedKVCache(model.config, num_blocks, block_size, **options)
    for layer in range(model.config.num_layers):
        cache.k_cache[layer].fill_(float("nan"))
        cache.v_cache[layer].fill_(float("nan"))
    sequence = cache.sequence(pool)
    sequence.table.block_ids, rest = pool.allocate(0), aged[0::2]
    pool.free(rest)
    return sequence


def caches(model, num_tokens=128):
    yield "naive", NaiveKVCache(model.config)
    yield "contiguous", ContiguousKVCache(model.config, num_tokens)
    for block_size in BLOCK_SIZES:
        yield f"paged {block_size}", paged(model, block_size, num_tokens)
    yield "walked", paged(model, 4, num_tokens, attention_fn=paged_attention_walk)


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 15, 16, 17])
def test_every_cache_gives_the_same_greedy_text(model, prompt_len):
    prompt = (model.tokenizer.encode(OPENING) * 2)[:prompt_len]
    due = generate(model, prompt, max_new_tokens=24)
    assert len(due) > 0
    for name, cache in caches(model):
        assert generate(model, prompt, cache, max_new_tokens=24) == due, name
        assert cache.num_tokens == prompt_len + len(due) - (len(due) == 24), name


def test_every_cache_gives_the_same_logits_in_chunks(model):
    ids = model.tokenizer.encode(OPENING) * 2
    due = model(ids, range(len(ids)))
    for name, cache in caches(model):
        rows = []
        for start, stop in ((0, 7), (7, 8), (8, 9), (9, len(ids))):
            assert cache.extend(stop - start)
            rows.append(model(ids[start:stop], range(start, stop), cache))
        difference = (torch.cat(rows) - due).abs().max()
        assert difference < 1e-5 * due.abs().max(), name


def test_seeded_sampling_is_the_same_with_and_without_a_cache(model):
    options = {"max_new_tokens": 20, "temperature": 0.8, "seed": 7}
    due = generate(model, OPENING, **options)
    assert generate(model, OPENING, paged(model, 3), **options) == due


def test_full_cache_is_named_and_left_as_it_was(model):
    prompt = model.tokenizer.encode(OPENING)
    for name, cache in list(caches(model, len(prompt) - 1))[1:]:
        room = cache.pool.num_free if hasattr(cache, "pool") else None
        if room is not None and (len(prompt) - 1) % cache.cache.block_size:
            continue  # the last block has room for one more
        with pytest.raises(RuntimeError, match="full"):
            generate(model, prompt, cache, max_new_tokens=4)
        assert cache.num_tokens == 0, name
        if room is not None:
            assert cache.pool.num_free == room


def test_bad_tokens_leave_the_cache_alone(model):
    for name, cache in caches(model):
        with pytest.raises(ValueError, match="5000"):
            generate(model, [1, 5000], cache)
        assert cache.num_tokens == 0, name


@pytest.mark.parametrize("make", [NaiveKVCache, lambda config: ContiguousKVCache(config, 8)])
def test_negative_extension_is_refused(model, make):
    with pytest.raises(ValueError, match="-1"):
        make(model.config).extend(-1)


def test_contiguous_cache_hands_out_views_of_its_slab(model):
    cache = ContiguousKVCache(model.config, 10)
    cache.extend(3)
    ones = torch.ones(3, model.config.num_kv_heads, model.config.head_dim)
    k, v = cache.append(0, ones, 2 * ones)
    assert k.data_ptr() == cache.k.data_ptr() and v.shape[0] == 3
    assert not cache.extend(8) and cache.num_tokens == 3


def test_attend_without_extend_is_refused(model):
    config = model.config
    q = torch.zeros(2, config.num_query_heads, config.head_dim)
    k = torch.zeros(2, config.num_kv_heads, config.head_dim)
    for cache in (ContiguousKVCache(config, 8), paged(model, 4)):
        with pytest.raises(ValueError, match="2 tokens"):
            cache.attend(0, q, k, k)


def test_released_sequence_gives_every_block_back(model):
    sequence = paged(model, 4)
    free = sequence.pool.num_free
    generate(model, OPENING, sequence, max_new_tokens=9)
    assert sequence.pool.num_free < free
    sequence.release()
    assert sequence.pool.num_free == free and sequence.num_tokens == 0
