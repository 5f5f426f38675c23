"""The checks of lesson 4."""

from collections.abc import Sequence
from functools import partial

import torch

from minipaged.attention import attention

from ...kit.checking import Draw, check_for, expect, expect_error, expect_tensor, poisoned, result
from ...kit.subject import Ref, Reply, Subject

POOL = "minipaged.block_table:BlockPool"
NUM_KV_HEADS, HEAD_DIM = 2, 8

# ------------------------------------------------------------------------------- 04.1, the pool


@check_for(
    "04.1",
    holds="A block has no owner or is counted for each of them; a refusal changes nothing.",
    hints=(
        (
            "The pool is two records that must agree: free_ids says who is free, ref_counts how many "
            "owners each block has. Whatever touches one touches the other."
        ),
        (
            "Decide first, then change: compare n with num_free before the first block is taken, and "
            "look at every block that is freed before the first counter goes down."
        ),
        (
            "allocate: refuse a negative n, return None if n is more than num_free, then "
            "heapq.heappop n times and set each counter to 1. free: Counter(block_ids) says how often "
            "each block is freed; if that is more than its owners, raise; then count down, and "
            "heapq.heappush the blocks that reach 0."
        ),
    ),
)
def check_block_pool(subject: Subject, draw: Draw) -> None:
    """Allocate and free, with owners."""
    num_blocks = draw.choice([8, 9, 10])
    pool = subject.new("BlockPool", num_blocks)
    made = f"pool = BlockPool({num_blocks})"

    about = f"{made}; pool.allocate(3)"
    saw = result(subject.call((pool, "allocate"), 3), about)
    expect(about, saw, [0, 1, 2], "The lowest free ids come out first, in ascending order.")
    expect(
        f"{about}; pool.num_free",
        subject.get(pool, "num_free"),
        num_blocks - 3,
        "A block that was handed out must leave the free ids, or the next caller gets it too.",
    )
    expect(
        f"{about}; pool.ref_counts",
        subject.get(pool, "ref_counts"),
        [1] * 3 + [0] * (num_blocks - 3),
        "Each block handed out has one owner now; the counters must say so.",
    )
    check_refusals(subject, pool, num_blocks, about)
    check_freeing(subject, draw)
    check_owners(subject, draw)


def check_refusals(subject: Subject, pool: Ref, num_blocks: int, made: str) -> None:
    """A pool with blocks 0 to 2 taken: too many, exactly all, none, fewer than none."""
    num_free = num_blocks - 3
    about = f"{made}; pool.allocate({num_free + 1})"
    saw = result(
        subject.call((pool, "allocate"), num_free + 1),
        about,
        dict.fromkeys(
            ("ValueError", "IndexError", "RuntimeError", "MemoryError", "Exception"),
            "Too few free blocks is an ordinary answer, None, and no exception.",
        ),
    )
    expect(about, saw, None, "A request is served whole or not at all: too few blocks, then None.")
    expect(
        f"{about}; pool.num_free",
        subject.get(pool, "num_free"),
        num_free,
        "A refused request takes nothing: the free blocks are still free afterwards.",
    )
    about = f"{made}; pool.allocate({num_free}), exactly what is free"
    saw = result(subject.call((pool, "allocate"), num_free), about)
    expect(
        about,
        saw,
        list(range(3, num_blocks)),
        lambda saw: (
            "Exactly as many as there are is enough: only a larger n is refused."
            if saw is None
            else "The lowest free ids come out first, in ascending order."
        ),
    )
    about = "pool.allocate(0) on a pool with no free block"
    saw = result(subject.call((pool, "allocate"), 0), about)
    expect(about, saw, [], "Nothing was asked for, so the answer is an empty list and no refusal.")
    expect_error(
        "pool.allocate(-2)",
        subject.call((pool, "allocate"), -2),
        "ValueError",
        -2,
        "A negative number of blocks is a mistake of the caller, which an error must name.",
    )


def check_freeing(subject: Subject, draw: Draw) -> None:
    """Free in any order, take again, free too often."""
    num_blocks = draw.choice([8, 9, 10])
    pool = subject.new("BlockPool", num_blocks)
    made = f"pool = BlockPool({num_blocks}); pool.allocate({num_blocks})"
    result(subject.call((pool, "allocate"), num_blocks), made)
    given_back = [idx for idx in draw.permutation(num_blocks) if idx not in (1, 4)][:4]
    while given_back[0] == min(given_back):
        draw.shuffle(given_back)
    about = f"{made}; pool.free({given_back})"
    reply = subject.call((pool, "free"), given_back)
    reason = "These blocks have an owner each: freeing them is right."
    result(reply, about, {"ValueError": reason})
    expect(about, reply.args_after[0], given_back, "The caller's list must not change.")
    expect(
        f"{about}; pool.num_free",
        subject.get(pool, "num_free"),
        4,
        "A block whose last owner is gone is free again, each of them once.",
    )
    about = f"{about}; pool.allocate(2), pool.allocate(2)"
    saw = [result(subject.call((pool, "allocate"), 2), about) for _ in range(2)]
    expect(
        about,
        saw,
        [sorted(given_back)[:2], sorted(given_back)[2:]],
        "Freed blocks come out lowest first again: free_ids is a heap, and must be filled as one.",
    )

    result(subject.call((pool, "free"), given_back[:1]), "pool.free")
    counts = subject.get(pool, "ref_counts")
    for block_ids, wrong, why in (
        (
            given_back[:1],
            given_back[0],
            "Freeing a free block must raise: let it pass, and two callers will own one block.",
        ),
        (
            [1, given_back[0]],
            given_back[0],
            "One block of the list is free already, and that must raise.",
        ),
        (
            [4, 4],
            4,
            "A block that stands twice in one call loses two owners, and it has only one.",
        ),
        ([1, num_blocks], num_blocks, "No block of the pool has that id, and that must raise."),
        ([-1], -1, "Python reads index -1 as the last one; as a block id it is a mistake."),
    ):
        about = (
            f"pool.free({block_ids}), a pool of {num_blocks} where block {given_back[0]} is free"
        )
        expect_error(about, subject.call((pool, "free"), block_ids), "ValueError", wrong, why)
        state = (subject.get(pool, "num_free"), subject.get(pool, "ref_counts"))
        expect(
            f"{about}; (pool.num_free, pool.ref_counts) afterwards",
            state,
            (1, counts),
            "A refused call leaves everything as it was: look at the whole list before you change "
            "the first counter.",
        )


def check_owners(subject: Subject, draw: Draw) -> None:
    """A block with two owners is free after the second goodbye."""
    pool = subject.new("BlockPool", 6)
    block_id = draw.randrange(5)
    result(subject.call((pool, "allocate"), 5), "pool.allocate(5)")
    result(subject.call((pool, "share"), [block_id]), f"pool.share([{block_id}])")
    subject.new("BlockPool", 3)
    about = "pool = BlockPool(6); pool.allocate(5); BlockPool(3), another pool; pool.num_free"
    reason = "Each pool has blocks of its own: what it knows stands in self, not in the class."
    expect(about, subject.get(pool, "num_free"), 1, reason)
    about = f"block {block_id} has two owners; pool.free([{block_id}]); pool.num_free"
    result(subject.call((pool, "free"), [block_id]), about)
    expect(
        about,
        subject.get(pool, "num_free"),
        1,
        "A block is free when its last owner is gone, not when the first one goes.",
    )
    about = f"{about}; once more"
    reply = subject.call((pool, "free"), [block_id])
    result(reply, about, {"ValueError": "The second owner may free it too."})
    expect(about, subject.get(pool, "num_free"), 2, "Now its last owner is gone, so it is free.")
    result(subject.call((pool, "share"), [(block_id + 1) % 5]), "pool.share")
    twice = [(block_id + 1) % 5] * 2
    about = f"block {twice[0]} has two owners; pool.free({twice})"
    reply = subject.call((pool, "free"), twice)
    result(reply, about, {"ValueError": "Two owners may go in one call."})
    expect(f"{about}; pool.num_free", subject.get(pool, "num_free"), 3, "Both owners are gone.")
    about = f"{about}; pool.allocate(3)"
    saw = result(subject.call((pool, "allocate"), 3), about)
    due = sorted([block_id, twice[0], 5])
    expect(about, saw, due, "A block that is free once is handed out once, lowest first.")


# ------------------------------------------------------------------------------ 04.2, the slot


@check_for(
    "04.2",
    holds="The table says which block a token lies in; the place inside the block stays the same.",
    hints=(
        "Lesson 3 did this with an address: page and offset, then the frame in the page's place.",
        (
            "A token's place is two numbers: which of the sequence's blocks, and how far into it. Only "
            "the first goes through the table."
        ),
        (
            "Divide token_idx by block_size with remainder: the quotient chooses from block_ids, the "
            "remainder is added. Blocks before it take block_size slots each."
        ),
    ),
)
def check_slot_of(subject: Subject, draw: Draw) -> None:
    """Slots at the edges of blocks and between."""
    block_size = draw.choice([3, 5, 7])
    inside: list[int] = []
    while not inside:  # a token at which no two mistakes give one slot
        block_ids = draw.sample(range(2, 20), 4)
        inside = [
            idx
            for idx in range(2 * block_size, 4 * block_size)
            if len(slot_mistakes(block_ids, idx, block_size)) == 10
        ][:1]
    edges = [2 * block_size, 2 * block_size - 1, 3 * block_size + 1, 0, 4 * block_size - 1]
    for idx in [*inside, *edges]:
        about = f"slot_of({block_ids}, token_idx={idx}, block_size={block_size})"
        reply = subject.call("slot_of", block_ids, idx, block_size)
        saw = result(
            reply,
            about,
            {
                "IndexError": "block_ids has one id a block, and is asked for a block, not a token. "
                "A block has block_size tokens, not always 4."
            },
        )
        block_idx, offset = idx // block_size, idx % block_size
        block_id = block_ids[block_idx]
        known = slot_mistakes(block_ids, idx, block_size)
        due = block_id * block_size + offset
        expect(about, saw, due, partial(why_slot, known=known))
        expect(about, reply.args_after[0], block_ids, "The table is read, not changed.")


def slot_mistakes(block_ids: list[int], idx: int, block_size: int) -> dict[int, str]:
    """Wrong slots, and what each comes from; fewer than 10 where two mistakes give one number."""
    block_idx, offset = idx // block_size, idx % block_size
    block_id = block_ids[block_idx]
    known = {
        idx: "That is the token's place in the sequence: the table was not asked.",
        block_id: "That is a block; a slot is one token's place in it.",
        block_id + offset: "Block ids count blocks: each block before this one takes block_size "
        "slots, not one.",
        block_id * block_size: "That is the block's first slot: the offset is missing.",
        block_id * block_size + offset + 1: "Tokens and slots count from 0: this is one slot too "
        "far.",
        block_id * block_size + block_idx: "That adds which block it is; the offset inside the "
        "block is what is left over.",
        block_ids[0] * block_size + idx: "That goes on behind the first block, as if the blocks "
        "lay side by side.",
        block_ids[::-1][block_idx] * block_size + offset: "The table was read from its end.",
        sorted(block_ids)[block_idx] * block_size + offset: "The table stands in the order of the "
        "tokens, not of the ids.",
        block_ids[idx // 4 % 4] * 4 + idx % 4: "block_size is an argument; it is not always 4.",
    }
    known.pop(block_id * block_size + offset, None)  # here a mistake would be right by chance
    return known


def why_slot(saw: object, known: dict[int, str]) -> str:
    """What a wrong slot comes from."""
    if isinstance(saw, float):
        return "A slot is a whole number: divide with // instead of /."
    if isinstance(saw, tuple | list):
        return "Block and offset are right apart; the slot is one number made of both."
    if isinstance(saw, int) and saw in known:
        return known[saw]
    return "Two numbers say where a token is: which block, and how far into it."


# ----------------------------------------------------------------------------- 04.3, the table


@check_for(
    "04.3",
    holds="A block is taken when a token arrives that has no slot, and never before.",
    hints=(
        (
            "The last block may be half empty. Its empty slots come first; only what they cannot hold "
            "needs blocks."
        ),
        (
            "All or nothing: ask the pool once for all the blocks you need. If it says None, table and "
            "pool are as they were, so change num_tokens only after the answer."
        ),
        (
            "Of the n tokens, self.num_empty need no block; round the rest up to whole blocks (0 if "
            "the rest is negative) and ask pool.allocate(number). After a yes: extend block_ids, "
            "raise num_tokens, and ask self.slot(token_idx) for each of the last n tokens."
        ),
    ),
)
def check_append(subject: Subject, draw: Draw) -> None:
    """Two tables that grow by turns in an aged pool, up to a refusal."""
    check_on_demand(subject, draw)
    block_size = draw.choice([3, 4, 5])
    num_blocks = 12
    pool, free_ids = aged_pool(subject, draw, num_blocks, num_free=8)
    tables = [subject.new("BlockTable", block_size) for _ in range(2)]
    models: list[list[int]] = [[], []]
    lens = [0, 0]
    history = f"block_size {block_size}, free blocks {free_ids}"
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
    for who, n in steps:
        num_new = -(-(lens[who] + n) // block_size) - len(models[who])
        taken, free_ids = free_ids[:num_new], free_ids[num_new:]
        models[who] += taken
        before, lens[who] = lens[who], lens[who] + n
        name = "AB"[who]
        about = f"{history}; {name}, which holds {before} tokens, .append({n}, pool)"
        reply = subject.call((tables[who], "append"), n, pool)
        saw = appended(subject, tables[who], reply, about, before, n)
        due = [slot(models[who], idx, block_size) for idx in range(before, lens[who])]
        everything = [slot(models[who], idx, block_size) for idx in range(lens[who])]
        expect(
            f"{about}; {name}.block_ids",
            subject.get(tables[who], "block_ids"),
            models[who],
            partial(table_mistakes, due=list(models[who])),
        )
        expect(
            f"{about}; {name}.num_tokens",
            subject.get(tables[who], "num_tokens"),
            lens[who],
            "num_tokens counts every token of the sequence, the earlier ones too.",
        )
        expect(
            about,
            saw,
            due,
            partial(slots_mistakes, n=n, everything=everything, block_ids=models[who]),
        )
        expect(
            f"{about}; pool.num_free",
            subject.get(pool, "num_free"),
            len(free_ids),
            "The pool and the tables must agree on who owns what: blocks were lost on the way.",
        )
    check_full_pool(subject, draw)


def slot(block_ids: Sequence[int], idx: int, block_size: int) -> int:
    """Slot of a token, by the table."""
    return block_ids[idx // block_size] * block_size + idx % block_size


def aged_pool(subject: Subject, draw: Draw, num_blocks: int, num_free: int) -> tuple[Ref, list]:
    """A pool in which some scattered blocks are free, not 0, 1, 2; and which."""
    pool = subject.new(POOL, num_blocks)
    result(subject.call((pool, "allocate"), num_blocks), "pool.allocate")
    free_ids = sorted(draw.sample(range(1, num_blocks), num_free))
    while free_ids == list(range(free_ids[0], free_ids[0] + num_free)):
        free_ids = sorted(draw.sample(range(1, num_blocks), num_free))
    result(subject.call((pool, "free"), free_ids), "pool.free")
    return pool, free_ids


def check_on_demand(subject: Subject, draw: Draw) -> None:
    """8 tokens in blocks of 4 own two blocks; the ninth takes the third."""
    pool, free_ids = aged_pool(subject, draw, 12, 5)
    table = subject.new("BlockTable", 4)
    made = f"block_size 4, free blocks {free_ids}; an empty table, append(8, pool)"
    about = f"{made}; block_ids"
    reply = subject.call((table, "append"), 8, pool)
    appended(subject, table, reply, made, before=0, n=8)
    expect(
        about,
        subject.get(table, "block_ids"),
        free_ids[:2],
        lambda saw: (
            "8 tokens fill two blocks; the third is taken when the ninth token arrives, not before."
            if isinstance(saw, list) and len(saw) > 2
            else "8 tokens were put into fewer than two blocks, or into none: round up."
            if isinstance(saw, list) and len(saw) < 2
            else "8 tokens need two blocks, the lowest free ones of the pool."
        ),
    )
    expect_counted(subject, table, made, before=0, n=8)
    made = f"{made}, append(1, pool)"
    about = f"{made}; block_ids"
    reply = subject.call((table, "append"), 1, pool)
    appended(subject, table, reply, made, before=8, n=1)
    expect(
        about,
        subject.get(table, "block_ids"),
        free_ids[:3],
        partial(table_mistakes, due=free_ids[:3]),
    )


def appended(
    subject: Subject, table: Ref, reply: Reply, about: str, before: int, n: int
) -> list[int] | None:
    """The value of an append; tells where it raised because num_tokens was not raised in time."""
    kinds = {"IndexError": "Some of the tokens have no block: round up to whole blocks."}
    if reply.error is not None and subject.get(table, "num_tokens") == before:
        kinds["ValueError"] = (
            f"num_tokens was still {before} there. self.slot knows only the tokens that num_tokens "
            f"counts: raise it by n before you ask for the new tokens' slots."
        )
    saw: list[int] | None = result(reply, about, kinds)
    return saw


def expect_counted(subject: Subject, table: Ref, about: str, before: int, n: int) -> None:
    """Fail where an append has left num_tokens as it was."""
    seen = subject.get(table, "num_tokens")
    if seen == before:
        due = before + n
        because = f"num_tokens did not change: {n} tokens came, and it counts every token."
        expect(f"{about}; num_tokens", seen, due, because)


def table_mistakes(saw: object, due: list[int]) -> str:
    """What a wrong table comes from."""
    if not isinstance(saw, list):
        return "block_ids is a list of ids, one a block."
    if len(saw) > len(due):
        return "A block was taken although the last one still had empty slots, or nobody needed it."
    if len(saw) < len(due):
        return "The earlier blocks still hold the earlier tokens: new ones go behind them."
    return "New blocks go behind the earlier ones, in the order in which the pool gave them."


def slots_mistakes(saw: object, n: int, everything: list[int], block_ids: list[int]) -> str:
    """What wrong slots come from."""
    if saw is None:
        return "The tokens fit, into the last block or into new ones: None is for a full pool."
    if n == 0:
        return "No tokens, no slots: an empty list."
    if saw == everything:
        return "Only the new tokens' slots come back: the earlier ones are written already."
    if isinstance(saw, list) and saw and all(item in block_ids for item in saw):
        return "These are blocks; a slot is a token's place: block_id * block_size + offset."
    if isinstance(saw, list) and len(saw) == n and saw == list(range(saw[0], saw[0] + n)):
        return "Slots follow one another only inside a block: each token must go through the table."
    return "One slot a new token, in the order of the tokens, through the table."


PASS_ON = "A pool that says None is an ordinary answer: pass it on."


def check_full_pool(subject: Subject, draw: Draw) -> None:
    """What does not fit changes nothing; what the last block holds needs no pool."""
    block_size = draw.choice([3, 4, 5])
    pool, free_ids = aged_pool(subject, draw, 9, 3)
    table = subject.new("BlockTable", block_size)
    result(subject.call((table, "append"), block_size + 1, pool), "table.append")
    n = 3 * block_size
    about = (
        f"block_size {block_size}, a table of {block_size + 1} tokens, 1 free block; "
        f"append({n}, pool)"
    )
    reply = subject.call((table, "append"), n, pool)
    saw = result(
        reply,
        about,
        {"TypeError": PASS_ON} if reply.error and "NoneType" in reply.error.text else {},
    )
    expect(about, saw, None, "The tokens do not all fit, so none of them gets a slot: None.")
    state = (
        subject.get(table, "block_ids"),
        subject.get(table, "num_tokens"),
        subject.get(pool, "num_free"),
    )
    expect(
        f"{about}; (block_ids, num_tokens, pool.num_free) afterwards",
        state,
        (free_ids[:2], block_size + 1, 1),
        "All or nothing: a refused append leaves table and pool as they were.",
    )
    result(subject.call((pool, "allocate"), 1), "pool.allocate")
    n = block_size - 1
    about = f"a table with {n} empty slots in its last block, no free block; append({n}, pool)"
    saw = result(subject.call((table, "append"), n, pool), about)
    due = [slot(free_ids[:2], idx, block_size) for idx in range(block_size + 1, 2 * block_size)]
    expect(about, saw, due, "The last block's empty slots are the sequence's own: no pool needed.")
    about = "a table whose blocks are full, no free block; append(1, pool)"
    expect(
        about,
        result(subject.call((table, "append"), 1, pool), about),
        None,
        "There is no slot left anywhere: None.",
    )
    expect_error(
        "append(-2, pool)",
        subject.call((table, "append"), -2, pool),
        "ValueError",
        -2,
        "A negative number of tokens is a mistake of the caller, which an error must name.",
    )


# --------------------------------------------------------------------- 04.4 to 04.6, the tensors


def cache_memory(draw: Draw, num_blocks: int, block_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Poisoned blocks; in half of the draws a block's heads lie one after the other, as in
    PagedKVCache, so that the tensor is no plain piece of memory."""
    if draw.random() < 0.5:
        return poisoned(num_blocks, NUM_KV_HEADS, block_size, HEAD_DIM, dtype=dtype).transpose(1, 2)
    return poisoned(num_blocks, block_size, NUM_KV_HEADS, HEAD_DIM, dtype=dtype)


@check_for(
    "04.4",
    holds="Each token is written into its slot, slot -1 into none, and no other slot changes.",
    hints=(
        "A slot is block_id * block_size + offset. The cache wants the two apart again.",
        (
            "Tokens with slot -1 are left out first, from the slots, from k and from v alike: Python "
            "would read -1 as the last slot. Write by indexing k_cache itself: reshape may hand you a "
            "copy."
        ),
        (
            "validate_slots(slot_mapping, num_slots) first. keep = slot_mapping >= 0; the kept slots // and % k_cache.shape[1] "
            "give two index tensors; assign k[keep], in the cache's dtype, at both of them."
        ),
    ),
)
def check_write_kv(subject: Subject, draw: Draw) -> None:
    """Scattered slots, padding between them, caches of any strides."""
    for dtype, strided in ((torch.float32, False), (torch.float32, True), (torch.float16, True)):
        num_blocks, block_size = 6, draw.choice([3, 5])
        shape = (num_blocks, block_size, NUM_KV_HEADS, HEAD_DIM)
        before = [draw.tensor(*shape).to(dtype) for _ in range(2)]
        caches = [memory(x) if strided else x.clone() for x in before]
        num_tokens = 7
        k, v = (draw.tensor(num_tokens, NUM_KV_HEADS, HEAD_DIM) for _ in range(2))
        slots = draw.sample(range(1, num_blocks * block_size - 1), num_tokens)
        slots[2] = slots[5] = -1
        due = [x.clone() for x in before]
        for cache, new in zip(due, (k, v), strict=True):
            for token_idx, target in enumerate(slots):
                if target >= 0:
                    cache[target // block_size, target % block_size] = new[token_idx].to(dtype)
        kind = (
            f"{str(dtype).removeprefix('torch.')}{', a view with other strides' if strided else ''}"
        )
        about = f"write_kv with slots {slots}, {num_blocks} blocks of {block_size}, {kind}"
        reply = subject.call("write_kv", *caches, k, v, torch.tensor(slots))
        result(
            reply,
            about,
            {
                "RuntimeError": refused_write(reply),
                "IndexError": "A slot is not a block id: split it into block and offset.",
            },
        )
        for name, saw, was, want in zip(
            ("k_cache", "v_cache"), reply.args_after[:2], before, due, strict=True
        ):
            expect_tensor(
                f"{about}; {name} afterwards",
                saw,
                want,
                partial(write_mistakes, was=was, want=want, slots=slots),
            )
        for name, saw, was in zip("kv", reply.args_after[2:4], (k, v), strict=True):
            expect_tensor(f"{about}; {name} afterwards", saw, was, "k and v are only read.")

    cache = draw.tensor(4, 3, NUM_KV_HEADS, HEAD_DIM)
    new = draw.tensor(2, NUM_KV_HEADS, HEAD_DIM)
    about = "write_kv with slots [0, 11], a cache of 12 slots"
    reply = subject.call("write_kv", cache, cache.clone(), new, new, torch.tensor([0, 11]))
    result(reply, about, {"ValueError": "The first slot and the last are slots of the cache."})
    ends_written = torch.cat([new[:1], cache.flatten(0, 1)[1:-1], new[1:]]).view_as(cache)
    reason = "Slot 0 and the last are slots like all others: -1 alone is none."
    expect_tensor(f"{about}; k_cache afterwards", reply.args_after[0], ends_written, reason)
    for wrong in (12, -2):
        about = f"write_kv with slots [1, {wrong}], a cache of 12 slots"
        reply = subject.call("write_kv", cache, cache.clone(), new, new, torch.tensor([1, wrong]))
        expect_error(
            about,
            reply,
            "ValueError",
            wrong,
            "A slot outside the cache must be named: validate_slots.",
        )
        expect_tensor(
            f"{about}; k_cache afterwards",
            reply.args_after[0],
            cache,
            "A refused call has written nothing: look at all slots first.",
        )


def refused_write(reply: Reply) -> str:
    """What an error of PyTorch in write_kv points to."""
    if reply.error is not None and "view size" in reply.error.text:
        return (
            "This cache is itself a view, and view() can't join its axes; reshape may copy, and the "
            "copy would get your numbers. Index k_cache by block and offset instead."
        )
    return (
        "PyTorch refused an assignment: compare shapes and dtypes of both sides; the cache's dtype "
        "decides."
    )


def memory(x: torch.Tensor) -> torch.Tensor:
    """The same blocks, but laid out head after head inside a block."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def write_mistakes(
    saw: torch.Tensor, was: torch.Tensor, want: torch.Tensor, slots: list[int]
) -> str:
    """What a wrongly written cache comes from."""
    block_size = was.shape[1]
    right = [(s // block_size, s % block_size) for s in slots if s >= 0]
    changed = ((saw != was) & ~(saw.isnan() & was.isnan())).flatten(2).any(2)
    if not bool(changed.any()):
        return "Nothing was written: reshape, flatten or a fancy index made a copy, and the copy got it."
    if bool(changed.all()):
        return "Slots that no token was sent to must keep what they hold: they are others' tokens."
    if changed[-1, -1]:
        return "Slot -1 writes nothing; here it wrote into the last slot, as Python counts -1."
    if changed[0, 0]:
        return "Slot -1 writes nothing; here it, or something else, wrote into slot 0."
    if all(changed[place] for place in right):
        return (
            "The right slots were written with the wrong tokens: a -1 takes its own token out, "
            "and k goes into k_cache, v into v_cache."
        )
    return (
        "The tokens went into other slots: block = slot // block_size, offset = slot % block_size."
    )


@check_for(
    "04.5",
    holds="The blocks that the table names, in the table's order, cut to seq_len tokens.",
    hints=(
        (
            "The table is already in the order of the tokens: pick its blocks one after the other, "
            "and what comes out is a sequence again."
        ),
        (
            "Two axes become one: blocks and places inside a block are the tokens. What stands behind "
            "seq_len in the last block belongs to nobody, and must not come along."
        ),
        (
            "covered_blocks(block_table, seq_len, num_blocks, block_size) gives the ids that are "
            "needed; the two sizes are k_cache.shape's first. Index the cache's first axis with the "
            "ids, flatten the first two axes, cut at seq_len; once for k, once for v."
        ),
    ),
)
def check_gather_kv(subject: Subject, draw: Draw) -> None:
    """Lengths at the edges of blocks; poison everywhere else."""
    for remainder in (1, 0, -1):
        block_size = draw.choice([3, 4, 5])
        num_blocks = 9
        seq_len = 3 * block_size + remainder
        caches, k, v, block_ids = filled(draw, num_blocks, block_size, seq_len)
        table = [*block_ids, -1, -1]
        about = f"gather_kv with table {table}, seq_len {seq_len}, block_size {block_size}"
        reply = subject.call("gather_kv", *caches, table, seq_len)
        saw = result(
            reply,
            about,
            {
                "IndexError": "Ids behind those that seq_len needs are padding: they are not read.",
                "ValueError": "Take the ids that seq_len tokens need, rounded up to whole blocks.",
                "RuntimeError": "view() can't join the axes of blocks that lie in another order; "
                "flatten or reshape can: here, where you only read, a copy does no harm."
                if reply.error and "view size" in reply.error.text
                else "PyTorch refused: write the shape behind each step.",
            },
        )
        if not isinstance(saw, tuple | list) or len(saw) != 2:
            expect(about, saw, (k, v), "Two tensors are due, k and v.")
        for name, part, want, other in (("k", saw[0], k, v), ("v", saw[1], v, k)):
            expect_tensor(
                f"{about}; {name}",
                part,
                want,
                partial(
                    gather_mistakes, want=want, other=other, block_size=block_size, ids=block_ids
                ),
            )
        for before, after in zip(caches, reply.args_after[:2], strict=True):
            expect_tensor(
                f"{about}; the cache afterwards", after, before, "The cache is only read."
            )
    check_gather_edges(subject, draw)


def filled(
    draw: Draw, num_blocks: int, block_size: int, seq_len: int, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, list[int]]:
    """A poisoned cache that holds one sequence in scattered blocks: caches, k, v, table."""
    needed = -(-seq_len // block_size)
    block_ids = draw.sample(range(1, num_blocks), needed)
    while needed > 1 and (
        block_ids == sorted(block_ids) or (needed > 2 and block_ids[-1] == min(block_ids))
    ):
        draw.shuffle(block_ids)
    caches, sequences = [], []
    for _ in range(2):
        cache = cache_memory(draw, num_blocks, block_size, dtype)
        tokens = draw.tensor(seq_len, NUM_KV_HEADS, HEAD_DIM).to(dtype)
        for idx in range(seq_len):
            cache[block_ids[idx // block_size], idx % block_size] = tokens[idx]
        caches.append(cache)
        sequences.append(tokens)
    return caches, sequences[0], sequences[1], block_ids


def gather_mistakes(
    saw: torch.Tensor, want: torch.Tensor, other: torch.Tensor, block_size: int, ids: list[int]
) -> str:
    """What a wrongly gathered sequence comes from."""
    seq_len = want.shape[0]
    if saw.dim() != 3:
        return "Blocks and places inside a block become one axis, the tokens: three axes are left."
    if saw.shape[0] == len(ids) * block_size and seq_len < saw.shape[0]:
        return "The rest of the last block is not the sequence's: cut the tail at seq_len."
    if saw.shape[0] != seq_len:
        return "One row a token is due, the tail's tokens included and nothing behind them."
    if saw.shape != want.shape:
        return "The axes of a token stay as they are: KV heads, then head_dim."
    if torch.equal(saw, other):
        return "k comes out of k_cache and v out of v_cache: here they are the same or swapped."
    first = [int(ids[idx // block_size] == min(ids)) for idx in range(seq_len)]
    if len(ids) > 1 and torch.equal(saw[0].nan_to_num(), want[first.index(1)].nan_to_num()):
        return "The blocks came in the order of memory; the table's order is the sequence's."
    return "The table names the blocks, in the order of the tokens: this read others."


def check_gather_edges(subject: Subject, draw: Draw) -> None:
    """No tokens; half precision; tables that are too short or hold padding too early."""
    caches, k, _, block_ids = filled(draw, 6, 4, 6, dtype=torch.float16)
    about = "gather_kv from a float16 cache, seq_len 6"
    saw = result(subject.call("gather_kv", *caches, block_ids, 6), about)
    expect_tensor(about, saw[0], k, "The tail is cut, the rest is copied as it is.")
    about = "gather_kv with an empty table, seq_len 0"
    saw = result(subject.call("gather_kv", *caches, [], 0), about)
    empty = torch.empty(0, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float16)
    expect_tensor(about, saw[0], empty, "No tokens: a tensor without rows.")
    for table, seq_len, names in ((block_ids, 9, 9), ([block_ids[0], -1], 6, -1)):
        expect_error(
            f"gather_kv with table {table}, seq_len {seq_len}, block_size 4",
            subject.call("gather_kv", *caches, table, seq_len),
            "ValueError",
            names,
            "Tokens without a block cannot be read: covered_blocks says so, ask it first.",
        )


@check_for(
    "04.6",
    holds="Reading through the table gives what attention gives over keys and values in a row.",
    hints=(
        (
            "You have both halves: one brings the sequence out of its blocks, one attends to a "
            "sequence that lies in a row."
        ),
        (
            "attention puts its queries at the end of the keys, so it must get all seq_len keys, and "
            "the softmax_scale that you were given."
        ),
        (
            "gather_kv(k_cache, v_cache, block_table, seq_len) gives k and v; then attention(q, k, v, "
            "softmax_scale) over them, the scale being the one that you were given."
        ),
    ),
)
def check_paged_attention_one(subject: Subject, draw: Draw) -> None:
    """Prefill, a chunk, decode; groups of 1, 3 and 4; poison behind the length."""
    for group_size, query_len, remainder, scale in (
        (3, 4, 2, None),
        (3, 1, 1, 0.11),
        (1, 3, 0, None),
        (4, 1, -1, None),
    ):
        block_size = draw.choice([4, 5])
        seq_len = 2 * block_size + remainder
        caches, k, v, block_ids = filled(draw, 8, block_size, seq_len)
        q = draw.tensor(query_len, NUM_KV_HEADS * group_size, HEAD_DIM)
        used = HEAD_DIM**-0.5 if scale is None else scale
        due = attention(q, k, v, used)
        about = (
            f"paged_attention_one, {query_len} queries, seq_len {seq_len}, table {block_ids}, "
            f"block_size {block_size}, groups of {group_size}, softmax_scale {scale}"
        )
        table = [*block_ids, -1]
        reply = subject.call("paged_attention_one", q, *caches, table, seq_len, scale)
        saw = result(
            reply,
            about,
            {"ValueError": "gather_kv takes seq_len, all the tokens, those of q included."},
        )
        others = {
            "The scale that was passed in did not reach attention.": attention(q, k, v),
            "A query must not see later tokens: the mask stays on.": attention(
                q, k, v, used, causal=False
            ),
            "k scores and v is mixed: here they changed places.": attention(q, v, k, used),
            "The scale was applied twice, to q and again inside attention.": attention(
                q, k, v, used * used
            ),
            "The keys end at seq_len; those of the newest tokens are missing.": attention(
                q, k[:-query_len], v[:-query_len], used, causal=False
            ),
        }
        expect_tensor(about, saw, due, partial(attention_mistakes, others=others))


def attention_mistakes(saw: torch.Tensor, others: dict[str, torch.Tensor]) -> str:
    """Which known mistake gives this result."""
    for text, other in others.items():
        if saw.shape == other.shape and torch.allclose(saw, other, atol=1e-5):
            return text
    if saw.dim() != 3:
        return "The result has q's shape: tokens, heads, head_dim."
    return "All seq_len tokens, through the table, and no others: gather first, then attend."
