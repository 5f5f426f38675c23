"""Lesson 2: contiguous memory, reserved to the maximum.

Follows `naive_cache.py`: nothing is copied any more, but each request reserves, in one piece, the
memory that it may need at most. A slab for one request, and an arena that many requests share; what
the reserved memory is used for is in `waste.py`. Leaves out the cure, which is lessons 3 and 4.
"""

import torch

from .attention import attention
from .given.checkpoint import ModelConfig


class ContiguousKVCache:
    """The keys and values of one sequence, in a slab reserved for `max_seq_len` tokens.

    Attributes:
        k, v: [num_layers, max_seq_len, num_kv_heads, head_dim].
        num_tokens: tokens announced so far; later slots hold nothing of this sequence.
        start: where the tokens of this forward pass begin.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_seq_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len}")
        shape = (config.num_layers, max_seq_len, config.num_kv_heads, config.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.start = self.num_tokens = 0

    def extend(self, n: int) -> bool:
        """Announce n more tokens, once before a forward pass.

        Returns:
            True; False when the slab has no room for them, and then nothing has changed.
        """
        if n < 0:
            raise ValueError(f"cannot extend by {n} tokens")
        if self.num_tokens + n > self.k.shape[1]:
            return False
        self.start, self.num_tokens = self.num_tokens, self.num_tokens + n
        return True

    def append(
        self, layer_idx: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the announced tokens' keys and values into one layer of the slab, in place.

        Args:
            layer_idx: which layer, from 0.
            k: [num_tokens - start, num_kv_heads, head_dim].
            v: like k.

        Returns:
            The layer's keys and values that hold tokens, each [num_tokens, num_kv_heads, head_dim]:
            views of the slab, not copies.
        """
        self.k[layer_idx, self.start : self.num_tokens] = k
        self.v[layer_idx, self.start : self.num_tokens] = v
        return self.k[layer_idx, : self.num_tokens], self.v[layer_idx, : self.num_tokens]

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Keep k and v, then attend to everything kept. Shapes as in `attention`."""
        if len(k) != self.num_tokens - self.start:
            raise ValueError(
                f"attend got {len(k)} tokens, extend was told of {self.num_tokens - self.start}"
            )
        return attention(q, *self.append(layer_idx, k, v))


def first_fit(holes: list[tuple[int, int]], n: int) -> int | None:
    """Take n slots from the first hole that is large enough.

    Args:
        holes: (start, size) of each free stretch, by ascending start; changed in place. A hole
            that is used up is removed.
        n: slots wanted, at least 1.

    Returns:
        Where the n slots start: the hole's low end. None when no hole is large enough, and then
        `holes` is as it was.
    """
    for idx, (start, size) in enumerate(holes):
        if size >= n:
            holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
            return start
    return None


def merge_hole(holes: list[tuple[int, int]], start: int, size: int) -> None:
    """Give `size` slots back, and join them with the holes that they touch.

    Args:
        holes: (start, size) of each free stretch, by ascending start; changed in place. No two
            holes touch, before or after.
        start: the first slot that is given back; none of them is in a hole.
        size: how many, at least 1.
    """
    idx = sum(hole_start < start for hole_start, _ in holes)
    if idx < len(holes) and holes[idx][0] == start + size:
        size += holes.pop(idx)[1]
    if idx > 0 and sum(holes[idx - 1]) == start:
        idx -= 1
        start, before = holes.pop(idx)
        size += before
    holes.insert(idx, (start, size))


class Arena:
    """One stretch of memory that many requests share, each in one piece of it: first fit.

    Attributes:
        num_slots: slots in all.
        holes: (start, size) of each free stretch, by ascending start.
        sizes: start -> size of each reserved piece.

    >>> arena = Arena(10)
    >>> [arena.reserve(4), arena.reserve(4), arena.reserve(4)]
    [0, 4, None]
    >>> arena.release(0); arena.holes
    [(0, 4), (8, 2)]
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"an arena needs at least 1 slot, got {num_slots}")
        self.num_slots = num_slots
        self.holes = [(0, num_slots)]
        self.sizes: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Free slots, wherever they are."""
        return sum(size for _, size in self.holes)

    def reserve(self, n: int) -> int | None:
        """Reserve n slots in one piece.

        Returns:
            The first slot; None when no hole is large enough, and then nothing has changed.
        """
        if n < 1:
            raise ValueError(f"cannot reserve {n} slots")
        start = first_fit(self.holes, n)
        if start is not None:
            self.sizes[start] = n
        return start

    def release(self, start: int) -> None:
        """Give a reserved piece back; ValueError when no piece starts there."""
        if start not in self.sizes:
            raise ValueError(f"no reserved piece starts at slot {start}")
        merge_hole(self.holes, start, self.sizes.pop(start))
