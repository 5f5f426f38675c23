"""The checks of lesson 6."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...kit.checking import Draw, check_for, expect, expect_tensor, result
from ...kit.subject import Subject

NUM_KV_HEADS, HEAD_DIM = 2, 8
INF = float("inf")
State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# --------------------------------------------------------------------- 06.1, the inner loop


@check_for(
    "06.1",
    holds="After each tile, top, total and mixed are what all keys so far give at once.",
    hints=(
        (
            "top, total and mixed describe the keys seen so far, in units of exp(top). When a larger "
            "score arrives the unit changes, and what was summed in the old unit must be converted."
        ),
        (
            "With new_top the larger of the old top and the tile's largest score, old sums are "
            "multiplied by exp(top - new_top), and the tile's weights are exp(score - new_top). "
            "Where a row has seen nothing yet, new_top is -inf, and -inf - -inf is NaN."
        ),
        (
            "Scores: q times k transposed, -inf where not allowed. new_top: torch.maximum of top and "
            "the scores' amax(-1). base: new_top, but 0 where it is -inf. shrink and weights: exp of "
            "what lies below base. total and mixed: the old times shrink, plus the tile's part."
        ),
    ),
)
def check_absorb_tile(subject: Subject, draw: Draw) -> None:
    """Tiles one after the other: rising and falling scores, large ones, masks, empty rows."""
    for kind in ("rising", "falling", "large", "masked", "blind"):
        group_size, rows, tile = draw.choice([1, 3, 4]), 4, draw.choice([3, 5])
        q = draw.tensor(NUM_KV_HEADS, group_size, rows, HEAD_DIM)
        tiles = list(draw_tiles(draw, kind, rows, tile))
        if kind in ("rising", "falling"):
            q = q.abs()  # with positive keys, their size orders the scores
        if kind == "large":
            q = (4 * q).round() / 4  # with whole-numbered keys, scores are exact at any size
        top = torch.full(q.shape[:3], -INF)
        state: State = (top, torch.zeros_like(top), torch.zeros_like(q))
        for idx, (k, v, allowed) in enumerate(tiles):
            about = (
                f"absorb_tile, tile {idx + 1} of {len(tiles)} with {tile} keys, {rows} queries, "
                f"groups of {group_size}, {KINDS[kind]}"
            )
            arguments = (*state, q, k, v, allowed)
            reply = subject.call("absorb_tile", *(x.clone() for x in arguments))
            saw = result(
                reply, about, {"RuntimeError": "PyTorch refused: k must be turned, rows by tile."}
            )
            if not isinstance(saw, tuple | list) or len(saw) != 3:
                expect(about, saw, state, "Three tensors are due: top, total and mixed.")
            due = so_far(q, tiles[: idx + 1])
            reasons = partial(absorb_mistake, whole=tuple(saw), arguments=arguments)
            for part, name in enumerate(("top", "total", "mixed")):
                reason = partial(reasons, part=part)
                expect_tensor(f"{about}; {name}", saw[part], due[part], reason)
            state = due


KINDS = {
    "rising": "scores that rise from tile to tile",
    "falling": "scores that fall from tile to tile",
    "large": "scores of some hundreds",
    "masked": "some keys not allowed",
    "blind": "a row that may see no key of the first tile",
}


def draw_tiles(
    draw: Draw, kind: str, rows: int, tile: int
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Three tiles of keys, values and masks."""
    tiles = []
    for idx in range(3):
        k, v = (draw.tensor(NUM_KV_HEADS, 1, tile, HEAD_DIM) for _ in range(2))
        allowed = torch.ones(rows, tile, dtype=torch.bool)
        if kind in ("rising", "falling"):
            k = k.abs() * (idx + 1 if kind == "rising" else 3 - idx)
        if kind == "large":
            k = (60 * k).round()
        if kind in ("masked", "blind"):
            allowed = draw.tensor(rows, tile) > 0.3
            allowed[:, draw.randrange(tile)] = True
        if kind == "blind" and idx == 0:
            allowed[draw.randrange(rows)] = False
        tiles.append((k, v, allowed))
    return tiles


def so_far(q: torch.Tensor, tiles: list) -> State:
    """The state after some tiles, from all their scores at once."""
    k, v = (torch.cat([tile[part] for tile in tiles], dim=-2).double() for part in (0, 1))
    allowed = torch.cat([tile[2] for tile in tiles], dim=-1)
    scores = (q.double() @ k.transpose(-1, -2)).masked_fill(~allowed, -INF)
    top = scores.amax(-1)
    weights = torch.exp(scores - top.clamp(min=-1e300)[..., None])
    return top.float(), weights.sum(-1).float(), (weights @ v).float()


def absorb_mistake(saw: torch.Tensor, whole: tuple, arguments: tuple, part: int) -> str:
    """Which known mistake gives the whole state, or else this part of it."""
    top, total, mixed, q, k, v, allowed = arguments
    raw = q @ k.transpose(-1, -2)
    scores = raw.masked_fill(~allowed, -INF)
    new_top = torch.maximum(top, scores.amax(-1))
    base = torch.where(new_top == -INF, 0.0, new_top)

    def folded(
        scores: torch.Tensor = scores,
        base: torch.Tensor = base,
        shrink_total: torch.Tensor | None = None,
        shrink_mixed: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        values: torch.Tensor = v,
        new_top: torch.Tensor = new_top,
    ) -> State:
        right = torch.exp(top - base)
        weights = torch.exp(scores - base[..., None]) if weights is None else weights
        in_total = right if shrink_total is None else shrink_total
        in_mixed = right if shrink_mixed is None else shrink_mixed
        return (
            new_top,
            total * in_total + weights.sum(-1),
            mixed * in_mixed[..., None] + weights @ values,
        )

    twice = (raw * q.shape[-1] ** -0.5).masked_fill(~allowed, -INF)
    deep = raw.masked_fill(~allowed, -1e9)
    one, own = torch.ones_like(base), scores.amax(-1)
    inverse = torch.exp(base - top)
    fresh = torch.exp(scores - torch.where(own == -INF, 0.0, own)[..., None])
    right = folded()
    known: list[tuple[str, State]] = [
        ("the old sums were not multiplied by exp(top - new_top): their unit is the old "
         "maximum.", folded(shrink_total=one, shrink_mixed=one)),
        ("here mixed was not multiplied by exp(top - new_top); it is in the old unit, as total was.",
         folded(shrink_mixed=one)),
        ("here total was not multiplied by exp(top - new_top); it is in the old unit, as mixed was.",
         folded(shrink_total=one)),
        ("the exponent has the wrong sign: old sums shrink when a larger score arrives, "
         "exp(top - new_top) is at most 1.", folded(shrink_total=inverse, shrink_mixed=inverse)),
        ("the tile's weights are in the old unit: subtract the new maximum from its scores, or "
         "exp overflows.",
         folded(weights=torch.exp(scores - torch.where(top == -INF, 0.0, top)[..., None]))),
        ("the tile's weights are in the tile's own unit: subtract the maximum of all tiles so far.",
         folded(weights=fresh)),
        ("the tile's own maximum took the place of the largest score of all tiles so far.",
         folded(base=torch.where(own == -INF, 0.0, own), new_top=own)),
        ("the keys that a row may not see were counted: the mask stays on.",
         folded(raw, new_top=torch.maximum(top, raw.amax(-1)),
                base=torch.maximum(top, raw.amax(-1)))),
        ("a masked score of 0 still weighs exp(0): it must be -inf.",
         folded(raw.masked_fill(~allowed, 0.0),
                base=torch.maximum(top, raw.masked_fill(~allowed, 0.0).amax(-1)),
                new_top=torch.maximum(top, raw.masked_fill(~allowed, 0.0).amax(-1)))),
        ("the mask is the wrong way round: True is what a row may see.",
         folded(raw.masked_fill(allowed, -INF),
                base=torch.maximum(top, raw.masked_fill(allowed, -INF).amax(-1)),
                new_top=torch.maximum(top, raw.masked_fill(allowed, -INF).amax(-1)))),
        ("here mixed was divided by total already: division waits until all tiles are in.",
         (right[0], right[1], right[2] / right[1][..., None])),
        ("q was scaled a second time: it comes multiplied by softmax_scale already.",
         folded(twice, new_top=torch.maximum(top, twice.amax(-1)),
                base=torch.maximum(top, twice.amax(-1)).clamp(min=-1e30))),
        ("a masked score of -1e9 is a number still: a row that may see no key gets it for its top, "
         "and weighs exp(0); only -inf is no score at all.",
         folded(deep, new_top=torch.maximum(top, deep.amax(-1)),
                base=torch.maximum(top, deep.amax(-1)))),
        ("keys were mixed; weights multiply the values v.", folded(values=k)),
        ("the old sums are lost: the tile is added to them.",
         folded(shrink_total=0 * one, shrink_mixed=0 * one)),
        ("nothing was subtracted from the scores: without the largest score taken off, exp "
         "overflows.", folded(base=0 * one, shrink_total=one, shrink_mixed=one)),
    ]  # fmt: skip
    if part == 0 and close(saw, base):
        return "The top of a row that has seen no key is -inf still, not the 0 that exp was given."
    wrong = [(text, state) for text, state in known if not close(state[part], right[part])]
    fits = [text for text, state in wrong if all(map(close, whole, state))]
    fits += [text for text, state in wrong if close(saw, state[part])]
    if fits:
        return fits[0][0].upper() + fits[0][1:]
    if bool((new_top == -INF).any()) and bool(saw.isnan().any()):
        return "A row that has seen no key has top -inf, and -inf - -inf is NaN: subtract 0 there."
    if not bool(saw.isfinite().all()):
        return (
            "Without the largest score taken off, exp overflows: subtract it from every exponent."
        )
    return "One tile more in the sums, all of it in the unit of the new maximum."


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to rounding, NaN to NaN, with the same shape."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


# --------------------------------------------------------------------- 06.2, which tiles


def seen_keys(
    idx: int, query_len: int, seq_len: int, query_tile: int, causal: bool, window: int | None
) -> list[int]:
    """The keys that at least one query of a tile may see, counted one by one."""
    keys = []
    for key_idx in range(seq_len):
        for query_idx in range(idx * query_tile, min((idx + 1) * query_tile, query_len)):
            position = seq_len - query_len + query_idx
            is_near = window is None or key_idx > position - window
            if not causal or (key_idx <= position and is_near):
                keys.append(key_idx)
                break
    return keys


@check_for(
    "06.2",
    holds="From the tile of the first key to that of the last key that one of the queries may see.",
    hints=(
        (
            "Ask for tokens first, tiles afterwards: which is the oldest key that the first query of "
            "the tile sees, which the newest that its last query sees?"
        ),
        (
            "The queries are the last query_len tokens: query i has position seq_len - query_len + i. "
            "The last tile of queries may be shorter than query_tile. A window of w goes back w - 1 "
            "tokens from the query, but not before token 0."
        ),
        (
            "Not causal: 0 and the tile of key seq_len - 1. Causal: first_key is 0, or with a window "
            "max(0, first position - window + 1); last_key is the last query's position. Both // "
            "key_tile."
        ),
    ),
)
def check_key_tiles(subject: Subject, draw: Draw) -> None:
    """Chunks, decode, ragged ends, windows; every tile of queries."""
    cases: list[tuple[int, int, int, int, bool, int | None]] = [
        (7, 11, 4, 1, True, None),
        (6, 10, 3, 2, True, None),
        (12, 12, 4, 3, True, None),
        (1, 13, 4, 3, True, None),
        (6, 9, 2, 2, False, None),
        (5, 9, 2, 4, False, None),
        (4, 8, 4, 4, False, None),
        (8, 16, 4, 2, True, 3),
        (9, 9, 3, 2, True, 4),
        (6, 20, 3, 4, True, 1),
    ]
    for _ in range(4):
        seq_len = draw.randrange(8, 30)
        sizes = draw.randrange(1, seq_len), seq_len, draw.randrange(2, 6), draw.randrange(2, 6)
        cases.append((*sizes, True, draw.choice([None, draw.randrange(1, 9)])))
    for query_len, seq_len, query_tile, key_tile, causal, window in cases:
        for idx in range(-(-query_len // query_tile)):
            about = (
                f"key_tiles({idx}, query_len={query_len}, seq_len={seq_len}, "
                f"query_tile={query_tile}, key_tile={key_tile}, causal={causal}, window={window})"
            )
            arguments = (idx, query_len, seq_len, query_tile, key_tile, causal, window)
            saw = result(subject.call("key_tiles", *arguments), about)
            keys = seen_keys(idx, query_len, seq_len, query_tile, causal, window)
            due = keys[0] // key_tile, keys[-1] // key_tile
            expect(about, saw, due, partial(tile_mistake, due=due, arguments=arguments))


def tile_mistake(saw: Any, due: tuple[int, int], arguments: tuple) -> str:
    """What wrong tiles come from."""
    idx, query_len, seq_len, query_tile, key_tile, causal, window = arguments
    first, last = saw
    context_len = seq_len - query_len
    last_query = min((idx + 1) * query_tile, query_len) - 1
    num_tiles = -(-seq_len // key_tile)
    if (first, last) == due:
        return "The two numbers are right: give them back as a tuple of two ints."
    last_key = context_len + last_query if causal else seq_len - 1
    if last == last_key != due[1] and key_tile > 1:
        return "That is the last token that is seen, and the tile that holds it is due."
    if not causal:
        if last == num_tiles:
            return "Tiles count from 0, and the last one itself is due, not the one behind it."
        if last == num_tiles - 2:
            return "The last tile may be shorter than the others; it is needed all the same."
        return "Not causal: every query sees every key, and no tile can be left out."
    if first < 0:
        return "A window that reaches back before token 0 starts at token 0."
    if last != due[1]:
        if last == last_query // key_tile:
            return (
                "The mask is aligned to the last query (bottom-right): query 0 stands at position "
                "seq_len - query_len, not at 0."
            )
        if last == (context_len + (idx + 1) * query_tile - 1) // key_tile:
            return (
                "The last tile of queries may be shorter: behind the last query there are no keys."
            )
        if last in (due[1] + 1, (context_len + last_query + 1) // key_tile):
            return "The last tile that is needed is due, and not the one behind it."
        if last == (context_len + idx * query_tile) // key_tile:
            return "The tile's last query sees furthest; this is what its first query sees."
        if last == num_tiles - 1:
            return "Causal: tiles behind the last query's own token are not needed."
        if last == idx:
            return (
                "Tiles of queries and tiles of keys differ in size and start: ask for tokens first."
            )
        return "The tile's last query decides: it sees the keys up to its own position."
    if window is None:
        return "Without a window a query sees every earlier token, so the first tile is tile 0."
    first_position = context_len + idx * query_tile
    if first == max(0, first_position - window) // key_tile:
        return "A window of w holds the query itself and w - 1 tokens before it."
    if first == max(0, context_len + last_query - window + 1) // key_tile:
        return "The tile's first query looks back furthest: its window decides where to begin."
    if first == 0:
        return "With a window, tiles before the first query's window are not needed."
    return "The first query's window decides: its position, less window - 1, at least 0."


# --------------------------------------------------------------------- 06.3, bytes


@check_for(
    "06.3",
    holds="Standard attention moves the scores four times; tiled attention moves none of them, and "
    "K and V once for each tile of queries that needs them.",
    hints=(
        (
            "Walk through each way of computing, and write down every tensor that is read from HBM "
            "or written to it. An operation knows nothing of the one before: what that wrote, it reads."
        ),
        (
            "Standard: scores are written, read, written as weights, and read; q, k, v and out once "
            "each. Tiled: q and out once; then, for each tile of queries, the keys and values of its "
            "tiles from key_tiles, where the sequence's last tile may be shorter."
        ),
        (
            "outside = 2 * query_len * head_dim. Standard adds k, v and four times the scores. For "
            "tiled, loop over the tiles of queries, rounded up; the keys of tiles first .. last number "
            "min(end of last, seq_len) - start of first; add k and v rows for them. Times element_size."
        ),
    ),
)
def check_hbm_traffic(subject: Subject, draw: Draw) -> None:
    """The syllabus' sizes, decode, ragged tiles, causal and not."""
    cases = [  # one that is not causal first: standard_mistake counts on it
        (300, 1000, 64, 64, 64, False, 1),
        (1024, 1024, 64, 64, 64, False, 1),
        (1, 4096, 64, 64, 64, True, 2),
        (40, 40, 8, 16, 16, True, 2),
        (20, 50, 8, 8, 16, True, 4),
        (48, 48, 8, 16, 16, True, 2),
        (draw.randrange(20, 40), 57, 24, 16, 8, False, 2),
        (draw.randrange(20, 40), 57, 24, draw.choice([4, 16]), 8, True, 4),
    ]
    for case in cases:
        query_len, seq_len, head_dim, query_tile, key_tile, causal, size = case
        about = (
            f"hbm_traffic(query_len={query_len}, seq_len={seq_len}, head_dim={head_dim}, "
            f"query_tile={query_tile}, key_tile={key_tile}, causal={causal}, element_size={size})"
        )
        saw = result(subject.call("hbm_traffic", *case), about)
        due = standard_bytes(*case), tiled_bytes(*case)
        if not isinstance(saw, tuple | list) or len(saw) != 2:
            expect(about, saw, due, "Two numbers are due, standard and tiled.")
        expect(
            f"{about}; standard", saw[0], due[0], partial(standard_mistake, case=case, due=due[0])
        )
        expect(f"{about}; tiled", saw[1], due[1], partial(tiled_mistake, case=case, due=due[1]))


def standard_bytes(query_len: int, seq_len: int, head_dim: int, *rest: Any, passes: int = 4) -> int:
    """Three operations: q, k -> scores; scores -> weights; weights, v -> out."""
    rows = 2 * query_len + 2 * seq_len
    return (rows * head_dim + passes * query_len * seq_len) * rest[-1]


def tiled_bytes(
    query_len: int,
    seq_len: int,
    head_dim: int,
    query_tile: int,
    key_tile: int,
    causal: bool,
    element_size: int,
    count: Callable[[int, int, list[int]], int] | None = None,
    num_tiles: int | None = None,
) -> int:
    """The elements of each tile of queries, counted with `count` (keys of tiles first .. last)."""
    elements = 2 * query_len * head_dim
    for idx in range(-(-query_len // query_tile) if num_tiles is None else num_tiles):
        keys = seen_keys_fast(idx, query_len, seq_len, query_tile, causal)
        first, last = keys[0] // key_tile, keys[1] // key_tile
        num_keys = min((last + 1) * key_tile, seq_len) - first * key_tile
        if count is not None:
            num_keys = count(first, last, [*keys, num_keys])
        elements += 2 * num_keys * head_dim
    return elements * element_size


def seen_keys_fast(
    idx: int, query_len: int, seq_len: int, query_tile: int, causal: bool
) -> tuple[int, int]:
    """First and last key of a tile of queries."""
    last_query = min((idx + 1) * query_tile, query_len) - 1
    return 0, seq_len - query_len + last_query if causal else seq_len - 1


AS_INT = "The value is right, but it is a float: bytes are whole numbers, and // divides them."


def standard_mistake(saw: Any, case: tuple, due: int) -> str:
    """What wrong bytes of standard attention come from."""
    if isinstance(saw, float) and saw == due:
        return AS_INT
    query_len, seq_len, head_dim, *_, size = case
    scores, row = query_len * seq_len * size, head_dim * size
    if saw * size == due:
        return "These are elements; bytes are due, element_size each."
    if case[5] and saw in (due - 2 * scores, due - 2 * scores + size):
        return "Standard attention computes all pairs and masks them afterwards: it skips nothing."
    if saw in (due - scores, due - 2 * scores, due - 3 * scores):
        return "The scores cross HBM four times: written, read, written as weights, read again."
    if saw == due - query_len * row:
        return "q is read and out is written: both have query_len rows."
    if saw == due - seq_len * row:
        return "k is read for the scores and v for the mix: both have seq_len rows."
    return "Read q, k; write scores; read scores; write weights; read weights, v; write out."


def tiled_mistake(saw: Any, case: tuple, due: int) -> str:
    """What wrong bytes of tiled attention come from."""
    if isinstance(saw, float) and saw == due:
        return AS_INT
    query_len, seq_len, head_dim, query_tile, key_tile, causal, size = case
    num_tiles = -(-query_len // query_tile)

    def per_tile(**changes: Any) -> int:
        return tiled_bytes(*case, **changes)

    known: list[tuple[str, int]] = [
        ("K and V are read again for each tile of queries: they do not stay on the chip.",
         (2 * query_len + 2 * seq_len) * head_dim * size),
        ("K and V are both read: two rows of head_dim for each key.",
         (due + 2 * query_len * head_dim * size) // 2),
        ("out is written too: query_len rows.", due - query_len * head_dim * size),
        ("The last tile of queries may be shorter, but it reads its keys like the others: round up.",
         per_tile(num_tiles=query_len // query_tile)),
        ("The last tile of keys ends with the sequence: keys that do not exist are not read.",
         per_tile(count=lambda first, last, rest: (last + 1 - first) * key_tile)),
        ("The last tile is needed too: from the first to the last, both included.",
         per_tile(count=lambda first, last, rest: (last - first) * key_tile)),
        ("Whole tiles are read: the mask takes no key out of a tile that is needed.",
         per_tile(count=lambda first, last, rest: rest[1] + 1)),
        ("Causal: a tile that no query may see is not read. key_tiles says which are.",
         per_tile(count=lambda first, last, rest: seq_len)),
        ("key_tiles was not told that nothing is causal here: hand causal on.",
         due if causal else tiled_bytes(query_len, seq_len, head_dim, query_tile, key_tile, True, size)),
        ("The log-sum-exp is left out of this count: out alone is written.",
         due + query_len * size),
        ("The log-sum-exp is left out of this count: out alone is written.", due + query_len * 4),
        ("q is read once for each of its tiles and kept; only keys and values pass by.",
         due + (sum(seen_tiles(*case)) - num_tiles) * query_tile * head_dim * size),
        ("Scores and weights never leave the chip: they are not in the tiled count.",
         due + 4 * query_len * seq_len * size),
    ]  # fmt: skip
    if saw != due and saw * size == due:
        return "These are elements; bytes are due, element_size each."
    for text, value in known:
        if saw == value != due:
            return text
    return "q and out once; for each tile of queries, keys and values of the tiles that key_tiles names."


def seen_tiles(
    query_len: int,
    seq_len: int,
    head_dim: int,
    query_tile: int,
    key_tile: int,
    causal: bool,
    *_: int,
) -> list[int]:
    """How many tiles of keys each tile of queries reads."""
    num_tiles = -(-query_len // query_tile)
    ends = [seen_keys_fast(i, query_len, seq_len, query_tile, causal)[1] for i in range(num_tiles)]
    return [end // key_tile + 1 for end in ends]


# --------------------------------------------------------------------- 06.4, FlashInfer's form


@check_for(
    "06.4",
    holds="Each row's blocks stand between two entries of kv_indptr, and the last one's tokens "
    "are counted; a row of length 0 has no blocks and 0 tokens.",
    hints=(
        (
            "First how many blocks each row has; then everything follows: where rows begin is a "
            "running sum, the ids are the table without what lies behind, and the rest is a subtraction."
        ),
        (
            "Blocks of a row: seq_len / block_size, rounded up; 0 for an empty row. kv_indptr has one "
            "entry more than there are rows and begins with 0. A full last block has block_size "
            "tokens, not 0."
        ),
        (
            "num_blocks = (seq_lens + block_size - 1) // block_size. kv_indptr[1:] = its cumsum(0). "
            "kv_indices: block_tables[mask], mask comparing column numbers with num_blocks[:, None]. "
            "Last page: seq_lens less block_size times (num_blocks - 1), which is at least 0. int32."
        ),
    ),
)
def check_to_kv_indptr(subject: Subject, draw: Draw) -> None:
    """Full, partial and empty rows; ids behind a length that look like blocks."""
    for empty in (False, True, True):
        block_size = draw.choice([3, 4, 5])
        lens = [2 * block_size + 1, block_size, block_size - 1, 3 * block_size, 1]
        draw.shuffle(lens)
        if empty:
            lens[draw.randrange(4)] = 0
        ids = draw.permutation(40)
        width = 4
        tables = torch.tensor([ids[width * i : width * (i + 1)] for i in range(5)]).int()
        counts = [-(-n // block_size) for n in lens]
        if not empty:
            for row, count in enumerate(counts):
                tables[row, count:] = -1
        indices = [int(tables[row, i]) for row in range(5) for i in range(counts[row])]
        due = (
            torch.tensor([sum(counts[:i]) for i in range(6)]).int(),
            torch.tensor(indices).int(),
            torch.tensor(
                [n - (c - 1) * block_size if c else 0 for n, c in zip(lens, counts, strict=True)]
            ).int(),
        )
        about = f"to_kv_indptr(tables {tables.tolist()}, seq_lens {lens}, block_size={block_size})"
        reply = subject.call("to_kv_indptr", tables, torch.tensor(lens).int(), block_size)
        saw = result(
            reply, about, {"RuntimeError": "Rows and columns must fit: num_blocks[:, None]."}
        )
        if not isinstance(saw, tuple | list) or len(saw) != 3:
            expect(
                about, saw, due, "Three tensors are due: kv_indptr, kv_indices, kv_last_page_len."
            )
        because = (
            partial(indptr_mistake, lens=lens, block_size=block_size, due=due[0]),
            partial(indices_mistake, tables=tables, due=due[1]),
            partial(last_page_mistake, lens=lens, block_size=block_size),
        )
        for name, part, want, reason in zip(NAMES, saw, due, because, strict=True):
            expect_tensor(f"{about}; {name}", part, want, reason)
        expect_tensor(
            f"{about}; the tables afterwards",
            reply.args_after[0],
            tables,
            "The tables are only read.",
        )


NAMES = ("kv_indptr", "kv_indices", "kv_last_page_len")


def indptr_mistake(saw: torch.Tensor, lens: list[int], block_size: int, due: torch.Tensor) -> str:
    """What wrong row starts come from."""
    values = saw.flatten().tolist()
    if values == due[1:].tolist():
        return "kv_indptr begins with 0: one entry more than there are rows."
    if values and values[-1] == sum(lens):
        return "kv_indptr counts blocks, and this counts tokens."
    if len(values) < len(due):
        return "Every row has an entry, empty ones too: kv_indptr has num_seqs + 1 of them."
    if values[-1] == sum(n // block_size for n in lens):
        return "A block that is only partly filled is a block of the row too: round up."
    if values == [n for n in due.diff().tolist()]:
        return "These are the rows' numbers of blocks; kv_indptr is their running sum."
    if values[-1] == sum(n // block_size + 1 for n in lens):
        return (
            "A row whose last block is full, and one that is empty, need no block more: round up."
        )
    if values[-1] == sum(max(1, -(-n // block_size)) for n in lens):
        return "A row of length 0 has no block."
    return "kv_indptr[i + 1] - kv_indptr[i] is the number of blocks of row i."


def indices_mistake(saw: torch.Tensor, tables: torch.Tensor, due: torch.Tensor) -> str:
    """What wrong block ids come from."""
    values = saw.flatten().tolist()
    if -1 in values:
        return "Padding came along: kv_indices holds the blocks of the rows and nothing else."
    if sorted(values) == sorted(due.tolist()):
        return "The ids of a row stay in the table's order, which is the order of the tokens."
    if len(values) > len(due):
        return "Ids behind a length are not the row's, whatever they look like: the length decides."
    return "The first blocks of each row, one row behind the other."


def last_page_mistake(saw: torch.Tensor, lens: list[int], block_size: int) -> str:
    """What wrong counts of the last block come from."""
    values = saw.flatten().tolist()
    if values == [-seq_len % block_size for seq_len in lens]:
        return "The tokens in the last block are due, and this counts its empty slots."
    for value, seq_len in zip(values, lens, strict=False):
        if seq_len == 0 and value != 0:
            return "A row of length 0 has no last block: 0 tokens."
        if seq_len and value == 0:
            return "A last block that is full holds block_size tokens, not 0."
        if value == seq_len > block_size:
            return "Only the last block's tokens are due, not all of the row's."
    return "seq_len, less the tokens of the full blocks before the last one."
