"""The figures of lesson 1: what is fed, what a query sees, what it costs, who has arrived."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ...kit.drawing import EMPTY, FAINT, INK, SEQUENCES, drawing

NEW, AGAIN, KEPT = SEQUENCES[0], SEQUENCES[1], "#a9c6e3"


def fed_tokens(prompt_len: int = 5, num_new: int = 6) -> None:
    """Which tokens each pass computes, without and with a cache."""
    total = prompt_len + num_new - 1
    axes: Any
    with drawing(9, 3.1, columns=2) as axes:
        for ax, cached in zip(axes, (False, True), strict=True):
            computed = 0
            for step in range(num_new):
                seq_len = prompt_len + step
                first_new = seq_len - 1 if step else 0
                for idx in range(seq_len):
                    old = KEPT if cached else AGAIN
                    computed += not cached or idx >= first_new
                    cell(ax, idx, step, NEW if idx >= first_new else old)
            name = "with a cache" if cached else "without a cache"
            ax.set_title(f"{name}: {computed} tokens computed", fontsize=10)
            ax.set_xlabel("place of the token in the sequence")
            ax.set_ylabel("pass")
            ax.set_xlim(0, total)
            ax.set_ylim(num_new, 0)
            ax.set_xticks([idx + 0.5 for idx in range(0, total, 2)], range(0, total, 2))
            ax.set_yticks([step + 0.5 for step in range(num_new)], range(1, num_new + 1))
            bare(ax)
        colours = {"computed": NEW, "computed again": AGAIN, "read from the cache": KEPT}
        patches = [Patch(color=colour, label=label) for label, colour in colours.items()]
        axes[0].figure.legend(
            handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=9
        )


def causal_grid(query_len: int = 2, seq_len: int = 5) -> None:
    """Which of seq_len keys the last query_len tokens may see."""
    with drawing(5.4, 0.45 * seq_len + 1.0) as ax:
        first = seq_len - query_len
        for place in range(seq_len):
            for key in range(seq_len):
                if place < first:
                    cell(ax, key, place, "white")
                else:
                    cell(ax, key, place, NEW if key <= place else EMPTY)
            if place < first:
                ax.text(seq_len / 2, place + 0.5, "no query", ha="center", va="center", color=FAINT)
        ax.set_xlim(0, seq_len)
        ax.set_ylim(seq_len, 0)
        ax.set_xticks([idx + 0.5 for idx in range(seq_len)], [str(idx) for idx in range(seq_len)])
        ax.set_yticks([idx + 0.5 for idx in range(seq_len)], [str(idx) for idx in range(seq_len)])
        ax.set_xlabel("place of the key's token")
        ax.set_ylabel("place of the\nquery's token")
        bare(ax)
        patches = [Patch(color=NEW, label="seen"), Patch(fc=EMPTY, ec=FAINT, label="hidden")]
        ax.legend(handles=patches, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def attention_steps() -> None:
    """Scores, the mask, shares and the mix of two queries and five keys, as numbers."""
    scores = torch.tensor([[1.0, 3.0, 0.0, 2.0, 4.0], [2.0, 1.0, 0.0, 3.0, 1.0]])
    masked = scores.clone()
    masked[0, 4] = -torch.inf
    shares = torch.softmax(masked, dim=-1)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    tables = (("1. scaled scores", scores), ("2. hidden keys", masked), ("3. shares", shares))
    axes: Any
    with drawing(9.8, 2.1, columns=4) as axes:
        for ax, (title, table) in zip(axes, tables, strict=False):
            for row in range(2):
                for key in range(5):
                    value = float(table[row, key])
                    hidden = row == 0 and key == 4 and table is not scores
                    depth = value if table is shares else 0.0
                    colour = EMPTY if hidden else (*hex_rgb(NEW), 0.12 + 0.6 * depth)
                    cell(ax, key, row, colour)
                    text = f"{value:.2f}" if table is shares else f"{value:.0f}"
                    text = "−∞" if value == -torch.inf else text
                    ax.text(key + 0.5, row + 0.5, text, ha="center", va="center", color=INK)
            ax.set_xlim(0, 5)
            ax.set_ylim(2, 0)
            ax.set_title(title, fontsize=10)
            ax.set_xticks([idx + 0.5 for idx in range(5)], range(5))
            ax.set_yticks([0.5, 1.5], (3, 4))
            ax.set_xlabel("key")
            ax.set_ylabel("query")
            bare(ax)
        show_mix(axes[3], shares, values)


def show_mix(ax: Axes, shares: torch.Tensor, values: torch.Tensor) -> None:
    """The values of the keys in a row, and below it one mix of them for each query."""
    for key, value in enumerate(values.tolist()):
        cell(ax, key, -1, KEPT)
        ax.text(key + 0.5, -0.5, f"{value:.0f}", ha="center", va="center", color=INK)
    for row, mix in enumerate((shares @ values).tolist()):
        ax.add_patch(Rectangle((0, row), 5, 1, fc=(*hex_rgb(NEW), 0.3), ec="white", lw=1.5))
        ax.text(2.5, row + 0.5, f"{mix:.1f}", ha="center", va="center", color=INK)
    ax.set_xlim(0, 5)
    ax.set_ylim(2, -1)
    ax.set_title("4. the values, mixed", fontsize=10)
    ax.set_xticks([idx + 0.5 for idx in range(5)], [str(idx) for idx in range(5)])
    ax.set_yticks([-0.5, 0.5, 1.5], ["value", "query 3", "query 4"])
    ax.set_xlabel("key")
    bare(ax)


def work_per_token(count: Callable[[int, int], tuple[int, int]], longest: int = 1024) -> None:
    """Operations for one more token against the length so far; count(num_fed, seq_len)."""
    lengths = [1, *range(16, longest + 1, 16)]
    without = [sum(count(n, n)) / 1e6 for n in lengths]
    cached = [sum(count(1, n)) / 1e6 for n in lengths]
    with drawing(7.5, 3.2) as ax:
        for curve, colour, name in (
            (without, AGAIN, "without a cache"),
            (cached, NEW, "with a cache"),
        ):
            ax.plot(lengths, curve, color=colour, lw=2)
            ax.annotate(
                name,
                (lengths[-1], curve[-1]),
                xytext=(-4, 8),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
            at = [curve[lengths.index(n)] for n in (256, 512)]
            ax.plot((256, 512), at, "o", color=colour)
            ax.annotate(
                f"×{at[1] / at[0]:.2f}",
                (362, (at[0] * at[1]) ** 0.5),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
            )
        ax.set_yscale("log")
        ax.set_ylim(1, max(without) * 4)
        ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        ax.minorticks_off()
        ax.set_xlabel("tokens in the sequence")
        ax.set_ylabel("million operations\nfor one token")


def copied_bytes(bytes_per_token: int, num_tokens: int = 1000) -> None:
    """What torch.cat has copied again by each length, and what is kept."""
    lengths = range(num_tokens + 1)
    kept = [n * bytes_per_token / 1e6 for n in lengths]
    copied = [n * (n - 1) / 2 * bytes_per_token / 1e6 for n in lengths]
    with drawing(7.5, 2.9) as ax:
        ax.plot(lengths, copied, color=AGAIN, lw=2)
        ax.plot(lengths, kept, color=NEW, lw=2)
        end: dict[str, Any] = {"ha": "right", "textcoords": "offset points"}
        ax.annotate(
            f"copied again: {copied[-1]:,.0f} MB",
            (num_tokens, copied[-1]),
            xytext=(-42, -6),
            color=AGAIN,
            **end,
        )
        ax.annotate(
            f"kept: {kept[-1]:.2f} MB", (num_tokens, kept[-1]), xytext=(-2, 8), color=NEW, **end
        )
        ax.set_xlabel("tokens appended, one at a time")
        ax.set_ylabel("megabytes, in all")
        ax.set_ylim(bottom=-0.02 * copied[-1])


def three_requests(
    requests: Mapping[str, tuple[int, int | None]], longest: int | None = None
) -> None:
    """Prompt and output of requests in tokens; an output of None is not known."""
    ends = [prompt + (output or 0) for prompt, output in requests.values()]
    limit = longest or max(ends)
    with drawing(8, 2.5) as ax:
        for row, (prompt, output) in enumerate(requests.values()):
            ax.barh(row, prompt, color=SEQUENCES[row])
            label = f"prompt {prompt}"
            if output is None:
                ax.barh(
                    row, limit - prompt, left=prompt, color="white", ec=FAINT, hatch="///", lw=0
                )
                label += ", output ?"
            else:
                ax.barh(row, output, left=prompt, color=SEQUENCES[row], alpha=0.4)
                label += f", output {output}"
            box = {"fc": "white", "ec": "none", "pad": 1.5, "alpha": 0.9}
            ax.text(limit * 1.03, row, label, va="center", bbox=box)
        ax.set_yticks(range(len(requests)), list(requests))
        ax.invert_yaxis()
        ax.set_xlim(0, limit * 1.45)
        ticks = MaxNLocator(6).tick_values(0, limit)
        ax.set_xticks([tick for tick in ticks if 0 <= tick <= limit])
        ax.spines["bottom"].set_bounds(0, limit)
        ax.set_xlabel("tokens (solid: the prompt; pale: the output; hatched: nobody knows)")
        ax.set_ylabel("request")


def cell(ax: Axes, column: float, row: float, colour: object) -> None:
    """One square of a grid."""
    ax.add_patch(Rectangle((column, row), 1, 1, fc=colour, ec="white", lw=1.5))


def bare(ax: Axes) -> None:
    """No frame and no tick marks: the squares are the frame."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def hex_rgb(colour: str) -> tuple[float, float, float]:
    """The three parts of "#rrggbb", from 0 to 1."""
    red, green, blue = (int(colour[idx : idx + 2], 16) / 255 for idx in (1, 3, 5))
    return red, green, blue
