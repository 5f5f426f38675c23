"""The figures of lesson 2: slabs, an arena and its holes, and what memory is used for."""

from collections import deque
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from minipaged.contiguous_cache import Arena
from minipaged.waste import (
    Comparison,
    ContiguousMemory,
    Request,
    Running,
    WasteReport,
    request_trace,
    reservation_size,
)

from ...kit.drawing import EMPTY, FAINT, INK, WASTE, drawing

# the small service that the maps show: 300 requests of 2,048 slots would be a thread wide
MAP_SLOTS, MAP_MAX_SEQ_LEN, MAP_STEPS = 2048, 512, 400
TEXT_ON = {"used": "white", "reserved": INK, "internal": INK, "external": "white", "free": INK}


def slab(num_tokens: int, max_seq_len: int) -> None:
    """One layer's slab: the slots that hold a token, and those that wait for one."""
    with drawing(8, 1.35) as axes:
        for slot in range(max_seq_len):
            filled = slot < num_tokens
            color = WASTE["used"] if filled else EMPTY
            axes.barh(0, 0.94, left=slot - 0.47, height=0.8, color=color, edgecolor=FAINT)
            axes.text(
                slot, 0, str(slot), ha="center", va="center", color="white" if filled else FAINT
            )
        axes.annotate(
            f"num_tokens {num_tokens}: the next token goes here",
            (num_tokens, 0.42),
            (num_tokens, 1.0),
            ha="center" if num_tokens > max_seq_len / 4 else "left",
            arrowprops={"arrowstyle": "->", "color": INK},
        )
        axes.set(xlim=(-0.6, max_seq_len + 0.6), ylim=(-0.5, 1.4), yticks=[], xticks=[])
        axes.set_xlabel("slot of the slab")
        axes.spines[["left", "bottom"]].set_visible(False)


def trace_lengths(max_seq_len: int = 2048) -> None:
    """How long the requests of the trace become, beside what each reserves."""
    lengths = [r.prompt_len + r.output_len for r in request_trace(seed=0)]
    mean = sum(lengths) / len(lengths)
    with drawing(8, 2.6) as axes:
        axes.hist(lengths, bins=range(0, max_seq_len + 64, 64), color=WASTE["used"], lw=0)
        axes.axvline(mean, color=INK, ls="--")
        axes.text(mean + 15, axes.get_ylim()[1] * 0.93, f"mean {mean:.0f}")
        axes.axvline(max_seq_len, color=WASTE["internal"], lw=3)
        axes.text(
            max_seq_len - 20,
            axes.get_ylim()[1] * 0.93,
            f"reserved for every request: {max_seq_len:,}",
            ha="right",
            color=INK,
        )
        axes.set(xlabel="tokens at the end, prompt and output", ylabel="requests")


def arena(shared: Arena, wanted: int = 0) -> None:
    """The pieces and holes of an arena; below it, to scale, a request that wants room."""
    pieces = sorted([*((s, n, False) for s, n in shared.sizes.items()),
                     *((s, n, True) for s, n in shared.holes)])  # fmt: skip
    with drawing(8, 1.9 if wanted else 1.4) as axes:
        for start, size, is_hole in pieces:
            color = EMPTY if is_hole else WASTE["used"]
            axes.barh(0, size, left=start, height=0.8, color=color, edgecolor=FAINT)
            label = f"free\n{size}" if is_hole else str(size)
            axes.text(
                start + size / 2,
                0,
                label,
                ha="center",
                va="center",
                color=INK if is_hole else "white",
            )
        if wanted:
            axes.barh(-1.1, wanted, height=0.7, color=WASTE["external"], edgecolor=FAINT)
            axes.text(wanted / 2, -1.1, f"wanted: {wanted}", ha="center", va="center",
                      color="white")  # fmt: skip
        edges = sorted({s for s, _, _ in pieces} | {shared.num_slots})
        axes.set(xlim=(0, shared.num_slots), yticks=[], xticks=edges, xlabel="slot of the arena")
        axes.spines["left"].set_visible(False)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the arena at one step, and what it is: request number -1 is a hole."""

    start: int
    size: int
    number: int
    num_tokens: int = 0
    final_len: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of the service: every stretch of the arena, who waits, and the report."""

    pieces: list[Piece]
    wanted: int
    report: WasteReport


@cache
def story_of(policy: str) -> list[Moment]:
    """What happens in a small arena, step by step, while requests wait."""
    requests = request_trace(seed=0, mean_prompt=64, mean_output=96, max_seq_len=MAP_MAX_SEQ_LEN)
    memory = ContiguousMemory(MAP_SLOTS, policy, MAP_MAX_SEQ_LEN)
    waiting = deque(enumerate(requests))
    running: list[Running] = []
    numbers: dict[int, int] = {}
    moments: list[Moment] = []
    while waiting and len(moments) < MAP_STEPS:
        while waiting and (admitted := memory.admit(waiting[0][1])):
            numbers[id(admitted)] = waiting.popleft()[0]
            running.append(admitted)
        following: Request = waiting[0][1]
        wanted = reservation_size(following, policy, MAP_MAX_SEQ_LEN)
        pieces = [
            Piece(r.start, r.size, numbers[id(r)], r.num_tokens, r.final_len) for r in running
        ]
        pieces += [Piece(start, size, -1) for start, size in memory.arena.holes]
        report = memory.report(running, following)
        moments.append(Moment(sorted(pieces, key=lambda p: p.start), wanted, report))
        for grown in running:
            memory.grow(grown)
        for ended in [r for r in running if r.num_tokens >= r.final_len]:
            running.remove(ended)
            memory.release(ended)
    return moments


def classes_of(moment: Moment) -> np.ndarray:
    """The class of each slot, as its place in WASTE."""
    row = np.empty(MAP_SLOTS, dtype=int)
    for piece in moment.pieces:
        end = piece.start + piece.size
        if piece.number < 0:
            row[piece.start : end] = 3 if moment.report.external else 4
            continue
        filled, final = piece.start + piece.num_tokens, piece.start + piece.final_len
        row[piece.start : end] = 2
        row[piece.start : min(final, end)] = 1
        row[piece.start : filled] = 0
    return row


def legend(axes: Axes, above: float = 1.0) -> None:
    """The five classes, in one line above the axes."""
    patches = [Patch(facecolor=c, edgecolor=FAINT, label=name) for name, c in WASTE.items()]
    axes.legend(
        handles=patches,
        ncols=5,
        loc="lower left",
        bbox_to_anchor=(0, above),
        frameon=False,
        columnspacing=1.4,
        handlelength=1.2,
        borderaxespad=0.2,
    )


def arena_over_time(policy: str = "oracle") -> None:
    """A map of the arena: slots upwards, steps to the right, each slot in its class's colour."""
    moments = story_of(policy)
    image = np.stack([classes_of(moment) for moment in moments], axis=1)
    with drawing(8, 3.8) as axes:
        axes.imshow(
            image,
            cmap=ListedColormap(list(WASTE.values())),
            vmin=-0.5,
            vmax=4.5,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            extent=(0, len(moments), 0, MAP_SLOTS),
        )
        axes.set(xlabel="step (one token for each running request)", ylabel="slot of the arena")
        axes.set_yticks(range(0, MAP_SLOTS + 1, 512))
        legend(axes)


def arena_at_step(step: int = 120, policy: str = "oracle") -> None:
    """One moment of the map: the requests' pieces in their classes, and who waits."""
    moment = story_of(policy)[min(step, len(story_of(policy)) - 1)]
    with drawing(8, 2.3) as axes:
        for piece in moment.pieces:
            parts = parts_of(piece, bool(moment.report.external))
            left = piece.start
            for name, size in parts:
                axes.barh(0, size, left=left, height=0.8, color=WASTE[name])
                left += size
            axes.barh(
                0, piece.size, left=piece.start, height=0.8, color="none", edgecolor=INK, lw=0.8
            )
        axes.barh(-1.05, moment.wanted, height=0.5, color=FAINT)
        holes = [p.size for p in moment.pieces if p.number < 0]
        running = len(moment.pieces) - len(holes)
        axes.text(
            moment.wanted + 20,
            -1.05,
            f"next in line: {moment.wanted} slots.  Free: {sum(holes)} in {len(holes)} holes, "
            f"largest {max(holes, default=0)}.  Running: {running}",
            va="center",
        )
        axes.set(xlim=(0, MAP_SLOTS), yticks=[], xlabel=f"slot of the arena, step {step}")
        axes.set_xticks(range(0, MAP_SLOTS + 1, 512))
        axes.spines["left"].set_visible(False)
        legend(axes)


def parts_of(piece: Piece, scattered: bool) -> list[tuple[str, int]]:
    """A stretch's classes and their sizes, from its low end."""
    if piece.number < 0:
        return [("external" if scattered else "free", piece.size)]
    final = min(piece.final_len, piece.size)
    return [
        ("used", piece.num_tokens),
        ("reserved", final - piece.num_tokens),
        ("internal", piece.size - final),
    ]


def waste_by_policy(comparison: Comparison) -> None:
    """What the slots are used for under each policy, as stacked bars with percentages."""
    policies = list(comparison.results)
    with drawing(8, 1.1 + 0.55 * len(policies)) as axes:
        bare = False  # whether some part is too small for its number
        for row, policy in enumerate(reversed(policies)):
            result, left = comparison.results[policy], 0.0
            num_slots, *counts = astuple(result.waste)
            for name, count in zip(WASTE, counts, strict=True):
                share = 100 * count / num_slots
                axes.barh(row, share, left=left, height=0.7, color=WASTE[name], edgecolor="white")
                bare = bare or 0.1 <= share < 5
                if share >= 5:
                    axes.text(left + share / 2, row, f"{share:.1f}", ha="center", va="center",
                              color=TEXT_ON[name])  # fmt: skip
                left += share
            axes.text(101, row, f"{result.num_running:.1f}", va="center")
        axes.text(101, len(policies) - 0.45, "requests\nat once", va="bottom")
        label = "% of the slots, mean over the steps with requests waiting"
        axes.set(
            xlim=(0, 100), xlabel=f"{label}\n(parts below 5 % have no number)" if bare else label
        )
        axes.set_yticks(range(len(policies)), reversed(policies))
        legend(axes)
