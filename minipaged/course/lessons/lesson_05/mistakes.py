"""Wrong solutions of lesson 5."""

import os
from importlib.util import find_spec

from ...kit.mistakes import Wrong

# where Triton is installed a check compiles too, and catches what the interpreter lets pass
COMPILES = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"

MERGE = [
    Wrong(
        "05.1",
        "takes the mean",
        says="do not weigh the same",
        edit=(
            (
                "    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]\n",
                "    out = (out_a + out_b) / 2 * total[..., None]\n",
            ),
        ),
    ),
    Wrong(
        "05.1",
        "subtracts no maximum",
        says="too large for a float32",
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
    Wrong(
        "05.1",
        "measures from the first part",
        says="take the larger of the two lse",
        edit=(("top = torch.maximum(lse_a, lse_b)", "top = lse_a"),),
    ),
    Wrong(
        "05.1",
        "divides by nothing",
        says="weights must add up to 1",
        edit=(("out / total.clamp(min=1e-30)[..., None]", "out"),),
    ),
    Wrong(
        "05.1",
        "weighs with the logarithm",
        says="An lse is a logarithm",
        edit=(
            (
                "weight_a[..., None] + out_b * weight_b[..., None]",
                "lse_a[..., None] + out_b * lse_b[..., None]",
            ),
            (
                "out / total.clamp(min=1e-30)[..., None]",
                "out / (lse_a + lse_b)[..., None]",
            ),
        ),
    ),
    Wrong(
        "05.1",
        "adds the logarithms",
        says="Adding logarithms multiplies",
        edit=(("top + torch.log(total)", "lse_a + lse_b"),),
    ),
    Wrong(
        "05.1",
        "forgets to add the maximum again",
        says="must be added again",
        edit=(("top + torch.log(total)", "torch.log(total)"),),
    ),
    Wrong(
        "05.1",
        "merges base 2 as base e",
        says="exp2 does not",
        edit=(("torch.exp(", "torch.exp2("),),
    ),
    Wrong(
        "05.1",
        "exchanges the weights",
        says="The weights are exchanged",
        edit=(
            (
                "torch.exp(lse_a - top), torch.exp(lse_b - top)",
                "torch.exp(lse_b - top), torch.exp(lse_a - top)",
            ),
        ),
    ),
    Wrong(
        "05.1",
        "has nothing for two empty sides",
        says="neither side has keys",
        edit=(('    top = torch.where(top == float("-inf"), 0.0, top)\n', ""),),
    ),
    Wrong(
        "05.1",
        "accumulates into its argument",
        says="they are read, not changed",
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
    Wrong(
        "05.2",
        "masks nothing",
        says="mask the load and the store",
        edit=((COPY, "    tl.store(out_ptr + idx, tl.load(x_ptr + idx))"),),
    ),
    Wrong(
        "05.2",
        "masks the load alone",
        says="mask the load and the store",
        edit=((", other=0.0), mask=is_inside)", ", other=0.0))"),),
    ),
    Wrong(
        "05.2",
        "masks the store alone",
        says="mask the load and the store",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "tl.load(x_ptr + idx)"),),
    ),
    Wrong(
        "05.2",
        "copies the first tile in every program",
        says="Only the first tile",
        edit=((IDX, "tl.arange(0, TILE)"),),
    ),
    Wrong(
        "05.2",
        "moves one element a program",
        says="written by no program",
        edit=((IDX, "tl.program_id(0) + tl.arange(0, TILE)"),),
    ),
    Wrong(
        "05.2",
        "lets one lane too many in",
        says="mask the load and the store",
        edit=(("idx < num_elements", "idx <= num_elements"),),
    ),
    Wrong(
        "05.2",
        "copies whole tiles alone",
        says="which is not full",
        edit=(
            (
                "idx < num_elements",
                "(idx < num_elements) & ((tl.program_id(0) + 1) * TILE <= num_elements)",
            ),
        ),
    ),
    Wrong(
        "05.2",
        "reads behind the mask without other",
        says="in a way that Triton does not have",
        edit=((", other=0.0", ""),),
    ),
    Wrong(
        "05.2",
        "stores zeros",
        says="Element i of x",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "tl.zeros([TILE], tl.float32)"),),
    ),
    Wrong(
        "05.2",
        "forgets the decorator",
        says="must stay",
        edit=(("@triton.jit\n", ""),),
    ),
    Wrong(
        "05.2",
        "indexes a pointer",
        says="A pointer has no index",
        edit=(("tl.load(x_ptr + idx, mask=is_inside, other=0.0)", "x_ptr[idx]"),),
    ),
]  # fmt: skip
if COMPILES:
    COPIES.append(
        Wrong(
            "05.2",
            "walks element by element and breaks off",
            says="no break",
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
    Wrong(
        "05.3",
        "writes the padding somewhere",
        says="slot -1",
        edit=(("if slot >= 0:", "if True:"),),
    ),
    Wrong(
        "05.3",
        "writes the padding into slot 0",
        says="not even slot 0",
        edit=(("if slot >= 0:", "slot = tl.maximum(slot, 0)\n    if slot >= 0:"),),
    ),
    Wrong(
        "05.3",
        "takes slot 0 for padding",
        says="Slot 0 is a slot",
        edit=(("if slot >= 0:", "if slot > 0:"),),
    ),
    Wrong(
        "05.3",
        "takes a view for contiguous",
        says="by its own stride",
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
    Wrong(
        "05.3",
        "writes every head into the first",
        says="Each program writes one head",
        edit=((" + head * cache_stride_head", ""),),
    ),
    Wrong(
        "05.3",
        "takes k and v for contiguous",
        says="each index goes by its own stride",
        edit=(
            (
                "token_idx * kv_stride_token + head * kv_stride_head + dims",
                "(token_idx * 2 + head) * HEAD_DIM + dims",
            ),
        ),
    ),
    Wrong(
        "05.3",
        "exchanges block and offset",
        says="the quotient by BLOCK_SIZE",
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
    Wrong(
        "05.3",
        "writes keys for values",
        says="The values come from v_ptr",
        edit=(("tl.store(v_cache_ptr + target, v,", "tl.store(v_cache_ptr + target, k,"),),
    ),
    Wrong(
        "05.3",
        "ignores the slot mapping",
        says="The slot mapping says",
        edit=(
            (
                "        source =",
                "        slot = token_idx\n        source =",
            ),
        ),
    ),
    Wrong(
        "05.3",
        "stores V into k_cache",
        says="v into v_cache",
        edit=(("tl.store(v_cache_ptr + target", "tl.store(k_cache_ptr + target"),),
    ),
    Wrong(
        "05.3",
        "counts slots with 32 bits",
        says="make the slot 64 bits wide",
        edit=(("slot_mapping_ptr + token_idx).to(tl.int64)", "slot_mapping_ptr + token_idx)"),),
    ),
    Wrong(
        "05.3",
        "counts tokens with 32 bits",
        says="make the token's number 64 bits wide",
        edit=(("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),),
    ),
]

SCORES = 'tl.where(is_token, tl.sum(q[None, :] * k, axis=1) * softmax_scale, float("-inf"))'


def decode(exercise: str, v_ptr: str) -> list[Wrong]:
    """What goes wrong in the loop, with and without a table."""
    v_load = f"tl.load({v_ptr} + cells, mask=is_cell, other=0.0)"
    return [
        Wrong(
            exercise,
            "starts the largest score at 0",
            says="The largest score so far starts at -inf",
            edit=(('top, total = float("-inf"), 0.0', "top, total = 0.0, 0.0"),),
        ),
        Wrong(
            exercise,
            "does not mask V",
            says="0 * NaN is NaN" if exercise == "05.4" else "load of V as in that of K",
            edit=((v_load, v_load.replace("is_cell", "(dims < HEAD_DIM)[None, :]")),),
        ),
        Wrong(
            exercise,
            "repeats the group where it is tiled",
            says="stand side by side",
            edit=(("head // GROUP_SIZE", "head % (tl.num_programs(1) // GROUP_SIZE)"),),
        ),
    ]  # fmt: skip


CONTIGUOUS = [
    *decode("05.4", "v_ptr"),
    Wrong(
        "05.4",
        "does not shrink the sum",
        says="the old sum was told from the old maximum",
        edit=(("total = total * shrink +", "total = total +"),),
    ),
    Wrong(
        "05.4",
        "counts absent lanes",
        says="score 0 counts like any other",
        edit=((SCORES, "tl.sum(q[None, :] * k, axis=1) * softmax_scale"),),
    ),
    Wrong(
        "05.4",
        "divides 0 by 0 for an empty sequence",
        says="0 / 0 is NaN",
        edit=(("mixed / tl.maximum(total, 1e-30)", "mixed / total"),),
    ),
    Wrong(
        "05.4",
        "subtracts no maximum",
        says="exp of them is too large",
        edit=(
            (
                "shrink, weights = tl.exp(top - new_top), tl.exp(scores - new_top)",
                "shrink, weights = 1.0, tl.exp(scores)",
            ),
        ),
    ),
    Wrong(
        "05.4",
        "shrinks the wrong way round",
        says="shrinks by exp(old - new)",
        edit=(("tl.exp(top - new_top)", "tl.exp(new_top - top)"),),
    ),
    Wrong(
        "05.4",
        "leaves the last, shorter tile out",
        says="The last, shorter tile was left out",
        edit=(
            ("in range(0, seq_len, TILE):", "in range(0, seq_len // TILE):"),
            ("first + tl.arange", "first * TILE + tl.arange"),
        ),
    ),
    Wrong(
        "05.4",
        "writes by q's strides",
        says="not q's",
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
    Wrong(
        "05.4",
        "sums the scores over the wrong axis",
        says="do not fit together",
        edit=(("tl.sum(q[None, :] * k, axis=1)", "tl.sum(q[None, :] * k, axis=0)"),),
    ),
]
if COMPILES:
    CONTIGUOUS.append(
        Wrong(
            "05.4",
            "starts the sum as an integer",
            says="one type for all turns",
            edit=(('float("-inf"), 0.0', 'float("-inf"), 0'),),
        )
    )

ENTRIES = "block_tables_ptr + seq_idx * table_stride_seq + tokens // BLOCK_SIZE"
LOOK_UP = "tl.load(entries, mask=is_token, other=0).to(tl.int64)"
PAGED = [
    *decode("05.5", "v_cache_ptr"),
    Wrong(
        "05.5",
        "reads the memory in physical order",
        says="row of the table",
        edit=((LOOK_UP, "(tokens // BLOCK_SIZE).to(tl.int64)"),),
    ),
    Wrong(
        "05.5",
        "goes on behind the first block",
        says="row of the table",
        edit=(
            (ENTRIES, "block_tables_ptr + seq_idx * table_stride_seq + tokens * 0"),
            (LOOK_UP, LOOK_UP + " + tokens // BLOCK_SIZE"),
        ),
    ),
    Wrong(
        "05.5",
        "asks the first sequence's table",
        says="row of the table",
        edit=((" + seq_idx * table_stride_seq", ""),),
    ),
    Wrong(
        "05.5",
        "takes the table for contiguous",
        says="row of the table",
        edit=(("seq_idx * table_stride_seq", "seq_idx * tl.cdiv(seq_len, BLOCK_SIZE)"),),
    ),
    Wrong(
        "05.5",
        "asks the table for lanes without a token",
        says="must not ask the table",
        edit=((LOOK_UP, "tl.load(entries).to(tl.int64)"),),
    ),
    Wrong(
        "05.5",
        "counts elements with 32 bits",
        says="does not fit into 32 bits",
        edit=((LOOK_UP, "tl.load(entries, mask=is_token, other=0)"),),
    ),
    Wrong(
        "05.5",
        "takes a tile for a block",
        says="A tile is not a block",
        edit=(("+ tokens // BLOCK_SIZE\n", "+ first // BLOCK_SIZE + 0 * tokens\n"),),
    ),
    Wrong(
        "05.5",
        "forgets the offset in the block",
        says="every index",
        edit=(("(tokens % BLOCK_SIZE) * cache_stride_token", "tokens * cache_stride_token"),),
    ),
    Wrong(
        "05.5",
        "makes up the block's stride",
        says="by its own stride",
        edit=(("block_ids * cache_stride_block", "block_ids * BLOCK_SIZE * cache_stride_token"),),
    ),
]

TOP = '    finite_top = torch.where(top == float("-inf"), 0.0, top)\n'
SPLITS = [
    Wrong(
        "05.6",
        "merges base 2 as base e",
        says="exp2 does not",
        edit=(("torch.exp(lses", "torch.exp2(lses"),),
    ),
    Wrong(
        "05.6",
        "has nothing for empty splits",
        says="all pieces are empty",
        edit=((TOP, "    finite_top = top\n"),),
    ),
    Wrong(
        "05.6",
        "takes the mean",
        says="do not weigh the same",
        edit=(
            (
                "(weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[..., None]",
                "outs.mean(0)",
            ),
        ),
    ),
    Wrong(
        "05.6",
        "subtracts no maximum",
        says="too large for a float32",
        edit=((TOP, "    finite_top = torch.zeros_like(top)\n"),),
    ),
    Wrong(
        "05.6",
        "measures from the first piece",
        says="the largest lse of the pieces",
        edit=(("top = lses.amax(0)", "top = lses[0]"),),
    ),
    Wrong(
        "05.6",
        "forgets to add the maximum again",
        says="must be added again",
        edit=(("finite_top + torch.log(total)", "torch.log(total)"),),
    ),
    Wrong(
        "05.6",
        "adds the logarithms",
        says="Adding logarithms multiplies",
        edit=(("finite_top + torch.log(total)", "lses.sum(0)"),),
    ),
    Wrong(
        "05.6",
        "divides by nothing",
        says="weights must add up to 1",
        edit=((" / total.clamp(min=1e-30)[..., None]", ""),),
    ),
    Wrong(
        "05.6",
        "keeps the logarithm of an empty sequence from -inf",
        says="with lse -inf",
        edit=(("torch.log(total)", "torch.log(total.clamp(min=1e-30))"),),
    ),
    Wrong(
        "05.6",
        "loses an axis of the weights",
        says="one axis more",
        edit=(("(weights[..., None] * outs)", "(weights * outs)"),),
    ),
    Wrong(
        "05.6",
        "merges into the pieces",
        says="they are read, not changed",
        edit=(("(weights[..., None] * outs).sum(0)", "outs.mul_(weights[..., None]).sum(0)"),),
    ),
    Wrong(
        "05.6",
        "takes the softmax over the wrong axis",
        says="over the pieces, the first axis",
        edit=(
            (
                "(weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[..., None]",
                "(lses.softmax(-1)[..., None] * outs).sum(0)",
            ),
        ),
    ),
]

WRONG = MERGE + COPIES + STORE + CONTIGUOUS + PAGED + SPLITS
