"""The figures of lesson 6."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from minipaged.interpreter import Record

from ...kit.drawing import EMPTY, FAINT, INK, SEQUENCES, drawing
from .demos import Machine

BLUE, ORANGE, PURPLE, GREEN = SEQUENCES[:4]
STANDARD, TILED = ORANGE, BLUE


def tiles_needed(
    key_tiles: Callable[..., tuple[int, int]],
    query_len: int = 6,
    seq_len: int = 10,
    query_tile: int = 3,
    key_tile: int = 2,
    window: int | None = None,
) -> None:
    """Pairs of query and key: which may meet, and the tiles that are computed for them."""
    context_len = seq_len - query_len
    with drawing(6.8, 0.36 * query_len + 1.0) as ax:
        for query in range(query_len):
            for key in range(seq_len):
                position = context_len + query
                sees = key <= position and (window is None or key > position - window)
                colour = BLUE if sees else EMPTY
                ax.add_patch(Rectangle((key, query), 1, 1, facecolor=colour, edgecolor="white"))
        for idx in range(-(-query_len // query_tile)):
            first, last = key_tiles(
                idx, query_len, seq_len, query_tile, key_tile, causal=True, window=window
            )
            for tile in range(first, last + 1):
                x, y = tile * key_tile, idx * query_tile
                width = min(key_tile, seq_len - x)
                height = min(query_tile, query_len - y)
                ax.add_patch(
                    Rectangle(
                        (x + 0.06, y + 0.06),
                        width - 0.12,
                        height - 0.12,
                        fill=False,
                        edgecolor=ORANGE,
                        linewidth=2.2,
                    )
                )
        ax.set(xlim=(0, seq_len), ylim=(query_len, 0), xlabel="key", ylabel="query, by position")
        ax.set_xticks(np.arange(seq_len) + 0.5, [str(key) for key in range(seq_len)])
        ax.set_yticks(
            np.arange(query_len) + 0.5, [str(context_len + query) for query in range(query_len)]
        )
        ax.tick_params(length=0)
        ax.set_aspect("equal")
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=BLUE, label="query sees key"),
            Rectangle((0, 0), 1, 1, facecolor=EMPTY, label="masked"),
            Rectangle(
                (0, 0), 1, 1, fill=False, edgecolor=ORANGE, linewidth=2.2, label="tile computed"
            ),
        ]
        ax.legend(
            handles=handles,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize=9,
        )


def keys_loaded(record: Record, seq_len: int, key_tile: int) -> None:
    """Which keys each program of a recorded `flash_forward` (head 0) loaded, a box a tile."""
    rows: dict[int, set[int]] = {}
    for access in record.of("k_ptr"):
        if access.program[1] == 0:
            keys = set(access.indices[:, 0].tolist())
            rows.setdefault(access.program[0], set()).update(keys)
    grid = np.array([[key in rows[row] for key in range(seq_len)] for row in sorted(rows)])
    with drawing(6.8, 0.42 * len(rows) + 0.9) as ax:
        for row, loaded in enumerate(grid):
            for start in range(0, seq_len, key_tile):
                colour = BLUE if loaded[start] else EMPTY
                width = min(key_tile, seq_len - start)
                ax.add_patch(
                    Rectangle((start, row), width, 0.9, facecolor=colour, edgecolor="white")
                )
        ax.set(xlim=(0, seq_len), ylim=(len(rows), -0.1))
        ax.set(xlabel="key that was loaded", ylabel="program")
        ax.set_yticks(np.arange(len(rows)) + 0.45, [str(row) for row in sorted(rows)])
        ax.set_xticks(range(0, seq_len + 1, 64))
        ax.tick_params(axis="y", length=0)


def peak_memory(standard: Mapping[int, int], tiled: Mapping[int, int]) -> None:
    """The most that attention held at one time, by sequence length."""
    with drawing(5.6, 2.7) as ax:
        for peaks, colour, name in ((standard, STANDARD, "standard"), (tiled, TILED, "tiled")):
            sizes = list(peaks)
            ax.plot(sizes, [peaks[n] / 1e6 for n in sizes], "o-", color=colour, label=name)
            ax.annotate(
                f"{name}, {peaks[sizes[-1]] / 1e6:.2g} MB",
                (sizes[-1], peaks[sizes[-1]] / 1e6),
                xytext=(8, 0), textcoords="offset points", va="center", color=colour,
            )  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="peak, MB")
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set(xlim=(sizes[0] * 0.85, sizes[-1] * 2.6), ylim=(0.05, 20))


def traffic_saved(hbm_traffic: Callable[..., tuple[int, int]], seq_len: int = 4096) -> None:
    """By what factor tiles cut the traffic, from one new query to all of them."""
    lens = [2**power for power in range(13)]
    with drawing(6.4, 2.8) as ax:
        for query_tile, colour in ((128, GREEN), (64, BLUE)):
            factors = []
            for n in lens:
                standard, tiled = hbm_traffic(n, seq_len, 64, query_tile, 64, causal=False)
                factors.append(standard / tiled)
            ax.plot(lens, factors, "o-", color=colour, markersize=4)
            ax.annotate(
                f"{query_tile} queries\na tile: {factors[-1]:.1f}x",
                (lens[-1], factors[-1]), xytext=(8, 0), textcoords="offset points", va="center",
                color=colour,
            )  # fmt: skip
        ax.axhline(1, color=FAINT, linewidth=0.8)
        ax.annotate(
            f"decode: {factors[0]:.2f}x", (1, factors[0]), xytext=(4, 8), textcoords="offset points"
        )
        ax.set(
            xscale="log",
            xlabel=f"queries, of {seq_len:,} tokens, no mask",
            ylabel="standard / tiled bytes",
        )
        ax.set_xticks([1, 8, 64, 512, 4096], ["1", "8", "64", "512", "4,096"])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set(xlim=(0.8, 40_000), ylim=(0, 5.6))


def roofline(
    machine: Machine,
    intensities: Mapping[str, float],
    reached: Mapping[str, float] | None = None,
) -> None:
    """What a machine allows at an intensity (operations a byte), and where attention is on it.

    Args:
        intensities: operations a byte, by name.
        reached: operations a second that were measured; None: the roof itself is marked.
    """
    x = np.logspace(-1, 3.6, 200)
    ridge = machine.flops / machine.bandwidth
    unit, name = (1e12, "TFLOP/s") if machine.flops > 5e12 else (1e9, "GFLOP/s")
    with drawing(6.6, 3.0) as ax:
        ax.plot(x, np.minimum(machine.flops, x * machine.bandwidth) / unit, color=INK)
        ax.axvline(ridge, color=FAINT, linewidth=0.8, linestyle="--")
        ax.annotate(
            f"ridge: {ridge:,.0f} FLOP a byte", (ridge, 0.03), xytext=(4, 0),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9,
        )  # fmt: skip
        for idx, (label, intensity) in enumerate(intensities.items()):
            roof = min(machine.flops, intensity * machine.bandwidth)
            y = roof if reached is None else reached.get(label, 0)
            if y == 0:
                continue
            colour = (ORANGE, PURPLE, BLUE, GREEN)[idx % 4]
            ax.plot([intensity], [y / unit], "o", color=colour, markersize=8)
            on_slope = intensity < ridge and y > 0.99 * roof  # else below the roof
            ax.annotate(
                f"{label}: {y / unit:,.3g}", (intensity, y / unit),
                xytext=(-8, 5) if on_slope else (9, -5), textcoords="offset points",
                ha="right" if on_slope else "left", va="bottom" if on_slope else "top",
                fontsize=9, color=INK,
            )  # fmt: skip
        ax.set(xscale="log", yscale="log", ylabel=name, title=machine.name)
        ax.set_xlabel("operations for each byte of HBM" if unit == 1e12 else "operations a byte")
        ax.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_minor_locator(NullLocator())
        ax.title.set_fontsize(10)
        ax.margins(y=0.12)


def four_ways(
    reserved: Mapping[str, int],
    prefill: Mapping[tuple[str, str], int],
    decode: Mapping[tuple[str, str], int],
) -> None:
    """Bytes reserved and bytes moved of the four ways, in prefill and in a decode step."""
    ways = list(prefill)
    colours = [{"naive": STANDARD, "flash": TILED}[how] for how, _ in ways]
    hatches = [{"contiguous": "", "paged": "//"}[where] for _, where in ways]
    panels = {
        "reserved": [reserved[where] for _, where in ways],
        "moved in prefill": [prefill[way] for way in ways],
        "moved in a decode step": [decode[way] for way in ways],
    }
    with drawing(8.4, 2.5, columns=3) as axes:
        for number, (ax, (title, values)) in enumerate(zip(np.asarray(axes), panels.items())):
            bars_of(ax, values, colours, hatches)
            ax.set_title(title, fontsize=10)
            names = [f"{how}, {where}" for how, where in ways]
            ax.set_yticks(range(4), names if number == 0 else [""] * 4)


def bars_of(ax: Axes, values: list[int], colours: list[str], hatches: list[str]) -> None:
    """Four horizontal bars with their megabytes."""
    for row, (value, colour, hatch) in enumerate(zip(values, colours, hatches, strict=True)):
        ax.barh(row, value / 1e6, color=colour, hatch=hatch, edgecolor="white", height=0.7)
        ax.annotate(
            f"{value / 1e6:.2f} MB", (value / 1e6, row), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    ax.set_xlim(0, 1.5 * max(values) / 1e6)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
