"""The figures of lesson 4."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator

from minipaged.block_table import BlockTable
from minipaged.waste import request_trace

from ...kit.drawing import FAINT, INK, SEQUENCES, WASTE, drawing
from .demos import two_requests

OTHERS = "#d9d6cf"


def blocks(tables: Mapping[str, BlockTable], num_blocks: int = 16) -> None:
    """Sequences A to F as they see themselves, their tables, and where their tokens lie."""
    names = list(tables)
    colours = [SEQUENCES["ABCDEF".index(name)] for name in names]
    with drawing(8.4, 1.5 + 0.75 * len(names)) as ax:
        ax.axis("off")
        for row, (name, table) in enumerate(tables.items()):
            _sequence(ax, name, table, y=2 * (len(names) - row), colour=colours[row])
        owners = {
            block_id: (row, block_idx)
            for row, name in enumerate(names)
            for block_idx, block_id in enumerate(tables[name].block_ids)
        }
        size = tables[names[0]].block_size
        for block_id in range(num_blocks):
            line, column = divmod(block_id, 8)
            x, y = column * (size + 0.7), -0.7 - 2.1 * line
            ax.text(x + size / 2, y + 1.1, f"{block_id}", ha="center", va="bottom", fontsize=9)
            row, block_idx = owners.get(block_id, (-1, 0))
            for offset in range(size):
                token_idx = block_idx * size + offset
                if row < 0:
                    _slot(ax, x + offset, y, OTHERS)
                elif token_idx < tables[names[row]].num_tokens:
                    _slot(ax, x + offset, y, colours[row], str(token_idx))
                else:
                    _slot(ax, x + offset, y, None)
        ax.text(-1.2, -1.6, "memory", ha="right", va="center")
        ax.set_xlim(-5.6, 8 * (size + 0.7))
        ax.set_ylim(-2.1 * ((num_blocks - 1) // 8) - 1.7, 2 * len(names) + 1.3)
        ax.legend(
            handles=[
                Patch(facecolor=OTHERS, edgecolor=OTHERS, label="older requests"),
                Patch(facecolor="white", edgecolor=FAINT, label="empty slot"),
            ],
            loc="upper right",
            bbox_to_anchor=(1, 1),
            borderaxespad=0,
            frameon=False,
            fontsize=9,
        )


def _sequence(ax: Axes, name: str, table: BlockTable, y: float, colour: str) -> None:
    """One sequence in the order of its tokens, and its table's entry above each block."""
    size = table.block_size
    ax.text(-1.2, y + 0.5, f"{name}, {table.num_tokens} tokens", ha="right", va="center")
    for block_idx, block_id in enumerate(table.block_ids):
        x = block_idx * (size + 0.7)
        ax.text(
            x + size / 2,
            y + 1.05,
            f"in block {block_id}",
            ha="center",
            va="bottom",
            fontsize=9,
        )
        for offset in range(size):
            token_idx = block_idx * size + offset
            used = token_idx < table.num_tokens
            _slot(ax, x + offset, y, colour if used else None, str(token_idx) if used else "")


def _slot(ax: Axes, x: float, y: float, colour: str | None, text: str = "") -> None:
    """One slot of a block; an empty one, without a colour, is an outline."""
    if colour is None:
        box = Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, fc="white", ec=FAINT, linewidth=0.8)
    else:
        box = Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1)
    ax.add_patch(box)
    if text:
        ax.text(x + 0.5, y + 0.47, text, ha="center", va="center", fontsize=9, color="white")


def by_turns(turns: int) -> None:
    """Two requests that grow by turns in an aged pool, after some turns."""
    _, table_a, table_b = two_requests(turns)
    blocks({"A": table_a, "B": table_b})


def story_lengths(max_seq_len: int = 1024) -> list[int]:
    """Tokens that each of 300 requests holds at its end; their mean is 223."""
    requests = request_trace(300, 0, mean_prompt=96, mean_output=128, max_seq_len=max_seq_len)
    return [request.prompt_len + request.output_len for request in requests]


def mean_empty(lengths: list[int], block_size: int) -> float:
    """Empty slots of a sequence's last block, on average."""
    return sum(-length % block_size for length in lengths) / len(lengths)


def block_sizes(block_size: int) -> None:
    """What a block size leaves empty: of some sequences, and on average beside the rule."""
    lengths = story_lengths()
    sizes = [2**power for power in range(11)]
    with drawing(8.4, 3.3, columns=2) as axes:
        left, right = np.asarray(axes)
        shown = lengths[:12]
        held = [-(-length // block_size) * block_size for length in shown]
        rows = range(len(shown))
        left.barh(rows, held, color=WASTE["internal"], height=0.7, label="empty")
        left.barh(rows, shown, color=WASTE["used"], height=0.7, label="holds a token")
        for row, end in zip(rows, held, strict=True):
            cuts = range(block_size, end, block_size) if block_size >= 16 else ()
            left.vlines(list(cuts), row - 0.35, row + 0.35, color="white", linewidth=0.6)
        left.set(xlim=(0, 1060), ylabel="12 of the 300 sequences", yticks=[])
        left.set_xlabel(f"slots, in blocks of {block_size:,}")
        left.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            fontsize=9,
            frameon=False,
            ncols=2,
            borderpad=0.2,
        )

        empty = [mean_empty(lengths, size) for size in sizes]
        right.plot(
            sizes[1:], empty[1:], "o-", color=WASTE["internal"], markersize=4, label="counted"
        )
        rule = [(size - 1) / 2 for size in sizes]
        right.plot(sizes[1:], rule[1:], "--", color=INK, linewidth=1, label="(block_size − 1) / 2")
        now = mean_empty(lengths, block_size)
        right.plot([block_size], [now], "o", color=WASTE["internal"], markersize=9)
        right.annotate(
            f"{now:,.1f} empty",
            (block_size, now),
            xytext=(-10, 6),
            textcoords="offset points",
            ha="right",
            fontsize=10,
        )
        right.set(xscale="log", yscale="log", xlabel="block size (tokens)")
        right.set_ylabel("empty slots a sequence, mean")
        right.set_xticks([2, 4, 16, 64, 256, 1024], ["2", "4", "16", "64", "256", "1,024"])
        right.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        right.xaxis.set_minor_locator(NullLocator())
        right.yaxis.set_minor_locator(NullLocator())
        right.set(xlim=(1.2, 1600), ylim=(0.3, 2500))
        right.legend(loc="lower right", fontsize=9, frameon=False)


def rates(tokens_per_second: Mapping[int, float]) -> None:
    """Tokens a second of whole batches, by batch size."""
    with drawing(5.2, 2.4) as ax:
        names = [f"{size}" for size in tokens_per_second]
        bars = ax.bar(names, list(tokens_per_second.values()), color=SEQUENCES[0], width=0.6)
        ax.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=10)
        ax.set_xlabel("sequences in a step")
        ax.set_ylabel("tokens a second")
        ax.margins(y=0.18)
