"""The known wrong solutions of lesson 6."""

from ...kit.mistakes import Mistake

SHRINK = "    shrink = torch.exp(top - base)\n"
WEIGHTS = "    weights = torch.exp(scores - base[..., None])\n"
BASE = '    base = torch.where(new_top == float("-inf"), 0.0, new_top)  # of a row that has seen nothing\n'
TOP = "    new_top = torch.maximum(top, scores.amax(-1))\n"
TOTAL = "    total = total * shrink + weights.sum(-1)\n"
MIXED = "    mixed = mixed * shrink[..., None] + weights @ v\n"
MASK = '.masked_fill(~allowed, float("-inf"))'

ABSORB = [
    Mistake(
        "06.1",
        "subtracts no maximum",
        edit=((BASE, "    base = torch.zeros_like(new_top)\n"), (SHRINK, "    shrink = torch.ones_like(top)\n")),
    ),
    Mistake("06.1", "never rescales", edit=((SHRINK, "    shrink = torch.ones_like(top)\n"),)),
    Mistake("06.1", "rescales total only", edit=((MIXED, "    mixed = mixed + weights @ v\n"),)),
    Mistake("06.1", "scales q a second time", edit=((MASK, " * q.shape[-1] ** -0.5" + MASK), ("(q @ k.transpose(-1, -2)) *", "(q @ k.transpose(-1, -2) *"), ("** -0.5.", "** -0.5)."))),
    Mistake("06.1", "turns the exponent round", edit=((SHRINK, "    shrink = torch.exp(base - top)\n"),)),
    Mistake("06.1", "masks with -1e9", edit=((MASK, ".masked_fill(~allowed, -1e9)"),)),
    Mistake("06.1", "takes the tile's own maximum", edit=((TOP, "    new_top = scores.amax(-1)\n"),)),
    Mistake("06.1", "ignores the mask", edit=((MASK, ""),)),
    Mistake("06.1", "masks with 0", edit=((MASK, ".masked_fill(~allowed, 0.0)"),)),
    Mistake("06.1", "subtracts -inf from -inf", edit=((BASE, "    base = new_top\n"),)),
    Mistake("06.1", "divides in every tile", edit=((MIXED, MIXED + "    mixed = mixed / total[..., None]\n"),)),
    Mistake("06.1", "gives a row that sees nothing the top 0", edit=(("return new_top, total", "return base, total"),)),
]  # fmt: skip

FIRST_KEY = "max(0, first_position - window + 1)"

TILES = [
    Mistake("06.2", "aligns the mask at the top left", edit=(("context_len = seq_len - query_len", "context_len = 0"),)),
    Mistake("06.2", "gives the tile after the last one", edit=(("last_position // key_tile", "last_position // key_tile + 1"),)),
    Mistake("06.2", "takes the last tile of queries for a full one", edit=(("min((query_tile_idx + 1) * query_tile, query_len)", "(query_tile_idx + 1) * query_tile"),)),
    Mistake("06.2", "goes by the tile's first query", edit=(("last_position // key_tile", "first_position // key_tile"),)),
    Mistake("06.2", "masks although causal is False", edit=(("    if not causal:\n        return 0, -(-seq_len // key_tile) - 1\n", ""),)),
    Mistake("06.2", "drops the last tile when it is short", edit=(("-(-seq_len // key_tile) - 1", "seq_len // key_tile - 1"),)),
    Mistake("06.2", "reads all tiles", edit=(("last_position // key_tile", "(seq_len - 1) // key_tile"),)),
    Mistake("06.2", "gives the last token", edit=(("last_position // key_tile", "last_position"),)),
    Mistake("06.2", "leaves the query out of its window", edit=((FIRST_KEY, "max(0, first_position - window)"),)),
    Mistake("06.2", "starts at the last query's window", edit=((FIRST_KEY, "max(0, last_position - window + 1)"),)),
    Mistake("06.2", "gives a list", edit=(("return first_key // key_tile, last_position // key_tile", "return [first_key // key_tile, last_position // key_tile]"), ("return 0, -(-seq_len // key_tile) - 1", "return [0, -(-seq_len // key_tile) - 1]"))),
    Mistake("06.2", "takes query tiles for key tiles", edit=(("last_position // key_tile", "query_tile_idx"),)),
]  # fmt: skip

NUM_KEYS = "min((last + 1) * key_tile, seq_len) - first * key_tile"

TRAFFIC = [
    Mistake("06.3", "reads K and V once", edit=(("        tiled += 2 * num_keys * head_dim\n", "        pass\n    tiled += 2 * seq_len * head_dim\n"),)),
    Mistake("06.3", "moves the scores twice", edit=(("4 * query_len * seq_len", "2 * query_len * seq_len"),)),
    Mistake("06.3", "gives elements", edit=(("return standard * element_size, tiled * element_size", "return standard, tiled"),)),
    Mistake("06.3", "forgets out", edit=(("outside = 2 * query_len", "outside = query_len"),)),
    Mistake("06.3", "gives floats", edit=(("return standard * element_size, tiled * element_size", "return standard / 1 * element_size, tiled / 1 * element_size"),)),
    Mistake("06.3", "halves the scores of the standard count", edit=(("4 * query_len * seq_len\n", "4 * query_len * seq_len // (2 if causal else 1)\n"),)),
    Mistake("06.3", "reads every key for each tile of queries", edit=((NUM_KEYS, "seq_len"),)),
    Mistake("06.3", "counts keys past the end", edit=((NUM_KEYS, "(last + 1 - first) * key_tile"),)),
    Mistake("06.3", "leaves the last tile out", edit=((NUM_KEYS, "(last - first) * key_tile"),)),
    Mistake("06.3", "drops the last tile of queries when it is short", edit=(("-(-query_len // query_tile)", "query_len // query_tile"),)),
    Mistake("06.3", "does not pass causal on", edit=((", causal=causal)", ")"),)),
    Mistake("06.3", "counts the log-sum-exp", edit=(("    tiled = outside\n", "    tiled = outside + query_len\n"),)),
]  # fmt: skip

LAST = "seq_lens - (num_blocks - 1).clamp(min=0) * block_size"

INDPTR = [
    Mistake("06.4", "calls a full last block empty", edit=((LAST, "seq_lens % block_size"),)),
    Mistake("06.4", "gives an empty row a last block", edit=((LAST, "seq_lens - (num_blocks - 1) * block_size"),)),
    Mistake("06.4", "counts the empty slots of the last block", edit=((LAST, "num_blocks * block_size - seq_lens"),)),
    Mistake("06.4", "gives whole lengths for the last block", edit=((LAST, "seq_lens"),)),
    Mistake("06.4", "takes the whole table", edit=(("block_tables[columns < num_blocks[:, None]].int()", "block_tables.flatten().int()"),)),
    Mistake("06.4", "takes every id that is not -1", edit=(("columns < num_blocks[:, None]", "block_tables >= 0"),)),
    Mistake("06.4", "leaves the 0 out of kv_indptr", edit=(("    columns =", "    kv_indptr = kv_indptr[1:]\n    columns ="),)),
    Mistake("06.4", "counts tokens in kv_indptr", edit=(("num_blocks.cumsum(0)", "seq_lens.cumsum(0)"),)),
    Mistake("06.4", "rounds the blocks down", edit=(("(seq_lens + block_size - 1) // block_size", "seq_lens // block_size"),)),
    Mistake("06.4", "forgets the running sum", edit=(("num_blocks.cumsum(0)", "num_blocks"),)),
    Mistake("06.4", "sorts the ids", edit=(("num_blocks[:, None]].int()", "num_blocks[:, None]].int().sort().values"),)),
    Mistake("06.4", "gives int64", edit=(("dtype=torch.int32, ", ""), ("torch.zeros(len(seq_lens) + 1,", "torch.zeros(len(seq_lens) + 1, dtype=torch.int64,"))),
]  # fmt: skip

MISTAKES = ABSORB + TILES + TRAFFIC + INDPTR
