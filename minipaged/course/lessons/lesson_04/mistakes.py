"""The known wrong solutions of lesson 4."""

from ...kit.mistakes import Mistake

VALIDATION = """        for block_id, times in Counter(block_ids).items():
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(f"block {block_id} is not in a pool of {self.num_blocks}")
            if times > self.ref_counts[block_id]:
                raise ValueError(f"block {block_id} is freed more often than it has owners")
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
"""
COUNT_DOWN = """            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] == 0:
                heapq.heappush(self.free_ids, block_id)
"""

POOL = [
    Mistake(
        "04.1",
        "serves as many as it can",
        edit=(("            return None\n", "            n = self.num_free\n"),),
    ),
    Mistake(
        "04.1",
        "refuses the last block",
        edit=(("if n > self.num_free:", "if n >= self.num_free:"),),
    ),
    Mistake(
        "04.1",
        "keeps what it took when it refuses",
        edit=(
            (
                (
                    "        if n > self.num_free:\n            return None\n"
                    "        block_ids = [heapq.heappop(self.free_ids) for _ in range(n)]\n"
                ),
                (
                    "        block_ids = []\n        for _ in range(n):\n"
                    "            if not self.free_ids:\n                return None\n"
                    "            block_ids.append(heapq.heappop(self.free_ids))\n"
                ),
            ),
        ),
    ),
    Mistake(
        "04.1",
        "takes the last of the free ids",
        edit=(("heapq.heappop(self.free_ids)", "self.free_ids.pop()"),),
    ),
    Mistake(
        "04.1",
        "hands out blocks and leaves them free",
        edit=(("[heapq.heappop(self.free_ids) for _ in range(n)]", "sorted(self.free_ids)[:n]"),),
    ),
    Mistake(
        "04.1",
        "never counts an owner",
        edit=(("            self.ref_counts[block_id] = 1\n", "            pass\n"),),
    ),
    Mistake(
        "04.1",
        "lets a double free pass",
        edit=(
            (
                (
                    "            if times > self.ref_counts[block_id]:\n"
                    '                raise ValueError(f"block {block_id} is freed more often than it has '
                    'owners")\n'
                ),
                "",
            ),
            (
                "            self.ref_counts[block_id] -= 1\n",
                (
                    "            if self.ref_counts[block_id] == 0:\n                continue\n"
                    "            self.ref_counts[block_id] -= 1\n"
                ),
            ),
        ),
    ),
    Mistake(
        "04.1",
        "finds the error half-way through",
        edit=(
            (
                VALIDATION,
                (
                    "        for block_id in block_ids:\n"
                    "            if not 0 <= block_id < self.num_blocks or not self.ref_counts[block_id]:\n"
                    '                raise ValueError(f"block {block_id} is not in use")\n'
                    "            self.ref_counts[block_id] -= 1\n"
                ),
            ),
        ),
    ),
    Mistake(
        "04.1",
        "looks at each id on its own",
        edit=(("in Counter(block_ids).items()", "in [(b, 1) for b in block_ids]"),),
    ),
    Mistake(
        "04.1",
        "frees a block when its first owner goes",
        edit=(
            (
                COUNT_DOWN,
                (
                    "            self.ref_counts[block_id] = 0\n"
                    "            if block_id not in self.free_ids:\n"
                    "                heapq.heappush(self.free_ids, block_id)\n"
                ),
            ),
        ),
    ),
    Mistake(
        "04.1",
        "appends to the heap",
        edit=(("heapq.heappush(self.free_ids, block_id)", "self.free_ids.append(block_id)"),),
    ),
    Mistake(
        "04.1",
        "takes id -1 for the last block",
        edit=(("if not 0 <= block_id < self.num_blocks:", "if block_id >= self.num_blocks:"),),
    ),
]

SLOT = "block_ids[token_idx // block_size] * block_size + token_idx % block_size"
SLOTS = [
    Mistake("04.2", name, edit=((SLOT, code),))
    for name, code in (
        ("ignores the table", "token_idx"),
        ("counts blocks as slots", "block_ids[token_idx // block_size] + token_idx % block_size"),
        ("forgets the offset", "block_ids[token_idx // block_size] * block_size"),
        ("asks the table for a token", "block_ids[token_idx] * block_size"),
        ("returns the block", "block_ids[token_idx // block_size]"),
        (
            "takes quotient for remainder",
            "block_ids[token_idx // block_size] * block_size + token_idx // block_size",
        ),
        ("goes on after the first block", "block_ids[0] * block_size + token_idx"),
        ("counts from 1", SLOT + " + 1"),
        ("reads the blocks in memory order", SLOT.replace("block_ids", "sorted(block_ids)")),
        ("hard-codes 4", "block_ids[token_idx // 4] * 4 + token_idx % 4"),
        (
            "divides with /",
            "block_ids[token_idx / block_size] * block_size + token_idx % block_size",
        ),
        ("gives block and offset", "(block_ids[token_idx // block_size], token_idx % block_size)"),
    )
]

NUM_NEW = "num_new_blocks = -(-(n - self.num_empty) // self.block_size)"
RETURN = "return [self.slot(idx) for idx in range(self.num_tokens - n, self.num_tokens)]"
TABLE = [
    Mistake(
        "04.3",
        "takes the next block as soon as one is full",
        edit=((NUM_NEW, "num_new_blocks = (n - self.num_empty) // self.block_size + 1"),),
    ),
    Mistake(
        "04.3",
        "forgets the empty slots of the last block",
        edit=((NUM_NEW, "num_new_blocks = -(-n // self.block_size)"),),
    ),
    Mistake(
        "04.3",
        "rounds down",
        edit=((NUM_NEW, "num_new_blocks = (n - self.num_empty - 1) // self.block_size"),),
    ),
    Mistake(
        "04.3",
        "takes blocks one by one and keeps them when refused",
        edit=(
            (
                (
                    "        new_ids = pool.allocate(max(0, num_new_blocks))\n"
                    "        if new_ids is None:\n            return None\n"
                    "        self.block_ids.extend(new_ids)\n"
                ),
                (
                    "        for _ in range(num_new_blocks):\n"
                    "            new_id = pool.allocate(1)\n"
                    "            if new_id is None:\n                return None\n"
                    "            self.block_ids += new_id\n"
                ),
            ),
        ),
    ),
    Mistake(
        "04.3",
        "counts the tokens before the pool has said yes",
        edit=(
            (
                "        new_ids = pool.allocate(max(0, num_new_blocks))\n",
                (
                    "        self.num_tokens += n\n"
                    "        new_ids = pool.allocate(max(0, num_new_blocks))\n"
                ),
            ),
            (
                "        self.block_ids.extend(new_ids)\n        self.num_tokens += n\n",
                "        self.block_ids.extend(new_ids)\n",
            ),
        ),
    ),
    Mistake(
        "04.3",
        "replaces the earlier blocks",
        edit=(("self.block_ids.extend(new_ids)", "self.block_ids = new_ids"),),
    ),
    Mistake(
        "04.3",
        "gives every slot of the sequence",
        edit=((RETURN, "return [self.slot(idx) for idx in range(self.num_tokens)]"),),
    ),
    Mistake("04.3", "gives blocks instead of slots", edit=((RETURN, "return new_ids"),)),
    Mistake(
        "04.3",
        "counts on from the first new slot",
        edit=(
            (
                RETURN,
                (
                    "first = self.slot(self.num_tokens - n) if n else 0\n"
                    "        return list(range(first, first + n))"
                ),
            ),
        ),
    ),
    Mistake(
        "04.3",
        "refuses when the pool is empty, although the block has room",
        edit=((NUM_NEW, NUM_NEW + "\n        if pool.num_free == 0:\n            return None"),),
    ),
    Mistake(
        "04.3", "does not count the new tokens", edit=(("        self.num_tokens += n\n", ""),)
    ),
    Mistake(
        "04.3",
        "forgets the tokens that were there",
        edit=(
            ("self.num_tokens += n", "before, self.num_tokens = self.num_tokens, n"),
            (
                RETURN,
                (
                    "ids, size = self.block_ids, self.block_size\n"
                    "        return [slot_of(ids, idx, size) for idx in range(before, before + n)]"
                ),
            ),
        ),
    ),
]

SPLIT = "block_ids, offsets = slots // k_cache.shape[1], slots % k_cache.shape[1]"
WRITE_K = "k_cache[block_ids, offsets] = k[written].to(k_cache.dtype)"
WRITE_V = "v_cache[block_ids, offsets] = v[written].to(v_cache.dtype)"
WRITE = [
    Mistake(
        "04.4",
        "lets -1 index the last slot",
        edit=(("written = slot_mapping >= 0", "written = slot_mapping >= -1"),),
    ),
    Mistake(
        "04.4",
        "clamps -1 to slot 0",
        edit=(
            ("written = slot_mapping >= 0", "written = slot_mapping >= -1"),
            ("slots = slot_mapping[written]", "slots = slot_mapping.clamp(min=0)"),
        ),
    ),
    Mistake(
        "04.4",
        "takes all -1 to be at the end",
        edit=(("k[written]", "k[: len(slots)]"), ("v[written]", "v[: len(slots)]")),
    ),
    Mistake(
        "04.4",
        "splits the slot by the number of blocks",
        edit=((SPLIT, "block_ids, offsets = slots % k_cache.shape[0], slots // k_cache.shape[0]"),),
    ),
    Mistake(
        "04.4",
        "writes into a reshaped copy",
        edit=(
            (WRITE_K, "k_cache.reshape(-1, *k.shape[1:])[slots] = k[written].to(k_cache.dtype)"),
            (WRITE_V, "v_cache.reshape(-1, *v.shape[1:])[slots] = v[written].to(v_cache.dtype)"),
        ),
    ),
    Mistake(
        "04.4",
        "asks for a view of a view",
        edit=(
            (WRITE_K, "k_cache.view(-1, *k.shape[1:])[slots] = k[written].to(k_cache.dtype)"),
            (WRITE_V, "v_cache.view(-1, *v.shape[1:])[slots] = v[written].to(v_cache.dtype)"),
        ),
    ),
    Mistake("04.4", "forgets v", edit=((WRITE_V, "pass"),)),
    Mistake("04.4", "writes k into both", edit=(("v[written]", "k[written]"),)),
    Mistake(
        "04.4",
        "leaves the dtype to PyTorch",
        edit=((".to(k_cache.dtype)", ""), (".to(v_cache.dtype)", "")),
    ),
    Mistake(
        "04.4",
        "clears the cache first",
        edit=((SPLIT, SPLIT + "\n    k_cache.zero_()\n    v_cache.zero_()"),),
    ),
    Mistake(
        "04.4",
        "writes in the order of arrival",
        edit=((SPLIT, "slots = torch.arange(len(slots))\n    " + SPLIT),),
    ),
    Mistake(
        "04.4",
        "does not validate the slots",
        edit=(("    validate_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])\n", ""),),
    ),
]

IDS = "block_ids = covered_blocks(block_table, seq_len, k_cache.shape[0], k_cache.shape[1])"
RESULT = "return k[:seq_len], v[:seq_len]"
GATHER = [
    Mistake(
        "04.5",
        "ignores the table",
        edit=((IDS, IDS + "\n    block_ids = list(range(len(block_ids)))"),),
    ),
    Mistake(
        "04.5", "reads in memory order", edit=((IDS, IDS + "\n    block_ids = sorted(block_ids)"),)
    ),
    Mistake(
        "04.5",
        "reads the table backwards",
        edit=((IDS, IDS + "\n    block_ids = block_ids[::-1]"),),
    ),
    Mistake("04.5", "keeps the tail", edit=((RESULT, "return k, v"),)),
    Mistake(
        "04.5",
        "drops the last token",
        edit=((RESULT, "return k[: seq_len - 1], v[: seq_len - 1]"),),
    ),
    Mistake(
        "04.5",
        "reads full blocks only",
        edit=((IDS, IDS + "\n    block_ids = block_ids[: seq_len // k_cache.shape[1]]"),),
    ),
    Mistake(
        "04.5",
        "cuts the head instead of the tail",
        edit=((RESULT, "return k[len(k) - seq_len :], v[len(v) - seq_len :]"),),
    ),
    Mistake("04.5", "takes both from the keys", edit=(("v = v_cache.", "v = k_cache."),)),
    Mistake(
        "04.5", "leaves the blocks apart", edit=((".flatten(0, 1)", ""), (RESULT, "return k, v"))
    ),
    Mistake(
        "04.5",
        "computes in float32",
        edit=((RESULT, "return k[:seq_len].float(), v[:seq_len].float()"),),
    ),
    Mistake("04.5", "believes the whole table", edit=((IDS, "block_ids = list(block_table)"),)),
]

ATTEND = [
    Mistake(
        "04.6",
        "forgets the scale",
        edit=(("attention(q, k, v, softmax_scale)", "attention(q, k, v)"),),
    ),
    Mistake(
        "04.6", "turns the mask off", edit=(("softmax_scale)\n", "softmax_scale, causal=False)\n"),)
    ),
    Mistake(
        "04.6",
        "reads every slot of the blocks",
        edit=(
            (
                "gather_kv(k_cache, v_cache, block_table, seq_len)",
                (
                    "gather_kv(k_cache, v_cache, block_table[:-1],"
                    " (len(block_table) - 1) * k_cache.shape[1])"
                ),
            ),
        ),
    ),
    Mistake(
        "04.6",
        "leaves out the newest tokens",
        edit=(
            ("block_table, seq_len)", "block_table, seq_len - len(q))"),
            ("softmax_scale)\n", "softmax_scale, causal=False)\n"),
        ),
    ),
    Mistake("04.6", "exchanges k and v", edit=(("attention(q, k, v, ", "attention(q, v, k, "),)),
    Mistake(
        "04.6",
        "scales twice",
        edit=(
            (
                "return attention(q, k, v, softmax_scale)",
                (
                    "scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale\n"
                    "    return attention(q * scale, k, v, scale)"
                ),
            ),
        ),
    ),
    Mistake(
        "04.6",
        "ignores the table",
        edit=(
            (
                "k, v = gather_kv(k_cache, v_cache, block_table, seq_len)",
                "k, v = k_cache.flatten(0, 1)[:seq_len], v_cache.flatten(0, 1)[:seq_len]",
            ),
        ),
    ),
    Mistake(
        "04.6",
        "takes len(q) for seq_len",
        edit=(("block_table, seq_len)", "block_table, len(q))"),),
    ),
]

MISTAKES = [*POOL, *SLOTS, *TABLE, *WRITE, *GATHER, *ATTEND]
