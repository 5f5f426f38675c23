"""The checks of lesson 2: the slab, first fit, merging holes, and the waste report."""

from functools import partial
from typing import Any

import torch

from ...kit.checking import (CheckFailed, Draw, check_for, expect, expect_tensor, poisoned, result, show)
from ...kit.subject import Ref, Subject

Holes = list[tuple[int, int]]

NUM_KV_HEADS, HEAD_DIM = 2, 8
# exceptions that say "there is none", by their nearest built-in names
REFUSALS = ("ValueError", "RuntimeError", "MemoryError", "StopIteration", "Exception")


# --- 02.1 the slab -----------------------------------------------------------------------------


@check_for(
    "02.1",
    holds="Each token is written once, at its own place in the slab, and only the filled part "
    "comes back.",
    hints=(
        (
            "The slab is there already, at its full size. Nothing grows: you only write into it and "
            "look at it. Which slots belong to the tokens that `extend` has just announced?"
        ),
        (
            "The new tokens of a layer lie in the slots from `self.start` up to `self.num_tokens`. "
            "What attention may see lies in the slots from 0 up to `self.num_tokens`. Other layers "
            "and later slots stay as they are."
        ),
        (
            "Index the slab with the layer first and a slice of slots second. Assign k to such a "
            "slice of `self.k`, v to the same slice of `self.v`, and return two slices that begin at "
            "slot 0."
        ),
    ),
)
def check_append(subject: Subject, draw: Draw) -> None:
    """Append to all layers, in any order, in a slab of NaN: a prompt, one token, a chunk."""
    num_layers, group, max_seq_len = draw.choice([3, 5]), draw.choice([1, 3, 4]), 12
    sizes = (num_layers, NUM_KV_HEADS * group, NUM_KV_HEADS, HEAD_DIM, 48, 100, 64)
    config = subject.new("minipaged.model:ModelConfig", *sizes)
    cache = subject.new("ContiguousKVCache", config, max_seq_len)
    slab = {name: poisoned(num_layers, max_seq_len, NUM_KV_HEADS, HEAD_DIM) for name in "kv"}
    for name, empty in slab.items():
        result(subject.call((cache, "__setattr__"), name, empty), f"filling {name} with NaN")
    start = 0
    for n in (draw.choice([3, 4]), 1, 2, draw.choice([3, 4])):
        seq_len = start + n
        result(subject.call((cache, "extend"), n), f"extend({n})")
        for layer_idx in draw.permutation(num_layers):
            about = (
                f"append(layer_idx={layer_idx}, k, v) of {n} tokens with start {start} and "
                f"num_tokens {seq_len}, in a slab of {max_seq_len} slots that was full of NaN"
            )
            new = {name: draw.tensor(n, NUM_KV_HEADS, HEAD_DIM) for name in "kv"}
            before = {name: tensor.clone() for name, tensor in slab.items()}
            for name in "kv":
                slab[name][layer_idx, start:seq_len] = new[name]
            reply = subject.call((cache, "append"), layer_idx, new["k"], new["v"])
            value = result(
                reply,
                about,
                {
                    "RuntimeError": "The shapes do not agree: the slots that you write to must be "
                    "as many as the new tokens, from start up to num_tokens.",
                    "IndexError": "The slab is indexed by layer first, then by slot."
                    if reply.error is None or is_whole(subject, cache, slab)
                    else REPLACED.format("k or self.v"),
                },
            )
            counts = (subject.get(cache, "start"), subject.get(cache, "num_tokens"))
            expect(
                f"start and num_tokens after {about}",
                counts,
                (start, seq_len),
                "extend has counted the tokens already, once for all layers. If append counts "
                "too, the next layer writes further behind.",
            )
            for name in "kv":
                expect_tensor(
                    f"self.{name} after {about}",
                    subject.get(cache, name),
                    slab[name],
                    partial(slab_reason, name, before, slab, new, layer_idx, start, seq_len),
                    tolerance=0.0,
                )
            if not (isinstance(value, tuple | list) and len(value) == 2):
                raise CheckFailed(about, show(value), "a pair", "Keys and values are due, both.")
            for name, saw in zip("kv", value, strict=True):
                due = slab[name][layer_idx, :seq_len]
                what = {"k": "the keys", "v": "the values"}[name]
                expect_tensor(
                    f"{what} that came back from {about}",
                    saw,
                    due,
                    partial(returned_reason, n, seq_len, max_seq_len),
                    tolerance=0.0,
                )
                if start and saw.untyped_storage().nbytes() < slab[name].nbytes:
                    raise CheckFailed(
                        f"{what} that came back from {about}",
                        "a copy",
                        "a view of the slab",
                        "A copy moves every earlier token again: that is torch.cat's cost, which "
                        "the slab was reserved to avoid.",
                    )
        start = seq_len


REPLACED = (
    "self.{} was replaced by another tensor. The slab is reserved once and keeps its shape: write "
    "into it."
)


def is_whole(subject: Subject, cache: Ref, slab: dict[str, torch.Tensor]) -> bool:
    """Whether self.k and self.v still have the slab's shape."""
    kept = {name: subject.get(cache, name) for name in slab}
    return all(getattr(kept[name], "shape", None) == slab[name].shape for name in slab)


def slab_reason(
    name: str,
    before: dict[str, torch.Tensor],
    due: dict[str, torch.Tensor],
    new: dict[str, torch.Tensor],
    layer_idx: int,
    start: int,
    seq_len: int,
    saw: torch.Tensor,
) -> str:
    """What a slab that is not as it should be points to."""
    if saw.shape != due[name].shape:
        return REPLACED.format(name)

    def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.shape == b.shape and torch.equal(a.nan_to_num(1e9), b.nan_to_num(1e9))

    if equal(saw, before[name]):
        return "Nothing was written: the tokens are not in the slab, and the next step needs them."
    layer, n = saw[layer_idx], seq_len - start
    if equal(layer, before[name][layer_idx]):
        return (
            f"Layer {layer_idx} is as it was, and another layer was written: every layer has its "
            "own keys and values."
        )
    other = "v" if name == "k" else "k"
    if equal(layer[start:seq_len], new[other]):
        return "Keys and values are mixed up: each has a slab of its own."
    if start and equal(layer[:n], new[name]):
        return (
            "The new tokens were written from slot 0 on, over the oldest ones. Their place is "
            "behind what is kept: it begins at start."
        )
    if equal(layer[seq_len : seq_len + n], new[name]):
        return (
            "The new tokens were written behind num_tokens. extend has counted them already: "
            "their place begins at start and ends at num_tokens."
        )
    if bool((layer.isnan() != due[name][layer_idx].isnan()).any()):
        return (
            f"Other slots than {start} to {seq_len - 1} were written, or not all of these: n new "
            "tokens take n slots."
        )
    return f"Slots {start} to {seq_len - 1} of layer {layer_idx} are due to change, no others."


def returned_reason(n: int, seq_len: int, max_seq_len: int, saw: torch.Tensor) -> str:
    """What returned keys or values of a wrong length or content point to."""
    length = len(saw) if saw.dim() == 3 else -1
    if length == max_seq_len:
        return (
            "The whole slab came back. Behind the last token nobody has written anything: "
            "attention must see the filled part only."
        )
    if length == n and n < seq_len:
        return "Only the new tokens came back: a query attends to all earlier tokens too."
    if length == seq_len - n:
        return "The new tokens themselves are missing: a token attends to itself as well."
    return "All tokens of this layer are due, from slot 0 up to num_tokens, in order."


# --- 02.2 first fit ----------------------------------------------------------------------------


def draw_holes(draw: Draw, sizes: list[int], start: int) -> Holes:
    """Holes of these sizes from `start` on, with something reserved between them."""
    holes = []
    for size in sizes:
        holes.append((start, size))
        start += size + draw.randint(2, 9)
    return holes


@check_for(
    "02.2",
    holds="The request gets the low end of the first hole that is large enough, or None and "
    "nothing changes.",
    hints=(
        (
            "A piece must lie in one hole: two half holes are no hole. Look at the holes one by one, "
            "in the order of the memory, and stop at the first that will do."
        ),
        (
            "The hole that you use loses n slots at its low end: it starts n later and is n smaller. "
            "If nothing of it is left, it is no hole any more. A search that finds none touches "
            "nothing."
        ),
        (
            "Loop with enumerate over the holes. When the size is at least n, replace this entry of "
            "the list by what remains of it (or delete the entry), and return the old start. After "
            "the loop, return None."
        ),
    ),
)
def check_first_fit(subject: Subject, draw: Draw) -> None:
    """Holes where first, best and worst fit differ, an exact fit, and requests that do not fit."""
    base = draw.randint(40, 60)
    low = draw.randint(1, 9)
    first = draw_holes(draw, [base - 30, base + 10, base + 40, base + 2], low)
    exact = draw_holes(draw, [base - 1, base, base + 5], low)
    zero = draw_holes(draw, [base + 7, base + 1], 0)
    scattered = draw_holes(draw, [base, base - 5, base - 9], low)
    cases = [
        (first, base, 1),
        (exact, base, 1),
        (zero, base - 20, 0),
        (scattered, 2 * base - 10, None),
        (scattered, 9 * base, None),
        ([], 1, None),
    ]
    for holes, n, idx in cases:
        about = f"first_fit({holes}, {n})"
        reply = subject.call("first_fit", list(holes), n)
        reason = "A request that does not fit is an ordinary answer: None."
        start = result(reply, about, dict.fromkeys(REFUSALS, reason) if idx is None else {})
        due = None if idx is None else holes[idx][0]
        expect(about, start, due, partial(fit_reason, holes, n, idx))
        after = reply.args_after[0]
        if idx is None:
            expect(
                f"the holes after {about}, which finds no room",
                after,
                holes,
                "A refused request takes nothing: the search must not change the holes on its way.",
            )
            continue
        hole_start, size = holes[idx]
        rest = [(hole_start + n, size - n)] if size > n else []
        due_holes = [*holes[:idx], *rest, *holes[idx + 1 :]]
        expect(
            f"the holes after {about}",
            after,
            due_holes,
            partial(holes_reason, holes, n, idx),
        )


def fit_reason(holes: Holes, n: int, idx: int | None, saw: Any) -> str:
    """What a wrong start points to."""
    sizes = [size for _, size in holes]
    fitting = [hole for hole in holes if hole[1] >= n]
    if idx is None:
        if type(saw) is int and saw < 0:
            return "No room is said with None. A number, even -1, would be taken for a slot."
        if saw is not None and sum(sizes) >= n:
            return (
                f"{sum(sizes)} slots are free in all, but no hole has {n}: a piece cannot lie in "
                "several holes, so adding them up does not help."
            )
        return "No hole is large enough: the answer is None."
    if sizes[idx] == n and (saw is None or saw in [start for start, _ in fitting[1:]]):
        return "A hole of exactly n slots is large enough."
    if saw == min(fitting, key=lambda hole: hole[1])[0]:
        return "That is the tightest hole (best fit). First fit takes the first that will do."
    if saw == max(fitting, key=lambda hole: hole[1])[0]:
        return "That is the largest hole (worst fit). First fit takes the first that will do."
    if saw == fitting[-1][0]:
        return "That is the last hole that fits: the search goes on after it has found one."
    if saw == sum(holes[idx]) - n:
        return "That is the hole's high end. The request lies at the low end."
    if saw == holes[idx][0] + n:
        return "That is the slot behind the request: where the rest of the hole starts."
    if saw == idx:
        return "That is the hole's place in the list. The first slot of the request is due."
    if holes[0][1] < n and saw == holes[0][0]:
        return f"The hole there has {holes[0][1]} slots, fewer than {n}: it is too small."
    if saw is None:
        return "There is a hole that is large enough. (A start of 0 is a start, too.)"
    return "The first hole of at least n slots, by ascending start, is due."


def holes_reason(holes: Holes, n: int, idx: int, saw: Any) -> str:
    """What wrong holes after a request that fits point to."""
    start, size = holes[idx]
    if saw == holes:
        return (
            "The holes did not change: the same slots would be given away twice. Change the list "
            "itself; a new list under the old name is seen by nobody else."
        )
    if isinstance(saw, list) and any(isinstance(hole, tuple) and hole[1:] == (0,) for hole in saw):
        return "A hole of 0 slots is left in the list: a hole that is used up is no hole."
    if isinstance(saw, list) and (start, size - n) in saw:
        return (
            "The rest of the hole starts where the request starts: the request's own slots are "
            "still free in your list. It lies at the low end, the rest behind it."
        )
    if isinstance(saw, list) and len(saw) < len(holes) - (size == n):
        return "The rest of the hole is lost: what the request does not take stays free."
    if isinstance(saw, list) and (start + n, size) in saw:
        return "The hole moved and kept its size: it has lost n slots."
    return "Only the hole that is used changes: it loses n slots at its low end."


# --- 02.3 merge --------------------------------------------------------------------------------


@check_for(
    "02.3",
    holds="Free slots side by side are always one hole, and the holes stay in order.",
    hints=(
        (
            "Two holes that touch are one hole, to whoever looks for room. What comes back can touch "
            "a hole below it, a hole above it, both, or neither."
        ),
        (
            "A hole touches from below when its end is your start, and from above when its start is "
            "your end. Whatever touches is taken out of the list and becomes part of the piece. Then "
            "the piece goes in where ascending starts put it."
        ),
        (
            "Find how many holes start below `start`: that is where the piece belongs. If the hole "
            "now at that place starts at your end, take it out and add its size. If the hole before "
            "ends at your start, take it out too, and begin at its start. Insert one tuple."
        ),
    ),
)
def check_merge_hole(subject: Subject, draw: Draw) -> None:
    """A piece that touches nothing, what lies below, above, and both; holes all around."""
    size, unit = draw.randint(5, 9), draw.randint(3, 6)
    start = 20 + draw.randint(0, 9)
    end = start + size
    far = [(2, unit), (end + 40, unit + 1)]
    below, above = (start - unit, unit), (end, unit + 2)
    near = [(start - unit - 1, unit), (end + 1, unit)]
    cases: list[tuple[str, Holes]] = [
        ("the holes around do not touch it", [far[0], far[1]]),
        ("the neighbours are one slot away", [far[0], *near, far[1]]),
        ("it touches the hole below", [far[0], below, far[1]]),
        ("it touches the hole above", [far[0], above, far[1]]),
        ("it touches both neighbours", [far[0], below, above, far[1]]),
        ("it touches both neighbours, and nothing else is free", [below, above]),
        ("it lies behind all holes", [far[0], below]),
        ("it lies before all holes", [far[1]]),
        ("there are no holes", []),
    ]
    for what, holes in cases:
        about = f"the holes after merge_hole({holes}, start={start}, size={size}): {what}"
        reply = subject.call("merge_hole", list(holes), start, size)
        reason = "There may be no hole below the piece, or none above, or none at all."
        value = result(reply, about, dict.fromkeys(("IndexError", *REFUSALS), reason))
        slots = {s for a, n in [*holes, (start, size)] for s in range(a, a + n)}
        due = stretches(slots)
        expect(
            about,
            reply.args_after[0],
            due,
            partial(merge_reason, value, holes, due, start, size),
        )


def stretches(slots: set[int]) -> Holes:
    """The maximal stretches of a set of slots, as (start, size)."""
    holes: Holes = []
    for slot in sorted(slots):
        if holes and sum(holes[-1]) == slot:
            holes[-1] = (holes[-1][0], holes[-1][1] + 1)
        else:
            holes.append((slot, 1))
    return holes


def merge_reason(value: Any, holes: Holes, due: Holes, start: int, size: int, saw: Any) -> str:
    """What wrong holes after a release point to."""
    if saw == holes and value is not None:
        return (
            "A new list came back, and the old one is as it was. The arena keeps the old one: "
            "change that list."
        )
    if not isinstance(saw, list) or not all(
        isinstance(h, tuple) and len(h) == 2 and all(type(part) is int for part in h) for h in saw
    ):
        return "The holes are (start, size) tuples of whole numbers."
    if saw == holes:
        return "The piece is not among the holes: its slots are lost for ever."
    if sorted(saw) == due:
        return "The holes are right and out of order: first fit counts on ascending starts."
    if not all(0 <= a <= a + n < 10_000 for a, n in saw):
        return "There are slots among the holes that the memory does not have."
    saw_slots = [s for a, n in saw for s in range(a, a + n)]
    due_slots = {s for a, n in due for s in range(a, a + n)}
    if len(saw_slots) > len(set(saw_slots)):
        return (
            "Some slots are free twice: a hole that has become part of another must leave the "
            "list, or two requests will get the same memory."
        )
    touches_below = any(sum(hole) == start for hole in holes)
    touches_above = any(hole[0] == start + size for hole in holes)
    if touches_below and not touches_above and any(a == start and n > size for a, n in saw):
        return "The hole below is part of it now: the joined hole begins at the lower start."
    if touches_below and touches_above and set(saw_slots) == due_slots:
        return (
            "The piece touches a hole on both sides. All three become one: joining one neighbour "
            "leaves two holes that touch."
        )
    if set(saw_slots) - due_slots:
        return (
            "Slots are among the holes that nobody has given back. Two holes touch only when one "
            "ends exactly where the other starts."
        )
    if due_slots - set(saw_slots):
        return (
            "Free slots are missing: a merged hole begins at the lower start, and has the sizes "
            "of all its parts."
        )
    side = "below" if touches_below else "above"
    return (
        f"The hole {side} touches the piece and was not joined with it. A request for both "
        "together would be refused, with the room there."
    )


# --- 02.4 the waste report ---------------------------------------------------------------------

CLASSES = ("used", "reserved", "internal", "external", "free")


@check_for(
    "02.4",
    holds="Every slot is counted in exactly one of the five classes.",
    hints=(
        (
            "Ask two questions of a reserved slot: does it hold a token now? Will it, before the "
            "request ends? Ask one question of the free slots together: is somebody waiting who "
            "would fit if they lay side by side?"
        ),
        (
            "Of one reservation: the used slots, the reserved ones and the internal ones sum to its "
            "size. A request never fills more than its size, even when it will end longer. The free "
            "slots go to one class, all of them: external when, for some waiting request, the "
            "largest hole is too small and the total is not."
        ),
        (
            "Begin with the total of the holes and the largest (0 when there are none). Cap each "
            "final length at the size: what lies between num_tokens and the cap is reserved, what "
            "lies between the cap and the size is internal. Make the report with cls(num_slots=...) "
            "and set its five fields."
        ),
    ),
)
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
        refs = [subject.new("minipaged.contiguous_cache:Reservation", *r) for r in reservations]
        listed = ", ".join(
            f"Reservation(size={s}, num_tokens={t}, final_len={f})" for s, t, f in reservations
        )
        call = f"WasteReport.of([{listed}], holes={holes}, waiting={waiting})"
        report = result(
            subject.call("WasteReport.of", refs, list(holes), list(waiting)),
            call,
            {"ValueError": "There may be no holes at all, or nobody running."},
        )
        if not isinstance(report, Ref):
            raise CheckFailed(call, show(report), "a WasteReport", "A report is due: see cls.")
        saw = {name: read(subject, report, name) for name in ("num_slots", *CLASSES)}
        due = classify(reservations, holes, waiting)
        for name in ("num_slots", *CLASSES):
            expect(
                f"{name} of {call}",
                saw[name],
                float(due[name]),
                partial(waste_reason, name, saw, due, holes, waiting),
            )


def read(subject: Subject, report: Ref, name: str) -> Any:
    """A number of a report; whole ones count as floats."""
    value = subject.get(report, name)
    return float(value) if type(value) is int else value


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


def waste_reason(
    name: str,
    report: dict[str, Any],
    due: dict[str, int],
    holes: list[int],
    waiting: list[int],
    value: Any,
) -> str:
    """What a wrong number in a class points to."""
    total, largest = sum(holes), max(holes, default=0)
    if name == "num_slots":
        return "The memory is everything that is reserved and everything that is free."
    if name == "used":
        return "A slot is used when it holds a token now; what will come later is not there yet."
    if name in ("reserved", "internal"):
        if isinstance(value, float) and (value < 0 or value > due["reserved"] + due["internal"]):
            return (
                "This request will end longer than what it has now. It can fill no more than its "
                "size: no class is negative, and none is larger than the memory."
            )
        for mine, other in (("reserved", "internal"), ("internal", "reserved")):
            if report[mine] == due["reserved"] + due["internal"] and due[other]:
                return (
                    f"All empty slots were counted as {mine}. Some of them are {other}: the "
                    "request fills the slots up to its final length, and never those behind."
                )
        return (
            "Up to its final length a request will fill its slots: reserved. The slots behind "
            "that stay empty for ever: internal."
        )
    if not total:
        return "Nothing is free here, so nothing is external either."
    if due["external"]:
        if largest and value in (float(total - largest), float(largest)):
            return (
                "The slots were split. All free slots fail the waiting request together, the "
                "largest hole as much as the others: external waste is one class, whole."
            )
        if len(waiting) > 1:
            return (
                "One waiting request is enough: if any one of them needs more than the largest "
                "hole and no more than the total, the free slots are external."
            )
        if waiting[0] == total:
            return "A request for exactly the total would fit if the holes were one: external."
        return (
            f"{total} slots are free, {waiting[0]} are wanted, and the largest hole has "
            f"{largest}: they are too scattered, which is external waste."
        )
    if not waiting:
        return "Nobody is waiting, so nobody misses these slots: they are free, not wasted."
    if max(waiting) > total:
        return (
            "The request needs more than all the free slots together. Tidying up would not help: "
            "the memory is full, not scattered."
        )
    return (
        f"The largest hole has {largest} slots and takes the waiting request: the slots are "
        "free, not too scattered."
    )
