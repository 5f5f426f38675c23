"""The checks of lesson 2: the slab, first fit, merging holes, and the waste report."""

from typing import Any

from ...kit.checks import Draw, check_for, poisoned
from ...kit.expecting import Words, expect, expect_tensor, fail, value
from ...kit.subject import Ref, Subject

Holes = list[tuple[int, int]]

CONFIG = "minipaged.given.model:ModelConfig"
RESERVATION = "minipaged.waste:Reservation"
NUM_KV_HEADS, HEAD_DIM = 2, 8


# --- 02.1 the slab -----------------------------------------------------------------------------


@check_for("02.1", needs=(CONFIG,))
def check_append(subject: Subject, draw: Draw) -> None:
    """Append to all layers, in any order, in a slab of NaN: a prompt, one token, a chunk."""
    num_layers, group, max_seq_len = draw.choice([3, 5]), draw.choice([1, 3, 4]), 12
    sizes = (num_layers, NUM_KV_HEADS * group, NUM_KV_HEADS, HEAD_DIM, 48, 100, 64)
    cache = subject.new("ContiguousKVCache", subject.new(CONFIG, *sizes), max_seq_len)
    slab = {name: poisoned(num_layers, max_seq_len, NUM_KV_HEADS, HEAD_DIM) for name in "kv"}
    for name, empty in slab.items():
        subject.call((cache, "__setattr__"), name, empty)
    start = 0
    for n in (draw.choice([3, 4]), 1, 2, draw.choice([3, 4])):
        seq_len = start + n
        subject.call((cache, "extend"), n)
        for layer_idx in draw.permutation(num_layers):
            new = {name: draw.tensor(n, NUM_KV_HEADS, HEAD_DIM) for name in "kv"}
            for name in "kv":
                slab[name][layer_idx, start:seq_len] = new[name]
            saw = value(subject.call((cache, "append"), layer_idx, new["k"], new["v"]), "slots")
            counts = (subject.get(cache, "start"), subject.get(cache, "num_tokens"))
            expect(counts, (start, seq_len), "count")
            for name in "kv":
                expect_tensor(subject.get(cache, name), slab[name], "slots", tolerance=0.0)
            if not (isinstance(saw, tuple | list) and len(saw) == 2):
                fail(saw, Words("two tensors, the keys and the values"), "filled part")
                continue
            for name, part in zip("kv", saw, strict=True):
                due = slab[name][layer_idx, :seq_len]
                expect_tensor(part, due, "filled part", tolerance=0.0)
                if start and part.untyped_storage().nbytes() < slab[name].nbytes:
                    fail(Words("a copy"), Words("a view of the slab"), "view")
        start = seq_len


# --- 02.2 first fit ----------------------------------------------------------------------------


def draw_holes(draw: Draw, sizes: list[int], start: int) -> Holes:
    """Holes of these sizes from `start` on, with something reserved between them."""
    holes = []
    for size in sizes:
        holes.append((start, size))
        start += size + draw.randint(2, 9)
    return holes


@check_for("02.2")
def check_first_fit(subject: Subject, draw: Draw) -> None:
    """Holes where first, best and worst fit differ, an exact fit, and requests that do not fit."""
    base = draw.randint(40, 60)
    low = draw.randint(1, 9)
    first = draw_holes(draw, [base - 30, base + 10, base + 40, base + 2], low)
    exact = draw_holes(draw, [base - 1, base, base + 5], low)
    zero = draw_holes(draw, [base + 7, base + 1], 0)
    scattered = draw_holes(draw, [base, base - 5, base - 9], low)
    for holes, n, idx in (
        (first, base, 1),
        (exact, base, 1),
        (zero, base - 20, 0),
        (scattered, 2 * base - 10, None),
        (scattered, 9 * base, None),
        ([], 1, None),
    ):
        reply = subject.call("first_fit", list(holes), n)
        if idx is None:
            expect(value(reply, "no room"), None, "no room")
            expect(reply.args_after[0], holes, "no room")
            continue
        start, size = holes[idx]
        expect(value(reply), start, "first")
        rest = [(start + n, size - n)] if size > n else []
        expect(reply.args_after[0], [*holes[:idx], *rest, *holes[idx + 1 :]], "rest")


# --- 02.3 merge --------------------------------------------------------------------------------


@check_for("02.3")
def check_merge_hole(subject: Subject, draw: Draw) -> None:
    """A piece that touches nothing, what is below, above, and both; holes all around."""
    size, unit = draw.randint(5, 9), draw.randint(3, 6)
    start = 20 + draw.randint(0, 9)
    end = start + size
    low, high = (2, unit), (end + 40, unit + 1)
    below, above = (start - unit, unit), (end, unit + 2)
    near = [(start - unit - 1, unit), (end + 1, unit)]
    cases: list[Holes] = [
        [low, high],
        [low, *near, high],
        [low, below, high],
        [low, above, high],
        [low, below, above, high],
        [below, above],
        [low, below],
        [high],
        [],
    ]
    for holes in cases:
        reply = subject.call("merge_hole", list(holes), start, size)
        value(reply, "any neighbour")
        slots = {s for a, n in [*holes, (start, size)] for s in range(a, a + n)}
        expect(reply.args_after[0], stretches(slots), "one hole")


def stretches(slots: set[int]) -> Holes:
    """The maximal stretches of a set of slots, as (start, size)."""
    holes: Holes = []
    for slot in sorted(slots):
        if holes and sum(holes[-1]) == slot:
            holes[-1] = (holes[-1][0], holes[-1][1] + 1)
        else:
            holes.append((slot, 1))
    return holes


# --- 02.4 the waste report ---------------------------------------------------------------------

CLASSES = ("used", "reserved", "internal", "external", "free")


@check_for("02.4", needs=(RESERVATION,))
def check_waste_report(subject: Subject, draw: Draw) -> None:
    """One request at a time, then several; free memory with every kind of queue."""
    size = draw.randint(30, 60)
    final = size - draw.randint(5, 9)
    tokens = final - draw.randint(8, 14)
    hole = draw.randint(20, 30)
    wide = [hole, hole - 3, hole - 5]
    total = sum(wide)
    need = hole + draw.randint(2, 9)
    over = (16, draw.randint(3, 9), 16 + draw.randint(3, 20))
    running = (size, tokens, final)
    cases: list[tuple[list[tuple[int, int, int]], list[int], list[int]]] = [
        ([running], [], []),
        ([(size, size, size)], [], []),
        ([over], [], []),
        ([running, over, (50, 7, 20)], [], []),
        ([], wide, []),
        ([running], wide, [need]),
        ([running], wide, [hole]),
        ([running], wide, [hole - 8, hole - 9]),
        ([running], wide, [total + 1]),
        ([running], wide, [total]),
        ([running], wide, [hole - 8, need]),
        ([running], wide, [total + 5, need]),
        ([running], [], [need]),
    ]
    for reservations, holes, waiting in cases:
        refs = [subject.new(RESERVATION, *r) for r in reservations]
        report = value(subject.call("WasteReport.of", refs, list(holes), list(waiting)), "nothing")
        if not isinstance(report, Ref):
            fail(report, Words("a WasteReport"), "report")
            return
        for name, number in classify(reservations, holes, waiting).items():
            expect(read(subject, report, name), float(number), name)


def read(subject: Subject, report: Ref, name: str) -> Any:
    """A number of a report; whole ones count as floats."""
    number = subject.get(report, name)
    return float(number) if type(number) is int else number


def classify(
    reservations: list[tuple[int, int, int]], holes: list[int], waiting: list[int]
) -> dict[str, int]:
    """The classes, found by asking slot by slot."""
    counts = dict.fromkeys(("num_slots", *CLASSES), 0)
    for size, num_tokens, final_len in reservations:
        for slot in range(size):
            name = "used" if slot < num_tokens else "reserved" if slot < final_len else "internal"
            counts[name] += 1
    for_want_of_order = [w for w in waiting if w <= sum(holes) and not any(w <= h for h in holes)]
    counts["external" if for_want_of_order else "free"] += sum(holes)
    counts["num_slots"] = sum(counts[name] for name in CLASSES)
    return counts
