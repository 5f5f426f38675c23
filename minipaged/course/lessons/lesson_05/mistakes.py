"""The known wrong solutions of lesson 5."""

import os
from importlib.util import find_spec

from ...kit.mistakes import Mistake

# where Triton is installed a check compiles too, and catches what the interpreter lets pass
COMPILES = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"

MERGE = [
    Mistake(
        "05.1",
        "takes the mean",
        edit=(
            (
                "    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]\n",
                "    out = (out_a + out_b) / 2 * total[..., None]\n",
            ),
        ),
    ),
    Mistake(
        "05.1",
        "subtracts no maximum",
        edit=(
            (
                "    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)\n",
                (
                    "    top = torch.zeros_like(lse_a)\n"
                    "    weight_a, weight_b = torch.exp(lse_a), torch.exp(lse_b)\n"
                ),
            ),
        ),
    ),
    Mistake(
        "05.1",
        "measures from the first part",
        edit=(("top = torch.maximum(lse_a, lse_b)", "top = lse_a"),),
    ),
    Mistake(
        "05.1",
        "measures from the smaller part",
        edit=(("torch.maximum(lse_a, lse_b)", "torch.minimum(lse_a, lse_b)"),),
    ),
    Mistake(
        "05.1", "divides by nothing", edit=(("out / total.clamp(min=1e-30)[..., None]", "out"),)
    ),
    Mistake(
        "05.1",
        "weighs with the logarithm",
        edit=(
            (
                "weight_a[..., None] + out_b * weight_b[..., None]",
                "lse_a[..., None] + out_b * lse_b[..., None]",
            ),
            ("out / total.clamp(min=1e-30)[..., None]", "out / (lse_a + lse_b)[..., None]"),
        ),
    ),
    Mistake("05.1", "adds the logarithms", edit=(("top + torch.log(total)", "lse_a + lse_b"),)),
    Mistake(
        "05.1",
        "forgets to add the maximum again",
        edit=(("top + torch.log(total)", "torch.log(total)"),),
    ),
    Mistake("05.1", "merges base 2 as base e", edit=(("torch.exp(", "torch.exp2("),)),
    Mistake(
        "05.1",
        "exchanges the weights",
        edit=(
            (
                "torch.exp(lse_a - top), torch.exp(lse_b - top)",
                "torch.exp(lse_b - top), torch.exp(lse_a - top)",
            ),
        ),
    ),
    Mistake(
        "05.1",
        "has nothing for two empty sides",
        edit=(('    top = torch.where(top == float("-inf"), 0.0, top)\n', ""),),
    ),
    Mistake(
        "05.1",
        "accumulates into its argument",
        edit=(
            (
                "    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]\n",
                (
                    "    out = out_a.mul_(weight_a[..., None])\n"
                    "    out = out.add_(out_b * weight_b[..., None])\n"
                ),
            ),
        ),
    ),
]

IDX = "tl.program_id(0) * TILE + tl.arange(0, TILE)"
COPY = (
    "    tl.store(out_ptr + idx, tl.load(x_ptr + idx, mask=is_inside, other=0.0), mask=is_inside)"
)

COPIES = [
    Mistake(
        "05.2",
        "masks nothing",
        edit=((COPY, "    tl.store(out_ptr + idx, tl.load(x_ptr + idx))"),),
    ),
    Mistake(
        "05.2",
        "masks only the load",
        edit=((", other=0.0), mask=is_inside)", ", other=0.0))"),),
    ),
    Mistake(
        "05.2",
        "masks only the store",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "tl.load(x_ptr + idx)"),),
    ),
    Mistake(
        "05.2",
        "copies only the first tile",
        edit=((IDX, "tl.arange(0, TILE)"),),
    ),
    Mistake(
        "05.2",
        "moves one element a program",
        edit=((IDX, "tl.program_id(0) + tl.arange(0, TILE)"),),
    ),
    Mistake(
        "05.2",
        "lets one lane too many in",
        edit=(("idx < num_elements", "idx <= num_elements"),),
    ),
    Mistake(
        "05.2",
        "copies only whole tiles",
        edit=(
            (
                "idx < num_elements",
                "(idx < num_elements) & ((tl.program_id(0) + 1) * TILE <= num_elements)",
            ),
        ),
    ),
    Mistake(
        "05.2",
        "loads under a mask without other",
        edit=((", other=0.0", ""),),
    ),
    Mistake(
        "05.2",
        "stores zeros",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "tl.zeros([TILE], tl.float32)"),),
    ),
    Mistake(
        "05.2",
        "forgets the decorator",
        edit=(("@triton.jit\n", ""),),
    ),
    Mistake(
        "05.2",
        "indexes a pointer",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "x_ptr[idx]"),),
    ),
]  # fmt: skip
if COMPILES:
    COPIES.append(
        Mistake(
            "05.2",
            "leaves a loop with break",
            edit=(
                ("    idx = " + IDX + "\n", ""),
                ("    is_inside = idx < num_elements\n", ""),
                (
                    COPY,
                    (
                        "    for lane in range(TILE):\n"
                        "        idx = tl.program_id(0) * TILE + lane\n"
                        "        if idx >= num_elements:\n            break\n"
                        "        tl.store(out_ptr + idx, tl.load(x_ptr + idx))"
                    ),
                ),
            ),
        )
    )

STORE = [
    Mistake("05.3", "writes the padding somewhere", edit=(("if slot >= 0:", "if True:"),)),
    Mistake(
        "05.3",
        "writes the padding into slot 0",
        edit=(("if slot >= 0:", "slot = tl.maximum(slot, 0)\n    if slot >= 0:"),),
    ),
    Mistake("05.3", "takes slot 0 for padding", edit=(("if slot >= 0:", "if slot > 0:"),)),
    Mistake(
        "05.3",
        "takes a view for contiguous",
        edit=(
            (
                (
                    "        target = (slot // BLOCK_SIZE) * cache_stride_block + head * "
                    "cache_stride_head\n"
                    "        target += (slot % BLOCK_SIZE) * cache_stride_token + dims * "
                    "cache_stride_dim\n"
                ),
                "        target = (slot * 2 + head) * HEAD_DIM + dims\n",
            ),
        ),
    ),
    Mistake(
        "05.3", "writes every head into the first", edit=((" + head * cache_stride_head", ""),)
    ),
    Mistake(
        "05.3",
        "takes k and v for contiguous",
        edit=(
            (
                "token_idx * kv_stride_token + head * kv_stride_head + dims",
                "(token_idx * 2 + head) * HEAD_DIM + dims",
            ),
        ),
    ),
    Mistake(
        "05.3",
        "exchanges block and offset",
        edit=(
            (
                "(slot // BLOCK_SIZE) * cache_stride_block",
                "(slot % BLOCK_SIZE) * cache_stride_block",
            ),
            (
                "(slot % BLOCK_SIZE) * cache_stride_token",
                "(slot // BLOCK_SIZE) * cache_stride_token",
            ),
        ),
    ),
    Mistake(
        "05.3",
        "writes keys for values",
        edit=(("tl.store(v_cache_ptr + target, v,", "tl.store(v_cache_ptr + target, k,"),),
    ),
    Mistake(
        "05.3",
        "ignores the slot mapping",
        edit=(("        source =", "        slot = token_idx\n        source ="),),
    ),
    Mistake(
        "05.3",
        "stores V into k_cache",
        edit=(("tl.store(v_cache_ptr + target", "tl.store(k_cache_ptr + target"),),
    ),
    Mistake(
        "05.3",
        "counts slots with 32 bits",
        edit=(("slot_mapping_ptr + token_idx).to(tl.int64)", "slot_mapping_ptr + token_idx)"),),
    ),
    Mistake(
        "05.3",
        "counts tokens with 32 bits",
        edit=(("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),),
    ),
]

SCORES = 'tl.where(is_token, tl.sum(q[None, :] * k, axis=1) * softmax_scale, float("-inf"))'


def decode(exercise: str, v_ptr: str) -> list[Mistake]:
    """What goes wrong in the loop, with and without a table."""
    v_load = f"tl.load({v_ptr} + cells, mask=is_cell, other=0.0)"
    return [
        Mistake(
            exercise,
            "starts the largest score at 0",
            edit=(('top, total = float("-inf"), 0.0', "top, total = 0.0, 0.0"),),
        ),
        Mistake(
            exercise,
            "does not mask V",
            edit=((v_load, v_load.replace("is_cell", "(dims < HEAD_DIM)[None, :]")),),
        ),
        Mistake(
            exercise,
            "repeats the group where it is tiled",
            edit=(("head // GROUP_SIZE", "head % (tl.num_programs(1) // GROUP_SIZE)"),),
        ),
    ]  # fmt: skip


CONTIGUOUS = [
    *decode("05.4", "v_ptr"),
    Mistake(
        "05.4", "does not shrink the sum", edit=(("total = total * shrink +", "total = total +"),)
    ),
    Mistake(
        "05.4",
        "counts absent lanes",
        edit=((SCORES, "tl.sum(q[None, :] * k, axis=1) * softmax_scale"),),
    ),
    Mistake(
        "05.4",
        "divides 0 by 0 for an empty sequence",
        edit=(("mixed / tl.maximum(total, 1e-30)", "mixed / total"),),
    ),
    Mistake(
        "05.4",
        "subtracts no maximum",
        edit=(
            (
                "shrink, weights = tl.exp(top - new_top), tl.exp(scores - new_top)",
                "shrink, weights = 1.0, tl.exp(scores)",
            ),
        ),
    ),
    Mistake(
        "05.4",
        "shrinks the wrong way round",
        edit=(("tl.exp(top - new_top)", "tl.exp(new_top - top)"),),
    ),
    Mistake(
        "05.4",
        "leaves the last, shorter tile out",
        edit=(
            ("in range(0, seq_len, TILE):", "in range(0, seq_len // TILE):"),
            ("first + tl.arange", "first * TILE + tl.arange"),
        ),
    ),
    Mistake(
        "05.4",
        "writes by q's strides",
        edit=(
            (
                "(seq_idx * tl.num_programs(1) + head) * HEAD_DIM",
                "seq_idx * q_stride_seq + head * q_stride_head",
            ),
            (
                "store_row(out_row, mixed / tl.maximum(total, 1e-30), HEAD_DIM, DIM_TILE)",
                "tl.store(out_row + dims, mixed / tl.maximum(total, 1e-30), mask=dims < HEAD_DIM)",
            ),
        ),
    ),
    Mistake(
        "05.4",
        "sums the scores over the wrong axis",
        edit=(("tl.sum(q[None, :] * k, axis=1)", "tl.sum(q[None, :] * k, axis=0)"),),
    ),
]
if COMPILES:
    CONTIGUOUS.append(
        Mistake(
            "05.4",
            "lets the loop change a type",
            edit=(('float("-inf"), 0.0', 'float("-inf"), 0'),),
        )
    )

ENTRIES = "block_tables_ptr + seq_idx * table_stride_seq + tokens // BLOCK_SIZE"
LOOK_UP = "tl.load(entries, mask=is_token, other=0).to(tl.int64)"
PAGED = [
    *decode("05.5", "v_cache_ptr"),
    Mistake(
        "05.5",
        "reads the memory in physical order",
        edit=((LOOK_UP, "(tokens // BLOCK_SIZE).to(tl.int64)"),),
    ),
    Mistake(
        "05.5",
        "goes on after the first block",
        edit=(
            (ENTRIES, "block_tables_ptr + seq_idx * table_stride_seq + tokens * 0"),
            (LOOK_UP, LOOK_UP + " + tokens // BLOCK_SIZE"),
        ),
    ),
    Mistake(
        "05.5", "asks the first sequence's table", edit=((" + seq_idx * table_stride_seq", ""),)
    ),
    Mistake(
        "05.5",
        "takes the table for contiguous",
        edit=(("seq_idx * table_stride_seq", "seq_idx * tl.cdiv(seq_len, BLOCK_SIZE)"),),
    ),
    Mistake(
        "05.5",
        "asks the table for lanes without a token",
        edit=((LOOK_UP, "tl.load(entries).to(tl.int64)"),),
    ),
    Mistake(
        "05.5",
        "counts elements with 32 bits",
        edit=((LOOK_UP, "tl.load(entries, mask=is_token, other=0)"),),
    ),
    Mistake(
        "05.5",
        "takes a tile for a block",
        edit=(("+ tokens // BLOCK_SIZE\n", "+ first // BLOCK_SIZE + 0 * tokens\n"),),
    ),
    Mistake(
        "05.5",
        "forgets the offset in the block",
        edit=(("(tokens % BLOCK_SIZE) * cache_stride_token", "tokens * cache_stride_token"),),
    ),
    Mistake(
        "05.5",
        "makes up the block's stride",
        edit=(("block_ids * cache_stride_block", "block_ids * BLOCK_SIZE * cache_stride_token"),),
    ),
]

TOP = '    finite_top = torch.where(top == float("-inf"), 0.0, top)\n'
SPLITS = [
    Mistake("05.6", "merges base 2 as base e", edit=(("torch.exp(lses", "torch.exp2(lses"),)),
    Mistake("05.6", "has nothing for empty splits", edit=((TOP, "    finite_top = top\n"),)),
    Mistake(
        "05.6",
        "takes the mean",
        edit=(
            (
                "(weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[..., None]",
                "outs.mean(0)",
            ),
        ),
    ),
    Mistake(
        "05.6", "subtracts no maximum", edit=((TOP, "    finite_top = torch.zeros_like(top)\n"),)
    ),
    Mistake(
        "05.6", "measures from the first piece", edit=(("top = lses.amax(0)", "top = lses[0]"),)
    ),
    Mistake(
        "05.6",
        "forgets to add the maximum again",
        edit=(("finite_top + torch.log(total)", "torch.log(total)"),),
    ),
    Mistake(
        "05.6", "adds the logarithms", edit=(("finite_top + torch.log(total)", "lses.sum(0)"),)
    ),
    Mistake("05.6", "divides by nothing", edit=((" / total.clamp(min=1e-30)[..., None]", ""),)),
    Mistake(
        "05.6",
        "keeps the logarithm of an empty sequence from -inf",
        edit=(("torch.log(total)", "torch.log(total.clamp(min=1e-30))"),),
    ),
    Mistake(
        "05.6",
        "loses an axis of the weights",
        edit=(("(weights[..., None] * outs)", "(weights * outs)"),),
    ),
    Mistake(
        "05.6",
        "merges into the pieces",
        edit=(("(weights[..., None] * outs).sum(0)", "outs.mul_(weights[..., None]).sum(0)"),),
    ),
    Mistake(
        "05.6",
        "takes the softmax over the wrong axis",
        edit=(
            (
                "(weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[..., None]",
                "(lses.softmax(-1)[..., None] * outs).sum(0)",
            ),
        ),
    ),
]

MISTAKES = MERGE + COPIES + STORE + CONTIGUOUS + PAGED + SPLITS
