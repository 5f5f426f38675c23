"""Wrong solutions of lesson 4."""

from ...kit.mistakes import Wrong

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
    Wrong(
        "04.1",
        "serves as many as it can",
        says="served whole or not at all",
        edit=(("            return None\n", "            n = self.num_free\n"),),
    ),
    Wrong(
        "04.1",
        "refuses the last block",
        says="Exactly as many as there are is enough",
        edit=(("if n > self.num_free:", "if n >= self.num_free:"),),
    ),
    Wrong(
        "04.1",
        "a refusal keeps what it had taken",
        says="A refused request takes nothing",
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
    Wrong(
        "04.1",
        "takes from the end",
        says="lowest free ids come out first",
        edit=(("heapq.heappop(self.free_ids)", "self.free_ids.pop()"),),
    ),
    Wrong(
        "04.1",
        "hands out blocks and leaves them free",
        says="must leave the free ids",
        edit=(("[heapq.heappop(self.free_ids) for _ in range(n)]", "sorted(self.free_ids)[:n]"),),
    ),
    Wrong(
        "04.1",
        "never counts an owner",
        says="has one owner now",
        edit=(("            self.ref_counts[block_id] = 1\n", "            pass\n"),),
    ),
    Wrong(
        "04.1",
        "lets a double free pass",
        says="two callers will own one block",
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
    Wrong(
        "04.1",
        "finds the mistake half way through",
        says="A refused call leaves everything as it was",
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
    Wrong(
        "04.1",
        "looks at each id once, however often it stands there",
        says="loses two owners",
        edit=(("in Counter(block_ids).items()", "in [(b, 1) for b in block_ids]"),),
    ),
    Wrong(
        "04.1",
        "frees a block at the first goodbye",
        says="when its last owner is gone",
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
    Wrong(
        "04.1",
        "appends to the heap",
        says="free_ids is a heap",
        edit=(("heapq.heappush(self.free_ids, block_id)", "self.free_ids.append(block_id)"),),
    ),
    Wrong(
        "04.1",
        "takes id -1 for the last block",
        says="Python reads index -1 as the last one",
        edit=(("if not 0 <= block_id < self.num_blocks:", "if block_id >= self.num_blocks:"),),
    ),
]

SLOT = "block_ids[token_idx // block_size] * block_size + token_idx % block_size"
SLOTS = [
    Wrong("04.2", name, says=says, edit=((SLOT, code),))
    for name, says, code in (
        ("ignores the table", "the table was not asked", "token_idx"),
        (
            "counts blocks as slots",
            "each block before this one takes",
            "block_ids[token_idx // block_size] + token_idx % block_size",
        ),
        (
            "forgets the offset",
            "the offset is missing",
            "block_ids[token_idx // block_size] * block_size",
        ),
        ("asks the table for a token", "not a token", "block_ids[token_idx] * block_size"),
        ("returns the block", "That is a block", "block_ids[token_idx // block_size]"),
        (
            "takes quotient for remainder",
            "what is left over",
            "block_ids[token_idx // block_size] * block_size + token_idx // block_size",
        ),
        (
            "goes on behind the first block",
            "as if the blocks lay side by side",
            "block_ids[0] * block_size + token_idx",
        ),
        ("counts from 1", "one slot too far", SLOT + " + 1"),
        (
            "reads the blocks in the order of memory",
            "not of the ids",
            SLOT.replace("block_ids", "sorted(block_ids)"),
        ),
        ("hard-codes 4", "not always 4", "block_ids[token_idx // 4] * 4 + token_idx % 4"),
        (
            "divides with /",
            "a whole number",
            "token_idx / block_size * block_size + block_ids[0] * block_size",
        ),
        (
            "gives block and offset",
            "one number made of both",
            "(block_ids[token_idx // block_size], token_idx % block_size)",
        ),
    )
]

NUM_NEW = "num_new_blocks = -(-(n - self.num_empty) // self.block_size)"
RETURN = "return [self.slot(idx) for idx in range(self.num_tokens - n, self.num_tokens)]"
TABLE = [
    Wrong(
        "04.3",
        "takes the next block as soon as one is full",
        says="not before",
        edit=((NUM_NEW, "num_new_blocks = (n - self.num_empty) // self.block_size + 1"),),
    ),
    Wrong(
        "04.3",
        "forgets the empty slots of the last block",
        says="the last one still had empty slots",
        edit=((NUM_NEW, "num_new_blocks = -(-n // self.block_size)"),),
    ),
    Wrong(
        "04.3",
        "rounds down",
        says="round up",
        edit=((NUM_NEW, "num_new_blocks = (n - self.num_empty - 1) // self.block_size"),),
    ),
    Wrong(
        "04.3",
        "takes blocks one by one and keeps them when refused",
        says="All or nothing",
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
    Wrong(
        "04.3",
        "counts the tokens before the pool has said yes",
        says="All or nothing",
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
    Wrong(
        "04.3",
        "replaces the earlier blocks",
        says="The earlier blocks still hold",
        edit=(
            ("self.block_ids.extend(new_ids)", "self.block_ids = new_ids or self.block_ids"),
            (RETURN, "return [0] * n"),
        ),
    ),
    Wrong(
        "04.3",
        "gives every slot of the sequence",
        says="Only the new tokens' slots",
        edit=((RETURN, "return [self.slot(idx) for idx in range(self.num_tokens)]"),),
    ),
    Wrong(
        "04.3",
        "gives blocks instead of slots",
        says="These are blocks",
        edit=((RETURN, "return new_ids"),),
    ),
    Wrong(
        "04.3",
        "counts on from the first new slot",
        says="only inside a block",
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
    Wrong(
        "04.3",
        "refuses when the pool is empty, although the block has room",
        says="no pool needed",
        edit=((NUM_NEW, NUM_NEW + "\n        if pool.num_free == 0:\n            return None"),),
    ),
    Wrong(
        "04.3",
        "does not count the new tokens",
        says="num_tokens was still",
        edit=(("        self.num_tokens += n\n", ""),),
    ),
    Wrong(
        "04.3",
        "forgets the tokens that were there",
        says="the earlier ones too",
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
    Wrong(
        "04.4",
        "lets -1 index the last slot",
        says="Slot -1 writes nothing; here it wrote into the last slot",
        edit=(("written = slot_mapping >= 0", "written = slot_mapping >= -1"),),
    ),
    Wrong(
        "04.4",
        "clamps -1 to slot 0",
        says="wrote into slot 0",
        edit=(
            ("written = slot_mapping >= 0", "written = slot_mapping >= -1"),
            ("slots = slot_mapping[written]", "slots = slot_mapping.clamp(min=0)"),
        ),
    ),
    Wrong(
        "04.4",
        "takes all -1 to stand at the end",
        says="a -1 takes its own token out",
        edit=(
            ("k[written]", "k[: len(slots)]"),
            ("v[written]", "v[: len(slots)]"),
        ),
    ),
    Wrong(
        "04.4",
        "splits the slot by the number of blocks",
        says="block = slot // block_size",
        edit=(
            (
                SPLIT,
                "block_ids, offsets = slots % k_cache.shape[0], slots // k_cache.shape[0]",
            ),
        ),
    ),
    Wrong(
        "04.4",
        "writes into a reshaped copy",
        says="made a copy",
        edit=(
            (WRITE_K, "k_cache.reshape(-1, *k.shape[1:])[slots] = k[written].to(k_cache.dtype)"),
            (WRITE_V, "v_cache.reshape(-1, *v.shape[1:])[slots] = v[written].to(v_cache.dtype)"),
        ),
    ),
    Wrong(
        "04.4",
        "asks for a view of a view",
        says="Index k_cache by block and offset",
        edit=(
            (WRITE_K, "k_cache.view(-1, *k.shape[1:])[slots] = k[written].to(k_cache.dtype)"),
            (WRITE_V, "v_cache.view(-1, *v.shape[1:])[slots] = v[written].to(v_cache.dtype)"),
        ),
    ),
    Wrong("04.4", "forgets v", says="Nothing was written", edit=((WRITE_V, "pass"),)),
    Wrong(
        "04.4",
        "writes k into both",
        says="v into v_cache",
        edit=(("v[written]", "k[written]"),),
    ),
    Wrong(
        "04.4",
        "leaves the dtype to PyTorch",
        says="the cache's dtype decides",
        edit=((".to(k_cache.dtype)", ""), (".to(v_cache.dtype)", "")),
    ),
    Wrong(
        "04.4",
        "clears the cache first",
        says="must keep what they hold",
        edit=((SPLIT, SPLIT + "\n    k_cache.zero_()\n    v_cache.zero_()"),),
    ),
    Wrong(
        "04.4",
        "writes in the order of arrival",
        says="went into other slots",
        edit=((SPLIT, "slots = torch.arange(2, 2 + len(slots))\n    " + SPLIT),),
    ),
    Wrong(
        "04.4",
        "does not look at the slots first",
        says="must be named",
        edit=(("    validate_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])\n", ""),),
    ),
]

IDS = "block_ids = covered_blocks(block_table, seq_len, k_cache.shape[0], k_cache.shape[1])"
RESULT = "return k[:seq_len], v[:seq_len]"
GATHER = [
    Wrong(
        "04.5",
        "ignores the table",
        says="this read others",
        edit=((IDS, IDS + "\n    block_ids = list(range(len(block_ids)))"),),
    ),
    Wrong(
        "04.5",
        "reads in the order of memory",
        says="The blocks came in the order of memory",
        edit=((IDS, IDS + "\n    block_ids = sorted(block_ids)"),),
    ),
    Wrong(
        "04.5",
        "reads the table backwards",
        says="in the order of the tokens",
        edit=((IDS, IDS + "\n    block_ids = block_ids[::-1]"),),
    ),
    Wrong(
        "04.5", "keeps the tail", says="cut the tail at seq_len", edit=((RESULT, "return k, v"),)
    ),
    Wrong(
        "04.5",
        "drops the last token",
        says="One row a token",
        edit=((RESULT, "return k[: seq_len - 1], v[: seq_len - 1]"),),
    ),
    Wrong(
        "04.5",
        "reads full blocks only",
        says="the tail's tokens included",
        edit=((IDS, IDS + "\n    block_ids = block_ids[: seq_len // k_cache.shape[1]]"),),
    ),
    Wrong(
        "04.5",
        "cuts the head instead of the tail",
        says="this read others",
        edit=((RESULT, "return k[len(k) - seq_len :], v[len(v) - seq_len :]"),),
    ),
    Wrong(
        "04.5",
        "takes both from the keys",
        says="v out of v_cache",
        edit=(("v = v_cache.", "v = k_cache."),),
    ),
    Wrong(
        "04.5",
        "leaves the blocks apart",
        says="become one axis",
        edit=((".flatten(0, 1)", ""), (RESULT, "return k, v")),
    ),
    Wrong(
        "04.5",
        "computes in float32",
        says="keep the dtype",
        edit=((RESULT, "return k[:seq_len].float(), v[:seq_len].float()"),),
    ),
    Wrong(
        "04.5",
        "believes the whole table",
        says="Ids behind those that seq_len needs are padding",
        edit=((IDS, "block_ids = list(block_table)"),),
    ),
]

ATTEND = [
    Wrong(
        "04.6",
        "forgets the scale",
        says="did not reach attention",
        edit=(("attention(q, k, v, softmax_scale)", "attention(q, k, v)"),),
    ),
    Wrong(
        "04.6",
        "turns the mask off",
        says="the mask stays on",
        edit=(("softmax_scale)\n", "softmax_scale, causal=False)\n"),),
    ),
    Wrong(
        "04.6",
        "reads every slot of the blocks",
        says="from unused memory",
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
    Wrong(
        "04.6",
        "leaves out the newest tokens",
        says="those of the newest tokens are missing",
        edit=(
            ("block_table, seq_len)", "block_table, seq_len - len(q))"),
            ("softmax_scale)\n", "softmax_scale, causal=False)\n"),
        ),
    ),
    Wrong(
        "04.6",
        "changes k and v",
        says="they changed places",
        edit=(("attention(q, k, v, ", "attention(q, v, k, "),),
    ),
    Wrong(
        "04.6",
        "scales twice",
        says="applied twice",
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
    Wrong(
        "04.6",
        "ignores the table",
        says="through the table",
        edit=(
            (
                "k, v = gather_kv(k_cache, v_cache, block_table, seq_len)",
                "k, v = k_cache.flatten(0, 1)[:seq_len], v_cache.flatten(0, 1)[:seq_len]",
            ),
        ),
    ),
    Wrong(
        "04.6",
        "reads the query's length",
        says="those of q included",
        edit=(("block_table, seq_len)", "block_table, len(q) - 1)"),),
    ),
]

WRONG = [*POOL, *SLOTS, *TABLE, *WRITE, *GATHER, *ATTEND]
