"""The checks of lesson 6."""

from collections.abc import Sequence
from typing import Any

import torch

from ...kit.checks import Draw, check_for
from ...kit.expecting import CheckFailed, Words, expect, expect_tensor, fail, has_failed, value
from ...kit.subject import Subject

INF = float("inf")
STATE = ("top", "total", "mixed")
FLASHINFER = ("kv_indptr", "kv_indices", "kv_last_page_len")
Tile = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def expect_tensors(saw: Any, due: Sequence[torch.Tensor], names: tuple[str, ...]) -> None:
    """Fail unless as many tensors came back as have names, each as expected; names are rules too."""
    if has_failed():  # a diagnosis, which compares replies by itself
        return
    if not isinstance(saw, tuple | list) or len(saw) != len(names):
        fail(saw, Words(f"the tensors {', '.join(names)}"), "all of them")
        return
    for part, want, name in zip(saw, due, names, strict=True):
        try:
            expect_tensor(part, want, name)
        except CheckFailed as failure:
            failure.saw = f"{failure.saw} in {name}"
            raise


# --- 06.1, the inner loop ------------------------------------------------------------------------


@check_for("06.1")
def check_absorb_tile(subject: Subject, draw: Draw) -> None:
    """Tiles one after the other: a single query; rising and falling scores, large ones; masks, and
    rows that see nothing yet."""
    for kind in ("single", "rising", "falling", "large", "masked", "blind"):
        q, tiles = draw_tiles(draw, kind)
        top = torch.full(q.shape[:-1], -INF)
        state: Tile = (top, torch.zeros_like(top), torch.zeros_like(q))
        for idx, tile in enumerate(tiles):
            reply = subject.call("absorb_tile", *state, q, *tile)
            state = so_far(q, tiles[: idx + 1])
            expect_tensors(value(reply, {"RuntimeError": "shapes"}), state, STATE)


def draw_tiles(draw: Draw, kind: str) -> tuple[torch.Tensor, list[Tile]]:
    """Queries, and three tiles of keys, values and masks."""
    if kind == "single":  # few and whole numbers: a failure here can be followed by hand
        q = torch.tensor([[float(draw.randint(1, 2))]])
        masks = ([False, False], [True, True], [True, False])
        numbers = [draw.sample(range(-4, 5), 4) for _ in masks]
        kv = [torch.tensor(n).float().view(2, 2, 1) for n in numbers]
        return q, [(k, v, torch.tensor([mask])) for (k, v), mask in zip(kv, masks, strict=True)]
    num_kv_heads, rows, head_dim, tile = 2, 4, 8, draw.choice([3, 5])
    q = draw.tensor(num_kv_heads, draw.choice([1, 3, 4]), rows, head_dim)
    if kind in ("rising", "falling"):
        q = q.abs()  # with positive keys, their size orders the scores
    if kind == "large":
        q = (4 * q).round() / 4  # with whole-numbered keys, scores are exact at any size
    tiles = []
    for idx in range(3):
        k, v = (draw.tensor(num_kv_heads, 1, tile, head_dim) for _ in range(2))
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
    return q, tiles


def so_far(q: torch.Tensor, tiles: list[Tile]) -> Tile:
    """The state after some tiles, from all their scores at once."""
    k, v = (torch.cat([tile[part] for tile in tiles], dim=-2).double() for part in (0, 1))
    allowed = torch.cat([tile[2] for tile in tiles], dim=-1)
    scores = (q.double() @ k.transpose(-1, -2)).masked_fill(~allowed, -INF)
    top = scores.amax(-1)
    weights = torch.exp(scores - top.clamp(min=-1e300)[..., None])
    return top.float(), weights.sum(-1).float(), (weights @ v).float()


# --- 06.2, which tiles ---------------------------------------------------------------------------


@check_for("06.2")
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
    for case in cases:
        query_len, seq_len, query_tile, key_tile, causal, window = case
        rule = "not causal" if not causal else "causal" if window is None else "window"
        for idx in range(-(-query_len // query_tile)):
            saw = value(subject.call("key_tiles", idx, *case))
            keys = seen_keys(idx, query_len, seq_len, query_tile, causal, window)
            expect(saw, (keys[0] // key_tile, keys[-1] // key_tile), rule)


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


# --- 06.3, bytes ---------------------------------------------------------------------------------


@check_for("06.3")
def check_hbm_traffic(subject: Subject, draw: Draw) -> None:
    """Prefill, decode, chunks, ragged tiles; causal and not."""
    cases = [
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
        saw = value(subject.call("hbm_traffic", *case))
        due = standard_bytes(*case), tiled_bytes(*case)
        if not isinstance(saw, tuple | list) or len(saw) != 2:
            fail(saw, due, "two numbers")
            continue
        expect(saw[0], due[0], "standard")
        expect(saw[1], due[1], "tiled")


def standard_bytes(query_len: int, seq_len: int, head_dim: int, *rest: int) -> int:
    """Three operations: q, k -> scores; scores -> weights; weights, v -> out."""
    rows = 2 * query_len + 2 * seq_len
    return (rows * head_dim + 4 * query_len * seq_len) * rest[-1]


def tiled_bytes(
    query_len: int,
    seq_len: int,
    head_dim: int,
    query_tile: int,
    key_tile: int,
    causal: bool,
    element_size: int,
) -> int:
    """q and out, and for each tile of queries the whole tiles of keys up to its last query's."""
    rows = 2 * query_len
    for start in range(0, query_len, query_tile):
        last_query = min(start + query_tile, query_len) - 1
        num_keys = seq_len - query_len + last_query + 1 if causal else seq_len
        rows += 2 * min(-(-num_keys // key_tile) * key_tile, seq_len)
    return rows * head_dim * element_size


# --- 06.4, FlashInfer's form ---------------------------------------------------------------------


@check_for("06.4")
def check_to_kv_indptr(subject: Subject, draw: Draw) -> None:
    """Full, partial and empty rows; padding, and ids past a length that look like blocks."""
    for kind in ("small", "padded", "old ids", "old ids"):
        block_size = draw.choice([3, 4, 5])
        lens = [2 * block_size + 1, block_size, block_size - 1, 3 * block_size, 1]
        draw.shuffle(lens)
        if kind == "small":
            lens = draw.sample([2 * block_size - 1, 2 * block_size, 0], 3)
        if kind == "old ids":
            lens[draw.randrange(4)] = 0
        tables = torch.tensor(draw.permutation(40)[: 4 * len(lens)]).int().view(-1, 4)
        counts = [-(-n // block_size) for n in lens]
        if kind == "padded":
            for row, count in enumerate(counts):
                tables[row, count:] = -1
        rows = list(zip(lens, counts, strict=True))
        due = (
            torch.tensor([sum(counts[:row]) for row in range(len(lens) + 1)]).int(),
            torch.cat([tables[row, :count] for row, count in enumerate(counts)]),
            torch.tensor([n - (count - 1) * block_size if count else 0 for n, count in rows]).int(),
        )
        seq_lens = torch.tensor(lens).int()
        reply = subject.call("to_kv_indptr", tables, seq_lens, block_size)
        expect_tensors(value(reply, {"RuntimeError": "mask"}), due, FLASHINFER)
        for after, before in zip(reply.args_after, (tables, seq_lens), strict=False):
            expect_tensor(after, before, "only read")
