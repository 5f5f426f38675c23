"""The checks of lesson 4."""

from collections.abc import Sequence
from typing import Any

import torch

from minipaged.attention import attention

from ...kit.checks import Draw, check_for, poisoned
from ...kit.expecting import Words, expect, expect_error, expect_tensor, fail, value
from ...kit.subject import Ref, Reply, Subject

POOL = "minipaged.block_table:BlockPool"
NUM_KV_HEADS, HEAD_DIM = 2, 8


# --- 04.1, the pool ----------------------------------------------------------------------------


@check_for("04.1")
def check_block_pool(subject: Subject, draw: Draw) -> None:
    """Take blocks until none is left, give them back, too often as well, and share them."""
    check_taking(subject, draw)
    check_freeing(subject, draw)
    check_owners(subject, draw)


def check_taking(subject: Subject, draw: Draw) -> None:
    """Three blocks; then more than there are, exactly all, none, fewer than none."""
    num_blocks = draw.choice([8, 9, 10])
    pool = subject.new("BlockPool", num_blocks)
    num_free = num_blocks - 3

    def allocate(n: int, due: list[int] | None, rule: str) -> None:
        reply = subject.call((pool, "allocate"), n)
        expect(value(reply, "too few" if due is None else ""), due, rule)

    allocate(3, [0, 1, 2], "lowest first")
    expect(subject.get(pool, "num_free"), num_free, "taken")
    expect(subject.get(pool, "ref_counts"), [1] * 3 + [0] * num_free, "one owner")
    allocate(num_free + 1, None, "too few")
    expect(subject.get(pool, "num_free"), num_free, "too few")
    allocate(num_free, list(range(3, num_blocks)), "enough")
    allocate(0, [], "enough")
    expect_error(subject.call((pool, "allocate"), -2), "ValueError", -2, "negative")


def check_freeing(subject: Subject, draw: Draw) -> None:
    """Free in any order and take again; free what is free, twice what is owned once, and what does
    not exist."""
    num_blocks = draw.choice([8, 9, 10])
    pool = subject.new("BlockPool", num_blocks)
    value(subject.call((pool, "allocate"), num_blocks))
    block_ids = [idx for idx in draw.permutation(num_blocks) if idx not in (1, 4)][:4]
    while block_ids[0] == min(block_ids):
        draw.shuffle(block_ids)
    reply = subject.call((pool, "free"), block_ids)
    value(reply, {"ValueError": "freed"})
    expect(reply.args_after[0], block_ids, "reads")
    expect(subject.get(pool, "num_free"), 4, "freed")
    lowest = sorted(block_ids)
    for due in (lowest[:2], lowest[2:]):
        expect(value(subject.call((pool, "allocate"), 2)), due, "lowest first")

    free = block_ids[0]
    value(subject.call((pool, "free"), [free]), {"ValueError": "freed"})
    counts = subject.get(pool, "ref_counts")
    for wrong, named, rule in (
        ([free], free, "too often"),
        ([1, free], free, "too often"),
        ([4, 4], 4, "too often"),
        ([1, num_blocks], num_blocks, "unknown"),
        ([-1], -1, "unknown"),
    ):
        expect_error(subject.call((pool, "free"), wrong), "ValueError", named, rule)
        expect(subject.get(pool, "num_free"), 1, "refused")
        expect(subject.get(pool, "ref_counts"), counts, "refused")


def check_owners(subject: Subject, draw: Draw) -> None:
    """Blocks with two owners, who leave one after the other or together; a second pool."""
    pool = subject.new("BlockPool", 6)
    first = draw.randrange(5)
    second = (first + 1) % 5

    def free(block_ids: list[int], num_free: int) -> None:
        value(subject.call((pool, "free"), block_ids), {"ValueError": "freed"})
        expect(subject.get(pool, "num_free"), num_free, "freed")

    value(subject.call((pool, "allocate"), 5))
    value(subject.call((pool, "share"), [first]))
    subject.new("BlockPool", 3)
    expect(subject.get(pool, "num_free"), 1, "of its own")
    free([first], 1)
    free([first], 2)
    value(subject.call((pool, "share"), [second]))
    free([second, second], 3)
    expect(value(subject.call((pool, "allocate"), 3)), sorted([first, second, 5]), "lowest first")


# --- 04.2, the slot ----------------------------------------------------------------------------


@check_for("04.2")
def check_slot_of(subject: Subject, draw: Draw) -> None:
    """Every token of four scattered blocks."""
    block_size = draw.choice([3, 5, 7])
    block_ids = draw.sample(range(2, 20), 4)
    while block_ids == sorted(block_ids):
        draw.shuffle(block_ids)
    for idx in draw.permutation(4 * block_size):
        reply = subject.call("slot_of", block_ids, idx, block_size)
        saw = value(reply, {"IndexError": "block"})
        expect(saw, slot(block_ids, idx, block_size), "slot")
        expect(reply.args_after[0], block_ids, "reads")


def slot(block_ids: Sequence[int], idx: int, block_size: int) -> int:
    """Slot of a token, by the table."""
    return block_ids[idx // block_size] * block_size + idx % block_size


# --- 04.3, the table ---------------------------------------------------------------------------


@check_for("04.3", needs=(POOL,))
def check_append(subject: Subject, draw: Draw) -> None:
    """Full blocks and the next token; two tables by turns in an aged pool; refusals."""
    pool, free_ids = aged_pool(subject, draw, 12, num_free=5)
    grow(subject, pool, free_ids, 4, [(0, 8), (0, 1)])

    block_size = draw.choice([3, 4, 5])
    pool, free_ids = aged_pool(subject, draw, 12, num_free=8)
    steps = [
        (0, block_size + 1),
        (1, 1),
        (0, block_size - 1),
        (1, 0),
        (0, 1),
        (1, block_size),
        (0, 2 * block_size),
        (1, draw.randrange(1, block_size)),
    ]
    grow(subject, pool, free_ids, block_size, steps)
    check_full_pool(subject, draw)


def aged_pool(
    subject: Subject, draw: Draw, num_blocks: int, num_free: int
) -> tuple[Ref, list[int]]:
    """A pool in which some scattered blocks are free, not 0, 1, 2; and which."""
    pool = subject.new(POOL, num_blocks)
    value(subject.call((pool, "allocate"), num_blocks))
    free_ids = sorted(draw.sample(range(1, num_blocks), num_free))
    while free_ids == list(range(free_ids[0], free_ids[0] + num_free)):
        free_ids = sorted(draw.sample(range(1, num_blocks), num_free))
    value(subject.call((pool, "free"), free_ids))
    return pool, free_ids


def grow(
    subject: Subject, pool: Ref, free_ids: list[int], block_size: int, steps: list[tuple[int, int]]
) -> None:
    """Append to two tables: (which, how many tokens) at each step."""
    tables = [subject.new("BlockTable", block_size) for _ in range(2)]
    block_ids: list[list[int]] = [[], []]
    lens = [0, 0]
    for who, n in steps:
        before, lens[who] = lens[who], lens[who] + n
        num_new = -(-lens[who] // block_size) - len(block_ids[who])
        block_ids[who] += free_ids[:num_new]
        free_ids = free_ids[num_new:]
        due = [slot(block_ids[who], idx, block_size) for idx in range(before, lens[who])]
        expect(append(subject, tables[who], n, pool), due, "slots")
        expect(subject.get(tables[who], "block_ids"), block_ids[who], "blocks")
        expect(subject.get(tables[who], "num_tokens"), lens[who], "counted")
        expect(subject.get(pool, "num_free"), len(free_ids), "pool")


def append(subject: Subject, table: Ref, n: int, pool: Ref) -> Any:
    """What appending n tokens gives."""
    reply = subject.call((table, "append"), n, pool)
    return value(reply, {"IndexError": "blocks", "ValueError": "counted"})


def check_full_pool(subject: Subject, draw: Draw) -> None:
    """What does not fit changes nothing; what the last block holds needs no pool."""
    block_size = draw.choice([3, 4, 5])
    pool, free_ids = aged_pool(subject, draw, 9, 3)
    table = subject.new("BlockTable", block_size)

    def refuse(n: int) -> None:
        expect(value(subject.call((table, "append"), n, pool), "refused"), None, "refused")

    append(subject, table, block_size + 1, pool)
    refuse(3 * block_size)
    expect(subject.get(table, "block_ids"), free_ids[:2], "refused")
    expect(subject.get(table, "num_tokens"), block_size + 1, "refused")
    expect(subject.get(pool, "num_free"), 1, "refused")
    value(subject.call((pool, "allocate"), 1))
    due = [slot(free_ids[:2], idx, block_size) for idx in range(block_size + 1, 2 * block_size)]
    expect(append(subject, table, block_size - 1, pool), due, "room")
    refuse(1)
    expect_error(subject.call((table, "append"), -2, pool), "ValueError", -2, "negative")


# --- 04.4 to 04.6, the tensors -----------------------------------------------------------------


def heads_first(cache: torch.Tensor) -> torch.Tensor:
    """The same blocks, but laid out head after head inside a block, as in PagedKVCache."""
    return cache.transpose(1, 2).contiguous().transpose(1, 2)


@check_for("04.4")
def check_write_kv(subject: Subject, draw: Draw) -> None:
    """Scattered slots with padding between them, in caches of any strides; the first and the last
    slot; slots outside the cache."""
    for dtype, strided in ((torch.float32, False), (torch.float32, True), (torch.float16, True)):
        num_blocks, block_size, num_tokens = 6, draw.choice([3, 5]), 7
        shape = (num_blocks, block_size, NUM_KV_HEADS, HEAD_DIM)
        caches = [draw.tensor(*shape, dtype=dtype) for _ in range(2)]
        if strided:
            caches = [heads_first(cache) for cache in caches]
        new = [draw.tensor(num_tokens, NUM_KV_HEADS, HEAD_DIM) for _ in range(2)]
        slots = draw.sample(range(1, num_blocks * block_size - 1), num_tokens)
        slots[2] = slots[5] = -1
        expect_written(subject, caches, new, slots)

    caches = [draw.tensor(4, 3, NUM_KV_HEADS, HEAD_DIM) for _ in range(2)]
    new = [draw.tensor(2, NUM_KV_HEADS, HEAD_DIM) for _ in range(2)]
    expect_written(subject, caches, new, [0, 11])
    for wrong in (12, -2):
        reply = subject.call("write_kv", *caches, *new, torch.tensor([1, wrong]))
        expect_error(reply, "ValueError", wrong, "outside")
        for after, before in zip(reply.args_after, caches, strict=False):
            expect_tensor(after, before, "outside")


def expect_written(
    subject: Subject, caches: list[torch.Tensor], new: list[torch.Tensor], slots: list[int]
) -> None:
    """Fail unless write_kv writes the new keys and values into their slots, and nothing else."""
    reply = subject.call("write_kv", *caches, *new, torch.tensor(slots))
    value(reply, {"RuntimeError": "in place", "IndexError": "slots", "ValueError": "outside"})
    block_size = caches[0].shape[1]
    for after, before, tokens, rule in zip(
        reply.args_after, caches, new, ("keys", "values"), strict=False
    ):
        due = before.clone()
        for idx, target in enumerate(slots):
            if target >= 0:
                due[target // block_size, target % block_size] = tokens[idx].to(due.dtype)
        expect_tensor(after, due, rule)
    for after, before in zip(reply.args_after[2:], new, strict=False):
        expect_tensor(after, before, "reads")


@check_for("04.5")
def check_gather_kv(subject: Subject, draw: Draw) -> None:
    """Lengths at the edges of blocks, with poison everywhere else; half precision; no tokens; tables
    that are too short, or hold padding too early."""
    for remainder in (1, 0, -1):
        block_size = draw.choice([3, 4, 5])
        seq_len = 3 * block_size + remainder
        caches, sequence, block_ids = filled(draw, 9, block_size, seq_len)
        expect_gathered(subject, caches, [*block_ids, -1, -1], sequence)
    caches, sequence, block_ids = filled(draw, 6, 4, 6, torch.float16)
    expect_gathered(subject, caches, block_ids, sequence)
    expect_gathered(subject, caches, [], [tokens[:0] for tokens in sequence])
    for table, seq_len, named in ((block_ids, 9, 9), ([block_ids[0], -1], 6, -1)):
        reply = subject.call("gather_kv", *caches, table, seq_len)
        expect_error(reply, "ValueError", named, "uncovered")


def filled(
    draw: Draw, num_blocks: int, block_size: int, seq_len: int, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Poisoned caches that hold one sequence in scattered blocks; its k and v; its table. In half of
    the draws the caches are not contiguous."""
    needed = -(-seq_len // block_size)
    block_ids = draw.sample(range(1, num_blocks), needed)
    while needed > 1 and (
        block_ids == sorted(block_ids) or (needed > 2 and block_ids[-1] == min(block_ids))
    ):
        draw.shuffle(block_ids)
    caches, sequence = [], []
    for _ in range(2):
        cache = poisoned(num_blocks, block_size, NUM_KV_HEADS, HEAD_DIM, dtype=dtype)
        if draw.random() < 0.5:
            cache = heads_first(cache)
        tokens = draw.tensor(seq_len, NUM_KV_HEADS, HEAD_DIM, dtype=dtype)
        for idx in range(seq_len):
            cache[block_ids[idx // block_size], idx % block_size] = tokens[idx]
        caches.append(cache)
        sequence.append(tokens)
    return caches, sequence, block_ids


def expect_gathered(
    subject: Subject, caches: list[torch.Tensor], table: list[int], sequence: list[torch.Tensor]
) -> None:
    """Fail unless gather_kv gives a sequence's k and v, and leaves the caches as they were."""
    reply: Reply = subject.call("gather_kv", *caches, table, len(sequence[0]))
    saw = value(reply, {"IndexError": "padding", "ValueError": "padding", "RuntimeError": "views"})
    if not isinstance(saw, tuple | list) or len(saw) != 2:
        fail(saw, Words("two tensors, k and v"), "keys")
        return
    for part, tokens, rule in zip(saw, sequence, ("keys", "values"), strict=True):
        expect_tensor(part, tokens, rule)
    for after, before in zip(reply.args_after, caches, strict=False):
        expect_tensor(after, before, "reads")


@check_for("04.6")
def check_paged_attention_one(subject: Subject, draw: Draw) -> None:
    """Prefill, a chunk, decode; groups of 1, 3 and 4; poison past the length."""
    for group_size, query_len, remainder, scale in (
        (3, 4, 2, None),
        (3, 1, 1, 0.11),
        (1, 3, 0, None),
        (4, 1, -1, None),
    ):
        block_size = draw.choice([4, 5])
        seq_len = 2 * block_size + remainder
        caches, sequence, block_ids = filled(draw, 8, block_size, seq_len)
        q = draw.tensor(query_len, NUM_KV_HEADS * group_size, HEAD_DIM)
        table = [*block_ids, -1]
        reply = subject.call("paged_attention_one", q, *caches, table, seq_len, scale)
        rule = "attention" if scale is None else "scale"
        saw = value(reply, {"ValueError": "length"})
        expect_tensor(saw, attention(q, sequence[0], sequence[1], scale), rule)
