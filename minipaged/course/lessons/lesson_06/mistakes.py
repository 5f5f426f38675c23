"""Wrong solutions of lesson 6."""

from ...kit.mistakes import Wrong

SHRINK = "    shrink = torch.exp(top - base)\n"
WEIGHTS = "    weights = torch.exp(scores - base[..., None])\n"
BASE = '    base = torch.where(new_top == float("-inf"), 0.0, new_top)  # of a row that has seen nothing\n'
TOP = "    new_top = torch.maximum(top, scores.amax(-1))\n"
TOTAL = "    total = total * shrink + weights.sum(-1)\n"
MIXED = "    mixed = mixed * shrink[..., None] + weights @ v\n"
MASK = '.masked_fill(~allowed, float("-inf"))'

ABSORB = [
    Wrong(
        "06.1",
        "subtracts no maximum",
        says="exp overflows",
        edit=((BASE, "    base = torch.zeros_like(new_top)\n"), (SHRINK, "    shrink = torch.ones_like(top)\n")),
    ),
    Wrong("06.1", "never rescales", says="their unit is the old maximum", edit=((SHRINK, "    shrink = torch.ones_like(top)\n"),)),
    Wrong("06.1", "rescales total only", says="mixed was not multiplied", edit=((MIXED, "    mixed = mixed + weights @ v\n"),)),
    Wrong("06.1", "scales q a second time", says="scaled a second time", edit=((MASK, " * 8**-0.5" + MASK), ("(q @ k.transpose(-1, -2)) *", "(q @ k.transpose(-1, -2) *"), ("8**-0.5.", "8**-0.5)."))),
    Wrong("06.1", "turns the exponent round", says="wrong sign", edit=((SHRINK, "    shrink = torch.where(top == float('-inf'), 0.0, torch.exp(base - top))\n"),)),
    Wrong("06.1", "masks with -1e9", says="-1e9 is a number still", edit=((MASK, ".masked_fill(~allowed, -1e9)"),)),
    Wrong("06.1", "takes the tile's own maximum", says="the largest score of all tiles so far", edit=((TOP, "    new_top = scores.amax(-1)\n"),)),
    Wrong("06.1", "ignores the mask", says="the mask stays on", edit=((MASK, ""),)),
    Wrong("06.1", "masks with 0", says="must be -inf", edit=((MASK, ".masked_fill(~allowed, 0.0)"),)),
    Wrong("06.1", "makes NaN of a row that sees nothing", says="-inf - -inf is NaN", edit=((BASE, "    base = new_top\n"),)),
    Wrong("06.1", "divides in every tile", says="division waits", edit=((MIXED, MIXED + "    mixed = mixed / total.clamp(min=1e-30)[..., None]\n"),)),
    Wrong("06.1", "calls the top of an unseeing row 0", says="is -inf still", edit=(("return new_top, total", "return base, total"),)),
]  # fmt: skip

FIRST_KEY = "max(0, first_position - window + 1)"

TILES = [
    Wrong("06.2", "aligns the mask at the top left", says="bottom-right", edit=(("context_len = seq_len - query_len", "context_len = 0"),)),
    Wrong("06.2", "gives the tile behind the last one", says="not the one behind it", edit=(("last_position // key_tile", "last_position // key_tile + 1"),)),
    Wrong("06.2", "forgets that the last query tile may be shorter", says="may be shorter", edit=(("min((query_tile_idx + 1) * query_tile, query_len)", "(query_tile_idx + 1) * query_tile"),)),
    Wrong("06.2", "goes by the tile's first query", says="last query sees furthest", edit=(("last_position // key_tile", "first_position // key_tile"),)),
    Wrong("06.2", "masks where nothing is causal", says="no tile can be left out", edit=(("    if not causal:\n        return 0, -(-seq_len // key_tile) - 1\n", ""),)),
    Wrong("06.2", "drops the last tile when it is short", says="may be shorter than the others", edit=(("-(-seq_len // key_tile) - 1", "seq_len // key_tile - 1"),)),
    Wrong("06.2", "reads all tiles", says="are not needed", edit=(("last_position // key_tile", "(seq_len - 1) // key_tile"),)),
    Wrong("06.2", "gives the last token", says="the tile that holds it", edit=(("last_position // key_tile", "last_position"),)),
    Wrong("06.2", "counts a window without the query itself", says="w - 1 tokens", edit=((FIRST_KEY, "max(0, first_position - window)"),)),
    Wrong("06.2", "starts at the last query's window", says="looks back furthest", edit=((FIRST_KEY, "max(0, last_position - window + 1)"),)),
    Wrong("06.2", "gives a list", says="as a tuple", edit=(("return first_key // key_tile, last_position // key_tile", "return [first_key // key_tile, last_position // key_tile]"),)),
    Wrong("06.2", "takes query tiles for key tiles", says="differ in size", edit=(("last_position // key_tile", "query_tile_idx"),)),
]  # fmt: skip

NUM_KEYS = "min((last + 1) * key_tile, seq_len) - first * key_tile"

TRAFFIC = [
    Wrong("06.3", "reads K and V once", says="again for each tile of queries", edit=(("        tiled += 2 * num_keys * head_dim\n", "        pass\n    tiled += 2 * seq_len * head_dim\n"),)),
    Wrong("06.3", "moves the scores twice", says="four times", edit=(("4 * query_len * seq_len", "2 * query_len * seq_len"),)),
    Wrong("06.3", "gives elements", says="element_size each", edit=(("return standard * element_size, tiled * element_size", "return standard, tiled"),)),
    Wrong("06.3", "forgets out", says="out", edit=(("outside = 2 * query_len", "outside = query_len"),)),
    Wrong("06.3", "gives floats", says="it is a float", edit=(("return standard * element_size", "return standard / 1 * element_size"),)),
    Wrong("06.3", "skips the masked half in the standard count", says="skips nothing", edit=(("4 * query_len * seq_len\n", "4 * query_len * seq_len // (2 if causal else 1)\n"),)),
    Wrong("06.3", "skips no tile", says="that no query may see is not read", edit=((NUM_KEYS, "seq_len"),)),
    Wrong("06.3", "counts keys behind the end", says="that do not exist", edit=((NUM_KEYS, "(last + 1 - first) * key_tile"),)),
    Wrong("06.3", "leaves the last tile out", says="both included", edit=((NUM_KEYS, "(last - first) * key_tile"),)),
    Wrong("06.3", "drops the last, shorter tile of queries", says="round up", edit=(("-(-query_len // query_tile)", "query_len // query_tile"),)),
    Wrong("06.3", "does not hand causal on", says="hand causal on", edit=((", causal=causal)", ")"),)),
    Wrong("06.3", "counts the log-sum-exp", says="log-sum-exp is left out", edit=(("    tiled = outside\n", "    tiled = outside + query_len\n"),)),
]  # fmt: skip

LAST = "seq_lens - (num_blocks - 1).clamp(min=0) * block_size"

INDPTR = [
    Wrong("06.4", "calls a full last block empty", says="block_size tokens, not 0", edit=((LAST, "seq_lens % block_size"),)),
    Wrong("06.4", "gives an empty row a last block", says="length 0 has no last block", edit=((LAST, "seq_lens - (num_blocks - 1) * block_size"),)),
    Wrong("06.4", "counts the empty slots", says="empty slots", edit=((LAST, "num_blocks * block_size - seq_lens"),)),
    Wrong("06.4", "gives whole lengths", says="not all of the row's", edit=((LAST, "seq_lens"),)),
    Wrong("06.4", "takes the padding along", says="Padding came along", edit=(("block_tables[columns < num_blocks[:, None]].int()", "block_tables.flatten().int()"),)),
    Wrong("06.4", "trusts ids that are not -1", says="the length decides", edit=(("columns < num_blocks[:, None]", "block_tables >= 0"),)),
    Wrong("06.4", "begins with the first row's end", says="begins with 0", edit=(("    columns =", "    kv_indptr = kv_indptr[1:]\n    columns ="),)),
    Wrong("06.4", "counts tokens", says="this counts tokens", edit=(("num_blocks.cumsum(0)", "seq_lens.cumsum(0)"),)),
    Wrong("06.4", "rounds down", says="round up", edit=(("(seq_lens + block_size - 1) // block_size", "seq_lens // block_size"),)),
    Wrong("06.4", "forgets the running sum", says="num_seqs + 1", edit=(("    columns =", "    kv_indptr = num_blocks.int()\n    columns ="),)),
    Wrong("06.4", "sorts the ids", says="table's order", edit=(("num_blocks[:, None]].int()", "num_blocks[:, None]].int().sort().values"),)),
    Wrong("06.4", "gives int64", says="dtype", edit=(("dtype=torch.int32, ", ""), ("torch.zeros(len(seq_lens) + 1,", "torch.zeros(len(seq_lens) + 1, dtype=torch.int64,"))),
]  # fmt: skip

WRONG = ABSORB + TILES + TRAFFIC + INDPTR
