"""The figures of lesson 5."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minipaged import triton_kernels
from minipaged.interpreter import Record, compile_for, signature_of

from ...kit.drawing import EMPTY, FAINT, INK, SEQUENCES, drawing


def online_softmax(scores: Sequence[float]) -> None:
    """Draw the weights after each score, measured from the largest score so far."""
    with drawing(8.0, 2.7) as ax:
        for turn in range(1, len(scores) + 1):
            top = max(scores[:turn])
            bottom = 0.0
            for idx, score in enumerate(scores[:turn]):
                height = math.exp(score - top)
                ax.bar(
                    turn, height, bottom=bottom, width=0.55, color=SEQUENCES[idx], edgecolor="white"
                )
                inside = height > 0.12  # else beside the bar
                ax.text(
                    turn if inside else turn + 0.29,
                    bottom + height / 2 if inside else max(bottom + height / 2, 0.06),
                    f"{height:.2f}",
                    ha="center" if inside else "left", va="center",
                    color="white" if inside else INK, fontsize=9,
                )  # fmt: skip
                bottom += height
            ax.text(turn, bottom + 0.04, f"sum {bottom:.2f}", ha="center", va="bottom", fontsize=9)
            if turn > 1:
                shrink = math.exp(max(scores[: turn - 1]) - top)
                ax.text(turn - 0.5, 0.02, f"old × {shrink:.2f}", ha="center", fontsize=9, color=INK)
        ticks = range(1, len(scores) + 1)
        ax.set_xticks(ticks, [f"score {s:g}\nlargest {max(scores[:t]):g}" for t, s in
                              zip(ticks, scores, strict=True)])  # fmt: skip
        ax.set(ylabel="exp(score − largest)", ylim=(0, 1.75), xlim=(0.5, len(scores) + 0.5))


def touched(
    record: Record,
    tensor: str,
    num_places: int,
    kind: str = "load",
    place: Callable[[list[int]], int] = lambda index: index[0],
    label: Callable[[tuple[int, int, int]], str] = lambda program: f"program {program[0]}",
    per_block: int = 0,
    xlabel: str = "element",
) -> None:
    """Draw which places of memory each program touched: a row for each program.

    Args:
        record: made by `recording`.
        tensor: name of the kernel's parameter.
        num_places: how many places the tensor has.
        kind: "load" or "store".
        place: turns an element's index into its place.
        label: names a program.
        per_block: places in a block, to mark the blocks; 0 marks none.
        xlabel: what a place is.
    """
    found: dict[tuple[int, int, int], list[int]] = {}
    for access in record.accesses:
        seen = found.setdefault(access.program, [])
        if (access.tensor, access.kind) == (tensor, kind):
            seen += sorted({place(index) for index in access.indices.tolist()})
    programs = sorted(found)
    width = 8.4
    with drawing(width, 1.0 + 0.24 * len(programs)) as ax:
        for row, program in enumerate(programs):
            ax.add_patch(Rectangle((0, row + 0.1), num_places, 0.8, facecolor=EMPTY, linewidth=0))
            colour = SEQUENCES[program[0] % len(SEQUENCES)]
            for spot in found[program]:
                ax.add_patch(
                    Rectangle((spot, row + 0.1), 1, 0.8, facecolor=colour, edgecolor="white",
                              linewidth=0.6)
                )  # fmt: skip
        _memory_axis(ax, num_places, per_block)
        ax.set_yticks([row + 0.5 for row in range(len(programs))], [label(p) for p in programs])
        ax.set(xlim=(0, num_places), ylim=(len(programs), 0), xlabel=xlabel)
        ax.tick_params(length=0)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)


def _memory_axis(ax: Axes, num_places: int, per_block: int) -> None:
    """Label the blocks, or each place where there are none."""
    if per_block:
        num_blocks = num_places // per_block
        for block in range(1, num_blocks):
            ax.axvline(block * per_block, color=FAINT, linewidth=0.6)
        centres, names = [(b + 0.5) * per_block for b in range(num_blocks)], range(num_blocks)
    else:
        centres, names = [spot + 0.5 for spot in range(num_places)], range(num_places)
    ax.set_xticks(centres, [str(name) for name in names])
    ax.tick_params(labelsize=9)


def _head(program: tuple[int, int, int]) -> str:
    return f"{'AB'[program[0]]}, query head {program[1]}"


def _kv_head(program: tuple[int, int, int]) -> str:
    return f"{'AB'[program[0]]}, KV head {program[1]}"


def reads_in_pieces(record: Record, max_seq_len: int) -> None:
    """Draw who reads which row of keys [num_seqs, max_seq_len, ...]."""
    touched(
        record, "k_ptr", 2 * max_seq_len, label=_head, per_block=max_seq_len,
        place=lambda index: index[0] * max_seq_len + index[1],
        xlabel="rows of k in memory: sequence 0's, then sequence 1's",
    )  # fmt: skip


def reads_in_blocks(record: Record, num_blocks: int = 16, block_size: int = 4) -> None:
    """Draw who reads which slot of a cache [num_blocks, block_size, ...]."""
    grouped = len({access.program for access in record.accesses}) <= 4
    touched(
        record, "k_cache_ptr", num_blocks * block_size, per_block=block_size,
        place=lambda index: index[0] * block_size + index[1],
        label=_kv_head if grouped else _head, xlabel="slots of k_cache in memory, by block",
    )  # fmt: skip


def writes_in_blocks(record: Record, num_blocks: int = 16, block_size: int = 4) -> None:
    """Draw who writes which slot of a cache [num_blocks, block_size, ...]."""
    touched(
        record, "k_cache_ptr", num_blocks * block_size, kind="store", per_block=block_size,
        place=lambda index: index[0] * block_size + index[1],
        label=lambda program: f"token {program[0]}, head {program[1]}",
        xlabel="slots of k_cache in memory, by block",
    )  # fmt: skip


def processors(num_splits: int, num_programs: int = 8, num_processors: int = 132) -> None:
    """Draw how many of a GPU's processors have a program when sequences are cut into pieces."""
    busy = min(num_processors, num_programs * num_splits)
    waiting = num_programs * num_splits - busy
    with drawing(7.6, 1.5) as ax:
        for idx in range(num_processors):
            column, row = divmod(idx, 4)
            colour = SEQUENCES[0] if idx < busy else EMPTY
            ax.add_patch(Rectangle((column, 3 - row), 0.86, 0.86, facecolor=colour, linewidth=0))
        ax.set(xlim=(-0.2, num_processors / 4), ylim=(-0.2, 4))
        ax.set_aspect("equal")
        ax.axis("off")
        more = f", {waiting} more wait" if waiting else ""
        ax.set_title(
            f"{num_splits} {'piece' if num_splits == 1 else 'pieces'}: {busy} of "
            f"{num_processors} processors have a program{more}",
            fontsize=10, loc="left",
        )  # fmt: skip


def steps(microseconds: Mapping[str, float]) -> None:
    """Draw the time of each step of the lesson, with its ratio to the step before."""
    names, times = list(microseconds), list(microseconds.values())
    unit, scale = ("milliseconds", 1000) if max(times) >= 1000 else ("microseconds", 1)
    with drawing(7.6, 0.7 + 0.42 * len(names)) as ax:
        ax.barh(names, [time / scale for time in times], color=SEQUENCES[0], height=0.6)
        for row, time in enumerate(times):
            beside = f" {time / scale:,.1f}"
            if row:
                beside += f", {time / times[row - 1]:.2f} times the step before"
            ax.text(time / scale, row, beside, va="center", fontsize=9)
        ax.set(xlim=(0, max(times) / scale * 1.6), xlabel=f"{unit}, on this machine")
        ax.invert_yaxis()
        ax.tick_params(axis="x", colors="#666666")


# --- what the compiler made ----------------------------------------------------------------------


def compiled(*names: str, head_dim: int = 128, target: str = "sm_90") -> None:
    """Print what the compiler makes of some kernels in bfloat16, where Triton is installed."""
    try:
        rows = [compile_step(name, head_dim, target) for name in names]
    except (ModuleNotFoundError, RuntimeError) as error:
        print(f"nothing compiled: {error}")
        return
    print(f"{target}, bfloat16, head_dim {head_dim}, blocks of 16, groups of 4")
    print("                    registers  spills  shared bytes  ld.global  mma  cp.async")
    for made in rows:
        print(
            f"{made.kernel:19} {made.registers:9} {made.spills:7} {made.shared_bytes:13,} "
            f"{made.num_ld_global:10} {made.num_mma:4} {made.num_cp_async:9}"
        )


def machine_code(name: str, *words: str, num_lines: int = 6) -> None:
    """Print the first lines of a kernel's PTX that hold some words, where Triton is installed."""
    try:
        text = compile_step(name).text
    except (ModuleNotFoundError, RuntimeError) as error:
        print(f"nothing compiled: {error}")
        return
    lines = [line.strip() for line in text.split("\n")]
    print(f"{len(lines):,} lines of PTX, among them")
    for word in words:
        print(*[line for line in lines if word in line][:num_lines], sep="\n")


def compile_step(name: str, head_dim: int = 128, target: str = "sm_90") -> Any:
    """Compile one of the lesson's kernels as the course launches it; see `compile_for`."""
    kernel = getattr(triton_kernels, name)
    x, ints = torch.zeros(16, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.int32)
    floats, row = torch.zeros(16), 2 * head_dim
    cache = (16 * row, row, head_dim, 1)
    sizes: dict[str, Any] = {"HEAD_DIM": head_dim, "DIM_TILE": head_dim}
    if name == "masked_copy":
        args: tuple = (x, x, 4096)
        sizes = {"TILE": 1024}
    elif name == "store_kv_kernel":
        args = (x, x, x, x, ints.long(), *cache, row, head_dim)
        sizes |= {"BLOCK_SIZE": 16, "num_warps": 1}
    elif name == "decode_contiguous":
        args = (x, x, x, x, ints, 0.1, 8 * head_dim, head_dim, 64 * row, row, head_dim)
        sizes |= {"GROUP_SIZE": 4, "TILE": 64}
    elif name == "decode_paged":
        args = (x, x, x, x, ints, ints, 0.1, 8 * head_dim, head_dim, 64, *cache[:3])
        sizes |= {"BLOCK_SIZE": 16, "GROUP_SIZE": 4, "TILE": 64}
    else:
        out = floats if name == "decode_split" else x
        args = (out, floats, x, x, x, ints, ints, 0.1, 8 * head_dim, head_dim, 64, *cache, *cache)
        sizes |= {"BLOCK_SIZE": 16, "GROUP_SIZE": 4, "GROUP_TILE": 16, "TILE": 64}
        sizes |= {"UPCAST": False, "num_stages": 3}
    options = {key: sizes[key] for key in ("num_warps", "num_stages") if key in sizes}
    return compile_for(kernel, *signature_of(kernel, *args, **sizes), target, **options)
