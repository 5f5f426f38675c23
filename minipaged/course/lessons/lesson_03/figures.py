"""The figures of lesson 3."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from minipaged.paging import AddressSpace, PageFault, PageTable

from ...kit.drawing import EMPTY, FAINT, INK, SEQUENCES, WASTE, drawing

ARTICLE = {1: 3, 2: 1, 3: 7}  # page -> frame, the picture that the course is made from
NUM_PAGES, NUM_FRAMES, PAGE_SIZE = 4, 8, 4
FAULT = WASTE["external"]


def pages_and_frames(frames: Mapping[int, int] = ARTICLE) -> None:
    """A program's pages, its page table and memory's frames, with their addresses."""
    with drawing(8.4, 3.5) as ax:
        _map(ax, frames)


def translation(address: int) -> None:
    """The same picture, with the way of one address through it."""
    table = PageTable(PAGE_SIZE, ARTICLE)
    page, offset = divmod(address, PAGE_SIZE)
    text = f"address {address} = page {page}, offset {offset}"
    try:
        physical = table.translate(address)
    except PageFault as fault:
        physical, text = None, f"{text}.  Page fault: {fault}"
    else:
        frame = ARTICLE[page]
        text += f"   →   frame {frame}: {frame} × {PAGE_SIZE} + {offset} = {physical}"
    with drawing(8.4, 3.8) as ax:
        _map(ax, ARTICLE, address, physical)
        ax.set_title(text, fontsize=11, color=FAULT if physical is None else INK)


def programs_in_memory(programs: Mapping[str, AddressSpace], owners: bool = False) -> None:
    """One or two programs and the memory that they share: each page tied to its frame.

    Args:
        programs: a name and a program each; the first is drawn above memory, the second below.
        owners: whether each frame in use says how many owners the allocator counts.
    """
    if not 1 <= len(programs) <= 2:
        raise ValueError(f"there is room for one or two programs, not {len(programs)}")
    any_program = next(iter(programs.values()))
    memory, allocator = any_program.memory, any_program.allocator
    size, counts = any_program.page_table.page_size, allocator.ref_counts
    with drawing(8.6, 3.9 if len(programs) == 2 else 2.6) as ax:
        for frame, count in enumerate(counts):
            users = [
                place
                for place, program in enumerate(programs.values())
                if frame in program.page_table.frames.values()
            ]
            left = frame * (size + 1)
            colours = [SEQUENCES[place] for place in users]
            cells = memory[frame * size : (frame + 1) * size]
            _strip(ax, left, 0, cells, colours, stale=not users)
            label = f"frame {frame}"
            if owners and (count or users):
                label += f"\n{count} owner{'' if count == 1 else 's'}"
            ax.text(left + size / 2, -0.18, label, ha="center", va="top", fontsize=9)
        for place, (name, program) in enumerate(programs.items()):
            _program(ax, place, name, program, owners)
        ax.text(-0.7, 0.5, "memory", ha="right", va="center", fontsize=10)
        ax.set_xlim(-5.2, len(counts) * (size + 1))
        ax.set_ylim(-6.2 if len(programs) == 2 else -1.6, 5.2)
        ax.axis("off")


# --- parts -------------------------------------------------------------------------------------


def _tint(colour: str, strength: float = 0.45) -> tuple[float, float, float]:
    """A colour mixed with white, light enough to write on."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def _strip(
    ax: Axes, left: float, bottom: float, cells: list, colours: list[str], stale: bool = False
) -> None:
    """A row of cells with their content; two colours share its height."""
    width = len(cells)
    ax.add_patch(Rectangle((left, bottom), width, 1, facecolor=EMPTY, edgecolor="none"))
    for idx, colour in enumerate(colours):  # the first above, the second below
        height = 1 / len(colours)
        low = bottom + 1 - (idx + 1) * height
        ax.add_patch(
            Rectangle((left, low), width, height, facecolor=_tint(colour), edgecolor="none")
        )
    for idx, cell in enumerate(cells):
        ax.add_patch(
            Rectangle((left + idx, bottom), 1, 1, facecolor="none", edgecolor=FAINT, linewidth=0.6)
        )
        if cell is not None:
            ax.text(
                left + idx + 0.5,
                bottom + 0.47,
                "␣" if cell == " " else str(cell),
                ha="center",
                va="center",
                fontsize=10,
                color=FAINT if stale else INK,
            )
    ax.add_patch(
        Rectangle((left, bottom), width, 1, facecolor="none", edgecolor=INK, linewidth=1.1)
    )


def _program(ax: Axes, place: int, name: str, program: AddressSpace, owners: bool) -> None:
    """One program's pages, above (place 0) or below memory, tied to their frames."""
    size, colour = program.page_table.page_size, SEQUENCES[place]
    bottom = 3.2 if place == 0 else -5.0
    for page, frame in sorted(program.page_table.frames.items()):
        left = page * (size + 1)
        cells = program.memory[frame * size : (frame + 1) * size]
        _strip(ax, left, bottom, cells, [colour])
        label_at, align = (bottom + 1.15, "bottom") if place == 0 else (bottom - 0.18, "top")
        ax.text(left + size / 2, label_at, f"page {page}", ha="center", va=align, fontsize=9)
        ends = (bottom, 1.0) if place == 0 else (bottom + 1, -1.45 if owners else -0.8)
        ax.annotate(
            "",
            xy=(frame * (size + 1) + size / 2, ends[1]),
            xytext=(left + size / 2, ends[0]),
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour,
                "linewidth": 1.6,
                "linestyle": "-" if place == 0 else "--",
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )
    ax.text(-0.7, bottom + 0.5, name, ha="right", va="center", fontsize=10, weight="bold")


def _map(
    ax: Axes, frames: Mapping[int, int], address: int | None = None, physical: int | None = None
) -> None:
    """Pages on the left, the table in the middle, frames on the right; one address marked."""
    table_x, frames_x = 8.2, 17.0
    marked = None if address is None else address // PAGE_SIZE
    for page in range(NUM_PAGES):
        y = NUM_FRAMES - 2 * page - 1.5
        frame = frames.get(page)
        colour = FAINT if frame is None else SEQUENCES[(page - 1) % len(SEQUENCES)]
        faint = marked is not None and page != marked
        _addresses(ax, 0, y, page, None if frame is None else colour, address)
        ax.text(-0.3, y + 0.4, f"page {page}", ha="right", va="center", fontsize=10)
        for x, text in (
            (table_x, str(page)),
            (table_x + 1.7, "–" if frame is None else str(frame)),
        ):
            edge = FAULT if page == marked and frame is None else INK
            face = EMPTY if frame is None else _tint(colour)
            ax.add_patch(Rectangle((x, y), 1.7, 0.8, facecolor=face, edgecolor=edge))
            ax.text(x + 0.85, y + 0.4, text, ha="center", va="center", fontsize=10)
        width = 0.8 if faint else 1.8
        line = {"arrowstyle": "-|>", "color": FAINT if faint else colour, "linewidth": width}
        ax.annotate("", xy=(table_x, y + 0.4), xytext=(PAGE_SIZE, y + 0.4), arrowprops=line)
        if frame is not None:
            there = (frames_x, NUM_FRAMES - frame - 0.6)
            start = (table_x + 3.4, y + 0.4)
            ax.annotate("", xy=there, xytext=start, arrowprops=line)
    pages = {frame: page for page, frame in frames.items()}
    for frame in range(NUM_FRAMES):
        y = NUM_FRAMES - frame - 1
        owner = pages.get(frame)
        tint = None if owner is None else SEQUENCES[(owner - 1) % len(SEQUENCES)]
        _addresses(ax, frames_x, y, frame, tint, physical)
        ax.text(frames_x + PAGE_SIZE + 0.3, y + 0.4, f"frame {frame}", va="center", fontsize=10)
    heads = ((2, "what the program sees"), (table_x + 1.7, "page table"), (frames_x + 2, "memory"))
    for x, text in heads:
        ax.text(x, NUM_FRAMES + 0.75, text, ha="center", fontsize=10, weight="bold")
    for x, text in ((table_x + 0.85, "page"), (table_x + 2.55, "frame")):
        ax.text(x, NUM_FRAMES - 0.55, text, ha="center", fontsize=9)
    ax.set_xlim(-2.4, frames_x + 7)
    ax.set_ylim(-0.1, NUM_FRAMES + 1.4)
    ax.axis("off")


def _addresses(
    ax: Axes, left: float, bottom: float, number: int, colour: str | None, marked: int | None
) -> None:
    """A page or a frame: its addresses, the marked one framed."""
    face = EMPTY if colour is None else _tint(colour)
    for offset in range(PAGE_SIZE):
        address = number * PAGE_SIZE + offset
        here = address == marked
        ax.add_patch(
            Rectangle(
                (left + offset, bottom),
                1,
                0.8,
                facecolor="white" if here else face,
                edgecolor=INK if here else FAINT,
                linewidth=2.4 if here else 0.6,
                zorder=3 if here else 1,
            )
        )
        ax.text(
            left + offset + 0.5,
            bottom + 0.38,
            str(address),
            ha="center",
            va="center",
            fontsize=10 if here else 9,
            weight="bold" if here else "normal",
            zorder=4,
        )
